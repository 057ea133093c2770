//! Everything added up, in one pass.
//!
//! Sums only: what they mean, and everything that needs order or time, is analysis. Needs
//! memory for one evaluation and for the sums, however long the log is.

use std::{collections::BTreeMap, path::Path};

use trace::{
    format::Phase,
    phases::TokenPhase,
    read::ReadError,
    template::{Direction, TensorKind},
};

use crate::{
    device::PROCESSOR,
    log::{Log, Stream, Visitor},
    prepared::Prepared,
    seen::Seen,
    tally::{Tallies, Tally},
    tensors::Tensors,
};

pub use crate::tally::Traffic;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpSum {
    pub steps: u64,
    /// Between the tick before and its own; on a device what was measured there.
    pub nanos: u64,
    pub read: Traffic,
    pub written: Traffic,
    /// Whether the op table knows it; whole views are recorded if not.
    pub is_unknown: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseSum {
    pub evaluations: u64,
    /// Tokens of this phase, whatever else was in their batches.
    pub tokens: u64,
    /// Those of them in evaluations of this phase: what `nanos` was spent on.
    pub timed_tokens: u64,
    /// In which they were computed: on a device what was measured there.
    pub nanos: u64,
    /// Evaluations of devices that did not say how long they took: `nanos` lacks them.
    pub untimed_evaluations: u64,
    /// Bytes of weights read.
    pub weight_bytes: u64,
}

impl PhaseSum {
    /// `None` where nothing took time, or a device did not say how long it took.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let is_known = self.nanos > 0 && self.untimed_evaluations == 0;
        is_known.then(|| self.timed_tokens as f64 * 1e9 / self.nanos as f64)
    }
}

/// Everything added up.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub evaluations: u64,
    /// Cut off by the end of the process.
    pub partial: u64,
    /// What is damaged, with where and why.
    pub corrupt: Vec<String>,
    /// Evaluations whose ticks or indices were not as predicted.
    pub flagged: u64,
    pub steps: u64,
    pub accesses: u64,
    pub templates: u64,
    /// Bytes of records, framing included.
    pub record_bytes: u64,
    /// Tokens that were guessed, and evaluated to check the guess.
    pub drafted_tokens: u64,
    /// Token and rank pairs sent to an expert.
    pub routes: u64,
    /// Every stream was closed in an orderly way.
    pub closed: bool,
    pub first_nanos: u64,
    pub last_nanos: u64,
    pub by_op: BTreeMap<String, OpSum>,
    pub by_kind: BTreeMap<(TensorKind, &'static str), Traffic>,
    pub by_layer: BTreeMap<Option<u32>, Traffic>,
    /// Of the weights.
    pub by_component: BTreeMap<&'static str, Traffic>,
    pub by_tensor: BTreeMap<String, Traffic>,
    pub by_phase: BTreeMap<&'static str, PhaseSum>,
    pub by_buffer_type: BTreeMap<String, u64>,
    /// Evaluations on each device, the processor among them.
    pub by_device: BTreeMap<String, u64>,
    /// How often each expert was chosen, by layer.
    pub experts: BTreeMap<u32, BTreeMap<u32, u64>>,
}

impl Summary {
    pub fn tokens(&self, phase: Phase) -> u64 {
        self.by_phase.get(phase.name()).map_or(0, |p| p.tokens)
    }

    /// `3 on CUDA0 and 1 on Vulkan0`; `None` if only the processor computed.
    pub fn devices(&self) -> Option<String> {
        let devices = self
            .by_device
            .iter()
            .filter(|(name, _)| **name != PROCESSOR);
        let texts: Vec<String> = devices.map(|(name, n)| format!("{n} on {name}")).collect();
        (!texts.is_empty()).then(|| texts.join(" and "))
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
    let mut summing = Summing::default();
    let walked = Log::new(log_directory).walk_with_progress(&mut summing, progress)?;
    let mut summary = summing.summary;
    for tensor in walked.tensors.all() {
        if tensor.kind == TensorKind::Weight {
            let count = summary
                .by_buffer_type
                .entry(tensor.buffer_type.clone())
                .or_default();
            *count += 1;
        }
    }
    summary.evaluations = walked.evaluations;
    summary.partial = walked.partial;
    summary.corrupt = walked.damaged;
    summary.templates = walked.templates;
    summary.record_bytes = walked.record_bytes;
    summary.closed = walked.is_closed;
    Ok(summary)
}

#[derive(Default)]
struct Summing {
    summary: Summary,
    tallies: Tallies,
    /// Scratch.
    bits: Vec<u64>,
}

impl Visitor for Summing {
    type Error = ReadError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), ReadError> {
        let (summary, evaluation) = (&mut self.summary, seen.evaluation);
        summary.flagged += u64::from(seen.is_doubtful());
        if summary.first_nanos == 0 {
            summary.first_nanos = evaluation.begin_nanos;
        }
        summary.last_nanos = summary.last_nanos.max(seen.window().1);
        match summary.by_device.get_mut(seen.device_name()) {
            Some(evaluations) => *evaluations += 1,
            None => drop(summary.by_device.insert(seen.device_name().to_owned(), 1)),
        }
        let tally = self.tallies.count(seen);
        for executed in seen.steps().filter(|e| e.step.has_index) {
            for at in executed.step.first..executed.step.end {
                if seen.prepared.accesses[at].index.is_some() {
                    tally.add(at, seen.traffic_of(at, &mut self.bits));
                }
            }
        }
        seen.for_each_route(|route| {
            summary.routes += 1;
            let experts = summary.experts.entry(route.layer).or_default();
            *experts.entry(route.expert).or_default() += 1;
        });
        let phase = summary.by_phase.entry(evaluation.phase.name()).or_default();
        phase.evaluations += 1;
        match seen.computed_nanos() {
            Some(nanos) => phase.nanos += nanos,
            None => phase.untimed_evaluations += 1,
        }
        // A phase belongs to a token: a batch may have several.
        for phase in &evaluation.token_phases {
            match phase {
                TokenPhase::Draft => summary.drafted_tokens += 1,
                phase => {
                    let sum = summary.by_phase.entry(phase.name()).or_default();
                    sum.tokens += 1;
                    sum.timed_tokens += u64::from(phase.name() == evaluation.phase.name());
                }
            }
        }
        Ok(())
    }

    fn stream_ends(&mut self, stream: &Stream) -> Result<(), ReadError> {
        let summary = &mut self.summary;
        self.tallies
            .end_stream(stream, |_, prepared, phase, tally| {
                summary.add_tally(prepared, stream.tensors, phase.name(), tally);
            });
        Ok(())
    }
}

impl Summary {
    fn add_tally(
        &mut self,
        prepared: &Prepared,
        tensors: &Tensors,
        phase: &'static str,
        tally: &Tally,
    ) {
        for (step, seen) in prepared.steps.iter().zip(&tally.steps) {
            if seen.executions == 0 {
                continue;
            }
            self.steps += seen.executions;
            let op = self.by_op.entry(step.op.to_string()).or_default();
            op.steps += seen.executions;
            op.nanos += seen.nanos;
            op.is_unknown |= !step.op_is_known;
            // A step without accesses has its layer and phase all the same.
            let layer = self.by_layer.entry(step.layer).or_default();
            let of_phase = self.by_phase.entry(phase).or_default();
            for at in step.first..step.end {
                let access = &prepared.accesses[at];
                let Traffic { accesses, bytes } = tally.of_access(prepared, at);
                if accesses == 0 {
                    continue;
                }
                let (of_op, direction) = match access.direction {
                    Direction::Read => (&mut op.read, "read"),
                    Direction::Write => (&mut op.written, "written"),
                };
                of_op.add(accesses, bytes);
                layer.add(accesses, bytes);
                let by_kind = self.by_kind.entry((access.kind, direction)).or_default();
                by_kind.add(accesses, bytes);
                let tensor = &tensors.all()[access.tensor as usize];
                if let Some(component) = tensor.component_in(&step.op) {
                    let sum = self.by_component.entry(component).or_default();
                    sum.add(accesses, bytes);
                }
                self.by_tensor
                    .entry(tensor.name.clone())
                    .or_default()
                    .add(accesses, bytes);
                self.accesses += accesses;
                if access.kind == TensorKind::Weight {
                    of_phase.weight_bytes = of_phase.weight_bytes.saturating_add(bytes);
                }
            }
        }
    }
}
