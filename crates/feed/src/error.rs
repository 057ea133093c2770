//! What can go wrong while weights are fed.

use std::io;
use std::path::PathBuf;

/// Ends a generation: numbers computed without the bytes would be wrong.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    #[error("{}: cannot be opened to be read directly: {cause}", path.display())]
    Open { path: PathBuf, cause: io::Error },
    #[error("{}: changed while it was read; generation ends here", path.display())]
    Changed { path: PathBuf },
    #[error(
        "{}: cannot read {bytes} bytes at offset {offset}: {cause} (asked {attempts} times); \
         generation ends here", path.display()
    )]
    Read {
        path: PathBuf,
        offset: u64,
        bytes: u32,
        attempts: u32,
        cause: io::Error,
    },
    #[error("{}: ends before offset {offset}; generation ends here", path.display())]
    Short { path: PathBuf, offset: u64 },
    #[error("cannot get {bytes} bytes of memory for weights: {cause}")]
    Memory { bytes: u64, cause: io::Error },
    #[error("cannot start reading: {0}")]
    Start(io::Error),
    #[error("{0}")]
    Refused(String),
}

impl FeedError {
    pub(crate) fn broken() -> FeedError {
        FeedError::Refused("an error in feeding itself; generation ends here".into())
    }
}
