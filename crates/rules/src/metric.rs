//! What is known of a thing that may be slow: named values, each with where it comes from.
//!
//! A value that was not measured is absent, never zero: a rule that needs it says so.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A measured or configured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum Value {
    Number(f64),
    Text(String),
    Flag(bool),
}

/// How a number is shown to people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum Unit {
    /// A plain number.
    #[default]
    Count,
    /// From 0 to 1; shown in per cent.
    Share,
    Bytes,
    Nanos,
    BytesPerSecond,
    FlopsPerSecond,
    /// So many times something else.
    Times,
}

/// A value, and the query or the place that shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Metric {
    pub value: Value,
    pub unit: Unit,
    /// SQL on the tables of a run, or a place in an imported file ("report.csv:12").
    pub source: Option<String>,
}

/// By name: words in lower case, joined by dots and underscores (`stack.disk`, `threads`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Metrics(pub BTreeMap<String, Metric>);

/// What a rule is asked about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Subject {
    /// Which rules apply: `phase`, `kernel`, `calls`, `counters`, `schedule`, `lines`, `trace`.
    pub kind: String,
    /// Of a phase `generate`, of a kernel its name, …
    pub name: String,
    pub metrics: Metrics,
}

impl Metrics {
    /// A number; one that is not finite was not measured.
    pub fn number(&mut self, name: &str, unit: Unit, value: f64, source: Option<&str>) {
        if value.is_finite() {
            self.put(name, unit, Value::Number(value), source);
        }
    }

    pub fn text(&mut self, name: &str, value: &str, source: Option<&str>) {
        self.put(name, Unit::Count, Value::Text(value.to_owned()), source);
    }

    pub fn flag(&mut self, name: &str, value: bool, source: Option<&str>) {
        self.put(name, Unit::Count, Value::Flag(value), source);
    }

    pub fn get(&self, name: &str) -> Option<&Metric> {
        self.0.get(name)
    }

    fn put(&mut self, name: &str, unit: Unit, value: Value, source: Option<&str>) {
        let source = source.map(str::to_owned);
        let metric = Metric {
            value,
            unit,
            source,
        };
        self.0.insert(name.to_owned(), metric);
    }
}

impl Metric {
    /// `None` of a text or a flag.
    pub fn as_number(&self) -> Option<f64> {
        match self.value {
            Value::Number(number) => Some(number),
            Value::Text(_) | Value::Flag(_) => None,
        }
    }
}
