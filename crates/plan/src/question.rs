//! One question, one answer: what these weights, this memory and this machine give.
//!
//! `plan`, `run`, `bench feed` and the opportunities of `report` all ask here, so what they
//! say about one memory, machine and run is one prediction.

use crate::Policy;
use crate::choose::{Choice, Strategies, Wanted, Weight, choose_for};
use crate::machine::Machine;
use crate::predict::{
    ExpertsOutlook, Predicted, SHORT_RUN_TOKENS, TokenSpan, fits, predict, routed_bytes_per_token,
    why_not,
};
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
    /// Which tokens are predicted. Without it, those that come when slots are full.
    pub tokens: Option<TokenSpan>,
}

pub struct Answer {
    pub wanted: Wanted,
    pub choice: Choice,
    pub machine: Machine,
    pub policy: Policy,
    /// Hit rates of all policies with the choice's slots, on the run's routing.
    pub policies: Option<Policies>,
    /// How often `policy` hits, where that is simulated or the tokens are known; otherwise
    /// slots are presumed to be full.
    pub outlook: Option<ExpertsOutlook>,
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
        let outlook = self.outlook(&choice, policies, policy);
        let predicted = predict(weights, &choice, &machine, outlook);
        let expected = outlook.unwrap_or_else(|| ExpertsOutlook::uniform(weights, &choice, None));
        Answer {
            routed_bytes_per_token: routed_bytes_per_token(
                weights,
                &choice,
                &machine,
                expected.hit_rate,
            ),
            all_fits: fits(weights, &choice, &machine),
            why_not: why_not(weights, &choice, &machine, &predicted),
            wanted,
            choice,
            machine,
            policy,
            policies,
            outlook,
            predicted,
        }
    }

    fn outlook(
        &self,
        choice: &Choice,
        policies: Option<Policies>,
        policy: Policy,
    ) -> Option<ExpertsOutlook> {
        let (Some(routing), Some(policies)) = (self.routing, policies) else {
            let evenly = |tokens| ExpertsOutlook::uniform(self.weights, choice, Some(tokens));
            return self.tokens.map(evenly);
        };
        let rate = |span: TokenSpan| {
            let from_empty = routing.from_empty(span);
            let policies = from_empty.rates(self.weights, choice);
            policies.map(|policies| policies.rate(policy))
        };
        let whole_run = policies.rate(policy);
        let recorded = u32::try_from(routing.generate.len()).unwrap_or(u32::MAX);
        let hit_rate = self.tokens.and_then(rate).unwrap_or(whole_run);
        // The least: while slots fill. The most: when they are as full as they get.
        let [early, late] = match self.tokens {
            Some(span) => span.halves(),
            None => {
                let all = TokenSpan {
                    first: 0,
                    end: recorded,
                };
                [TokenSpan::of_run(SHORT_RUN_TOKENS), all.halves()[1]]
            }
        };
        Some(ExpertsOutlook {
            hit_rate,
            low: rate(early).unwrap_or(hit_rate).min(hit_rate),
            high: rate(late).unwrap_or(hit_rate).max(hit_rate),
        })
    }
}
