//! Constants and small codings of the raw log (`docs/trace-format.md`).
//!
//! Everything is little-endian and made of 8-byte words, so that the recording
//! path stores whole words and a reader can tell a word that was never written
//! (zero: segment files are allocated zeroed) from one that was.

use std::io;

/// First eight bytes of a segment file.
pub const SEGMENT_MAGIC: [u8; 8] = *b"TSCOPLOG";
/// First eight bytes of the status file.
pub const STATUS_MAGIC: [u8; 8] = *b"TSCOPSTA";
/// Version of the log that this build writes. Readers accept 1 up to this.
pub const VERSION: u32 = 3;
/// Bytes before the first record of a segment.
pub const SEGMENT_HEADER_BYTES: usize = 64;
/// Words around the body of a record: kind and length before it, checksum and
/// commit word after it.
pub const RECORD_HEADER_WORDS: usize = 2;
pub const RECORD_TRAILER_WORDS: usize = 2;
/// Last word of a record, stored last: the record is complete if it is there.
pub const COMMIT: u64 = u64::from_le_bytes(*b"COMMITED");

/// What a record holds; the high half of its first word is [`RECORD_TAG`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RecordKind {
    /// Strings, tensors and templates that later records refer to by number.
    Definitions = 1,
    /// One graph evaluation.
    Evaluation = 2,
    /// The stream was closed in an orderly way; nothing follows.
    End = 3,
    /// What was measured of an earlier evaluation on a device.
    Measured = 4,
    /// Bytes of a tensor, copied between the memories of host and devices.
    Copy = 5,
}

/// High half of a record's first word, so that a reader that lost its way
/// notices at once.
pub const RECORD_TAG: u32 = 0x5453_5245;

impl RecordKind {
    pub fn to_word(self) -> u64 {
        u64::from(RECORD_TAG) << 32 | self as u64
    }

    pub fn from_word(word: u64) -> Option<RecordKind> {
        if (word >> 32) as u32 != RECORD_TAG {
            return None;
        }
        [
            RecordKind::Definitions,
            RecordKind::Evaluation,
            RecordKind::End,
            RecordKind::Measured,
            RecordKind::Copy,
        ]
        .into_iter()
        .find(|&kind| kind as u32 == word as u32)
    }
}

/// Second word of a record: the length of its body in the low half. The high half
/// repeats length and kind, inverted, so that a reader notices a damaged header
/// before it follows the length to somewhere else.
pub fn length_word(kind: RecordKind, body_words: u32) -> u64 {
    let check = !(body_words ^ (kind as u32) << 28);
    u64::from(body_words) | u64::from(check) << 32
}

/// The length that [`length_word`] coded; `None` when the word is damaged.
pub fn length_from_word(kind: RecordKind, word: u64) -> Option<u32> {
    (length_word(kind, word as u32) == word).then_some(word as u32)
}

/// Words of an evaluation's body before its begin section.
pub const EVAL_HEAD_WORDS: usize = 5;
/// Words of an evaluation's body after its steps.
pub const EVAL_TAIL_WORDS: usize = 2;

/// Flags in the last word of an evaluation.
pub mod flags {
    /// Fewer or more ticks than the template predicts: times of this evaluation
    /// cannot be assigned to nodes with certainty.
    pub const TICK_MISMATCH: u32 = 1;
    /// An index array held a value outside its bounds.
    pub const BAD_INDEX: u32 = 2;
    /// The program stopped the evaluation before its end.
    pub const ABORTED: u32 = 4;
    /// On a device: a record of what was measured follows, unless the process ends before.
    pub const MEASURED_LATER: u32 = 8;
    /// On a device: the kernels that ran are not those that were launched (their number,
    /// their names or their times), so none of their times is kept.
    pub const KERNELS_DIFFER: u32 = 16;
}

/// Why a graph was evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// Not known (a program that we only watch).
    #[default]
    Unknown = 0,
    Prompt = 1,
    Generate = 2,
}

impl Phase {
    pub fn from_u8(value: u8) -> Phase {
        match value {
            1 => Phase::Prompt,
            2 => Phase::Generate,
            _ => Phase::Unknown,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Phase::Unknown => "unknown",
            Phase::Prompt => "prompt",
            Phase::Generate => "generate",
        }
    }
}

/// Running checksum over a record's two header words and its body.
///
/// Not cryptographic: it has to notice torn pages, flipped bits and truncated
/// copies, for a multiplication a word on the recording path. Each step is a
/// bijection of the state, so damage within one word never goes unnoticed.
#[derive(Clone, Copy)]
pub struct Checksum(u64);

impl Checksum {
    pub const START: Checksum = Checksum(0x9e37_79b9_7f4a_7c15);

    #[inline(always)]
    pub fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x2545_f491_4f6c_dd1d);
    }

    pub fn value(self) -> u64 {
        self.0
    }

    /// Of anything that is read: its bytes, filled up with zeros, and their number.
    pub fn of(mut input: impl io::Read) -> io::Result<u64> {
        let mut checksum = Checksum::START;
        let mut buffer = vec![0; 1 << 16];
        let mut length = 0;
        loop {
            let mut filled = 0;
            while filled < buffer.len() {
                match input.read(&mut buffer[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            length += filled as u64;
            buffer[filled..].fill(0);
            let (words, _) = buffer[..filled.next_multiple_of(8)].as_chunks::<8>();
            words
                .iter()
                .for_each(|word| checksum.add(u64::from_le_bytes(*word)));
            if filled < buffer.len() {
                checksum.add(length);
                return Ok(checksum.value());
            }
        }
    }
}
