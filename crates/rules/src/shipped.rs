//! The rules that come with us, one file for each kind of subject.

use std::sync::LazyLock;

use crate::file::RuleFile;
use crate::set::RuleSet;

/// Names and texts.
pub const FILES: [(&str, &str); 7] = [
    ("run.toml", include_str!("shipped/run.toml")),
    ("kernel.toml", include_str!("shipped/kernel.toml")),
    ("gpu_trace.toml", include_str!("shipped/gpu_trace.toml")),
    ("calls.toml", include_str!("shipped/calls.toml")),
    ("counters.toml", include_str!("shipped/counters.toml")),
    ("schedule.toml", include_str!("shipped/schedule.toml")),
    ("lines.toml", include_str!("shipped/lines.toml")),
];

static SHIPPED: LazyLock<RuleSet> = LazyLock::new(|| {
    let mut set = RuleSet::default();
    for (name, text) in FILES {
        let file = RuleFile::parse(text, name);
        let added = file.and_then(|file| set.extend(file));
        added.unwrap_or_else(|error| panic!("a shipped rule is wrong: {error}"));
    }
    set
});

impl RuleSet {
    /// All of them. To add some, clone it.
    pub fn shipped() -> &'static Self {
        &SHIPPED
    }
}
