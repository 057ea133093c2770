//! What perf records and prints.

pub mod data;
pub mod memory;
pub mod sched;
pub mod script;
pub mod stat;
