//! One model of memory: what to keep, what to read when, and what that gives.
//!
//! Pure: facts in, a choice out. Crate `planfile` makes a plan of it, as a file; crate `feed`
//! carries it out, with the same caches; `report` shows what it would give
//! (docs/decisions/0009-one-memory-model.md).
//!
//! - [`mod@question`]: weights, memory and a machine -> a choice and its prediction; the
//!   way in to what follows;
//! - [`mod@choose`]: weights and memory -> what is pinned, streamed, cached, left alone;
//! - [`named`]: the same by the names of tensors;
//! - [`mod@predict`]: bytes and seconds per token that follow from a choice, on a
//!   [`mod@machine`];
//! - [`mod@cache`]: the policies of a cache of experts; [`mod@routing`]: their hit rates on the
//!   experts that a run used; [`mod@belady`]: the bound of any policy, on any
//!   [`mod@cache_trace`];
//! - [`mod@facts`]: the weights of a model file, in the order of their use.

pub mod belady;
pub mod cache;
pub mod cache_trace;
pub mod choose;
pub mod facts;
pub mod machine;
pub mod named;
mod policy;
mod positions;
pub mod predict;
pub mod question;
pub mod routing;
mod strategies;

pub use cache::Cache;
pub use choose::{Choice, ExpertMemory, Strategies, Use, Wanted, Weight, choose, choose_for};
pub use facts::{fingerprint, weights_of};
pub use machine::{Machine, Spread, Varies};
pub use named::NamedChoice;
pub use policy::Policy;
pub use predict::{ExpertsOutlook, Predicted, Speed, TokenSpan, predict, why_not};
pub use question::{Answer, Question};
pub use routing::{Policies, RoutingSequence};

/// A word that people typed and nobody knows.
#[derive(Debug, thiserror::Error)]
pub enum UnknownName {
    #[error("policy {0:?} is not known: lru, lfu or lfu_aged")]
    Policy(String),
    #[error("`{0}` is not a strategy: pin, stream, experts, all or none")]
    Strategy(String),
}
