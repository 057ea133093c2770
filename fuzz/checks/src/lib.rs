//! What must hold for any bytes, one check for each thing that we parse.
//!
//! A check returns, or panics: no input may make us panic, hang or take memory that it
//! merely claims. `fuzz/fuzz_targets` hands each check to libFuzzer; `tests/corpus.rs`
//! replays the committed corpora on a stable compiler, so that CI runs every check too.

mod estimates;
mod header;
mod kernel;
mod log;
mod pieces;
mod rules;
mod run;
mod text;

pub use pieces::{FILES, MARK};

/// Returns if all is well.
pub type Check = fn(&[u8]);

/// By the name of its fuzz target and of its folder in `fuzz/corpus`.
pub const CHECKS: [(&str, Check); 13] = [
    ("arguments", text::arguments),
    ("blkparse", kernel::blkparse),
    ("config", estimates::config),
    ("header", header::header),
    ("kernel_logs", kernel::kernel_logs),
    ("log", log::log),
    ("machines", estimates::machines),
    ("maps", kernel::maps),
    ("names", text::names),
    ("plan", text::plan),
    ("records", log::records),
    ("rules", rules::rules),
    ("run", run::run),
];

/// Runs the check of this name.
pub fn check(name: &str, data: &[u8]) {
    let found = CHECKS.iter().find(|(known, _)| *known == name);
    let (_, check) = found.unwrap_or_else(|| panic!("no check is named {name}"));
    check(data);
}
