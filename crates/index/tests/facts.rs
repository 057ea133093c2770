//! Wide windows, numbers, bytes and live runs.

mod common;

use std::{fs, path::Path, sync::Arc};

use common::{Kind, Random, fixture, reference};
use index::*;
use trace::{append::Log, format::RecordKind, status::StatusPage};

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

/// A run so long that wide windows are filled from profiles and runs of steps.
fn long_run(folder: &Path) -> RunIndex {
    let kind = Kind {
        evals: 30_000,
        layers: 3,
        odd_one_in: 1000,
        ..KIND
    };
    common::write_run(folder, kind, 5);
    open(folder)
}

#[test]
fn wide_offsets_add_up_to_what_the_map_shows() {
    let folder = tempfile::tempdir().unwrap();
    let index = long_run(folder.path());
    for filter in [
        Filter::default(),
        Filter {
            experts: Some(vec![1, 3]),
            ..Filter::default()
        },
        Filter {
            layers: Some(vec![Some(1), None]),
            ..Filter::default()
        },
    ] {
        let (w, h) = (40, 25);
        let query = OffsetsQuery {
            t0: None,
            t1: None,
            o0: None,
            o1: None,
            w,
            h,
            even: 0,
        };
        let offsets = index.offsets(&query, &filter);
        assert!(offsets.header.exact.is_none(), "so many are not listed");
        // Cells of the map have whole bytes; one of its own size compares.
        let map = index.map(
            &MapQuery {
                cells: 1,
                metric: MapMetric::Bytes,
                at: None,
            },
            &filter,
        );
        let total: f64 = offsets.values.iter().map(|&v| f64::from(v)).sum();
        let expected = f64::from(map.values[0]);
        assert!(
            (total - expected).abs() < expected * 1e-3,
            "{total} is not {expected}"
        );
        let weights: u64 = index
            .summary(&filter)
            .by_tensor
            .iter()
            .map(|t| t.bytes)
            .sum();
        assert!((total - weights as f64).abs() < expected * 1e-3);
        let accesses: u64 = index
            .summary(&filter)
            .by_tensor
            .iter()
            .map(|t| t.accesses)
            .sum();
        let found = offsets.header.accesses;
        assert!(
            found.abs_diff(accesses) <= accesses / 100,
            "{found} is not about {accesses}"
        );
    }
}

#[test]
fn wide_offsets_are_those_of_narrow_windows_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let index = long_run(folder.path());
    let duration = index.info().totals.duration_nanos / 10 * 10;
    let raster = |t0, t1, w| {
        let query = OffsetsQuery {
            t0: Some(t0),
            t1: Some(t1),
            o0: None,
            o1: None,
            w,
            h: 7,
            even: 0,
        };
        index.offsets(&query, &Filter::default())
    };
    let wide = raster(0, duration, 200);
    // A column at a time has few enough accesses to be placed one by one.
    for column in [0, 77, 199] {
        let size = duration / 200;
        let narrow = raster(column * size, (column + 1) * size, 1);
        for row in 0..7 {
            let found = wide.values[row * 200 + column as usize];
            let expected = narrow.values[row];
            // Times within an evaluation are its own business in a wide window.
            assert!(
                (found - expected).abs() <= expected * 0.05 + 2000.0,
                "column {column} row {row}: {found} is not about {expected}"
            );
        }
    }
}

#[test]
fn lanes_of_a_wide_window_are_busy_for_as_long_as_their_nodes_took() {
    let folder = tempfile::tempdir().unwrap();
    let index = long_run(folder.path());
    for (filter, w) in [
        (Filter::default(), 50),
        // Columns shorter than an evaluation.
        (Filter::default(), 16_000),
        (
            Filter {
                ops: Some(vec!["MUL_MAT".into()]),
                ..Filter::default()
            },
            50,
        ),
        (
            Filter {
                experts: Some(vec![2]),
                ..Filter::default()
            },
            50,
        ),
    ] {
        let query = NodesQuery {
            t0: None,
            t1: None,
            w,
            even: 0,
        };
        let nodes = index.nodes(&query, &filter);
        let NodesHeader::Raster {
            t0,
            t1,
            lanes,
            ops,
            nodes: count,
            ..
        } = nodes.header
        else {
            panic!("too many nodes to list");
        };
        let summary = index.summary(&filter);
        assert_eq!(count, summary.totals.nodes);
        let column = (t1 - t0) as f64 / f64::from(w);
        for layer in &summary.by_layer {
            let lane = lanes.iter().position(|l| *l == layer.layer).unwrap();
            let cells = lane * w as usize..(lane + 1) * w as usize;
            let busy: f64 = nodes.values[cells.clone()]
                .iter()
                .map(|&v| f64::from(v))
                .sum();
            let (found, expected) = (busy * column, layer.nanos as f64);
            assert!(
                (found - expected).abs() < expected * 0.01,
                "{found} is not {expected}"
            );
            let is_consistent = |cell: usize| (ops[cell] >= 0) == (nodes.values[cell] > 0.0);
            assert!(
                cells.clone().all(is_consistent),
                "a cell is busy with an op"
            );
        }
    }
}

#[test]
fn numbers_are_those_of_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    let kind = Kind { streams: 2, ..KIND };
    common::write_run(folder.path(), kind, 3);
    let index = open(folder.path());
    let evals = reference::read(folder.path());
    let tokens = index.tokens(TokenWindow::default());
    assert_eq!(
        tokens.len() as u64,
        evals.iter().map(|e| e.tokens).sum::<u64>()
    );
    for token in &tokens {
        let eval = evals
            .iter()
            .find(|e| (e.first_token..e.first_token + e.tokens).contains(&token.token));
        assert_eq!(token.eval, eval.unwrap().number);
        assert_eq!(token.text.as_deref(), (token.id == 3).then_some("three"));
    }
    let query = EvalsQuery {
        from: None,
        to: None,
        max: 1000,
    };
    let listed = index.evals(&query);
    assert_eq!(listed.len(), evals.len());
    assert!(
        listed.is_sorted_by_key(|e| e.begin),
        "a run is played in order"
    );
    let played = index.eval(evals[35].number).unwrap();
    assert_eq!(played.steps.len(), evals[35].nodes.len());
    let reads = |node: &reference::Node| node.accesses.iter().filter(|a| a.is_weight).count();
    for (step, node) in played.steps.iter().zip(&evals[35].nodes) {
        assert_eq!(step.ranges.len(), reads(node), "{}", step.op);
    }
    assert!(index.eval(999_999).is_none());
}

#[test]
fn bytes_know_their_tensor_and_expert() {
    let folder = tempfile::tempdir().unwrap();
    common::write_run(folder.path(), KIND, 3);
    let index = open(folder.path());
    let info = index.info();
    assert!(info.tensors.is_sorted_by_key(|t| t.begin));
    for tensor in &info.tensors {
        let located = index.locate(tensor.begin + tensor.size_bytes - 1).unwrap();
        assert_eq!(located.name.as_ref(), Some(&tensor.name));
        assert_eq!(located.offset_in_tensor, Some(tensor.size_bytes - 1));
        if tensor.experts > 0 {
            assert_eq!(located.expert, Some(tensor.experts - 1));
        }
    }
    assert_eq!(index.locate(0).unwrap().name, None);
    assert_eq!(index.locate(info.model.size_bytes), None);
}

#[test]
fn a_live_run_grows() {
    let folder = tempfile::tempdir().unwrap();
    let log_directory = folder.path().join("log");
    fs::create_dir_all(&log_directory).unwrap();
    let status = Arc::new(StatusPage::create(&log_directory.join("status")).unwrap());
    let (log, mut appender) =
        Log::create_sized(&log_directory, 0, status.clone(), Box::new(|_| ()), 4096).unwrap();
    let (definitions, templates) = common::graphs(KIND, &[1, 3]);
    assert!(fixture::define(&mut appender, &definitions));
    let (mut random, mut nanos) = (Random(1), 1000);
    let mut add = |appender: &mut trace::append::Appender, number: u64| {
        let evaluation =
            common::evaluation(&templates[0], 0, number, &mut nanos, KIND, &mut random);
        let body = fixture::body(&templates[0], &evaluation);
        assert!(fixture::append(appender, RecordKind::Evaluation, &body));
        status.count_committed();
    };
    (0..5).for_each(|n| add(&mut appender, n));
    let mut index = open(folder.path());
    let info = index.info();
    assert!(info.live);
    assert_eq!((info.totals.evals, info.version), (5, 1));
    assert_eq!(index.refresh().unwrap().new_evals, 0);

    (5..9).for_each(|n| add(&mut appender, n));
    // And one that is under way.
    assert!(fixture::begin(&mut appender, RecordKind::Evaluation, 40));
    appender.put(9);
    let changed = index.refresh().unwrap();
    assert_eq!(
        (changed.new_evals, changed.version, changed.live),
        (4, 2, true)
    );
    let fresh = open(folder.path());
    assert_eq!(
        index.summary(&Filter::default()),
        fresh.summary(&Filter::default())
    );
    assert_eq!(index.info().totals, fresh.info().totals);
    drop((log, appender));
}
