//! What can go wrong with tables, as one error enum.

use std::{io, path::PathBuf};

use datafusion::{error::DataFusionError, parquet::errors::ParquetError};
use trace::read::ReadError;

/// Variants differ by what the caller, or the user, can do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The log itself cannot be read.
    #[error(transparent)]
    Log(#[from] ReadError),
    /// What the kernel did cannot be read.
    #[error(transparent)]
    Kernel(#[from] reader::kernel::UnderneathError),
    #[error(transparent)]
    Run(#[from] rundir::RunError),
    /// Check permissions and free space.
    #[error("{}: {doing}: {}", path.display(), rundir::error::reason(cause))]
    Io {
        path: PathBuf,
        doing: &'static str,
        /// Not named `source`: the message has it already.
        cause: io::Error,
    },
    #[error("{}: cannot write the table: {cause}", path.display())]
    Write { path: PathBuf, cause: ParquetError },
    /// Ingest first.
    #[error("{}: has no tables; make them with `tensorscope ingest {}`", path.display(), path.display())]
    NoTables { path: PathBuf },
    /// Ingest again.
    #[error("{}: {what}; make it anew with `tensorscope ingest {}`", path.display(), run.display())]
    BadTable {
        path: PathBuf,
        run: PathBuf,
        what: String,
    },
    /// Correct the query.
    #[error("{0}")]
    Query(String),
    /// Ask for less, or with a filter.
    #[error(
        "the query needs more memory than the {limit_bytes} bytes it may have; add a filter, or group by less"
    )]
    OutOfMemory { limit_bytes: usize },
    #[error("cannot write the result: {}", rundir::error::reason(.0))]
    Output(#[from] io::Error),
}

impl StoreError {
    pub(crate) fn io(
        path: impl Into<PathBuf>,
        doing: &'static str,
    ) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.into();
        move |cause| StoreError::Io { path, doing, cause }
    }

    pub(crate) fn write(path: impl Into<PathBuf>) -> impl FnOnce(ParquetError) -> StoreError {
        let path = path.into();
        move |cause| StoreError::Write { path, cause }
    }

    /// One line of what DataFusion says.
    pub(crate) fn query(error: DataFusionError, limit_bytes: usize) -> StoreError {
        let error = error.find_root();
        if matches!(error, DataFusionError::ResourcesExhausted(_)) {
            return StoreError::OutOfMemory { limit_bytes };
        }
        let text = error.strip_backtrace();
        let line = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let mut line = line.as_str();
        for prefix in [
            "SQL error: ",
            "Schema error: ",
            "Error during planning: ",
            "Arrow error: ",
            "Parquet error: ",
            "Execution error: ",
        ] {
            line = line.strip_prefix(prefix).unwrap_or(line);
        }
        let line = line
            .strip_prefix("ParserError(\"")
            .and_then(|rest| rest.strip_suffix("\")"))
            .unwrap_or(line);
        StoreError::Query(format!("the query is not understood: {line}"))
    }
}
