//! What can go wrong in an analysis. Most functions are total; these are the
//! inputs that have no answer.

/// Why an analysis gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnalysisError {
    #[error(transparent)]
    Read(#[from] trace::read::ReadError),
    #[error(
        "the run has more than {most} weight accesses, too many to keep in memory; analyse a part of it"
    )]
    TooManyAccesses { most: u64 },
}
