//! A trace in the formats of other tools.
//!
//! - [`perfetto`]: a timeline for ui.perfetto.dev, as Chrome trace events;
//! - [`folded`]: stacks with their bytes or time, the input of flame graphs;
//! - [`flamegraph`]: the same as a picture that can be explored in a browser;
//! - [`speedscope`]: the same for speedscope.app;
//! - [`tracker`]: a folder of fixed-size records with the tables to read them;
//! - [`rows`]: the tables of a trace as CSV or JSON lines.
//!
//! All of them are one pass over a [`Log`] and need memory for one evaluation and
//! for what they add up, however long the log is. The same log gives the same
//! bytes. `docs/exports.md` describes every format.
//!
//! What it deliberately does not do: choose file names, print, or judge.

mod error;
pub mod flamegraph;
pub mod folded;
mod frames;
mod json;
mod log;
pub mod perfetto;
pub mod rows;
pub mod speedscope;
pub mod tracker;

pub use error::RenderError;
pub use frames::{Frames, Measure};
pub use log::{Log, Stats};
