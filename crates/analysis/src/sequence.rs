//! The weights in the order in which a run used them.
//!
//! Three levels, so that 10⁸ accesses take four bytes each:
//! 1. a [`Unit`] is what a cache would hold: a whole weight tensor, or the slice
//!    of one expert of a merged tensor;
//! 2. a [`Piece`] is a part of one unit that some access reads: nearly always all
//!    of it, else the row of an embedding or a view;
//! 3. an access is the number of a piece, and the place in
//!    [`Sequence::accesses`] is its time.
//!
//! Only reads of weights are here. Activations and the KV cache live in memory
//! whatever the policy; their bytes are in other analyses.

use std::ops::Range;

use gguf::Component;
use trace::format::Phase;

use crate::{error::AnalysisError, pass::View, units::Units};

/// Most accesses that a sequence numbers; the last value stays free as "none".
pub(crate) const MAX_ACCESSES: u64 = u32::MAX as u64 - 1;

/// What a cache would hold: a weight tensor, or one expert's slice of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Name of the tensor.
    pub name: String,
    pub expert: Option<u32>,
    pub layer: Option<u32>,
    pub component: Component,
    /// `q`, `k`, `gate`, `down`, …: see `gguf::Meaning`.
    pub role: String,
    pub bytes: u64,
    /// Index into the files of the model; `None` when the weight is not in one.
    pub file: Option<u32>,
    pub file_offset: Option<u64>,
}

/// Whether a piece is its whole unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    Whole,
    Part,
}

/// A part of one unit that is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub unit: u32,
    pub extent: Extent,
    /// Distinct bytes read.
    pub bytes: u64,
    /// Its runs: `first_run..first_run + run_count` of [`Sequence::runs`].
    pub first_run: u32,
    pub run_count: u32,
}

/// Contiguous bytes, relative to the start of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    pub offset: u64,
    pub bytes: u64,
}

/// One evaluation of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalInfo {
    pub phase: Phase,
    /// Its accesses: `first_access..first_access + access_count`.
    pub first_access: u32,
    pub access_count: u32,
    /// Tokens of the batch.
    pub tokens: u32,
    /// On a device what was measured there; where nothing was, the call that asked for it.
    pub begin_nanos: u64,
    pub end_nanos: u64,
}

impl EvalInfo {
    /// Whether it generates: where the recorder did not know the phase (a program
    /// that we only watch), a batch of one token counts as that.
    pub fn is_generate(&self) -> bool {
        match self.phase {
            Phase::Generate => true,
            Phase::Prompt => false,
            Phase::Unknown => self.tokens == 1,
        }
    }

    pub fn range(&self) -> Range<usize> {
        let first = self.first_access as usize;
        first..first + self.access_count as usize
    }
}

/// The weights of a run in the order of their use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    pub units: Vec<Unit>,
    pub pieces: Vec<Piece>,
    pub runs: Vec<Run>,
    /// Numbers of pieces, in execution order.
    pub accesses: Vec<u32>,
    pub evals: Vec<EvalInfo>,
}

impl Sequence {
    /// Pieces that one evaluation reads, in order.
    pub fn accesses_of(&self, eval: &EvalInfo) -> &[u32] {
        &self.accesses[eval.range()]
    }

    pub fn runs_of(&self, piece: &Piece) -> &[Run] {
        let first = piece.first_run as usize;
        &self.runs[first..first + piece.run_count as usize]
    }

    /// Bytes of all units that were read at least once.
    pub fn touched_bytes(&self) -> u64 {
        let mut touched = vec![false; self.units.len()];
        let mut used = vec![false; self.pieces.len()];
        for &piece in &self.accesses {
            used[piece as usize] = true;
        }
        for (piece, _) in self.pieces.iter().zip(&used).filter(|(_, used)| **used) {
            touched[piece.unit as usize] = true;
        }
        let units = self.units.iter().zip(&touched);
        units.filter(|(_, t)| **t).map(|(unit, _)| unit.bytes).sum()
    }

    /// Tokens of the evaluations that generate.
    pub fn generated_tokens(&self) -> u64 {
        let evals = self.evals.iter().filter(|eval| eval.is_generate());
        evals.map(|eval| u64::from(eval.tokens)).sum()
    }
}

/// Builds a [`Sequence`] from evaluations in execution order.
#[derive(Debug, Default)]
pub struct SequenceBuilder {
    accesses: Vec<u32>,
    evals: Vec<EvalInfo>,
}

impl SequenceBuilder {
    pub fn push(&mut self, view: &View) -> Result<(), AnalysisError> {
        let first_access = self.accesses.len();
        if (first_access + view.pieces.len()) as u64 > MAX_ACCESSES {
            return Err(AnalysisError::TooManyAccesses { most: MAX_ACCESSES });
        }
        self.accesses.extend_from_slice(view.pieces);
        let evaluation = view.seen.evaluation;
        let asked = (evaluation.begin_nanos, evaluation.end_nanos);
        let (begin_nanos, end_nanos) = view.seen.device_nanos().unwrap_or(asked);
        self.evals.push(EvalInfo {
            phase: evaluation.phase,
            first_access: first_access as u32,
            access_count: view.pieces.len() as u32,
            tokens: view.seen.tokens() as u32,
            begin_nanos,
            end_nanos,
        });
        Ok(())
    }

    /// `units` are those of the views.
    pub fn finish(self, units: Units) -> Sequence {
        Sequence {
            units: units.units,
            pieces: units.pieces,
            runs: units.runs,
            accesses: self.accesses,
            evals: self.evals,
        }
    }
}
