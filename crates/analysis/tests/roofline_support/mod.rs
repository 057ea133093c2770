//! Graphs as llama.cpp has them, written down operation by operation, and their facts.

use analysis::{
    facts::{Facts, Model, Options},
    reading::Reading,
};
use gguf::GgmlType;
use reader::{Visitor, Walk};
use trace::{
    format::Phase,
    read::{Definitions, Evaluation},
    region::{IndexOrder, Indexed, Region, Strided},
    template::*,
};

/// Of the evaluations: one tick for each step.
pub const STEP_NANOS: u64 = 1000;
pub const THREADS: u16 = 2;

/// A graph that grows.
pub struct Graph {
    definitions: Definitions,
    template: Template,
    tokens: u64,
}

/// An operand: a tensor, and how much of it is touched.
#[derive(Clone)]
pub struct Operand {
    tensor: u32,
    region: Region<u32>,
}

impl Graph {
    /// Of so many tokens at once.
    pub fn new(tokens: u64) -> Graph {
        let capture = |kind| CaptureDef {
            kind,
            time: CaptureTime::Begin,
            count: [tokens, 1, 1],
            width_bytes: 8,
            layer: None,
            pair: None,
        };
        let kinds = [CaptureKind::Tokens, CaptureKind::Positions];
        Graph {
            definitions: Definitions::default(),
            template: Template {
                captures: kinds.map(capture).into(),
                ..Template::default()
            },
            tokens,
        }
    }

    pub fn tensor(&mut self, name: &str, kind: TensorKind, ty: GgmlType, ne: [u64; 4]) -> Operand {
        let rows = ne[1] * ne[2] * ne[3];
        let size_bytes = ty.row_bytes(ne[0]).unwrap() * rows;
        let text = self.text(name);
        self.definitions.tensors.push(TensorDef {
            name: Name {
                pattern: text,
                number: None,
            },
            kind,
            ggml_type: ty.as_u32(),
            ne,
            size_bytes,
            address: 0,
            buffer_type: text,
            place: None,
        });
        Operand {
            tensor: self.definitions.tensors.len() as u32 - 1,
            region: Region::Fixed(Strided::range(0, size_bytes)),
        }
    }

    pub fn weight(&mut self, name: &str, ty: GgmlType, ne: [u64; 4]) -> Operand {
        self.tensor(name, TensorKind::Weight, ty, ne)
    }

    pub fn activation(&mut self, ne: [u64; 4]) -> Operand {
        self.tensor("node", TensorKind::Activation, GgmlType::F32, ne)
    }

    /// The slices of those experts that the batch chose.
    pub fn chosen(&mut self, experts: &Operand, used: u64) -> Operand {
        let tensor = &self.definitions.tensors[experts.tensor as usize];
        let (count, slice) = (tensor.ne[2], tensor.size_bytes / tensor.ne[2]);
        let step = self.template.steps.len() as u32;
        self.template.captures.push(CaptureDef {
            kind: CaptureKind::ExpertIds,
            time: CaptureTime::Step(step),
            count: [used, self.tokens, 1],
            width_bytes: 2,
            layer: Some(0),
            pair: None,
        });
        Operand {
            tensor: experts.tensor,
            region: Region::Indexed(Indexed {
                capture: self.template.captures.len() as u32 - 1,
                unit: Strided::range(0, slice),
                stride: slice,
                bound: count,
                count: [used, self.tokens, 1],
                outer_strides: [0, 0],
                order: IndexOrder::DistinctAscending,
            }),
        }
    }

    /// Its result is a new activation of that shape.
    pub fn step(&mut self, op: &str, sources: &[&Operand], ne: [u64; 4]) -> Operand {
        let to = self.activation(ne);
        let access = |operand, direction, of: &Operand| AccessDef {
            tensor: of.tensor,
            operand,
            direction,
            region: of.region.clone(),
        };
        let read = |(at, of): (usize, &&Operand)| {
            let source = trace::template::Operand::Source(at as u8);
            access(source, Direction::Read, of)
        };
        let mut accesses: Vec<AccessDef> = sources.iter().enumerate().map(read).collect();
        let result = trace::template::Operand::Destination;
        accesses.push(access(result, Direction::Write, &to));
        let op = self.text(op);
        self.template.steps.push(Step {
            node: self.template.steps.len() as u32,
            fused_nodes: 1,
            op,
            name: Name {
                pattern: op,
                number: None,
            },
            layer: None,
            op_is_known: true,
            accesses,
        });
        to
    }

    /// Evaluated once in each of these phases, the last of its tokens being the one behind
    /// `context`.
    pub fn facts(mut self, context: u64, phases: &[Phase]) -> Facts {
        let (mut walk, mut reading) = (Walk::default(), Reading::new(Options::default()));
        let steps = self.template.steps.len() as u64;
        let captures = self.template.captures.clone();
        self.definitions.templates.push(self.template);
        let list = |capture: &CaptureDef| -> Vec<i64> {
            (0..capture.elements() as i64)
                .map(|i| match capture.kind {
                    CaptureKind::Positions => context as i64 + i,
                    CaptureKind::ExpertIds => i % 3,
                    _ => i,
                })
                .collect()
        };
        walk.begin_stream(0);
        for (number, &phase) in phases.iter().enumerate() {
            let begin_nanos = 1 + number as u64 * (steps + 1) * STEP_NANOS;
            let evaluation = Evaluation {
                number: number as u64,
                phase,
                threads: THREADS,
                begin_nanos,
                end_nanos: begin_nanos + steps * STEP_NANOS,
                ticks: steps as u32,
                step_nanos: (1..=steps).map(|n| begin_nanos + n * STEP_NANOS).collect(),
                captures: captures.iter().map(list).collect(),
                sequences: vec![0; self.tokens as usize],
                ..Evaluation::default()
            };
            let seen = walk.see(&self.definitions, &evaluation).unwrap();
            reading.evaluation(&seen).unwrap();
        }
        let stream = walk.end_stream(&self.definitions);
        reading.stream_ends(&stream).unwrap();
        reading.finish(walk.tensors(), &Model::default()).0
    }

    fn text(&mut self, text: &str) -> u32 {
        self.definitions.texts.push(text.as_bytes().to_vec());
        self.definitions.texts.len() as u32 - 1
    }
}
