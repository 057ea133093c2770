//! `tensorscope diagnose`: stacks that add up, causes with their numbers, other tools' files,
//! rules of one's own, and what is refused.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

fn tensorscope(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    command.current_dir(folder).args(args).output().unwrap()
}

/// What it prints; it must succeed.
fn answer(folder: &Path, args: &[&str]) -> String {
    let output = tensorscope(folder, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&answer(folder, args)).unwrap()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// A run of a trained model in `folder/run`.
fn record(folder: &Path, more: &[&str]) {
    record_tokens(folder, "24", more);
}

fn record_tokens(folder: &Path, tokens: &str, more: &[&str]) {
    let model = repository().join("models/shakespeare-dense.gguf");
    let model = model.to_str().unwrap();
    let args = ["record", "-q", "-o", "run", "-m", model, "-p", "To be, or"];
    let args = [
        &args[..],
        &["-n", tokens, "--ignore-eos", "--no-tables"],
        more,
    ]
    .concat();
    answer(folder, &args);
}

/// Names and shares of a phase's parts.
fn parts(phase: &Value) -> Vec<(String, f64)> {
    let parts = phase["stack"].as_array().unwrap().iter();
    let part = |part: &Value| {
        let share = part["share"].as_f64().unwrap();
        (part["name"].as_str().unwrap().to_owned(), share)
    };
    parts.map(part).collect()
}

#[test]
fn the_stack_of_every_phase_adds_up_to_one() {
    for more in [&[][..], &["--cpu"], &["--cpu", "--faults", "--io"]] {
        let folder = tempfile::tempdir().unwrap();
        record(folder.path(), more);
        let found = json(
            folder.path(),
            &["diagnose", "run", "--json", "--no-measure"],
        );
        let phases = found["phases"].as_array().unwrap();
        let names: Vec<&str> = phases.iter().map(|p| p["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["prompt", "generate"], "{more:?}");
        for phase in phases {
            let parts = parts(phase);
            let sum: f64 = parts.iter().map(|(_, share)| share).sum();
            assert!((sum - 1.0).abs() < 1e-6, "{parts:?}");
            assert!(parts.iter().all(|(_, share)| (0.0..=1.0).contains(share)));
            assert!(parts.iter().any(|(name, _)| name == "unexplained"));
            assert!(phase["token_nanos"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn a_run_without_threads_says_what_is_not_known_and_how_to_record_it() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), &[]);
    let text = answer(folder.path(), &["diagnose", "run", "--no-measure"]);
    assert!(
        text.contains("in operations: computing, or waiting for threads"),
        "{text}"
    );
    assert!(text.contains("record with --cpu"), "{text}");
}

#[test]
fn more_threads_than_processors_are_named_first_with_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let many = (std::thread::available_parallelism().unwrap().get() * 4).to_string();
    record_tokens(folder, "200", &["-t", &many, "--cpu"]);
    let talk = json(folder, &["diagnose", "run", "--json", "--no-measure"]);
    let missing = talk["missing"].to_string();
    if missing.contains("stacks of threads cannot be recorded") {
        println!("skipped: {missing}");
        return;
    }
    let cause = &talk["causes"][0];
    assert_eq!(cause["id"], "run.threads_more_than_processors", "{talk:#}");
    assert!(cause["action"].as_str().unwrap().starts_with("-t "));
    let gain = |name: &str| cause[name].as_f64().unwrap();
    assert!(gain("gain_percent_low") <= gain("gain_percent"));
    assert!(gain("gain_percent") <= gain("gain_percent_high"));
    let evidence = cause["evidence"].as_array().unwrap();
    let threads = evidence.iter().find(|e| e["name"] == "threads").unwrap();
    assert_eq!(threads["value"].to_string().trim_end_matches(".0"), many);
    assert!(threads["source"].as_str().unwrap().starts_with("SELECT "));
}

#[test]
fn queries_behind_the_numbers_can_be_asked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, &["--cpu"]);
    let found = json(folder, &["diagnose", "run", "--json", "--no-measure"]);
    let mut queries: Vec<String> = Vec::new();
    for subject in found["subjects"].as_array().unwrap() {
        for metric in subject["metrics"].as_object().unwrap().values() {
            let source = metric["source"].as_str().unwrap_or_default().to_owned();
            if source.starts_with("SELECT") && !queries.contains(&source) {
                queries.push(source);
            }
        }
    }
    assert!(queries.len() > 8, "{queries:?}");
    for query in queries {
        let output = tensorscope(folder, &["sql", "run", &query, "--format", "csv"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{query}: {said}");
    }
}

/// Measured on an H200 (tests/diagnose/kernels): what is wrong with each, or nothing.
#[test]
fn kernels_that_were_made_slow_are_told_apart() {
    let file = repository().join("tests/diagnose/kernels/h200.csv");
    let found = json(
        &repository(),
        &["diagnose", "--ncu", file.to_str().unwrap(), "--json"],
    );
    let first = |kernel: &str| {
        let causes = found["causes"].as_array().unwrap().iter();
        let mut causes = causes.filter(|c| c["phase"].as_str().unwrap().starts_with(kernel));
        causes.next().map(|c| c["id"].as_str().unwrap().to_owned())
    };
    let check = |kernel: &str, expect: Option<&str>| {
        assert_eq!(first(kernel).as_deref(), expect, "{kernel}");
    };
    check("copy_coalesced", None);
    check("fma_bound", None);
    check("load_strided", Some("kernel.uncoalesced_loads"));
    check("store_strided", Some("kernel.uncoalesced_stores"));
    check("bank_conflicts", Some("kernel.bank_conflicts"));
    check("register_spill", Some("kernel.spills"));
    check("low_occupancy", Some("kernel.occupancy.shared"));
    check("tiny_grid", Some("kernel.small_grid"));
    check("pointer_chase", Some("kernel.stall.long_scoreboard"));
    check("barrier_heavy", Some("kernel.stall.barrier"));
    check("divergent", Some("kernel.divergence"));
    check("atomics_one_address", Some("kernel.atomics"));
    check("lg_throttle", Some("kernel.stall.lg_throttle"));
    check("gemm_naive", Some("kernel.tensor_unused"));
    check("attention_decode", Some("kernel.attention_decode"));
}

#[test]
fn what_strace_saw_is_joined_to_the_run_by_time() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, &[]);
    let metadata = std::fs::read_to_string(folder.join("run/metadata.json")).unwrap();
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let began = metadata["started_monotonic_nanos"].as_u64().unwrap();
    // In the middle of the run, on the clock that strace -ttt has.
    let evals = answer(
        folder,
        &[
            "sql",
            "run",
            "SELECT min(begin_nanos) AS at FROM evals",
            "--format",
            "csv",
        ],
    );
    let at: u64 = evals.lines().nth(1).unwrap().parse().unwrap();
    let unix = rundir::time::parse_rfc3339(metadata["started_utc"].as_str().unwrap()).unwrap();
    let when = (unix + at - began + 1000) as f64 / 1e9;
    let line = format!("77 {when:.6} futex(0x7f, FUTEX_WAKE_PRIVATE, 1) = 1 <0.000010>\n");
    let later = format!("77 {:.6} +++ exited with 0 +++\n", when + 0.001);
    std::fs::write(folder.join("calls.txt"), line + &later).unwrap();
    answer(folder, &["ingest", "run", "--import", "calls.txt"]);
    let query = "SELECT tool, category, name, eval FROM imported";
    let rows = answer(folder, &["sql", "run", query, "--format", "csv"]);
    assert!(rows.contains("strace,futex,futex,0"), "{rows}");
    let found = json(folder, &["diagnose", "run", "--json", "--no-measure"]);
    let kinds = found["subjects"].as_array().unwrap().iter();
    assert!(
        kinds.clone().any(|subject| subject["kind"] == "calls"),
        "{found:#}"
    );
}

#[test]
fn rules_of_a_user_are_added() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, &[]);
    let rule = "[[rule]]\nid = \"mine.slow\"\ntitle = \"slow, I say\"\nabout = \"phase\"\n\
                when = \"token_nanos > 1\"\nshare = \"0.99\"\nwhy = \"{token_nanos} a token\"\n\
                action = \"buy a faster one\"\nrefute = \"it is fast\"\n";
    std::fs::write(folder.join("mine.toml"), rule).unwrap();
    let args = [
        "diagnose",
        "run",
        "--json",
        "--no-measure",
        "--rules",
        "mine.toml",
    ];
    let found = json(folder, &args);
    assert_eq!(found["causes"][0]["id"], "mine.slow");
    std::fs::write(folder.join("mine.toml"), rule.replace("> 1", ">")).unwrap();
    let output = tensorscope(folder, &args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("mine.toml:5:"), "{said}");
}

#[test]
fn what_cannot_be_read_is_refused_with_file_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("notes.txt"), "nothing of that kind\n").unwrap();
    std::fs::write(folder.join("cut.csv"), "\"ID\",\"Kernel Name\"\n\"0\",\"x").unwrap();
    let refused = |args: &[&str], expect: &str| {
        let output = tensorscope(folder, args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert!(said.contains(expect), "{args:?}: {said}");
    };
    refused(
        &["diagnose", "--import", "notes.txt"],
        "notes.txt: of no format",
    );
    refused(&["diagnose", "--ncu", "notes.txt"], "notes.txt");
    refused(&["diagnose", "--ncu", "cut.csv"], "cut.csv");
    refused(&["diagnose", "--strace", "missing.txt"], "missing.txt");
    refused(&["diagnose", "nowhere"], "nowhere");
    let output = tensorscope(folder, &["diagnose"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn advice_that_is_tried_is_measured_in_turns() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let many = (std::thread::available_parallelism().unwrap().get() * 4).to_string();
    record_tokens(folder, "200", &["-t", &many, "--cpu"]);
    let args = [
        "diagnose",
        "run",
        "--json",
        "--no-measure",
        "--verify",
        "--rounds",
        "1",
    ];
    let output = tensorscope(folder, &args);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    if found["causes"].as_array().unwrap().is_empty() {
        println!("skipped: {}", found["missing"]);
        return;
    }
    let verified = &found["verified"][0];
    assert!(
        verified["applied"]
            .as_str()
            .unwrap()
            .starts_with("threads="),
        "{found:#}"
    );
    assert!(
        verified["measured_percent"].as_f64().is_some(),
        "{verified:#}"
    );
    assert!(verified["tokens_per_second_with"].as_f64().unwrap() > 0.0);
}
