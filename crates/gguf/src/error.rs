//! Everything that can be wrong with a model file, as one error enum.
//!
//! Invariant: every message is one line that names the file, the byte offset
//! and the reason, whatever bytes the file holds. Names taken from the file are
//! therefore quoted, escaped and shortened by `quoted` before they are shown.

use std::io;
use std::path::PathBuf;

/// Why a model could not be read. Variants differ by what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused: check the path and its permissions.
    #[error("{}: byte {offset}: {doing}: {}", path.display(), reason(cause))]
    Io {
        path: PathBuf,
        offset: u64,
        doing: &'static str,
        // Not named `source`: the message already tells it, and whoever prints
        // the chain of causes would print it twice.
        cause: io::Error,
    },
    /// The file ends before what it announces: fetch or copy it again.
    #[error("{}: byte {offset}: {reason}", path.display())]
    Truncated {
        path: PathBuf,
        offset: u64,
        reason: String,
    },
    /// The bytes contradict the format or each other: the file is damaged.
    #[error("{}: byte {offset}: {reason}", path.display())]
    Malformed {
        path: PathBuf,
        offset: u64,
        reason: String,
    },
    /// Well-formed perhaps, but of a kind that this reader does not know.
    #[error("{}: byte {offset}: {reason}", path.display())]
    Unsupported {
        path: PathBuf,
        offset: u64,
        reason: String,
    },
    /// The files of a split set are missing or do not belong together.
    #[error("{}: byte {offset}: {reason}", path.display())]
    Split {
        path: PathBuf,
        offset: u64,
        reason: String,
    },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The file that the message is about.
    pub fn path(&self) -> &std::path::Path {
        match self {
            Error::Io { path, .. }
            | Error::Truncated { path, .. }
            | Error::Malformed { path, .. }
            | Error::Unsupported { path, .. }
            | Error::Split { path, .. } => path,
        }
    }

    /// The byte of that file that the message is about.
    pub fn offset(&self) -> u64 {
        match self {
            Error::Io { offset, .. }
            | Error::Truncated { offset, .. }
            | Error::Malformed { offset, .. }
            | Error::Unsupported { offset, .. }
            | Error::Split { offset, .. } => *offset,
        }
    }
}

/// A name from the file, safe to print on one line: quoted, with control
/// characters escaped, and cut when it is longer than a person would read.
pub(crate) fn quoted(name: &str) -> String {
    const SHOWN_CHARS: usize = 96;
    match name.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{:?}… ({} bytes)", &name[..cut], name.len()),
        None => format!("{name:?}"),
    }
}

/// Why the system refused, as it reads in the middle of a line:
/// `no space left on device`.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = match text.split_once(" (os error") {
        Some((before, _)) => before,
        None => &text,
    };
    let mut chars = text.chars();
    match chars.next() {
        // "I/O error" and other abbreviations keep their capitals.
        Some(first) if chars.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_read_as_part_of_a_line() {
        let check = |errno, expect: &str| {
            assert_eq!(reason(&io::Error::from_raw_os_error(errno)), expect);
        };
        check(28, "no space left on device");
        check(30, "read-only file system");
        check(13, "permission denied");
        assert_eq!(reason(&io::Error::other("I/O error")), "I/O error");
    }
}
