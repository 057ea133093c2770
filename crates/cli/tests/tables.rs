//! `ingest`, `sql` and everything that is made from the tables and kept results.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use testing::{device, log, mount};
use trace::{format::Checksum, read::StreamEnd};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/shakespeare-moe.gguf"
);

fn tensorscope(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    command.current_dir(folder).args(args).output().unwrap()
}

/// What it prints; it must succeed.
fn answer(folder: &Path, args: &[&str]) -> String {
    let output = tensorscope(folder, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Expects exit code 2 and one line that holds all `parts`.
fn refused(folder: &Path, args: &[&str], parts: &[&str]) {
    let output = tensorscope(folder, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    assert!(said.starts_with("tensorscope: "), "{args:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?}: {said}");
    }
}

fn record(folder: &Path, run: &str, more: &[&str]) {
    let mut args = vec![
        "record", "-m", MODEL, "-p", "ROMEO:", "-n", "8", "-t", "1", "-q", "-o", run,
    ];
    args.extend(more);
    answer(folder, &args);
}

#[test]
fn a_recorded_run_answers_sql_at_once_and_agrees_with_its_report() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run", &[]);
    assert!(folder.join("run/tables/accesses.parquet").is_file());
    assert!(folder.join("run/analysis.json").is_file());
    let report = answer(folder, &["report", "run", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let sql = "SELECT count(*) AS n, count(DISTINCT eval) AS evals FROM accesses";
    let counted = answer(folder, &["sql", "run", sql, "--format", "csv"]);
    let expect = format!(
        "n,evals\n{},{}\n",
        report["accesses"], report["evaluations"]
    );
    assert_eq!(counted, expect);
    // Every query that a finding names runs.
    for finding in report["findings"].as_array().unwrap() {
        if let Some(sql) = finding["sql"].as_str() {
            assert!(!answer(folder, &["sql", "run", sql]).is_empty(), "{sql}");
        }
    }
}

#[test]
fn several_runs_are_one_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "a", &[]);
    record(folder, "b", &["--no-tables"]);
    assert!(!folder.join("b/tables").exists());
    let sql = "SELECT run, count(*) AS evals FROM evals GROUP BY run ORDER BY run";
    let rows = answer(folder, &["sql", "a", "b", sql, "--format", "csv"]);
    assert_eq!(rows, "run,evals\na,8\nb,8\n");
}

#[test]
fn formats_hold_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run", &[]);
    let sql = "SELECT eval, phase FROM evals WHERE eval < 2 ORDER BY eval";
    let json = answer(folder, &["sql", "run", sql, "--format", "json"]);
    let rows: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows[1], serde_json::json!({"eval": 1, "phase": "generate"}));
    assert_eq!(rows.len(), 2);
    let args = ["sql", "run", sql, "--format", "parquet", "-o", "x.parquet"];
    answer(folder, &args);
    assert!(
        fs::read(folder.join("x.parquet"))
            .unwrap()
            .starts_with(b"PAR1")
    );
    refused(folder, &args, &["x.parquet", "cannot create"]);
    answer(
        folder,
        &[
            "export",
            "run",
            "--to",
            "parquet",
            "--table",
            "nodes",
            "-o",
            "nodes.parquet",
        ],
    );
    let table = fs::read(folder.join("run/tables/nodes.parquet")).unwrap();
    assert_eq!(fs::read(folder.join("nodes.parquet")).unwrap(), table);
}

/// Two threads of a program that compute graphs: two streams, each with numbers of its own.
#[test]
fn every_format_has_the_same_columns_and_numbers_whatever_the_streams() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir_all(folder.join("run/log")).unwrap();
    log::small_stream(&folder.join("run/log"), 0, 3, StreamEnd::Closed);
    device::mixed_stream(&folder.join("run/log"), 1, 5, StreamEnd::Closed);
    for (table, sorted_by) in [
        ("devices", "device"),
        ("kernels", "eval, kernel"),
        ("copies", "copy"),
        ("tensors", "tensor"),
        ("evals", "eval"),
        ("tokens", "token"),
        ("nodes", "eval, step"),
        ("routing", "token, layer, rank"),
    ] {
        let csv = answer(folder, &["export", "run", "--table", table]);
        let sql = format!("SELECT * FROM {table} ORDER BY {sorted_by}");
        let parquet = answer(folder, &["sql", "run", &sql, "--format", "csv"]);
        assert_eq!(csv, parquet, "{table}");
        let json = answer(folder, &["export", "run", "--table", table, "--to", "json"]);
        assert_eq!(json.lines().count() + 1, csv.lines().count(), "{table}");
    }
    // Accesses of a node have no order of their own.
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[1..].sort();
        lines
    };
    let csv = sorted(answer(folder, &["export", "run", "--table", "accesses"]));
    let sql = "SELECT * FROM accesses";
    let parquet = sorted(answer(folder, &["sql", "run", sql, "--format", "csv"]));
    assert_eq!(csv, parquet);
    // Evaluations count through the run, and so do the ones that are asked for.
    let evals = |text: &str| -> Vec<String> {
        let rows = text.lines().skip(1);
        rows.map(|row| row.split(',').next().unwrap().to_owned())
            .collect()
    };
    let all = answer(folder, &["export", "run", "--table", "evals"]);
    assert_eq!(evals(&all), ["0", "1", "2", "3", "4", "5", "6", "7"]);
    let part = ["export", "run", "--table", "evals", "--evals", "2..4"];
    assert_eq!(evals(&answer(folder, &part)), ["2", "3"]);
}

/// The program for SQL and the preload library lie beside it; without them it does the rest.
#[test]
fn a_program_that_was_copied_alone_says_what_it_misses() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let alone = folder.join("alone");
    fs::create_dir(&alone).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_tensorscope"), alone.join("tensorscope")).unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(alone.join("tensorscope"));
        let output = command.current_dir(folder).args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), said)
    };
    let model = ["-m", MODEL, "-p", "ROMEO:", "-n", "4", "-t", "1"];
    let (code, said) = run(&[&["record"], &model[..], &["-o", "run"]].concat());
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("the trace is complete"), "{said}");
    assert!(said.contains("tensorscope-sql is missing"), "{said}");
    assert!(folder.join("run/analysis.json").is_file());
    assert_eq!(run(&["report", "run"]), (0, String::new()));
    for args in [
        &["sql", "run", "SELECT 1"][..],
        &["ingest", "run"],
        &["export", "run", "--to", "parquet", "-o", "x.parquet"],
    ] {
        let (code, said) = run(args);
        assert_eq!((code, said.lines().count()), (2, 1), "{args:?}: {said}");
        assert!(said.starts_with("tensorscope: tensorscope-sql is missing"));
        assert!(said.contains("cargo build --release --workspace"), "{said}");
    }
    assert!(!folder.join("x.parquet").exists());
    let (code, said) = run(&["record", "-o", "of-program", "--", "/bin/true"]);
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains("libtensorscope_agent.so is missing"),
        "{said}"
    );
    fs::write(alone.join("libtensorscope_agent.so"), "of another version").unwrap();
    let (code, said) = run(&["record", "-o", "of-program", "--", "/bin/true"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("not the library of tensorscope"), "{said}");
    assert!(!folder.join("of-program").exists());
}

#[test]
fn wrong_questions_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run", &[]);
    refused(
        folder,
        &["sql", "run", "SELECT nonsense FROM accesses"],
        &["nonsense"],
    );
    refused(folder, &["sql", "run", "DROP TABLE accesses"], &["not"]);
    refused(folder, &["sql", "run"], &["the query is missing"]);
    refused(folder, &["sql", "nowhere", "SELECT 1"], &["nowhere"]);
    refused(folder, &["ingest", "nowhere"], &["nowhere"]);
    refused(folder, &["report", "run", "-o", "x"], &["--html"]);
    refused(folder, &["report", "run", "--png"], &["-o DIR"]);
    fs::write(folder.join("run/tables/evals.parquet"), b"PAR1 not at all").unwrap();
    refused(
        folder,
        &["sql", "run", "SELECT 1"],
        &["evals.parquet", "damaged", "tensorscope ingest"],
    );
    answer(folder, &["ingest", "run"]);
    answer(folder, &["sql", "run", "SELECT 1"]);
}

#[test]
fn kept_results_are_used_only_while_they_are_of_this_log() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run", &[]);
    let fresh = answer(folder, &["report", "run"]);
    let path = folder.join("run/analysis.json");
    let kept = fs::read_to_string(&path).unwrap();
    let damaged = kept.replace("\"text\":\"", "\"text\":\"KEPT ");
    let checksum = |text: &str| {
        let results = text.split_once('\n').unwrap().1;
        format!("\"checksum\":{}", Checksum::of(results.as_bytes()).unwrap())
    };
    let other = damaged.replacen(&checksum(&kept), &checksum(&damaged), 1);
    fs::write(&path, &other).unwrap();
    assert!(answer(folder, &["report", "run"]).contains("KEPT "));
    // Of another log, damaged or unreadable: computed again, and kept.
    for stale in [
        damaged,
        other.replacen("\"log_bytes\":", "\"log_bytes\":1", 1),
        other[..200].to_owned(),
    ] {
        fs::write(&path, stale).unwrap();
        assert_eq!(answer(folder, &["report", "run"]), fresh);
        assert_eq!(fs::read_to_string(&path).unwrap(), kept);
    }
    // Another question is answered anew.
    fs::write(&path, &other).unwrap();
    assert!(!answer(folder, &["report", "run", "--gap", "1M"]).contains("KEPT "));
}

#[test]
fn a_report_is_written_as_a_page_as_text_and_as_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run", &[]);
    answer(folder, &["report", "run", "--html", "-o", "r.html"]);
    let page = fs::read_to_string(folder.join("r.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("Shakespeare MoE"));
    assert_eq!(
        answer(folder, &["report", "run", "--html"]).trim_end(),
        page.trim_end()
    );
    answer(folder, &["report", "run", "--md", "-o", "r.md"]);
    answer(folder, &["report", "run", "--png", "-o", "png"]);
    answer(folder, &["report", "run", "--svg", "-o", "svg"]);
    let names = |path: &str| {
        let entries = fs::read_dir(folder.join(path)).unwrap();
        let stem = |e: fs::DirEntry| e.path().file_stem().unwrap().to_owned();
        let mut names: Vec<_> = entries.map(|e| stem(e.unwrap())).collect();
        names.sort();
        names
    };
    assert_eq!(names("png"), names("svg"));
    assert_eq!(names("r-plots"), names("svg"));
    let text = fs::read_to_string(folder.join("r.md")).unwrap();
    for name in names("svg") {
        let link = format!("r-plots/{}.svg", name.display());
        assert!(text.contains(&link), "{link}");
    }
    refused(
        folder,
        &["report", "run", "--html", "-o", "r.html"],
        &["r.html", "exists"],
    );
    refused(
        folder,
        &["report", "run", "--html", "-o", "no/r.html"],
        &["no/r.html"],
    );
}

#[test]
fn playback_is_written_in_the_format_that_the_name_says() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run", &[]);
    let export = |name| {
        [
            "export",
            "run",
            "--to",
            "animation",
            "--tokens",
            "3-5",
            "-o",
            name,
        ]
    };
    answer(folder, &export("a.gif"));
    assert!(
        fs::read(folder.join("a.gif"))
            .unwrap()
            .starts_with(b"GIF89a")
    );
    refused(folder, &export("a.webm"), &["a.webm", ".gif"]);
    let beyond = [
        "export",
        "run",
        "--to",
        "animation",
        "--tokens",
        "900-901",
        "-o",
        "b.gif",
    ];
    refused(folder, &beyond, &["no evaluation"]);
    assert!(!folder.join("b.gif").exists());
}

#[test]
fn a_flipped_bit_in_a_table_is_named_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run", &[]);
    let path = folder.join("run/tables/evals.parquet");
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 12) {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(&path, bytes).unwrap();
        let expect = ["evals.parquet", "damaged", "tensorscope ingest run"];
        refused(
            folder,
            &["sql", "run", "SELECT count(*) FROM nodes"],
            &expect,
        );
    }
    answer(folder, &["ingest", "run"]);
    answer(folder, &["sql", "run", "SELECT count(*) FROM nodes"]);
}

#[test]
fn runs_of_any_name_answer_sql() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "a'b", &[]);
    let count = "SELECT count(*) AS n FROM evals";
    for name in ["run \n\"q", "<b>&%41", "*?[x]", "größe 🦙"] {
        record(folder, name, &[]);
        let one = answer(folder, &["sql", name, count, "--format", "csv"]);
        assert_eq!(one.lines().last(), Some("8"), "{name}");
        let both = answer(folder, &["sql", "a'b", name, count, "--format", "csv"]);
        assert_eq!(both.lines().last(), Some("16"), "{name}");
    }
}

#[test]
fn a_run_that_cannot_be_written_to_answers_sql() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let Some(disk) = mount::Mount::new(folder.join("disk"), "size=64m") else {
        return;
    };
    record(&disk.0, "run", &["--no-tables"]);
    let mut remount = Command::new("mount");
    remount.args(["-o", "remount,ro"]).arg(&disk.0);
    assert!(remount.status().unwrap().success());
    let args = [
        "sql",
        "disk/run",
        "SELECT count(*) AS n FROM evals",
        "--format",
        "csv",
    ];
    assert_eq!(answer(folder, &args).lines().last(), Some("8"));
    assert!(!disk.0.join("run/tables").exists());
}
