//! What can be wrong with a run directory, as one error enum.
//!
//! Every message is one line: the path, what is wrong, what to do next.

use std::io;
use std::path::PathBuf;

use crate::metadata::VERSION;

pub use gguf::error::reason;

/// Variants differ by what the caller, or the user, can do.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Choose another name, or remove what is there.
    #[error("{}: {what} is already there and is not overwritten; choose another with `-o`, or remove it first", path.display())]
    Exists { path: PathBuf, what: String },
    /// Make the parent first. As with `perf record -o` and `mkdir`, a missing
    /// parent is an error: it is a typing mistake more often than a wish.
    #[error("{}: the folder {} does not exist; make it with `mkdir -p`, or choose another path with `-o`", path.display(), parent.display())]
    NoParent { path: PathBuf, parent: PathBuf },
    /// The operating system refused: check permissions and free space.
    #[error("{}: {doing}: {}", path.display(), reason(cause))]
    Io {
        path: PathBuf,
        doing: &'static str,
        /// Not named `source`: the message has it already, and a chain of sources
        /// would print it twice.
        cause: io::Error,
    },
    /// Check the path.
    #[error("{}: no such run directory; `tensorscope record -m MODEL -p TEXT -o RUN` makes one", path.display())]
    NotFound { path: PathBuf },
    /// Something else was given.
    #[error("{}: not a run directory: {what}", path.display())]
    NotARun { path: PathBuf, what: String },
    /// Use a newer program.
    #[error("{}: written by a newer tensorscope: version {version} of {of}, this program reads up to {known}; update tensorscope", path.display())]
    Newer {
        path: PathBuf,
        of: &'static str,
        version: u64,
        known: u64,
    },
}

impl RunError {
    pub(crate) fn newer_metadata(path: PathBuf, version: u64) -> RunError {
        RunError::Newer {
            path,
            of: "metadata.json",
            version,
            known: VERSION,
        }
    }
}
