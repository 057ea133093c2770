//! The program as users meet it: what it lists, what it writes, and what it says where
//! something is missing.

use std::{
    fs,
    process::{Command, Output},
};

fn lab(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope-lab"));
    command.arg("lab").args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Experiments on a card cannot run here, and say so in one line.
fn has_card() -> bool {
    text(&lab(&[]).stdout).contains("\ncard: ")
}

#[test]
fn experiments_are_listed_with_what_they_need() {
    let output = lab(&[]);
    assert!(output.status.success());
    let said = text(&output.stdout);
    for name in [
        "gemm-f32",
        "gemm-bf16",
        "gemm-cpu",
        "attention-decode",
        "attention-prefill",
        "quant",
        "cache",
        "calls",
        "replicas",
    ] {
        assert!(
            said.lines()
                .any(|line| line.split_whitespace().next() == Some(name)),
            "{name}: {said}"
        );
    }
    assert!(has_card() || said.contains("\nno card: "), "{said}");
}

#[test]
fn an_experiment_writes_numbers_a_table_and_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let output = lab(&[
        "gemm-cpu", "--quick", "--sizes", "64,96", "--seed", "7", "-o", path,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(
        table.contains("naive") && table.contains("64") && table.contains("96"),
        "{table}"
    );
    let json = fs::read(folder.path().join("gemm-cpu.json")).unwrap();
    let found: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(found["experiment"], "gemm-cpu");
    assert_eq!(found["seed"], 7);
    let command = found["command"].as_str().unwrap();
    assert!(
        command.starts_with("tensorscope lab gemm-cpu --quick"),
        "{command}"
    );
    let rows = found["rows"].as_array().unwrap();
    assert!(rows.len() > 4);
    for row in rows {
        assert!(row["value"]["median"].as_f64().unwrap() > 0.0, "{row}");
        let source = row["source"].as_str().unwrap();
        if let Some((file, line)) = source.rsplit_once(':') {
            let lines = fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR")))
                .unwrap()
                .lines()
                .count();
            assert!((1..=lines).contains(&line.parse().unwrap()), "{source}");
        }
    }
    assert!(
        fs::read_to_string(folder.path().join("gemm-cpu.svg"))
            .unwrap()
            .starts_with("<svg")
    );
    assert_eq!(
        fs::read_to_string(folder.path().join("gemm-cpu.txt"))
            .unwrap()
            .trim(),
        table.trim()
    );
}

/// What scripts hold on to.
#[test]
fn a_group_as_json_has_steps_with_rates_and_says_what_was_skipped() {
    let output = lab(&["gemm", "--quick", "--sizes", "64", "--seed", "7", "--json"]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    // Nothing but one object is on stdout.
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = found["steps"].as_array().unwrap();
    assert!(steps.len() > 4);
    for step in steps {
        assert!(!step["name"].as_str().unwrap().is_empty());
        assert!(step["tflops"].as_f64().unwrap() > 0.0, "{step}");
        if step["name"] == "packed" {
            assert!(
                step["of_vendor"].as_f64().is_some_and(|share| share > 0.0),
                "{step}"
            );
            assert!(step["relative_error"].as_f64().unwrap() < 1e-5, "{step}");
        }
    }
    let skipped: Vec<&str> = found["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["experiment"].as_str().unwrap())
        .collect();
    if !has_card() {
        assert_eq!(skipped, ["gemm-f32", "gemm-bf16", "linear-bf16"]);
        for name in skipped {
            let line = format!("tensorscope: {name} is skipped: ");
            assert_eq!(said.matches(&line).count(), 1, "{said}");
        }
    }
}

#[test]
fn what_is_missing_or_wrong_is_one_line_and_exit_code_2() {
    let mut cases = vec![
        (vec!["gem"], "there is no experiment \"gem\""),
        (
            vec!["gemm-cpu", "--steps", "nonsense"],
            "there is no step \"nonsense\"",
        ),
        (vec!["gemm-cpu", "--sizes", "0"], "from 1 to 65536"),
        (vec!["--draw", "Cargo.toml"], "no results of the lab"),
        (vec!["calls", "--program", "x=true"], "{tokens}"),
        (
            vec!["calls", "--program", "x=/no/such {tokens}"],
            "/no/such: No such file",
        ),
    ];
    if !has_card() {
        cases.push((vec!["gemm-f32", "--quick"], "an NVIDIA card is needed"));
        for name in ["attention-decode", "attention", "quant"] {
            cases.push((vec![name, "--quick", "--json"], "an NVIDIA card is needed"));
        }
    }
    for (words, expected) in cases {
        let output = lab(&words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("tensorscope: ") && last.contains(expected),
            "{words:?}: {said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}
