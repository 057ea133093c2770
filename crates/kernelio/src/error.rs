//! What can go wrong while measuring ([`CeilingError`]) and while recording what
//! the kernel does ([`KernelError`]).
//!
//! Every message is one line: the file, what is wrong and where, what to do next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rundir::error::reason;
use serde::{Deserialize, Serialize};

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

/// Something that cannot be recorded here, and the command that allows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// `page faults inside system calls`.
    pub what: String,
    /// Why the kernel refuses.
    pub why: String,
    /// A command to type, or what else to do.
    pub fix: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cannot be recorded: {}; {}",
            self.what, self.why, self.fix
        )
    }
}

/// Variants differ by what the caller, or the user, can do.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Check the path, the permissions and the free space.
    #[error("{}: {doing}: {}", path.display(), reason(cause))]
    Io {
        path: PathBuf,
        doing: &'static str,
        cause: io::Error,
    },
    /// Go on without, or do what it says.
    #[error("{0}")]
    Missing(Missing),
    /// Give another file, or put it on another file system.
    #[error("{}: {what}", path.display())]
    Unsuitable { path: PathBuf, what: String },
    /// The file is damaged, or something else.
    #[error("{}: {what} at byte {at}", path.display())]
    Damaged {
        path: PathBuf,
        at: u64,
        what: &'static str,
    },
    /// Use a newer program.
    #[error("{}: version {version}, this program reads version {known}; update tensorscope", path.display())]
    Newer {
        path: PathBuf,
        version: u32,
        known: u32,
    },
    /// Text of another tool that is not what it should be.
    #[error("line {line}: {what}")]
    Line { line: u64, what: String },
    /// A system call that should work did not.
    #[error("{doing}: {}", reason(cause))]
    System {
        doing: &'static str,
        cause: io::Error,
    },
}

impl KernelError {
    pub(crate) fn io<'a>(
        path: &'a Path,
        doing: &'static str,
    ) -> impl FnOnce(io::Error) -> KernelError + 'a {
        move |cause| KernelError::Io {
            path: path.to_owned(),
            doing,
            cause,
        }
    }

    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> KernelError {
        move |cause| KernelError::System { doing, cause }
    }
}
