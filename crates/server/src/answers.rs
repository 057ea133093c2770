//! What the server does not know itself and the program gives it: analysis
//! results, SQL, comparisons.
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

/// The rows that a query gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SqlAnswer {
    pub columns: Vec<SqlColumn>,
    /// One value for each column.
    pub rows: Vec<Vec<Value>>,
    /// Whether there were more rows.
    pub is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SqlColumn {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
}
