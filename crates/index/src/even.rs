//! Evaluations that are too narrow for the columns of a window to show what is inside them.
//!
//! Layers come round with every evaluation. Where an evaluation is a few columns wide, which
//! column a layer falls into is chance, and the columns show a pattern that is not in the run.
//! There each evaluation is spread evenly over its time, up to where the next one begins.

use std::ops::Range;

use crate::data::Eval;

/// A pause shorter than this many columns belongs to the evaluation before it.
const SHORT_PAUSE_COLUMNS: f64 = 2.0;
/// An evaluation this much wider than those it is among (a prompt) keeps its inside.
const MUCH_WIDER: f64 = 2.0;

pub(crate) struct Even {
    /// Where each evaluation is spread; `None` for those that are wide enough.
    stretches: Vec<Option<Range<u64>>>,
}

impl Even {
    /// `None` when the evaluations, by their begin, are `columns` wide on average, or more.
    pub fn of(evals: &[&Eval], column_nanos: f64, columns: u32) -> Option<Even> {
        let widest = f64::from(columns) * column_nanos;
        let length = |eval: &Eval| eval.last.saturating_sub(eval.begin) as f64;
        let all: f64 = evals.iter().map(|eval| length(eval)).sum();
        if all >= widest * evals.len() as f64 {
            return None;
        }
        let stretches = evals.iter().enumerate().map(|(at, eval)| {
            if length(eval) >= widest * MUCH_WIDER {
                return None;
            }
            let next = evals.get(at + 1).map_or(eval.last, |next| next.begin);
            let pause = next.saturating_sub(eval.last) as f64;
            let is_short = pause < SHORT_PAUSE_COLUMNS * column_nanos;
            let end = if is_short {
                next.max(eval.last)
            } else {
                eval.last
            };
            Some(eval.begin..end.max(eval.begin + 1))
        });
        Some(Even {
            stretches: stretches.collect(),
        })
    }

    pub fn stretch(&self, at: usize) -> Option<Range<u64>> {
        self.stretches[at].clone()
    }
}
