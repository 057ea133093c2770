//! What the server does not know itself and the program gives it: analysis
//! results, SQL, comparisons; of a model without a run, its structure and estimates.
//!
//! All methods are called on threads that may block, perhaps several at once.
//! Errors are sentences for the page to show.

use std::sync::{Arc, atomic::AtomicBool};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longer answers are cut.
pub const MAX_SQL_ROWS: usize = 1000;

/// About one run.
pub trait Answers: Send + Sync {
    /// The object of `report --json`: findings, facts, caches. May take seconds:
    /// the server asks once, and again only after a live run grew.
    fn results(&self) -> Result<Arc<Value>, String>;

    /// At most [`MAX_SQL_ROWS`] rows. Once `is_unwanted` is set nobody waits any more, and
    /// the query may end without an answer.
    fn sql(&self, query: &str, is_unwanted: &AtomicBool) -> Result<SqlAnswer, String>;
}

/// About the set of runs.
pub trait Comparisons: Send + Sync {
    /// The object of `compare --json`, of the runs with these numbers, which exist.
    fn compare(&self, a: usize, b: usize) -> Result<Value, String>;
}

/// About a model that is shown without a run.
pub trait ModelAnswers: Send + Sync {
    fn facts(&self) -> Result<ModelFacts, String>;

    fn structure(&self) -> Result<ModelStructure, String>;

    /// The object of `estimate --json` for these options, by their long names and values; one
    /// without a value is empty. May take a second.
    fn estimate(&self, options: &[(&str, &str)]) -> Result<Value, String>;
}

/// What a model is, as far as questions about it need it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ModelFacts {
    pub name: String,
    /// As the user gave it.
    pub path: String,
    pub architecture: String,
    /// Of all its files.
    pub size_bytes: u64,
    pub tensor_bytes: u64,
    pub parameters: u64,
    /// Those that one token uses.
    pub active_parameters: u64,
    pub bits_per_parameter: f64,
    /// Tokens that it was trained for.
    pub max_context: Option<u64>,
    pub layers: u64,
    pub embedding_length: u64,
    pub vocabulary: Option<u64>,
    pub experts: u64,
    pub experts_used: u64,
    /// Of the table that `estimate --list-machines` prints.
    pub machines: Vec<MachineName>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct MachineName {
    pub name: String,
    /// `gpu`, `apple` or `cpu`.
    pub kind: String,
    pub memory_bytes: u64,
}

/// Where every tensor of a model lies.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ModelStructure {
    pub files: Vec<ModelFile>,
    /// Ascending by `begin`.
    pub tensors: Vec<ModelTensor>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ModelFile {
    pub name: String,
    pub size_bytes: u64,
    /// Its first byte when all files are put one behind the other.
    pub begin: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ModelTensor {
    pub name: String,
    #[serde(rename = "type")]
    pub ty: String,
    /// Elements along each dimension, fastest first.
    pub shape: Vec<u64>,
    pub layer: Option<u32>,
    pub component: String,
    pub role: String,
    /// Its place in `files`, and its first byte there.
    pub file: u32,
    pub file_offset: u64,
    /// Its first byte when all files are put one behind the other.
    pub begin: u64,
    pub size_bytes: u64,
    /// Experts whose slices it holds; 0 if none.
    pub experts: u32,
}

/// One of the runs that are shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RunName {
    pub run: usize,
    pub name: String,
    pub model: Option<String>,
    pub live: bool,
}

/// What `info?since=` answers when nothing is newer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Unchanged {
    pub version: u64,
    pub live: bool,
}

/// The rows that a query gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SqlAnswer {
    pub columns: Vec<SqlColumn>,
    /// One value for each column.
    #[cfg_attr(test, ts(type = "(string | number | boolean | null)[][]"))]
    pub rows: Vec<Vec<Value>>,
    /// Whether there were more rows.
    pub is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SqlColumn {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
}

/// As the page gets it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct TimedSqlAnswer {
    #[serde(flatten)]
    pub answer: SqlAnswer,
    pub seconds: f64,
}

#[cfg(test)]
#[path = "../../index/tests/generated/mod.rs"]
mod generated;

#[cfg(test)]
mod tests {
    use super::{generated::declaration as of, *};

    /// The page's types are these: `TENSORSCOPE_BLESS=1 cargo test -p server --lib` writes them.
    #[test]
    fn the_page_knows_every_answer() {
        let types = [
            of::<RunName>(),
            of::<Unchanged>(),
            of::<SqlAnswer>(),
            of::<SqlColumn>(),
            of::<TimedSqlAnswer>(),
            of::<ModelFacts>(),
            of::<MachineName>(),
            of::<ModelStructure>(),
            of::<ModelFile>(),
            of::<ModelTensor>(),
        ];
        let text = format!(
            "// Written by a test of crates/server/src/answers.rs; change that.\n{}",
            types.concat()
        );
        generated::check("src/generated/server.ts", &text);
    }
}
