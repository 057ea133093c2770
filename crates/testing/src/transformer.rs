//! Synthetic runs: the graph of a transformer, evaluated as often as one likes.
//!
//! For tests, and for examples that measure.

use std::path::Path;

use trace::{
    expand::count_accesses,
    format::{Phase, RecordKind},
    read::Evaluation,
    region::{IndexOrder, Indexed, Region, Strided},
    template::*,
};

use crate::log;

/// Dimensions of the model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: u32,
    /// Experts per layer and how many a token uses; none for a dense model.
    pub experts: Option<(u64, u64)>,
}

const CONTEXT: u64 = 2048;
const KV_STEP: u64 = 256;
const ROW_BYTES: u64 = 4096;
const EXPERT_BYTES: u64 = 1 << 20;

/// Writes `RUN/log` with a prompt of one token and then generated tokens until
/// there are at least `accesses`; how many there are.
pub fn write_run(run: &Path, shape: Shape, accesses: u64) -> u64 {
    let log_directory = run.join("log");
    std::fs::create_dir_all(&log_directory).unwrap();
    let mut graph = Graph::new(shape);
    let templates: Vec<Template> = (1..=CONTEXT / KV_STEP)
        .map(|n| graph.template(n * KV_STEP))
        .collect();
    let mut definitions = graph.definitions();
    definitions.extend(templates.iter().cloned().map(Definition::Template));
    let (status, log, mut appender) = log::open(&log_directory, trace::append::SEGMENT_BYTES);
    assert!(log::define(&mut appender, &definitions));
    let mut random = 0x1234_5678_9abc_def1u64;
    let mut total = 0;
    let mut number = 0;
    let mut nanos = 1_000_000_000;
    while total < accesses {
        let position = number % CONTEXT;
        let template = (position / KV_STEP) as usize;
        let evaluation = evaluation(
            &templates[template],
            template,
            number,
            &mut nanos,
            shape,
            &mut random,
        );
        total += count_accesses(&templates[template], &evaluation);
        let body = log::body(&templates[template], &evaluation);
        assert!(log::append(&mut appender, RecordKind::Evaluation, &body));
        number += 1;
    }
    log.finish(appender).unwrap();
    drop(status);
    total
}

fn evaluation(
    template: &Template,
    template_number: usize,
    number: u64,
    nanos: &mut u64,
    shape: Shape,
    random: &mut u64,
) -> Evaluation {
    let position = (number % CONTEXT) as i64;
    let begin_nanos = *nanos;
    let step_nanos: Vec<u64> = template
        .steps
        .iter()
        .map(|_| {
            *nanos += 2_000 + next(random) % 30_000;
            *nanos
        })
        .collect();
    *nanos += 5_000;
    let captures = template
        .captures
        .iter()
        .map(|capture| match capture.kind {
            CaptureKind::Tokens => vec![(next(random) % 32_000) as i64],
            CaptureKind::Positions | CaptureKind::Index => vec![position],
            CaptureKind::ExpertIds => {
                let (experts, used) = shape.experts.unwrap();
                // Distinct, and skewed as routers are.
                let first = (next(random) % experts) * (next(random) % experts) / experts;
                (0..used)
                    .map(|i| ((first + i * 3) % experts) as i64)
                    .collect()
            }
            CaptureKind::ExpertWeights => {
                let (_, used) = shape.experts.unwrap();
                (0..used)
                    .map(|_| i64::from(((next(random) % 1000) as f32 / 1000.0).to_bits()))
                    .collect()
            }
            CaptureKind::OutputRows => vec![0],
        })
        .collect();
    Evaluation {
        number,
        template: template_number as u32,
        phase: if number == 0 {
            Phase::Prompt
        } else {
            Phase::Generate
        },
        threads: 2,
        context: 0,
        begin_nanos,
        end_nanos: *nanos,
        ticks: template.steps.len() as u32,
        flags: 0,
        step_nanos,
        captures,
        sequences: vec![0],
        token_phases: Vec::new(),
        origins: None,
        device: None,
    }
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// Collects texts and tensors while templates are made.
struct Graph {
    shape: Shape,
    texts: Vec<String>,
    tensors: Vec<TensorDef>,
    file_offset: u64,
}

impl Graph {
    fn new(shape: Shape) -> Graph {
        Graph {
            shape,
            texts: Vec::new(),
            tensors: Vec::new(),
            file_offset: 4096,
        }
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

    fn text(&mut self, text: &str) -> u32 {
        if let Some(at) = self.texts.iter().position(|t| t == text) {
            return at as u32;
        }
        self.texts.push(text.to_owned());
        self.texts.len() as u32 - 1
    }

    fn tensor(&mut self, name: &str, layer: Option<u32>, kind: TensorKind, size_bytes: u64) -> u32 {
        let name = Name {
            pattern: self.text(name),
            number: layer,
        };
        if let Some(at) = self.tensors.iter().position(|t| t.name == name) {
            return at as u32;
        }
        let buffer_type = self.text(if kind == TensorKind::Weight {
            "CPU_Mapped"
        } else {
            "CPU"
        });
        let place = (kind == TensorKind::Weight).then_some(FilePlace {
            file: 0,
            file_offset: self.file_offset,
        });
        if place.is_some() {
            self.file_offset += size_bytes;
        }
        self.tensors.push(TensorDef {
            name,
            kind,
            ggml_type: 8,
            ne: [ROW_BYTES, size_bytes / ROW_BYTES, 1, 1],
            size_bytes,
            address: 0x7f00_0000_0000 + ((self.tensors.len() as u64) << 28),
            buffer_type,
            place,
        });
        self.tensors.len() as u32 - 1
    }

    fn template(&mut self, kv_extent: u64) -> Template {
        let mut t = Template {
            device: None,
            nodes: 0,
            steps: Vec::new(),
            captures: Vec::new(),
        };
        for kind in [
            CaptureKind::Tokens,
            CaptureKind::Positions,
            CaptureKind::Index,
        ] {
            t.captures.push(CaptureDef {
                kind,
                time: CaptureTime::Begin,
                count: [1, 1, 1],
                width_bytes: 8,
                layer: None,
                pair: None,
            });
        }
        let embedding = self.tensor(
            "token_embd.weight",
            None,
            TensorKind::Weight,
            32_000 * ROW_BYTES,
        );
        let row = indexed(0, ROW_BYTES, 32_000, IndexOrder::EachInOrder, [1, 1, 1]);
        let embd = self.activation("embd", None);
        self.step(&mut t, "GET_ROWS", "embd", None, &[(embedding, row)], embd);
        let mut stream = embd;
        for layer in 0..self.shape.layers {
            stream = self.attention(&mut t, layer, stream, kv_extent);
            stream = self.feed_forward(&mut t, layer, stream);
        }
        let output = self.tensor(
            "output.weight",
            None,
            TensorKind::Weight,
            32_000 * ROW_BYTES,
        );
        let logits = self.activation("result_output", None);
        self.step(
            &mut t,
            "MUL_MAT",
            "result_output",
            None,
            &[(output, all(32_000 * ROW_BYTES)), (stream, all(ROW_BYTES))],
            logits,
        );
        t
    }

    fn attention(&mut self, t: &mut Template, layer: u32, input: u32, kv_extent: u64) -> u32 {
        let l = Some(layer);
        let normed = self.norm(t, l, "attn_norm", input);
        let mut heads = Vec::new();
        for (role, name) in [("q", "Qcur-\0"), ("k", "Kcur-\0"), ("v", "Vcur-\0")] {
            let weight = self.tensor(
                &format!("blk.\0.attn_{role}.weight"),
                l,
                TensorKind::Weight,
                1 << 22,
            );
            let out = self.activation(name, l);
            self.step(
                t,
                "MUL_MAT",
                name,
                l,
                &[(weight, all(1 << 22)), (normed, all(ROW_BYTES))],
                out,
            );
            heads.push(out);
        }
        let positions = self.tensor("inp_pos", None, TensorKind::Input, 4);
        for (head, name) in heads.iter().zip(["Qcur-\0", "Kcur-\0"]) {
            self.step(
                t,
                "ROPE",
                name,
                l,
                &[(*head, all(ROW_BYTES)), (positions, all(4))],
                *head,
            );
        }
        let mut caches = Vec::new();
        for (name, head) in [("cache_k_l\0", heads[1]), ("cache_v_l\0", heads[2])] {
            let cache = self.tensor(name, l, TensorKind::KvCache, CONTEXT * 1024);
            let cell = indexed(2, 1024, CONTEXT, IndexOrder::EachInOrder, [1, 1, 1]);
            let write = AccessDef {
                tensor: cache,
                operand: Operand::Destination,
                direction: Direction::Write,
                region: cell,
            };
            self.step_with(t, "SET_ROWS", name, l, &[(head, all(ROW_BYTES))], write);
            caches.push(cache);
        }
        let mixed = self.activation("kqv_out-\0", l);
        let rows = || Region::Fixed(Strided::new(0, 512, [(kv_extent, 1024)]));
        self.step(
            t,
            "FLASH_ATTN_EXT",
            "kqv_out-\0",
            l,
            &[
                (heads[0], all(ROW_BYTES)),
                (caches[0], rows()),
                (caches[1], rows()),
            ],
            mixed,
        );
        let weight = self.tensor("blk.\0.attn_output.weight", l, TensorKind::Weight, 1 << 22);
        let projected = self.activation("attn_out-\0", l);
        self.step(
            t,
            "MUL_MAT",
            "attn_out-\0",
            l,
            &[(weight, all(1 << 22)), (mixed, all(ROW_BYTES))],
            projected,
        );
        let sum = self.activation("ffn_inp-\0", l);
        self.step(
            t,
            "ADD",
            "ffn_inp-\0",
            l,
            &[(projected, all(ROW_BYTES)), (input, all(ROW_BYTES))],
            sum,
        );
        sum
    }

    fn feed_forward(&mut self, t: &mut Template, layer: u32, input: u32) -> u32 {
        let l = Some(layer);
        let normed = self.norm(t, l, "ffn_norm", input);
        let down = match self.shape.experts {
            None => {
                let mut halves = Vec::new();
                for role in ["gate", "up"] {
                    let weight = self.tensor(
                        &format!("blk.\0.ffn_{role}.weight"),
                        l,
                        TensorKind::Weight,
                        1 << 23,
                    );
                    let out = self.activation(&format!("ffn_{role}-\0"), l);
                    self.step(
                        t,
                        "MUL_MAT",
                        &format!("ffn_{role}-\0"),
                        l,
                        &[(weight, all(1 << 23)), (normed, all(ROW_BYTES))],
                        out,
                    );
                    halves.push(out);
                }
                let glu = self.activation("ffn_swiglu-\0", l);
                self.step(
                    t,
                    "GLU",
                    "ffn_swiglu-\0",
                    l,
                    &[(halves[0], all(ROW_BYTES)), (halves[1], all(ROW_BYTES))],
                    glu,
                );
                let weight = self.tensor("blk.\0.ffn_down.weight", l, TensorKind::Weight, 1 << 23);
                let out = self.activation("ffn_out-\0", l);
                self.step(
                    t,
                    "MUL_MAT",
                    "ffn_out-\0",
                    l,
                    &[(weight, all(1 << 23)), (glu, all(ROW_BYTES))],
                    out,
                );
                out
            }
            Some((experts, used)) => self.experts(t, layer, normed, experts, used),
        };
        let sum = self.activation("l_out-\0", l);
        self.step(
            t,
            "ADD",
            "l_out-\0",
            l,
            &[(down, all(ROW_BYTES)), (input, all(ROW_BYTES))],
            sum,
        );
        sum
    }

    fn experts(
        &mut self,
        t: &mut Template,
        layer: u32,
        normed: u32,
        experts: u64,
        used: u64,
    ) -> u32 {
        let l = Some(layer);
        let router = self.tensor("blk.\0.ffn_gate_inp.weight", l, TensorKind::Weight, 1 << 18);
        let chosen = self.activation("ffn_moe_topk-\0", l);
        self.step(
            t,
            "MUL_MAT",
            "ffn_moe_logits-\0",
            l,
            &[(router, all(1 << 18)), (normed, all(ROW_BYTES))],
            chosen,
        );
        let ids = t.captures.len() as u32;
        let step = t.steps.len() as u32;
        let capture = |kind, time, width_bytes, pair| CaptureDef {
            kind,
            time,
            count: [used, 1, 1],
            width_bytes,
            layer: l,
            pair,
        };
        t.captures.push(capture(
            CaptureKind::ExpertIds,
            CaptureTime::Step(step),
            2,
            None,
        ));
        t.captures.push(capture(
            CaptureKind::ExpertWeights,
            CaptureTime::Step(step + 2),
            4,
            Some(ids),
        ));
        let mut last = normed;
        for role in ["gate", "up", "down"] {
            let weight = self.tensor(
                &format!("blk.\0.ffn_{role}_exps.weight"),
                l,
                TensorKind::Weight,
                experts * EXPERT_BYTES,
            );
            let slices = indexed(
                ids,
                EXPERT_BYTES,
                experts,
                IndexOrder::DistinctAscending,
                [used, 1, 1],
            );
            let out = self.activation(&format!("ffn_moe_{role}-\0"), l);
            self.step(
                t,
                "MUL_MAT_ID",
                &format!("ffn_moe_{role}-\0"),
                l,
                &[
                    (weight, slices),
                    (last, all(ROW_BYTES)),
                    (chosen, all(4 * used)),
                ],
                out,
            );
            last = out;
        }
        last
    }

    fn norm(&mut self, t: &mut Template, layer: Option<u32>, name: &str, input: u32) -> u32 {
        let weight = self.tensor(
            &format!("blk.\0.{name}.weight"),
            layer,
            TensorKind::Weight,
            ROW_BYTES,
        );
        let node = format!("{name}-\0");
        let out = self.activation(&node, layer);
        self.step(
            t,
            "RMS_NORM+MUL",
            &node,
            layer,
            &[(input, all(ROW_BYTES)), (weight, all(ROW_BYTES))],
            out,
        );
        out
    }

    fn activation(&mut self, name: &str, layer: Option<u32>) -> u32 {
        self.tensor(name, layer, TensorKind::Activation, 1 << 20)
    }

    fn step(
        &mut self,
        t: &mut Template,
        op: &str,
        name: &str,
        layer: Option<u32>,
        sources: &[(u32, Region<u32>)],
        to: u32,
    ) {
        let write = AccessDef {
            tensor: to,
            operand: Operand::Destination,
            direction: Direction::Write,
            region: all(ROW_BYTES),
        };
        self.step_with(t, op, name, layer, sources, write);
    }

    fn step_with(
        &mut self,
        t: &mut Template,
        op: &str,
        name: &str,
        layer: Option<u32>,
        sources: &[(u32, Region<u32>)],
        write: AccessDef,
    ) {
        let mut accesses: Vec<AccessDef> = sources
            .iter()
            .enumerate()
            .map(|(n, (tensor, region))| AccessDef {
                tensor: *tensor,
                operand: Operand::Source(n as u8),
                direction: Direction::Read,
                region: region.clone(),
            })
            .collect();
        accesses.push(write);
        let number = layer.filter(|_| name.contains('\0'));
        t.steps.push(Step {
            node: t.nodes,
            fused_nodes: if op.contains('+') { 2 } else { 1 },
            op: self.text(op),
            name: Name {
                pattern: self.text(name),
                number,
            },
            layer,
            op_is_known: true,
            accesses,
        });
        t.nodes += 2;
    }
}

fn all(bytes: u64) -> Region<u32> {
    Region::Fixed(Strided::range(0, bytes))
}

fn indexed(
    capture: u32,
    unit_bytes: u64,
    bound: u64,
    order: IndexOrder,
    count: [u64; 3],
) -> Region<u32> {
    Region::Indexed(Indexed {
        capture,
        unit: Strided::range(0, unit_bytes),
        stride: unit_bytes,
        bound,
        count,
        outer_strides: [0, 0],
        order,
    })
}
