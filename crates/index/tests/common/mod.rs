//! Random small logs with one of everything, and a naive reading of them.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod case;
pub mod reference;

use std::{path::Path, sync::Arc};

pub use support::random::Random;
pub use testing::log as fixture;
use trace::{
    append::Log,
    format::{Phase, RecordKind},
    read::Evaluation,
    region::{IndexOrder, Indexed, Region, Strided},
    status::StatusPage,
    template::*,
};

/// What a log is like.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub streams: u32,
    pub evals: u64,
    pub layers: u32,
    pub experts: u64,
    /// One evaluation in so many is not as one expects; 0: none.
    pub odd_one_in: u64,
    /// Whether a step is in the graph that needs all its evaluations expanded.
    pub has_odd_access: bool,
}

pub const USED: u64 = 2;
const ROWS: u64 = 50;
const ROW_BYTES: u64 = 96;
const SLICE_BYTES: u64 = 640;

/// Writes `RUN/log`.
pub fn write_run(run: &Path, kind: Kind, seed: u64) {
    let log_directory = run.join("log");
    std::fs::create_dir_all(&log_directory).unwrap();
    let status = Arc::new(StatusPage::create(&log_directory.join("status")).unwrap());
    let mut random = Random(seed);
    let mut nanos = 1_000_000;
    for stream in 0..kind.streams {
        let (log, mut appender) = Log::create_sized(
            &log_directory,
            stream,
            status.clone(),
            Box::new(|_| ()),
            4096,
        )
        .unwrap();
        let batches = [1, 1 + random.below(4)];
        let (definitions, templates) = graphs(kind, &batches);
        assert!(fixture::define(&mut appender, &definitions));
        let mut number = 0;
        for _ in 0..kind.evals {
            let which = usize::from(random.one_in(4));
            // Lost ones leave gaps.
            number += 1 + u64::from(random.one_in(9));
            let evaluation = evaluation(
                &templates[which],
                which as u32,
                number,
                &mut nanos,
                kind,
                &mut random,
            );
            let body = fixture::body(&templates[which], &evaluation);
            assert!(fixture::append(
                &mut appender,
                RecordKind::Evaluation,
                &body
            ));
        }
        log.finish(appender).unwrap();
    }
}

pub fn evaluation(
    template: &Template,
    number_of_template: u32,
    number: u64,
    nanos: &mut u64,
    kind: Kind,
    random: &mut Random,
) -> Evaluation {
    let is_odd = kind.odd_one_in > 0 && random.one_in(kind.odd_one_in);
    let oddity = if is_odd { random.below(4) } else { u64::MAX };
    let begin_nanos = *nanos;
    let cut = random.below(template.steps.len() as u64);
    let step_nanos: Vec<u64> = (0..template.steps.len() as u64)
        .map(|step| {
            *nanos += random.below(1000);
            match oddity {
                // Aborted.
                0 if step >= cut => 0,
                // One tick was not seen.
                1 if step == cut => 0,
                // Clocks that jump.
                2 if step == cut => *nanos - 500,
                3 if step == cut => {
                    *nanos += 5_000_000_000;
                    *nanos
                }
                _ => *nanos,
            }
        })
        .collect();
    let captures = template
        .captures
        .iter()
        .map(|capture| {
            let executed = match capture.time {
                CaptureTime::Begin => true,
                CaptureTime::Step(step) => step_nanos[step as usize] != 0,
            };
            let value = |random: &mut Random| match capture.kind {
                CaptureKind::Tokens => random.below(if is_odd { ROWS + 5 } else { ROWS }) as i64,
                CaptureKind::Positions => number as i64,
                CaptureKind::Index => random.below(if is_odd { 70 } else { 64 }) as i64,
                CaptureKind::ExpertIds => random.below(kind.experts + u64::from(is_odd)) as i64,
                CaptureKind::ExpertWeights => {
                    i64::from((random.below(100) as f32 / 100.0).to_bits())
                }
                CaptureKind::OutputRows => 0,
            };
            let elements = if executed { capture.elements() } else { 0 };
            let mut values: Vec<i64> = (0..elements).map(|_| value(random)).collect();
            if capture.kind == CaptureKind::OutputRows {
                // The last tokens of the batch.
                let batch = template.captures[0].count[0] as i64;
                values = (batch - elements as i64..batch).collect();
            }
            if capture.kind == CaptureKind::ExpertIds && !is_odd {
                // A token's choices differ.
                for pair in values.chunks_mut(USED as usize) {
                    pair[1] =
                        (pair[0] + 1 + random.below(kind.experts - 1) as i64) % kind.experts as i64;
                }
            }
            values
        })
        .collect();
    let batch = template.captures[0].count[0];
    *nanos += 100;
    let end_nanos = *nanos;
    *nanos += random.below(500);
    Evaluation {
        number,
        template: number_of_template,
        phase: [Phase::Prompt, Phase::Generate, Phase::Unknown][random.below(20).min(2) as usize],
        threads: 2,
        context: 0,
        begin_nanos,
        end_nanos,
        ticks: template.steps.len() as u32,
        flags: 0,
        step_nanos,
        captures,
        sequences: (0..batch).map(|s| s as u32).collect(),
        token_phases: Vec::new(),
        origins: None,
        device: None,
    }
}

/// Texts, tensors, and a template for each batch size.
pub fn graphs(kind: Kind, batches: &[u64]) -> (Vec<Definition>, Vec<Template>) {
    let mut graph = Texts::default();
    let mut offset = 4096;
    let mut tensor = |graph: &mut Texts, name: &str, number, kind, size_bytes: u64| {
        let place = (kind == TensorKind::Weight).then(|| {
            let place = FilePlace {
                file: u32::from(name.starts_with("out")),
                file_offset: if name.starts_with("out") { 640 } else { offset },
            };
            offset += size_bytes + 32;
            place
        });
        let pattern = graph.text(name);
        let buffer_type = graph.text("CPU");
        graph.tensors.push(TensorDef {
            name: Name { pattern, number },
            kind,
            ggml_type: 0,
            ne: [size_bytes / 4, 1, 1, 1],
            size_bytes,
            address: 0x1000,
            buffer_type,
            place,
        });
        graph.tensors.len() as u32 - 1
    };
    let weight = TensorKind::Weight;
    let embedding = tensor(
        &mut graph,
        "token_embd.weight",
        None,
        weight,
        ROWS * ROW_BYTES,
    );
    let output = tensor(&mut graph, "output.weight", None, weight, 6000);
    let mut layers = Vec::new();
    for layer in 0..kind.layers {
        let l = Some(layer);
        layers.push([
            tensor(
                &mut graph,
                "blk.\0.attn_q.weight",
                l,
                weight,
                1 + u64::from(layer) * 3777 % 9000 + 40,
            ),
            tensor(
                &mut graph,
                "blk.\0.ffn_up_exps.weight",
                l,
                weight,
                kind.experts * SLICE_BYTES,
            ),
            tensor(
                &mut graph,
                "blk.\0.ffn_up_exps.bias",
                l,
                weight,
                kind.experts * 64,
            ),
            tensor(&mut graph, "cache_k_l\0", l, TensorKind::KvCache, 64 * 80),
            tensor(&mut graph, "probs-\0", l, TensorKind::Activation, 4096),
        ]);
    }
    let hidden = tensor(&mut graph, "hidden", None, TensorKind::Activation, 4096);
    let templates: Vec<Template> = batches
        .iter()
        .map(|&batch| {
            template(
                &mut graph,
                kind,
                batch,
                (embedding, output, hidden),
                &layers,
            )
        })
        .collect();
    let mut definitions = graph.definitions();
    definitions.push(Definition::Token {
        id: 3,
        text: b"three".to_vec(),
    });
    definitions.extend(templates.iter().cloned().map(Definition::Template));
    (definitions, templates)
}

fn template(
    graph: &mut Texts,
    kind: Kind,
    batch: u64,
    (embedding, output, hidden): (u32, u32, u32),
    layers: &[[u32; 5]],
) -> Template {
    let each = IndexOrder::EachInOrder;
    let mut t = Template::default();
    for (capture, count) in [
        (CaptureKind::Tokens, [batch, 1, 1]),
        (CaptureKind::Positions, [batch, 1, 1]),
        (CaptureKind::Index, [batch, 1, 1]),
        // 2 outputs of a larger batch, as behind the last attention.
        (CaptureKind::OutputRows, [batch.min(2), 1, 1]),
    ] {
        t.captures.push(CaptureDef {
            kind: capture,
            time: CaptureTime::Begin,
            count,
            width_bytes: 8,
            layer: None,
            pair: None,
        });
    }
    let write = |tensor| {
        (
            tensor,
            Direction::Write,
            Region::Fixed(Strided::range(0, 64)),
        )
    };
    let rows = indexed(0, ROW_BYTES, ROWS, [batch, 1, 1], each);
    step(
        graph,
        &mut t,
        "GET_ROWS",
        "embd",
        None,
        vec![(embedding, Direction::Read, rows), write(hidden)],
    );
    for (number, &[query, experts, bias, cache, probs]) in layers.iter().enumerate() {
        let layer = Some(number as u32);
        let size = graph.tensors[query as usize].size_bytes;
        let region = Region::Fixed(Strided::new(size / 8, (size / 8).max(1), [(3, size / 4)]));
        step(
            graph,
            &mut t,
            "MUL_MAT",
            "q-\0",
            layer,
            vec![(query, Direction::Read, region), write(hidden)],
        );
        let cells = indexed(2, 80, 64, [batch, 1, 1], each);
        step(
            graph,
            &mut t,
            "SET_ROWS",
            "k-\0",
            layer,
            vec![(cache, Direction::Write, cells)],
        );
        if kind.experts == 0 {
            continue;
        }
        let is_last = number + 1 == layers.len();
        let tokens = if is_last { batch.min(2) } else { batch };
        let ids = t.captures.len() as u32;
        let at = t.steps.len() as u32;
        for (capture, time, width_bytes, pair) in [
            (CaptureKind::ExpertIds, at, 2, None),
            (CaptureKind::ExpertWeights, at + 2, 4, Some(ids)),
        ] {
            t.captures.push(CaptureDef {
                kind: capture,
                time: CaptureTime::Step(time),
                count: [USED, tokens, 1],
                width_bytes,
                layer,
                pair,
            });
        }
        let slices = indexed(
            ids,
            SLICE_BYTES,
            kind.experts,
            [USED, tokens, 1],
            IndexOrder::DistinctAscending,
        );
        step(
            graph,
            &mut t,
            "MUL_MAT_ID",
            "up-\0",
            layer,
            vec![(experts, Direction::Read, slices), write(hidden)],
        );
        let biases = indexed(ids, 64, kind.experts, [USED, tokens, 1], each);
        step(
            graph,
            &mut t,
            "ADD_ID",
            "bias-\0",
            layer,
            vec![(bias, Direction::Read, biases)],
        );
        // Small rows that follow each other become one access.
        let small = indexed(ids, 4, kind.experts, [USED, tokens, 1], each);
        step(
            graph,
            &mut t,
            "GET_ROWS",
            "probs-\0",
            layer,
            vec![(probs, Direction::Read, small)],
        );
        if kind.has_odd_access {
            let twice = indexed(ids, 64, kind.experts, [USED, tokens, 2], each);
            step(
                graph,
                &mut t,
                "ODD",
                "odd-\0",
                layer,
                vec![(bias, Direction::Read, twice)],
            );
        }
    }
    let all = Region::Fixed(Strided::range(0, 6000));
    step(
        graph,
        &mut t,
        "MUL_MAT",
        "result",
        None,
        vec![(output, Direction::Read, all)],
    );
    t
}

fn step(
    graph: &mut Texts,
    t: &mut Template,
    op: &str,
    name: &str,
    layer: Option<u32>,
    accesses: Vec<(u32, Direction, Region<u32>)>,
) {
    t.steps.push(Step {
        node: t.nodes,
        fused_nodes: 1,
        op: graph.text(op),
        name: Name {
            pattern: graph.text(name),
            number: layer,
        },
        layer,
        op_is_known: true,
        accesses: accesses
            .into_iter()
            .map(|(tensor, direction, region)| AccessDef {
                tensor,
                operand: Operand::Source(0),
                direction,
                region,
            })
            .collect(),
    });
    t.nodes += 1;
}

fn indexed(
    capture: u32,
    bytes: u64,
    bound: u64,
    count: [u64; 3],
    order: IndexOrder,
) -> Region<u32> {
    Region::Indexed(Indexed {
        capture,
        unit: Strided::range(0, bytes),
        stride: bytes,
        bound,
        count,
        // Graphs of llama.cpp have strides of dimensions that are not there.
        outer_strides: [if count[1] == 1 { 7777 } else { 0 }, 0],
        order,
    })
}

#[derive(Default)]
pub struct Texts {
    texts: Vec<String>,
    tensors: Vec<TensorDef>,
}

impl Texts {
    fn text(&mut self, text: &str) -> u32 {
        if let Some(at) = self.texts.iter().position(|t| t == text) {
            return at as u32;
        }
        self.texts.push(text.to_owned());
        self.texts.len() as u32 - 1
    }

    fn definitions(&self) -> Vec<Definition> {
        let texts = self
            .texts
            .iter()
            .map(|t| Definition::Text(t.as_bytes().to_vec()));
        texts
            .chain(self.tensors.iter().cloned().map(Definition::Tensor))
            .collect()
    }
}
