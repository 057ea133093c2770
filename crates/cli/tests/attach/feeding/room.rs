//! A program that suddenly needs more memory than before gets it from the weights, and prints
//! what it prints without us; the kernel kills nobody.

use super::*;

/// Less than the model and the program need, so that some weights are streamed.
const MEMORY: &str = "180M";

/// What it reported of a generation of 100 tokens with `args`.
fn check(args: &[&str]) -> Report {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = large(folder.path(), DENSE);
    let mut all = vec!["-e", "-t", "2", "-n", "100"];
    all.extend(args);
    let flags = ["--always", "--memory", MEMORY];
    let reports = assert_same(folder.path(), &flags, &all, &model, &[PROMPT]);
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports[0].clone()
}

/// Of so small a budget: the margin and what a ring does not fill are a large share of it, and
/// where others are busy what was given back is slower to grow again.
const LEAST_USED: f64 = 0.85;

/// Mostly in use, of the budget.
fn share_used(report: &Report) -> f64 {
    report.fed.used_bytes as f64 / report.shares.unwrap().budget_bytes as f64
}

#[test]
fn the_budget_is_used() {
    let report = check(&[]);
    assert!(share_used(&report) >= LEAST_USED, "{report:?}");
    let shares = report.shares.unwrap();
    assert!(
        shares.streamed_bytes > 0 && shares.mapped_bytes == 0,
        "{report:?}"
    );
}

#[test]
fn memory_that_is_suddenly_used_comes_from_the_weights() {
    let report = check(&["-a", "80"]);
    assert!(report.fed.given_bytes >= 70 << 20, "{report:?}");
    assert!(share_used(&report) >= LEAST_USED, "{report:?}");
}

#[test]
fn a_second_context_and_a_larger_batch_get_their_memory_from_the_weights() {
    let report = check(&["-d"]);
    assert!(report.fed.given_bytes > 0, "{report:?}");
    assert!(share_used(&report) >= LEAST_USED, "{report:?}");
}
