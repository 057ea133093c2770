//! Bytes at an offset, and a cursor that reads little-endian values from them.
//!
//! Invariants that make reading safe whatever a header claims:
//! 1. Every length is compared with what is left of the file before it is used.
//! 2. No buffer is sized by a claimed count: `Cursor` holds one window of at
//!    most `WINDOW_MAX_BYTES`, and callers grow vectors as elements arrive.
//! 3. `Cursor::skip` costs nothing, so large values that nobody asked for are
//!    never read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Result};

/// Reads start small, so that a tiny file or a jump over a long value costs one
/// small read, and double up to the maximum, so that a long vocabulary costs few
/// system calls.
const WINDOW_MIN_BYTES: usize = 8 << 10;
const WINDOW_MAX_BYTES: usize = 256 << 10;

/// Random access to the bytes of one file, or of a slice standing in for one.
pub trait ReadAt {
    /// Reads at most `buffer.len()` bytes; 0 only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).map_or(self.len(), |o| o.min(self.len()));
        let count = buffer.len().min(self.len() - start);
        buffer[..count].copy_from_slice(&self[start..start + count]);
        Ok(count)
    }
}

/// A position in a source, with the errors' file name.
pub(crate) struct Cursor<'a, S: ReadAt + ?Sized> {
    source: &'a S,
    path: &'a Path,
    len_bytes: u64,
    position: u64,
    window: Vec<u8>,
    window_offset: u64,
    next_window_bytes: usize,
    read_bytes: u64,
}

impl<'a, S: ReadAt + ?Sized> Cursor<'a, S> {
    pub fn new(source: &'a S, path: &'a Path, len_bytes: u64) -> Self {
        Cursor {
            source,
            path,
            len_bytes,
            position: 0,
            window: Vec::new(),
            window_offset: 0,
            next_window_bytes: WINDOW_MIN_BYTES,
            read_bytes: 0,
        }
    }

    pub fn path(&self) -> &'a Path {
        self.path
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn remaining_bytes(&self) -> u64 {
        self.len_bytes - self.position
    }

    /// Bytes that were read from the source, not counting what was skipped.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    pub fn u8(&mut self, what: &str) -> Result<u8> {
        Ok(self.array::<1>(what)?[0])
    }

    pub fn u16(&mut self, what: &str) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Exactly `N` bytes.
    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.bytes(N, what)?);
        Ok(bytes)
    }

    /// The next `count` bytes. The caller has bounded `count`; the end of the
    /// file is checked here.
    pub fn bytes(&mut self, count: usize, what: &str) -> Result<&[u8]> {
        self.expect(count as u64, what)?;
        if !self.window_holds(count) {
            self.fill(count, what)?;
        }
        // `window_holds` is true now, so the difference fits in the window.
        let start = (self.position - self.window_offset) as usize;
        self.position += count as u64;
        Ok(&self.window[start..start + count])
    }

    /// Moves over as many strings (a length, then its bytes) as lie entirely in
    /// what is already read, at most `count`, and says how many: the fast part
    /// of walking a vocabulary.
    pub fn skip_buffered_strings(&mut self, count: u64) -> u64 {
        if !self.window_holds(0) {
            return 0;
        }
        let mut rest = &self.window[(self.position - self.window_offset) as usize..];
        let mut skipped = 0;
        while skipped < count {
            let Some((length, after)) = rest.split_first_chunk::<8>() else {
                break;
            };
            let length = u64::from_le_bytes(*length);
            if length > after.len() as u64 {
                break;
            }
            rest = &after[length as usize..];
            skipped += 1;
        }
        self.position = self.window_offset + (self.window.len() - rest.len()) as u64;
        skipped
    }

    /// Moves on without reading.
    pub fn skip(&mut self, count: u64, what: &str) -> Result<()> {
        self.expect(count, what)?;
        self.position += count;
        Ok(())
    }

    /// Fails unless `count` more bytes exist.
    pub fn expect(&self, count: u64, what: &str) -> Result<()> {
        if count <= self.remaining_bytes() {
            return Ok(());
        }
        Err(self.truncated(format!(
            "the file ends inside {what}: {count} bytes are needed here and {} are left",
            self.remaining_bytes()
        )))
    }

    pub fn truncated(&self, reason: String) -> Error {
        Error::Truncated {
            path: self.path.to_owned(),
            offset: self.position,
            reason,
        }
    }

    pub fn malformed_at(&self, offset: u64, reason: String) -> Error {
        Error::Malformed {
            path: self.path.to_owned(),
            offset,
            reason,
        }
    }

    pub fn unsupported_at(&self, offset: u64, reason: String) -> Error {
        Error::Unsupported {
            path: self.path.to_owned(),
            offset,
            reason,
        }
    }

    fn window_holds(&self, count: usize) -> bool {
        self.position >= self.window_offset
            && self.position - self.window_offset <= self.window.len() as u64
            && self.window.len() - (self.position - self.window_offset) as usize >= count
    }

    fn fill(&mut self, count: usize, what: &str) -> Result<()> {
        let window_end = self.window_offset + self.window.len() as u64;
        if self.position > window_end {
            // A jump: what is needed here may be as short as the next length.
            self.next_window_bytes = WINDOW_MIN_BYTES;
        }
        let wanted = (self.next_window_bytes.max(count) as u64).min(self.remaining_bytes());
        self.next_window_bytes = (self.next_window_bytes * 2).min(WINDOW_MAX_BYTES);
        self.window.resize(wanted as usize, 0);
        self.window_offset = self.position;
        let mut filled = 0;
        while filled < count {
            let offset = self.position + filled as u64;
            match self.source.read_at(&mut self.window[filled..], offset) {
                Ok(0) => {
                    self.window.clear();
                    return Err(self.truncated(format!(
                        "the file became shorter than its {} bytes while {what} was read",
                        self.len_bytes
                    )));
                }
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => {
                    self.window.clear();
                    return Err(Error::Io {
                        path: self.path.to_owned(),
                        offset,
                        doing: "cannot read",
                        cause,
                    });
                }
            }
        }
        self.window.truncate(filled);
        self.read_bytes += filled as u64;
        Ok(())
    }
}
