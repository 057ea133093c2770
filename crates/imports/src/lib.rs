//! What other people's tools have recorded: perf, Nsight Compute and Systems, strace.
//!
//! Each file becomes an [`Import`]: numbers for the rules ([`rules::Subject`]), and events that can
//! be joined to a run by time. The format is known by content, not by name. A number that is not
//! in the file is absent, never zero.
//!
//! Parsers of text take bytes and touch nothing else. No input makes them panic, or allocate
//! what it merely claims; what is cut or absurd is refused with file, line (or offset) and
//! reason. What follows from the numbers is left to `rules`.

pub mod calls;
mod detect;
mod error;
mod figures;
mod kept;
mod lines;
pub mod ncu;
pub mod strace;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rules::Subject;
use serde::Serialize;

pub use detect::{Format, detect_bytes};
pub use error::Error;
pub use kept::{Kept, kept};

/// What one file says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Import {
    pub format: Format,
    pub file: String,
    pub subjects: Vec<Subject>,
    /// In the order of the file, which most tools write in the order of time.
    pub events: Vec<Event>,
    pub clock: Clock,
    /// What a reader should know before they trust the numbers: what was left out, and why.
    pub notes: Vec<String>,
}

/// Something that a thread did, or that was sampled of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// On [`Import::clock`].
    pub begin_nanos: u64,
    /// Zero of a sample.
    pub duration_nanos: u64,
    pub pid: u32,
    pub tid: u32,
    /// Of a call one of [`calls::Category`], else what the tool calls it (`cpu-clock`, `kernel`).
    pub category: String,
    pub name: String,
}

/// What the times of [`Event`]s count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// `CLOCK_MONOTONIC`, the clock of recorded runs.
    Monotonic,
    /// Since 1970.
    Wall,
    /// The file does not say; joined to a run only if somebody knows the offset.
    Unknown,
}

/// Files above this are refused: all of it is held in memory.
pub const MAX_FILE_BYTES: u64 = 1 << 30;

/// By content: a file may have any name.
pub fn detect(path: &Path) -> Result<Format, Error> {
    let file = name_of(path);
    let mut head = Vec::new();
    open(path, &file)?
        .take(detect::HEAD_BYTES)
        .read_to_end(&mut head)
        .map_err(|source| Error::io(&file, source))?;
    detect_bytes(&file, &head)
}

/// Reads a file, of the format given or else detected.
pub fn read(path: &Path, format: Option<Format>) -> Result<Import, Error> {
    let file = name_of(path);
    let format = match format {
        Some(format) => format,
        None => detect(path)?,
    };
    parse(&file, &whole(path, &file)?, format)
}

/// Reads bytes of a format that is text.
pub fn parse(file: &str, bytes: &[u8], format: Format) -> Result<Import, Error> {
    match format {
        Format::NcuCsv => ncu::parse(file, bytes),
        Format::Strace => strace::parse(file, bytes),
        _ => Err(Error::content(file, "not read by this version")),
    }
}

impl Import {
    pub(crate) fn new(format: Format, file: &str) -> Import {
        Import {
            format,
            file: file.to_owned(),
            subjects: Vec::new(),
            events: Vec::new(),
            clock: Clock::Unknown,
            notes: Vec::new(),
        }
    }
}

fn name_of(path: &Path) -> String {
    path.display().to_string()
}

fn open(path: &Path, file: &str) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::io(file, source))
}

/// The bytes of a file that is not absurdly large; also of a pipe, which has no size.
fn whole(path: &Path, file: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    open(path, file)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| Error::io(file, source))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::content(
            file,
            "larger than 1 GiB; record or print a shorter time",
        ));
    }
    Ok(bytes)
}
