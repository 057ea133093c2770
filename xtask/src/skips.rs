//! Tests that found no way to run, and said so.
//!
//! A test that needs root, a program or a kernel feature which is not there prints
//! `skipped: REASON` and passes: a developer's laptop must not fail it. But a test that is
//! skipped everywhere tests nothing. So each is counted and shown, and under CI (the
//! variable `CI` is set) it is a failure, unless its reason is one that CI cannot mend.
//!
//! The outputs of tests that passed are in nextest's report (.config/nextest.toml). Scripts
//! write theirs to a file, `TEST: REASON` a line.

use std::fs;
use std::path::Path;

use crate::house::House;
use crate::step::{Outcome, say};

/// Beginnings of reasons that lie in the machine, and which machine that is.
const ALLOWED: &[(&str, &str)] = &[
    (
        "llama.cpp repacks no q4_0 weights on this processor",
        "a processor without AVX2",
    ),
    (
        "the block device ",
        "a sandbox whose root may not open its disk",
    ),
    (
        "on this processor batches are not computed one by one",
        "a processor other than x86-64",
    ),
    (
        "this machine is one itself",
        "AArch64, where every other step tests what \"aarch64\" emulates",
    ),
];

/// Reads the report of the last run of tests.
pub fn check(house: &House) -> Outcome {
    let path = house.target().join("nextest/default/junit.xml");
    let report = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    judge(&skipped(&report))
}

/// Reads what a script has written.
pub fn check_list(path: &Path) -> Outcome {
    let list = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    judge(&listed(&list))
}

fn judge(skipped: &[(String, String)]) -> Outcome {
    for (test, reason) in skipped {
        say(&format!("    skipped: {test}: {reason}"));
    }
    say(&format!("    {} tests were skipped", skipped.len()));
    let refused = skipped.iter().filter(|(_, reason)| !is_allowed(reason));
    match refused.count() {
        n if n > 0 && std::env::var_os("CI").is_some() => Err(format!(
            "{n} tests were skipped for a reason that is not on the list in xtask/src/skips.rs"
        )),
        _ => Ok(()),
    }
}

/// A whole step that found no way to run; the same rule.
pub fn step(name: &str, reason: &str) -> Outcome {
    say(&format!("    skipped: {name}: {reason}"));
    match std::env::var_os("CI") {
        Some(_) if !is_allowed(reason) => Err(format!(
            "skipped for a reason that is not on the list in xtask/src/skips.rs: {reason}"
        )),
        _ => Ok(()),
    }
}

fn is_allowed(reason: &str) -> bool {
    ALLOWED
        .iter()
        .any(|(allowed, _)| reason.starts_with(allowed))
}

fn listed(list: &str) -> Vec<(String, String)> {
    list.lines()
        .map(|line| {
            line.split_once(": ")
                .unwrap_or((line, "no reason was given"))
        })
        .map(|(test, reason)| (test.to_owned(), reason.to_owned()))
        .collect()
}

/// Test and reason; a test may say so several times.
fn skipped(report: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut test = "";
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("<testcase name=\"") {
            test = rest.split('"').next().unwrap_or_default();
        }
        if let Some((before, reason)) = line.split_once("skipped: ")
            && (before.is_empty() || before.ends_with('>') || before.ends_with("... "))
        {
            let reason = reason.split("</system").next().unwrap_or(reason);
            all.push((text(test), text(reason.trim())));
        }
    }
    all.dedup();
    all
}

/// What XML writes otherwise.
fn text(xml: &str) -> String {
    let mut text = xml.to_owned();
    for (entity, character) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ] {
        text = text.replace(entity, character);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_were_skipped_are_found_with_their_reasons() {
        let report = "\
<testsuite name=\"a\">
<testcase name=\"runs::as_root\" classname=\"a\">
<system-out>
running 1 test
skipped: only root can become &quot;nobody&quot;
test runs::as_root ... ok
</system-out>
<system-err>skipped: there is no strip on this machine</system-err>
</testcase>
<testcase name=\"counts\" classname=\"a\">
<system-out>12 rows were skipped: they are damaged</system-out>
</testcase>
";
        let expected = [
            ("runs::as_root", "only root can become \"nobody\""),
            ("runs::as_root", "there is no strip on this machine"),
        ];
        let expected = expected.map(|(test, reason)| (test.to_owned(), reason.to_owned()));
        assert_eq!(skipped(report), expected);
    }

    #[test]
    fn scripts_list_theirs_a_line_each() {
        let pair = |test: &str, reason: &str| (test.to_owned(), reason.to_owned());
        assert_eq!(
            listed("a.gguf: no answer: timeout\nb.gguf\n"),
            [
                pair("a.gguf", "no answer: timeout"),
                pair("b.gguf", "no reason was given")
            ]
        );
        assert_eq!(listed(""), []);
    }

    #[test]
    fn the_list_names_reasons_by_how_they_begin() {
        assert!(is_allowed(
            "llama.cpp repacks no q4_0 weights on this processor"
        ));
        assert!(!is_allowed("there is no strip on this machine"));
    }
}
