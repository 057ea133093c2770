//! The program as `tensorscope` starts it.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use testing::transformer::{Shape, write_run};

const SHAPE: Shape = Shape {
    layers: 2,
    experts: None,
};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tensorscope-sql"))
}

/// Asks one process all of this; its answers, line by line.
fn answers(run: &Path, requests: &[&str]) -> Vec<Value> {
    let mut process = program()
        .arg("answer")
        .arg(run)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let answers = requests
        .iter()
        .map(|request| {
            writeln!(input, "{request}").unwrap();
            serde_json::from_str(&output.next().unwrap().unwrap()).unwrap()
        })
        .collect();
    drop(input);
    assert!(process.wait().unwrap().success());
    answers
}

#[test]
fn queries_are_answered_line_by_line_and_wrong_ones_do_not_end_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    write_run(&run, SHAPE, 5000);
    let count = r#"{"query": "SELECT count(*) AS n FROM evals", "rows": 10}"#;
    let answers = answers(
        &run,
        &[
            count,
            r#"{"query": "SELECT nonsense FROM evals", "rows": 10}"#,
            "not JSON",
            r#"{"query": "SELECT eval FROM evals ORDER BY eval", "rows": 1}"#,
            count,
        ],
    );
    assert_eq!(
        answers[0]["columns"],
        json!([{"name": "n", "type": "Int64"}])
    );
    assert!(
        answers[0]["rows"][0][0].as_u64().unwrap() > 1,
        "{}",
        answers[0]
    );
    assert!(answers[1]["error"].as_str().unwrap().contains("nonsense"));
    assert!(answers[2]["error"].is_string());
    assert_eq!(answers[3]["rows"], json!([[0]]));
    assert_eq!(answers[3]["is_cut"], json!(true));
    assert_eq!(answers[4], answers[0]);
    // Tables were made for the first query.
    assert!(run.join("tables/evals.parquet").is_file());
}

#[test]
fn tables_are_prepared_once_and_exported_whole_or_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    write_run(&run, SHAPE, 5000);
    let prepare = || {
        program()
            .arg("prepare")
            .arg(&run)
            .arg("-q")
            .status()
            .unwrap()
    };
    assert!(prepare().success());
    let table = run.join("tables/nodes.parquet");
    let made = std::fs::metadata(&table).unwrap().modified().unwrap();
    assert!(prepare().success());
    assert_eq!(std::fs::metadata(&table).unwrap().modified().unwrap(), made);
    let export = |more: &[&str]| {
        let mut command = program();
        command
            .arg("export-table")
            .arg(&run)
            .arg("nodes")
            .args(more);
        command.output().unwrap()
    };
    let whole = export(&[]);
    assert!(whole.status.success());
    assert_eq!(whole.stdout, std::fs::read(&table).unwrap());
    let part = export(&["--from", "0", "--to", "1"]);
    assert!(part.status.success());
    assert!(part.stdout.starts_with(b"PAR1"));
    assert_ne!(part.stdout, whole.stdout);
}

#[test]
fn messages_and_help_are_those_of_the_program_that_users_type() {
    let help = program().args(["sql", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("Usage: tensorscope sql "), "{help}");
    assert!(help.contains("Examples:"), "{help}");
    let nowhere = program().args(["ingest", "nowhere"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(2));
    let said = String::from_utf8(nowhere.stderr).unwrap();
    assert!(said.starts_with("tensorscope: nowhere"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// Killed right after it has sent its query: before we came to ask who our parent is.
#[test]
fn a_query_ends_with_the_one_who_asked_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    write_run(&run, SHAPE, 5000);
    let endless = "SELECT sum(a.bytes * b.bytes + c.bytes) FROM accesses a, accesses b, accesses c";
    // A process that we are not.
    let mut process = program()
        .arg("answer")
        .arg(&run)
        .args(["--asker", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let request = json!({"query": endless, "rows": 10});
    writeln!(process.stdin.take().unwrap(), "{request}").unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}
