//! What can go wrong while measuring, as one error enum.
//!
//! Every message is one line: the file, what is wrong and where, what to do next.

use std::io;
use std::path::PathBuf;

use rundir::error::reason;

use crate::disk::Method;

/// Variants differ by what the caller, or the user, can do.
#[derive(Debug, thiserror::Error)]
pub enum CeilingError {
    /// Check the path and the permissions.
    #[error("{}: {doing}: {}", path.display(), reason(cause))]
    Open {
        path: PathBuf,
        doing: &'static str,
        /// Not named `source`: the message has it already, and a chain of sources
        /// would print it twice.
        cause: io::Error,
    },
    /// Give another file.
    #[error("{}: {what}; give a model file on the disk to be measured", path.display())]
    Unsuitable { path: PathBuf, what: &'static str },
    /// The method that was asked for cannot be had here; another one can.
    #[error("{}: {method} is not available: {why}; leave the choice of method to the program", path.display())]
    Unavailable {
        path: PathBuf,
        method: Method,
        why: String,
    },
    /// The disk, or what lies between, failed: look into the kernel's log.
    #[error("{}: reading {length_bytes} bytes at offset {file_offset} with {method}: {}; `dmesg` may say more", path.display(), reason(cause))]
    Read {
        path: PathBuf,
        file_offset: u64,
        length_bytes: u64,
        method: Method,
        cause: io::Error,
    },
    /// Somebody else writes to the file: wait until it is complete.
    #[error("{}: ends at offset {file_offset}, but had {file_bytes} bytes when it was opened; measure a file that nobody changes", path.display())]
    Shrunk {
        path: PathBuf,
        file_offset: u64,
        file_bytes: u64,
    },
    /// Ask for something possible.
    #[error("{what}")]
    Setting { what: String },
    /// Free memory, or use fewer threads.
    #[error(
        "{wanted_bytes} bytes for {what} could not be had; free some memory, or use fewer threads"
    )]
    Memory {
        what: &'static str,
        wanted_bytes: u64,
    },
    /// Raise the limit, or use fewer threads.
    #[error(
        "thread {number} of {threads} could not be started: {}; use fewer threads",
        reason(cause)
    )]
    Thread {
        number: usize,
        threads: usize,
        cause: io::Error,
    },
}
