//! Runs of a small model, written as a recorder would.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::Path;

use analysis::{
    actions::{Action, Grounds, Setup, actions},
    caches::{CacheQuestion, Caches},
    facts::{self, Facts},
    findings::{Finding, findings},
    opportunities::Machine,
    reading::Reading,
    weights::weights_of,
};
use index::RunIndex;
use render::plots::ReportInput;
use testing::log;
use trace::{
    format::{Phase, RecordKind},
    read::Evaluation,
    region::{IndexOrder, Indexed, Region, Strided},
    template::*,
};

pub const LAYERS: u32 = 3;
pub const EXPERTS: u64 = 4;
pub const USED: u64 = 2;
pub const PROMPT: u64 = 3;
const SLICE_BYTES: u64 = 4096;
const ROW_BYTES: u64 = 64;
const VOCABULARY: u64 = 50;

/// A name and a token that would run a script, close a picture or turn the text.
pub const HOSTILE_NAME: &str = "</svg></style><script>alert(1)</script>\u{202e}\"'.weight";
pub const HOSTILE_TOKEN: &str = "<img src=x onerror=alert(2)>]]>";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    Dense,
    Experts,
}

/// A run and everything that is known about it.
pub struct Report {
    pub index: RunIndex,
    pub facts: Facts,
    pub caches: Option<Caches>,
    pub actions: Vec<Action>,
    pub findings: Vec<Finding>,
    pub tokens: u64,
    _directory: tempfile::TempDir,
}

impl Report {
    /// A prompt of three tokens and one evaluation for each further token.
    pub fn new(model: Model, tokens: u64) -> Report {
        let directory = tempfile::tempdir().unwrap();
        write(&directory.path().join("log"), model, tokens);
        let run = rundir::Run::open(directory.path()).unwrap();
        let index = RunIndex::open(&run, &mut |_| ()).unwrap();
        let mut reading = Reading::new(facts::Options::default());
        let walked = reader::Log::new(&run.log_directory())
            .walk(&mut reading)
            .unwrap();
        let (facts, sequence) = reading.finish(&walked.tensors, &facts::Model::default());
        let question = CacheQuestion {
            budgets_bytes: Vec::new(),
            given_bytes: Vec::new(),
            beside_weights_bytes: None,
            weights: weights_of(&sequence, None),
            machine: Machine::new(0.0),
            threads: std::num::NonZeroUsize::MIN,
        };
        let caches = Caches::of(&sequence, &question).unwrap();
        let setup = Setup {
            model: HOSTILE_NAME.to_owned(),
            threads: Some(1),
            processors: Some(8),
            ..Setup::default()
        };
        let grounds = Grounds {
            facts: &facts,
            opportunities: caches.opportunities.as_ref(),
            underneath: None,
            setup: &setup,
        };
        Report {
            actions: actions(&grounds),
            index,
            findings: findings(&facts, caches.opportunities.as_ref()),
            facts,
            caches: Some(caches),
            tokens,
            _directory: directory,
        }
    }

    pub fn input(&self) -> ReportInput<'_> {
        ReportInput {
            title: HOSTILE_NAME,
            about: &[],
            index: &self.index,
            actions: &self.actions,
            findings: &self.findings,
            facts: &self.facts,
            caches: self.caches.as_ref(),
            underneath: None,
            roofline: None,
            cards: &[],
            diagnosis: None,
        }
    }
}

fn write(directory: &Path, model: Model, tokens: u64) {
    std::fs::create_dir_all(directory).unwrap();
    let mut graph = Graph::default();
    let templates = [graph.template(model, PROMPT), graph.template(model, 1)];
    let mut definitions = graph.definitions();
    definitions.push(Definition::Token {
        id: 5,
        text: HOSTILE_TOKEN.as_bytes().to_vec(),
    });
    definitions.extend(templates.iter().cloned().map(Definition::Template));
    let (status, log, mut appender) = log::open(directory, 1 << 16);
    assert!(log::define(&mut appender, &definitions));
    for number in 0..tokens - PROMPT + 1 {
        let which = usize::from(number > 0);
        let evaluation = evaluation(&templates[which], which as u32, number);
        let body = log::body(&templates[which], &evaluation);
        assert!(log::append(&mut appender, RecordKind::Evaluation, &body));
    }
    log.finish(appender).unwrap();
    status.set_state(trace::status::State::Complete);
}

/// Every evaluation takes a millisecond, every step the same part of it.
fn evaluation(template: &Template, number_of_template: u32, number: u64) -> Evaluation {
    let begin_nanos = 1_000_000 + number * 1_000_000;
    let steps = template.steps.len() as u64;
    let value = |kind: CaptureKind, at: u64| match kind {
        CaptureKind::Tokens => (number + at + 5) % VOCABULARY,
        CaptureKind::ExpertIds => (number + at * (1 + number % 2)) % EXPERTS,
        CaptureKind::ExpertWeights => u64::from(0.5f32.to_bits()),
        _ => number + at,
    };
    let captures = template.captures.iter().map(|capture| {
        (0..capture.elements())
            .map(|at| value(capture.kind, at) as i64)
            .collect()
    });
    Evaluation {
        number,
        template: number_of_template,
        phase: if number == 0 {
            Phase::Prompt
        } else {
            Phase::Generate
        },
        threads: 2,
        context: 0,
        begin_nanos,
        end_nanos: begin_nanos + 1_000_000,
        ticks: steps as u32,
        flags: 0,
        step_nanos: (1..=steps)
            .map(|step| begin_nanos + 1_000_000 * step / steps)
            .collect(),
        captures: captures.collect(),
        sequences: vec![0; template.captures[0].elements() as usize],
        token_phases: Vec::new(),
        origins: None,
        device: None,
    }
}

#[derive(Default)]
struct Graph {
    texts: Vec<String>,
    tensors: Vec<TensorDef>,
    file_bytes: u64,
}

impl Graph {
    fn definitions(&self) -> Vec<Definition> {
        let texts = self
            .texts
            .iter()
            .map(|text| Definition::Text(text.as_bytes().to_vec()));
        texts
            .chain(self.tensors.iter().cloned().map(Definition::Tensor))
            .collect()
    }

    fn text(&mut self, text: &str) -> u32 {
        let known = self.texts.iter().position(|known| known == text);
        known.unwrap_or_else(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        }) as u32
    }

    fn tensor(
        &mut self,
        pattern: &str,
        number: Option<u32>,
        kind: TensorKind,
        size_bytes: u64,
    ) -> u32 {
        let name = Name {
            pattern: self.text(pattern),
            number,
        };
        if let Some(known) = self.tensors.iter().position(|tensor| tensor.name == name) {
            return known as u32;
        }
        let file_offset = self.file_bytes + 4096;
        let place = (kind == TensorKind::Weight).then_some(FilePlace {
            file: 0,
            file_offset,
        });
        self.file_bytes += if place.is_some() { size_bytes } else { 0 };
        let buffer_type = self.text("CPU_Mapped");
        self.tensors.push(TensorDef {
            name,
            kind,
            ggml_type: 0,
            ne: [size_bytes / 4, 1, 1, 1],
            size_bytes,
            address: 0x1000,
            buffer_type,
            place,
        });
        self.tensors.len() as u32 - 1
    }

    fn template(&mut self, model: Model, batch: u64) -> Template {
        let mut template = Template::default();
        for kind in [
            CaptureKind::Tokens,
            CaptureKind::Positions,
            CaptureKind::Index,
        ] {
            template.captures.push(CaptureDef {
                kind,
                time: CaptureTime::Begin,
                count: [batch, 1, 1],
                width_bytes: 8,
                layer: None,
                pair: None,
            });
        }
        let read = |tensor, bytes| {
            (
                tensor,
                Direction::Read,
                Region::Fixed(Strided::range(0, bytes)),
            )
        };
        let embedding = self.tensor(
            "token_embd.weight",
            None,
            TensorKind::Weight,
            VOCABULARY * ROW_BYTES,
        );
        let rows = rows(0, ROW_BYTES, VOCABULARY, [batch, 1, 1]);
        self.step(
            &mut template,
            "GET_ROWS",
            None,
            vec![(embedding, Direction::Read, rows)],
        );
        for layer in 0..LAYERS {
            let l = Some(layer);
            let query = self.tensor("blk.\0.attn_q.weight", l, TensorKind::Weight, 2048);
            self.step(&mut template, "MUL_MAT", l, vec![read(query, 2048)]);
            let cache = self.tensor("cache_k_l\0", l, TensorKind::KvCache, 1 << 20);
            let cells = self::rows(2, 32, 1 << 15, [batch, 1, 1]);
            self.step(
                &mut template,
                "SET_ROWS",
                l,
                vec![(cache, Direction::Write, cells)],
            );
            match model {
                Model::Dense => {
                    let up = self.tensor("blk.\0.ffn_up.weight", l, TensorKind::Weight, 8192);
                    self.step(&mut template, "MUL_MAT", l, vec![read(up, 8192)]);
                }
                Model::Experts => self.experts(&mut template, layer, batch),
            }
        }
        let hostile = self.tensor(HOSTILE_NAME, None, TensorKind::Weight, 9000);
        self.step(&mut template, "MUL_MAT", None, vec![read(hostile, 9000)]);
        template
    }

    fn experts(&mut self, template: &mut Template, layer: u32, batch: u64) {
        let (ids, at) = (template.captures.len() as u32, template.steps.len() as u32);
        let captures = [
            (CaptureKind::ExpertIds, 2, None),
            (CaptureKind::ExpertWeights, 4, Some(ids)),
        ];
        for (kind, width_bytes, pair) in captures {
            template.captures.push(CaptureDef {
                kind,
                time: CaptureTime::Step(at),
                count: [USED, batch, 1],
                width_bytes,
                layer: Some(layer),
                pair,
            });
        }
        let up = self.tensor(
            "blk.\0.ffn_up_exps.weight",
            Some(layer),
            TensorKind::Weight,
            EXPERTS * SLICE_BYTES,
        );
        let Region::Indexed(slices) = rows(ids, SLICE_BYTES, EXPERTS, [USED, batch, 1]) else {
            unreachable!()
        };
        let slices = Region::Indexed(Indexed {
            order: IndexOrder::DistinctAscending,
            ..slices
        });
        self.step(
            template,
            "MUL_MAT_ID",
            Some(layer),
            vec![(up, Direction::Read, slices)],
        );
    }

    fn step(
        &mut self,
        template: &mut Template,
        op: &str,
        layer: Option<u32>,
        accesses: Vec<(u32, Direction, Region<u32>)>,
    ) {
        let access = |(tensor, direction, region)| AccessDef {
            tensor,
            operand: Operand::Source(0),
            direction,
            region,
        };
        template.steps.push(Step {
            node: template.nodes,
            fused_nodes: 1,
            op: self.text(op),
            name: Name {
                pattern: self.text("node"),
                number: layer,
            },
            layer,
            op_is_known: true,
            accesses: accesses.into_iter().map(access).collect(),
        });
        template.nodes += 1;
    }
}

fn rows(capture: u32, bytes: u64, bound: u64, count: [u64; 3]) -> Region<u32> {
    Region::Indexed(Indexed {
        capture,
        unit: Strided::range(0, bytes),
        stride: bytes,
        bound,
        count,
        outer_strides: [0, 0],
        order: IndexOrder::EachInOrder,
    })
}
