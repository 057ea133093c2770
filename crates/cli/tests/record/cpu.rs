//! What threads do on the processors: samples have their nodes, the time adds up, and the
//! flame graph goes from the program down to the tensor.

use reader::kernel::{Activity, Underneath};
use rundir::Run;
use serde_json::Value;

use crate::fixture::*;

#[test]
fn threads_are_seen_from_the_program_down_to_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let model = crate::underneath::model(here);
    let args = ["-p", "hello", "-n", "120", "--ignore-eos"];
    let args = [&args[..], &["--cpu", "--no-tables", "-o", "RUN"]].concat();
    let output = record(here, &model, &args);
    let talk = stderr(&output);
    if talk.contains("stacks of threads cannot be recorded") {
        println!("skipped: {talk}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{talk}");

    let run = Run::open(&here.join("RUN")).unwrap();
    let counted = run.metadata().unwrap().underneath.clone().unwrap();
    assert_eq!(counted.lost_cpu_records, Some(0));
    let below = Underneath::open(&run).unwrap().unwrap();
    let cpu = below.cpu().unwrap().unwrap();
    let inside: Vec<_> = cpu.samples.iter().filter(|s| s.at.is_some()).collect();
    assert!(inside.len() > 20, "{} of {counted:?}", inside.len());
    let computing = inside
        .iter()
        .filter(|s| cpu.activity(s) == Activity::Computing);
    let named = computing.clone().filter(|sample| {
        let innermost = cpu.stacks.innermost(sample.stack);
        innermost.is_some_and(|function| !function.name.starts_with('['))
    });
    let (named, computing) = (named.count(), computing.count());
    assert!((named + 2) * 10 >= computing * 9, "{named} of {computing}");

    let mut report = tensorscope(here);
    let report = report.args(["report", "RUN", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&report.stdout).unwrap();
    let times = json["underneath"]["time"].as_array().unwrap();
    assert!(
        times.iter().any(|time| time["phase"] == "generate"),
        "{times:?}"
    );
    for time in times {
        let part = |name: &str| time[name].as_u64().unwrap_or(0);
        let names = [
            "at_wall",
            "below_wall",
            "disk",
            "other_threads",
            "not_running",
        ];
        let sum: u64 = names.iter().map(|name| part(name)).sum();
        let sum = sum + part("host") + part("unexplained");
        assert_eq!(sum, part("nanos"), "{time}");
    }
    let mut text = tensorscope(here);
    let text = stdout(&text.args(["report", "RUN"]).output().unwrap());
    assert!(
        text.contains("Where the time of a token went: generate"),
        "{text}"
    );

    let mut folded = tensorscope(here);
    let args = ["export", "RUN", "--to", "folded", "--by", "cpu"];
    let folded = stdout(&folded.args(args).output().unwrap());
    // Which tensors are met is chance.
    let of_tensor = |line: &str| {
        let of_layer = |layer| line.contains(&format!(";layer {layer};MUL_MAT;blk.{layer}."));
        line.contains("ggml_") && line.contains(".weight ") && (0..8).any(of_layer)
    };
    assert!(folded.lines().any(of_tensor), "{folded}");
    let total: u64 = folded
        .lines()
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
        .sum();
    let sampled: u64 = cpu.samples.iter().map(|sample| sample.sampled_nanos).sum();
    assert_eq!(total, sampled);

    let query = "SELECT (SELECT count(*) FROM samples) AS samples, \
                 (SELECT sum(sampled_nanos) FROM samples) AS sampled, \
                 (SELECT count(*) FROM off_cpu) AS off, (SELECT count(*) FROM machine) AS machine, \
                 (SELECT count(*) FROM samples WHERE eval IS NOT NULL AND op IS NULL) AS without";
    let mut sql = tensorscope(here);
    let output = sql.args(["sql", "RUN", query, "--format", "csv"]).output();
    let answer = stdout(&output.unwrap());
    let (rows, off, machine) = (cpu.samples.len(), cpu.off.len(), cpu.machine.len());
    let expect = format!("{rows},{sampled},{off},{machine},0");
    assert_eq!(answer.lines().nth(1), Some(expect.as_str()), "{answer}");
}

#[test]
fn who_did_not_look_at_the_processors_is_told_how() {
    let folder = tempfile::tempdir().unwrap();
    let model = dense();
    let output = record(
        folder.path(),
        &model,
        &["-p", "To be", "-n", "2", "-o", "RUN"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut export = tensorscope(folder.path());
    let args = [
        "export",
        "RUN",
        "--to",
        "flamegraph",
        "--by",
        "cpu",
        "-o",
        "x.svg",
    ];
    let output = export.args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let talk = stderr(&output);
    assert!(talk.contains("record with `record --cpu`"), "{talk}");
    assert!(!folder.path().join("x.svg").exists());
}
