//! How well the pattern learned so far predicts the next weight.
//!
//! A unit is a weight, or an expert's slice of one. Per template, one table
//! remembers which unit followed each unit the last time, and which came first.
//! The first evaluation of a template only teaches; from then on each access is
//! predicted, scored, and learned. Dense weights are predicted from the dense
//! weight before, for experts do not disturb their order; a slice of an expert is
//! predicted from whatever came before it. Rows of an embedding count as the
//! embedding: that it comes next is predicted, which row is not.

use serde::{Deserialize, Serialize};

use crate::pass::View;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeterminismResults {
    /// Parts that every token uses.
    pub dense: Score,
    /// Slices that the router chooses.
    pub experts: Score,
    /// Evaluations that only taught.
    pub learning_evaluations: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    pub predictions: u64,
    pub hits: u64,
    pub bytes: u64,
    pub hit_bytes: u64,
}

impl Score {
    pub fn share(&self) -> f64 {
        self.hits as f64 / self.predictions.max(1) as f64
    }
}

#[derive(Debug, Default)]
pub struct Accumulator {
    /// By template: what followed the begin, then what followed each unit: among
    /// dense weights, and among all. A unit plus one, 0 for nothing yet.
    tables: Vec<Vec<[u32; 2]>>,
    /// By unit: whether it is a slice of an expert.
    is_expert: Vec<bool>,
    scores: [Score; 2],
    learning_evaluations: u64,
}

impl Accumulator {
    pub fn push(&mut self, view: &View) {
        let number = view.seen.template as usize;
        if self.tables.len() <= number {
            self.tables.resize(number + 1, Vec::new());
        }
        let table = &mut self.tables[number];
        table.resize(view.units.units.len() + 1, [0; 2]);
        let units = view.units.units[self.is_expert.len()..].iter();
        self.is_expert.extend(units.map(|u| u.expert.is_some()));
        // Nothing ever came first: no evaluation got as far as a weight.
        let is_learning = table[0] == [0; 2];
        self.learning_evaluations += u64::from(is_learning);
        let scores = &mut self.scores;
        let mut contexts = [0; 2];
        for piece in view.weights() {
            let next = piece.unit + 1;
            let is_expert = self.is_expert[piece.unit as usize];
            let part = usize::from(is_expert);
            if !is_learning {
                let is_hit = u64::from(table[contexts[part]][part] == next);
                let score = &mut scores[part];
                score.predictions += 1;
                score.hits += is_hit;
                score.bytes += piece.bytes;
                score.hit_bytes += is_hit * piece.bytes;
            }
            table[contexts[1]][1] = next;
            contexts[1] = next as usize;
            if !is_expert {
                table[contexts[0]][0] = next;
                contexts[0] = next as usize;
            }
        }
    }

    /// The next stream has templates of its own.
    pub fn end_stream(&mut self) {
        self.tables.clear();
    }

    pub fn finish(self) -> DeterminismResults {
        DeterminismResults {
            dense: self.scores[0],
            experts: self.scores[1],
            learning_evaluations: self.learning_evaluations,
        }
    }
}
