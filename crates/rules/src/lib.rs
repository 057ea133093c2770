//! Rules as data: from numbers that were measured to causes, actions and gains.
//!
//! Whoever measured something (a recorded run, another tool's file) hands over [`Subject`]s:
//! things that may be slow, each with the numbers that are known of it. What follows from the
//! numbers is written in rule files, not here.

pub mod metric;

pub use metric::{Metric, Metrics, Subject, Unit, Value};
