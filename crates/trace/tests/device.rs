//! Evaluations on devices: what is measured later finds its evaluation, whatever the order, and
//! what is missing or damaged leaves it without times, never with wrong ones.

use proptest::prelude::*;
use testing::{
    device::{
        DESCRIPTION, DEVICE, DEVICE_NANOS, KERNEL_STEPS, MEMORY_BYTES, Measure, append_measured,
        append_mixed, copy_before, device_evaluation, graphs, measured, mixed_evaluation,
        mixed_stream,
    },
    log::{SEGMENT_BYTES, append, body, define, open, read},
};
use trace::{
    append::Appender,
    device::{Copy, Launches, Measured, Way},
    format::{RecordKind, flags},
    read::{Evaluation, Event, StreamEnd, StreamReader, Writer},
    template::{Definition, Template},
};

/// A stream with what `write` appends behind the definitions.
fn log(write: impl FnOnce(&mut Appender, &[Template; 2])) -> testing::log::Contents {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, templates) = graphs();
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    write(&mut appender, &templates);
    log.finish(appender).unwrap();
    read(directory.path()).unwrap()
}

fn append_evaluation(appender: &mut Appender, templates: &[Template; 2], evaluation: &Evaluation) {
    let words = body(&templates[evaluation.template as usize], evaluation);
    assert!(append(appender, RecordKind::Evaluation, &words));
}

#[test]
fn an_evaluation_comes_with_what_was_measured_of_it_later() {
    let directory = tempfile::tempdir().unwrap();
    mixed_stream(directory.path(), 0, 40, StreamEnd::Closed);
    let contents = read(directory.path()).unwrap();
    assert_eq!(contents.corrupt, Vec::<String>::new());
    let expected: Vec<Evaluation> = (0..40).map(mixed_evaluation).collect();
    assert_eq!(contents.evaluations, expected);
    let copies: Vec<Copy> = (0..40).filter(|n| n % 4 != 0).map(copy_before).collect();
    assert_eq!(contents.copies, copies);
    let definitions = &contents.reader.definitions;
    let device = &definitions.devices[0];
    assert_eq!(definitions.text(device.name), DEVICE);
    assert_eq!(definitions.text(device.description), DESCRIPTION);
    assert_eq!(device.memory_bytes, MEMORY_BYTES);
    let steps: Vec<_> = definitions.launches[0]
        .kernels
        .iter()
        .map(|k| k.step)
        .collect();
    assert_eq!(steps, KERNEL_STEPS);
}

#[test]
fn measurements_may_come_in_any_order() {
    let evaluations: Vec<Evaluation> = (0..6)
        .map(|number| device_evaluation(number, Measure::Kernels))
        .collect();
    for order in [[5, 4, 3, 2, 1, 0], [1, 0, 3, 2, 5, 4], [0, 5, 1, 4, 2, 3]] {
        let contents = log(|appender, templates| {
            for evaluation in &evaluations {
                append_evaluation(appender, templates, evaluation);
            }
            for at in order {
                let words = measured(&evaluations[at]).unwrap();
                assert!(append(appender, RecordKind::Measured, &words));
            }
        });
        assert_eq!(contents.evaluations, evaluations, "{order:?}");
        assert_eq!(contents.corrupt, Vec::<String>::new());
    }
}

#[test]
fn one_whose_measurement_never_came_has_no_times() {
    for end in [StreamEnd::Closed, StreamEnd::Open] {
        let directory = tempfile::tempdir().unwrap();
        let (definitions, templates) = graphs();
        let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
        assert!(define(&mut appender, &definitions));
        for number in 0..3 {
            let evaluation = device_evaluation(number, Measure::Nothing);
            append_evaluation(&mut appender, &templates, &evaluation);
        }
        if end == StreamEnd::Closed {
            log.finish(appender).unwrap();
        }
        let contents = read(directory.path()).unwrap();
        assert_eq!(contents.evaluations.len(), 3);
        for evaluation in &contents.evaluations {
            let device = evaluation.device.as_ref().unwrap();
            assert_eq!(device.nanos, None);
            assert_eq!(device.kernel_nanos, []);
            assert_eq!(evaluation.step_nanos, [0; 4]);
            // It was executed all the same.
            assert!((0..4).all(|step| evaluation.was_executed(step)));
            assert!(!evaluation.was_executed(4));
        }
    }
}

#[test]
fn a_measurement_of_no_evaluation_is_passed_over() {
    let contents = log(|appender, templates| {
        append_mixed(appender, templates, 0);
        // Of one that is not there, of one of the processor, and twice of the same.
        for number in [7, 0] {
            let of = device_evaluation(number, Measure::Evaluation);
            assert!(append(
                appender,
                RecordKind::Measured,
                &measured(&of).unwrap()
            ));
        }
        append_mixed(appender, templates, 1);
        append_measured(appender, 1);
        let again = Measured {
            evaluation: 1,
            nanos: Some((5, 6)),
            ..Measured::default()
        };
        let words = again.to_words(|_, _| ());
        assert!(append(appender, RecordKind::Measured, &words));
    });
    assert_eq!(contents.corrupt, Vec::<String>::new());
    assert_eq!(contents.evaluations, [0, 1].map(mixed_evaluation));
}

#[test]
fn a_damaged_measurement_is_named_and_gives_no_times() {
    let good = measured(&device_evaluation(0, Measure::Kernels)).unwrap();
    let fewer_kernels = {
        let mut of = device_evaluation(0, Measure::Kernels);
        of.device.as_mut().unwrap().kernel_nanos.pop();
        measured(&of).unwrap()
    };
    let mut other_capture = good.clone();
    // Head, kernels, number of arrays.
    other_capture[5 + 2 * KERNEL_STEPS.len() + 1] = 77;
    let mut longer = good.clone();
    longer.push(0);
    let mut more_kernels = good.clone();
    more_kernels[1] |= 0xffff_ffff << 32;
    let mut other_launches = good.clone();
    other_launches[4] = 9;
    let cut = |words: usize| good[..words].to_vec();
    for (words, reason) in [
        (fewer_kernels, "more or fewer kernels"),
        (other_capture, "of no capture"),
        (longer, "longer than it says"),
        (more_kernels, "too short"),
        (other_launches, "not of the graph"),
        (cut(3), "too short"),
        (cut(9), "too short"),
        (cut(good.len() - 1), ""),
    ] {
        let contents = log(|appender, templates| {
            let evaluation = device_evaluation(0, Measure::Kernels);
            append_evaluation(appender, templates, &evaluation);
            assert!(append(appender, RecordKind::Measured, &words));
            append_evaluation(appender, templates, &mixed_evaluation(4));
        });
        let [corrupt] = &contents.corrupt[..] else {
            panic!("{:?}", contents.corrupt);
        };
        assert!(corrupt.contains(reason), "{corrupt}");
        let without = device_evaluation(0, Measure::Nothing);
        assert_eq!(contents.evaluations, [without, mixed_evaluation(4)]);
    }
}

#[test]
fn kernels_may_become_known_with_their_times() {
    let expected = device_evaluation(0, Measure::Kernels);
    let contents = log(|appender, templates| {
        let mut evaluation = expected.clone();
        evaluation.device.as_mut().unwrap().launches = None;
        append_evaluation(appender, templates, &evaluation);
        let mut words = measured(&expected).unwrap();
        words[4] = 1;
        assert!(append(appender, RecordKind::Measured, &words));
    });
    assert_eq!(contents.corrupt, Vec::<String>::new());
    assert_eq!(contents.evaluations, [expected]);
}

#[test]
fn what_is_not_defined_is_damage() {
    let (definitions, [_, template]) = graphs();
    // A graph of a device that is not there, and launches of no graph or no step.
    let other = Template {
        device: Some(1),
        ..template
    };
    let launches = |template, step| {
        let Some(Definition::Launches(known)) = definitions.last() else {
            panic!("launches come last");
        };
        let mut launches = Launches {
            template,
            ..known.clone()
        };
        launches.kernels[0].step = Some(step);
        Definition::Launches(launches)
    };
    for (wrong, reason) in [
        (Definition::Template(other), "device 1 is not defined"),
        (launches(9, 0), "template 9 is not defined"),
        (launches(1, 4), "belongs to a step"),
    ] {
        let contents = log(|appender, _| {
            assert!(define(appender, &[wrong]));
        });
        assert!(
            contents.corrupt[0].contains(reason),
            "{:?}",
            contents.corrupt
        );
    }
    let copy = |change: fn(&mut Copy)| {
        let mut copy = copy_before(1);
        change(&mut copy);
        copy
    };
    for wrong in [copy(|c| c.tensor = 99), copy(|c| c.device = 1)] {
        let contents = log(|appender, _| {
            assert!(append(appender, RecordKind::Copy, &wrong.to_words()));
        });
        assert!(contents.corrupt[0].contains("not defined"));
        assert!(contents.copies.is_empty());
    }
    let contents = log(|appender, templates| {
        let mut evaluation = device_evaluation(0, Measure::Nothing);
        evaluation.device.as_mut().unwrap().launches = Some(3);
        append_evaluation(appender, templates, &evaluation);
    });
    assert!(contents.corrupt[0].contains("not of its graph"));
}

#[test]
fn a_growing_log_gives_an_evaluation_when_it_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, templates) = graphs();
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    let mut reader = StreamReader::open(directory.path(), 0).unwrap();
    reader.resume(Writer::Running);
    let mut new = move || {
        let mut numbers = Vec::new();
        while let Some(event) = reader.next_event().unwrap() {
            match event {
                Event::Evaluation(evaluation) => {
                    let number = evaluation.number;
                    assert_eq!(evaluation, device_evaluation(number, Measure::Kernels));
                    numbers.push(number);
                }
                Event::Partial(_) => {}
                other => panic!("{other:?}"),
            }
        }
        reader.resume(Writer::Running);
        numbers
    };
    let evaluations: Vec<Evaluation> = (0..4)
        .map(|number| device_evaluation(number, Measure::Kernels))
        .collect();
    let measure = |appender: &mut Appender, at: usize| {
        let words = measured(&evaluations[at]).unwrap();
        assert!(append(appender, RecordKind::Measured, &words));
    };
    append_evaluation(&mut appender, &templates, &evaluations[0]);
    assert_eq!(new(), []);
    append_evaluation(&mut appender, &templates, &evaluations[1]);
    assert_eq!(new(), []);
    measure(&mut appender, 0);
    assert_eq!(new(), [0]);
    append_evaluation(&mut appender, &templates, &evaluations[2]);
    measure(&mut appender, 2);
    // The one before it is still open.
    assert_eq!(new(), []);
    measure(&mut appender, 1);
    assert_eq!(new(), [1, 2]);
    append_evaluation(&mut appender, &templates, &evaluations[3]);
    measure(&mut appender, 3);
    log.finish(appender).unwrap();
    assert_eq!(new(), [3]);
}

fn times() -> impl Strategy<Value = (u64, u64)> {
    (1..u64::MAX / 2, 0..u64::MAX / 2).prop_map(|(begin, nanos)| (begin, begin + nanos))
}

proptest! {
    #[test]
    fn measurements_round_trip(
        evaluation: u64,
        flags: u32,
        nanos in prop::option::of(times()),
        launches in prop::option::of(0..u32::MAX),
        kernels in prop::collection::vec(times(), 0..9),
        captures in prop::collection::vec((0u32..3, prop::collection::vec(any::<i64>(), 4)), 0..3),
    ) {
        let measured = Measured { evaluation, flags, nanos, launches, kernels, captures };
        let words = measured.to_words(|values, words| testing::log::encode(values, 8, words));
        let read = Measured::from_words(&words, |number| (number < 3).then_some(4));
        prop_assert_eq!(read.unwrap(), measured);
    }

    #[test]
    fn any_words_of_a_measurement_are_read_or_refused(words: Vec<u64>, kernels in 0u64..4) {
        let _ = Measured::from_words(&words, |_| Some(4));
        let mut words = words;
        if let Some(word) = words.get_mut(1) {
            *word = kernels << 32;
        }
        let _ = Measured::from_words(&words, |_| Some(4));
        let _ = Copy::from_words(&words);
    }

    #[test]
    fn copies_round_trip(
        [begin_nanos, end_nanos, tensor_offset, bytes, evaluation, context] in any::<[u64; 6]>(),
        (tensor, device, is_async) in any::<(u32, u32, bool)>(),
        way in prop::sample::select(vec![Way::HostToDevice, Way::DeviceToHost, Way::DeviceToDevice]),
    ) {
        let copy = Copy {
            begin_nanos, end_nanos, tensor, way, is_async, tensor_offset, bytes, evaluation,
            context, device,
        };
        prop_assert_eq!(Copy::from_words(&copy.to_words()), Some(copy));
    }
}

#[test]
fn a_time_of_zero_was_not_measured() {
    let of = Measured {
        nanos: Some((0, DEVICE_NANOS.1)),
        flags: flags::KERNELS_DIFFER,
        ..Measured::default()
    };
    let read = Measured::from_words(&of.to_words(|_, _| ()), |_| None).unwrap();
    assert_eq!((read.nanos, read.flags), (None, flags::KERNELS_DIFFER));
}
