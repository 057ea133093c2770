//! Which experts tokens were sent to, and which together.
//!
//! Of the routing, so exact by token: a range of tokens counts those tokens, not
//! their whole batches. Filters of component and op say nothing about routing.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    RunIndex,
    answers::{ExpertPair, ExpertUse, Experts, LayerExperts},
    blocks::{MAX_USED_FOR_PAIRS, Walker},
    data::Eval,
    filter::Filter,
    graph::Graph,
    select::{Selection, Selector},
};

/// Pairs listed per layer.
const MAX_PAIRS: usize = 128;
/// Larger models than this have damaged logs; their pairs are not counted.
const MAX_PAIR_PLACES: u64 = 1 << 25;

#[derive(Default)]
struct LayerSums {
    chosen: Vec<u64>,
    weight: Vec<f64>,
    weighted: bool,
    /// Experts × experts, of which the upper half is used; or empty.
    pairs: Vec<u32>,
    /// Tokens that came by.
    tokens: u64,
}

impl RunIndex {
    /// Layers with a router that are kept, ascending, and their experts.
    pub(crate) fn router_layers(&self, selector: &Selector) -> Vec<(u32, u32)> {
        let mut layers: BTreeMap<u32, u32> = BTreeMap::new();
        let kept = |layer: u32| {
            let number = self
                .catalog
                .layers
                .all
                .iter()
                .position(|l| *l == Some(layer));
            number.is_none_or(|n| selector.keeps_layer(n as u32))
        };
        for router in self.graphs.iter().flat_map(|g| &g.routers) {
            if router.experts > 0 && (layers.contains_key(&router.layer) || kept(router.layer)) {
                let experts = layers.entry(router.layer).or_default();
                *experts = router.experts.max(*experts);
            }
        }
        layers.into_iter().collect()
    }

    /// Without `prefers`, which are an analysis.
    pub fn experts(&self, filter: &Filter) -> Experts {
        let selector = Selector::new(self, filter);
        let layers = self.router_layers(&selector);
        let mut sums: BTreeMap<u32, LayerSums> = BTreeMap::new();
        let places: u64 = layers.iter().map(|l| u64::from(l.1).pow(2)).sum();
        for &(layer, experts) in &layers {
            let pairs = if places <= MAX_PAIR_PLACES {
                experts * experts
            } else {
                0
            };
            sums.insert(
                layer,
                LayerSums {
                    chosen: vec![0; experts as usize],
                    weight: vec![0.0; experts as usize],
                    pairs: vec![0; pairs as usize],
                    ..LayerSums::default()
                },
            );
        }
        // Batches that the token range cuts are looked at token by token.
        let is_whole = |eval: &Eval| {
            let tokens = eval.token_range();
            selector.tokens.is_none_or(|(first, last)| {
                first <= tokens.start && tokens.end <= last.saturating_add(1)
            })
        };
        let whole = Selection::new(self, |eval| selector.keeps_eval(eval) && is_whole(eval));
        for (number, ranges) in whole.graphs() {
            let graph = &self.graphs[number];
            if !graph.routers.is_empty() {
                for range in ranges {
                    self.add_range(graph, range.clone(), &mut sums);
                }
            }
        }
        let in_part = |eval: &&Eval| selector.keeps_eval(eval) && !is_whole(eval);
        let ragged = whole.ragged.iter().map(|&at| &self.evals[at as usize]);
        for eval in ragged.chain(self.evals.iter().filter(in_part)) {
            self.add_tokens(&selector, eval, &mut sums);
        }
        Experts {
            layers: sums
                .into_iter()
                .map(|(layer, sums)| sums.answer(layer, &selector))
                .collect(),
        }
    }

    fn add_range(&self, graph: &Graph, ranks: Range<u32>, sums: &mut BTreeMap<u32, LayerSums>) {
        let evals = u64::from(ranks.end - ranks.start);
        let chosen = graph.chosen(&self.evals, &self.data, ranks.clone());
        let weight = graph.weight(&self.evals, &self.data, ranks.clone());
        let pairs = graph.pairs(&self.evals, &self.data, ranks);
        let mut first_pair = 0;
        for router in &graph.routers {
            let experts = router.experts as usize;
            let pairs_of_router = pairs.get(first_pair..first_pair + experts * experts);
            first_pair += experts * experts;
            let Some(sums) = sums.get_mut(&router.layer) else {
                continue;
            };
            sums.tokens += evals * u64::from(router.elements / router.used);
            sums.weighted |= router.has_weights();
            let at = router.first_expert as usize;
            for expert in 0..experts {
                sums.chosen[expert] += u64::from(chosen[at + expert]);
                sums.weight[expert] += weight[at + expert];
            }
            sums.add_pairs(pairs_of_router.unwrap_or(&[]), experts);
        }
    }

    fn add_tokens(&self, selector: &Selector, eval: &Eval, sums: &mut BTreeMap<u32, LayerSums>) {
        let graph = &self.graphs[eval.graph as usize];
        let mut range = 0..eval.batch;
        if let Some((first, last)) = selector.tokens {
            let in_batch = |token: u64| token.saturating_sub(eval.batch_first);
            range.start = in_batch(first).min(eval.batch.into()) as u32;
            range.end = in_batch(last.saturating_add(1)).min(eval.batch.into()) as u32;
        }
        let walker = Walker::new(graph, &self.data);
        for router in &graph.routers {
            let Some(sums) = sums.get_mut(&router.layer) else {
                continue;
            };
            let (ids, weights) = (self.data.ids(eval, router), self.data.weights(eval, router));
            sums.weighted |= router.has_weights();
            for (row, choices) in ids.chunks(router.used as usize).enumerate() {
                if !range.contains(&self.data.token_of_row(eval, router, row as u32)) {
                    continue;
                }
                sums.tokens += u64::from(choices.iter().any(|&e| u32::from(e) < router.experts));
                for (rank, &id) in choices.iter().enumerate() {
                    let weight = weights[row * router.used as usize + rank];
                    if u32::from(id) < router.experts {
                        sums.chosen[id as usize] += 1;
                        sums.weight[id as usize] += f64::from(weight).max(0.0);
                    }
                }
            }
            let experts = router.experts as usize;
            if router.used <= MAX_USED_FOR_PAIRS && !sums.pairs.is_empty() {
                let mut pairs = vec![0u32; experts * experts];
                let alone = Walker {
                    routers: std::slice::from_ref(router),
                    ..walker
                };
                alone.add_pairs(eval, range.clone(), &mut pairs);
                sums.add_pairs(&pairs, experts);
            }
        }
    }
}

impl LayerSums {
    fn add_pairs(&mut self, pairs: &[u32], experts: usize) {
        if self.pairs.is_empty() || experts == 0 {
            return;
        }
        // A layer may have more experts than this graph's router names.
        for (line, counts) in pairs.chunks(experts).enumerate() {
            let to = &mut self.pairs[line * self.chosen.len()..][..experts];
            to.iter_mut().zip(counts).for_each(|(to, from)| *to += from);
        }
    }

    fn answer(self, layer: u32, selector: &Selector) -> LayerExperts {
        let total: u64 = self.chosen.iter().sum();
        let shares = self.chosen.iter().filter(|&&n| n > 0);
        let entropy: f64 = shares
            .map(|&n| n as f64 / total as f64)
            .map(|p| -p * p.log2())
            .sum();
        let most = self.chosen.iter().copied().max().unwrap_or(0);
        let mean = total as f64 / self.chosen.len().max(1) as f64;
        let keeps = |e: u32| selector.keeps_expert(e as u16);
        let place = |at: usize| {
            (
                (at / self.chosen.len()) as u32,
                (at % self.chosen.len()) as u32,
            )
        };
        let found = self.pairs.iter().enumerate().filter(|(_, n)| **n > 0);
        let mut pairs: Vec<ExpertPair> = found
            .map(|(at, &count)| (place(at), u64::from(count)))
            .filter(|((a, b), _)| keeps(*a) || keeps(*b))
            .map(|((a, b), count)| {
                let (of_a, of_b) = (
                    self.chosen[a as usize] as f64,
                    self.chosen[b as usize] as f64,
                );
                let expected = of_a * of_b / self.tokens.max(1) as f64;
                ExpertPair {
                    a,
                    b,
                    count,
                    lift: if expected > 0.0 {
                        count as f64 / expected
                    } else {
                        0.0
                    },
                }
            })
            .collect();
        let order = |p: &ExpertPair| (std::cmp::Reverse(p.count), p.a, p.b);
        if pairs.len() > MAX_PAIRS {
            pairs.select_nth_unstable_by_key(MAX_PAIRS, order);
            pairs.truncate(MAX_PAIRS);
        }
        pairs.sort_unstable_by_key(order);
        let use_of = |(expert, (&tokens, &weight)): (usize, (&u64, &f64))| ExpertUse {
            expert: expert as u32,
            tokens,
            temperature: if mean > 0.0 {
                tokens as f64 / mean
            } else {
                0.0
            },
            mean_weight: (self.weighted && tokens > 0).then(|| weight / tokens as f64),
        };
        let uses = self.chosen.iter().zip(&self.weight).enumerate();
        LayerExperts {
            layer,
            experts: uses.map(use_of).filter(|e| keeps(e.expert)).collect(),
            normalised_entropy: match self.chosen.len() {
                0 | 1 => 0.0,
                experts => entropy / (experts as f64).log2(),
            },
            max_over_mean: if mean > 0.0 { most as f64 / mean } else { 0.0 },
            pairs,
        }
    }
}
