//! Arithmetic before a run: what a model needs, and what a machine makes of it.
//!
//! Pure: descriptions in, answers out that serialise. Nothing is measured and nothing is read
//! but text that is handed in. Counts are exact where a published algorithm or format gives
//! them; times are bounds with an interval, never measurements.
//!
//! What is asked about:
//! - [`mod@shape`]: a model, from a GGUF file or a `config.json`;
//! - [`mod@number`]: the types of weights and caches; [`mod@machines`]: machines, each figure
//!   with its source; [`mod@rates`]: what an engine's kernels reach on one, measured.
//!
//! Answers:
//! - [`mod@kv`]: the cache of keys and values, contiguous and in blocks;
//! - [`mod@roofline`]: FLOPs, bytes and seconds of a prompt and of a step of decoding;
//! - [`mod@batch`]: which batch, how many replicas; [`mod@speculation`]: drafts;
//! - [`mod@attention`]: bytes that standard and block-wise attention move;
//! - [`mod@precision`]: the same model at two weight types;
//! - [`mod@training`]: memory, bubble and traffic of a layout over many GPUs;
//!   [`mod@search`]: the cheapest that fits;
//! - [`mod@fit`]: dimensions that do not fill a machine's units.
//!
//! Absurd numbers give an [`Error`], never a panic or a wrapped sum.

pub mod attention;
pub mod batch;
mod checked;
pub mod error;
pub mod fit;
pub mod kv;
pub mod machines;
pub mod number;
pub mod precision;
pub mod rates;
pub mod roofline;
pub mod search;
pub mod shape;
pub mod speculation;
pub mod training;
mod work;

pub use error::{Error, Result};
pub use machines::{Machine, Machines};
pub use number::{ComputeType, NumberType};
pub use roofline::Efficiency;
pub use shape::Shape;
