//! Random sequences and traces for the property tests.
#![allow(dead_code)] // each test file uses some of it

use analysis::{
    cache_trace::{CacheTrace, Reference, Use},
    sequence::{EvalInfo, Extent, Piece, Run, Sequence, Unit},
};
use gguf::Component;
use proptest::prelude::*;
use trace::format::Phase;

/// A trace over items of different sizes; some accesses only probe, and some of
/// the middle is not generating.
pub fn cache_trace() -> impl Strategy<Value = CacheTrace<'static>> {
    (2usize..9)
        .prop_flat_map(|items| {
            (
                prop::collection::vec(1u64..12, items),
                prop::collection::vec((0..items as u32, 0u32..8), 0..120),
                any::<prop::sample::Index>(),
            )
        })
        .prop_map(|(item_bytes, uses, cut)| {
            let items = item_bytes.len() as u32;
            let accesses: Vec<u32> = uses
                .iter()
                .map(|&(item, probe)| if probe == 0 { items + item } else { item })
                .collect();
            let mut trace = CacheTrace::whole_items(item_bytes.clone(), accesses);
            for (item, &bytes) in item_bytes.iter().enumerate() {
                trace.references.push(Reference {
                    item: item as u32,
                    kind: Use::Probe,
                    bytes: bytes.div_ceil(3),
                    touches: 1,
                });
            }
            let len = trace.accesses.len();
            if len > 0 {
                trace.generate = std::iter::once(cut.index(len)..len).collect();
            }
            trace
        })
}

/// Equal sizes, no probes.
pub fn equal_trace() -> impl Strategy<Value = CacheTrace<'static>> {
    (2usize..12)
        .prop_flat_map(|items| {
            (
                Just(items),
                prop::collection::vec(0..items as u32, 0..150),
                any::<prop::sample::Index>(),
            )
        })
        .prop_map(|(items, accesses, cut)| {
            let len = accesses.len();
            let mut trace = CacheTrace::whole_items(vec![1; items], accesses);
            if len > 0 {
                trace.generate = std::iter::once(cut.index(len)..len).collect();
            }
            trace
        })
}

pub fn unit(name: &str, bytes: u64, file_offset: Option<u64>) -> Unit {
    Unit {
        name: name.into(),
        expert: None,
        layer: Some(0),
        component: Component::Ffn,
        role: "up".into(),
        bytes,
        file: file_offset.map(|_| 0),
        file_offset,
    }
}

pub fn eval(phase: Phase, first_access: usize, access_count: usize) -> EvalInfo {
    EvalInfo {
        phase,
        first_access: first_access as u32,
        access_count: access_count as u32,
        tokens: 1,
        begin_nanos: 0,
        end_nanos: 0,
    }
}

/// A sequence that reads all its units whole, `passes` times in order, the first
/// pass as a prompt.
pub fn cyclic(units: Vec<Unit>, passes: usize) -> Sequence {
    let count = units.len();
    let mut sequence = Sequence {
        units,
        ..Sequence::default()
    };
    for at in 0..count {
        let bytes = sequence.units[at].bytes;
        whole(&mut sequence, at as u32, bytes);
    }
    for pass in 0..passes {
        let phase = if pass == 0 {
            Phase::Prompt
        } else {
            Phase::Generate
        };
        sequence.evals.push(eval(phase, pass * count, count));
        sequence.accesses.extend(0..count as u32);
    }
    sequence
}

fn whole(sequence: &mut Sequence, unit: u32, bytes: u64) {
    sequence.pieces.push(Piece {
        unit,
        extent: Extent::Whole,
        bytes,
        first_run: sequence.runs.len() as u32,
        run_count: 1,
    });
    sequence.runs.push(Run { offset: 0, bytes });
}

/// Units packed into two files with random gaps, some in none; whole reads and
/// reads of one or two runs; a few evaluations of each phase.
pub fn placed_sequence() -> impl Strategy<Value = Sequence> {
    let unit = (0u32..3, 1u64..40_000, 0u64..9_000);
    let part = (
        any::<prop::sample::Index>(),
        0u64..40_000,
        1u64..9_000,
        0u64..9_000,
    );
    (
        prop::collection::vec(unit, 1..8),
        prop::collection::vec(part, 0..6),
        prop::collection::vec(
            (
                0u8..2,
                prop::collection::vec(any::<prop::sample::Index>(), 0..14),
            ),
            1..8,
        ),
    )
        .prop_map(|(units, parts, evals)| {
            let mut sequence = Sequence::default();
            let mut ends = [0u64; 2];
            for (at, (file, bytes, gap)) in units.into_iter().enumerate() {
                let mut unit = self::unit(&format!("u{at}"), bytes, None);
                if file < 2 {
                    unit.file = Some(file);
                    unit.file_offset = Some(ends[file as usize] + gap);
                    ends[file as usize] += gap + bytes;
                }
                sequence.units.push(unit);
                whole(&mut sequence, at as u32, bytes);
            }
            for (unit, offset, bytes, gap) in parts {
                let unit = unit.index(sequence.units.len());
                let size = sequence.units[unit].bytes;
                let offset = offset % size;
                let first = Run {
                    offset,
                    bytes: bytes.min(size - offset),
                };
                let second = offset + first.bytes + gap + 1;
                let mut runs = vec![first];
                if second < size {
                    runs.push(Run {
                        offset: second,
                        bytes: 1,
                    });
                }
                let bytes = runs.iter().map(|run| run.bytes).sum();
                if bytes == size {
                    continue;
                }
                sequence.pieces.push(Piece {
                    unit: unit as u32,
                    extent: Extent::Part,
                    bytes,
                    first_run: sequence.runs.len() as u32,
                    run_count: runs.len() as u32,
                });
                sequence.runs.extend(runs);
            }
            for (phase, pieces) in evals {
                let phase = [Phase::Prompt, Phase::Generate][phase as usize];
                let first = sequence.accesses.len();
                sequence.evals.push(eval(phase, first, pieces.len()));
                let pieces = pieces
                    .iter()
                    .map(|at| at.index(sequence.pieces.len()) as u32);
                let pieces: Vec<u32> = pieces.collect();
                sequence.accesses.extend(pieces);
            }
            sequence
        })
}
