//! Random runs, and every access of them written out: what the facts are checked
//! against.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use analysis::{
    facts::{Facts, Model, Options},
    reading::Reading,
    sequence::Sequence,
};
use gguf::Meaning;
use reader::{Visitor, Walk};
use support::random::Random;
use trace::{
    expand::for_each_access,
    format::Phase,
    read::{Definitions, Evaluation},
    region::{IndexOrder, Indexed, Region, Strided},
    template::*,
};

pub struct Shape {
    pub layers: u32,
    pub experts: u64,
    pub used: u64,
    pub vocabulary: u64,
    pub embedding_row_bytes: u64,
    pub q_heads: u64,
    pub kv_heads: u64,
    /// Bytes of a weight matrix's row and of a KV row are multiples of these.
    pub head_bytes: u64,
    pub cells: u64,
    /// Between tensors in the file, in turn.
    pub gaps_bytes: Vec<u64>,
}

pub struct Stream {
    pub definitions: Definitions,
    pub evaluations: Vec<Evaluation>,
}

pub struct Run {
    pub shape: Shape,
    pub streams: Vec<Stream>,
}

const TEXTS: [&str; 18] = [
    "GET_ROWS",
    "MUL_MAT",
    "SET_ROWS",
    "FLASH_ATTN_EXT",
    "MUL_MAT_ID",
    "ADD_ID",
    "MUL",
    "token_embd.weight",
    "blk.\0.attn_q.weight",
    "blk.\0.attn_output.weight",
    "blk.\0.ffn_up_exps.weight",
    "blk.\0.ffn_up_exps.bias",
    "cache_k_l\0",
    "cache_v_l\0",
    "act-\0",
    "inp_tokens",
    "node",
    "CPU",
];

fn text(wanted: &str) -> u32 {
    TEXTS.iter().position(|t| *t == wanted).unwrap() as u32
}

fn name(pattern: &str, number: Option<u32>) -> Name {
    Name {
        pattern: text(pattern),
        number,
    }
}

/// Tensors of a layer, in the order of their definition after the first two.
const PER_LAYER: u32 = 7;
const Q: u32 = 0;
const O: u32 = 1;
const UP: u32 = 2;
const BIAS: u32 = 3;
const K: u32 = 4;
const V: u32 = 5;
const ACT: u32 = 6;

fn tensor_of(layer: u32, which: u32) -> u32 {
    2 + layer * PER_LAYER + which
}

pub fn random_run(seed: u64) -> Run {
    let random = &mut Random(seed);
    let shape = Shape {
        layers: 1 + random.below(3) as u32,
        experts: [3, 8, 70][random.below(3) as usize],
        used: 1 + random.below(3),
        vocabulary: 20,
        embedding_row_bytes: [16, 96][random.below(2) as usize],
        q_heads: 4,
        kv_heads: 2,
        head_bytes: 8,
        cells: 64,
        gaps_bytes: (0..7)
            .map(|_| [0, 8, 200][random.below(3) as usize])
            .collect(),
    };
    let streams = (0..1 + random.below(2))
        .map(|_| stream(random, &shape))
        .collect();
    Run { shape, streams }
}

fn stream(random: &mut Random, shape: &Shape) -> Stream {
    let mut definitions = Definitions {
        texts: TEXTS.iter().map(|t| t.as_bytes().to_vec()).collect(),
        tokens: (0..10)
            .map(|id| (id, format!("t{id}").into_bytes()))
            .collect(),
        ..Definitions::default()
    };
    let mut file_offset = 1000;
    let mut gaps_bytes = shape.gaps_bytes.iter().cycle();
    let mut tensor = |name: Name, kind, size_bytes| {
        let place = (kind == TensorKind::Weight).then_some(FilePlace {
            file: 0,
            file_offset,
        });
        file_offset += size_bytes + gaps_bytes.next().unwrap();
        definitions.tensors.push(TensorDef {
            name,
            kind,
            ggml_type: 0,
            ne: [1; 4],
            size_bytes,
            address: 0,
            buffer_type: text("CPU"),
            place,
        });
    };
    let (weight, kv) = (TensorKind::Weight, TensorKind::KvCache);
    tensor(
        name("token_embd.weight", None),
        weight,
        shape.vocabulary * shape.embedding_row_bytes,
    );
    tensor(name("inp_tokens", None), TensorKind::Input, 64);
    let (q_row, kv_row) = (
        shape.q_heads * shape.head_bytes,
        shape.kv_heads * shape.head_bytes,
    );
    for layer in 0..shape.layers {
        let layer = Some(layer);
        tensor(name("blk.\0.attn_q.weight", layer), weight, q_row * 4);
        tensor(name("blk.\0.attn_output.weight", layer), weight, q_row * 3);
        tensor(
            name("blk.\0.ffn_up_exps.weight", layer),
            weight,
            shape.experts * 100,
        );
        tensor(
            name("blk.\0.ffn_up_exps.bias", layer),
            weight,
            shape.experts * 68,
        );
        tensor(name("cache_k_l\0", layer), kv, shape.cells * kv_row);
        tensor(name("cache_v_l\0", layer), kv, shape.cells * kv_row);
        tensor(name("act-\0", layer), TensorKind::Activation, 4096);
    }
    for _ in 0..1 + random.below(3) {
        let template = template(random, shape);
        definitions.templates.push(template);
    }
    let evaluations = (0..random.below(25))
        .map(|number| evaluation(random, shape, &definitions, number))
        .collect();
    Stream {
        definitions,
        evaluations,
    }
}

fn template(random: &mut Random, shape: &Shape) -> Template {
    let tokens = 1 + random.below(4);
    let capture = |kind, time, count, layer, pair| CaptureDef {
        kind,
        time,
        count,
        width_bytes: 8,
        layer,
        pair,
    };
    let mut captures = vec![
        capture(
            CaptureKind::Tokens,
            CaptureTime::Begin,
            [tokens, 1, 1],
            None,
            None,
        ),
        capture(
            CaptureKind::Positions,
            CaptureTime::Begin,
            [tokens, 1, 1],
            None,
            None,
        ),
        capture(
            CaptureKind::Index,
            CaptureTime::Begin,
            [tokens, 1, 1],
            None,
            None,
        ),
    ];
    let access = |tensor, operand: Option<u8>, region| AccessDef {
        tensor,
        operand: operand.map_or(Operand::Destination, Operand::Source),
        direction: if operand.is_some() {
            Direction::Read
        } else {
            Direction::Write
        },
        region,
    };
    let rows = |capture, bytes, bound, count, order| {
        Region::Indexed(Indexed {
            capture,
            unit: Strided::range(0, bytes),
            stride: bytes,
            bound,
            count,
            outer_strides: [0, 0],
            order,
        })
    };
    let fixed = |offset, bytes| Region::Fixed(Strided::range(offset, bytes));
    let each = IndexOrder::EachInOrder;
    let mut steps: Vec<(&str, Option<u32>, Vec<AccessDef>)> = vec![(
        "GET_ROWS",
        None,
        vec![
            access(
                0,
                Some(0),
                rows(
                    0,
                    shape.embedding_row_bytes,
                    shape.vocabulary,
                    [tokens, 1, 1],
                    each,
                ),
            ),
            access(1, Some(1), fixed(0, 4 * tokens)),
            access(tensor_of(0, ACT), None, fixed(0, 64)),
        ],
    )];
    let kv_row = shape.kv_heads * shape.head_bytes;
    let extent = kv_row * (1 + random.below(shape.cells));
    for layer in 0..shape.layers {
        let at = |which| tensor_of(layer, which);
        let q_bytes = shape.q_heads * shape.head_bytes * 4;
        // Now and then a part only, or a part with gaps.
        let q_region = match random.below(4) {
            0 => fixed(16, q_bytes / 2),
            1 => Region::Fixed(Strided::new(0, 8, [(3, 24)])),
            _ => fixed(0, q_bytes),
        };
        steps.push((
            "MUL_MAT",
            Some(layer),
            vec![
                access(at(Q), Some(0), q_region),
                access(at(ACT), None, fixed(0, 128)),
            ],
        ));
        steps.push((
            "SET_ROWS",
            Some(layer),
            vec![access(
                at(K),
                None,
                rows(2, kv_row, shape.cells, [tokens, 1, 1], each),
            )],
        ));
        steps.push((
            "SET_ROWS",
            Some(layer),
            vec![access(
                at(V),
                None,
                rows(2, kv_row, shape.cells, [tokens, 1, 1], each),
            )],
        ));
        steps.push((
            "FLASH_ATTN_EXT",
            Some(layer),
            vec![
                access(at(K), Some(1), fixed(0, extent)),
                access(at(V), Some(2), fixed(0, extent)),
            ],
        ));
        let o_bytes = shape.q_heads * shape.head_bytes * 3;
        steps.push((
            "MUL_MAT",
            Some(layer),
            vec![access(at(O), Some(0), fixed(0, o_bytes))],
        ));
        let ids = captures.len() as u32;
        let step = CaptureTime::Step(steps.len() as u32);
        captures.push(capture(
            CaptureKind::ExpertIds,
            step,
            [shape.used, tokens, 1],
            Some(layer),
            None,
        ));
        captures.push(capture(
            CaptureKind::ExpertWeights,
            step,
            [shape.used, tokens, 1],
            Some(layer),
            Some(ids),
        ));
        let slices = rows(
            ids,
            100,
            shape.experts,
            [shape.used, tokens, 1],
            IndexOrder::DistinctAscending,
        );
        steps.push((
            "MUL_MAT_ID",
            Some(layer),
            vec![access(at(UP), Some(0), slices)],
        ));
        if random.one_in(2) {
            let biases = rows(ids, 68, shape.experts, [shape.used, tokens, 1], each);
            steps.push((
                "ADD_ID",
                Some(layer),
                vec![access(at(BIAS), Some(1), biases)],
            ));
        }
        // Short rows of an activation, which are given merged.
        let scores = rows(ids, 4, shape.experts, [shape.used, tokens, 1], each);
        steps.push((
            "GET_ROWS",
            Some(layer),
            vec![access(at(ACT), Some(0), scores)],
        ));
    }
    if random.one_in(2) {
        // A tied embedding: the whole of what was read by rows.
        let bytes = shape.vocabulary * shape.embedding_row_bytes;
        steps.push(("MUL_MAT", None, vec![access(0, Some(0), fixed(0, bytes))]));
    }
    let steps = steps
        .into_iter()
        .enumerate()
        .map(|(node, (op, layer, accesses))| Step {
            node: node as u32,
            fused_nodes: 1,
            op: text(op),
            name: name("node", None),
            layer,
            op_is_known: true,
            accesses,
        });
    let steps: Vec<Step> = steps.collect();
    Template {
        device: None,
        nodes: steps.len() as u32,
        steps,
        captures,
    }
}

fn evaluation(
    random: &mut Random,
    shape: &Shape,
    definitions: &Definitions,
    number: u64,
) -> Evaluation {
    let template_number = random.below(definitions.templates.len() as u64) as u32;
    let template = &definitions.templates[template_number as usize];
    let begin_nanos = 1_000_000 * (number + 1);
    let is_aborted = random.one_in(6);
    let last = if is_aborted {
        random.below(template.steps.len() as u64)
    } else {
        u64::MAX
    };
    let step_nanos: Vec<u64> = (0..template.steps.len() as u64)
        .map(|step| {
            if step < last {
                begin_nanos + (step + 1) * 100 + random.below(50)
            } else {
                0
            }
        })
        .collect();
    let mut captures: Vec<Vec<i64>> = Vec::new();
    for def in &template.captures {
        let executed = match def.time {
            CaptureTime::Begin => true,
            CaptureTime::Step(step) => step_nanos[step as usize] != 0,
        };
        let n = def.elements();
        captures.push(if !executed {
            Vec::new()
        } else {
            match def.kind {
                CaptureKind::Tokens => (0..n).map(|_| random.below(12) as i64).collect(),
                CaptureKind::Positions => (0..n).map(|i| (number + i) as i64).collect(),
                CaptureKind::ExpertIds => chosen(random, shape, def.count[1]),
                CaptureKind::ExpertWeights => (0..n)
                    .map(|_| i64::from((random.below(100) as f32 / 100.0).to_bits()))
                    .collect(),
                // Now and then a cell that is not there.
                _ => (0..n)
                    .map(|_| random.below(shape.cells + 1) as i64 - i64::from(random.one_in(9)))
                    .collect(),
            }
        });
    }
    Evaluation {
        number,
        template: template_number,
        phase: [Phase::Unknown, Phase::Prompt, Phase::Generate][random.below(3) as usize],
        threads: 1,
        context: 0,
        begin_nanos,
        end_nanos: begin_nanos + 9_000,
        ticks: step_nanos.iter().filter(|&&n| n != 0).count() as u32,
        flags: 0,
        step_nanos,
        captures,
        sequences: Vec::new(),
        token_phases: Vec::new(),
        origins: None,
        device: None,
    }
}

/// Distinct experts for each token; low numbers more often. Sometimes a wrong id.
fn chosen(random: &mut Random, shape: &Shape, tokens: u64) -> Vec<i64> {
    let mut ids = Vec::new();
    for _ in 0..tokens {
        let mut of_token: Vec<i64> = Vec::new();
        while (of_token.len() as u64) < shape.used {
            let bound = 1 + random.below(shape.experts + 1);
            let id = random.below(bound) as i64;
            if !of_token.contains(&id) {
                of_token.push(id);
            }
        }
        ids.extend(of_token);
    }
    ids
}

/// One access, written out.
#[derive(Clone, Debug)]
pub struct Row {
    pub stream: usize,
    pub eval: usize,
    pub template: u32,
    pub phase: &'static str,
    pub op: String,
    pub layer: Option<u32>,
    pub kind: TensorKind,
    pub name: String,
    pub component: String,
    pub role: Option<String>,
    pub direction: &'static str,
    pub expert: Option<u32>,
    pub bytes: u64,
    /// In the tensor.
    pub region: Strided,
    pub file_offset: Option<u64>,
}

/// Every access of a run, in order.
pub fn expand(run: &Run) -> Vec<Row> {
    let mut rows = Vec::new();
    for (stream, contents) in run.streams.iter().enumerate() {
        let definitions = &contents.definitions;
        for (eval, evaluation) in contents.evaluations.iter().enumerate() {
            let template = &definitions.templates[evaluation.template as usize];
            for (number, step) in template.steps.iter().enumerate() {
                if !evaluation.was_executed(number) {
                    continue;
                }
                for_each_access(template, evaluation, number, |access| {
                    let tensor = &definitions.tensors[access.def.tensor as usize];
                    let name = definitions.name(tensor.name);
                    let meaning = Meaning::of(&name);
                    let is_weight = tensor.kind == TensorKind::Weight;
                    rows.push(Row {
                        stream,
                        eval,
                        template: evaluation.template,
                        phase: evaluation.phase.name(),
                        op: definitions.text(step.op),
                        layer: step.layer,
                        kind: tensor.kind,
                        component: if is_weight {
                            match (&*meaning.role, &*definitions.text(step.op)) {
                                ("token", "MUL_MAT") => "output",
                                _ => meaning.component.name(),
                            }
                        } else {
                            tensor.kind.name()
                        }
                        .to_owned(),
                        role: is_weight.then(|| meaning.role.to_string()),
                        name,
                        direction: match access.def.direction {
                            Direction::Read => "read",
                            Direction::Write => "write",
                        },
                        expert: access.expert.filter(|_| is_weight),
                        bytes: access.region.bytes(),
                        file_offset: tensor.place.map(|p| p.file_offset + access.region.offset),
                        region: access.region,
                    });
                });
            }
        }
    }
    rows
}

pub fn facts(run: &Run, model: &Model, options: Options) -> Facts {
    read(run, model, options).0
}

pub fn read(run: &Run, model: &Model, options: Options) -> (Facts, Sequence) {
    let (mut walk, mut reading) = (Walk::default(), Reading::new(options));
    for (number, stream) in run.streams.iter().enumerate() {
        walk.begin_stream(number as u32);
        for evaluation in &stream.evaluations {
            let seen = walk.see(&stream.definitions, evaluation).unwrap();
            reading.evaluation(&seen).unwrap();
        }
        reading
            .stream_ends(&walk.end_stream(&stream.definitions))
            .unwrap();
    }
    reading.finish(walk.tensors(), model)
}
