//! Carries a plan out: weights larger than memory are fed to llama.cpp, which nobody
//! modified and which does not notice.
//!
//! ```text
//! hook      takes part in ggml_graph_compute (crate capture): a point before each step
//!   feeder    what is needed at a point is waited for, and tensors are pointed at it
//!     weights   tensors that lie in a mapped file       schedule  a graph's needs
//!     survey    is this graph's model the one to be fed (crate agent)
//!     uploaded  pages that were read for a device
//!     pass      (of feeder) one graph after the other, where a device computes between them
//!     setup     the budget is shared out (crate plan)   shares    who got what
//!     elastic   what is kept grows and shrinks          usage     what others use
//!       balance   by how much                           coming    what a graph will use
//!       memory    huge pages
//!     origins   where weights came from, for the record
//!     pieces    a product in several, whose weight is too large for the ring
//!     ranks     a product with chosen experts in several, one for each
//!     pump      a thread that reads ahead, in order, into a ring
//!     experts   slices, read when the router has chosen, and their cache
//!       ahead     a thread that reads what is likely to be chosen, while the disk idles
//!       foresight the next layer's router, asked early
//!       worth     whether that pays
//!       reader    io_uring or threads; short and failed reads
//! ```
//!
//! Safety in one sentence: a tensor always points at bytes that are those of the file,
//! whoever reads it when, because it is pointed away from a place before that place is
//! given back, and at a place only after it was read.

mod ahead;
mod balance;
mod coming;
mod depth;
mod elastic;
mod error;
mod experts;
mod faults;
mod feeder;
mod files;
mod foresight;
pub mod hook;
mod memory;
mod origins;
mod pieces;
mod pump;
mod ranks;
mod reader;
mod routing;
mod schedule;
pub mod settings;
mod setup;
mod shares;
mod stats;
pub mod survey;
mod uploaded;
pub mod usage;
mod weights;
mod worth;

pub use error::FeedError;
pub use faults::Faults;
pub use feeder::{Feeder, Turn};
pub use files::Method;
pub use routing::Distribution;
pub use setup::{MARGIN_BYTES, Props, ReadAhead};
pub use shares::Shares;
pub use stats::{Snapshot, Stats};
