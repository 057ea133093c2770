//! Runs in which a device computes: the index has the bytes of all steps, and the times of
//! those that were timed.

use std::{fs, path::Path};

use index::*;
use reader::summary::summarise;
use testing::device::{DEVICE_NANOS, measure_of, mixed_evaluation, mixed_stream};
use trace::read::StreamEnd;

fn open(run: &Path, evaluations: u64) -> RunIndex {
    let log = run.join("log");
    fs::create_dir_all(&log).unwrap();
    mixed_stream(&log, 0, evaluations, StreamEnd::Closed);
    RunIndex::open(&rundir::Run::open(run).unwrap(), &mut |_| ()).unwrap()
}

#[test]
fn sums_are_those_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let index = open(folder.path(), 400);
    let summary = index.summary(&Filter::default());
    let expected = summarise(&folder.path().join("log"), &mut |_| ()).unwrap();
    assert_eq!(summary.totals.nodes, expected.steps);
    assert_eq!(summary.totals.accesses, expected.accesses);
    let bytes: u64 = expected.by_kind.values().map(|t| t.bytes).sum();
    assert_eq!(summary.totals.bytes, bytes);
    for of in &summary.by_op {
        let op = &expected.by_op[&of.op];
        assert_eq!((of.nodes, of.nanos), (op.steps, op.nanos), "{}", of.op);
    }
    let info = index.info();
    for of in &info.phases {
        assert_eq!(of.nanos, expected.by_phase[of.phase].nanos, "{}", of.phase);
    }
}

#[test]
fn a_step_of_a_device_is_where_it_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let index = open(folder.path(), 8);
    let origin = mixed_evaluation(0).begin_nanos;
    for number in 1..4 {
        let begin = mixed_evaluation(number).begin_nanos - origin;
        let eval = index.eval(number).unwrap();
        let steps: Vec<(u64, u64)> = eval
            .steps
            .iter()
            .map(|step| (step.begin - begin, step.end - begin))
            .collect();
        let end = match number {
            // Up to its end, what each had for itself.
            1 => {
                let expected = [(600, 1_000), (1_000, 1_500), (1_600, 2_900), (3_000, 4_000)];
                assert_eq!(steps, expected);
                DEVICE_NANOS.1
            }
            // No time, and no place in it: not spread over the evaluation.
            2 => {
                assert_eq!(steps, [(0, 0); 4]);
                DEVICE_NANOS.1
            }
            _ => {
                assert_eq!(steps, [(0, 0); 4]);
                500
            }
        };
        assert_eq!(
            (eval.begin, eval.end),
            (begin, begin + end),
            "{:?}",
            measure_of(number)
        );
    }
}
