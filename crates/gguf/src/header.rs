//! Reads the header of one GGUF file: counts, metadata, tensor infos.
//!
//! The order in the file is the order here:
//! 1. magic, version, tensor count, metadata count (24 bytes);
//! 2. metadata entries: key, value type, value;
//! 3. tensor infos: name, dimensions, type, offset into the data section;
//! 4. padding to the alignment, then the data section, which is never read.
//!
//! The cost is bounded whatever the header claims: see the limits below. They
//! are far above every published model and keep a hostile file within 100 ms
//! and 64 MB.

use std::path::Path;

use crate::error::{Error, Result, quoted};
use crate::metadata::{Array, Entry, Metadata, Value, ValueType};
use crate::source::{Cursor, ReadAt};
use crate::types::GgmlType;

mod tensors;

/// More metadata entries than this are absurd (real files have fewer than 200).
pub const MAX_METADATA_ENTRIES: u64 = 1 << 14;
/// More tensors than this are absurd (a 61-layer model with 256 unmerged experts
/// a layer has 47 000).
pub const MAX_TENSORS: u64 = 1 << 16;
/// Bytes of header that are read. The largest vocabularies of today, 262 000
/// tokens with their merges, need 10 MB; long strings and numeric arrays are
/// skipped, not counted.
const MAX_READ_BYTES: u64 = 24 << 20;
/// Strings in one array, which must be walked one by one to find its end.
const MAX_ARRAY_STRINGS: u64 = 1 << 21;
/// Bytes of names, strings and array elements that are kept in memory.
const MAX_KEPT_BYTES: u64 = 12 << 20;
const MAX_KEY_BYTES: u64 = 65_535;
/// Longer strings and arrays stay in the file. Arrays of one number a layer,
/// which hyperparameters need, are always shorter.
const MAX_KEPT_STRING_BYTES: u64 = 256;
const MAX_KEPT_ELEMENTS: u64 = 1024;

const DEFAULT_ALIGNMENT_BYTES: u32 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";
/// Where the metadata begins.
pub(crate) const PREAMBLE_BYTES: u64 = 24;

/// What one file says about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    pub version: u32,
    pub len_bytes: u64,
    pub alignment_bytes: u32,
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
    /// First byte of the tensor infos.
    pub infos_offset: u64,
    /// First byte after the tensor infos.
    pub infos_end: u64,
    /// First byte of the data section.
    pub data_offset: u64,
}

/// One tensor as the header describes it; its bytes lie inside the file.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    pub name: Box<str>,
    pub ty: GgmlType,
    pub n_dims: u32,
    /// Elements along each dimension, fastest first; 1 beyond `n_dims`.
    pub ne: [u64; 4],
    /// First byte of the data, from the start of the file.
    pub file_offset: u64,
    pub size_bytes: u64,
    /// First byte of this description in the header.
    pub info_offset: u64,
}

/// Reads and checks the header of a file of `len_bytes`.
pub fn read_header<S: ReadAt + ?Sized>(source: &S, path: &Path, len_bytes: u64) -> Result<Header> {
    let mut parser = Parser {
        cursor: Cursor::new(source, path, len_bytes),
        kept_bytes: 0,
    };
    parser.header(len_bytes)
}

struct Parser<'a, S: ReadAt + ?Sized> {
    cursor: Cursor<'a, S>,
    kept_bytes: u64,
}

impl<S: ReadAt + ?Sized> Parser<'_, S> {
    fn header(&mut self, len_bytes: u64) -> Result<Header> {
        let version = self.magic_and_version(len_bytes)?;
        let tensor_count = self.count("tensors", MAX_TENSORS, 25)?;
        let entry_count = self.count("metadata entries", MAX_METADATA_ENTRIES, 14)?;
        let metadata = self.metadata(entry_count)?;
        let alignment_bytes = self.alignment(&metadata)?;
        let infos_offset = self.cursor.position();
        let mut tensors = Vec::new();
        for index in 0..tensor_count {
            tensors.push(self.tensor_info(index)?);
        }
        let infos_end = self.cursor.position();
        let data_offset = infos_end.next_multiple_of(alignment_bytes.into());
        for tensor in &mut tensors {
            self.place(tensor, data_offset, alignment_bytes, len_bytes)?;
        }
        self.check_names(&tensors)?;
        self.check_overlaps(&tensors)?;
        Ok(Header {
            version,
            len_bytes,
            alignment_bytes,
            metadata,
            tensors,
            infos_offset,
            infos_end,
            data_offset,
        })
    }

    fn magic_and_version(&mut self, len_bytes: u64) -> Result<u32> {
        if len_bytes == 0 {
            return Err(self.cursor.truncated("the file is empty".to_owned()));
        }
        let magic: [u8; 4] = self.cursor.array("the magic number")?;
        if &magic != b"GGUF" {
            let hint = match &magic {
                b"FUGG" => "; a byte-swapped GGUF file?",
                b"ggml" | b"lmgg" | b"tjgg" | b"fmgg" | b"ggjt" | b"ggmf" => {
                    "; a ggml file from before GGUF, convert it again"
                }
                b"PK\x03\x04" => "; a zip archive, perhaps a PyTorch checkpoint",
                b"vers" => "; a Git LFS pointer, fetch the real file with `git lfs pull`",
                _ => "",
            };
            return Err(self.cursor.malformed_at(
                0,
                format!(
                    "wrong magic number \"{}\", a GGUF file begins with \"GGUF\"{hint}",
                    magic.escape_ascii()
                ),
            ));
        }
        let version = self.cursor.u32("the version")?;
        let reason = match version {
            2 | 3 => return Ok(version),
            1 => "GGUF version 1 is no longer supported, by llama.cpp either; convert the model again"
                .to_owned(),
            v if v != 0 && v & 0xffff == 0 => format!(
                "a big-endian file (version {} with its bytes swapped); only little-endian GGUF is supported, convert it with gguf-py's gguf_convert_endian.py",
                v.swap_bytes()
            ),
            v => format!("unknown GGUF version {v}, known are 2 and 3"),
        };
        Err(self.cursor.unsupported_at(4, reason))
    }

    /// A count that is neither absurd nor more than the file could hold.
    fn count(&mut self, what: &'static str, limit: u64, each_bytes: u64) -> Result<u64> {
        let offset = self.cursor.position();
        let count = self.cursor.u64(what)?;
        if count > limit {
            return Err(self.cursor.malformed_at(
                offset,
                format!("absurd count: {count} {what}, more than {limit}"),
            ));
        }
        if count * each_bytes > self.cursor.remaining_bytes() {
            return Err(Error::Truncated {
                path: self.path().to_owned(),
                offset,
                reason: format!(
                    "{count} {what} need at least {} bytes and {} are left in the file: truncated, or an absurd count",
                    count * each_bytes,
                    self.cursor.remaining_bytes()
                ),
            });
        }
        Ok(count)
    }

    fn metadata(&mut self, entry_count: u64) -> Result<Metadata> {
        let mut entries: Vec<Entry> = Vec::new();
        for index in 0..entry_count {
            let entry_offset = self.cursor.position();
            let key = self.name("metadata key", index, MAX_KEY_BYTES)?;
            let ty = self.value_type(&key)?;
            let value_offset = self.cursor.position();
            let value = self.value(ty, &key)?;
            entries.push(Entry {
                key,
                value,
                entry_offset,
                value_offset,
            });
        }
        let places: Vec<u64> = entries.iter().map(|e| e.entry_offset).collect();
        let keys = entries.len();
        Metadata::new(entries).map_err(|repeated| {
            self.cursor.malformed_at(
                places[repeated],
                format!("metadata entry {repeated} of {keys} repeats an earlier key"),
            )
        })
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType> {
        let offset = self.cursor.position();
        let number = self.cursor.u32("a metadata value type")?;
        ValueType::from_u32(number).ok_or_else(|| {
            self.cursor.unsupported_at(
                offset,
                format!(
                    "unknown type {number} of metadata key {}, known are 0 to 12",
                    quoted(key)
                ),
            )
        })
    }

    fn value(&mut self, ty: ValueType, key: &str) -> Result<Value> {
        match ty {
            ValueType::String => self.string_value(key),
            ValueType::Array => self.array_value(key),
            fixed => self.number(fixed),
        }
    }

    fn number(&mut self, ty: ValueType) -> Result<Value> {
        let c = &mut self.cursor;
        let what = "a metadata value";
        Ok(match ty {
            ValueType::U8 => Value::U8(c.u8(what)?),
            ValueType::I8 => Value::I8(c.u8(what)? as i8),
            ValueType::U16 => Value::U16(c.u16(what)?),
            ValueType::I16 => Value::I16(c.u16(what)? as i16),
            ValueType::U32 => Value::U32(c.u32(what)?),
            ValueType::I32 => Value::I32(c.u32(what)? as i32),
            ValueType::F32 => Value::F32(f32::from_bits(c.u32(what)?)),
            ValueType::Bool => Value::Bool(c.u8(what)? != 0),
            ValueType::U64 => Value::U64(c.u64(what)?),
            ValueType::I64 => Value::I64(c.u64(what)? as i64),
            ValueType::F64 => Value::F64(f64::from_bits(c.u64(what)?)),
            ValueType::String | ValueType::Array => {
                unreachable!("strings and arrays say their own length")
            }
        })
    }

    fn string_value(&mut self, key: &str) -> Result<Value> {
        let size_bytes = self.length("a metadata string", key)?;
        if size_bytes > MAX_KEPT_STRING_BYTES {
            let file_offset = self.cursor.position();
            self.cursor.skip(size_bytes, "a metadata string")?;
            return Ok(Value::LongString {
                file_offset,
                size_bytes,
            });
        }
        self.keep(size_bytes + 32)?;
        let bytes = self
            .cursor
            .bytes(size_bytes as usize, "a metadata string")?;
        Ok(Value::String(String::from_utf8_lossy(bytes).into()))
    }

    /// The length of a string, which must lie within the file.
    fn length(&mut self, what: &str, key: &str) -> Result<u64> {
        let offset = self.cursor.position();
        let size_bytes = self.cursor.u64(what)?;
        if size_bytes > self.cursor.remaining_bytes() {
            return Err(Error::Truncated {
                path: self.path().to_owned(),
                offset,
                reason: format!(
                    "absurd length: {what} of {} claims {size_bytes} bytes and {} are left in the file",
                    quoted(key),
                    self.cursor.remaining_bytes()
                ),
            });
        }
        Ok(size_bytes)
    }

    fn array_value(&mut self, key: &str) -> Result<Value> {
        let type_offset = self.cursor.position();
        let element = self.value_type(key)?;
        if element == ValueType::Array {
            return Err(self.cursor.unsupported_at(
                type_offset,
                format!(
                    "nested array in metadata key {}: neither this reader nor llama.cpp knows arrays of arrays",
                    quoted(key)
                ),
            ));
        }
        let count_offset = self.cursor.position();
        let count = self.cursor.u64("an array length")?;
        // A string takes 8 bytes at least, for its length.
        let needed = count.checked_mul(element.fixed_bytes().unwrap_or(8));
        if needed.is_none_or(|bytes| bytes > self.cursor.remaining_bytes()) {
            return Err(Error::Truncated {
                path: self.path().to_owned(),
                offset: count_offset,
                reason: format!(
                    "absurd length: the array {} claims {count} elements of type {} and {} bytes are left in the file",
                    quoted(key),
                    element.name(),
                    self.cursor.remaining_bytes()
                ),
            });
        }
        if element == ValueType::String && count > MAX_ARRAY_STRINGS {
            return Err(self.cursor.malformed_at(
                count_offset,
                format!(
                    "absurd count: {count} strings in the array {}, more than {MAX_ARRAY_STRINGS}",
                    quoted(key)
                ),
            ));
        }
        let file_offset = self.cursor.position();
        let mut elements = None;
        if count <= MAX_KEPT_ELEMENTS {
            self.keep(count * size_of::<Value>() as u64)?;
            let mut kept = Vec::new();
            for _ in 0..count {
                kept.push(self.value(element, key)?);
            }
            elements = Some(kept.into_boxed_slice());
        } else if let Some(each_bytes) = element.fixed_bytes() {
            self.cursor.skip(count * each_bytes, "a metadata array")?;
        } else {
            self.skip_strings(count, key)?;
        }
        Ok(Value::Array(Array {
            element,
            count,
            file_offset,
            size_bytes: self.cursor.position() - file_offset,
            elements,
        }))
    }

    fn skip_strings(&mut self, count: u64, key: &str) -> Result<()> {
        let mut left = count;
        loop {
            left -= self.cursor.skip_buffered_strings(left);
            if left == 0 {
                return Ok(());
            }
            // The next string reaches beyond what is read, or beyond the file.
            let size_bytes = self.length("a string in the array", key)?;
            self.cursor.skip(size_bytes, "a string in an array")?;
            left -= 1;
            self.check_read()?;
        }
    }

    /// A key or tensor name: not empty, not endless, UTF-8.
    fn name(&mut self, what: &'static str, index: u64, limit_bytes: u64) -> Result<Box<str>> {
        let offset = self.cursor.position();
        let size_bytes = self.cursor.u64(what)?;
        if size_bytes == 0 || size_bytes > limit_bytes {
            return Err(self.cursor.malformed_at(
                offset,
                format!(
                    "absurd length: {what} {index} has {size_bytes} bytes, allowed are 1 to {limit_bytes}"
                ),
            ));
        }
        self.keep(size_bytes + 128)?;
        self.check_read()?;
        let bytes_offset = self.cursor.position();
        let bytes = self.cursor.bytes(size_bytes as usize, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.into()),
            Err(error) => {
                let valid_bytes = error.valid_up_to();
                let shown: String = bytes[..bytes.len().min(96)].escape_ascii().to_string();
                Err(self.cursor.malformed_at(
                    bytes_offset + valid_bytes as u64,
                    format!("{what} {index} is not UTF-8: \"{shown}\""),
                ))
            }
        }
    }

    fn alignment(&self, metadata: &Metadata) -> Result<u32> {
        let Some(entry) = metadata.entry(ALIGNMENT_KEY) else {
            return Ok(DEFAULT_ALIGNMENT_BYTES);
        };
        let reason = match entry.value {
            Value::U32(bytes) if bytes.is_power_of_two() => return Ok(bytes),
            Value::U32(bytes) => format!("{ALIGNMENT_KEY} is {bytes}, which is not a power of two"),
            ref other => format!(
                "{ALIGNMENT_KEY} has type {}, must be u32",
                other.type_name()
            ),
        };
        Err(self.cursor.malformed_at(entry.value_offset, reason))
    }

    fn keep(&mut self, bytes: u64) -> Result<()> {
        self.kept_bytes += bytes;
        self.within(
            "names and values",
            self.kept_bytes,
            MAX_KEPT_BYTES + MAX_TENSORS * 192,
        )
    }

    fn check_read(&self) -> Result<()> {
        self.within("a header", self.cursor.read_bytes(), MAX_READ_BYTES)
    }

    fn within(&self, what: &str, bytes: u64, limit: u64) -> Result<()> {
        if bytes <= limit {
            return Ok(());
        }
        Err(self.cursor.malformed_at(
            self.cursor.position(),
            format!("absurd length: {what} of more than {limit} bytes"),
        ))
    }

    fn path(&self) -> &Path {
        self.cursor.path()
    }
}
