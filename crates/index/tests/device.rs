//! Runs in which a device computes: the index has the bytes of all steps, and the times of
//! those that were timed.

use std::{fs, path::Path};

use index::*;
use reader::summary::summarise;
use testing::{
    device::{
        DEVICE, DEVICE_NANOS, KERNEL_NANOS, graphs, measure_of, mixed_evaluation, mixed_stream,
    },
    log::{SEGMENT_BYTES, append, body, define, open_stream},
};
use trace::{
    format::RecordKind,
    read::StreamEnd,
    template::{CaptureKind, Definition},
};

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

#[test]
fn a_filter_by_device_keeps_what_that_device_computed() {
    let folder = tempfile::tempdir().unwrap();
    let index = open(folder.path(), 400);
    assert_eq!(index.info().devices, ["CPU", DEVICE]);
    let of = |devices: &[&str]| {
        let devices = devices.iter().map(|&name| name.to_owned());
        let filter = Filter {
            devices: Some(devices.collect()),
            ..Filter::default()
        };
        index.summary(&filter).totals
    };
    let all = index.summary(&Filter::default()).totals;
    let (processor, device) = (of(&["CPU"]), of(&[DEVICE]));
    let on_device = (0..400).filter(|&n| mixed_evaluation(n).device.is_some());
    assert_eq!(device.evals, on_device.count() as u64);
    assert!(device.bytes > 0 && processor.bytes > 0);
    assert_eq!(processor.evals + device.evals, all.evals);
    assert_eq!(processor.nodes + device.nodes, all.nodes);
    assert_eq!(processor.bytes + device.bytes, all.bytes);
    assert_eq!(processor.nanos + device.nanos, all.nanos);
    assert_eq!(of(&["CPU", DEVICE]), all);
    assert_eq!(of(&["CUDA7"]).evals, 0);
}

/// llama.cpp gives tokens to the first part of a graph; what a device computes is mostly a
/// later one.
#[test]
fn a_part_without_tokens_computes_those_of_the_part_before() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    fs::create_dir_all(&log).unwrap();
    let (mut definitions, mut templates) = graphs();
    let on_device = definitions
        .iter_mut()
        .filter_map(|definition| match definition {
            Definition::Template(template) if template.device.is_some() => Some(template),
            _ => None,
        });
    for template in on_device.chain([&mut templates[1]]) {
        for capture in &mut template.captures {
            if capture.kind == CaptureKind::Tokens {
                capture.kind = CaptureKind::Index;
            }
        }
    }
    let (_status, stream, mut appender) = open_stream(&log, 0, SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    for number in 0..40 {
        let mut evaluation = mixed_evaluation(number);
        if evaluation.device.is_some() {
            evaluation.sequences.clear();
            evaluation.token_phases.clear();
        }
        let words = body(&templates[evaluation.template as usize], &evaluation);
        assert!(append(&mut appender, RecordKind::Evaluation, &words));
    }
    stream.finish(appender).unwrap();
    let index = RunIndex::open(&rundir::Run::open(folder.path()).unwrap(), &mut |_| ()).unwrap();
    // One of four evaluations is the processor's, and has two tokens.
    assert_eq!(index.info().totals.tokens, 20);
    let of = |first, last, devices: Option<&str>| Filter {
        tokens: Some((first, last)),
        devices: devices.map(|name| vec![name.to_owned()]),
        ..Filter::default()
    };
    let second = index.summary(&of(2, 3, None)).totals;
    assert_eq!((second.evals, second.tokens), (4, 2));
    // Three parts of each graph are the device's: their tokens count once.
    let device = index.summary(&of(0, 19, Some(DEVICE))).totals;
    assert_eq!((device.evals, device.tokens), (30, 20));
    let evals = index.evals(&EvalsQuery {
        from: Some(4),
        to: Some(7),
        max: 10,
    });
    assert!(evals.iter().all(|e| (e.first_token, e.tokens) == (2, 2)));
    let texts = index.eval(6).unwrap().tokens;
    assert_eq!(texts.iter().map(|t| t.token).collect::<Vec<_>>(), [2, 3]);
    // The bytes of a token are those of all parts.
    let query = HeatmapQuery {
        rows: RowKind::Layer,
        metric: HeatmapMetric::Bytes,
        window: TokenWindow::default(),
        columns: 1,
    };
    let bytes = |filter: &Filter| {
        let raster = index.heatmap(&query, filter).unwrap();
        raster.values.iter().map(|v| f64::from(*v)).sum::<f64>()
    };
    for (first, last) in [(2, 3), (0, 19)] {
        for device in [None, Some(DEVICE)] {
            let filter = of(first, last, device);
            let per_token = index.summary(&filter).totals.bytes / (last - first + 1);
            assert_eq!(bytes(&filter), per_token as f64);
        }
    }
}

fn lanes(
    index: &RunIndex,
    filter: &Filter,
    window: Option<(u64, u64)>,
    w: u32,
) -> Raster<LanesHeader> {
    let query = LanesQuery {
        t0: window.map(|window| window.0),
        t1: window.map(|window| window.1),
        w,
    };
    index.lanes(&query, filter)
}

#[test]
fn a_lane_shows_each_kernel_that_was_timed_and_no_other_time() {
    let folder = tempfile::tempdir().unwrap();
    let index = open(folder.path(), 8);
    let answer = lanes(&index, &Filter::default(), None, 100);
    let kinds = answer.header.lanes.iter().map(|lane| lane.kind);
    let expected = [LaneKind::Processor, LaneKind::Device, LaneKind::ToDevice];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    assert!(answer.values.is_empty());
    let spans = answer.header.spans.unwrap();
    let times: Vec<LaneTimes> = spans.evals.iter().map(|eval| eval.times).collect();
    let four = [
        LaneTimes::Nodes,
        LaneTimes::Kernels,
        LaneTimes::Evaluation,
        LaneTimes::Call,
    ];
    assert_eq!(times, [four, four].concat());
    let begin = |number| mixed_evaluation(number).begin_nanos - mixed_evaluation(0).begin_nanos;
    let kernels: Vec<(u64, u64)> = spans
        .work
        .iter()
        .filter(|work| work.eval == 1)
        .map(|work| (work.begin - begin(1), work.end - begin(1)))
        .collect();
    assert_eq!(kernels, KERNEL_NANOS);
    let names = spans.work.iter().filter_map(|work| work.kernel.as_deref());
    assert_eq!(names.clone().next(), Some("k_get_rows_float"));
    assert_eq!(names.count(), 2 * KERNEL_NANOS.len());
    assert!(
        spans
            .work
            .iter()
            .all(|work| [0, 1, 4, 5].contains(&work.eval))
    );
    let measured = &spans.evals[1];
    let device = (begin(1) + DEVICE_NANOS.0, begin(1) + DEVICE_NANOS.1);
    assert_eq!((measured.begin, measured.end), device);
    assert_eq!((measured.kernels, measured.gap_nanos), (6, Some(100)));
    assert_eq!(
        (spans.evals[3].begin, spans.evals[3].end),
        (begin(3), begin(3) + 500)
    );
    // Of one that nobody timed nothing is said but its call.
    assert_eq!(spans.evals[3].gap_nanos, None);
    let lane = &answer.header.lanes[1];
    let counts = (lane.evals, lane.timed_evals, lane.measured_evals);
    assert_eq!(counts, (6, 4, 2));
    assert_eq!((lane.span_nanos, lane.gap_nanos), (2 * 3_400, 2 * 100));
    let copied = &spans.copies[0];
    assert_eq!(
        (copied.eval, copied.bytes, copied.end - copied.begin),
        (Some(1), 256, 100)
    );
    assert!(!copied.tensor.is_empty());
    assert_eq!(answer.header.lanes[2].bytes, 6 * 256);
}

#[test]
fn lanes_follow_the_filter_by_phase_tokens_and_device() {
    let folder = tempfile::tempdir().unwrap();
    let index = open(folder.path(), 8);
    let of = |filter: Filter| {
        let lanes = lanes(&index, &filter, None, 100).header.lanes;
        let lane = |lane: Lane| (lane.kind, lane.evals, lane.copies);
        lanes.into_iter().map(lane).collect::<Vec<_>>()
    };
    let device = Filter {
        devices: Some(vec![DEVICE.to_owned()]),
        ..Filter::default()
    };
    assert_eq!(
        of(device),
        [(LaneKind::Device, 6, 0), (LaneKind::ToDevice, 0, 6)]
    );
    let tokens = Filter {
        tokens: Some((2, 5)),
        ..Filter::default()
    };
    let expected = [
        (LaneKind::Processor, 0, 0),
        (LaneKind::Device, 2, 0),
        (LaneKind::ToDevice, 0, 2),
    ];
    assert_eq!(of(tokens), expected);
}

#[test]
fn a_grid_of_lanes_has_the_time_of_its_spans() {
    let folder = tempfile::tempdir().unwrap();
    let index = open(folder.path(), 4_000);
    for (window, w) in [(None, 64), (None, 4_000), (Some((0, 20_000_000)), 333)] {
        let answer = lanes(&index, &Filter::default(), window, w);
        assert!(answer.header.spans.is_none());
        let column = (answer.header.t1 - answer.header.t0) as f64 / f64::from(w);
        let rows: Vec<f64> = answer
            .values
            .chunks(w as usize)
            .map(|row| row.iter().map(|share| f64::from(*share) * column).sum())
            .collect();
        assert_eq!(rows.len(), 4 * answer.header.lanes.len());
        let lane = &answer.header.lanes[1];
        let device = &rows[4..8];
        let close = |found: f64, expected: u64| {
            let away = (found - expected as f64).abs() / expected as f64;
            assert!(away < 0.01, "{found} instead of {expected} with {w}");
        };
        close(device[0], lane.span_nanos - lane.gap_nanos);
        close(device[1], lane.gap_nanos);
        let untimed = lane.timed_evals - lane.measured_evals;
        close(device[2], untimed * (DEVICE_NANOS.1 - DEVICE_NANOS.0));
        close(device[3], (lane.evals - lane.timed_evals) * 500);
        close(rows[0], answer.header.lanes[0].evals * 4_500);
        close(rows[8], answer.header.lanes[2].copies * 100);
    }
}

#[test]
fn what_nobody_timed_has_no_place_among_nodes_and_reads() {
    let folder = tempfile::tempdir().unwrap();
    let index = open(folder.path(), 8);
    let nodes = index.nodes(
        &NodesQuery {
            t0: None,
            t1: None,
            w: 100,
            even: 0,
        },
        &Filter::default(),
    );
    let NodesHeader::Spans { spans, .. } = nodes.header else {
        panic!("few nodes are listed");
    };
    let found: Vec<u64> = spans.iter().map(|span| span.eval).collect();
    assert!(found.iter().all(|eval| [0, 1, 4, 5].contains(eval)));
    let query = OffsetsQuery {
        t0: None,
        t1: None,
        o0: None,
        o1: None,
        w: 100,
        h: 10,
        even: 0,
    };
    let reads = index
        .offsets(&query, &Filter::default())
        .header
        .exact
        .unwrap();
    let begin = |number| mixed_evaluation(number).begin_nanos - mixed_evaluation(0).begin_nanos;
    // Timed by its kernels; at some time of its evaluation; or of the call.
    let (from, to) = DEVICE_NANOS;
    for (number, expected) in [
        (1, [(600, 1_000), (1_600, 2_900)]),
        (2, [(from, to); 2]),
        (3, [(0, 500); 2]),
    ] {
        let of_eval = reads.iter().filter(|read| read.eval == number);
        let mut times: Vec<(u64, u64)> = of_eval
            .map(|read| (read.begin - begin(number), read.end - begin(number)))
            .collect();
        times.dedup();
        let expected = expected.to_vec();
        assert!(
            times.iter().all(|time| expected.contains(time)),
            "{number}: {times:?}"
        );
        assert!(!times.is_empty());
    }
}
