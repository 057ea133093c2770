//! Fed and recorded at once: the same output, and a trace that says where each weight was.

use std::path::Path;

use serde_json::Value;

use super::{Models, assert_same, number, run, tensorscope};

/// Of a run: bytes that weight accesses read, by where the weights were; the time waited, by
/// the accesses, by the evaluations, and by the feeder's own count.
fn origins(run: &Path) -> (std::collections::BTreeMap<String, u64>, [u64; 3]) {
    let csv = |of: &str| {
        let exported = tensorscope(&["export", run.to_str().unwrap(), "--to", of]);
        assert!(exported.status.success(), "{exported:?}");
        let mut reader = csv::Reader::from_reader(&exported.stdout[..]);
        let rows = reader.deserialize::<std::collections::HashMap<String, String>>();
        rows.map(Result::unwrap).collect::<Vec<_>>()
    };
    let mut bytes = std::collections::BTreeMap::new();
    let mut by_access = 0;
    for row in csv("csv") {
        let is_weight_read = row["kind"] == "weight" && row["direction"] == "read";
        assert_eq!(is_weight_read, !row["source"].is_empty(), "{row:?}");
        assert_eq!(is_weight_read, !row["waited_nanos"].is_empty(), "{row:?}");
        if is_weight_read {
            *bytes.entry(row["source"].clone()).or_default() +=
                row["bytes"].parse::<u64>().unwrap();
            by_access += row["waited_nanos"].parse::<u64>().unwrap();
        }
    }
    let metadata = std::fs::read(run.join("metadata.json")).unwrap();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    let counted =
        number(&metadata, "/fed/waited_nanos") + number(&metadata, "/fed/waited_for_experts_nanos");
    let log = reader::Log::new(&run.join("log"));
    struct Waited(u64);
    impl reader::Visitor for Waited {
        type Error = trace::read::ReadError;
        fn evaluation(&mut self, seen: &reader::Seen) -> Result<(), Self::Error> {
            self.0 += seen.waited_nanos().unwrap();
            Ok(())
        }
    }
    let mut by_evaluation = Waited(0);
    log.walk(&mut by_evaluation).unwrap();
    (bytes, [by_access, by_evaluation.0, counted])
}

/// Report, viewer and comparison have the same sums.
fn says_the_same(run: &Path, bytes: &std::collections::BTreeMap<String, u64>, waited: u64) {
    let path = run.to_str().unwrap();
    let text = tensorscope(&["report", path]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Weights by where they were"), "{text}");
    let json = tensorscope(&["report", path, "--json"]);
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    let rows = report["facts"]["sources"].as_array().unwrap();
    let sum = |of: &str| {
        rows.iter()
            .map(|row| row[of].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(sum("bytes"), bytes.values().sum::<u64>());
    assert_eq!(sum("waited_nanos"), waited);
    let index = index::RunIndex::open(&rundir::Run::open(run).unwrap(), &mut |_| ()).unwrap();
    let by_source = index.summary(&index::Filter::default()).by_source;
    let mut shown = std::collections::BTreeMap::new();
    for sum in &by_source {
        *shown.entry(sum.source.to_owned()).or_insert(0) += sum.bytes;
    }
    assert_eq!(&shown, bytes);
    // As a run goes, not as an alphabet does.
    let mut phases: Vec<&str> = by_source.iter().map(|sum| sum.phase).collect();
    phases.dedup();
    assert_eq!(phases, ["prompt", "generate"]);
    let mut phases: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["phase"].as_str())
        .collect();
    phases.dedup();
    assert_eq!(phases, ["prompt", "generate"]);
    let compared = tensorscope(&["compare", path, path, "--json"]);
    let compared: Value = serde_json::from_slice(&compared.stdout).unwrap();
    let phase = &compared["phases"][0]["by_source"];
    assert!(!phase.as_array().unwrap().is_empty(), "{compared}");
}

#[test]
fn fed_and_recorded_gives_the_same_and_says_where_each_weight_was() {
    let folder = tempfile::tempdir().unwrap();
    let expected_of = |sources: &[&str]| sources.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    for (name, memory, sources) in [
        (
            "dense.gguf",
            "120M",
            &["loaded", "page_cache", "pinned", "streamed"][..],
        ),
        (
            "moe.gguf",
            "120M",
            &["cache_hit", "cache_miss", "loaded", "page_cache", "pinned"][..],
        ),
    ] {
        let models = Models::new();
        let model = models.path(name);
        let recorded = folder.path().join(name);
        let feeding = ["--memory", memory, "--always"];
        let (expected, _) = run(&model, &feeding);
        let record = ["--record", recorded.to_str().unwrap()];
        let (report, _) = run(&model, &[&feeding[..], &record].concat());
        assert_same(&expected, &report);
        let weights = |report: &Value| number(report, "/shares/weight_bytes");
        assert_eq!(weights(&report), weights(&expected));
        let (bytes, [by_access, by_evaluation, counted]) = origins(&recorded);
        let found: Vec<String> = bytes.keys().cloned().collect();
        for source in expected_of(sources) {
            assert!(found.contains(&source), "{name}: {source} in {found:?}");
        }
        assert_eq!(by_access, by_evaluation, "{name}");
        says_the_same(&recorded, &bytes, by_access);
        assert!(
            by_access.abs_diff(counted) <= counted / 100,
            "{name}: {by_access} {counted}"
        );
    }
}

#[test]
fn record_can_feed_what_it_records() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = folder.path().join("run");
    let models = Models::new();
    let model = models.path("dense.gguf");
    let output = |more: &[&str]| {
        let mut args = vec!["record", "-m", &model, "-p", "To be", "-n", "6", "-t", "2"];
        args.extend(["--ubatch-size", "32", "--no-tables", "-o"]);
        args.push(recorded.to_str().unwrap());
        args.extend(more);
        tensorscope(&args)
    };
    let plain = output(&["-q"]);
    assert!(plain.status.success(), "{plain:?}");
    std::fs::remove_dir_all(&recorded).unwrap();
    let fed = output(&["--memory", "200M", "--feed=stream"]);
    let stderr = String::from_utf8(fed.stderr).unwrap();
    assert!(fed.status.success(), "{stderr}");
    assert_eq!(fed.stdout, plain.stdout);
    assert!(stderr.contains("streamed through"), "{stderr}");
    let (bytes, [by_access, _, counted]) = origins(&recorded);
    assert!(bytes["streamed"] > 10_000_000, "{bytes:?}");
    assert!(by_access.abs_diff(counted) <= counted / 100);
    let alone = output(&["--feed"]);
    let stderr = String::from_utf8(alone.stderr).unwrap();
    assert_eq!(alone.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--memory"), "{stderr}");
}

#[test]
fn a_fed_run_that_cannot_be_recorded_leaves_nothing_and_one_that_fails_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let models = Models::new();
    let model = models.path("dense.gguf");
    let recorded = |run: &Path, more: &[&str]| {
        let mut args = vec!["run", "-m", &model, "-p", "To be", "-n", "4", "-q"];
        args.extend(["--ubatch-size", "32", "--memory", "200M", "--record"]);
        args.push(run.to_str().unwrap());
        args.extend(more);
        let output = tensorscope(&args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr)
    };
    if let Some(disk) = testing::mount::Mount::new(folder.path().join("disk"), "size=1m") {
        let run = disk.0.join("run");
        let (code, stderr) = recorded(&run, &[]);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("cannot start the log"), "{stderr}");
        assert!(!run.exists());
    }
    let run = folder.path().join("run");
    let (code, stderr) = recorded(&run, &["--inject", "fail=1", "--read-with", "pread"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("dense.gguf"), "{stderr}");
    let metadata = std::fs::read_to_string(run.join("metadata.json")).unwrap();
    assert!(metadata.contains("stopped early"), "{metadata}");
}
