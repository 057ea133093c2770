//! The files that recordings of the kernel leave in a run: `log/faults`, `log/io`,
//! `log/residency`, `log/cpu` with `log/stacks`, `log/machine`.
//!
//! Each is a header of 16 bytes and then records of one size, all numbers little
//! endian:
//!
//! ```text
//! 0  8  magic: `TSFAULTS`, `TSBLOCK\0`, `TSRESID\0`, `TSCPU\0\0\0`, `TSMACHIN`
//! 8  4  version, 1
//! 12 4  bytes of a record
//! ```
//!
//! One writer appends whole records; readers may read while it does. What a kill
//! leaves of a last record is not an error: a reader stops before it, and goes on
//! when the rest has come. A file shorter than its header has no records yet.
//!
//! Records are in [`faults`], [`io`], [`residency`], [`cpu`] and [`machine`]. [`stacks`] is text.

pub mod cpu;
pub mod faults;
pub mod io;
pub mod machine;
pub mod residency;
pub mod stacks;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use crate::error::KernelError;

/// Names of the files in `RUN/log`.
pub const FAULTS: &str = "faults";
pub const IO: &str = "io";
pub const RESIDENCY: &str = "residency";
pub const CPU: &str = "cpu";
pub const STACKS: &str = "stacks";
pub const MACHINE: &str = "machine";

pub const HEADER_BYTES: usize = 16;
pub const VERSION: u32 = 1;
/// Where a record names no registered file.
pub const NO_FILE: u32 = u32::MAX;

/// What is read or written at once.
const BUFFER_BYTES: usize = 1 << 16;

/// Something of a fixed size.
pub trait Record: Sized {
    const MAGIC: [u8; 8];
    const BYTES: usize;
    /// `bytes` are [`Self::BYTES`] zeros.
    fn encode(&self, bytes: &mut [u8]);
    /// `bytes` are [`Self::BYTES`]; the error says what no writer writes.
    fn decode(bytes: &[u8]) -> Result<Self, &'static str>;
}

/// Appends records to a new file.
#[derive(Debug)]
pub struct Writer<R> {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    records: PhantomData<R>,
}

impl<R: Record> Writer<R> {
    /// Makes the file, which must not exist, with its header.
    pub fn create(path: &Path) -> Result<Writer<R>, KernelError> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)
            .map_err(KernelError::io(path, "cannot create"))?;
        let mut buffer = Vec::with_capacity(BUFFER_BYTES + R::BYTES);
        buffer.extend_from_slice(&R::MAGIC);
        buffer.extend_from_slice(&VERSION.to_le_bytes());
        buffer.extend_from_slice(&(R::BYTES as u32).to_le_bytes());
        let mut writer = Writer {
            path: path.to_owned(),
            file,
            buffer,
            records: PhantomData,
        };
        writer.flush()?;
        Ok(writer)
    }

    pub fn push(&mut self, record: &R) -> Result<(), KernelError> {
        let start = self.buffer.len();
        self.buffer.resize(start + R::BYTES, 0);
        record.encode(&mut self.buffer[start..]);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Hands everything to the kernel, from where readers see it, and which keeps
    /// it when we are killed.
    pub fn flush(&mut self) -> Result<(), KernelError> {
        if !self.buffer.is_empty() {
            self.file
                .write_all(&self.buffer)
                .map_err(KernelError::io(&self.path, "cannot write"))?;
            self.buffer.clear();
        }
        Ok(())
    }
}

impl<R> Drop for Writer<R> {
    fn drop(&mut self) {
        // Who needs to know whether this worked has called `flush`.
        let _ = self.file.write_all(&self.buffer);
    }
}

/// Reads records in order. `None` means that there are no more yet: another call
/// looks again.
#[derive(Debug)]
pub struct Reader<R> {
    path: PathBuf,
    file: File,
    /// Bytes read and not decoded yet, from `next` on.
    buffer: Vec<u8>,
    next: usize,
    /// Where `next` is in the file.
    at: u64,
    has_header: bool,
    is_broken: bool,
    records: PhantomData<R>,
}

impl<R: Record> Reader<R> {
    pub fn open(path: &Path) -> Result<Reader<R>, KernelError> {
        let mut reader = Reader {
            path: path.to_owned(),
            file: File::open(path).map_err(KernelError::io(path, "cannot open"))?,
            buffer: Vec::new(),
            next: 0,
            at: 0,
            has_header: false,
            is_broken: false,
            records: PhantomData,
        };
        reader.read_header()?;
        Ok(reader)
    }

    /// Whether the header is there and right; not there yet is no error.
    fn read_header(&mut self) -> Result<bool, KernelError> {
        if self.has_header {
            return Ok(true);
        }
        if !self.fill(HEADER_BYTES)? {
            return Ok(false);
        }
        let header = &self.buffer[self.next..][..HEADER_BYTES];
        let number = |at: usize| le_u32(header, at);
        let (magic, version, record_bytes) = (&header[..8], number(8), number(12));
        let damaged = |at, what| KernelError::Damaged {
            path: self.path.clone(),
            at,
            what,
        };
        if magic != R::MAGIC {
            return Err(damaged(0, "another kind of file"));
        }
        if version != VERSION {
            return Err(KernelError::Newer {
                path: self.path.clone(),
                version,
                known: VERSION,
            });
        }
        if record_bytes != R::BYTES as u32 {
            return Err(damaged(12, "a wrong record size"));
        }
        self.skip(HEADER_BYTES);
        self.has_header = true;
        Ok(true)
    }

    /// Reads on until `wanted` bytes are there, or the file ends.
    fn fill(&mut self, wanted: usize) -> Result<bool, KernelError> {
        while self.buffer.len() - self.next < wanted {
            self.buffer.drain(..self.next);
            self.next = 0;
            let had = self.buffer.len();
            self.buffer.resize(had + BUFFER_BYTES, 0);
            let read = loop {
                match self.file.read(&mut self.buffer[had..]) {
                    Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                    result => break result,
                }
            };
            let count = *read.as_ref().unwrap_or(&0);
            self.buffer.truncate(had + count);
            read.map_err(KernelError::io(&self.path, "cannot read"))?;
            if count == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn skip(&mut self, bytes: usize) {
        self.next += bytes;
        self.at += bytes as u64;
    }

    fn read_next(&mut self) -> Result<Option<R>, KernelError> {
        if !self.read_header()? || !self.fill(R::BYTES)? {
            return Ok(None);
        }
        let record = R::decode(&self.buffer[self.next..][..R::BYTES]);
        let record = record.map_err(|what| KernelError::Damaged {
            path: self.path.clone(),
            at: self.at,
            what,
        })?;
        self.skip(R::BYTES);
        Ok(Some(record))
    }

    pub(crate) fn damaged(&self, what: &'static str) -> KernelError {
        KernelError::Damaged {
            path: self.path.clone(),
            at: self.at,
            what,
        }
    }
}

impl<R: Record> Iterator for Reader<R> {
    type Item = Result<R, KernelError>;

    fn next(&mut self) -> Option<Self::Item> {
        // After an error nothing that follows can be trusted.
        if self.is_broken {
            return None;
        }
        let result = self.read_next();
        self.is_broken = result.is_err();
        result.transpose()
    }
}

/// Callers have checked the length: a record is always whole.
pub(crate) fn le_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// As [`le_u32`].
pub(crate) fn le_u64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Lays numbers one behind the other.
pub(crate) struct Fields<'a> {
    pub bytes: &'a mut [u8],
    pub at: usize,
}

impl Fields<'_> {
    pub fn put<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Self {
        self.bytes[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
        self
    }
}
