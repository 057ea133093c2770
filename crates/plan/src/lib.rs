//! What to keep in memory and what to read when, for a model larger than memory.
//!
//! Pure: facts in, a plan out; only [`Plan::read`] opens a file. Crate `feed` carries the
//! plan out.
//!
//! - [`mod@choose`]: weights and memory -> what is pinned, streamed, cached, left alone;
//! - [`mod@file`]: the plan as a file that people read and edit, and the model it is for;
//! - [`mod@predict`]: bytes and seconds per token that follow from a choice;
//! - [`mod@facts`]: the weights of a model file, in the order of their use.

pub mod choose;
pub mod facts;
pub mod file;
pub mod predict;
mod strategies;
#[cfg(test)]
mod testing;

pub use choose::{Choice, ExpertMemory, Strategies, Use, Wanted, Weight, choose, choose_for};
pub use facts::{fingerprint, weights_of};
pub use file::{Plan, PlanError, Policy};
pub use predict::{ExpertsOutlook, Machine, Predicted, predict, why_not};
