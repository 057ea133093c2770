//! `tensorscope bench feed` as a user runs it: figures, picture, exit codes, messages.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// Larger than the memory that its runs get, and quick to read.
const MODEL: &str = "--like qwen3-0.6b --layers 9 --vocab 1000 -q -o m.gguf";
const MIXTURE: &str =
    "--like qwen3-30b-a3b --layers 2 --experts 24 --vocab 1000 --type q4_0 -q -o m.gguf";

#[test]
fn every_mode_has_its_figures_and_the_disk_is_left_as_it_was() {
    let folder = folder_with(MODEL);
    let before = read_ahead(folder.path());
    let arguments = "bench feed m.gguf --memory 45% --repeats 1 -n 3 -t 1 --json -o speed.svg";
    let output = tensorscope(folder.path(), arguments);
    let Some(outcome) = outcome(&output) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(read_ahead(folder.path()), before);
    let modes: Vec<&str> = rows(&outcome)
        .map(|row| row["mode"].as_str().unwrap())
        .collect();
    assert_eq!(modes, ["stock", "stock-best", "pin", "stream", "all"]);
    for row in rows(&outcome) {
        assert_eq!(row["memory"], "45 %");
        assert_eq!(row["identical"], true, "{row}");
        assert_eq!(row["oom_kills"], 0);
        for field in [
            "tokens_per_second",
            "speedup",
            "speedup_over_best",
            "ceiling_share",
            "first_token_seconds",
        ] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field}: {row}");
        }
        assert!(row["bytes_read_per_token"].is_number());
        let bytes = |field: &str| row[field].as_u64().unwrap();
        assert!(bytes("peak_bytes") <= bytes("limit_bytes"), "{row}");
        let is_planned = row["mode"] != "stock-best";
        assert_eq!(row["predicted_tokens_per_second"].is_number(), is_planned);
        assert_eq!(row["prediction_error"].is_number(), is_planned);
    }
    let streamed = rows(&outcome).find(|row| row["mode"] == "stream").unwrap();
    assert!(streamed["bytes_read_per_token"].as_f64().unwrap() > 1e6);
    // A share of the weights, and what is needed besides on top.
    let number = |field: &str| outcome[field].as_f64().unwrap();
    let limit = number("weight_bytes") * 0.45 + number("other_bytes");
    assert!((streamed["limit_bytes"].as_f64().unwrap() - limit).abs() < 2.0);
    assert!(outcome["stock_best"][0]["tokens_per_second"].is_number());
    assert_eq!(outcome["interrupted"], false);
    let picture = fs::read_to_string(folder.path().join("speed.svg")).unwrap();
    assert!(picture.contains(">stock-best<") && picture.contains(">45 %<"));
}

#[test]
fn experts_are_drawn_alike_and_hits_are_simulated() {
    let folder = folder_with(MIXTURE);
    let arguments =
        "bench feed m.gguf --memory 60% --repeats 1 -n 6 -t 1 -q --json --modes stock,experts,all";
    let output = tensorscope(folder.path(), arguments);
    let Some(outcome) = outcome(&output) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert_eq!(outcome["routing"], "uniform");
    assert!(
        rows(&outcome).all(|row| row["identical"] == true),
        "{outcome}"
    );
    let all = rows(&outcome).find(|row| row["mode"] == "all").unwrap();
    let share = |value: &Value| value.as_f64().unwrap_or(-1.0);
    assert!((0.0..=1.0).contains(&share(&all["hit_rate"])), "{all}");
    let simulated = &all["simulated"];
    assert!(
        share(&simulated["belady"]) >= share(&simulated["lru"]),
        "{all}"
    );
    assert!(all["hit_rate_gap"].is_number());
}

#[test]
fn bad_requests_get_one_line_and_exit_2() {
    let folder = folder_with("--like llama-2-7b --tiny -q -o m.gguf");
    let check = |arguments: &str, parts: &[&str]| {
        let output = tensorscope(folder.path(), &format!("bench feed {arguments}"));
        let talk = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {talk}");
        for part in parts {
            assert!(
                talk.contains(part),
                "{arguments}: {part:?} is not in {talk}"
            );
        }
    };
    check("m.gguf --memory 5000%", &["`5000%` is not a valid share"]);
    check("m.gguf --memory 50%,much", &["`much` is not a valid size"]);
    check("m.gguf", &["--memory"]);
    check(
        "m.gguf --memory 50% --modes turbo",
        &["`turbo` is no mode", "stock-best"],
    );
    check("m.gguf --memory 50% --modes experts", &["has no experts"]);
    check(
        "m.gguf --memory 50% --routing x",
        &["`x` is not a distribution", "router"],
    );
    check("m.gguf --memory 50% -n 1", &["1 is not in 3.."]);
    check("m.gguf --memory 50% -o p.pdf", &["p.pdf", ".svg or .png"]);
    check(
        "m.gguf --memory 50% -o no/p.svg",
        &["no/p.svg", "cannot create"],
    );
    check("m.gguf --memory 50% -o m.gguf", &["m.gguf", ".svg or .png"]);
    check(
        "none.gguf --memory 50% -o p.svg",
        &["none.gguf", "no such file"],
    );
    assert!(!folder.path().join("p.svg").exists());
}

/// On a disk, where temporary folders may lie in memory.
fn folder_with(model: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = tensorscope(folder.path(), &format!("synth {model}"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    folder
}

fn tensorscope(folder: &Path, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensorscope"))
        .current_dir(folder)
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

/// None where this machine gives us no memory cgroups.
fn outcome(output: &Output) -> Option<Value> {
    if stderr(output).contains("a memory limit") {
        assert_eq!(output.status.code(), Some(2));
        return None;
    }
    match serde_json::from_slice(&output.stdout) {
        Ok(value) => Some(value),
        Err(error) => panic!("{error}: {}", stderr(output)),
    }
}

fn rows(outcome: &Value) -> impl Iterator<Item = &Value> {
    outcome["results"].as_array().unwrap().iter()
}

/// The disk's setting, where it has one.
fn read_ahead(folder: &Path) -> Option<String> {
    let device = fs::metadata(folder).unwrap().dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    ["queue/read_ahead_kb", "../queue/read_ahead_kb"]
        .into_iter()
        .find_map(|name| fs::read_to_string(block.join(name)).ok())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
