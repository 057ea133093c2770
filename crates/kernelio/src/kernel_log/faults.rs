//! A page fault, 48 bytes of `log/faults`:
//!
//! ```text
//! 0  8  nanos, CLOCK_MONOTONIC
//! 8  8  address that was touched
//! 16 8  address of the instruction
//! 24 8  offset in the file; 0 without one
//! 32 4  process
//! 36 4  thread
//! 40 4  file, in the order of registration; 0xffffffff: none of them
//! 44 2  cpu
//! 46 1  kind: 0 minor, 1 major
//! 47 1  0
//! ```
//!
//! Eight-byte fields come first, so that a mapped file can be read in place.

use super::{Fields, NO_FILE, Record, le_u32, le_u64};
use crate::files::Place;

/// What a fault cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The page was in memory and only had to be entered into the page table.
    Minor,
    /// The page had to be read, or its reading waited for.
    Major,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub nanos: u64,
    pub address: u64,
    pub instruction: u64,
    pub pid: u32,
    pub tid: u32,
    pub cpu: u16,
    pub kind: FaultKind,
    /// The byte of a registered file that the address shows, if one.
    pub place: Option<Place>,
}

impl Record for Fault {
    const MAGIC: [u8; 8] = *b"TSFAULTS";
    const BYTES: usize = 48;

    fn encode(&self, bytes: &mut [u8]) {
        let (file, file_offset) = split(self.place);
        Fields { bytes, at: 0 }
            .put(self.nanos.to_le_bytes())
            .put(self.address.to_le_bytes())
            .put(self.instruction.to_le_bytes())
            .put(file_offset.to_le_bytes())
            .put(self.pid.to_le_bytes())
            .put(self.tid.to_le_bytes())
            .put(file.to_le_bytes())
            .put(self.cpu.to_le_bytes())
            .put([u8::from(self.kind == FaultKind::Major), 0]);
    }

    fn decode(bytes: &[u8]) -> Result<Fault, &'static str> {
        Ok(Fault {
            nanos: le_u64(bytes, 0),
            address: le_u64(bytes, 8),
            instruction: le_u64(bytes, 16),
            place: joined(le_u32(bytes, 40), le_u64(bytes, 24)),
            pid: le_u32(bytes, 32),
            tid: le_u32(bytes, 36),
            cpu: u16::from_le_bytes([bytes[44], bytes[45]]),
            kind: match bytes[46] {
                0 => FaultKind::Minor,
                1 => FaultKind::Major,
                _ => return Err("an unknown kind of fault"),
            },
        })
    }
}

pub(super) fn split(place: Option<Place>) -> (u32, u64) {
    place.map_or((NO_FILE, 0), |p| (p.file, p.file_offset))
}

pub(super) fn joined(file: u32, file_offset: u64) -> Option<Place> {
    (file != NO_FILE).then_some(Place { file, file_offset })
}
