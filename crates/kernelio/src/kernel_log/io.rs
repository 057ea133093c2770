//! A piece of a block request, 80 bytes of `log/io`:
//!
//! ```text
//! 0  8  issued, nanos of CLOCK_MONOTONIC
//! 8  8  completed; 0: that was not seen
//! 16 8  first sector of the request (512 bytes each)
//! 24 8  offset of the piece in the file; 0 without one
//! 32 8  number of the request, from 0 in the order of issue
//! 40 4  major and
//! 44 4  minor number of the disk
//! 48 4  bytes of the request
//! 52 4  where in the request the piece starts, in bytes
//! 56 4  bytes of the piece
//! 60 4  file, in the order of registration; 0xffffffff: none of them
//! 64 4  process and
//! 68 4  thread that issued it
//! 72 8  kind as blktrace writes it (`RA`, `WS`), filled up with zeros
//! ```
//!
//! A request may cover several extents, so each piece that lies in one file is a
//! record of its own. The pieces of a request follow each other and sum up to it.
//! Requests are in the order of completion; one whose completion was not seen comes
//! when its sector is asked for again, or at the end. A disk that completes a request
//! in parts makes several of one number.

use std::fmt;

use super::faults::{joined, split};
use super::{Fields, Record, le_u32, le_u64};
use crate::devices::Device;
use crate::files::Place;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Discard,
    /// Flushes, zones, commands of the driver.
    Other,
}

/// The letters by which blktrace describes a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rwbs(pub [u8; 8]);

impl Rwbs {
    /// What does not fit is left out; the operation is among the first two.
    pub fn from_text(text: &[u8]) -> Rwbs {
        let mut letters = [0; 8];
        for (to, from) in letters.iter_mut().zip(text.iter().take_while(|b| **b != 0)) {
            *to = *from;
        }
        Rwbs(letters)
    }

    pub fn operation(self) -> Operation {
        // A leading F asks for a flush before the operation.
        match self.0.iter().find(|letter| **letter != b'F') {
            Some(b'R') => Operation::Read,
            Some(b'W') => Operation::Write,
            Some(b'D') => Operation::Discard,
            _ => Operation::Other,
        }
    }

    /// Whether nobody has asked for these bytes yet.
    pub fn is_read_ahead(self) -> bool {
        self.operation() == Operation::Read && self.0.contains(&b'A')
    }
}

impl fmt::Display for Rwbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = self.0.split(|b| *b == 0).next().unwrap_or_default();
        write!(f, "{}", letters.escape_ascii())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    pub issued_nanos: u64,
    pub completed_nanos: Option<u64>,
    pub device: Device,
    /// Of the request; the piece starts `piece_at_bytes` later.
    pub sector: u64,
    pub request: u64,
    pub request_bytes: u32,
    pub piece_at_bytes: u32,
    pub piece_bytes: u32,
    pub rwbs: Rwbs,
    pub pid: u32,
    pub tid: u32,
    pub place: Option<Place>,
}

impl Record for Io {
    const MAGIC: [u8; 8] = *b"TSBLOCK\0";
    const BYTES: usize = 80;

    fn encode(&self, bytes: &mut [u8]) {
        let (file, file_offset) = split(self.place);
        Fields { bytes, at: 0 }
            .put(self.issued_nanos.to_le_bytes())
            .put(self.completed_nanos.unwrap_or(0).to_le_bytes())
            .put(self.sector.to_le_bytes())
            .put(file_offset.to_le_bytes())
            .put(self.request.to_le_bytes())
            .put(self.device.major.to_le_bytes())
            .put(self.device.minor.to_le_bytes())
            .put(self.request_bytes.to_le_bytes())
            .put(self.piece_at_bytes.to_le_bytes())
            .put(self.piece_bytes.to_le_bytes())
            .put(file.to_le_bytes())
            .put(self.pid.to_le_bytes())
            .put(self.tid.to_le_bytes())
            .put(self.rwbs.0);
    }

    fn decode(bytes: &[u8]) -> Result<Io, &'static str> {
        let mut rwbs = [0; 8];
        rwbs.copy_from_slice(&bytes[72..80]);
        let io = Io {
            issued_nanos: le_u64(bytes, 0),
            completed_nanos: Some(le_u64(bytes, 8)).filter(|nanos| *nanos != 0),
            sector: le_u64(bytes, 16),
            place: joined(le_u32(bytes, 60), le_u64(bytes, 24)),
            request: le_u64(bytes, 32),
            device: Device {
                major: le_u32(bytes, 40),
                minor: le_u32(bytes, 44),
            },
            request_bytes: le_u32(bytes, 48),
            piece_at_bytes: le_u32(bytes, 52),
            piece_bytes: le_u32(bytes, 56),
            pid: le_u32(bytes, 64),
            tid: le_u32(bytes, 68),
            rwbs: Rwbs(rwbs),
        };
        let end = io.piece_at_bytes.checked_add(io.piece_bytes);
        if end.is_none_or(|end| end > io.request_bytes) {
            return Err("a piece that is larger than its request");
        }
        Ok(io)
    }
}
