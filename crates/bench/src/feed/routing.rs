//! What simulated caches make of the experts that a run used.

use std::collections::BTreeMap;

use analysis::experts_cache::{ExpertCaches, RoutedLayer, RoutingSequence};
use launch::planning::Policies;
use plan::{Policy, Use, Weight};
use serde::Serialize;

use super::measure::median;

/// Hit rates with a run's slots, on a run's routing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Simulated {
    pub lru: f64,
    pub lfu: f64,
    pub lfu_aged: f64,
    pub belady: f64,
}

impl Simulated {
    /// Without knowledge of the future.
    pub fn best_online(&self) -> f64 {
        self.lru.max(self.lfu).max(self.lfu_aged)
    }

    pub fn median(all: &[Simulated]) -> Option<Simulated> {
        let of = |value: fn(&Simulated) -> f64| median(&all.iter().map(value).collect::<Vec<_>>());
        Some(Simulated {
            lru: of(|s| s.lru)?,
            lfu: of(|s| s.lfu)?,
            lfu_aged: of(|s| s.lfu_aged)?,
            belady: of(|s| s.belady)?,
        })
    }
}

/// Simulates the last `tokens` evaluations of a routing file: those before are the
/// prompt's, after which slots are empty.
pub fn simulate(csv: &str, tokens: usize, weights: &[Weight], slots: u32) -> Option<Simulated> {
    let routing = sequence(csv, tokens, weights)?;
    let caches = ExpertCaches::of(&routing, Some(&[slots]))?;
    let policies = Policies::of(&caches.points.first()?.per_layer, caches.uses);
    Some(Simulated {
        lru: policies.rate(Policy::Lru),
        lfu: policies.rate(Policy::Lfu),
        lfu_aged: policies.rate(Policy::LfuAged),
        belady: policies.belady,
    })
}

/// Lines of evaluation, layer (counted among those with experts) and expert.
fn sequence(csv: &str, tokens: usize, weights: &[Weight]) -> Option<RoutingSequence> {
    let layers = layers(weights);
    let mut evaluations: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
    for line in csv.lines().skip(1) {
        let mut numbers = line.split(',').map(|number| number.parse::<u32>().ok());
        let (evaluation, layer, expert) = (numbers.next()??, numbers.next()??, numbers.next()??);
        if expert >= layers.get(layer as usize)?.experts {
            return None;
        }
        evaluations
            .entry(evaluation)
            .or_default()
            .push((layer, expert));
    }
    let mut routing = RoutingSequence {
        layers,
        ..RoutingSequence::default()
    };
    let prompt = evaluations.len().saturating_sub(tokens);
    for mut uses in evaluations.into_values().skip(prompt) {
        uses.sort_unstable();
        let first = routing.uses.len();
        routing.uses.extend(uses);
        routing.generate.push(first..routing.uses.len());
    }
    Some(routing)
}

fn layers(weights: &[Weight]) -> Vec<RoutedLayer> {
    let mut layers: BTreeMap<u32, RoutedLayer> = BTreeMap::new();
    for weight in weights {
        let (
            Some(layer),
            Use::Experts {
                count, slice_bytes, ..
            },
        ) = (weight.layer, weight.usage)
        else {
            continue;
        };
        let entry = layers.entry(layer).or_insert(RoutedLayer {
            layer,
            experts: count,
            expert_bytes: 0,
        });
        entry.expert_bytes += slice_bytes;
    }
    layers.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights() -> Vec<Weight> {
        let weight = |layer, name: &str| Weight {
            name: name.to_owned(),
            bytes: 40,
            layer: Some(layer),
            usage: Use::Experts {
                count: 4,
                used: 1,
                slice_bytes: 10,
            },
            row_bytes: None,
        };
        vec![weight(3, "a"), weight(3, "b"), weight(5, "c")]
    }

    #[test]
    fn the_prompt_is_left_out_and_layers_are_counted() {
        let csv = "evaluation,layer,expert\n1,0,0\n1,0,1\n1,1,2\n2,0,0\n2,1,3\n3,1,3\n3,0,1\n";
        let routing = sequence(csv, 2, &weights()).unwrap();
        assert_eq!(routing.uses, [(0, 0), (1, 3), (0, 1), (1, 3)]);
        assert_eq!(routing.generate, [0..2, 2..4]);
        assert_eq!(routing.layers[0].expert_bytes, 20);
        assert_eq!(routing.layers[1].layer, 5);
        // Of four uses one comes back.
        let found = simulate(csv, 2, &weights(), 1).unwrap();
        assert_eq!((found.lru, found.belady), (0.25, 0.25));
        assert_eq!(Simulated::median(&[found]).unwrap().best_online(), 0.25);
    }

    #[test]
    fn a_routing_that_is_not_the_models_is_refused() {
        let check = |csv: &str| assert_eq!(sequence(csv, 1, &weights()), None, "{csv}");
        check("head\n1,0,4\n");
        check("head\n1,2,0\n");
        check("head\n1,0\n");
        check("head\nx,0,0\n");
        assert_eq!(simulate("head\n", 1, &weights(), 1), None);
    }
}
