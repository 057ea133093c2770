//! `audit` and `bench overhead`, by what scripts rely on.

use serde_json::Value;

use crate::fixture::*;

fn audit(args: &[&str]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tensorscope(folder.path());
    command
        .args(["audit", "-t", "1", "-p", "To be, or not", "-n", "3", "-m"])
        .args(args);
    let output = command.output().unwrap();
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "an audit leaves nothing behind"
    );
    output
}

#[test]
fn audit_passes_and_its_last_line_says_recall_and_precision() {
    for model in [dense(), moe()] {
        let output = audit(&[model.to_str().unwrap()]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
        let last = text.lines().last().unwrap();
        assert!(
            last.starts_with("audit passed: recall 100.000 %, precision 100.000 % of "),
            "{last}"
        );
        assert!(last.ends_with(" in 3 evaluations"), "{last}");
        assert!(
            text.contains("MUL_MAT") && text.contains("GET_ROWS"),
            "{text}"
        );
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn audit_answers_in_json_and_node_by_node() {
    let model = moe();
    let output = audit(&[model.to_str().unwrap(), "--json", "--per-node"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&result["passed"], &result["recall"]),
        (&Value::Bool(true), &Value::from(1.0))
    );
    assert!(result["precision"].as_f64().unwrap() >= 0.999);
    assert_eq!(
        (&result["evaluations"], &result["flawed_evaluations"]),
        (&Value::from(3), &Value::from(0))
    );
    let ops: Vec<&str> = result["by_op"]
        .as_array()
        .unwrap()
        .iter()
        .map(|op| op["name"].as_str().unwrap())
        .collect();
    assert!(ops.contains(&"MUL_MAT_ID"), "{ops:?}");
    assert!(result["touched_pages"].as_u64().unwrap() > 100);
}

#[test]
fn audit_refuses_what_record_refuses() {
    let model = dense();
    let output = audit(&[model.to_str().unwrap(), "-c", "4"]);
    assert_eq!(
        (output.status.code(), stderr(&output).lines().count()),
        (Some(2), 1)
    );
    let output = audit(&["none.gguf"]);
    assert_eq!(
        (output.status.code(), stderr(&output).lines().count()),
        (Some(2), 1)
    );
}

#[test]
fn overhead_has_an_object_per_mode_with_what_scripts_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tensorscope(folder.path());
    command
        .args([
            "bench",
            "overhead",
            "-t",
            "1",
            "-n",
            "12",
            "--prompt-tokens",
            "8",
            "--json",
            "-m",
        ])
        .arg(dense());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&result["identical"], &result["tick_mismatches"]),
        (&Value::Bool(true), &Value::from(0))
    );
    assert_eq!(
        (&result["tokens_per_mode"], &result["threads"]),
        (&Value::from(12), &Value::from(1))
    );
    let modes = result["modes"].as_object().unwrap();
    assert_eq!(
        modes.keys().collect::<Vec<_>>(),
        ["no_hooks", "no_hooks_again", "record", "eval_callback"]
    );
    for (name, mode) in modes {
        let number = |field: &str| {
            mode[field]
                .as_f64()
                .unwrap_or_else(|| panic!("{name}: {field}"))
        };
        let (low, high) = (
            number("slowdown_percent_low"),
            number("slowdown_percent_high"),
        );
        assert!((low..=high).contains(&number("slowdown_percent")), "{name}");
        assert_eq!(mode.get("direct_percent").is_some(), name == "record");
    }
    let percent = modes["record"]["direct_percent"].as_f64().unwrap();
    assert!(percent > 0.0);
    // Where recording costs under 1 % follows from these.
    let per_node = |field: &str| result[field].as_f64().unwrap();
    let ratio = per_node("recording_nanos_per_node") / per_node("nanos_per_node") * 100.0;
    assert!(ratio > 0.0, "{result}");
    assert_eq!(modes["no_hooks"]["slowdown_percent"], 0.0);
}

#[test]
fn overhead_refuses_bad_input_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = dense();
    let check = |args: &[&str], word: &str| {
        let output = tensorscope(folder.path())
            .args(["bench", "overhead", "-m"])
            .args(args)
            .output()
            .unwrap();
        let talk = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {talk}");
        assert!(
            talk.starts_with("tensorscope: ") && talk.lines().count() == 1,
            "{talk}"
        );
        assert!(talk.contains(word), "{talk}");
    };
    let model = model.to_str().unwrap();
    check(&["none.gguf"], "none.gguf");
    check(
        &[model, "--log-dir", "none"],
        "none: cannot make a folder there",
    );
    check(&[model, "--prompt-tokens", "4294967295"], "of memory");
}
