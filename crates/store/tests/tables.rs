//! Tables against the naive expansion of the same log.

mod naive;

use std::{fs, path::Path};

use naive::{expected_rows, table_rows};
use proptest::prelude::*;
use reader::summary::summarise;
use rundir::Run;
use store::{StoreError, TablesState, ingest, schema, tables_state};
use testing::{
    device,
    log::{self, append, body, define, small_evaluation, small_graph},
    transformer::{Shape, write_run},
};
use trace::{
    format::{Phase, RecordKind, flags},
    origin::{Origin, Source},
    read::{Evaluation, StreamEnd},
    region::{IndexOrder, Indexed, Region, Strided},
    segment::segment_path,
    template::*,
};

fn small_run(path: &Path, evaluations: u64, end: StreamEnd) -> Run {
    fs::create_dir_all(path.join("log")).unwrap();
    log::small_log(&path.join("log"), evaluations, end);
    Run::open(path).unwrap()
}

fn check_all_tables(run: &Run) {
    for name in [
        "tensors", "evals", "tokens", "nodes", "accesses", "routing", "devices", "kernels",
        "copies",
    ] {
        let expected = expected_rows(run, name);
        let rows = table_rows(run.path(), schema::table(name).unwrap());
        assert_eq!(rows, expected, "table {name}");
    }
}

#[test]
fn tables_hold_the_rows_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), 200, StreamEnd::Closed);
    let mut seen = 0;
    let report = ingest(&run, &mut |bytes| seen = bytes).unwrap();
    assert_eq!((report.corrupt.len(), report.partial), (0, 0));
    assert!(seen > 0 && seen <= run.log_bytes());
    check_all_tables(&run);
    let on_disk = |name: &str| {
        fs::metadata(folder.path().join(format!("tables/{name}.parquet")))
            .unwrap()
            .len()
    };
    for table in &report.tables {
        assert_eq!(table.bytes, on_disk(table.name), "{}", table.name);
    }
}

#[test]
fn tables_of_a_device_have_null_for_a_time_that_was_not_measured() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("log");
    fs::create_dir_all(&logs).unwrap();
    device::mixed_stream(&logs, 0, 200, StreamEnd::Closed);
    let run = Run::open(folder.path()).unwrap();
    let report = ingest(&run, &mut |_| ()).unwrap();
    assert_eq!((report.corrupt.len(), report.partial), (0, 0));
    check_all_tables(&run);
    assert_eq!(report.rows("devices"), 1);
    assert_eq!(report.rows("kernels"), 150 * 6);
    assert_eq!(report.rows("copies"), 150);
    let nodes = table_rows(run.path(), schema::table("nodes").unwrap());
    let untimed = nodes.iter().filter(|row| row.ends_with(",CUDA0,,,"));
    assert_eq!((nodes.len(), untimed.count()), (800, 400));
}

#[test]
fn columns_of_nothing_but_nulls_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("log");
    fs::create_dir_all(&logs).unwrap();
    let (definitions, templates) = device::graphs();
    let (_status, log, mut appender) = log::open(&logs, 4096);
    assert!(define(&mut appender, &definitions));
    for number in 0..20 {
        let evaluation = device::device_evaluation(number, device::Measure::Nothing);
        let body = body(&templates[1], &evaluation);
        assert!(append(&mut appender, RecordKind::Evaluation, &body));
    }
    log.finish(appender).unwrap();
    let run = Run::open(folder.path()).unwrap();
    ingest(&run, &mut |_| ()).unwrap();
    check_all_tables(&run);
}

#[test]
fn kernels_without_times_take_little_room() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("log");
    fs::create_dir_all(&logs).unwrap();
    device::mixed_stream(&logs, 0, 6_000, StreamEnd::Closed);
    let run = Run::open(folder.path()).unwrap();
    let report = ingest(&run, &mut |_| ()).unwrap();
    let kernels = report.tables.iter().find(|t| t.name == "kernels").unwrap();
    // A third of them have times.
    let (rows, bytes) = (kernels.rows, kernels.bytes);
    println!(
        "{rows} kernels in {bytes} bytes; log {} bytes",
        run.log_bytes()
    );
    assert_eq!(rows, 4_500 * 6);
    assert!(bytes < rows * 4, "{bytes} bytes for {rows} kernels");
}

#[test]
fn tables_of_a_fed_run_say_where_each_weight_was() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("log");
    fs::create_dir_all(&logs).unwrap();
    let (definitions, template) = small_graph();
    let (_status, log, mut appender) = log::open(&logs, 4096);
    assert!(define(&mut appender, &definitions));
    for number in 0..40 {
        let mut evaluation = small_evaluation(number);
        let origin = |step, expert, source, waited_nanos| Origin {
            step,
            operand: 0,
            expert,
            source,
            waited_nanos,
        };
        // Experts one by one, all at once, and evaluations that nobody fed.
        evaluation.origins = match number % 3 {
            0 => Some(vec![
                origin(2, Some((number % 8) as u16), Source::CacheHit, 0),
                origin(2, Some(((number + 3) % 8) as u16), Source::CacheMiss, 9),
            ]),
            1 => Some(vec![
                origin(0, None, Source::Pinned, 0),
                origin(2, None, Source::Streamed, 1000 + number),
            ]),
            _ => None,
        };
        let body = body(&template, &evaluation);
        assert!(append(&mut appender, RecordKind::Evaluation, &body));
    }
    log.finish(appender).unwrap();
    let run = Run::open(folder.path()).unwrap();
    ingest(&run, &mut |_| ()).unwrap();
    check_all_tables(&run);
    let rows = expected_rows(&run, "accesses").join("\n");
    for source in ["cache_hit", "cache_miss", "streamed,1001", "page_cache"] {
        assert!(rows.contains(source), "{source}");
    }
}

#[test]
fn sums_are_those_of_the_summary() {
    for experts in [None, Some((16, 4))] {
        let folder = tempfile::tempdir().unwrap();
        let written = write_run(folder.path(), Shape { layers: 3, experts }, 60_000);
        let run = Run::open(folder.path()).unwrap();
        let report = ingest(&run, &mut |_| ()).unwrap();
        let summary = summarise(&run.log_directory(), &mut |_| ()).unwrap();
        assert_eq!(report.rows("accesses"), written);
        assert_eq!(
            [
                summary.accesses,
                summary.evaluations,
                summary.steps,
                summary.routes
            ],
            ["accesses", "evals", "nodes", "routing"].map(|t| report.rows(t)),
        );
        check_all_tables(&run);
        let session = store::Session::open(&[folder.path()]).unwrap();
        let sum = |sql: &str| -> i64 {
            let mut out = Vec::new();
            store::write_query(&session, sql, store::Format::Csv, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            text.lines().nth(1).unwrap().parse().unwrap()
        };
        for (op, expected) in &summary.by_op {
            for (direction, expected) in [("read", expected.read), ("write", expected.written)] {
                for (table, count) in [
                    ("accesses", "COUNT(*)"),
                    ("traffic", "COALESCE(SUM(accesses), 0)"),
                ] {
                    let filter =
                        format!("FROM {table} WHERE op = '{op}' AND direction = '{direction}'");
                    assert_eq!(
                        sum(&format!("SELECT {count} {filter}")) as u64,
                        expected.accesses,
                        "{table} {op}"
                    );
                    assert_eq!(
                        sum(&format!("SELECT COALESCE(SUM(bytes), 0) {filter}")) as u64,
                        expected.bytes,
                        "{table} {op}"
                    );
                }
            }
        }
        let of_weights = |table: &str| {
            sum(&format!(
                "SELECT SUM(bytes) FROM {table} WHERE kind = 'weight'"
            )) as u64
        };
        let weight_bytes: u64 = summary.by_phase.values().map(|p| p.weight_bytes).sum();
        assert_eq!(
            [of_weights("accesses"), of_weights("traffic")],
            [weight_bytes; 2]
        );
        assert_eq!(
            sum("SELECT SUM(weight_bytes) FROM evals") as u64,
            weight_bytes
        );
        // Answered from statistics: they must not know values that no row has.
        let most: i64 = expected_rows(&run, "accesses")
            .iter()
            .map(|row| row.split(',').nth(17).unwrap().parse().unwrap())
            .max()
            .unwrap();
        assert_eq!(sum("SELECT MAX(bytes) FROM accesses"), most);
    }
}

#[test]
fn row_groups_that_fill_up_within_an_evaluation_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let written = write_run(
        folder.path(),
        Shape {
            layers: 32,
            experts: Some((8, 2)),
        },
        2_300_000,
    );
    let run = Run::open(folder.path()).unwrap();
    let report = ingest(&run, &mut |_| ()).unwrap();
    assert_eq!(report.rows("accesses"), written);
    // Rows are compared as hashes: the texts would take half a gigabyte each.
    let naive = naive::hash_of_expected(&run);
    assert_eq!(
        naive::hash_of_table(folder.path(), &schema::ACCESSES),
        naive
    );
}

#[test]
fn a_killed_recording_is_ingested_up_to_its_last_whole_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), 100, StreamEnd::Closed);
    // Cut the stream within its last evaluation.
    let last = log::segment_count(&run.log_directory()) - 1;
    let path = segment_path(&run.log_directory(), 0, last);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 8 * 7]).unwrap();
    let run = Run::open(folder.path()).unwrap();
    let report = ingest(&run, &mut |_| ()).unwrap();
    assert_eq!((report.rows("evals"), report.partial), (99, 1));
    check_all_tables(&run);
    let rows = table_rows(folder.path(), &schema::RUN);
    let expect = format!(",99,{},1,0,0", report.rows("accesses"));
    assert!(rows[0].ends_with(&expect), "{}", rows[0]);
}

#[test]
fn damaged_records_are_named_and_have_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), 200, StreamEnd::Closed);
    let path = segment_path(&run.log_directory(), 0, 2);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    let report = ingest(&run, &mut |_| ()).unwrap();
    assert_eq!((report.corrupt.len(), report.rows("evals")), (1, 199));
    assert!(
        report.corrupt[0].contains("0000-000002.tslog: byte "),
        "{}",
        report.corrupt[0]
    );
    check_all_tables(&run);
}

#[test]
fn a_region_that_no_table_can_hold_is_damage_and_not_a_number() {
    let folder = tempfile::tempdir().unwrap();
    let log_directory = folder.path().join("log");
    fs::create_dir(&log_directory).unwrap();
    let (mut definitions, mut template) = small_graph();
    template.steps[3].accesses[0].region = Region::Fixed(Strided::range(1 << 63, 16));
    *definitions.last_mut().unwrap() = Definition::Template(template.clone());
    let (_status, log, mut appender) = log::open(&log_directory, log::SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    assert!(append(
        &mut appender,
        RecordKind::Evaluation,
        &body(&template, &small_evaluation(0))
    ));
    log.finish(appender).unwrap();
    let report = ingest(&Run::open(folder.path()).unwrap(), &mut |_| ()).unwrap();
    assert_eq!((report.rows("evals"), report.rows("accesses")), (0, 0));
    assert_eq!(
        report.corrupt,
        ["stream 0: evaluation 0: a region of tensor inp_embd is larger than a table can say"]
    );
}

#[test]
fn ingesting_again_replaces_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), 10, StreamEnd::Closed);
    assert_eq!(tables_state(&run).unwrap(), TablesState::Missing);
    ingest(&run, &mut |_| ()).unwrap();
    assert_eq!(tables_state(&run).unwrap(), TablesState::Ready);
    fs::remove_dir_all(run.log_directory()).unwrap();
    let run = small_run(folder.path(), 20, StreamEnd::Closed);
    assert_eq!(tables_state(&run).unwrap(), TablesState::Stale);
    assert_eq!(ingest(&run, &mut |_| ()).unwrap().rows("evals"), 20);
    assert_eq!(tables_state(&run).unwrap(), TablesState::Ready);
    check_all_tables(&run);
    let left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "only log and tables: {left:?}");
}

#[test]
fn a_failed_ingest_leaves_the_old_tables() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), 10, StreamEnd::Closed);
    ingest(&run, &mut |_| ()).unwrap();
    fs::remove_file(segment_path(&run.log_directory(), 0, 0)).unwrap();
    assert!(matches!(ingest(&run, &mut |_| ()), Err(StoreError::Log(_))));
    assert_eq!(table_rows(folder.path(), &schema::EVALS).len(), 10);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

fn region(captures: u32) -> impl Strategy<Value = Region<u32>> {
    let strided = (
        0u64..5000,
        1u64..300,
        prop::collection::vec((1u64..4, 1u64..600), 0..3),
    )
        .prop_map(|(offset, run, dims)| Strided::new(offset, run, dims));
    let indexed = (
        0..captures,
        0u64..100,
        1u64..200,
        1u64..300,
        1u64..12,
        any::<bool>(),
        1u64..4,
        1u64..3,
    )
        .prop_map(
            |(capture, offset, unit_bytes, stride, bound, distinct, n0, n1)| {
                Region::Indexed(Indexed {
                    capture,
                    unit: Strided::range(offset, unit_bytes),
                    stride,
                    bound,
                    count: [n0, n1, 1],
                    outer_strides: [7, 0],
                    order: if distinct {
                        IndexOrder::DistinctAscending
                    } else {
                        IndexOrder::EachInOrder
                    },
                })
            },
        );
    prop_oneof![strided.prop_map(Region::Fixed), indexed]
}

fn template() -> impl Strategy<Value = Template> {
    let access =
        (0u32..4, 0u8..3, any::<bool>(), region(5)).prop_map(|(tensor, operand, write, region)| {
            AccessDef {
                tensor,
                operand: if write {
                    Operand::Destination
                } else {
                    Operand::Source(operand)
                },
                direction: if write {
                    Direction::Write
                } else {
                    Direction::Read
                },
                region,
            }
        });
    let step = (
        0u32..4,
        prop::option::of(0u32..3),
        prop::collection::vec(access, 0..4),
    );
    prop::collection::vec(step, 4..9).prop_map(|steps| Template {
        device: None,
        // The captures of the small graph are taken over: tokens, positions, an
        // index, expert ids and weights.
        captures: small_graph().1.captures,
        nodes: 20,
        steps: steps
            .into_iter()
            .enumerate()
            .map(|(node, (op, layer, accesses))| Step {
                node: node as u32,
                fused_nodes: 1,
                op,
                name: Name {
                    pattern: 7,
                    number: layer,
                },
                layer,
                op_is_known: true,
                accesses,
            })
            .collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn rows_are_those_of_for_each_access_on_random_logs(
        templates in prop::collection::vec(template(), 1..4),
        evaluations in prop::collection::vec((0usize..4, any::<u64>(), 0u8..3), 0..12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let log_directory = folder.path().join("log");
        fs::create_dir(&log_directory).unwrap();
        let (mut definitions, _) = small_graph();
        definitions.pop();
        definitions.extend(templates.iter().cloned().map(Definition::Template));
        let (_status, log, mut appender) = log::open(&log_directory, log::SEGMENT_BYTES);
        prop_assert!(define(&mut appender, &definitions));
        for (number, &(template, seed, phase)) in evaluations.iter().enumerate() {
            let template = template % templates.len();
            let evaluation = Evaluation {
                template: template as u32,
                phase: Phase::from_u8(phase),
                // Some steps were not executed.
                step_nanos: (0..templates[template].steps.len() as u64)
                    .map(|i| if seed >> (i % 64) & 7 == 0 { 0 } else { 1_000_000 + number as u64 * 10_000 + i })
                    .collect(),
                flags: flags::ABORTED,
                captures: small_evaluation(seed % 1000).captures,
                ..small_evaluation(number as u64)
            };
            prop_assert!(append(&mut appender, RecordKind::Evaluation, &body(&templates[template], &evaluation)));
        }
        log.finish(appender).unwrap();
        let run = Run::open(folder.path()).unwrap();
        let report = ingest(&run, &mut |_| ()).unwrap();
        prop_assert_eq!(report.rows("evals"), evaluations.len() as u64);
        check_all_tables(&run);
    }
}
