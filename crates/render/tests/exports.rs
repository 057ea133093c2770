//! Every export of the golden log of crate `trace`, byte for byte, and of random
//! logs against the sums of `reader::summary`.
//!
//! `TENSORSCOPE_BLESS=1 cargo test -p render` rewrites the golden files; read the
//! difference before you commit it.

mod golden;

use std::{fs, path::Path};

use golden::{check_golden, device_log, golden_log};
use proptest::{collection::vec, prelude::*};
use reader::summary::{Summary, summarise};
use render::{
    Log, Measure, Stats, flamegraph,
    folded::{self, Folded},
    perfetto,
    rows::{Format, Table, write_rows},
};
use serde_json::Value;
use testing::{device, log};
use trace::{
    format::{Phase, RecordKind, flags},
    read::{Evaluation, StreamEnd},
};

const TITLE: &str = "a <small> model";

/// What an export writes into memory.
fn written(
    write: impl FnOnce(&mut Vec<u8>) -> Result<Stats, render::RenderError>,
) -> (Vec<u8>, Stats) {
    let mut out = Vec::new();
    let stats = write(&mut out).unwrap();
    (out, stats)
}

fn perfetto_of(log: &Log) -> (Vec<u8>, Stats) {
    let options = perfetto::Options {
        title: TITLE.into(),
    };
    written(|out| perfetto::write(log, &options, out))
}

#[test]
fn every_format_is_written_byte_for_byte() {
    let log = Log::new(&golden_log());
    check_golden("perfetto.json", &perfetto_of(&log).0);
    for (measure, name) in [(Measure::Bytes, "bytes"), (Measure::Time, "time")] {
        let folded = written(|out| folded::write(&log, measure, out)).0;
        check_golden(&format!("folded-{name}.txt"), &folded);
        let svg = written(|out| flamegraph::write(&log, measure, TITLE, out)).0;
        check_golden(&format!("flamegraph-{name}.svg"), &svg);
    }
    for table in Table::ALL {
        let csv = written(|out| write_rows(&log, table, Format::Csv, out)).0;
        check_golden(&format!("{}.csv", table.name()), &csv);
        let json = written(|out| write_rows(&log, table, Format::Json, out)).0;
        check_golden(&format!("{}.jsonl", table.name()), &json);
    }
}

#[test]
fn what_a_device_did_is_written_byte_for_byte() {
    let log = Log::new(&device_log());
    check_golden("device-perfetto.json", &perfetto_of(&log).0);
    let folded = written(|out| folded::write(&log, Measure::Time, out)).0;
    check_golden("device-folded-time.txt", &folded);
    for table in [
        Table::Tensors,
        Table::Evals,
        Table::Nodes,
        Table::Devices,
        Table::Kernels,
        Table::Copies,
    ] {
        let csv = written(|out| write_rows(&log, table, Format::Csv, out)).0;
        check_golden(&format!("device-{}.csv", table.name()), &csv);
    }
}

/// Slices of a track of trace events must lie one behind the other or one in the other.
#[test]
fn slices_of_a_track_do_not_cross() {
    let directory = tempfile::tempdir().unwrap();
    device::mixed_stream(directory.path(), 0, 40, StreamEnd::Closed);
    let (json, _) = perfetto_of(&Log::new(directory.path()));
    let json: Value = serde_json::from_slice(&json).unwrap();
    let nanos = |value: &Value| (value.as_f64().unwrap() * 1000.0).round() as u64;
    let mut tracks: std::collections::BTreeMap<u64, Vec<(u64, u64)>> = Default::default();
    for event in json["traceEvents"].as_array().unwrap() {
        if event["ph"] == "X" {
            let begin = nanos(&event["ts"]);
            let track = tracks.entry(event["tid"].as_u64().unwrap()).or_default();
            track.push((begin, begin + nanos(&event["dur"])));
        }
    }
    assert_eq!(
        tracks.len(),
        5,
        "evaluations, nodes, copies, and two of the device"
    );
    for (track, slices) in tracks {
        for (at, a) in slices.iter().enumerate() {
            for b in &slices[at + 1..] {
                let is_apart = a.1 <= b.0 || b.1 <= a.0;
                let is_inside = (a.0 <= b.0 && b.1 <= a.1) || (b.0 <= a.0 && a.1 <= b.1);
                assert!(is_apart || is_inside, "track {track}: {a:?} and {b:?}");
            }
        }
    }
}

#[test]
fn rows_are_the_same_in_both_formats() {
    for (log, table) in [golden_log(), device_log()]
        .iter()
        .flat_map(|log| Table::ALL.map(|table| (Log::new(log), table)))
    {
        let (csv, stats) = written(|out| write_rows(&log, table, Format::Csv, out));
        let (json, _) = written(|out| write_rows(&log, table, Format::Json, out));
        let mut reader = csv::Reader::from_reader(csv.as_slice());
        let columns: Vec<&str> = table.schema().column_names().collect();
        assert_eq!(reader.headers().unwrap(), columns);
        let objects: Vec<Value> = serde_json::Deserializer::from_slice(&json)
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(objects.len() as u64, stats.written);
        let mut rows = 0;
        for (record, object) in reader.records().zip(&objects) {
            for (field, (column, value)) in record.unwrap().iter().zip(object.as_object().unwrap())
            {
                let text = match value {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                assert_eq!(field, text, "{}.{column}", table.name());
            }
            rows += 1;
        }
        assert_eq!(rows, stats.written, "{}", table.name());
    }
}

#[test]
fn a_part_of_the_log_keeps_its_numbers() {
    let log = Log::new(&golden_log()).with_evals(1..2);
    let (csv, stats) = written(|out| write_rows(&log, Table::Tokens, Format::Csv, out));
    assert_eq!((stats.evaluations, stats.written), (1, 2));
    let csv = String::from_utf8(csv).unwrap();
    let first_token = csv.lines().nth(1).unwrap();
    assert!(first_token.starts_with("2,1,generate,8,"), "{first_token}");
}

#[test]
fn damage_is_named_and_the_rest_exported() {
    let directory = tempfile::tempdir().unwrap();
    log::small_log(directory.path(), 40, StreamEnd::Closed);
    let segment = trace::segment::segment_path(directory.path(), 0, 1);
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    fs::write(&segment, bytes).unwrap();
    let log = Log::new(directory.path());
    let (json, stats) = perfetto_of(&log);
    assert!(!stats.damaged.is_empty() && stats.evaluations < 40 && stats.evaluations > 0);
    assert!(
        stats.damaged[0].contains("0000-000001.tslog: byte "),
        "{}",
        stats.damaged[0]
    );
    serde_json::from_slice::<Value>(&json).unwrap();
    // The same for everybody: none of the formats hides it.
    let (_, folded) = Folded::of(&log, Measure::Bytes).unwrap();
    assert_eq!(folded.damaged, stats.damaged);
}

#[test]
fn a_full_disk_is_an_error() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::new(&golden_log());
    let results = [
        perfetto::write(&log, &perfetto::Options::default(), &mut Full),
        folded::write(&log, Measure::Time, &mut Full),
        flamegraph::write(&log, Measure::Time, TITLE, &mut Full),
        write_rows(&log, Table::Accesses, Format::Csv, &mut Full),
        write_rows(&log, Table::Accesses, Format::Json, &mut Full),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert!(matches!(error, render::RenderError::Write(_)) && !error.is_closed_pipe());
    }
}

/// Evaluations of the small graph with random phases, experts and times; some
/// stopped before their end.
fn evaluations() -> impl Strategy<Value = Vec<Evaluation>> {
    let evaluation = (0u8..3, vec(0i64..10, 4), vec(0u64..5_000, 4), 0usize..6);
    vec(evaluation, 0..12).prop_map(|all| {
        let mut now = 1_000_000;
        let make = |(number, (phase, experts, nanos, executed)): (
            u64,
            (u8, Vec<i64>, Vec<u64>, usize),
        )| {
            let mut evaluation = log::small_evaluation(number);
            evaluation.phase = Phase::from_u8(phase);
            evaluation.begin_nanos = now;
            for (step, nanos) in nanos.into_iter().enumerate() {
                now += nanos;
                evaluation.step_nanos[step] = if step < executed { now } else { 0 };
            }
            now += 100;
            evaluation.end_nanos = now;
            evaluation.captures[3] = experts;
            if executed < 4 {
                evaluation.flags = flags::ABORTED;
                evaluation.captures[4] = vec![0; 4];
            }
            if executed < 3 {
                evaluation.captures[3] = vec![0; 4];
            }
            evaluation
        };
        (0..).zip(all).map(make).collect()
    })
}

fn write_log(directory: &Path, evaluations: &[Evaluation]) {
    let (definitions, template) = log::small_graph();
    let (_status, log, mut appender) = log::open(directory, log::SEGMENT_BYTES);
    assert!(log::define(&mut appender, &definitions));
    for evaluation in evaluations {
        let body = log::body(&template, evaluation);
        assert!(log::append(&mut appender, RecordKind::Evaluation, &body));
    }
    log.finish(appender).unwrap();
}

fn total_bytes(summary: &Summary) -> u64 {
    summary.by_kind.values().map(|traffic| traffic.bytes).sum()
}

fn total_nanos(summary: &Summary) -> u64 {
    summary.by_op.values().map(|op| op.nanos).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_export_adds_up_to_the_summary(evaluations in evaluations()) {
        let directory = tempfile::tempdir().unwrap();
        write_log(directory.path(), &evaluations);
        let summary = summarise(directory.path(), &mut |_| ()).unwrap();
        let log = Log::new(directory.path());

        let (bytes, stats) = Folded::of(&log, Measure::Bytes).unwrap();
        prop_assert_eq!(bytes.total(), total_bytes(&summary));
        prop_assert_eq!((stats.evaluations, stats.steps), (summary.evaluations, summary.steps));
        let (time, _) = Folded::of(&log, Measure::Time).unwrap();
        prop_assert_eq!(time.total(), total_nanos(&summary));

        let lines = String::from_utf8(written(|out| folded::write(&log, Measure::Bytes, out)).0).unwrap();
        let sum: u64 = lines.lines().map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
        prop_assert_eq!(sum, total_bytes(&summary));

        check_perfetto(&perfetto_of(&log), &summary)?;
        let accesses = written(|out| write_rows(&log, Table::Accesses, Format::Csv, out));
        prop_assert_eq!(accesses.1.written, summary.accesses);
        let nodes = written(|out| write_rows(&log, Table::Nodes, Format::Csv, out));
        prop_assert_eq!(nodes.1.written, summary.steps);
        let routing = written(|out| write_rows(&log, Table::Routing, Format::Csv, out));
        prop_assert_eq!(routing.1.written, summary.routes);
    }
}

fn check_perfetto(
    (json, stats): &(Vec<u8>, Stats),
    summary: &Summary,
) -> Result<(), TestCaseError> {
    let document: Value = serde_json::from_slice(json).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    prop_assert_eq!(events.len() as u64, stats.written);
    let count = |track: u64, keep: &dyn Fn(&Value) -> bool| {
        let on_track = |e: &&Value| e["ph"] == "X" && e["tid"] == track && keep(e);
        events.iter().filter(on_track).count() as u64
    };
    prop_assert_eq!(count(1, &|_| true), summary.evaluations);
    prop_assert_eq!(count(2, &|e| e["cat"] != "layer"), summary.steps);
    let counted = |name: &str| -> u64 {
        let of_name = events
            .iter()
            .filter(|e| e["ph"] == "C" && e["name"] == name);
        of_name.map(|e| e["args"]["bytes"].as_u64().unwrap()).sum()
    };
    let weights: u64 = summary
        .by_phase
        .values()
        .map(|phase| phase.weight_bytes)
        .sum();
    prop_assert_eq!(counted("weight bytes read"), weights);
    let tensors = events
        .iter()
        .filter_map(|e| e["args"]["tensors"].as_array())
        .flatten();
    let bytes: u64 = tensors.map(|t| t["bytes"].as_u64().unwrap()).sum();
    prop_assert_eq!(bytes, total_bytes(summary));
    Ok(())
}
