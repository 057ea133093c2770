//! One pass over a log that adds everything up.
//!
//! Sums only: what the sums mean, and everything that needs order or time, is
//! analysis. Needs memory for one evaluation and for the sums, however long the
//! log is.

use std::{collections::BTreeMap, path::Path};

use crate::{
    expand::{for_each_access, for_each_route},
    format::{Phase, flags},
    read::{Event, ReadError, StreamEnd, StreamReader, streams},
    template::{CaptureKind, Direction, TensorKind},
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
        let mut per_tensor: Vec<Traffic> = Vec::new();
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
                    add(&mut summary, &reader, &evaluation, &mut per_tensor)
                }
            }
            progress(bytes_before + reader.record_bytes());
        }
        for (number, traffic) in per_tensor
            .iter()
            .enumerate()
            .filter(|(_, t)| t.accesses > 0)
        {
            let sum = summary
                .by_tensor
                .entry(reader.definitions.tensor_name(number as u32))
                .or_default();
            sum.accesses += traffic.accesses;
            sum.bytes += traffic.bytes;
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

fn add(
    summary: &mut Summary,
    reader: &StreamReader,
    evaluation: &crate::read::Evaluation,
    per_tensor: &mut Vec<Traffic>,
) {
    let definitions = &reader.definitions;
    let template = &definitions.templates[evaluation.template as usize];
    summary.evaluations += 1;
    summary.flagged += u64::from(evaluation.flags & !flags::ABORTED != 0);
    if summary.first_nanos == 0 {
        summary.first_nanos = evaluation.begin_nanos;
    }
    summary.last_nanos = summary.last_nanos.max(evaluation.end_nanos);
    per_tensor.resize(definitions.tensors.len(), Traffic::default());
    let mut weight_bytes = 0;
    let mut begin = evaluation.begin_nanos;
    for (number, step) in template.steps.iter().enumerate() {
        // Of an evaluation that was aborted only what it came to.
        if !evaluation.was_executed(number) {
            continue;
        }
        summary.steps += 1;
        let (mut read, mut written) = (Traffic::default(), Traffic::default());
        for_each_access(template, evaluation, number, |access| {
            let bytes = access.region.bytes();
            let tensor = &definitions.tensors[access.def.tensor as usize];
            let (sum, direction) = match access.def.direction {
                Direction::Read => (&mut read, "read"),
                Direction::Write => (&mut written, "written"),
            };
            sum.accesses += 1;
            sum.bytes += bytes;
            let kind = summary.by_kind.entry((tensor.kind, direction)).or_default();
            kind.accesses += 1;
            kind.bytes += bytes;
            let total = &mut per_tensor[access.def.tensor as usize];
            total.accesses += 1;
            total.bytes += bytes;
            if tensor.kind == TensorKind::Weight {
                weight_bytes += bytes;
            }
        });
        summary.accesses += read.accesses + written.accesses;
        let layer = summary.by_layer.entry(step.layer).or_default();
        layer.accesses += read.accesses + written.accesses;
        layer.bytes += read.bytes + written.bytes;
        let end = evaluation.step_nanos[number];
        let op = summary.by_op.entry(definitions.text(step.op)).or_default();
        op.steps += 1;
        op.nanos += end.saturating_sub(begin);
        op.is_unknown |= !step.op_is_known;
        add_traffic(&mut op.read, read);
        add_traffic(&mut op.written, written);
        begin = end;
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
    phase.weight_bytes += weight_bytes;
}

fn add_traffic(sum: &mut Traffic, more: Traffic) {
    sum.accesses += more.accesses;
    sum.bytes += more.bytes;
}
