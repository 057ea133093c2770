//! A trace in the formats of other tools, and for people to look at.
//!
//! - [`perfetto`]: a timeline for ui.perfetto.dev, as Chrome trace events;
//! - [`folded`]: stacks with their bytes or time, the input of flame graphs;
//! - [`flamegraph`]: the same as a picture; [`cpu`]: both, of what threads did on processors;
//! - [`rows`]: the tables of a trace as CSV or JSON lines.
//!
//! And what it says, as pictures and pages, from crates `index` and `analysis`:
//! - [`palette`]: every colour; [`charts`]: charts that the report and the viewer share;
//! - [`plot`]: a small plotting kit; [`plots`]: every plot of the report;
//! - [`page`]: the report as one HTML file, or as Markdown;
//! - [`underneath`]: what the kernel did, as text; [`less_memory`]: what memory would give, as rows;
//!   [`devices`]: what GPUs did, likewise; [`roofline`]: what nodes reached of what the hardware allows, likewise;
//! - [`diagnosis`]: why it is slow, as text;
//! - [`animation`]: playback as GIF or raw frames.
//!
//! Those of the first list are one pass over a [`Log`] and need memory for one
//! evaluation and for what they add up, however long the log is. The same log
//! gives the same bytes, in both. `docs/exports.md` describes every format.
//!
//! What it deliberately does not do: choose file names, print, or judge.

pub mod animation;
pub mod charts;
pub mod cpu;
pub mod devices;
pub mod diagnosis;
mod error;
pub mod flamegraph;
pub mod folded;
mod frames;
mod json;
pub mod less_memory;
mod log;
pub mod page;
pub mod palette;
pub mod perfetto;
pub mod plot;
pub mod plots;
pub mod roofline;
pub mod rows;
pub mod underneath;

pub use error::RenderError;
pub use frames::{Frames, Measure};
pub use log::Stats;
pub use reader::Log;
