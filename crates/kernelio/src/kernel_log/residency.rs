//! Which pages were in memory, in `log/residency`: samples of a head and a body,
//! made of words of 8 bytes (which are the records of this file).
//!
//! ```text
//! 0  8  nanos, CLOCK_MONOTONIC
//! 8  8  token number
//! 16 4  file, in the order of registration
//! 20 2  how the body is written: 0 runs, 1 changes, 2 bits
//! 22 2  page size as a power of two
//! 24 4  pages of the file
//! 28 4  words of the body that follows
//! ```
//!
//! - runs: each word is the first page (4 bytes) and the number of pages (4 bytes)
//!   that are in memory.
//! - changes: as runs, of the pages that are not as in the last sample of the file.
//! - bits: a bit a page, lowest first.
//!
//! A writer takes the smallest, so that a sample never has more than a bit a page
//! (375 KiB for 12 GB) and usually far less. The first sample of a file is never
//! changes.

use std::path::Path;

use super::{Reader, Record, Writer};
use crate::error::KernelError;
use crate::residency::Residency;

/// One sample: the pages of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub nanos: u64,
    pub token: u64,
    pub file: u32,
    pub residency: Residency,
}

/// Eight bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Record for Word {
    const MAGIC: [u8; 8] = *b"TSRESID\0";
    const BYTES: usize = 8;

    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Word, &'static str> {
        Ok(Word(super::le_u64(bytes, 0)))
    }
}

const HEAD_WORDS: usize = 4;
const RUNS: u64 = 0;
const CHANGES: u64 = 1;
const BITS: u64 = 2;

/// Writes samples of several files, in any order.
#[derive(Debug)]
pub struct ResidencyWriter {
    words: Writer<Word>,
    /// The last sample of each file.
    last: Vec<Option<Vec<u64>>>,
}

impl ResidencyWriter {
    pub fn create(path: &Path) -> Result<ResidencyWriter, KernelError> {
        Ok(ResidencyWriter {
            words: Writer::create(path)?,
            last: Vec::new(),
        })
    }

    /// Writes a sample so that readers see it.
    pub fn push(&mut self, sample: &Sample) -> Result<(), KernelError> {
        if sample.file >= MAX_FILES || sample.residency.pages() > MAX_PAGES {
            return Err(KernelError::System {
                doing: "a file too large for a log of its pages",
                cause: std::io::ErrorKind::FileTooLarge.into(),
            });
        }
        let slot = sample.file as usize;
        if self.last.len() <= slot {
            self.last.resize(slot + 1, None);
        }
        let bits = sample.residency.bits();
        let runs = run_words(bits.iter().copied());
        let changes = self.last[slot]
            .as_deref()
            .filter(|last| last.len() == bits.len())
            .map(|last| run_words(bits.iter().zip(last).map(|(now, then)| now ^ then)));
        let (mut how, mut body) = (BITS, bits);
        for (other_how, other) in [(RUNS, Some(&runs)), (CHANGES, changes.as_ref())] {
            if let Some(other) = other.filter(|other| other.len() < body.len()) {
                (how, body) = (other_how, other);
            }
        }
        let shift = u64::from(sample.residency.page_bytes().trailing_zeros());
        let head: [u64; HEAD_WORDS] = [
            sample.nanos,
            sample.token,
            u64::from(sample.file) | how << 32 | shift << 48,
            sample.residency.pages() | (body.len() as u64) << 32,
        ];
        for word in head.iter().chain(body) {
            self.words.push(&Word(*word))?;
        }
        self.last[slot] = Some(bits.to_vec());
        self.words.flush()
    }
}

/// Reads samples in order; as with [`Reader`], `None` means none yet.
#[derive(Debug)]
pub struct ResidencyReader {
    words: Reader<Word>,
    /// Words of a sample that is not complete yet.
    partial: Vec<u64>,
    last: Vec<Option<Vec<u64>>>,
    /// Of all of `last`.
    kept_words: usize,
    is_broken: bool,
}

/// More files than this are a damaged log, not a model.
const MAX_FILES: u32 = 1 << 16;
/// As many pages as 1 TiB has; also of all files together.
const MAX_PAGES: u64 = 1 << 28;

impl ResidencyReader {
    pub fn open(path: &Path) -> Result<ResidencyReader, KernelError> {
        Ok(ResidencyReader {
            words: Reader::open(path)?,
            partial: Vec::new(),
            last: Vec::new(),
            kept_words: 0,
            is_broken: false,
        })
    }

    fn sample(&mut self) -> Result<Sample, &'static str> {
        let (head, body) = self.partial.split_at(HEAD_WORDS);
        let file = head[2] as u32;
        let (how, shift) = (head[2] >> 32 & 0xffff, head[2] >> 48);
        let pages = head[3] & 0xffff_ffff;
        if file >= MAX_FILES || pages > MAX_PAGES || shift > 30 {
            return Err("a sample of an impossible file");
        }
        let slot = file as usize;
        if self.last.len() <= slot {
            self.last.resize(slot + 1, None);
        }
        let words = pages.div_ceil(64) as usize;
        self.kept_words -= self.last[slot].as_ref().map_or(0, Vec::len);
        self.kept_words += words;
        if self.kept_words as u64 > MAX_PAGES / 64 {
            return Err("samples of more pages than can be");
        }
        let bits = match how {
            BITS if body.len() == words => body.to_vec(),
            BITS => return Err("a sample with a wrong number of bits"),
            RUNS => flipped(vec![0; words], body, pages)?,
            CHANGES => match self.last[slot].take() {
                Some(last) if last.len() == words => flipped(last, body, pages)?,
                _ => return Err("changes without what they change"),
            },
            _ => return Err("a sample written in an unknown way"),
        };
        let sample = Sample {
            nanos: head[0],
            token: head[1],
            file,
            residency: Residency::from_bits(1 << shift, pages, bits.clone()),
        };
        self.last[slot] = Some(bits);
        Ok(sample)
    }
}

impl Iterator for ResidencyReader {
    type Item = Result<Sample, KernelError>;

    fn next(&mut self) -> Option<Self::Item> {
        // After an error nothing that follows can be trusted.
        while !self.is_broken {
            if self.partial.len() >= HEAD_WORDS {
                let body_words = (self.partial[3] >> 32) as usize;
                if self.partial.len() == HEAD_WORDS + body_words {
                    let sample = self.sample();
                    self.partial.clear();
                    self.is_broken = sample.is_err();
                    return Some(sample.map_err(|what| self.words.damaged(what)));
                }
            }
            match self.words.next()? {
                Ok(Word(word)) => self.partial.push(word),
                Err(error) => {
                    self.is_broken = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// Runs of set bits, as words.
fn run_words(bits: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut words = Vec::new();
    for (first, pages) in runs(bits) {
        words.push(first | pages << 32);
    }
    words
}

/// Runs of set bits: first and count.
pub(crate) fn runs(bits: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, u64)> {
    let mut bits = bits.fuse();
    let mut open: Option<u64> = None;
    let (mut word, mut base, mut at) = (0u64, 0u64, 64u32);
    let mut is_done = false;
    std::iter::from_fn(move || {
        loop {
            if at == 64 {
                if is_done {
                    return None;
                }
                let Some(next) = bits.next() else {
                    is_done = true;
                    return open.take().map(|first| (first, base - first));
                };
                (word, at) = (next, 0);
                base += 64;
            }
            let rest = word >> at;
            let here = base - 64 + u64::from(at);
            if let Some(first) = open {
                let ones = (!rest).trailing_zeros().min(64 - at);
                at += ones;
                if at < 64 {
                    open = None;
                    return Some((first, here + u64::from(ones) - first));
                }
            } else {
                let zeros = rest.trailing_zeros().min(64 - at);
                at += zeros;
                if at < 64 {
                    open = Some(here + u64::from(zeros));
                }
            }
        }
    })
}

/// `bits` with the pages of all runs turned over.
fn flipped(mut bits: Vec<u64>, runs: &[u64], pages: u64) -> Result<Vec<u64>, &'static str> {
    for run in runs {
        let (first, count) = (run & 0xffff_ffff, run >> 32);
        let end = first + count;
        if end > pages {
            return Err("a run of pages behind the end of the file");
        }
        let mut page = first;
        while page < end {
            let bit = page % 64;
            let here = (end - page).min(64 - bit);
            let mask = u64::MAX >> (64 - here) << bit;
            bits[(page / 64) as usize] ^= mask;
            page += here;
        }
    }
    Ok(bits)
}
