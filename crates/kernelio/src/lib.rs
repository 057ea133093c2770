//! What the hardware allows: how fast this disk delivers the model, and how fast
//! this memory is read.
//!
//! ```text
//! ceilings::measure ──> disk::measure    sequential O_DIRECT reads of the model
//!                  └──> memory::measure  a STREAM-like read, with one thread and with all
//! residency::Residency::of               which pages of a file are in memory now
//! ```
//!
//! Predictions divide bytes by these numbers, so each comes with what it was
//! measured with and with every [`Caveat`](disk::Caveat) that could make it too
//! high: a number without its conditions is worse than none.
//!
//! What it deliberately does not do: write to any file, change a setting of the
//! machine, or print. What the numbers mean is in docs/ceilings.md.

mod buffer;
pub mod ceilings;
pub mod disk;
pub mod error;
pub mod memory;
pub mod rate;
pub mod residency;
mod target;

pub use ceilings::{Ceilings, Progress, Stage, measure};
pub use error::CeilingError;
