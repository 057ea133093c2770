//! One question, one answer: what these weights, this memory and this machine give.
//!
//! `plan`, `run`, `bench feed` and the opportunities of `report` all ask here, so what they
//! say about one memory, machine and run is one prediction.

use crate::Policy;
use crate::choose::{Choice, Strategies, Wanted, Weight, choose_for};
use crate::machine::Machine;
use crate::predict::{ExpertsOutlook, Predicted, fits, predict, routed_bytes_per_token, why_not};
use crate::routing::{Policies, RoutingSequence};

#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// In the order of their use.
    pub weights: &'a [Weight],
    /// Memory for them: pinned, ring and expert slots together.
    pub weights_bytes: u64,
    pub strategies: Strategies,
    /// Its memory for weights is that of the question.
    pub machine: Machine,
    /// Of a run: which experts are used. Without it, all alike.
    pub routing: Option<&'a RoutingSequence>,
    /// The best by simulation, when nobody says.
    pub policy: Option<Policy>,
}

pub struct Answer {
    pub wanted: Wanted,
    pub choice: Choice,
    pub machine: Machine,
    pub policy: Policy,
    /// Hit rates of all policies with the choice's slots, on the run's routing.
    pub policies: Option<Policies>,
    /// That of `policy`; simulated, not presumed.
    pub hit_rate: Option<f64>,
    pub predicted: Predicted,
    /// Of the bytes read for a token, those that only a router can name.
    pub routed_bytes_per_token: u64,
    /// No weight has to leave memory between tokens.
    pub all_fits: bool,
    pub why_not: Option<String>,
}

impl Question<'_> {
    pub fn answer(&self) -> Answer {
        let weights = self.weights;
        let wanted = Wanted::new(self.weights_bytes, self.strategies);
        let machine = Machine {
            weights_bytes: Some(self.weights_bytes),
            ..self.machine
        };
        let choice = choose_for(weights, &wanted, &machine);
        let policies = self
            .routing
            .and_then(|routing| routing.rates(weights, &choice));
        let policy = self
            .policy
            .or(policies.map(|policies| policies.best()))
            .unwrap_or_default();
        let hit_rate = policies.map(|policies| policies.rate(policy));
        let predicted = predict(weights, &choice, &machine, hit_rate);
        let expected =
            hit_rate.unwrap_or_else(|| ExpertsOutlook::uniform(weights, &choice).hit_rate);
        Answer {
            routed_bytes_per_token: routed_bytes_per_token(weights, &choice, &machine, expected),
            all_fits: fits(weights, &choice, &machine),
            why_not: why_not(weights, &choice, &machine, &predicted),
            wanted,
            choice,
            machine,
            policy,
            policies,
            hit_rate,
            predicted,
        }
    }
}
