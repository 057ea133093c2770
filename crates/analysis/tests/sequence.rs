//! The fast way from evaluations to a sequence against the plain expansion of
//! crate `trace`, on random graphs.

use std::collections::BTreeMap;

use analysis::{
    facts::{Model, Options},
    pass::Pass,
    reading::Reading,
    sequence::{Extent, Sequence, SequenceBuilder},
};
use gguf::Component;
use proptest::prelude::*;
use reader::{Visitor, Walk};
use trace::{
    expand::for_each_access,
    format::Phase,
    read::{Definitions, Evaluation},
    region::{IndexOrder, Indexed, Region, Strided},
    template::{
        AccessDef, CaptureDef, CaptureKind, CaptureTime, Direction, FilePlace, Name, Operand, Step,
        Template, TensorDef, TensorKind,
    },
};

const EXPERTS: u64 = 6;
const SLICE_BYTES: u64 = 640;
const ROWS: u64 = 50;
const ROW_BYTES: u64 = 96;
const BIAS_ROW_BYTES: u64 = 16;
const USED: u64 = 2;

/// Tensors of [`definitions`], by number.
const EMBEDDING: u32 = 0;
const DENSE: u32 = 1;
const EXPERT: u32 = 2;
const BIAS: u32 = 3;
const ACTIVATION: u32 = 4;

fn definitions() -> Definitions {
    let names: [(&str, TensorKind, [u64; 4], u64); 5] = [
        (
            "token_embd.weight",
            TensorKind::Weight,
            [24, ROWS, 1, 1],
            ROWS * ROW_BYTES,
        ),
        (
            "blk.0.ffn_up.weight",
            TensorKind::Weight,
            [32, 10, 1, 1],
            1280,
        ),
        (
            "blk.1.ffn_up_exps.weight",
            TensorKind::Weight,
            [16, 10, EXPERTS, 1],
            EXPERTS * SLICE_BYTES,
        ),
        (
            "blk.1.ffn_up_exps.bias",
            TensorKind::Weight,
            [4, EXPERTS, 1, 1],
            EXPERTS * BIAS_ROW_BYTES,
        ),
        ("ffn_out", TensorKind::Activation, [24, 1, 1, 1], 96),
    ];
    let mut definitions = Definitions::default();
    let mut file_offset = 1000;
    for (name, kind, ne, size_bytes) in names {
        let pattern = definitions.texts.len() as u32;
        definitions.texts.push(name.into());
        definitions.tensors.push(TensorDef {
            name: Name {
                pattern,
                number: None,
            },
            kind,
            ggml_type: 0,
            ne,
            size_bytes,
            address: 0,
            buffer_type: 0,
            place: (kind == TensorKind::Weight).then_some(FilePlace {
                file: 0,
                file_offset,
            }),
        });
        file_offset += size_bytes;
    }
    definitions
}

fn access(tensor: u32, region: Region<u32>) -> AccessDef {
    AccessDef {
        tensor,
        operand: Operand::Source(0),
        direction: Direction::Read,
        region,
    }
}

fn indexed(capture: u32, bytes: u64, bound: u64, count: u64, order: IndexOrder) -> Region<u32> {
    Region::Indexed(Indexed {
        capture,
        unit: Strided::range(0, bytes),
        stride: bytes,
        bound,
        count: [count, 1, 1],
        outer_strides: [0, 0],
        order,
    })
}

/// One step of a kind.
fn step_accesses(kind: u8, tokens: u64) -> Vec<AccessDef> {
    let fixed = |offset, bytes| Region::Fixed(Strided::range(offset, bytes));
    match kind {
        0 => vec![access(
            EMBEDDING,
            indexed(0, ROW_BYTES, ROWS, tokens, IndexOrder::EachInOrder),
        )],
        1 => vec![
            access(DENSE, fixed(0, 1280)),
            access(ACTIVATION, fixed(0, 96)),
        ],
        2 => vec![access(
            EXPERT,
            indexed(1, SLICE_BYTES, EXPERTS, 0, IndexOrder::DistinctAscending),
        )],
        3 => vec![access(
            BIAS,
            indexed(
                1,
                BIAS_ROW_BYTES,
                EXPERTS,
                tokens * USED,
                IndexOrder::EachInOrder,
            ),
        )],
        // The output of a model with tied embeddings.
        4 => vec![access(EMBEDDING, fixed(0, ROWS * ROW_BYTES))],
        // A view with gaps, and one across two slices.
        5 => vec![
            access(DENSE, Region::Fixed(Strided::new(64, 32, [(4, 128)]))),
            access(EXPERT, fixed(600, 100)),
        ],
        // All experts at once, and a write, which is no read.
        _ => vec![
            access(EXPERT, fixed(0, EXPERTS * SLICE_BYTES)),
            AccessDef {
                direction: Direction::Write,
                ..access(DENSE, fixed(0, 1280))
            },
        ],
    }
}

fn template(kinds: &[u8], tokens: u64) -> Template {
    let step = |(node, &kind): (usize, &u8)| Step {
        node: node as u32,
        fused_nodes: 1,
        op: 0,
        name: Name {
            pattern: 0,
            number: None,
        },
        layer: None,
        op_is_known: true,
        accesses: step_accesses(kind, tokens),
    };
    let capture = |kind, count| CaptureDef {
        kind,
        time: CaptureTime::Begin,
        count,
        width_bytes: 4,
        layer: Some(1),
        pair: None,
    };
    Template {
        device: None,
        nodes: kinds.len() as u32,
        steps: kinds.iter().enumerate().map(step).collect(),
        captures: vec![
            capture(CaptureKind::Tokens, [tokens, 1, 1]),
            capture(CaptureKind::ExpertIds, [USED, tokens, 1]),
        ],
    }
}

/// What crate `trace` says: tensor, offset in it and bytes of each run, by access.
fn expected(definitions: &Definitions, evaluation: &Evaluation) -> Vec<(u32, Vec<(u64, u64)>)> {
    let template = &definitions.templates[evaluation.template as usize];
    let mut accesses = Vec::new();
    for step in (0..template.steps.len()).filter(|&step| evaluation.was_executed(step)) {
        for_each_access(template, evaluation, step, |access| {
            let tensor = access.def.tensor;
            let kind = definitions.tensors[tensor as usize].kind;
            if kind == TensorKind::Weight && access.def.direction == Direction::Read {
                let mut runs = Vec::new();
                access
                    .region
                    .for_each_run(|offset, bytes| runs.push((offset, bytes)));
                accesses.push((tensor, runs));
            }
        });
    }
    accesses
}

/// Slices cut apart, touching runs of one tensor joined, so that an access that
/// became one piece per slice compares equal.
fn normal(runs: impl IntoIterator<Item = (u32, u64, u64)>) -> Vec<(u32, u64, u64)> {
    let mut joined: Vec<(u32, u64, u64)> = Vec::new();
    for (tensor, offset, bytes) in runs {
        match joined.last_mut() {
            Some(last) if last.0 == tensor && last.1 + last.2 == offset => last.2 += bytes,
            _ => joined.push((tensor, offset, bytes)),
        }
    }
    joined
}

/// One stream after the other.
fn built(streams: &[(&Definitions, &[Evaluation])]) -> Sequence {
    let (mut walk, mut pass) = (Walk::default(), Pass::default());
    let mut builder = SequenceBuilder::default();
    for (number, (definitions, evaluations)) in streams.iter().enumerate() {
        walk.begin_stream(number as u32);
        for evaluation in *evaluations {
            let seen = walk.see(definitions, evaluation).unwrap();
            builder.push(&pass.push(&seen)).unwrap();
        }
        pass.end_stream();
    }
    builder.finish(pass.units)
}

prop_compose! {
    fn evaluations(templates: u32)(
        evaluations in prop::collection::vec(
            (
                0..templates,
                prop::collection::vec(-1i64..ROWS as i64 + 1, 3),
                prop::collection::vec(-1i64..EXPERTS as i64 + 1, 3 * USED as usize),
                prop::option::of(0usize..6),
            ),
            1..8,
        )
    ) -> Vec<(u32, Vec<i64>, Vec<i64>, Option<usize>)> {
        evaluations
    }
}

proptest! {
    #[test]
    fn a_sequence_reads_what_the_log_says(
        graphs in prop::collection::vec((1u64..4, prop::collection::vec(0u8..7, 1..9)), 3),
        evaluations in evaluations(3),
    ) {
        let mut definitions = definitions();
        for (tokens, kinds) in &graphs {
            definitions.templates.push(template(kinds, *tokens));
        }
        let evaluations: Vec<Evaluation> = evaluations
            .into_iter()
            .enumerate()
            .map(|(number, (template, tokens, experts, skipped))| {
                let (batch, kinds) = &graphs[template as usize];
                let batch = *batch as usize;
                let executed = |step| u64::from(Some(step) != skipped);
                Evaluation {
                    number: number as u64,
                    template,
                    phase: Phase::Generate,
                    threads: 1,
                    context: 0,
                    begin_nanos: 1,
                    end_nanos: 2,
                    ticks: 0,
                    flags: 0,
                    step_nanos: (0..kinds.len()).map(executed).collect(),
                    captures: vec![tokens[..batch].to_vec(), experts[..batch * USED as usize].to_vec()],
                    sequences: Vec::new(),
                    token_phases: Vec::new(),
                    origins: None,
                    device: None,
                }
            })
            .collect();
        let sequence = built(&[(&definitions, &evaluations)]);
        prop_assert_eq!(sequence.evals.len(), evaluations.len());
        let tensor_of: BTreeMap<String, u32> =
            (0..4).map(|tensor| (definitions.tensor_name(tensor), tensor)).collect();
        for (eval, evaluation) in sequence.evals.iter().zip(&evaluations) {
            let ours = sequence.accesses_of(eval).iter().flat_map(|&piece| {
                let piece = &sequence.pieces[piece as usize];
                let unit = &sequence.units[piece.unit as usize];
                let tensor = tensor_of[&unit.name];
                let start = definitions.tensors[tensor as usize].place.unwrap().file_offset;
                let base = unit.file_offset.unwrap() - start;
                assert_eq!(piece.extent == Extent::Whole, piece.bytes == unit.bytes);
                let runs = sequence.runs_of(piece).iter();
                runs.map(move |run| (tensor, base + run.offset, run.bytes)).collect::<Vec<_>>()
            });
            let theirs = expected(&definitions, evaluation);
            let theirs = theirs
                .into_iter()
                .flat_map(|(tensor, runs)| runs.into_iter().map(move |(o, b)| (tensor, o, b)));
            prop_assert_eq!(normal(ours), normal(theirs));
            prop_assert_eq!(eval.tokens as usize, evaluation.captures[0].len());
        }
    }
}

#[test]
fn units_are_tensors_and_expert_slices() {
    let mut definitions = definitions();
    definitions.templates.push(template(&[0, 1, 2, 3, 4], 1));
    let evaluation = Evaluation {
        number: 0,
        template: 0,
        phase: Phase::Unknown,
        threads: 1,
        context: 0,
        begin_nanos: 5,
        end_nanos: 9,
        ticks: 5,
        flags: 0,
        step_nanos: vec![6; 5],
        captures: vec![vec![7], vec![4, 2]],
        sequences: Vec::new(),
        token_phases: Vec::new(),
        origins: None,
        device: None,
    };
    let sequence = built(&[(&definitions, &[evaluation])]);
    let experts: Vec<_> = sequence
        .units
        .iter()
        .filter(|u| u.expert.is_some())
        .collect();
    assert_eq!(experts.len(), 2 * EXPERTS as usize);
    let slice = experts.iter().find(|u| u.expert == Some(4)).unwrap();
    assert_eq!(
        (slice.layer, slice.component, slice.bytes),
        (Some(1), Component::Expert, SLICE_BYTES)
    );
    let start = 1000 + ROWS * ROW_BYTES + 1280;
    assert_eq!(slice.file_offset, Some(start + 4 * SLICE_BYTES));

    let pieces = sequence.accesses.iter();
    let read: Vec<(String, Option<u32>, u64)> = pieces
        .map(|&piece| {
            let piece = &sequence.pieces[piece as usize];
            let unit = &sequence.units[piece.unit as usize];
            (unit.name.clone(), unit.expert, piece.bytes)
        })
        .collect();
    let up = "blk.1.ffn_up_exps.weight".to_owned();
    let bias = "blk.1.ffn_up_exps.bias".to_owned();
    let embedding = "token_embd.weight".to_owned();
    assert_eq!(
        read,
        [
            (embedding.clone(), None, ROW_BYTES),
            ("blk.0.ffn_up.weight".to_owned(), None, 1280),
            (up.clone(), Some(2), SLICE_BYTES),
            (up, Some(4), SLICE_BYTES),
            // Rows of a bias come in the order of the ids.
            (bias.clone(), Some(4), BIAS_ROW_BYTES),
            (bias, Some(2), BIAS_ROW_BYTES),
            (embedding, None, ROWS * ROW_BYTES),
        ]
    );
    assert!(sequence.evals[0].is_generate());
    assert_eq!(sequence.generated_tokens(), 1);
}

#[test]
fn facts_count_stacked_experts_read_at_once_for_each_expert() {
    let mut definitions = definitions();
    definitions.templates.push(template(&[2, 6], 1));
    let evaluation = Evaluation {
        number: 0,
        template: 0,
        phase: Phase::Generate,
        threads: 1,
        context: 0,
        begin_nanos: 0,
        end_nanos: 9,
        ticks: 2,
        flags: 0,
        step_nanos: vec![1, 2],
        captures: vec![vec![7], vec![4, 2]],
        sequences: Vec::new(),
        token_phases: Vec::new(),
        origins: None,
        device: None,
    };
    let (mut walk, mut reading) = (Walk::default(), Reading::new(Options::default()));
    let seen = walk.see(&definitions, &evaluation).unwrap();
    reading.evaluation(&seen).unwrap();
    reading.stream_ends(&walk.end_stream(&definitions)).unwrap();
    let (facts, _) = reading.finish(walk.tensors(), &Model::default());
    let units = facts.hot.units.iter();
    let read: Vec<(Option<u32>, u64)> = units.map(|u| (u.expert, u.accesses)).collect();
    let twice = |expert| 1 + u64::from([2, 4].contains(&expert));
    let expected: Vec<_> = (0..EXPERTS as u32).map(|e| (Some(e), twice(e))).collect();
    assert_eq!(read, expected);
    assert_eq!(facts.working_set.distinct_bytes, EXPERTS * SLICE_BYTES);
}

#[test]
fn streams_share_units_and_keep_their_own_numbers() {
    let mut first = definitions();
    first.templates.push(template(&[1], 1));
    // The second stream met the tensors in another order.
    let mut second = definitions();
    second.tensors.swap(DENSE as usize, EMBEDDING as usize);
    second.templates.push(template(&[4], 1));
    let Region::Fixed(all) = &mut second.templates[0].steps[0].accesses[0].region else {
        panic!("a fixed region")
    };
    *all = Strided::range(0, 1280);
    let evaluation = Evaluation {
        number: 0,
        template: 0,
        phase: Phase::Generate,
        threads: 1,
        context: 0,
        begin_nanos: 0,
        end_nanos: 0,
        ticks: 1,
        flags: 0,
        step_nanos: vec![1],
        captures: vec![vec![0], vec![0, 1]],
        sequences: Vec::new(),
        token_phases: Vec::new(),
        origins: None,
        device: None,
    };
    let evaluations = [evaluation];
    let sequence = built(&[(&first, &evaluations), (&second, &evaluations)]);
    assert_eq!(sequence.units.len(), 1);
    assert_eq!(sequence.accesses, [0, 0]);
    assert_eq!(sequence.touched_bytes(), 1280);
}
