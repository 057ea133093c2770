//! Why a file cannot be used: one line with file, place and reason.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{file}: cannot read")]
    Io { file: String, source: io::Error },
    #[error("{file}:{line}: {reason}")]
    Line {
        file: String,
        line: u64,
        reason: String,
    },
    #[error("{file}: offset {offset}: {reason}")]
    Offset {
        file: String,
        offset: u64,
        reason: String,
    },
    /// Something is wrong with the file as a whole.
    #[error("{file}: {reason}")]
    Content { file: String, reason: String },
}

impl Error {
    pub(crate) fn io(file: &str, source: io::Error) -> Error {
        Error::Io {
            file: file.to_owned(),
            source,
        }
    }

    pub(crate) fn line(file: &str, line: u64, reason: impl Into<String>) -> Error {
        Error::Line {
            file: file.to_owned(),
            line,
            reason: reason.into(),
        }
    }

    pub(crate) fn content(file: &str, reason: impl Into<String>) -> Error {
        Error::Content {
            file: file.to_owned(),
            reason: reason.into(),
        }
    }
}
