//! Pure functions from a trace to results.
//!
//! Input is a run through crate `reader`, evaluation by evaluation; output
//! are plain structs that serialise. `docs/analysis.md` defines every number.
//! Nothing here does I/O or reads a clock: the same trace gives the same answer.
//!
//! [`reading`] is the way in: one walk over a log gives the facts and the sequence. Both
//! start from [`pass`], what each evaluation read of the weights, in [`units`].
//!
//! The sequence, and everything about caches:
//! - [`sequence`]: the weights in the order in which the run used them, which is
//!   what most other modules start from;
//! - [`cache_trace`]: that order as a cache sees it, by unit or by page;
//! - [`reuse`]: exact reuse distances in bytes, by unit and by page;
//! - [`curves`]: miss-ratio curves of LRU, Belady's rule ([`plan::belady`]) and
//!   pin-and-stream ([`pins`]);
//! - [`experts_cache`]: which experts were used; [`weights`]: which weights, and the time to
//!   compute a token, as crate `plan` wants to know them;
//! - [`opportunities`]: what each way of using memory would read and how fast it
//!   would be, by crate `plan`; [`caches`] is the way in to all of these.
//!
//! Facts about a run:
//! - [`hot`]: hot and cold; [`sequential`]: sequential or random;
//! - [`determinism`]: how well the learned pattern predicts the next access;
//! - [`working_set`]: bytes over time and per token; [`heads`]: bytes per head;
//! - [`traffic`]: accesses, bytes and time by kind, component, op, layer, phase;
//! - [`devices`]: what GPUs did: time, gaps, copies, memory, what their nodes reached;
//! - [`experts`]: who is chosen, how evenly, with whom; [`compare`]: two runs;
//! - [`findings`]: the facts as sentences, each with the query that shows it;
//! - [`actions`]: what to do about them, with the flags to type;
//! - [`roofline`]: operations, bytes and time by what nodes do, against what the hardware
//!   allows;
//! - [`time_stack`]: where the time of each phase went, in parts that add up;
//! - [`facts`]: all of them together; [`timeline`]: a series of bounded length.
//!
//! What the kernel did meanwhile:
//! - [`underneath`]: reads again, page faults, waiting, evictions, and the verdict
//!   of what bounds each phase, from the joined rows of `reader::kernel`.
//!
//! What it deliberately does not do: read files (crates `rundir` and `reader`),
//! tables and SQL (crate `store`), or format anything for people (crate
//! `render`).

pub mod cache_trace;
pub mod caches;
pub mod curves;
pub mod error;
pub mod experts_cache;
pub mod opportunities;
pub mod pins;
pub mod reuse;
pub mod sequence;
pub mod weights;

pub mod compare;
pub mod determinism;
pub mod devices;
pub mod experts;
pub mod heads;
pub mod hot;
pub mod sequential;
pub mod sources;
pub mod working_set;

pub mod actions;
pub mod facts;
pub mod findings;
pub mod pass;
pub mod reading;
pub mod roofline;
pub mod time_stack;
pub mod timeline;
pub mod traffic;
pub mod units;

pub mod underneath;
