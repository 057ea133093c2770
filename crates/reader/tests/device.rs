//! Runs in which a device computes beside the processor: what is shown of them.

use std::path::Path;

use reader::{
    Log, Reading, Seen, SeenCopy, Visitor,
    device::Times,
    kernel::Timeline,
    rows::{self, Cell},
    summary::summarise,
};
use testing::{
    device::{
        CELL_BYTES, CELLS, DEVICE, DEVICE_NANOS, EXCLUSIVE_NANOS, KERNEL_NANOS, Measure,
        append_measured, append_mixed, attention_evaluation, attention_graphs, attention_stream,
        copy_before, device_evaluation, graphs, measure_of, measured, mixed_evaluation,
        mixed_stream,
    },
    log::{SEGMENT_BYTES, append, body, define, open, open_stream},
};
use trace::{
    device::{Copy, Measured, Way},
    format::{RecordKind, flags},
    read::{ReadError, StreamEnd, Writer},
};

/// What a visitor was shown.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    evaluations: Vec<Shape>,
    /// Number, evaluation, and bytes.
    copies: Vec<(u64, u64, u64)>,
}

#[derive(Debug, PartialEq)]
struct Shape {
    eval: u64,
    device: String,
    computed_nanos: Option<u64>,
    steps: Vec<Option<Times>>,
    kernels: Option<Vec<Times>>,
    accesses: u64,
}

impl Visitor for Shown {
    type Error = ReadError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), ReadError> {
        self.evaluations.push(Shape {
            eval: seen.eval,
            device: seen.device_name().to_owned(),
            computed_nanos: seen.computed_nanos(),
            steps: seen.steps().map(|step| step.times).collect(),
            kernels: seen.kernel_times(),
            accesses: seen.sums().accesses,
        });
        Ok(())
    }

    fn copy(&mut self, copy: &SeenCopy) -> Result<(), ReadError> {
        assert_eq!(&*copy.device.name, DEVICE);
        self.copies.push((copy.number, copy.eval, copy.copy.bytes));
        Ok(())
    }
}

fn show(log: &Path) -> Shown {
    let mut shown = Shown::default();
    let walked = Log::new(log).walk(&mut shown).unwrap();
    assert_eq!(walked.damaged, Vec::<String>::new());
    shown
}

#[test]
fn a_time_that_was_not_measured_is_none() {
    let directory = tempfile::tempdir().unwrap();
    mixed_stream(directory.path(), 0, 40, StreamEnd::Closed);
    let shown = show(directory.path());
    assert_eq!(shown.evaluations.len(), 40);
    for (number, of) in (0..).zip(&shown.evaluations) {
        let timed = of.steps.iter().flatten().count();
        let device_nanos = Some(DEVICE_NANOS.1 - DEVICE_NANOS.0);
        match measure_of(number) {
            None => {
                assert_eq!((of.device.as_str(), timed), ("CPU", 4));
                assert_eq!(of.computed_nanos, Some(4_500));
            }
            Some(Measure::Kernels) => {
                assert_eq!((of.device.as_str(), timed), (DEVICE, 4));
                assert_eq!(of.computed_nanos, device_nanos);
            }
            Some(Measure::Evaluation) => assert_eq!((timed, of.computed_nanos), (0, device_nanos)),
            // How long the device was asked for it is not how long it took.
            Some(Measure::Nothing) => assert_eq!((timed, of.computed_nanos), (0, None)),
        }
        // What it touched is known all the same, but for experts that nobody read back.
        assert!(of.accesses >= 6, "{}", of.accesses);
    }
}

#[test]
fn exclusive_times_add_up_to_no_more_than_the_evaluation() {
    let directory = tempfile::tempdir().unwrap();
    mixed_stream(directory.path(), 0, 8, StreamEnd::Closed);
    let shown = show(directory.path());
    let of = &shown.evaluations[1];
    let begin = mixed_evaluation(1).begin_nanos;
    let kernels = of.kernels.as_ref().unwrap();
    for (kernel, ((from, to), nanos)) in kernels
        .iter()
        .zip(KERNEL_NANOS.into_iter().zip(EXCLUSIVE_NANOS))
    {
        let expected = Times {
            begin_nanos: begin + from,
            end_nanos: begin + to,
            nanos,
        };
        assert_eq!(*kernel, expected);
    }
    // From the begin of its first kernel to the end of its last; the third has two.
    let step = of.steps[2].unwrap();
    assert_eq!(
        (step.begin_nanos, step.end_nanos, step.nanos),
        (begin + 1_500, begin + 2_900, 1_300)
    );
    let of_steps: u64 = of.steps.iter().flatten().map(|step| step.nanos).sum();
    let of_kernels: u64 = kernels.iter().map(|kernel| kernel.nanos).sum();
    // One kernel is of no step.
    assert_eq!((of_steps, of_kernels), (3_200, 3_300));
    assert!(of_kernels <= of.computed_nanos.unwrap());
    let durations = kernels.iter().map(|k| k.end_nanos - k.begin_nanos);
    assert!(durations.sum::<u64>() > of_kernels, "they overlap");
}

#[test]
fn kernels_that_differ_from_those_launched_have_no_times() {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, templates) = graphs();
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    let evaluation = device_evaluation(0, Measure::Kernels);
    let words = body(&templates[1], &evaluation);
    assert!(append(&mut appender, RecordKind::Evaluation, &words));
    let mut words = measured(&evaluation).unwrap();
    words[1] |= u64::from(flags::KERNELS_DIFFER);
    assert!(append(&mut appender, RecordKind::Measured, &words));
    log.finish(appender).unwrap();
    let shown = show(directory.path());
    assert_eq!(shown.evaluations[0].steps, [None; 4]);
    assert_eq!(shown.evaluations[0].kernels, None);
    let summary = summarise(directory.path(), &mut |_| ()).unwrap();
    assert_eq!(summary.flagged, 1);
}

#[test]
fn sums_have_the_bytes_of_all_and_the_times_that_were_measured() {
    let directory = tempfile::tempdir().unwrap();
    mixed_stream(directory.path(), 0, 41, StreamEnd::Closed);
    let summary = summarise(directory.path(), &mut |_| ()).unwrap();
    assert_eq!((summary.evaluations, summary.steps), (41, 164));
    // That something was to be measured later is no doubt.
    assert_eq!(summary.flagged, 0);
    let phases = &summary.by_phase;
    let generate = &phases["generate"];
    // The first is the prompt, on the processor.
    assert_eq!(phases["prompt"].untimed_evaluations, 0);
    assert_eq!(generate.untimed_evaluations, 10);
    assert_eq!(generate.nanos, 10 * 4_500 + 20 * 3_500);
    let rows = &summary.by_op["GET_ROWS"];
    assert_eq!((rows.steps, rows.nanos), (41, 11 * 1_000 + 10 * 400));
}

#[test]
fn a_null_stands_for_a_time_that_was_not_measured() {
    struct Nulls(Vec<(bool, usize)>);
    impl Visitor for Nulls {
        type Error = ReadError;
        fn evaluation(&mut self, seen: &Seen) -> Result<(), ReadError> {
            let times = |row: &[Cell]| row[row.len() - 3..].iter().all(|c| *c == Cell::Null);
            let nulls: Vec<bool> = rows::kernels(seen).map(|row| times(&row)).collect();
            let are_null = nulls.iter().all(|is_null| *is_null);
            for executed in seen.steps() {
                let is_null = times(&rows::node(seen, &executed));
                assert_eq!(is_null, executed.times.is_none());
            }
            self.0.push((are_null, nulls.len()));
            Ok(())
        }
    }
    let directory = tempfile::tempdir().unwrap();
    mixed_stream(directory.path(), 0, 4, StreamEnd::Closed);
    let mut nulls = Nulls(Vec::new());
    Log::new(directory.path()).walk(&mut nulls).unwrap();
    // On the processor there are no kernels.
    assert_eq!(nulls.0, [(true, 0), (false, 6), (true, 6), (true, 6)]);
}

#[test]
fn copies_are_numbered_through_the_run() {
    let directory = tempfile::tempdir().unwrap();
    for stream in 0..2 {
        mixed_stream(directory.path(), stream, 6, StreamEnd::Closed);
    }
    let shown = show(directory.path());
    let evals = [1, 2, 3, 5, 7, 8, 9, 11];
    let expected: Vec<_> = (0..).zip(evals).map(|(n, eval)| (n, eval, 256)).collect();
    assert_eq!(shown.copies, expected);
    let mut part = Shown::default();
    let log = Log::new(directory.path()).with_evals(5..8);
    let walked = log.walk(&mut part).unwrap();
    assert_eq!(part.copies, [(3, 5, 256), (4, 7, 256)]);
    // Both streams have defined the same device.
    assert_eq!(walked.devices.len(), 1);
}

#[test]
fn a_log_that_grows_shows_each_evaluation_once_it_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, templates) = graphs();
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    let mut shown = Shown::default();
    let mut reading = Reading::new(Log::new(directory.path()));
    for number in 0..20 {
        append_mixed(&mut appender, &templates, number);
        let writer = Writer::Running;
        reading.read(writer, &mut shown, &mut |_| ()).unwrap();
        // The first whose measurement never comes holds those behind it back.
        let most = (number + 1).min(3);
        assert!(shown.evaluations.len() as u64 <= most);
    }
    append_measured(&mut appender, 19);
    log.finish(appender).unwrap();
    reading.read(Writer::Gone, &mut shown, &mut |_| ()).unwrap();
    assert_eq!(shown, show(directory.path()));
    assert_eq!(shown.evaluations.len(), 20);
}

#[test]
fn while_a_device_computes_no_step_runs_on_the_processor() {
    let directory = tempfile::tempdir().unwrap();
    mixed_stream(directory.path(), 0, 4, StreamEnd::Closed);
    let timeline = Timeline::read(directory.path()).unwrap();
    let at = |number: u64, nanos: u64| {
        let moment = timeline.at(mixed_evaluation(number).begin_nanos + nanos)?;
        Some((moment.eval, moment.step))
    };
    assert_eq!(at(0, 1_500), Some((0, Some(1))));
    // The call, and what the device does after it has returned.
    assert_eq!(at(1, 100), Some((1, None)));
    assert_eq!(at(1, DEVICE_NANOS.1 - 1), Some((1, None)));
    assert_eq!(at(1, DEVICE_NANOS.1 + 1), None);
    // Nobody knows how long it went on.
    assert_eq!(at(3, 400), Some((3, None)));
    assert_eq!(at(3, 1_000), None);
}

#[test]
fn times_that_cannot_be_are_damage() {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, templates) = graphs();
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    let evaluation = device_evaluation(0, Measure::Nothing);
    let words = body(&templates[1], &evaluation);
    assert!(append(&mut appender, RecordKind::Evaluation, &words));
    let of = Measured {
        evaluation: 0,
        nanos: Some((1, u64::MAX)),
        ..Measured::default()
    };
    let words = of.to_words(|_, _| ());
    assert!(append(&mut appender, RecordKind::Measured, &words));
    log.finish(appender).unwrap();
    let mut shown = Shown::default();
    let walked = Log::new(directory.path()).walk(&mut shown).unwrap();
    assert_eq!(shown, Shown::default());
    assert!(walked.damaged[0].contains("its times cannot be"));
}

/// Of each evaluation, what its attention reads of cells in use.
#[derive(Default)]
struct UsedBytes(Vec<Option<u64>>);

impl Visitor for UsedBytes {
    type Error = ReadError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), ReadError> {
        let reads = seen.prepared.accesses.iter().enumerate();
        let mut of_step =
            reads.filter(|(_, access)| &*seen.prepared.steps[access.step].op == "FLASH_ATTN_EXT");
        let (at, access) = of_step.next().unwrap();
        assert_eq!(access.bytes, CELLS * CELL_BYTES, "the view has all cells");
        self.0.push(seen.used_bytes(at));
        for executed in seen.steps() {
            seen.for_each_access(executed.number, |of| {
                let [.., used] = rows::access(seen, &executed, &of);
                let expected = seen.used_bytes(of.at).map_or(Cell::Null, Cell::int);
                assert_eq!(used, expected);
            });
        }
        Ok(())
    }
}

fn used_bytes(log: &Path) -> Vec<Option<u64>> {
    let mut used = UsedBytes::default();
    Log::new(log).walk(&mut used).unwrap();
    used.0
}

#[test]
fn cells_of_a_cache_are_in_use_from_their_first_write() {
    let directory = tempfile::tempdir().unwrap();
    attention_stream(directory.path(), 0, 0..80);
    let expected = (1..=80).map(|n| Some((2 * n).min(CELLS) * CELL_BYTES));
    assert_eq!(used_bytes(directory.path()), expected.collect::<Vec<_>>());
}

#[test]
fn nothing_is_in_use_for_certain_where_a_write_may_have_been_missed() {
    // An evaluation that was lost.
    let lost = tempfile::tempdir().unwrap();
    attention_stream(lost.path(), 0, (0..10).filter(|&n| n != 6));
    let used = used_bytes(lost.path());
    assert_eq!(
        used.iter().map(Option::is_some).collect::<Vec<_>>(),
        [[true; 6].as_slice(), &[false; 3]].concat()
    );
    // Two threads, which may share a cache.
    let shared = tempfile::tempdir().unwrap();
    attention_stream(shared.path(), 0, 0..3);
    attention_stream(shared.path(), 1, 0..3);
    assert_eq!(used_bytes(shared.path()), [None; 6]);
}

/// Evaluation 0, a copy to or from cells 2 to 49, and an evaluation that sets the two behind
/// them.
fn used_after_a_copy(way: Option<Way>) -> Option<u64> {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, [_, template]) = attention_graphs();
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    let words = body(&template, &attention_evaluation(0));
    assert!(append(&mut appender, RecordKind::Evaluation, &words));
    if let Some(way) = way {
        let copy = Copy {
            tensor: 1,
            way,
            tensor_offset: 2 * CELL_BYTES,
            bytes: 48 * CELL_BYTES,
            ..copy_before(1)
        };
        assert!(append(&mut appender, RecordKind::Copy, &copy.to_words()));
    }
    let mut later = attention_evaluation(1);
    later.captures[2] = vec![50, 51];
    let words = body(&template, &later);
    assert!(append(&mut appender, RecordKind::Evaluation, &words));
    log.finish(appender).unwrap();
    used_bytes(directory.path())[1]
}

#[test]
fn cells_that_the_host_restores_are_in_use() {
    let all = Some(52 * CELL_BYTES);
    assert_eq!(used_after_a_copy(Some(Way::HostToDevice)), all);
    // Cells are given out in their order: somebody has written those between.
    assert_eq!(used_after_a_copy(None), None);
    assert_eq!(used_after_a_copy(Some(Way::DeviceToHost)), None);
    assert_eq!(used_after_a_copy(Some(Way::DeviceToDevice)), None);
}

#[test]
fn a_stream_that_only_copies_to_the_host_shares_no_cells() {
    for (way, is_known) in [(Way::DeviceToHost, true), (Way::HostToDevice, false)] {
        let directory = tempfile::tempdir().unwrap();
        attention_stream(directory.path(), 0, 0..4);
        let (_status, log, mut appender) = open_stream(directory.path(), 1, SEGMENT_BYTES);
        assert!(define(&mut appender, &attention_graphs().0));
        for number in 0..4 {
            let copy = Copy {
                way,
                ..copy_before(number)
            };
            assert!(append(&mut appender, RecordKind::Copy, &copy.to_words()));
        }
        log.finish(appender).unwrap();
        let used = used_bytes(directory.path());
        assert_eq!(
            used.iter().map(Option::is_some).collect::<Vec<_>>(),
            [is_known; 4]
        );
    }
}

/// Evaluations of contexts, each of which sets these two cells; what each reads of cells in use.
fn used_by_contexts(evaluations: &[(u64, [i64; 2])]) -> Vec<Option<u64>> {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, [_, template]) = attention_graphs();
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    for (number, (context, cells)) in (0..).zip(evaluations) {
        let mut evaluation = attention_evaluation(number);
        evaluation.context = *context;
        evaluation.captures[2] = cells.to_vec();
        let words = body(&template, &evaluation);
        assert!(append(&mut appender, RecordKind::Evaluation, &words));
    }
    log.finish(appender).unwrap();
    let used = used_bytes(directory.path());
    let cells = |bytes| bytes / CELL_BYTES;
    used.into_iter().map(|used| used.map(cells)).collect()
}

#[test]
fn a_context_in_the_place_of_one_that_is_gone_begins_anew() {
    let used = used_by_contexts(&[(1, [0, 1]), (1, [2, 3]), (2, [0, 1]), (2, [2, 3])]);
    assert_eq!(used, [2, 4, 2, 4].map(Some));
    // One that has a new scheduler goes on where it was.
    let used = used_by_contexts(&[(1, [0, 1]), (1, [2, 3]), (2, [4, 5])]);
    assert_eq!(used, [2, 4, 6].map(Some));
}

#[test]
fn of_contexts_in_turn_whose_caches_are_not_told_apart_nothing_is_known() {
    let used = used_by_contexts(&[(1, [0, 1]), (2, [0, 1]), (1, [2, 3]), (2, [2, 3])]);
    assert_eq!(used, [Some(2), Some(2), None, None]);
}
