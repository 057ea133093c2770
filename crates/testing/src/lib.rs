//! Fixtures that the tests of several crates share. Only ever a dev-dependency.
//!
//! - [`gguf_bytes`]: headers of models, right or wrong; [`models`]: small models, and those
//!   that are shipped;
//! - [`log`]: logs as a recorder writes them, and a small graph; [`transformer`]: runs as large
//!   as one likes; [`device`]: runs in which a GPU computes;
//! - [`mount`]: a small disk to fill.
//!
//! Uses only crates that nearly everything uses: whatever changes here or below builds the
//! tests of all crates anew.

pub mod device;
pub mod gguf_bytes;
pub mod log;
pub mod models;
pub mod mount;
pub mod transformer;
