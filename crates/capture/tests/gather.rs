//! Arrays that begin and ticks store, through a real log and back.

use std::sync::Arc;

use capture::gather::{Element, Packer, Source, encode, width_for};
use capture::names::split_number;
use proptest::{collection::vec, prelude::*};
use trace::{
    append::Log,
    format::RecordKind,
    read::{Definitions, Event, StreamReader},
    status::StatusPage,
    template::*,
};

/// Stores `values` in the begin section and, `width_bytes` wide, at a tick;
/// returns both as a reader finds them, and the words of the begin section.
fn through_a_log(values: &[i64], width_bytes: u8) -> (Vec<i64>, Vec<i64>, usize) {
    let directory = tempfile::tempdir().unwrap();
    let status = Arc::new(StatusPage::create(&directory.path().join("status")).unwrap());
    let (log, mut appender) =
        Log::create_sized(directory.path(), 0, status, Box::new(|_| ()), 1 << 16).unwrap();
    let capture = |time| CaptureDef {
        kind: CaptureKind::Index,
        time,
        count: [values.len() as u64, 1, 1],
        width_bytes,
        layer: None,
        pair: None,
    };
    let name = Name {
        pattern: 0,
        number: None,
    };
    let step = Step {
        node: 0,
        fused_nodes: 1,
        op: 0,
        name,
        layer: None,
        op_is_known: true,
        accesses: vec![],
    };
    let template = Template {
        device: None,
        nodes: 1,
        steps: vec![step],
        captures: vec![capture(CaptureTime::Begin), capture(CaptureTime::Step(0))],
    };
    let mut put = |kind, body: &[u64]| {
        assert!(appender.begin(kind, body.len()));
        body.iter().for_each(|&word| appender.put(word));
        appender.commit();
    };
    let bytes = encode_definitions(&[
        Definition::Text(b"op".to_vec()),
        Definition::Template(template),
    ]);
    let mut body = vec![bytes.len() as u64];
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        body.push(u64::from_le_bytes(word));
    }
    put(RecordKind::Definitions, &body);
    let mut begin = Vec::new();
    encode(values, &mut begin);
    let coded_words = begin.len();
    encode(&[], &mut begin);
    let mut body = vec![0, 0, 0, 1, begin.len() as u64];
    body.extend(begin);
    body.push(2);
    let mut packer = Packer::new(width_bytes, |word| body.push(word));
    values.iter().for_each(|&value| packer.push(value));
    packer.finish();
    body.extend([3, 1]);
    put(RecordKind::Evaluation, &body);
    log.finish(appender).unwrap();

    let mut reader = StreamReader::open(directory.path(), 0).unwrap();
    match reader.next_event().unwrap() {
        Some(Event::Evaluation(mut evaluation)) => {
            let at_step = evaluation.captures.pop().unwrap();
            (evaluation.captures.pop().unwrap(), at_step, coded_words)
        }
        other => panic!("no evaluation: {other:?}"),
    }
}

/// Runs of constant step with noise between them, of any size and sign.
fn values() -> impl Strategy<Value = Vec<i64>> {
    let run = (any::<i64>(), -5i64..300, 1usize..40).prop_map(|(first, step, n)| {
        (0..n as i64)
            .map(|i| first.wrapping_add(step.wrapping_mul(i)))
            .collect()
    });
    let noise = prop_oneof![
        vec(0i64..70_000, 0..20),
        vec(any::<i64>(), 0..9),
        vec(0i64..100, 0..60)
    ];
    vec(prop_oneof![run, noise], 0..5).prop_map(|parts: Vec<Vec<i64>>| parts.concat())
}

proptest! {
    #[test]
    fn arrays_come_back_from_begin_and_tick(values in values()) {
        let (begin, at_step, words) = through_a_log(&values, 8);
        prop_assert_eq!(&begin, &values);
        prop_assert_eq!(&at_step, &values);
        // Never more than a header and a word each.
        prop_assert!(words <= 1 + values.len());
    }

    #[test]
    fn indices_fit_the_width_of_their_bound(bound in 1u64..1 << 40, picks in vec(any::<u64>(), 1..40)) {
        let values: Vec<i64> = picks.iter().map(|pick| (pick % bound) as i64).chain([bound as i64 - 1]).collect();
        let (begin, at_step, _) = through_a_log(&values, width_for(bound));
        prop_assert_eq!(&begin, &values);
        prop_assert_eq!(&at_step, &values);
    }

    #[test]
    fn strided_arrays_are_read_in_order(
        count in [0usize..4, 0usize..4, 0usize..3], padding in [0usize..9, 0usize..9, 0usize..9], seed: u64,
    ) {
        for element in [Element::I32, Element::I64, Element::F32] {
            let bytes = if element == Element::I64 { 8 } else { 4 };
            let mut strides_bytes = [bytes + padding[0], 0, 0];
            strides_bytes[1] = strides_bytes[0] * count[0].max(1) + padding[1];
            strides_bytes[2] = strides_bytes[1] * count[1].max(1) + padding[2];
            let memory: Vec<u8> =
                (0..strides_bytes[2] * 3 + 8).map(|i| (seed.rotate_left(i as u32) ^ i as u64) as u8).collect();
            let source =
                Source { data: memory.as_ptr(), element, count, strides_bytes, bound: u64::MAX, width_bytes: 8 };
            let mut found = Vec::new();
            // SAFETY: `memory` covers all counts and strides.
            unsafe { source.for_each(|value| found.push(value)) };
            let mut expected = Vec::new();
            for (i2, i1, i0) in (0..count[2])
                .flat_map(|i2| (0..count[1]).map(move |i1| (i2, i1)))
                .flat_map(|(i2, i1)| (0..count[0]).map(move |i0| (i2, i1, i0)))
            {
                let at = i2 * strides_bytes[2] + i1 * strides_bytes[1] + i0 * strides_bytes[0];
                let raw = &memory[at..at + bytes];
                expected.push(match element {
                    Element::I32 => i64::from(i32::from_le_bytes(raw.try_into().unwrap())),
                    Element::I64 => i64::from_le_bytes(raw.try_into().unwrap()),
                    Element::F32 => i64::from(u32::from_le_bytes(raw.try_into().unwrap())),
                });
            }
            prop_assert_eq!(source.elements(), expected.len());
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn names_print_back_as_they_were(name in "[a-z_.-]{0,6}[0-9]{0,11}[a-z ()]{0,6}") {
        let (pattern, number) = split_number(name.as_bytes());
        let mut definitions = Definitions::default();
        definitions.texts.push(pattern);
        prop_assert_eq!(definitions.name(Name { pattern: 0, number }), name);
    }
}

#[test]
fn what_repeats_is_stored_as_runs() {
    let check = |values: &[i64], words| {
        let (begin, _, coded) = through_a_log(values, 8);
        assert_eq!((begin.as_slice(), coded), (values, words), "{values:?}");
    };
    check(&[], 1);
    check(&[5], 2);
    // 512 KV cells in a row: header, number of runs, one run.
    check(&(100..612).collect::<Vec<_>>(), 5);
    // Rows of a transposed V cache for 2 cells: 64 rows, 4096 apart.
    check(&(0..64).map(|row| 17 + row * 4096).collect::<Vec<_>>(), 5);
    // Token ids: two bytes each.
    check(&[9, 1, 30_000, 7, 4, 65_535, 12], 1 + 2);
    check(&[9, 1, 70_000], 1 + 2);
}
