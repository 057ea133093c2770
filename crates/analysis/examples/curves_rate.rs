//! How fast sequences are built and curves are computed, and in how much memory.
//!
//! `cargo run --release -p analysis --example curves_rate [BUILD_ACCESSES
//! [CURVE_ACCESSES]]` (10⁸ and 10⁷ by default). The graphs are generated: a dense
//! model of 32 layers and a mixture of 48 layers with 8 of 128 experts, skewed.
//! Gives wall-clock seconds, seconds of CPU time over all threads (on a busy machine
//! the ones that count) and the peak memory of the process so far.

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use analysis::{
    cache_trace,
    caches::{CacheQuestion, Caches},
    curves::{Curves, even_budgets},
    experts_cache::{ExpertCaches, routing_of},
    opportunities::Machine,
    pass::Pass,
    reuse::ReuseTables,
    sequence::{Sequence, SequenceBuilder},
    weights::weights_of,
};
use trace::{
    format::Phase,
    read::{Definitions, Evaluation},
    region::{IndexOrder, Indexed, Region, Strided},
    template::{
        AccessDef, CaptureDef, CaptureKind, CaptureTime, Direction, FilePlace, Name, Operand, Step,
        Template, TensorDef, TensorKind,
    },
};

const ROW_BYTES: u64 = 4352;
const VOCABULARY: u64 = 32_000;
/// Budgets of a curve.
const POINTS: u64 = 16;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<usize>());
    let mut next = |default| arguments.next().and_then(Result::ok).unwrap_or(default);
    let (build_accesses, curve_accesses) = (next(100_000_000), next(10_000_000));
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    println!("{threads} threads");
    for graph in [Graph::dense(32), Graph::mixture(48, 128, 8)] {
        let name = graph.name;
        let begin = Begin::now();
        let sequence = graph.sequence(build_accesses);
        report(name, "build", sequence.accesses.len(), begin);
        drop(sequence);
        let sequence = graph.sequence(curve_accesses);
        for trace in [
            cache_trace::units(&sequence),
            cache_trace::pages(&sequence).expect("pages"),
        ] {
            let what = format!("{:?}", trace.granularity).to_lowercase();
            let begin = Begin::now();
            ReuseTables::of(&trace);
            report(name, &format!("{what} reuse"), trace.accesses.len(), begin);
            let begin = Begin::now();
            let budgets = even_budgets(trace.footprint_bytes(), POINTS);
            let curves = Curves::of(&trace, &budgets, threads);
            let label = format!("{what} reuse + {POINTS} points of 3 curves");
            report(name, &label, trace.accesses.len(), begin);
            let half = curves.points[POINTS as usize / 2 - 1];
            println!(
                "    at half the memory, of {:.1} GB: lru {:.1}, pin and stream {:.1}, belady {:.1}",
                giga(curves.total.run.bytes),
                giga(half.lru.run.bytes),
                giga(half.pin_and_stream.run.bytes),
                giga(half.belady.run.bytes),
            );
        }
        let begin = Begin::now();
        let question = CacheQuestion {
            budgets_bytes: even_budgets(sequence.touched_bytes(), POINTS),
            given_bytes: Vec::new(),
            beside_weights_bytes: None,
            weights: weights_of(&sequence, None),
            machine: Machine::new(1e9),
            threads,
        };
        Caches::of(&sequence, &question).expect("pages");
        report(
            name,
            "everything about caches",
            sequence.accesses.len(),
            begin,
        );
        let routing = routing_of(&sequence);
        let begin = Begin::now();
        if ExpertCaches::of(&routing, None).is_some() {
            report(name, "16 sizes of expert caches", routing.uses.len(), begin);
        }
    }
}

fn giga(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

fn report(name: &str, what: &str, accesses: usize, begin: Begin) {
    let (cpu, peak_bytes) = usage();
    println!(
        "{name:8} {what:34} {accesses:>10} accesses {:6.2} s wall {:6.2} s cpu, peak {:4} MB",
        begin.wall.elapsed().as_secs_f64(),
        (cpu - begin.cpu).as_secs_f64(),
        peak_bytes / 1_000_000,
    );
}

#[derive(Clone, Copy)]
struct Begin {
    wall: Instant,
    cpu: Duration,
}

impl Begin {
    fn now() -> Begin {
        Begin {
            wall: Instant::now(),
            cpu: usage().0,
        }
    }
}

/// CPU time and peak memory of this process.
fn usage() -> (Duration, u64) {
    // SAFETY: `rusage` is plain numbers, for which zero is a value, and getrusage
    // writes only to the struct it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    (
        time(usage.ru_utime) + time(usage.ru_stime),
        usage.ru_maxrss as u64 * 1024,
    )
}

/// A graph to be evaluated again and again.
struct Graph {
    name: &'static str,
    definitions: Definitions,
    steps: usize,
    layers: usize,
    experts: u64,
    used: usize,
}

impl Graph {
    fn dense(layers: u32) -> Graph {
        Graph::new("dense", layers, 0, 0)
    }

    fn mixture(layers: u32, experts: u64, used: usize) -> Graph {
        Graph::new("mixture", layers, experts, used)
    }

    fn new(name: &'static str, layers: u32, experts: u64, used: usize) -> Graph {
        let mut builder = GraphBuilder::default();
        builder.capture(CaptureKind::Tokens, [1, 1, 1]);
        let embedding = builder.tensor(
            "token_embd.weight",
            [4096, VOCABULARY, 1, 1],
            VOCABULARY * ROW_BYTES,
        );
        builder.rows(embedding, 0, ROW_BYTES, VOCABULARY, IndexOrder::EachInOrder);
        for layer in 0..layers {
            for (role, kilobytes) in [
                ("attn_norm", 16),
                ("attn_q", 9437),
                ("attn_k", 2359),
                ("attn_v", 2359),
                ("attn_output", 9437),
                ("ffn_norm", 16),
            ] {
                builder.whole(
                    &format!("blk.{layer}.{role}.weight"),
                    kilobytes * 1000 / 32 * 32,
                );
            }
            if experts == 0 {
                for role in ["ffn_gate", "ffn_up", "ffn_down"] {
                    builder.whole(&format!("blk.{layer}.{role}.weight"), 33_030_144);
                }
                continue;
            }
            builder.whole(&format!("blk.{layer}.ffn_gate_inp.weight"), 1_048_576);
            let capture = builder.capture(CaptureKind::ExpertIds, [used as u64, 1, 1]);
            let slice = 884_736;
            for role in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
                let name = format!("blk.{layer}.{role}.weight");
                let tensor = builder.tensor(&name, [2048, 768, experts, 1], slice * experts);
                builder.rows(
                    tensor,
                    capture,
                    slice,
                    experts,
                    IndexOrder::DistinctAscending,
                );
            }
        }
        builder.whole("output_norm.weight", 16_384);
        builder.whole("output.weight", VOCABULARY * ROW_BYTES);
        let template = builder.template;
        let steps = template.steps.len();
        builder.definitions.templates.push(template);
        Graph {
            name,
            definitions: builder.definitions,
            steps,
            layers: layers as usize,
            experts,
            used,
        }
    }

    /// Evaluations until there are `accesses`, the first as a prompt.
    fn sequence(&self, accesses: usize) -> Sequence {
        let (mut walk, mut pass) = (reader::Walk::default(), Pass::default());
        let mut builder = SequenceBuilder::default();
        let mut random = Random(7);
        let mut evaluation = Evaluation {
            number: 0,
            template: 0,
            phase: Phase::Prompt,
            threads: 2,
            context: 0,
            begin_nanos: 1,
            end_nanos: 2,
            ticks: self.steps as u32,
            flags: 0,
            step_nanos: vec![1; self.steps],
            captures: vec![vec![0]],
            sequences: Vec::new(),
            token_phases: Vec::new(),
            origins: None,
            device: None,
        };
        if self.experts > 0 {
            evaluation
                .captures
                .resize(1 + self.layers, vec![0; self.used]);
        }
        let per_evaluation = 1 + self.steps - 1
            + if self.experts > 0 {
                self.layers * 3 * (self.used - 1)
            } else {
                0
            };
        for number in 0..accesses.div_ceil(per_evaluation) {
            evaluation.number = number as u64;
            evaluation.captures[0][0] = (random.skewed(VOCABULARY)) as i64;
            for ids in &mut evaluation.captures[1..] {
                for at in 0..ids.len() {
                    // Distinct, as a router's choices are.
                    ids[at] = loop {
                        let id = random.skewed(self.experts) as i64;
                        if !ids[..at].contains(&id) {
                            break id;
                        }
                    };
                }
            }
            let seen = walk
                .see(&self.definitions, &evaluation)
                .expect("a graph that can be");
            builder
                .push(&pass.push(&seen))
                .expect("as many accesses as can be numbered");
            evaluation.phase = Phase::Generate;
        }
        builder.finish(pass.units)
    }
}

#[derive(Default)]
struct GraphBuilder {
    definitions: Definitions,
    template: Template,
    file_offset: u64,
}

impl GraphBuilder {
    fn capture(&mut self, kind: CaptureKind, count: [u64; 3]) -> u32 {
        self.template.captures.push(CaptureDef {
            kind,
            time: CaptureTime::Begin,
            count,
            width_bytes: 4,
            layer: None,
            pair: None,
        });
        self.template.captures.len() as u32 - 1
    }

    fn tensor(&mut self, name: &str, ne: [u64; 4], size_bytes: u64) -> u32 {
        let pattern = self.definitions.texts.len() as u32;
        self.definitions.texts.push(name.into());
        self.definitions.tensors.push(TensorDef {
            name: Name {
                pattern,
                number: None,
            },
            kind: TensorKind::Weight,
            ggml_type: 8,
            ne,
            size_bytes,
            address: 0,
            buffer_type: 0,
            place: Some(FilePlace {
                file: 0,
                file_offset: self.file_offset,
            }),
        });
        self.file_offset += size_bytes;
        self.definitions.tensors.len() as u32 - 1
    }

    fn whole(&mut self, name: &str, bytes: u64) {
        let tensor = self.tensor(name, [bytes, 1, 1, 1], bytes);
        self.step(tensor, Region::Fixed(Strided::range(0, bytes)));
    }

    fn rows(&mut self, tensor: u32, capture: u32, bytes: u64, bound: u64, order: IndexOrder) {
        self.step(
            tensor,
            Region::Indexed(Indexed {
                capture,
                unit: Strided::range(0, bytes),
                stride: bytes,
                bound,
                count: [1, 1, 1],
                outer_strides: [0, 0],
                order,
            }),
        );
    }

    fn step(&mut self, tensor: u32, region: Region<u32>) {
        self.template.steps.push(Step {
            node: self.template.steps.len() as u32,
            fused_nodes: 1,
            op: 0,
            name: self.definitions.tensors[tensor as usize].name,
            layer: None,
            op_is_known: true,
            accesses: vec![AccessDef {
                tensor,
                operand: Operand::Source(0),
                direction: Direction::Read,
                region,
            }],
        });
    }
}

/// A generator that any machine repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    /// Small numbers more often.
    fn skewed(&mut self, bound: u64) -> u64 {
        self.below(bound) * self.below(bound) / bound
    }
}
