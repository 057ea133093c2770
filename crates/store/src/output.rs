//! Answers of a query as text or as a file.

use std::io::{self, Write};

use datafusion::{
    arrow::{
        array::RecordBatch,
        csv::Writer as CsvWriter,
        datatypes::SchemaRef,
        error::ArrowError,
        json::{LineDelimitedWriter, WriterBuilder, writer::LineDelimited},
        util::pretty::pretty_format_batches,
    },
    parquet::{
        arrow::ArrowWriter,
        basic::{Compression, ZstdLevel},
        errors::ParquetError,
        file::properties::WriterProperties,
    },
};

use crate::{
    StoreError,
    query::{Flow, Part, Session},
};

/// A table for people ends here; the other formats give everything.
pub const MOST_TABLE_ROWS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines and columns, at most [`MOST_TABLE_ROWS`].
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
        written.rows = MOST_TABLE_ROWS as u64;
    }
    Ok(written)
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
                let left = MOST_TABLE_ROWS - shown;
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
