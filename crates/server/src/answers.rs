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
        ];
        let text = format!(
            "// Written by a test of crates/server/src/answers.rs; change that.\n{}",
            types.concat()
        );
        generated::check("src/generated/server.ts", &text);
    }
}
