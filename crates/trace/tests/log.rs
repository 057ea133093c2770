//! Logs written to real segment files and read back: whole, cut off, and while they
//! grow.

use std::{fs, path::Path};

use proptest::{collection::vec, prelude::*};
use testing::log::{
    SEGMENT_BYTES, append, body, body_coded, define, open, read, segment_count, small_evaluation,
    small_graph, small_log,
};
use trace::{
    append::SEGMENTS_AHEAD,
    format::{RecordKind, SEGMENT_HEADER_BYTES},
    read::{Evaluation, StreamEnd, StreamReader, streams},
    region::{Region, Strided},
    segment::segment_path,
    template::*,
};

const SEGMENT_WORDS: u64 = (SEGMENT_BYTES - SEGMENT_HEADER_BYTES) as u64 / 8;

#[test]
fn a_closed_log_is_read_back_whole() {
    let directory = tempfile::tempdir().unwrap();
    small_log(directory.path(), 200, StreamEnd::Closed);
    let contents = read(directory.path()).unwrap();
    assert_eq!(contents.end, StreamEnd::Closed);
    assert_eq!(
        contents.evaluations,
        (0..200).map(small_evaluation).collect::<Vec<_>>()
    );
    assert!(contents.corrupt.is_empty() && contents.partial.is_none());
    let definitions = &contents.reader.definitions;
    assert_eq!(definitions.templates, [small_graph().1]);
    assert_eq!(definitions.tensor_name(2), "blk.0.ffn_up_exps.weight");
    assert_eq!(definitions.tokens[&7], b"Hello");
    // No spare segment is left, and the files hold nothing but headers and records.
    let segments = segment_count(directory.path());
    let on_disk: u64 = (0..segments)
        .map(|i| {
            fs::metadata(segment_path(directory.path(), 0, i))
                .unwrap()
                .len()
        })
        .sum();
    let headers = u64::from(segments) * SEGMENT_HEADER_BYTES as u64;
    assert_eq!(on_disk, contents.reader.record_bytes() + headers);
    assert_eq!(streams(directory.path()).unwrap(), [0]);
}

#[test]
fn a_record_larger_than_all_spare_segments_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let text = vec![b'x'; SEGMENT_BYTES * (SEGMENTS_AHEAD + 3)];
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(define(&mut appender, &[Definition::Text(text.clone())]));
    log.finish(appender).unwrap();
    let contents = read(directory.path()).unwrap();
    assert_eq!(
        (contents.end, &contents.reader.definitions.texts),
        (StreamEnd::Closed, &vec![text])
    );
}

#[test]
fn a_record_that_was_not_committed_blocks_the_stream_instead_of_garbling_it() {
    let directory = tempfile::tempdir().unwrap();
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(appender.begin(RecordKind::Evaluation, 100));
    appender.put(1);
    assert!(!appender.begin(RecordKind::Evaluation, 1));
    log.finish(appender).unwrap();
    let contents = read(directory.path()).unwrap();
    assert_eq!((contents.end, contents.corrupt.len()), (StreamEnd::Open, 0));
}

/// What a process killed after the store of stream word `cut` leaves behind.
fn kill_at(from: &Path, to: &Path, cut: u64, truncate: bool) {
    for index in 0..segment_count(from) {
        let mut bytes = fs::read(segment_path(from, 0, index)).unwrap();
        let keep = cut
            .saturating_sub(u64::from(index) * SEGMENT_WORDS)
            .min(SEGMENT_WORDS);
        let keep_bytes = SEGMENT_HEADER_BYTES + keep as usize * 8;
        if truncate {
            if keep == 0 && index > 0 {
                let _ = fs::remove_file(segment_path(to, 0, index));
                continue;
            }
            bytes.truncate(keep_bytes);
        } else {
            bytes[keep_bytes..].fill(0);
        }
        fs::write(segment_path(to, 0, index), bytes).unwrap();
    }
}

#[test]
fn a_kill_at_any_word_loses_only_the_last_evaluation() {
    let directory = tempfile::tempdir().unwrap();
    small_log(directory.path(), 60, StreamEnd::Open);
    // The evaluation to be cut is one that runs over the end of a segment.
    let mut reader = StreamReader::open(directory.path(), 0).unwrap();
    let (mut count, mut last_start, mut last_end) = (0, 0, 0);
    while count < 10 || last_start / SEGMENT_WORDS == (last_end - 1) / SEGMENT_WORDS {
        last_start = reader.record_bytes() / 8;
        reader
            .next_event()
            .unwrap()
            .expect("no evaluation runs over the end of a segment");
        last_end = reader.record_bytes() / 8;
        count += 1;
    }

    let expected: Vec<Evaluation> = (0..count).map(small_evaluation).collect();
    for truncate in [false, true] {
        let killed = tempfile::tempdir().unwrap();
        for cut in last_start..=last_end {
            kill_at(directory.path(), killed.path(), cut, truncate);
            let contents = read(killed.path()).unwrap();
            assert_eq!(contents.corrupt, Vec::<String>::new(), "word {cut}");
            assert_eq!(contents.end, StreamEnd::Open);
            if cut == last_end {
                assert_eq!(contents.evaluations, expected);
                continue;
            }
            assert_eq!(
                contents.evaluations,
                expected[..count as usize - 1],
                "word {cut}"
            );
            let words = cut - last_start;
            let Some(partial) = contents.partial else {
                // Fewer words than head, number and begin time.
                assert!(
                    words < 2 + 4 || truncate && words < 2 + 7,
                    "word {words} gives no partial evaluation"
                );
                continue;
            };
            let full = &expected[count as usize - 1];
            assert_eq!(
                (
                    partial.number,
                    partial.begin_nanos,
                    partial.end_nanos,
                    partial.phase
                ),
                (full.number, full.begin_nanos, 0, full.phase)
            );
            for (step, &nanos) in partial.step_nanos.iter().enumerate() {
                let seen = step < partial.ticks as usize;
                assert_eq!(
                    nanos,
                    if seen { full.step_nanos[step] } else { 0 },
                    "word {words}, step {step}"
                );
            }
        }
    }
}

#[test]
fn a_kill_while_a_segment_is_made_leaves_a_readable_log() {
    let directory = tempfile::tempdir().unwrap();
    small_log(directory.path(), 30, StreamEnd::Open);
    let spare = segment_path(directory.path(), 0, segment_count(directory.path()));
    let mut without_magic = fs::read(segment_path(directory.path(), 0, 0)).unwrap();
    without_magic[..8].fill(0);
    without_magic[SEGMENT_HEADER_BYTES..].fill(0);
    for bytes in [vec![], vec![0; 20], vec![0; SEGMENT_BYTES], without_magic] {
        fs::write(&spare, &bytes).unwrap();
        let contents = read(directory.path()).unwrap();
        assert_eq!(
            (contents.evaluations.len(), contents.corrupt.len()),
            (30, 0)
        );
    }
    // The same for the very first segment: an empty stream.
    let empty = tempfile::tempdir().unwrap();
    fs::write(segment_path(empty.path(), 0, 0), []).unwrap();
    let contents = read(empty.path()).unwrap();
    assert_eq!(
        (contents.evaluations.len(), contents.end),
        (0, StreamEnd::Open)
    );
}

#[test]
fn captures_of_steps_that_were_not_reached_are_empty() {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, template) = small_graph();
    let (_status, log, mut appender) = open(directory.path(), 1 << 16);
    assert!(define(&mut appender, &definitions));
    let mut aborted = small_evaluation(0);
    aborted.step_nanos[2..].fill(0);
    aborted.captures[3..].fill(vec![0; 4]);
    assert!(append(
        &mut appender,
        RecordKind::Evaluation,
        &body(&template, &aborted)
    ));
    log.finish(appender).unwrap();
    let contents = read(directory.path()).unwrap();
    assert_eq!(contents.evaluations[0].captures[3..], [vec![], vec![]]);
    // Two rows read and one result; two KV rows of 32 bytes, given as one access.
    assert_eq!(
        trace::expand::count_accesses(&template, &contents.evaluations[0]),
        4
    );
}

/// A viewer reads while the recorder writes: what it sees is always a beginning
/// of the truth.
#[test]
fn a_growing_log_never_looks_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, template) = small_graph();
    let (_status, log, mut appender) = open(directory.path(), 1 << 16);
    assert!(define(&mut appender, &definitions));
    let total = 30_000;
    let writer = std::thread::spawn(move || {
        for number in 0..total {
            assert!(append(
                &mut appender,
                RecordKind::Evaluation,
                &body(&template, &small_evaluation(number))
            ));
        }
        log.finish(appender).unwrap();
    });
    let mut seen = 0;
    while seen < total {
        let contents = read(directory.path()).unwrap();
        assert_eq!(contents.corrupt, Vec::<String>::new());
        let now = contents.evaluations.len() as u64;
        assert!(now >= seen, "evaluations vanished");
        assert!(
            contents
                .evaluations
                .iter()
                .zip(0..)
                .all(|(evaluation, n)| *evaluation == small_evaluation(n))
        );
        seen = now;
    }
    writer.join().unwrap();
    assert_eq!(read(directory.path()).unwrap().end, StreamEnd::Closed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_records_survive_many_segments(graphs in vec(graph(), 1..4), order in vec(any::<prop::sample::Index>(), 1..60)) {
        let directory = tempfile::tempdir().unwrap();
        let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
        let mut expected = Vec::new();
        let text = |text: &[u8]| Definition::Text(text.to_vec());
        prop_assert!(define(&mut appender, &[text(b"OP"), text(b"n-\0")]));
        let tensor = TensorDef { name: Name { pattern: 1, number: Some(0) }, kind: TensorKind::Weight, ggml_type: 0,
            ne: [1 << 40, 1, 1, 1], size_bytes: 1 << 42, address: 4096, buffer_type: 0, place: None };
        prop_assert!(define(&mut appender, &[Definition::Tensor(tensor)]));
        let mut defined = 0;
        for (number, pick) in order.iter().enumerate() {
            // Definitions arrive when they are first needed, between evaluations.
            let pick = pick.index(graphs.len());
            while defined <= pick {
                prop_assert!(define(&mut appender, &[Definition::Template(graphs[defined].0.clone())]));
                defined += 1;
            }
            let (template, evaluation) = &graphs[pick];
            let token_phases = vec![evaluation.phase.into(); evaluation.captures[0].len()];
            let evaluation = Evaluation { number: number as u64, template: pick as u32, token_phases, ..evaluation.clone() };
            let codings = [2, 1, 4, 8];
            let body = body_coded(template, &evaluation, &codings[number % 4..]);
            prop_assert!(append(&mut appender, RecordKind::Evaluation, &body));
            expected.push(evaluation);
        }
        log.finish(appender).unwrap();
        let contents = read(directory.path()).unwrap();
        prop_assert_eq!(contents.corrupt, Vec::<String>::new());
        prop_assert_eq!(contents.end, StreamEnd::Closed);
        prop_assert_eq!(contents.evaluations, expected);
    }
}

/// A random template and an evaluation of it. Tokens first, because sequences
/// belong to them.
fn graph() -> impl Strategy<Value = (Template, Evaluation)> {
    let capture = (
        0u32..6,
        [1u64..6, 1u64..5, 1u64..3],
        prop::sample::select(vec![2u8, 4, 8]),
    );
    (1usize..6, 0u64..9, vec(capture, 0..4), any::<[u64; 3]>()).prop_flat_map(
        |(steps, tokens, captures, [a, b, c])| {
            let name = Name {
                pattern: 1,
                number: Some(4),
            };
            let region = Region::Fixed(Strided::range(a % 100, 1 + b % 100));
            let access = AccessDef {
                tensor: 0,
                operand: Operand::Destination,
                direction: Direction::Write,
                region,
            };
            let step = |node| {
                let accesses = vec![access.clone(); node as usize % 3];
                Step {
                    node,
                    fused_nodes: 1,
                    op: 0,
                    name,
                    layer: None,
                    op_is_known: node % 2 == 0,
                    accesses,
                }
            };
            let mut defs = vec![CaptureDef {
                kind: CaptureKind::Tokens,
                time: CaptureTime::Begin,
                count: [tokens, 1, 1],
                width_bytes: 4,
                layer: None,
                pair: None,
            }];
            defs.extend(
                captures
                    .into_iter()
                    .map(|(at, count, width_bytes)| CaptureDef {
                        kind: CaptureKind::Index,
                        time: if at == 0 {
                            CaptureTime::Begin
                        } else {
                            CaptureTime::Step(at % steps as u32)
                        },
                        count,
                        width_bytes,
                        layer: Some(at),
                        pair: None,
                    }),
            );
            let values: Vec<_> = defs
                .iter()
                .map(|def| {
                    let most = if def.width_bytes == 8 {
                        u64::MAX
                    } else {
                        (1 << (8 * def.width_bytes)) - 1
                    };
                    vec(
                        (0..=most).prop_map(|value| value as i64),
                        def.elements() as usize,
                    )
                })
                .collect();
            let template = Template {
                device: None,
                nodes: 9,
                steps: (0..steps as u32).map(step).collect(),
                captures: defs,
            };
            let times = vec(1..u64::MAX, steps);
            (
                Just(template),
                values,
                times,
                vec(any::<u32>(), tokens as usize),
            )
                .prop_map(move |(template, captures, step_nanos, sequences)| {
                    let evaluation = Evaluation {
                        context: c,
                        begin_nanos: b,
                        end_nanos: a,
                        ticks: a as u32,
                        flags: b as u32,
                        threads: c as u16,
                        step_nanos,
                        captures,
                        sequences,
                        ..small_evaluation(0)
                    };
                    (template, evaluation)
                })
        },
    )
}
