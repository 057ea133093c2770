//! What to keep in memory and what to read when, for a model larger than memory.
//!
//! Pure: facts in, a choice out. Crate `planfile` makes a plan of it, as a file; crate `feed`
//! carries it out.
//!
//! - [`mod@choose`]: weights and memory -> what is pinned, streamed, cached, left alone;
//! - [`named`]: the same by the names of tensors;
//! - [`mod@predict`]: bytes and seconds per token that follow from a choice;
//! - [`mod@facts`]: the weights of a model file, in the order of their use.

pub mod choose;
pub mod facts;
pub mod named;
mod policy;
pub mod predict;
mod strategies;

pub use choose::{Choice, ExpertMemory, Strategies, Use, Wanted, Weight, choose, choose_for};
pub use facts::{fingerprint, weights_of};
pub use named::NamedChoice;
pub use policy::Policy;
pub use predict::{ExpertsOutlook, Machine, Predicted, predict, why_not};

/// A word that people typed and nobody knows.
#[derive(Debug, thiserror::Error)]
pub enum UnknownName {
    #[error("policy {0:?} is not known: lru, lfu or lfu_aged")]
    Policy(String),
    #[error("`{0}` is no strategy: pin, stream, experts, all or none")]
    Strategy(String),
}
