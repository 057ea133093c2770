//! One pass over a log that adds everything up.
//!
//! Sums only: what the sums mean, and everything that needs order or time, is
//! analysis. Needs memory for one evaluation and for the sums, however long the
//! log is.

use std::{collections::BTreeMap, path::Path};

use crate::{
    expand::{for_each_access, for_each_route},
    format::{Phase, flags},
    read::{Definitions, Evaluation, Event, ReadError, StreamEnd, StreamReader, streams},
    region::Region,
    template::{CaptureKind, Direction, Step, Template, TensorKind},
};

/// Accesses and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub accesses: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpSum {
    pub steps: u64,
    /// Between the tick before and its own.
    pub nanos: u64,
    pub read: Traffic,
    pub written: Traffic,
    /// Whether the op table knows it; whole views are recorded if not.
    pub is_unknown: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseSum {
    pub evaluations: u64,
    pub tokens: u64,
    pub nanos: u64,
    /// Bytes of weights read.
    pub weight_bytes: u64,
}

/// Everything added up.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub evaluations: u64,
    /// Cut off by the end of the process.
    pub partial: u64,
    /// Records that are damaged, with where and why.
    pub corrupt: Vec<String>,
    /// Evaluations whose ticks or indices were not as predicted.
    pub flagged: u64,
    pub steps: u64,
    pub accesses: u64,
    pub templates: u64,
    /// Bytes of records, framing included.
    pub record_bytes: u64,
    /// Token and rank pairs sent to an expert.
    pub routes: u64,
    /// Every stream was closed in an orderly way.
    pub closed: bool,
    pub first_nanos: u64,
    pub last_nanos: u64,
    pub by_op: BTreeMap<String, OpSum>,
    pub by_kind: BTreeMap<(TensorKind, &'static str), Traffic>,
    pub by_layer: BTreeMap<Option<u32>, Traffic>,
    pub by_tensor: BTreeMap<String, Traffic>,
    pub by_phase: BTreeMap<&'static str, PhaseSum>,
    pub by_buffer_type: BTreeMap<String, u64>,
    /// How often each expert was chosen, by layer.
    pub experts: BTreeMap<u32, BTreeMap<u32, u64>>,
}

impl Summary {
    pub fn tokens(&self, phase: Phase) -> u64 {
        self.by_phase.get(phase.name()).map_or(0, |p| p.tokens)
    }

    pub fn unknown_ops(&self) -> BTreeMap<String, u64> {
        let unknown = self.by_op.iter().filter(|(_, sum)| sum.is_unknown);
        unknown.map(|(op, sum)| (op.clone(), sum.steps)).collect()
    }
}

/// Sums up a log folder; `progress` gets the bytes of records read so far.
pub fn summarise(
    log_directory: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary, ReadError> {
    let mut summary = Summary {
        closed: true,
        ..Summary::default()
    };
    let mut bytes_before = 0;
    for stream in streams(log_directory)? {
        let mut reader = StreamReader::open(log_directory, stream)?;
        let mut tallies = BTreeMap::new();
        while let Some(event) = reader.next_event()? {
            match event {
                Event::Partial(_) => summary.partial += 1,
                Event::Corrupt {
                    segment,
                    offset,
                    reason,
                } => {
                    summary
                        .corrupt
                        .push(format!("{}: byte {offset}: {reason}", segment.display()));
                }
                Event::Evaluation(evaluation) => {
                    add_evaluation(&mut summary, &reader.definitions, &evaluation, &mut tallies);
                }
            }
            progress(bytes_before + reader.record_bytes());
        }
        for ((template, phase), tally) in &tallies {
            let template = &reader.definitions.templates[*template as usize];
            add_tally(&mut summary, &reader.definitions, template, phase, tally);
        }
        for tensor in reader
            .definitions
            .tensors
            .iter()
            .filter(|t| t.kind == TensorKind::Weight)
        {
            let buffer_type = reader.definitions.text(tensor.buffer_type);
            *summary.by_buffer_type.entry(buffer_type).or_default() += 1;
        }
        summary.templates += reader.definitions.templates.len() as u64;
        summary.closed &= reader.end() == StreamEnd::Closed;
        bytes_before += reader.record_bytes();
    }
    summary.record_bytes = bytes_before;
    Ok(summary)
}

/// By template and phase. A graph is evaluated many times: what it does each time
/// is counted, and multiplied in the end.
type Tallies = BTreeMap<(u32, &'static str), Tally>;

struct Tally {
    steps: Vec<StepTally>,
    /// Of the accesses of all steps in order; zero where the region is fixed.
    indexed: Vec<Traffic>,
}

struct StepTally {
    executions: u64,
    nanos: u64,
    /// Of its first access in [`Tally::indexed`].
    first_access: usize,
    has_index: bool,
}

impl Tally {
    fn new(template: &Template) -> Tally {
        let mut accesses = 0;
        let step = |step: &Step| {
            let first_access = accesses;
            accesses += step.accesses.len();
            let mut regions = step.accesses.iter().map(|access| &access.region);
            StepTally {
                executions: 0,
                nanos: 0,
                first_access,
                has_index: regions.any(|region| matches!(region, Region::Indexed(_))),
            }
        };
        let steps = template.steps.iter().map(step).collect();
        Tally {
            steps,
            indexed: vec![Traffic::default(); accesses],
        }
    }
}

fn add_evaluation(
    summary: &mut Summary,
    definitions: &Definitions,
    evaluation: &Evaluation,
    tallies: &mut Tallies,
) {
    let template = &definitions.templates[evaluation.template as usize];
    summary.evaluations += 1;
    summary.flagged += u64::from(evaluation.flags & !flags::ABORTED != 0);
    if summary.first_nanos == 0 {
        summary.first_nanos = evaluation.begin_nanos;
    }
    summary.last_nanos = summary.last_nanos.max(evaluation.end_nanos);
    let tally = tallies
        .entry((evaluation.template, evaluation.phase.name()))
        .or_insert_with(|| Tally::new(template));
    let mut begin = evaluation.begin_nanos;
    for (number, step) in tally.steps.iter_mut().enumerate() {
        // Of an evaluation that was aborted only what it came to.
        if !evaluation.was_executed(number) {
            continue;
        }
        let end = evaluation.step_nanos[number];
        step.executions += 1;
        step.nanos += end.saturating_sub(begin);
        begin = end;
        if step.has_index {
            let defs = &template.steps[number].accesses;
            for_each_access(template, evaluation, number, |access| {
                if matches!(access.def.region, Region::Fixed(_)) {
                    return;
                }
                let at = defs.iter().position(|def| std::ptr::eq(def, access.def));
                let at = at.expect("an access is one of its step's");
                tally.indexed[step.first_access + at].add(1, access.region.bytes());
            });
        }
    }
    for_each_route(template, evaluation, |route| {
        summary.routes += 1;
        *summary
            .experts
            .entry(route.layer)
            .or_default()
            .entry(route.expert)
            .or_default() += 1;
    });
    let phase = summary.by_phase.entry(evaluation.phase.name()).or_default();
    phase.evaluations += 1;
    phase.tokens += evaluation.first_of(template, CaptureKind::Tokens).len() as u64;
    phase.nanos += evaluation.end_nanos.saturating_sub(evaluation.begin_nanos);
}

fn add_tally(
    summary: &mut Summary,
    definitions: &Definitions,
    template: &Template,
    phase: &'static str,
    tally: &Tally,
) {
    for (step, about) in template.steps.iter().zip(&tally.steps) {
        if about.executions == 0 {
            continue;
        }
        summary.steps += about.executions;
        let op = summary.by_op.entry(definitions.text(step.op)).or_default();
        op.steps += about.executions;
        op.nanos += about.nanos;
        op.is_unknown |= !step.op_is_known;
        // A step without accesses has its layer and phase all the same.
        let layer = summary.by_layer.entry(step.layer).or_default();
        let of_phase = summary.by_phase.entry(phase).or_default();
        for (at, def) in step.accesses.iter().enumerate() {
            let Traffic { accesses, bytes } = match &def.region {
                Region::Fixed(region) => Traffic {
                    accesses: about.executions,
                    bytes: about.executions.saturating_mul(region.bytes()),
                },
                Region::Indexed(_) => tally.indexed[about.first_access + at],
            };
            if accesses == 0 {
                continue;
            }
            let kind = definitions.tensors[def.tensor as usize].kind;
            let (of_op, direction) = match def.direction {
                Direction::Read => (&mut op.read, "read"),
                Direction::Write => (&mut op.written, "written"),
            };
            of_op.add(accesses, bytes);
            layer.add(accesses, bytes);
            let by_kind = summary.by_kind.entry((kind, direction)).or_default();
            by_kind.add(accesses, bytes);
            let tensor = definitions.tensor_name(def.tensor);
            let by_tensor = summary.by_tensor.entry(tensor).or_default();
            by_tensor.add(accesses, bytes);
            summary.accesses += accesses;
            if kind == TensorKind::Weight {
                of_phase.weight_bytes = of_phase.weight_bytes.saturating_add(bytes);
            }
        }
    }
}

impl Traffic {
    fn add(&mut self, accesses: u64, bytes: u64) {
        self.accesses += accesses;
        // A damaged template may claim anything.
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
