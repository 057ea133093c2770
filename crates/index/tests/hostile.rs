//! Damaged and hostile logs: no question panics, and nothing takes all memory.

mod common;

use std::{fs, path::Path};

use common::{Kind, Random, fixture, reference};
use index::*;
use trace::{
    format::RecordKind,
    region::{IndexOrder, Indexed, Region, Strided},
    template::*,
};

const KIND: Kind = Kind {
    streams: 1,
    evals: 30,
    layers: 2,
    experts: 4,
    odd_one_in: 0,
    has_odd_access: false,
};

fn open(run: &Path) -> RunIndex {
    RunIndex::open(&rundir::Run::open(run).unwrap(), &mut |_| ()).unwrap()
}

#[test]
fn damage_is_named_and_the_rest_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let kind = Kind { evals: 300, ..KIND };
    common::write_run(folder.path(), kind, 9);
    let segments: Vec<_> = fs::read_dir(folder.path().join("log"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.file_name().unwrap() != "status")
        .collect();
    let mut random = Random(2);
    for _ in 0..60 {
        let path = &segments[random.below(segments.len() as u64) as usize];
        let whole = fs::read(path).unwrap();
        let mut bytes = whole.clone();
        let at = 64 + random.below(bytes.len() as u64 - 64) as usize;
        bytes[at] ^= 1 << random.below(8);
        fs::write(path, &bytes).unwrap();
        let run = rundir::Run::open(folder.path()).unwrap();
        if let Ok(index) = RunIndex::open(&run, &mut |_| ()) {
            let info = index.info();
            let evals = reference::read(folder.path()).len() as u64;
            assert_eq!(info.totals.evals, evals);
            if evals < 300 {
                assert!(!info.missing.is_empty());
            }
            ask_everything(&index);
        }
        fs::write(path, &whole).unwrap();
    }
}

/// Whatever the index holds, no question may panic.
fn ask_everything(index: &RunIndex) {
    for filter in [
        Filter::default(),
        Filter {
            experts: Some(vec![0, 65_535, u32::MAX]),
            tokens: Some((0, u64::MAX)),
            ..Filter::default()
        },
        Filter {
            components: Some(vec!["expert".into(), "?".into()]),
            layers: Some(vec![None, Some(u32::MAX)]),
            ..Filter::default()
        },
    ] {
        index.summary(&filter);
        index.flame(FlameBy::Bytes, &filter);
        index.flame(FlameBy::Nanos, &filter);
        index.experts(&filter);
        for rows in [RowKind::Layer, RowKind::Tensor, RowKind::Expert] {
            for metric in [
                HeatmapMetric::Bytes,
                HeatmapMetric::Accesses,
                HeatmapMetric::Nanos,
                HeatmapMetric::Weight,
            ] {
                let window = TokenWindow {
                    from: Some(1),
                    to: Some(u64::MAX),
                };
                let query = HeatmapQuery {
                    rows,
                    metric,
                    window,
                    columns: 9,
                };
                let _ = index.heatmap(&query, &filter);
            }
        }
        for (t0, t1, o0, o1) in [
            (None, None, None, None),
            (Some(u64::MAX), Some(0), Some(u64::MAX), Some(0)),
            (Some(0), Some(u64::MAX), Some(0), Some(u64::MAX)),
        ] {
            let query = OffsetsQuery {
                t0,
                t1,
                o0,
                o1,
                w: 5,
                h: 5,
                even: 0,
            };
            index.offsets(&query, &filter);
            index.nodes(
                &NodesQuery {
                    t0,
                    t1,
                    w: 5,
                    even: 3,
                },
                &filter,
            );
        }
        for metric in [MapMetric::Accesses, MapMetric::Bytes, MapMetric::Recency] {
            for at in [None, Some(0), Some(u64::MAX)] {
                let query = MapQuery {
                    cells: 33,
                    metric,
                    at,
                };
                index.map(&query, &filter);
            }
        }
    }
    index.info();
    index.locate(u64::MAX);
    index.tokens(TokenWindow {
        from: Some(u64::MAX),
        to: Some(0),
    });
    for brief in index.evals(&EvalsQuery {
        from: None,
        to: None,
        max: 20,
    }) {
        index.eval(brief.eval);
    }
}

#[test]
fn a_hostile_log_neither_panics_nor_takes_all_memory() {
    let huge = u64::MAX / 4;
    let fixed = |offset, bytes| Region::Fixed(Strided::range(offset, bytes));
    let indexed = |capture, unit: Strided, stride, bound, count, order| {
        Region::Indexed(Indexed {
            capture,
            unit,
            stride,
            bound,
            count,
            outer_strides: [0, 0],
            order,
        })
    };
    let each = IndexOrder::EachInOrder;
    let distinct = IndexOrder::DistinctAscending;
    let regions = [
        fixed(0, huge),
        fixed(huge, huge),
        Region::Fixed(Strided::new(0, 1, [(1 << 40, 2), (1 << 20, 1 << 50)])),
        indexed(0, Strided::range(0, 100), 1 << 40, 1 << 20, [1, 1, 1], each),
        indexed(0, Strided::range(0, 8), 8, 10, [1 << 40, 1, 1], each),
        indexed(1, Strided::range(0, 100), 100, 65_535, [2, 1, 1], distinct),
        indexed(1, Strided::range(0, 100), 100, 1 << 30, [2, 1, 1], distinct),
        indexed(1, Strided::EMPTY, 0, 70_000, [2, 1, 1], each),
        indexed(
            0,
            Strided::range(0, 100),
            0,
            u64::MAX / 2,
            [1, 1, 1],
            distinct,
        ),
    ];
    for (number, region) in regions.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let log_directory = folder.path().join("log");
        fs::create_dir_all(&log_directory).unwrap();
        let (_status, log, mut appender) = fixture::open(&log_directory, 4096);
        let kind = Kind { layers: 1, ..KIND };
        let (mut definitions, mut templates) = common::graphs(kind, &[1]);
        let template = &mut templates[0];
        // Captures: 0 tokens, 1 expert ids.
        template.captures.swap(1, 4);
        template.steps.truncate(1);
        for capture in &mut template.captures {
            if let CaptureTime::Step(step) = &mut capture.time {
                *step = 0;
            }
            capture.pair = capture.pair.map(|_| 1);
            capture.layer = capture.layer.map(|_| u32::MAX);
        }
        template.steps[0].layer = Some(u32::MAX);
        template.steps[0].accesses[0].region = region;
        for definition in &mut definitions {
            match definition {
                Definition::Template(t) => *t = template.clone(),
                Definition::Tensor(t) if number % 2 == 1 => {
                    t.place = t.place.map(|_| FilePlace {
                        file: u32::MAX,
                        file_offset: u64::MAX,
                    });
                }
                _ => {}
            }
        }
        assert!(fixture::define(&mut appender, &definitions));
        let (mut random, mut nanos) = (Random(1), u64::MAX / 2);
        for number in [0, 3, u64::MAX - 1] {
            let mut evaluation =
                common::evaluation(template, 0, number, &mut nanos, kind, &mut random);
            // 16 bits in the log.
            evaluation.captures[1] = vec![65_534, 65_535];
            let body = fixture::body(template, &evaluation);
            assert!(fixture::append(
                &mut appender,
                RecordKind::Evaluation,
                &body
            ));
        }
        log.finish(appender).unwrap();
        ask_everything(&open(folder.path()));
    }
}

#[test]
fn an_empty_log_has_empty_answers() {
    let folder = tempfile::tempdir().unwrap();
    common::write_run(folder.path(), Kind { evals: 0, ..KIND }, 1);
    let index = open(folder.path());
    assert_eq!(index.info().totals, RunTotals::default());
    ask_everything(&index);
}
