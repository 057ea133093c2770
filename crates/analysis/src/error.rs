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
    #[error(
        "{what} must be more than 0 to predict a speed; measure it with `tensorscope bench ceilings`"
    )]
    NotPositive { what: &'static str },
    #[error(
        "the run has no generated token, so nothing can be said per token; record with -n 1 or more"
    )]
    NoGeneratedToken,
}
