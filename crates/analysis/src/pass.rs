//! What each evaluation read of the weights, worked out once for the facts and the sequence.
//!
//! A graph is evaluated thousands of times, so each template is compiled once into a program:
//! the pieces that every evaluation reads, as one array to copy, interrupted only where an
//! index array decides (experts, embedding rows). Those go through a table from index to
//! pieces, filled when an index is first seen. Memory is that of the templates, however many
//! evaluations there are.

use std::{collections::HashMap, ops::Range};

use reader::{Index, Prepared, Seen, Tensors, Traffic};
use trace::{
    region::Strided,
    template::{Direction, TensorKind},
};

use crate::{
    sequence::Piece,
    units::{TensorUnits, Units},
};

/// Longer index ranges than any vocabulary get no table.
const MAX_TABLE_ROWS: u64 = 1 << 24;

/// One evaluation, ready to be looked at.
pub struct View<'a> {
    pub seen: &'a Seen<'a>,
    /// Every step was executed.
    pub is_whole: bool,
    pub units: &'a Units,
    /// Numbers of the pieces that were read, in order.
    pub pieces: &'a [u32],
    /// Every access that an index array decided, by its place in
    /// [`Prepared::accesses`], with what it touched.
    pub indexed: &'a [(usize, Traffic)],
    /// Stretches of `pieces` that index arrays decided.
    varying: &'a [Range<usize>],
}

impl<'a> View<'a> {
    /// Reads of weights, in order.
    pub fn weights(&self) -> impl Iterator<Item = &'a Piece> {
        pieces(self.units, self.pieces)
    }

    /// Those of them that an index array decided.
    pub fn varying(&self) -> impl Iterator<Item = &'a Piece> {
        let (units, all) = (self.units, self.pieces);
        let varying = self.varying.iter();
        varying.flat_map(move |range| pieces(units, &all[range.clone()]))
    }
}

fn pieces<'a>(units: &'a Units, numbers: &'a [u32]) -> impl Iterator<Item = &'a Piece> {
    numbers.iter().map(|&piece| &units.pieces[piece as usize])
}

/// The programs of the stream at hand, and the units of all streams.
#[derive(Debug, Default)]
pub struct Pass {
    pub units: Units,
    /// By number of the template in the run.
    programs: HashMap<u32, Program>,
    read: Read,
}

/// What one evaluation read.
#[derive(Debug, Default)]
struct Read {
    pieces: Vec<u32>,
    varying: Vec<Range<usize>>,
    indexed: Vec<(usize, Traffic)>,
    bits: Vec<u64>,
}

impl Pass {
    /// Works out what an evaluation read; of one that was aborted, the steps that ran.
    pub fn push<'a>(&'a mut self, seen: &'a Seen<'a>) -> View<'a> {
        let (units, read) = (&mut self.units, &mut self.read);
        let program = (self.programs.entry(seen.template))
            .or_insert_with(|| Program::new(seen.prepared, seen.tensors, units));
        let mut steps = 0..seen.prepared.steps.len();
        let is_whole = steps.all(|step| seen.evaluation.was_executed(step));
        program.run(seen, is_whole, units, read);
        View {
            seen,
            is_whole,
            units,
            pieces: &read.pieces,
            indexed: &read.indexed,
            varying: &read.varying,
        }
    }

    /// What every evaluation of a template reads: steps and pieces.
    pub(crate) fn fixed(&self, template: u32) -> impl Iterator<Item = (u32, &Piece)> {
        let program = self.programs.get(&template).into_iter();
        program.flat_map(|p| p.steps.iter().copied().zip(pieces(&self.units, &p.pieces)))
    }

    /// The next stream has templates of its own.
    pub fn end_stream(&mut self) {
        self.programs.clear();
    }
}

/// What an evaluation of one template reads.
#[derive(Debug, Default)]
struct Program {
    ops: Vec<Op>,
    /// Pieces of all [`Op::Fixed`], and the step that reads each.
    pieces: Vec<u32>,
    steps: Vec<u32>,
}

#[derive(Debug)]
enum Op {
    /// Always the same pieces: a range of [`Program::pieces`].
    Fixed(Range<usize>),
    /// Parts of a weight that an index array names.
    Named(Box<Named>),
    /// An access to anything else, likewise; it is only counted.
    Counted(usize),
}

#[derive(Debug)]
struct Named {
    access: usize,
    units: TensorUnits,
    /// Per index value: its pieces, as a range of `pool`.
    by_index: Vec<Option<(u32, u32)>>,
    pool: Vec<u32>,
}

impl Program {
    fn new(prepared: &Prepared, tensors: &Tensors, units: &mut Units) -> Program {
        let mut program = Program::default();
        for (at, access) in prepared.accesses.iter().enumerate() {
            let tensor = &tensors.all()[access.tensor as usize];
            let is_read = access.kind == TensorKind::Weight
                && access.direction == Direction::Read
                && tensor.size_bytes > 0;
            match &access.index {
                None if is_read => {
                    let of_tensor = units.of_tensor(tensor, None);
                    let first = program.pieces.len();
                    units.resolve(of_tensor, &access.unit, &mut program.pieces);
                    let end = program.pieces.len();
                    program.steps.resize(end, access.step as u32);
                    match program.ops.last_mut() {
                        Some(Op::Fixed(range)) => range.end = end,
                        _ => program.ops.push(Op::Fixed(first..end)),
                    }
                }
                None => {}
                Some(index) if is_read => program.ops.push(Op::Named(Box::new(Named {
                    access: at,
                    units: units.of_tensor(tensor, Some(index)),
                    by_index: Vec::new(),
                    pool: Vec::new(),
                }))),
                Some(_) => program.ops.push(Op::Counted(at)),
            }
        }
        program
    }

    fn run(&mut self, seen: &Seen, is_whole: bool, units: &mut Units, read: &mut Read) {
        read.pieces.clear();
        read.varying.clear();
        read.indexed.clear();
        let step_of = |at: usize| seen.prepared.accesses[at].step;
        let is_executed = |at| is_whole || seen.evaluation.was_executed(step_of(at));
        for op in &mut self.ops {
            match op {
                Op::Fixed(range) if is_whole => {
                    read.pieces.extend_from_slice(&self.pieces[range.clone()]);
                }
                Op::Fixed(range) => {
                    let executed = (range.clone())
                        .filter(|&at| seen.evaluation.was_executed(self.steps[at] as usize))
                        .map(|at| self.pieces[at]);
                    read.pieces.extend(executed);
                }
                Op::Named(named) if is_executed(named.access) => {
                    let first = read.pieces.len();
                    let traffic = named.run(seen, units, read);
                    read.varying.push(first..read.pieces.len());
                    read.indexed.push((named.access, traffic));
                }
                &mut Op::Counted(at) if is_executed(at) => {
                    let traffic = seen.traffic_of(at, &mut read.bits);
                    read.indexed.push((at, traffic));
                }
                Op::Named(_) | Op::Counted(_) => {}
            }
        }
    }
}

impl Named {
    fn run(&mut self, seen: &Seen, units: &mut Units, read: &mut Read) -> Traffic {
        let access = &seen.prepared.accesses[self.access];
        let mut traffic = Traffic::default();
        let has_table = |i: &&Index| i.is_plain && i.indexed.bound <= MAX_TABLE_ROWS;
        let Some(index) = access.index.as_deref().filter(has_table) else {
            seen.for_each_of(self.access, |of| {
                traffic.add(1, of.access.region.bytes());
                units.resolve(self.units, &of.access.region, &mut read.pieces);
            });
            return traffic;
        };
        let (by_index, pool, out) = (&mut self.by_index, &mut self.pool, &mut read.pieces);
        index.for_each_value(seen.evaluation, &mut read.bits, |value| {
            traffic.accesses += 1;
            let at = value as usize;
            if by_index.len() <= at {
                by_index.resize(at + 1, None);
            }
            let (first, end) = *by_index[at].get_or_insert_with(|| {
                let first = pool.len() as u32;
                let region = Strided {
                    offset: access.unit.offset + value * index.indexed.stride,
                    ..access.unit.clone()
                };
                units.resolve(self.units, &region, pool);
                (first, pool.len() as u32)
            });
            match end - first {
                1 => out.push(pool[first as usize]),
                _ => out.extend_from_slice(&pool[first as usize..end as usize]),
            }
        });
        Traffic::times(traffic.accesses, access.bytes)
    }
}
