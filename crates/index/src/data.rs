//! What evaluations hold: a few numbers each, and long arrays for all of them.
//!
//! An evaluation is *regular* when all steps of its graph were executed, its
//! times grow and fit 32 bits, and every indexed access touched something. All
//! but a few are. Regular evaluations have a rank within their graph and are
//! summed up through it; the others are kept access by access ([`Ragged`]).
//!
//! On a device steps have the time that their kernels had for themselves, where that was
//! measured, and no time otherwise: they are then at the begin of their evaluation.

use std::ops::Range;

use trace::format::Phase;

use crate::graph::{Graph, NO_EXPERT, Router};

/// Marks an evaluation without a rank.
pub const RAGGED: u32 = u32::MAX;
/// Marks a value out of bounds among kept rows.
pub const NO_ROW: u32 = u32::MAX;

/// One evaluation.
#[derive(Clone, Debug)]
pub struct Eval {
    pub graph: u32,
    /// Among the regular evaluations of its graph; or [`RAGGED`].
    pub rank: u32,
    /// Its stream, and its number there.
    pub stream: u32,
    pub in_stream: u64,
    /// Of llama.cpp, in its process.
    pub context: u64,
    /// Its number in the tables.
    pub number: u64,
    pub phase: Phase,
    /// On a device: of the call that asked for it.
    pub begin: u64,
    pub end: u64,
    /// What is known of it in [`crate::devices::OnDevices`].
    pub on_device: u32,
    /// How long it was computed, as far as that was measured.
    pub computed: u64,
    /// The latest of its times.
    pub last: u64,
    /// Number of its first token in the tables.
    pub first_token: u64,
    pub tokens: u32,
    /// The tokens that it computes: its own, or of a part of a graph that has none those of
    /// the part before it.
    pub batch_first: u64,
    pub batch: u32,
    /// Where its values start in the arrays of [`Data`]; for a ragged one,
    /// `times` is its index in [`Data::ragged`].
    pub at: Lengths,
    /// How many rows are output, where a router saw only those.
    pub outputs: u32,
}

impl Eval {
    pub fn is_regular(&self) -> bool {
        self.rank != RAGGED
    }

    /// Those that no evaluation before it had.
    pub fn own_tokens(&self) -> Range<u64> {
        self.first_token..self.first_token + u64::from(self.tokens)
    }

    /// Those that it computes.
    pub fn token_range(&self) -> Range<u64> {
        self.batch_first..self.batch_first + u64::from(self.batch)
    }

    pub fn first_token_if_any(&self) -> Option<u64> {
        (self.batch > 0).then_some(self.batch_first)
    }
}

/// An evaluation that is not as one expects.
#[derive(Debug)]
pub struct Ragged {
    /// When each step ended; 0 if it was not executed.
    pub nanos: Vec<u64>,
    /// On a device, what each step had for itself.
    pub own: Option<Vec<u64>>,
    /// What indexed accesses touched, by step.
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub access: u32,
    /// Or [`NO_EXPERT`].
    pub expert: u16,
    pub count: u32,
    /// Of all of them.
    pub bytes: u64,
    /// In the tensor; meaningless when `count` is not 1.
    pub offset: u64,
    pub span: u64,
}

/// The arrays.
#[derive(Debug, Default)]
pub struct Data {
    /// Nanoseconds from the begin of the evaluation to the end of each step. On a device the
    /// times of all steps up to each, and behind those when each ended, likewise from the begin.
    ends: Vec<u32>,
    ids: Vec<u16>,
    /// Beside the ids; NaN where the graph has none.
    weights: Vec<f32>,
    /// Experts that each router of an evaluation chose, ascending, and where
    /// they end.
    distinct: Vec<u16>,
    distinct_ends: Vec<u32>,
    rows: Vec<u32>,
    outputs: Vec<u32>,
    pub ragged: Vec<Ragged>,
    /// Entries of all of them: limited.
    pub entries: usize,
    pub token_ids: Vec<i64>,
    pub positions: Vec<Option<i64>>,
    pub sequences: Vec<Option<u32>>,
}

/// Lengths of the arrays: where the values of the next evaluation will start.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    pub tokens: usize,
    pub times: usize,
    pub ids: usize,
    pub distinct: usize,
    pub routers: usize,
    pub rows: usize,
    pub outputs: u32,
}

impl Data {
    pub fn lengths(&self) -> Lengths {
        Lengths {
            tokens: self.token_ids.len(),
            times: self.ends.len(),
            ids: self.ids.len(),
            distinct: self.distinct.len(),
            routers: self.distinct_ends.len(),
            rows: self.rows.len(),
            outputs: self.outputs.len() as u32,
        }
    }

    /// Of a regular evaluation, the times of all steps up to each: on the processor when each
    /// ended, from its begin.
    pub fn ends(&self, eval: &Eval, steps: usize) -> &[u32] {
        &self.ends[eval.at.times..eval.at.times + steps]
    }

    /// When each step of a regular evaluation ended, from its begin.
    pub fn moments(&self, eval: &Eval, graph: &Graph) -> &[u32] {
        let steps = graph.steps.len();
        let first = eval.at.times + if graph.is_on_device() { steps } else { 0 };
        &self.ends[first..first + steps]
    }

    pub fn ids(&self, eval: &Eval, router: &Router) -> &[u16] {
        let at = eval.at.ids + router.ids_at as usize;
        &self.ids[at..at + router.elements as usize]
    }

    pub fn weights(&self, eval: &Eval, router: &Router) -> &[f32] {
        let at = eval.at.ids + router.ids_at as usize;
        &self.weights[at..at + router.elements as usize]
    }

    /// Experts that router number `router` chose, ascending.
    pub fn distinct(&self, eval: &Eval, router: usize) -> &[u16] {
        let ends = &self.distinct_ends[eval.at.routers..=eval.at.routers + router];
        let end = ends[router] as usize;
        let begin = router.checked_sub(1).map_or(0, |r| ends[r] as usize);
        &self.distinct[eval.at.distinct + begin..eval.at.distinct + end]
    }

    /// The values of an index array; [`NO_ROW`] where they name nothing.
    pub fn rows(&self, eval: &Eval, graph: &Graph, kept: u32) -> &[u32] {
        let kept = &graph.rows[kept as usize];
        let at = eval.at.rows + kept.at as usize;
        &self.rows[at..at + kept.elements as usize]
    }

    /// The token of the batch whose choices stand in this row of a router: behind
    /// the last attention only the rows that are output are left.
    pub fn token_of_row(&self, eval: &Eval, router: &Router, row: u32) -> u32 {
        if eval.outputs == 0 || router.elements / router.used == eval.batch {
            return row;
        }
        let outputs = &self.outputs[eval.at.outputs as usize..][..eval.outputs as usize];
        outputs.get(row as usize).copied().unwrap_or(row)
    }

    pub fn ragged(&self, eval: &Eval) -> &Ragged {
        &self.ragged[eval.at.times]
    }

    pub fn push_end(&mut self, end: u32) {
        self.ends.push(end);
    }

    pub fn forget_ends(&mut self, lengths: &Lengths) {
        self.ends.truncate(lengths.times);
    }

    /// Appends a router's choices; `values` is empty when it was not reached.
    pub fn push_choices(&mut self, router: &Router, values: &[i64], weights: &[i64], begin: usize) {
        let id = |v: &i64| u16::try_from(*v).unwrap_or(NO_EXPERT);
        let elements = router.elements as usize;
        let first = self.ids.len();
        self.ids.extend(values.iter().take(elements).map(id));
        self.ids.resize(first + elements, NO_EXPERT);
        let bits = weights.iter().take(elements);
        self.weights.extend(bits.map(|&b| f32::from_bits(b as u32)));
        self.weights.resize(first + elements, f32::NAN);
        let before = self.distinct.len();
        let chosen = self.ids[first..].iter().filter(|&&e| e != NO_EXPERT);
        self.distinct.extend(chosen);
        self.distinct[before..].sort_unstable();
        let mut kept = before;
        for at in before..self.distinct.len() {
            if at == before || self.distinct[at] != self.distinct[kept - 1] {
                self.distinct[kept] = self.distinct[at];
                kept += 1;
            }
        }
        self.distinct.truncate(kept);
        self.distinct_ends.push((kept - begin) as u32);
    }

    pub fn push_rows(&mut self, values: &[i64], elements: usize) {
        let first = self.rows.len();
        let row = |v: &i64| u32::try_from(*v).unwrap_or(NO_ROW);
        self.rows.extend(values.iter().take(elements).map(row));
        self.rows.resize(first + elements, NO_ROW);
    }

    pub fn push_outputs(&mut self, values: &[i64]) {
        let row = |v: &i64| u32::try_from(*v).unwrap_or(u32::MAX);
        self.outputs.extend(values.iter().map(row));
    }
}
