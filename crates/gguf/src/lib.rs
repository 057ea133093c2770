//! Reads and writes GGUF files, and knows what each of their bytes means.
//!
//! Data flows through the modules in this order:
//! [`header`] (bytes of one file) → [`model`] (all files of a model) →
//! [`names`], [`hyper`] (what a tensor is, what the model is) → [`structure`],
//! [`heads`], [`lookup`] (rows, slices, who owns a byte) → [`summary`], [`fit`]
//! (sums and judgements).
//!
//! Tensor data is never read, so that every question costs the same on a file
//! of 12 GB as on one of 12 KB.

pub mod error;
pub mod fit;
pub mod header;
pub mod heads;
pub mod hyper;
pub mod lookup;
pub mod metadata;
pub mod model;
pub mod names;
pub mod source;
pub mod split;
mod strip;
pub mod structure;
pub mod summary;
pub mod types;
mod vocabulary;
pub mod write;

pub use error::{Error, Result};
pub use hyper::Hyperparameters;
pub use lookup::Owner;
pub use model::{Model, ModelFile, Tensor};
pub use names::{Component, Kind, Meaning};
pub use structure::{HeadRows, Row};
pub use summary::{Question, Summary};
pub use types::GgmlType;
pub use vocabulary::Vocabulary;
