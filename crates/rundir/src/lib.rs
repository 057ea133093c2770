//! The run directory: everything about one run, and how it is found again.
//!
//! ```text
//! RUN/
//!   metadata.json      what was run, on what, with what result (see [`metadata`])
//!   structure.csv      the structure map: one row per tensor or expert slice
//!   tensor_names.txt   `index,name` of the model's tensors, in file order
//!   log/               status and segments: the raw log (crate `trace`); of a
//!                      program that was watched also control, models.txt and
//!                      process-NNNN.txt
//! ```
//!
//! Protocol:
//! 1. [`RunDirectory::create`] makes the folder and `log/`, then `metadata.json`
//!    with status `recording`, then the other two files. Whatever can go wrong
//!    with the path goes wrong here, before a model is loaded.
//! 2. The recorder writes into [`RunDirectory::log_directory`].
//! 3. [`RunDirectory::finish`] replaces `metadata.json` in one step. If it fails,
//!    the old file is still there.
//!
//! **`log/status` is the authority on how a recording stands**, because it
//! survives `kill -9` and a full disk; `metadata.json` is for people and for what
//! the log does not know. [`Run::open`] therefore accepts a run whose metadata is
//! missing or garbled, and says so in [`Run::warning`].
//!
//! What it deliberately does not do: write or read the log, or print anything.

pub mod directory;
pub mod error;
pub mod limits;
pub mod machine;
pub mod metadata;
pub mod names;
pub mod open;
mod process;
pub mod time;

pub use directory::{Ending, RunDirectory};
pub use error::RunError;
pub use metadata::Metadata;
pub use open::{Condition, Lost, Run};

/// Names inside a run directory, in the order in which they are made.
pub(crate) const LOG: &str = "log";
/// In `log/` of a program that was watched (crate `agent` writes them): the paths
/// of the model files, a line each, and one report for each process.
pub const MODELS: &str = "models.txt";
/// Beside it, and line by line: how many bytes each had when it was loaded.
pub const MODEL_SIZES: &str = "model-sizes.txt";
pub const PROCESS: &str = "process-";
pub(crate) const METADATA: &str = "metadata.json";
/// What becomes `metadata.json`; hidden, and left behind only by a kill.
pub(crate) const METADATA_TEMPORARY: &str = ".metadata.json.tmp";
pub(crate) const STRUCTURE: &str = "structure.csv";
pub(crate) const TENSOR_NAMES: &str = "tensor_names.txt";
