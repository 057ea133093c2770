//! What a run should give: from the plan, the disk as it was around the run, and the calibration.

use launch::planning;
use plan::{ExpertsOutlook, Machine, Predicted, Speed, Spread, TokenSpan, Varies, predict};

use super::Session;
use crate::feed::{
    disk::{Look, machine_between},
    measure::{counted_from, median, skipped_tokens},
};

impl Session<'_> {
    /// Tokens that a run's speed is made of.
    pub(super) fn counted_tokens(&self) -> TokenSpan {
        let tokens = self.tokens.saturating_sub(1);
        let skipped = skipped_tokens(self.tokens, self.has_experts);
        TokenSpan {
            first: counted_from(tokens as usize, skipped) as u32,
            end: tokens,
        }
    }

    /// What is known of the machine besides its disk.
    pub(super) fn machine(&self, disk: Machine) -> Machine {
        let compute = self.compute_seconds(median(&self.compute));
        let path = &self.model.files()[0].path;
        let read_ahead_bytes = planning::read_ahead_bytes(None, Some(path));
        let varies = match (compute, quartiles(&self.compute_tokens)) {
            (Some(seconds), Some((low, high))) if self.args.compute_seconds.is_none() => {
                Spread::around(seconds, low, high)
            }
            _ => Spread::NONE,
        };
        let machine = Machine {
            compute_seconds_per_token: compute,
            varies: Varies {
                compute: varies,
                ..disk.varies
            },
            ..disk
        };
        machine.reading_ahead(read_ahead_bytes, &self.weights)
    }

    /// What a run should have given, with the disk as it was around it.
    pub(super) fn predicted(
        &self,
        b: usize,
        m: usize,
        before: Option<&Look>,
        after: &Look,
    ) -> Option<Speed> {
        let (_, plan) = self.plans.get(&(b, m))?;
        let machine = Machine {
            weights_bytes: Some(self.budgets[b].1 - self.other_bytes),
            ..self.machine(machine_between(before, after))
        };
        let choice = plan.named_choice().choice(&self.weights);
        let tokens = Some(self.counted_tokens());
        let outlook = ExpertsOutlook::uniform(&self.weights, &choice, tokens);
        let predicted = predict(&self.weights, &choice, &machine, Some(outlook));
        self.speed_of(m, &predicted)
    }

    pub(super) fn speed_of(&self, m: usize, predicted: &Predicted) -> Option<Speed> {
        match self.modes[m].is_stock() {
            true => predicted.stock.speed(),
            false => predicted.speed(),
        }
    }
}

/// What a quarter of the values is below, and a quarter above.
fn quartiles(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some((sorted[last / 4], sorted[last - last / 4]))
}
