//! A table's Parquet file: row groups are encoded on two threads and appended.
//!
//! A column chunk is a dictionary page and data pages of [`PAGE_ROWS`] rows, each
//! compressed by itself. Row groups carry the least and the largest value of each
//! dictionary column, by which readers skip them.

use std::{
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use datafusion::parquet::{
    arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata},
    basic::{Compression, Encoding, ZstdLevel},
    column::{
        page::{CompressedPage, Page, PageWriter},
        writer::ColumnCloseResult,
    },
    data_type::ByteArray,
    errors::{ParquetError, Result},
    file::{
        metadata::{ColumnChunkMetaData, KeyValue},
        properties::{WriterProperties, WriterVersion},
        statistics::Statistics,
        writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite},
    },
    schema::types::ColumnDescPtr,
};

use crate::{
    StoreError, arrow,
    pages::{delta, hybrid, index_bits, levels},
    row_group::{ColumnRows, DeltaRows, DictionaryRows, NULL, RowGroup},
    schema::{Column, ColumnType, KEY_LOG_BYTES, KEY_TABLE, KEY_VERSION, Nulls, Table, VERSION},
};

/// Long enough that an evaluation's pattern repeats many times in a page.
const PAGE_ROWS: usize = 1 << 18;
/// The pattern repeats byte for byte: higher levels find little more.
const ZSTD_LEVEL: i32 = 1;
/// Columns are encoded by this many threads, besides the one that expands.
const ENCODERS: usize = 2;

pub struct TableFile {
    path: PathBuf,
    writer: SerializedFileWriter<BufWriter<File>>,
}

impl TableFile {
    pub fn create(
        directory: &Path,
        table: &'static Table,
        log_bytes: u64,
    ) -> std::result::Result<TableFile, StoreError> {
        let path = directory.join(format!("{}.parquet", table.name));
        let file = File::create_new(&path).map_err(StoreError::io(&path, "cannot create"))?;
        let writer = open(file, table, log_bytes).map_err(StoreError::write(&path))?;
        Ok(TableFile { path, writer })
    }

    /// Appends the rows as one row group.
    pub fn append(&mut self, group: RowGroup) -> std::result::Result<(), StoreError> {
        let path = self.path.clone();
        self.try_append(group).map_err(StoreError::write(path))
    }

    /// Completes the file; its length.
    pub fn finish(self) -> std::result::Result<u64, StoreError> {
        let TableFile { path, mut writer } = self;
        writer.finish().map_err(StoreError::write(&path))?;
        let file = writer.inner().get_ref();
        file.sync_all()
            .and_then(|()| Ok(file.metadata()?.len()))
            .map_err(StoreError::io(&path, "cannot write"))
    }

    fn try_append(&mut self, group: RowGroup) -> Result<()> {
        if group.rows == 0 {
            return Ok(());
        }
        let descriptors: Vec<ColumnDescPtr> = self.writer.schema_descr().columns().to_vec();
        let chunks = encode_columns(&group, &descriptors)?;
        drop(group);
        let mut row_group = self.writer.next_row_group()?;
        for (bytes, close) in chunks {
            row_group.append_column(&bytes, close)?;
        }
        row_group.close()?;
        Ok(())
    }
}

fn open(
    file: File,
    table: &Table,
    log_bytes: u64,
) -> Result<SerializedFileWriter<BufWriter<File>>> {
    let arrow = arrow::schema(table);
    let parquet = ArrowSchemaConverter::new()
        .schema_root(table.name)
        .convert(&arrow)?;
    let about = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(format!("tensorscope {}", env!("CARGO_PKG_VERSION")))
        .set_key_value_metadata(Some(vec![
            about(KEY_TABLE, table.name.to_owned()),
            about(KEY_VERSION, VERSION.to_owned()),
            about(KEY_LOG_BYTES, log_bytes.to_string()),
        ]))
        .build();
    add_encoded_arrow_schema_to_metadata(&arrow, &mut properties);
    SerializedFileWriter::new(
        BufWriter::new(file),
        parquet.root_schema_ptr(),
        Arc::new(properties),
    )
}

type Chunk = (Bytes, ColumnCloseResult);

fn encode_columns(group: &RowGroup, descriptors: &[ColumnDescPtr]) -> Result<Vec<Chunk>> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Chunk)>> {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(rows) = group.columns.get(at) else {
                return Ok(done);
            };
            let about = &group.table.columns[at];
            let encoder = ChunkEncoder::new(about, group.rows, &descriptors[at])?;
            done.push((at, encoder.encode(rows)?));
        }
    };
    let mut chunks: Vec<(usize, Chunk)> = Vec::new();
    if group.rows < 1 << 14 {
        // Not worth a thread.
        chunks = work()?;
    } else {
        std::thread::scope(|scope| -> Result<()> {
            let threads: Vec<_> = (0..ENCODERS).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                let done = thread
                    .join()
                    .map_err(|_| ParquetError::General("an encoder failed".into()))?;
                chunks.extend(done?);
            }
            Ok(())
        })?;
    }
    chunks.sort_by_key(|&(at, _)| at);
    Ok(chunks.into_iter().map(|(_, chunk)| chunk).collect())
}

/// Writes the pages of one column chunk.
struct ChunkEncoder<'a> {
    about: &'a Column,
    rows: usize,
    descriptor: &'a ColumnDescPtr,
    compressor: zstd::bulk::Compressor<'static>,
    sink: TrackedWrite<Vec<u8>>,
    uncompressed_bytes: usize,
    data_page_offset: Option<u64>,
    dictionary_page_offset: Option<u64>,
    /// Beside pages in the encoding of the column.
    has_plain_page: bool,
}

impl<'a> ChunkEncoder<'a> {
    fn new(about: &'a Column, rows: usize, descriptor: &'a ColumnDescPtr) -> Result<Self> {
        let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        // Every reader of zstd checks it: a flipped bit is an error, not a number.
        compressor.include_checksum(true)?;
        Ok(ChunkEncoder {
            about,
            rows,
            descriptor,
            compressor,
            sink: TrackedWrite::new(Vec::new()),
            uncompressed_bytes: 0,
            data_page_offset: None,
            dictionary_page_offset: None,
            has_plain_page: false,
        })
    }

    fn encode(mut self, rows: &ColumnRows) -> Result<Chunk> {
        let (encoding, statistics) = match rows {
            ColumnRows::Dictionary(column) => self.dictionary(column)?,
            ColumnRows::Delta(column) => self.deltas(column)?,
            ColumnRows::Plain(values) => {
                for page in values.chunks(PAGE_ROWS) {
                    let mut body = Vec::new();
                    if self.about.nulls == Nulls::Allowed {
                        levels(page.iter().map(Option::is_some), &mut body);
                    }
                    body.extend(page.iter().flatten().flat_map(|v| v.to_le_bytes()));
                    self.data_page(body, page.len(), Encoding::PLAIN)?;
                }
                (Encoding::PLAIN, None)
            }
        };
        self.close(encoding, statistics)
    }

    fn deltas(&mut self, column: &DeltaRows) -> Result<(Encoding, Option<Statistics>)> {
        let (about, rows) = (self.about, self.rows);
        let is_nullable = about.nulls == Nulls::Allowed;
        if column.present.is_some() && !is_nullable {
            let error = format!("column {}: a null, where none may be", about.name);
            return Err(ParquetError::General(error));
        }
        let mut values = column.values.as_slice();
        for first in (0..rows).step_by(PAGE_ROWS) {
            let page = first..rows.min(first + PAGE_ROWS);
            let mut body = Vec::new();
            let present = column.present.as_ref().map(|all| &all[page.clone()]);
            let count = match present {
                Some(present) => present.iter().filter(|&&is_present| is_present).count(),
                None => page.len(),
            };
            if is_nullable {
                match present {
                    Some(present) => levels(present.iter().copied(), &mut body),
                    None => levels(std::iter::repeat_n(true, page.len()), &mut body),
                }
            }
            let (of_page, rest) = values.split_at(count);
            values = rest;
            let encoding = match of_page {
                // Nothing but nulls: there is nothing that differs.
                [] => Encoding::PLAIN,
                values => {
                    delta(values, &mut body);
                    Encoding::DELTA_BINARY_PACKED
                }
            };
            self.has_plain_page |= encoding == Encoding::PLAIN;
            self.data_page(body, page.len(), encoding)?;
        }
        let nulls = (rows - column.values.len()) as u64;
        let statistics = int_statistics(about.ty, column.values.iter().copied(), nulls);
        Ok((Encoding::DELTA_BINARY_PACKED, statistics))
    }

    fn dictionary(&mut self, column: &DictionaryRows) -> Result<(Encoding, Option<Statistics>)> {
        let is_nullable = self.about.nulls == Nulls::Allowed;
        let mut nulls = 0;
        let encoding = if column.values.is_empty() {
            // Nothing but nulls: no dictionary to refer to.
            Encoding::PLAIN
        } else {
            self.dictionary_page(column)?;
            Encoding::RLE_DICTIONARY
        };
        let bits = index_bits(column.values.len());
        let mut present = Vec::new();
        for page in column.rows.chunks(PAGE_ROWS) {
            let mut body = Vec::new();
            let mut numbers = page;
            if is_nullable {
                levels(page.iter().map(|&n| n != NULL), &mut body);
                present.clear();
                present.extend(page.iter().copied().filter(|&n| n != NULL));
                nulls += (page.len() - present.len()) as u64;
                numbers = &present;
            }
            if encoding == Encoding::RLE_DICTIONARY {
                body.push(bits);
                hybrid(numbers, bits, &mut body);
            }
            self.data_page(body, page.len(), encoding)?;
        }
        // A template may have numbered values that no row of this group uses, and
        // readers answer MIN and MAX from these statistics.
        let mut is_used = vec![false; column.values.len()];
        for &number in column.rows.iter().filter(|&&n| n != NULL) {
            is_used[number as usize] = true;
        }
        let used = |at: &usize| is_used[*at];
        let statistics = match &column.texts {
            None => {
                let values = (0..column.values.len()).filter(used);
                int_statistics(self.about.ty, values.map(|at| column.values[at]), nulls)
            }
            Some(texts) => {
                let values = (0..texts.len()).filter(used).map(|at| &texts[at]);
                let bytes = |text: Option<&Arc<str>>| text.map(|t| ByteArray::from(&**t));
                let (least, most) = (bytes(values.clone().min()), bytes(values.max()));
                Some(Statistics::byte_array(
                    least,
                    most,
                    None,
                    Some(nulls),
                    false,
                ))
            }
        };
        Ok((encoding, statistics))
    }

    fn dictionary_page(&mut self, column: &DictionaryRows) -> Result<()> {
        let mut body = Vec::new();
        match (&column.texts, self.about.ty) {
            (Some(texts), _) => {
                for text in texts {
                    body.extend((text.len() as u32).to_le_bytes());
                    body.extend(text.as_bytes());
                }
            }
            (None, ColumnType::Int32) => {
                for &value in &column.values {
                    body.extend(narrow(self.about, value)?.to_le_bytes());
                }
            }
            (None, _) => body.extend(column.values.iter().flat_map(|v| v.to_le_bytes())),
        }
        let uncompressed = body.len();
        let page = Page::DictionaryPage {
            buf: self.compressor.compress(&body)?.into(),
            num_values: column.values.len() as u32,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        self.dictionary_page_offset = Some(self.write(page, uncompressed)?);
        Ok(())
    }

    fn data_page(&mut self, body: Vec<u8>, rows: usize, encoding: Encoding) -> Result<()> {
        let page = Page::DataPage {
            buf: self.compressor.compress(&body)?.into(),
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let offset = self.write(page, body.len())?;
        self.data_page_offset.get_or_insert(offset);
        Ok(())
    }

    fn write(&mut self, page: Page, uncompressed: usize) -> Result<u64> {
        let mut writer = SerializedPageWriter::new(&mut self.sink);
        let written = writer.write_page(CompressedPage::new(page, uncompressed))?;
        self.uncompressed_bytes += written.uncompressed_size;
        Ok(written.offset)
    }

    fn close(self, encoding: Encoding, statistics: Option<Statistics>) -> Result<Chunk> {
        let bytes = Bytes::from(self.sink.into_inner()?);
        let mut encodings = vec![encoding, Encoding::RLE];
        if self.dictionary_page_offset.is_some() || self.has_plain_page {
            encodings.push(Encoding::PLAIN);
        }
        let mut metadata = ColumnChunkMetaData::builder(self.descriptor.clone())
            .set_encodings(encodings)
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
            .set_num_values(self.rows as i64)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(self.uncompressed_bytes as i64)
            .set_data_page_offset(self.data_page_offset.unwrap_or(0) as i64)
            .set_dictionary_page_offset(self.dictionary_page_offset.map(|at| at as i64));
        if let Some(statistics) = statistics {
            metadata = metadata.set_statistics(statistics);
        }
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: self.rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        Ok((bytes, close))
    }
}

/// A value that does not fit ends the ingest: a wrong row would be worse.
fn narrow(about: &Column, value: i64) -> Result<i32> {
    i32::try_from(value).map_err(|_| {
        let column = about.name;
        ParquetError::General(format!(
            "column {column}: {value} does not fit into 32 bits"
        ))
    })
}

fn int_statistics(
    ty: ColumnType,
    values: impl Iterator<Item = i64> + Clone,
    nulls: u64,
) -> Option<Statistics> {
    let (least, most) = (values.clone().min(), values.max());
    Some(match ty {
        ColumnType::Int32 => Statistics::int32(
            least.map(|v| v as i32),
            most.map(|v| v as i32),
            None,
            Some(nulls),
            false,
        ),
        ColumnType::Int64 => Statistics::int64(least, most, None, Some(nulls), false),
        ColumnType::Float32 | ColumnType::Text => return None,
    })
}
