//! Turns graph evaluations and ticks into the raw log.
//!
//! Shared by both ways of hooking llama.cpp: the built-in engine and the preload
//! library hand every call of `ggml_graph_compute` to [`hook::compute`], and the
//! rest is the same.
//!
//! - [`hook`]: around one `ggml_graph_compute`: a chain of observers that begin, get a tick
//!   per node, and end;
//! - [`rounds`]: the ticks of backends that called back otherwise;
//! - [`recorder`]: the observer that stores;
//! - [`known`]: a graph as a template and as the pointers its captures are read from;
//! - [`intern`], [`names`]: numbers for strings, tensors and templates;
//! - [`gather`]: reading small strided arrays out of tensors.
//!
//! A tick takes the time and appends a word; it allocates nothing, takes no lock
//! and makes no system call. Only a graph that was not seen before costs more.

pub mod gather;
pub mod hook;
pub mod intern;
pub mod known;
pub mod names;
pub mod recorder;
pub mod rounds;

pub use hook::RawCplan;
pub use names::Places;
pub use recorder::{ANY_POSITION, Batch, BatchToken, Recorder};
