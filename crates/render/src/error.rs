//! Why an export ended early.

use std::io;

use trace::read::ReadError;

/// By what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The log cannot be read at all, or not further.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

impl RenderError {
    /// Whether the reader of our output has seen enough (`| head`).
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, RenderError::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
