//! Columns that are about as wide as an evaluation show no pattern that is not in the run.

mod common;

use std::path::Path;

use common::Kind;
use index::*;

const KIND: Kind = Kind {
    streams: 1,
    evals: 900,
    layers: 3,
    experts: 4,
    odd_one_in: 0,
    has_odd_access: false,
};
/// As the page asks.
const EVEN: u32 = 12;

fn written(folder: &Path, kind: Kind) -> RunIndex {
    common::write_run(folder, kind, 5);
    RunIndex::open(&rundir::Run::open(folder).unwrap(), &mut |_| ()).unwrap()
}

/// By lane, the share of each column that it is busy; and whether evaluations were spread.
fn lanes(index: &RunIndex, w: u32, even: u32) -> (Vec<Vec<f32>>, bool) {
    let query = NodesQuery {
        t0: None,
        t1: None,
        w,
        even,
    };
    let found = index.nodes(&query, &Filter::default());
    let NodesHeader::Raster { even, ops, .. } = found.header else {
        panic!("too many nodes to list");
    };
    let is_consistent = |(value, op): (&f32, &i32)| (*value > 0.0) == (*op >= 0);
    assert!(found.values.iter().zip(&ops).all(is_consistent));
    let lanes = found.values.chunks(w as usize);
    (lanes.map(<[f32]>::to_vec).collect(), even)
}

fn offsets(index: &RunIndex, w: u32, even: u32) -> Raster<OffsetsHeader> {
    let query = OffsetsQuery {
        t0: None,
        t1: None,
        o0: None,
        o1: None,
        w,
        h: 30,
        even,
    };
    index.offsets(&query, &Filter::default())
}

fn sum(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum()
}

/// Of the columns, those without anything.
fn empty(values: &[f32]) -> f64 {
    let empty = values.iter().filter(|value| **value == 0.0).count();
    empty as f64 / values.len() as f64
}

#[test]
fn nodes_leave_no_gaps_in_the_columns_of_an_evaluation() {
    // Step by step, and by runs of steps.
    for evals in [900, 30_000] {
        let folder = tempfile::tempdir().unwrap();
        let index = written(folder.path(), Kind { evals, ..KIND });
        let w = evals as u32 * 3;
        let (exact, is_even) = lanes(&index, w.min(8000), 0);
        assert!(!is_even);
        let (even, is_even) = lanes(&index, w.min(8000), EVEN);
        assert!(is_even);
        for (exact, even) in exact.iter().zip(&even) {
            // What is spread is as much as before.
            assert!((sum(exact) - sum(even)).abs() < sum(exact) * 0.01);
        }
        let worst = even.iter().map(|lane| empty(lane)).fold(0.0, f64::max);
        assert!(worst < 0.02, "{worst} of the columns are empty");
    }
}

/// Whether columns that lie side by side within one evaluation show the same.
fn are_alike(index: &RunIndex, raster: &Raster<OffsetsHeader>) -> bool {
    let OffsetsHeader { t0, t1, w, .. } = raster.header;
    let nanos = (t1 - t0) as f64 / f64::from(w);
    let evals = index.evals(&EvalsQuery {
        from: None,
        to: None,
        max: 1 << 16,
    });
    let mut pairs = 0;
    let mut alike = true;
    for eval in evals {
        let first = ((eval.begin - t0) as f64 / nanos).ceil() as usize;
        let end = ((eval.end - t0) as f64 / nanos).floor() as usize;
        for x in first..end.saturating_sub(1) {
            pairs += 1;
            alike &= raster.values.chunks(w as usize).all(|row| {
                let (a, b) = (row[x], row[x + 1]);
                (a - b).abs() <= 1e-3 * a.max(b)
            });
        }
    }
    assert!(pairs > 100, "columns are narrower than evaluations");
    alike
}

#[test]
fn offsets_are_the_same_in_all_columns_of_an_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let index = written(folder.path(), KIND);
    let [exact, even] = [0, EVEN].map(|even| offsets(&index, 2700, even));
    assert!(!exact.header.even && even.header.even);
    assert!((sum(&exact.values) - sum(&even.values)).abs() < sum(&exact.values) * 0.001);
    assert!(exact.header.accesses.abs_diff(even.header.accesses) <= 1);
    assert!(!are_alike(&index, &exact) && are_alike(&index, &even));
}

#[test]
fn evaluations_that_are_wide_enough_show_what_is_inside() {
    let folder = tempfile::tempdir().unwrap();
    let index = written(folder.path(), KIND);
    let w = KIND.evals as u32 * 15;
    let (exact, _) = lanes(&index, w, 0);
    assert_eq!(lanes(&index, w, EVEN), (exact, false));
    assert!(!offsets(&index, w, EVEN).header.even);
}
