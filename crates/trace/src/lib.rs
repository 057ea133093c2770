//! The raw log: every byte of it, how it is appended, how it is read back.
//!
//! The log of a run is a set of *streams*, one per thread that computes graphs,
//! each an endless sequence of bytes cut into segment files. A stream holds
//! *records*: definitions (strings, tensors, graph templates), written when
//! something new appears, and evaluations, whose layout their template fixes.
//! `docs/trace-format.md` specifies every byte.
//!
//! - [`region`]: byte regions of a tensor;
//! - [`template`]: what a graph evaluation will touch, known before it runs;
//! - [`handoff`], [`segment`], [`append`]: the writing side;
//! - `stream`, [`read`], [`expand`]: the reading side, from segment files to
//!   records, evaluations and single accesses;
//! - [`device`]: what GPUs add: kernels, their times, copies;
//! - [`origin`]: where weights that were fed came from;
//! - [`status`]: how the recording stands, readable after a `kill -9`;
//! - [`control`]: what a launcher and the processes that it records share;
//! - [`tokens`]: texts of tokens, added by who knows the model;
//! - [`seal`]: closing the stream of a process that was killed.
//!
//! What it deliberately does not do: know ggml's structs (crate `ggml`), decide
//! what to record (crate `capture`), or format anything for people.

pub mod append;
#[cfg(all(test, loom))]
mod append_model;
pub mod clock;
mod coded;
pub mod control;
pub mod device;
pub mod expand;
pub mod format;
pub mod handoff;
pub mod origin;
pub mod phases;
pub mod read;
pub mod region;
pub mod seal;
pub mod segment;
pub mod status;
mod stream;
pub mod template;
pub mod tokens;
mod wire;
