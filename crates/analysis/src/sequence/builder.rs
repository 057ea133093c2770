//! From evaluations to a [`Sequence`].
//!
//! A graph is evaluated thousands of times, so each template is compiled once
//! into a program: the pieces that every evaluation reads, as one array to copy,
//! interrupted only where an index array decides (experts, embedding rows). Those
//! go through a table from index to pieces, filled when an index is first seen.

use std::collections::HashMap;

use gguf::{Kind, Meaning, names::Experts};
use trace::{
    expand::{for_each_access, is_merged},
    read::{Definitions, Evaluation},
    region::{IndexOrder, Indexed, Region, Strided},
    template::{CaptureKind, Direction, Template, TensorDef, TensorKind},
};

use super::{EvalInfo, Extent, Piece, Run, Sequence, Unit};
use crate::error::AnalysisError;

/// Longer index ranges than any vocabulary get no table.
const MAX_TABLE_ROWS: u64 = 1 << 24;

/// Most accesses that a sequence numbers; the last value stays free as "none".
const MAX_ACCESSES: usize = u32::MAX as usize - 1;

/// Builds a [`Sequence`] from evaluations in execution order.
#[derive(Default)]
pub struct SequenceBuilder {
    sequence: Sequence,
    table: UnitTable,
    /// Per stream, because each stream numbers its own definitions.
    streams: HashMap<u32, Vec<Option<Program>>>,
    stream: u32,
    scratch: Vec<u64>,
}

impl SequenceBuilder {
    pub fn new() -> SequenceBuilder {
        SequenceBuilder::default()
    }

    /// Says which stream the next evaluations come from (0 at first). The same
    /// weights are the same units in all streams.
    pub fn select_stream(&mut self, stream: u32) {
        self.stream = stream;
    }

    /// Adds one complete evaluation; of an aborted one, the steps that ran.
    pub fn push(
        &mut self,
        definitions: &Definitions,
        evaluation: &Evaluation,
    ) -> Result<(), AnalysisError> {
        let number = evaluation.template as usize;
        let template =
            definitions
                .templates
                .get(number)
                .ok_or(AnalysisError::UndefinedTemplate {
                    evaluation: evaluation.number,
                    template: evaluation.template,
                })?;
        let programs = self.streams.entry(self.stream).or_default();
        if programs.len() <= number {
            programs.resize_with(number + 1, || None);
        }
        let mut program = match programs[number].take() {
            Some(program) => program,
            None => Program::compile(definitions, template, &mut self.table),
        };
        let first_access = self.sequence.accesses.len();
        program.run(
            template,
            evaluation,
            &mut self.table,
            &mut self.scratch,
            &mut self.sequence.accesses,
        );
        if let Some(programs) = self.streams.get_mut(&self.stream) {
            programs[number] = Some(program);
        }
        let end = self.sequence.accesses.len();
        if end > MAX_ACCESSES {
            self.sequence.accesses.truncate(first_access);
            return Err(AnalysisError::TooManyAccesses {
                most: MAX_ACCESSES as u64,
            });
        }
        let tokens = evaluation.first_of(template, CaptureKind::Tokens).len();
        self.sequence.evals.push(EvalInfo {
            phase: evaluation.phase,
            first_access: first_access as u32,
            access_count: (end - first_access) as u32,
            tokens: tokens as u32,
            begin_nanos: evaluation.begin_nanos,
            end_nanos: evaluation.end_nanos,
        });
        Ok(())
    }

    pub fn finish(self) -> Sequence {
        Sequence {
            units: self.table.units,
            pieces: self.table.pieces,
            runs: self.table.runs,
            ..self.sequence
        }
    }
}

/// Units and pieces, each once.
#[derive(Default)]
struct UnitTable {
    units: Vec<Unit>,
    pieces: Vec<Piece>,
    runs: Vec<Run>,
    tensors: HashMap<TensorKey, TensorUnits>,
    /// Number of each piece, by unit and runs.
    known: HashMap<(u32, Vec<Run>), u32>,
}

/// What makes two definitions the same weight: name, place in a file, size.
type TensorKey = (String, Option<(u32, u64)>, u64);

/// The units that a tensor is cut into.
#[derive(Clone, Copy)]
struct TensorUnits {
    first_unit: u32,
    unit_bytes: u64,
    count: u64,
}

impl UnitTable {
    /// The units of a tensor, made when it is first seen.
    fn units_of(
        &mut self,
        definitions: &Definitions,
        tensor: u32,
        sliced: Option<(u64, u64)>,
    ) -> TensorUnits {
        let def = &definitions.tensors[tensor as usize];
        let name = definitions.tensor_name(tensor);
        let place = def.place.map(|p| (p.file, p.file_offset));
        let key = (name, place, def.size_bytes);
        if let Some(&units) = self.tensors.get(&key) {
            return units;
        }
        let meaning = Meaning::of(&key.0);
        let count = match expert_count(def, &meaning) {
            Some(count) => count,
            None => sliced.map_or(1, |(count, bytes)| {
                if count > 0 && count.checked_mul(bytes) == Some(def.size_bytes) {
                    count
                } else {
                    1
                }
            }),
        };
        let is_sliced = count > 1 || meaning.experts == Experts::Merged;
        let units = TensorUnits {
            first_unit: self.units.len() as u32,
            unit_bytes: def.size_bytes / count,
            count,
        };
        for slice in 0..count {
            self.units.push(Unit {
                name: key.0.clone(),
                expert: match meaning.experts {
                    Experts::One(expert) => Some(expert),
                    _ => is_sliced.then_some(slice as u32),
                },
                layer: meaning.layer,
                component: meaning.component,
                role: meaning.role.clone().into_owned(),
                bytes: units.unit_bytes,
                file: place.map(|(file, _)| file),
                file_offset: place.map(|(_, offset)| offset + slice * units.unit_bytes),
            });
        }
        self.tensors.insert(key, units);
        units
    }

    /// Appends the pieces that a region of a tensor consists of.
    fn resolve(&mut self, units: TensorUnits, region: &Strided, out: &mut Vec<u32>) {
        let mut unit = None;
        let mut runs: Vec<Run> = Vec::new();
        let end_of_tensor = units.unit_bytes * units.count;
        let (mut cuts, mut pieces) = (Vec::new(), Vec::new());
        region.for_each_run(|offset, bytes| {
            let mut at = offset;
            let end = offset.saturating_add(bytes).min(end_of_tensor);
            while at < end {
                let slice = at / units.unit_bytes;
                let until = end.min((slice + 1) * units.unit_bytes);
                cuts.push((slice, at - slice * units.unit_bytes, until - at));
                at = until;
            }
        });
        for (slice, offset, bytes) in cuts {
            if unit != Some(slice) {
                if let Some(unit) = unit {
                    pieces.push((unit, std::mem::take(&mut runs)));
                }
                unit = Some(slice);
            }
            match runs.last_mut() {
                Some(run) if run.offset + run.bytes == offset => run.bytes += bytes,
                _ => runs.push(Run { offset, bytes }),
            }
        }
        if let Some(unit) = unit {
            pieces.push((unit, runs));
        }
        for (slice, runs) in pieces {
            out.push(self.piece(units.first_unit + slice as u32, runs));
        }
    }

    fn piece(&mut self, unit: u32, runs: Vec<Run>) -> u32 {
        if let Some(&piece) = self.known.get(&(unit, runs.clone())) {
            return piece;
        }
        let number = self.pieces.len() as u32;
        let bytes = runs.iter().map(|run| run.bytes).sum();
        let is_whole = bytes == self.units[unit as usize].bytes;
        self.pieces.push(Piece {
            unit,
            extent: if is_whole {
                Extent::Whole
            } else {
                Extent::Part
            },
            bytes,
            first_run: self.runs.len() as u32,
            run_count: runs.len() as u32,
        });
        self.runs.extend_from_slice(&runs);
        self.known.insert((unit, runs), number);
        number
    }
}

/// How many experts a merged tensor stacks, from its name and shape.
fn expert_count(def: &TensorDef, meaning: &Meaning) -> Option<u64> {
    if meaning.experts != Experts::Merged {
        return None;
    }
    let count = match meaning.kind {
        Kind::Weight | Kind::Plain => def.ne[2],
        _ if def.ne[1] > 1 => def.ne[1],
        _ => def.ne[0],
    };
    (count > 0 && def.size_bytes.is_multiple_of(count) && def.size_bytes > 0).then_some(count)
}

/// What an evaluation of one template reads.
struct Program {
    ops: Vec<Op>,
    /// Pieces of all [`Op::Static`], and the step that reads each.
    pieces: Vec<u32>,
    steps: Vec<u32>,
}

enum Op {
    /// Always the same pieces: a range of [`Program::pieces`].
    Static { first: usize, end: usize },
    /// An index array decides.
    Indexed {
        step: u32,
        access: u32,
        units: TensorUnits,
        /// Per index value: its pieces, as a range of `pool`.
        by_index: Vec<Option<(u32, u32)>>,
        pool: Vec<u32>,
    },
    /// Anything rarer, expanded by crate `trace`.
    Other {
        step: u32,
        access: u32,
        units: TensorUnits,
    },
}

impl Program {
    fn compile(definitions: &Definitions, template: &Template, table: &mut UnitTable) -> Program {
        let mut program = Program {
            ops: Vec::new(),
            pieces: Vec::new(),
            steps: Vec::new(),
        };
        for (step, def) in template.steps.iter().enumerate() {
            for (number, access) in def.accesses.iter().enumerate() {
                let tensor = &definitions.tensors[access.tensor as usize];
                if tensor.kind != TensorKind::Weight
                    || access.direction != Direction::Read
                    || tensor.size_bytes == 0
                {
                    continue;
                }
                let (step, access_number) = (step as u32, number as u32);
                match &access.region {
                    Region::Fixed(region) => {
                        let units = table.units_of(definitions, access.tensor, None);
                        let first = program.pieces.len();
                        table.resolve(units, region, &mut program.pieces);
                        let end = program.pieces.len();
                        program.steps.resize(end, step);
                        match program.ops.last_mut() {
                            Some(Op::Static { end: last, .. }) => *last = end,
                            _ => program.ops.push(Op::Static { first, end }),
                        }
                    }
                    Region::Indexed(indexed) => {
                        let capture = &template.captures[indexed.capture as usize];
                        let sliced = (capture.kind == CaptureKind::ExpertIds)
                            .then_some((indexed.bound, indexed.stride));
                        let units = table.units_of(definitions, access.tensor, sliced);
                        let is_plain = indexed.bound <= MAX_TABLE_ROWS
                            && !is_merged(indexed)
                            && (indexed.order == IndexOrder::DistinctAscending
                                || indexed.count[1..] == [1, 1]);
                        program.ops.push(if is_plain {
                            Op::Indexed {
                                step,
                                access: access_number,
                                units,
                                by_index: Vec::new(),
                                pool: Vec::new(),
                            }
                        } else {
                            Op::Other {
                                step,
                                access: access_number,
                                units,
                            }
                        });
                    }
                }
            }
        }
        program
    }

    fn run(
        &mut self,
        template: &Template,
        evaluation: &Evaluation,
        table: &mut UnitTable,
        scratch: &mut Vec<u64>,
        out: &mut Vec<u32>,
    ) {
        let ran_whole = evaluation.step_nanos.len() >= template.steps.len()
            && evaluation.step_nanos.iter().all(|&nanos| nanos != 0);
        for op in &mut self.ops {
            match op {
                Op::Static { first, end } if ran_whole => {
                    out.extend_from_slice(&self.pieces[*first..*end]);
                }
                Op::Static { first, end } => {
                    for at in *first..*end {
                        if evaluation.was_executed(self.steps[at] as usize) {
                            out.push(self.pieces[at]);
                        }
                    }
                }
                Op::Indexed {
                    step,
                    access,
                    units,
                    by_index,
                    pool,
                } => {
                    if !evaluation.was_executed(*step as usize) {
                        continue;
                    }
                    let def = &template.steps[*step as usize].accesses[*access as usize];
                    let Region::Indexed(indexed) = &def.region else {
                        continue;
                    };
                    in_order(template, indexed, evaluation, scratch, |value| {
                        let at = value as usize;
                        if by_index.len() <= at {
                            by_index.resize(at + 1, None);
                        }
                        let (first, end) = *by_index[at].get_or_insert_with(|| {
                            let first = pool.len() as u32;
                            let region = Strided {
                                offset: indexed.unit.offset + value * indexed.stride,
                                ..indexed.unit.clone()
                            };
                            table.resolve(*units, &region, pool);
                            (first, pool.len() as u32)
                        });
                        match end - first {
                            1 => out.push(pool[first as usize]),
                            _ => out.extend_from_slice(&pool[first as usize..end as usize]),
                        }
                    });
                }
                Op::Other {
                    step,
                    access,
                    units,
                } => {
                    let step = *step as usize;
                    if !evaluation.was_executed(step) {
                        continue;
                    }
                    let wanted = &template.steps[step].accesses[*access as usize];
                    for_each_access(template, evaluation, step, |access| {
                        if std::ptr::eq(access.def, wanted) {
                            table.resolve(*units, &access.region, out);
                        }
                    });
                }
            }
        }
    }
}

/// The index values of an access, in the order of `trace::expand`.
fn in_order(
    template: &Template,
    indexed: &Indexed<u32>,
    evaluation: &Evaluation,
    scratch: &mut Vec<u64>,
    mut f: impl FnMut(u64),
) {
    let values = evaluation
        .captures
        .get(indexed.capture as usize)
        .map_or(&[][..], Vec::as_slice);
    let valid = |&value: &i64| {
        u64::try_from(value)
            .ok()
            .filter(|&value| value < indexed.bound)
    };
    match indexed.order {
        IndexOrder::DistinctAscending => {
            // A set of bits: batches name the same experts again and again.
            scratch.clear();
            scratch.resize(indexed.bound.div_ceil(64) as usize, 0);
            for value in values.iter().filter_map(valid) {
                scratch[(value / 64) as usize] |= 1 << (value % 64);
            }
            for (word, &bits) in scratch.iter().enumerate() {
                let mut bits = bits;
                while bits != 0 {
                    f(word as u64 * 64 + u64::from(bits.trailing_zeros()));
                    bits &= bits - 1;
                }
            }
        }
        IndexOrder::EachInOrder => {
            let inner = template.captures[indexed.capture as usize].count[0].max(1);
            for at in 0..indexed.count[0] {
                if let Some(value) = values.get((at % inner) as usize).and_then(valid) {
                    f(value);
                }
            }
        }
    }
}
