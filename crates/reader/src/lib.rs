//! Reads a recorded run, for everything that shows, exports or analyses it.
//!
//! A log is streams, and each stream numbers its evaluations, tensors and graphs for
//! itself. Here they have numbers that hold through the run, the same in every table,
//! export and view.
//!
//! - [`log`]: one pass over all streams; what is damaged is named, and has no rows;
//!   [`reading`]: the same for a log that grows, on from where it stood;
//! - [`seen`]: an evaluation as it is shown to a [`Visitor`];
//! - [`tensors`]: what every tensor of the run is, by one rule;
//! - [`prepared`]: a graph's template, worked out once: what each access touches, which
//!   of them an index array decides; [`choices`]: what such arrays name;
//! - `cells`: which cells of a KV cache on a device are in use;
//! - [`device`]: what devices did: their kernels, when steps ran there, copies;
//! - [`tables`]: the tables of a run and what their columns mean;
//! - [`rows`]: the rows of these tables, whatever format they end up in;
//! - [`tally`]: what a template's evaluations touched, counted; [`summary`]: everything
//!   added up;
//! - [`kernel`]: page faults, block requests and resident pages, joined to tensors and nodes;
//! - [`audit`]: what the record claims, held against what the MMU saw.
//!
//! What it deliberately does not do: keep more than a stream's definitions in memory,
//! decide what an answer means, or write anything.

pub mod audit;
mod cells;
pub mod choices;
pub mod device;
pub mod kernel;
pub mod log;
pub mod prepared;
pub mod reading;
pub mod rows;
pub mod seen;
pub mod summary;
pub mod tables;
pub mod tally;
pub mod tensors;

pub use choices::{Index, Router};
pub use device::{Device, SeenCopy, Times};
pub use log::{Log, Stream, Visitor, Walked};
pub use prepared::{Prepared, PreparedAccess, PreparedStep};
pub use reading::{Reading, Walk};
pub use seen::{Executed, Origin, Seen};
pub use tally::{Tallies, Tally, Traffic};
pub use tensors::{Tensor, Tensors};
pub use trace::expand::Route;
