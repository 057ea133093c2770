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

/// What `bench ceilings -o` of version 0.2 wrote, but for rates: 20 GB/s of memory for two
/// threads, 12 for one.
fn old_ceilings() -> Value {
    let rates = |rate: u64| {
        serde_json::json!({
            "slices": 1,
            "median_bytes_per_second": rate,
            "lowest_bytes_per_second": rate,
            "lower_quartile_bytes_per_second": rate,
            "upper_quartile_bytes_per_second": rate,
            "highest_bytes_per_second": rate,
        })
    };
    let threads = |threads: u64, rate: u64| {
        serde_json::json!({
            "threads": threads,
            "bytes_per_second": rate,
            "rates": rates(rate),
            "buffer_bytes": 1 << 30,
            "residence": "memory",
            "on_cpu_permille": 1000,
        })
    };
    serde_json::json!({
        "disk": {
            "bytes_per_second": 1_000_000_000,
            "rates": rates(1_000_000_000),
            "method": "io_uring_direct",
            "setting": {"block_bytes": 1 << 20, "depth": 4},
            "alignment_bytes": 512,
            "path": "model.gguf",
            "file_bytes": 1,
            "device": null,
            "bytes_read": 1,
            "elapsed_nanos": 1,
            "refused": [],
            "sweep": [],
            "caveats": [],
        },
        "memory": {
            "bytes_per_second": 20_000_000_000u64,
            "one_thread": threads(1, 12_000_000_000),
            "all_threads": threads(2, 20_000_000_000),
            "last_level_cache_bytes": null,
        },
        "cpu_threads": 2,
        "when": "2026-01-01T00:00:00Z",
    })
}

#[test]
fn nodes_are_held_against_ceilings_whatever_version_measured_them() {
    let folder = tied();
    let folder = folder.path();
    let old = old_ceilings();
    let mut new = old.clone();
    let kernel = |tokens: u64| serde_json::json!({"weight_type": "f16", "tokens": tokens, "threads": 1, "flops_per_second": 1000});
    new["compute"] = serde_json::json!({
        "registers": [{"instructions": "avx2", "threads": 1, "flops_per_second": 1000}],
        "kernels": [kernel(1), kernel(256)],
    });
    for (file, ceilings, bound) in [("old.json", old, "memory"), ("new.json", new, "compute")] {
        std::fs::write(folder.join(file), ceilings.to_string()).unwrap();
        let args = ["report", "run", "--ceilings", file];
        let report = json(folder, &[&args[..], &["--json"]].concat());
        let points = report["roofline"]["points"].as_array().unwrap();
        assert!(
            points.iter().any(|point| point["bound"] == bound),
            "{points:?}"
        );
        assert_eq!(report["roofline"]["memory"][0]["bytes_per_second"], 12e9);
        let findings = report["findings"].as_array().unwrap();
        let said = findings.iter().find(|f| f["topic"] == "roofline").unwrap();
        let text = answer(folder, &args);
        assert!(text.contains(said["text"].as_str().unwrap()), "{text}");
        assert!(text.contains("\nRoofline ("), "{text}");
        let rows = answer(folder, &["sql", "run", said["sql"].as_str().unwrap()]);
        assert!(rows.contains("gigabytes_per_second"), "{rows}");
        let html = answer(folder, &[&args[..], &["--html"]].concat());
        assert!(html.contains("id=\"plot-roofline\""));
        assert!(html.contains("id=\"table-roofline\""));
    }
    let without = json(folder, &["report", "run", "--json"]);
    assert!(without.get("roofline").is_none());
}

/// Operations of products and attention in the phase, by the log and by the model's shape.
#[test]
fn a_generated_token_computes_what_the_estimate_says() {
    let path = testing::models::shipped("shakespeare-dense.gguf");
    let path = path.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let record = ["record", "-m", path, "-p", "To be, or not", "-n", "8"];
    let more = ["-t", "2", "--ignore-eos", "-q", "-o", "run"];
    answer(folder, &[&record[..], &more].concat());
    let report = json(folder, &["report", "run", "--json"]);
    let classes = report["facts"]["classes"].as_array().unwrap();
    let counted: u64 = classes
        .iter()
        .filter(|row| row["phase"] == "generate")
        .filter(|row| ["MUL_MAT", "FLASH_ATTN_EXT"].contains(&row["op"].as_str().unwrap()))
        .map(|row| row["flops"].as_u64().unwrap())
        .sum();
    let model = gguf::Model::open(Path::new(path)).unwrap();
    let shape = estimate::Shape::from_model(&model).unwrap();
    let types = estimate::roofline::Types::stored(estimate::NumberType::from_name("f16").unwrap());
    let generated = report["facts"]["traffic"]["kv_growth"]["points"]
        .as_array()
        .unwrap();
    // The first evaluation is the prompt.
    let expected: f64 = generated[1..]
        .iter()
        .map(|point| {
            let context = point["context_tokens"].as_u64().unwrap() - 1;
            let pass = estimate::roofline::Pass::decode(1, context);
            let works = estimate::roofline::work(&shape, pass, types).unwrap();
            works.iter().map(|work| work.flops).sum::<f64>()
        })
        .sum();
    let ratio = counted as f64 / expected;
    assert!((ratio - 1.0).abs() < 0.01, "{counted} {expected}");
}
