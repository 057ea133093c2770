//! Answers of a query as text or as a file.

use std::io::{self, Write};

use datafusion::{
    arrow::{
        array::{Array as _, ArrayRef, AsArray as _, RecordBatch},
        compute::cast,
        csv::Writer as CsvWriter,
        datatypes::{DataType, Float64Type, Int64Type, SchemaRef},
        error::ArrowError,
        json::{LineDelimitedWriter, WriterBuilder, writer::LineDelimited},
        util::{
            display::{ArrayFormatter, FormatOptions},
            pretty::pretty_format_batches,
        },
    },
    parquet::{
        arrow::ArrowWriter,
        basic::{Compression, ZstdLevel},
        errors::ParquetError,
        file::properties::WriterProperties,
    },
};

use serde_json::Value;

use crate::{
    StoreError,
    query::{Flow, Part, Session},
};

/// A table for people ends here; the other formats give everything.
pub const MAX_TABLE_ROWS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines and columns, at most [`MAX_TABLE_ROWS`].
    Table,
    Csv,
    /// One object a line.
    Json,
    Parquet,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub rows: u64,
    /// There are more rows than a table shows.
    pub is_cut: bool,
}

/// Runs a query and writes its answer.
pub fn write_query(
    session: &Session,
    sql: &str,
    format: Format,
    out: &mut (dyn Write + Send),
) -> Result<Written, StoreError> {
    let mut written = Written::default();
    let mut sink = None;
    session.query(sql, |part| match part {
        Part::Columns(schema) => {
            // What a failed query leaves behind is nothing, not half a header.
            sink = Some((Sink::new(format, &schema)?, schema));
            Ok(Flow::More)
        }
        Part::Rows(batch) => {
            let (sink, _) = sink.as_mut().expect("columns come first");
            written.rows += batch.num_rows() as u64;
            let flow = sink.rows(batch, out)?;
            written.is_cut = flow == Flow::Enough;
            Ok::<_, StoreError>(flow)
        }
    })?;
    let (sink, schema) = sink.expect("a query has columns");
    sink.finish(&schema, out)?;
    out.flush()?;
    if written.is_cut {
        written.rows = MAX_TABLE_ROWS as u64;
    }
    Ok(written)
}

/// Rows as JSON values, for a page.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Name and type of each column.
    pub columns: Vec<(String, String)>,
    pub rows: Vec<Vec<Value>>,
    /// There are more.
    pub is_cut: bool,
}

/// Runs a query and gives its first `most` rows.
pub fn query_rows(session: &Session, sql: &str, most: usize) -> Result<Rows, StoreError> {
    let mut answer = Rows::default();
    session.query(sql, |part| {
        match part {
            Part::Columns(schema) => {
                let fields = schema.fields().iter();
                let about = fields.map(|f| (f.name().clone(), f.data_type().to_string()));
                answer.columns = about.collect();
            }
            Part::Rows(batch) => {
                let left = most - answer.rows.len();
                answer.is_cut = batch.num_rows() > left;
                let batch = batch.slice(0, batch.num_rows().min(left));
                let columns: Result<Vec<Vec<Value>>, StoreError> =
                    batch.columns().iter().map(json_values).collect();
                let columns = columns?;
                let rows = 0..batch.num_rows();
                let row = |at: usize| columns.iter().map(|column| column[at].clone()).collect();
                answer.rows.extend(rows.map(row));
            }
        }
        Ok::<_, StoreError>(match answer.is_cut {
            true => Flow::Enough,
            false => Flow::More,
        })
    })?;
    Ok(answer)
}

/// Numbers as numbers, everything else as it is printed.
fn json_values(column: &ArrayRef) -> Result<Vec<Value>, StoreError> {
    let ty = column.data_type();
    if ty.is_integer() {
        let cast = cast(column, &DataType::Int64).map_err(arrow_error)?;
        let values = cast.as_primitive::<Int64Type>().iter();
        return Ok(values.map(Value::from).collect());
    }
    if ty.is_floating() {
        let cast = cast(column, &DataType::Float64).map_err(arrow_error)?;
        let values = cast.as_primitive::<Float64Type>().iter();
        return Ok(values.map(Value::from).collect());
    }
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(column, &options).map_err(arrow_error)?;
    let value = |at: usize| match column.is_null(at) {
        true => Value::Null,
        false => Value::from(formatter.value(at).to_string()),
    };
    Ok((0..column.len()).map(value).collect())
}

enum Sink {
    Table(Vec<RecordBatch>),
    Text { format: Format, is_begun: bool },
    Parquet(Box<ArrowWriter<Vec<u8>>>),
}

impl Sink {
    fn new(format: Format, schema: &SchemaRef) -> Result<Sink, StoreError> {
        Ok(match format {
            Format::Table => Sink::Table(Vec::new()),
            Format::Csv | Format::Json => Sink::Text {
                format,
                is_begun: false,
            },
            Format::Parquet => {
                let level = ZstdLevel::try_new(1).expect("a valid level");
                let properties = WriterProperties::builder()
                    .set_compression(Compression::ZSTD(level))
                    .build();
                let writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties));
                Sink::Parquet(Box::new(writer.map_err(parquet_error)?))
            }
        })
    }

    fn rows(
        &mut self,
        batch: RecordBatch,
        out: &mut (dyn Write + Send),
    ) -> Result<Flow, StoreError> {
        match self {
            Sink::Table(batches) => {
                let shown: usize = batches.iter().map(RecordBatch::num_rows).sum();
                let left = MAX_TABLE_ROWS - shown;
                let is_cut = batch.num_rows() > left;
                batches.push(batch.slice(0, batch.num_rows().min(left)));
                Ok(if is_cut { Flow::Enough } else { Flow::More })
            }
            Sink::Text { format, is_begun } => {
                write_text(*format, !*is_begun, &batch, out)?;
                *is_begun = true;
                Ok(Flow::More)
            }
            Sink::Parquet(writer) => {
                writer.write(&batch).map_err(parquet_error)?;
                // Row groups that are complete leave memory.
                let bytes = std::mem::take(writer.inner_mut());
                out.write_all(&bytes)?;
                Ok(Flow::More)
            }
        }
    }

    fn finish(self, schema: &SchemaRef, out: &mut (dyn Write + Send)) -> Result<(), StoreError> {
        match self {
            Sink::Table(batches) => {
                let empty = RecordBatch::new_empty(schema.clone());
                let batches = if batches.is_empty() {
                    vec![empty]
                } else {
                    batches
                };
                let text = pretty_format_batches(&batches).map_err(arrow_error)?;
                writeln!(out, "{text}")?;
            }
            Sink::Text { format, is_begun } => {
                if !is_begun {
                    write_text(format, true, &RecordBatch::new_empty(schema.clone()), out)?;
                }
            }
            Sink::Parquet(writer) => out.write_all(&writer.into_inner().map_err(parquet_error)?)?,
        }
        Ok(())
    }
}

fn write_text(
    format: Format,
    is_first: bool,
    batch: &RecordBatch,
    out: &mut (dyn Write + Send),
) -> Result<(), StoreError> {
    let mut text = Vec::new();
    if format == Format::Csv {
        let builder = datafusion::arrow::csv::WriterBuilder::new().with_header(is_first);
        let mut writer: CsvWriter<_> = builder.build(&mut text);
        writer.write(batch).map_err(arrow_error)?;
    } else {
        let builder = WriterBuilder::new().with_explicit_nulls(true);
        let mut writer: LineDelimitedWriter<_> = builder.build::<_, LineDelimited>(&mut text);
        writer.write(batch).map_err(arrow_error)?;
        writer.finish().map_err(arrow_error)?;
    }
    out.write_all(&text)?;
    Ok(())
}

fn arrow_error(error: ArrowError) -> StoreError {
    StoreError::Output(io::Error::other(error.to_string()))
}

fn parquet_error(error: ParquetError) -> StoreError {
    StoreError::Output(io::Error::other(error.to_string()))
}
