//! What the evaluations of a run took, by tokens that were generated at once.

use std::collections::BTreeMap;

use anyhow::bail;
use rundir::Run;
use serde::Serialize;

use crate::analyse::sequence_of;

#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub run: String,
    /// Ascending.
    pub batches: Vec<Batch>,
    /// Between two evaluations, the middle one: sampling, and what the program does.
    pub idle_seconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Batch {
    /// Sequences that got a token each.
    pub batch: u64,
    pub evaluations: u64,
    /// Of an evaluation, the middle one.
    pub seconds: f64,
}

/// The same batch in two runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    pub batch: u64,
    pub first_seconds: f64,
    pub second_seconds: f64,
    /// How many times faster the second is.
    pub ratio: f64,
}

pub fn of(run: &Run) -> anyhow::Result<Measured> {
    let mut seconds: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let sequence = sequence_of(run)?;
    for eval in sequence.evals.iter().filter(|eval| eval.is_generate()) {
        let nanos = eval.end_nanos.saturating_sub(eval.begin_nanos);
        if eval.tokens > 0 && nanos > 0 {
            let of_batch = seconds.entry(u64::from(eval.tokens)).or_default();
            of_batch.push(nanos as f64 / 1e9);
        }
    }
    let evals = sequence
        .evals
        .windows(2)
        .filter(|pair| pair[1].is_generate());
    let gaps = evals.map(|pair| pair[1].begin_nanos.saturating_sub(pair[0].end_nanos));
    let mut gaps: Vec<u64> = gaps.collect();
    gaps.sort_unstable();
    let idle_seconds = gaps.get(gaps.len() / 2).map(|nanos| *nanos as f64 / 1e9);
    let batches: Vec<Batch> = seconds
        .into_iter()
        .map(|(batch, mut seconds)| {
            seconds.sort_by(f64::total_cmp);
            Batch {
                batch,
                evaluations: seconds.len() as u64,
                seconds: seconds[seconds.len() / 2],
            }
        })
        .collect();
    if batches.is_empty() {
        bail!(
            "{}: no token was generated in it, so nothing is measured; give the model file instead",
            run.path().display()
        );
    }
    Ok(Measured {
        run: run.path().display().to_string(),
        batches,
        idle_seconds,
    })
}

impl Measured {
    pub fn table(&self) -> Vec<(u64, f64)> {
        let batches = self.batches.iter();
        batches.map(|batch| (batch.batch, batch.seconds)).collect()
    }
}

/// Batches that both runs have.
pub fn pairs(first: &Measured, second: &Measured) -> Vec<Pair> {
    let same = |one: &Batch| second.batches.iter().find(|other| other.batch == one.batch);
    let both = first
        .batches
        .iter()
        .filter_map(|one| Some((one, same(one)?)));
    both.map(|(one, other)| Pair {
        batch: one.batch,
        first_seconds: one.seconds,
        second_seconds: other.seconds,
        ratio: one.seconds / other.seconds,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_batches_of_both_runs_are_compared() {
        let measured = |batches: &[(u64, f64)]| Measured {
            run: String::new(),
            idle_seconds: None,
            batches: batches
                .iter()
                .map(|&(batch, seconds)| Batch {
                    batch,
                    evaluations: 1,
                    seconds,
                })
                .collect(),
        };
        let first = measured(&[(1, 0.4), (2, 0.5)]);
        let second = measured(&[(1, 0.1), (4, 0.3)]);
        let pair = Pair {
            batch: 1,
            first_seconds: 0.4,
            second_seconds: 0.1,
            ratio: 4.0,
        };
        assert_eq!(pairs(&first, &second), [pair]);
    }
}
