//! Experts: who is chosen how often, how evenly, with whom, for which tokens,
//! and how long that stays so. `docs/analysis.md` defines every number.

use std::collections::HashMap;

use reader::{Route, Seen};
use serde::{Deserialize, Serialize};

use crate::timeline::Timeline;

pub use preference::Preference;
mod preference;
mod stability;
pub use stability::{LayerOverlap, between_runs};

/// A square of a thousand experts is 4 MB a layer; more are not looked at in pairs.
const MAX_PAIRED: usize = 1024;

/// How finely to look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertOptions {
    /// Tokens of a window when the hot sets of following windows are compared.
    pub window_tokens: u64,
    /// Experts in a hot set; 0 means as many as a token uses.
    pub hot_set: u32,
    /// Pairs to report per layer.
    pub top_pairs: usize,
    /// Tokens to report per expert, and how often a token must have come.
    pub top_tokens: usize,
    pub least_count: u64,
    /// Bound on the memory for counts by token.
    pub token_memory_bytes: u64,
}

impl Default for ExpertOptions {
    fn default() -> ExpertOptions {
        ExpertOptions {
            window_tokens: 64,
            hot_set: 0,
            top_pairs: 10,
            top_tokens: 5,
            least_count: 3,
            token_memory_bytes: 64 << 20,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpertResults {
    pub layers: Vec<LayerExperts>,
    pub tokens: u64,
    /// Choices (token, layer, rank), and how many of them per token.
    pub choices: u64,
    pub choices_per_token: f64,
    /// Ids that no expert has; the evaluations are flagged in the log too.
    pub bad_ids: u64,
    /// Choices by tokens that came too late to be counted one by one (see
    /// [`ExpertOptions::token_memory_bytes`]).
    pub choices_without_token: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerExperts {
    pub layer: u32,
    pub experts: Vec<ExpertHeat>,
    /// Chosen per token.
    pub used: u32,
    pub choices: u64,
    /// Entropy of the choices over that of a uniform choice: 1 is even.
    pub normalised_entropy: f64,
    /// Choices of the busiest expert over the mean.
    pub max_over_mean: f64,
    pub coefficient_of_variation: f64,
    /// Chance that an expert of one evaluation is used by the next too.
    pub repeat_share: f64,
    pub stability: Stability,
    /// Most frequent first.
    pub pairs: Vec<Pair>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpertHeat {
    pub expert: u32,
    pub choices: u64,
    /// By phase: unknown, prompt, generate.
    pub phase_choices: [u64; 3],
    pub share: f64,
    /// Share over that of a uniform choice: 1 is the average expert.
    pub temperature: f64,
    /// Of the router, where the graph has weights.
    pub mean_weight: Option<f64>,
    pub prefers: Vec<Preference>,
}

/// Two experts chosen for the same token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub experts: [u32; 2],
    pub tokens: u64,
    /// Over what independent choices with the same shares would give.
    pub lift: f64,
}

/// How the hot set of a layer moves through the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stability {
    pub hot_set: u32,
    /// Complete windows.
    pub windows: u64,
    /// Jaccard index of the hot sets of neighbouring windows.
    pub mean_jaccard: f64,
    pub min_jaccard: f64,
    pub first_to_last_jaccard: f64,
    pub timeline: Timeline<f64>,
}

#[derive(Debug, Default)]
pub struct Accumulator {
    options: ExpertOptions,
    layers: Vec<LayerState>,
    numbers: HashMap<u32, usize>,
    preferences: preference::Counter,
    tokens: u64,
    window_tokens: u64,
    bad_ids: u64,
    /// Experts of the token at hand.
    chosen: Vec<u32>,
}

#[derive(Debug, Default)]
struct LayerState {
    layer: u32,
    used: u32,
    counts: Vec<[u64; 3]>,
    weights: Vec<(f64, u64)>,
    /// Tokens by pair: `a * experts + b` for a < b.
    pairs: Vec<u32>,
    tokens: u64,
    /// First place in a row of the counts by token.
    first_slot: usize,
    /// Number of the evaluation that last used each expert, plus one.
    last_used: Vec<u64>,
    evaluations: u64,
    repeats: u64,
    /// Distinct experts that an evaluation used, where another came before.
    repeatable: u64,
    hot: stability::HotSets,
}

impl Accumulator {
    pub fn new(options: ExpertOptions) -> Accumulator {
        Accumulator {
            preferences: preference::Counter::new(options.token_memory_bytes),
            options,
            ..Accumulator::default()
        }
    }

    pub fn push(&mut self, seen: &Seen) {
        if seen.prepared.routers.is_empty() {
            return;
        }
        self.prepare(seen);
        let phase = seen.evaluation.phase as usize;
        self.preferences.begin(seen);
        // The layer at hand, and its number.
        let mut at: Option<(u32, usize)> = None;
        seen.for_each_route(|route| {
            let number = match at {
                Some((layer, number)) if layer == route.layer && route.rank > 0 => number,
                before => {
                    if let Some((_, number)) = before {
                        self.layers[number].end_token(&mut self.chosen);
                    }
                    let known = before.filter(|&(layer, _)| layer == route.layer);
                    let number = known.map(|(_, number)| number).unwrap_or_else(|| {
                        // `prepare` has made every layer that a router names.
                        let number = self.numbers[&route.layer];
                        self.layers[number].evaluations += 1;
                        number
                    });
                    at = Some((route.layer, number));
                    number
                }
            };
            let state = &mut self.layers[number];
            if route.expert as usize >= state.counts.len() {
                self.bad_ids += 1;
                return;
            }
            self.chosen.push(route.expert);
            state.choose(&route, phase);
            let slot = state.first_slot + route.expert as usize;
            self.preferences.choose(route.token as usize, slot);
        });
        if let Some((_, last)) = at {
            self.layers[last].end_token(&mut self.chosen);
        }
        self.tokens += seen.tokens();
        self.window_tokens += seen.tokens();
        if self.window_tokens >= self.options.window_tokens {
            self.window_tokens = 0;
            self.layers.iter_mut().for_each(|l| l.hot.end_window());
        }
    }

    fn prepare(&mut self, seen: &Seen) {
        for router in &seen.prepared.routers {
            if self.numbers.contains_key(&router.layer) {
                continue;
            }
            // Without an access that the ids index there is no telling how many
            // experts there are.
            let experts = match router.experts {
                0 => MAX_PAIRED,
                known => known as usize,
            };
            let hot_set = match self.options.hot_set {
                0 => router.used,
                wanted => wanted,
            };
            self.numbers.insert(router.layer, self.layers.len());
            self.layers.push(LayerState {
                layer: router.layer,
                used: router.used,
                counts: vec![[0; 3]; experts],
                weights: vec![(0.0, 0); experts],
                pairs: vec![
                    0;
                    if experts <= MAX_PAIRED {
                        experts * experts
                    } else {
                        0
                    }
                ],
                first_slot: self.preferences.reserve(experts),
                last_used: vec![0; experts],
                hot: stability::HotSets::new(experts, hot_set.min(experts as u32)),
                ..LayerState::default()
            });
        }
    }

    pub fn finish(mut self) -> ExpertResults {
        self.layers.sort_by_key(|state| state.layer);
        let mut results = ExpertResults {
            tokens: self.tokens,
            bad_ids: self.bad_ids,
            choices_without_token: self.preferences.choices_without_token,
            ..ExpertResults::default()
        };
        for state in self.layers {
            let first_slot = state.first_slot;
            let mut layer = state.finish(&self.options);
            self.preferences.fill(&mut layer, first_slot, &self.options);
            results.choices += layer.choices;
            results.layers.push(layer);
        }
        results.choices_per_token = results.choices as f64 / results.tokens.max(1) as f64;
        results
    }
}

impl LayerState {
    fn choose(&mut self, route: &Route, phase: usize) {
        let expert = route.expert as usize;
        self.counts[expert][phase] += 1;
        if let Some(weight) = route.weight.filter(|w| w.is_finite()) {
            self.weights[expert].0 += f64::from(weight);
            self.weights[expert].1 += 1;
        }
        self.hot.choose(expert);
        let last = std::mem::replace(&mut self.last_used[expert], self.evaluations);
        if last != self.evaluations && self.evaluations > 1 {
            self.repeatable += 1;
            self.repeats += u64::from(last + 1 == self.evaluations);
        }
    }

    /// `chosen` are the experts of one token.
    fn end_token(&mut self, chosen: &mut Vec<u32>) {
        self.tokens += u64::from(!chosen.is_empty());
        if !self.pairs.is_empty() {
            let experts = self.counts.len();
            for (at, &a) in chosen.iter().enumerate() {
                for &b in &chosen[..at] {
                    let pair = a.min(b) as usize * experts + a.max(b) as usize;
                    self.pairs[pair] = self.pairs[pair].saturating_add(1);
                }
            }
        }
        chosen.clear();
    }

    fn finish(self, options: &ExpertOptions) -> LayerExperts {
        let counts: Vec<u64> = self.counts.iter().map(|c| c.iter().sum()).collect();
        let choices: u64 = counts.iter().sum();
        let share = |count: u64| count as f64 / choices.max(1) as f64;
        let experts = counts
            .iter()
            .zip(&self.counts)
            .zip(&self.weights)
            .enumerate();
        let heat = experts.map(
            |(number, ((&count, phases), &(weight, weighted)))| ExpertHeat {
                expert: number as u32,
                choices: count,
                phase_choices: *phases,
                share: share(count),
                temperature: share(count) * counts.len() as f64,
                mean_weight: (weighted > 0).then(|| weight / weighted as f64),
                prefers: Vec::new(),
            },
        );
        let balance = Balance::of(&counts);
        LayerExperts {
            layer: self.layer,
            experts: heat.collect(),
            used: self.used,
            choices,
            normalised_entropy: balance.normalised_entropy,
            max_over_mean: balance.max_over_mean,
            coefficient_of_variation: balance.coefficient_of_variation,
            repeat_share: self.repeats as f64 / self.repeatable.max(1) as f64,
            pairs: top_pairs(&self.pairs, &counts, self.tokens, options.top_pairs),
            stability: self.hot.finish(),
        }
    }
}

/// How evenly choices are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    pub normalised_entropy: f64,
    pub max_over_mean: f64,
    pub coefficient_of_variation: f64,
}

impl Balance {
    pub fn of(counts: &[u64]) -> Balance {
        let (n, total) = (counts.len() as f64, counts.iter().sum::<u64>() as f64);
        if total == 0.0 {
            return Balance {
                normalised_entropy: 0.0,
                max_over_mean: 0.0,
                coefficient_of_variation: 0.0,
            };
        }
        let entropy: f64 = counts
            .iter()
            .filter(|&&count| count > 0)
            .map(|&count| count as f64 / total)
            .map(|p| -p * p.ln())
            .sum();
        let mean = total / n;
        let variance = counts
            .iter()
            .map(|&count| (count as f64 - mean).powi(2))
            .sum::<f64>()
            / n;
        Balance {
            // One expert has nothing to be uneven about.
            normalised_entropy: if n > 1.0 { entropy / n.ln() } else { 1.0 },
            max_over_mean: counts.iter().copied().max().unwrap_or(0) as f64 / mean,
            coefficient_of_variation: variance.sqrt() / mean,
        }
    }
}

fn top_pairs(pairs: &[u32], counts: &[u64], tokens: u64, most: usize) -> Vec<Pair> {
    let experts = counts.len();
    let mut found: Vec<(u32, usize)> = pairs
        .iter()
        .copied()
        .zip(0..)
        .filter(|&(n, _)| n > 0)
        .collect();
    found.sort_by_key(|&(together, at)| (std::cmp::Reverse(together), at));
    let pair = |(together, at): (u32, usize)| {
        let (a, b) = (at / experts, at % experts);
        let expected = counts[a] as f64 * counts[b] as f64 / tokens.max(1) as f64;
        Pair {
            experts: [a as u32, b as u32],
            tokens: u64::from(together),
            lift: f64::from(together) / expected,
        }
    };
    found.into_iter().take(most).map(pair).collect()
}
