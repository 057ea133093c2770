//! `tensorscope report` as people read it: what to do, what the run shows, what memory would give.

use std::{path::Path, process::Command};

use serde_json::Value;

/// What it prints; it must succeed.
fn answer(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    let output = command.current_dir(folder).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    // Random weights generate random bytes.
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&answer(folder, args)).unwrap()
}

/// A dense model whose embedding is its output head, and a run of it: `model.gguf`, `run`.
fn tied() -> tempfile::TempDir {
    run_of(&["--like", "qwen3-0.6b", "--tiny"])
}

fn run_of(shape: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let synth = ["synth", "-q", "-o", "model.gguf"];
    answer(folder.path(), &[&synth[..], shape].concat());
    let record = ["record", "-m", "model.gguf", "-p", "a b c d e", "-n", "8"];
    let more = ["-t", "1", "--ignore-eos", "-q", "-o", "run"];
    answer(folder.path(), &[&record[..], &more].concat());
    folder
}

#[test]
fn what_to_do_comes_first_and_is_in_every_format() {
    let folder = tied();
    let folder = folder.path();
    let text = answer(folder, &["report", "run"]);
    let place = |of: &str| text.find(of).unwrap_or_else(|| panic!("no {of}: {text}"));
    assert!(
        place("\nWhat to do\n- ") < place("\nFindings\n- "),
        "{text}"
    );
    assert!(place("\nprompt: ") < place("\ngenerate: "), "{text}");
    let report = json(folder, &["report", "run", "--json"]);
    let actions = report["actions"].as_array().unwrap();
    assert!(!actions.is_empty());
    let html = answer(folder, &["report", "run", "--html"]);
    answer(folder, &["report", "run", "--md", "-o", "report.md"]);
    let markdown = std::fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(html.contains("<section id=\"actions\">"));
    assert!(markdown.contains("\n## What to do\n"));
    for action in actions {
        assert!(text.contains(action["text"].as_str().unwrap()), "{action}");
        for flags in ["llama_cpp", "tensorscope"] {
            if let Some(flags) = action[flags].as_str() {
                assert!(text.contains(flags) && markdown.contains(flags), "{flags}");
            }
        }
    }
}

#[test]
fn queries_are_shown_to_who_asks_for_them() {
    let folder = tied();
    let folder = folder.path();
    let text = answer(folder, &["report", "run"]);
    assert!(
        !text.contains("SELECT") && !text.contains("evidence:"),
        "{text}"
    );
    let text = answer(folder, &["report", "run", "--queries"]);
    assert!(
        text.contains("    evidence: facts.hot.by_component\n"),
        "{text}"
    );
    assert!(
        text.contains("    query: SELECT component, sum(bytes)"),
        "{text}"
    );
    let report = json(folder, &["report", "run", "--json"]);
    assert!(report["findings"][0]["sql"].is_string(), "{report}");
}

#[test]
fn a_tied_output_head_is_a_component_whoever_is_asked() {
    let folder = tied();
    let folder = folder.path();
    let text = answer(folder, &["report", "run"]);
    assert!(text.contains(" output (tied to the embedding) "), "{text}");
    let report = json(folder, &["report", "run", "--json"]);
    let mut said: Vec<String> = report["by_component"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| format!("{},{}", row["component"].as_str().unwrap(), row["bytes"]))
        .collect();
    said.sort();
    assert!(
        said.iter().any(|row| row.starts_with("output,")),
        "{said:?}"
    );
    for from in [
        "accesses WHERE kind = 'weight'",
        "traffic WHERE kind = 'weight'",
        "bytes_by_component WHERE 1 = 1",
    ] {
        let sql = format!(
            "SELECT component, sum(bytes) AS bytes FROM {from} GROUP BY component ORDER BY component"
        );
        let rows = answer(folder, &["sql", "run", &sql, "--format", "csv"]);
        assert_eq!(rows.lines().skip(1).collect::<Vec<_>>(), said, "{from}");
    }
    // The look-up is the embedding's; the tensor is one.
    let sql = "SELECT DISTINCT op, component FROM accesses WHERE tensor_name = 'token_embd.weight' ORDER BY op";
    let rows = answer(folder, &["sql", "run", sql, "--format", "csv"]);
    assert_eq!(rows, "op,component\nGET_ROWS,embedding\nMUL_MAT,output\n");
    let sql = "SELECT component FROM tensors WHERE name = 'token_embd.weight'";
    let rows = answer(folder, &["sql", "run", sql, "--format", "csv"]);
    assert_eq!(rows, "component\nembedding\n");
    let hot = &report["facts"]["hot"];
    let groups = hot["by_component"].as_array().unwrap();
    let sizes: u64 = groups.iter().filter_map(|g| g["size_bytes"].as_u64()).sum();
    assert_eq!(Some(sizes), hot["model_bytes"].as_u64());
    let exported = answer(folder, &["export", "run", "--table", "accesses"]);
    assert!(
        exported
            .lines()
            .any(|row| row.contains(",token_embd.weight,weight,output,"))
    );
}

#[test]
fn one_number_is_said_once_and_one_evaluation_is_singular() {
    let folder = tied();
    let text = answer(folder.path(), &["report", "run"]);
    for sentence in [
        "- weights are read in proportion to their size: ",
        "- every weight is read equally often: each byte 8 times in 8 evaluations\n",
        "- every evaluation reads the same ",
        "- the order of reads repeats exactly\n",
        " of KV cache, whatever the context (",
        " in 1 evaluation, ",
    ] {
        assert!(text.contains(sentence), "no {sentence}: {text}");
    }
    for private in ["which is", "what followed last time", " 1 evaluations"] {
        assert!(!text.contains(private), "{private}: {text}");
    }
}

#[test]
fn each_budget_that_is_asked_about_is_answered() {
    // Weights of a few megabytes: of smaller ones nothing is kept before all of them are.
    let shape = ["--like", "qwen3-0.6b", "--layers", "2", "--vocab", "4096"];
    let folder = run_of(&shape);
    let folder = folder.path();
    let report = json(folder, &["report", "run", "--json"]);
    let memory = &report["caches"]["opportunities"];
    let beside = memory["beside_weights_bytes"].as_u64().unwrap();
    let used = memory["footprint_bytes"].as_u64().unwrap();
    let budgets = [10 << 20, beside + used / 2, beside + 2 * used];
    let list = budgets.map(|bytes| bytes.to_string()).join(",");
    let text = answer(folder, &["report", "run", "--memory", &list]);
    let (_, table) = text.split_once("\nWith less memory (").unwrap();
    let rows: Vec<&str> = table.lines().skip(2).take(3).collect();
    assert!(
        rows[0].contains("10.0 MiB") && rows[0].contains("too little memory"),
        "{text}"
    );
    assert!(rows[1].trim_end().ends_with(" pin"), "{text}");
    assert!(rows[2].contains("all weights fit"), "{text}");
    let said = |of: &str| assert!(text.contains(of), "no {of}: {text}");
    said("- 10.0 MiB of memory are too little: the program needs ");
    said("% of those used), pinning weights reads ");
    said("(more than are used), all of them fit: nothing is read from disk again\n");
    // And what to type.
    let (_, to_do) = text.split_once("\nWhat to do\n").unwrap();
    assert!(to_do.starts_with("- with "), "{text}");
    said("    tensorscope: tensorscope run -m ");
    let report = json(folder, &["report", "run", "--memory", &list, "--json"]);
    let outlooks = report["caches"]["opportunities"]["budgets"]
        .as_array()
        .unwrap();
    let fits: Vec<&str> = outlooks
        .iter()
        .map(|o| o["fit"].as_str().unwrap())
        .collect();
    assert_eq!(fits, ["no", "some", "all"]);
    let given: Vec<u64> = outlooks
        .iter()
        .map(|o| o["program_bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(given, budgets);
}
