//! Which experts a run used, and how often caches of each size would have had them.
//!
//! A slot holds one expert of one layer: its gate, up and down slices, which are
//! always used together. The routing has one use per evaluation, layer and distinct
//! expert, layers in execution order, experts ascending, as `MUL_MAT_ID` reads them.
//! The cache sees the whole run, use by use; hits are counted over the run and over the
//! generated tokens alone. First uses miss.
//!
//! Layers are dealt to pools of slots ([`pool_of`]): one pool for all (*global*), one for each
//! (*per layer*), or what a [`Choice`] has. The policies are those that feeding runs
//! ([`Cache`]), beside them Belady's rule with bypass: the optimum, because slots have one
//! size.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    Policy,
    belady::{self, Admission, NextUses},
    cache::Cache,
    cache_trace::{CacheTrace, Scope},
    choose::{Choice, Weight, layers_of, pool_of},
    predict::TokenSpan,
};

/// Sizes that [`ExpertCaches::of`] tries at most when it chooses them itself.
const MAX_SIZES: u32 = 16;

/// Which experts were used, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingSequence {
    /// Layers that have experts, ascending.
    pub layers: Vec<RoutedLayer>,
    /// Layer (an index into `layers`) and expert of each use.
    pub uses: Vec<(u32, u32)>,
    /// Stretches of `uses` that belong to generated tokens.
    pub generate: Vec<Range<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutedLayer {
    pub layer: u32,
    pub experts: u32,
    /// Bytes of one expert: all slices that bear its number.
    pub expert_bytes: u64,
}

impl RoutingSequence {
    /// Uses as each of so many pools sees them. A pool has a number for each expert of its
    /// layers.
    fn traces(&self, pools: u32) -> Vec<CacheTrace<'static>> {
        let pools = pools.clamp(1, self.layers.len().max(1) as u32);
        let mut items = vec![0u32; pools as usize];
        let place_of: Vec<(usize, u32)> = (self.layers.iter().enumerate())
            .map(|(index, layer)| {
                let pool = pool_of(index, self.layers.len(), pools);
                let first = items[pool];
                items[pool] += layer.experts;
                (pool, first)
            })
            .collect();
        let mut uses: Vec<Vec<u32>> = vec![Vec::new(); pools as usize];
        let mut generate: Vec<Vec<Range<usize>>> = vec![Vec::new(); pools as usize];
        let mut add = |range: Range<usize>, is_generate: bool| {
            let before: Vec<usize> = uses.iter().map(Vec::len).collect();
            for &(layer, expert) in &self.uses[range] {
                let (pool, first) = place_of[layer as usize];
                uses[pool].push(first + expert);
            }
            if is_generate {
                for (pool, before) in before.into_iter().enumerate() {
                    generate[pool].push(before..uses[pool].len());
                }
            }
        };
        let mut at = 0;
        for range in &self.generate {
            add(at..range.start, false);
            add(range.clone(), true);
            at = range.end;
        }
        add(at..self.uses.len(), false);
        let traces = items.into_iter().zip(uses).zip(generate);
        traces
            .map(|((items, uses), generate)| CacheTrace {
                generate,
                ..CacheTrace::whole_items(vec![1; items as usize], uses)
            })
            .collect()
    }

    /// The generated tokens up to the end of a span, without what came before the first: a prompt
    /// leaves slots empty. Those of the span are counted. Of a shorter run, its last half at
    /// least.
    pub fn from_empty(&self, tokens: TokenSpan) -> RoutingSequence {
        let recorded = self.generate.len();
        let end = (tokens.end as usize).clamp(recorded.min(1), recorded);
        let first = match (tokens.first as usize) < end {
            true => tokens.first as usize,
            false => end / 2,
        };
        let mut kept = RoutingSequence {
            layers: self.layers.clone(),
            ..RoutingSequence::default()
        };
        for (number, range) in self.generate[..end].iter().enumerate() {
            let begin = kept.uses.len();
            kept.uses.extend_from_slice(&self.uses[range.clone()]);
            if number >= first {
                kept.generate.push(begin..kept.uses.len());
            }
        }
        kept
    }

    /// Hit rates with a choice's slots; `None` where it has none, or not for these layers.
    pub fn rates(&self, weights: &[Weight], choice: &Choice) -> Option<Policies> {
        let memory = choice.experts?;
        let sliced = layers_of(weights, &choice.sliced, 1);
        let layers = self.layers.iter().map(|layer| Some(layer.layer));
        if self.uses.is_empty() || !layers.eq(sliced.iter().map(|layer| layer.layer)) {
            return None;
        }
        let simulated = Simulated::new(self.traces(memory.pools));
        let hits = simulated.hits(u64::from(memory.slots));
        Some(Policies::of(&hits, simulated.uses))
    }
}

/// Hit rates at several sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpertCaches {
    pub layers: Vec<RoutedLayer>,
    /// Uses of an expert, counted in each scope.
    pub uses: Hits,
    /// First uses, which miss in every cache.
    pub cold: Hits,
    pub points: Vec<ExpertCachePoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertCachePoint {
    pub slots_per_layer: u32,
    pub slots: u64,
    /// Memory that the slots need.
    pub bytes: u64,
    pub global: PolicyHits,
    pub per_layer: PolicyHits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyHits {
    pub lru: Hits,
    pub lfu: Hits,
    pub lfu_aged: Hits,
    pub belady: Hits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    pub run: u64,
    pub generate: u64,
}

impl Hits {
    /// Share of `uses` that hit, in the generated tokens where there are any.
    pub fn rate(&self, uses: Hits) -> f64 {
        let (hits, uses) = match uses.generate {
            0 => (self.run, uses.run),
            generate => (self.generate, generate),
        };
        hits as f64 / uses.max(1) as f64
    }
}

/// Shares of expert uses that hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policies {
    pub lru: f64,
    pub lfu: f64,
    pub lfu_aged: f64,
    pub belady: f64,
}

impl Policies {
    pub fn of(hits: &PolicyHits, uses: Hits) -> Policies {
        Policies {
            lru: hits.lru.rate(uses),
            lfu: hits.lfu.rate(uses),
            lfu_aged: hits.lfu_aged.rate(uses),
            belady: hits.belady.rate(uses),
        }
    }

    pub fn rate(&self, policy: Policy) -> f64 {
        match policy {
            Policy::Lru => self.lru,
            Policy::Lfu => self.lfu,
            Policy::LfuAged => self.lfu_aged,
        }
    }

    /// The best that needs no knowledge of the future; LRU among equals.
    pub fn best(&self) -> Policy {
        let mut best = Policy::Lru;
        for policy in Policy::ALL {
            if self.rate(policy) > self.rate(best) {
                best = policy;
            }
        }
        best
    }
}

impl ExpertCaches {
    /// `None` for a model without experts. Without `slots_per_layer`, sizes from
    /// one slot to all experts.
    pub fn of(routing: &RoutingSequence, slots_per_layer: Option<&[u32]>) -> Option<ExpertCaches> {
        if routing.uses.is_empty() {
            return None;
        }
        let most = routing.layers.iter().map(|l| l.experts).max()?;
        let sizes = match slots_per_layer {
            Some(sizes) => sizes.to_vec(),
            None => {
                let count = most.min(MAX_SIZES);
                (1..=count).map(|i| most * i / count).collect()
            }
        };
        let layers = routing.layers.len() as u32;
        let global = Simulated::new(routing.traces(1));
        let per_layer = Simulated::new(routing.traces(layers));
        let points = sizes.into_iter().map(|slots_per_layer| {
            let slots = u64::from(slots_per_layer) * u64::from(layers);
            let bytes = routing.layers.iter();
            let bytes = bytes.map(|l| l.expert_bytes * u64::from(slots_per_layer.min(l.experts)));
            ExpertCachePoint {
                slots_per_layer,
                slots,
                bytes: bytes.sum(),
                global: global.hits(slots),
                per_layer: per_layer.hits(u64::from(slots_per_layer)),
            }
        });
        Some(ExpertCaches {
            layers: routing.layers.clone(),
            uses: global.uses,
            cold: global.cold(),
            points: points.collect(),
        })
    }
}

/// Traces of pools, with what does not depend on the number of slots.
struct Simulated {
    pools: Vec<(CacheTrace<'static>, NextUses)>,
    uses: Hits,
}

impl Simulated {
    fn new(traces: Vec<CacheTrace<'static>>) -> Simulated {
        let pools = traces.into_iter().map(|trace| {
            let next_uses = NextUses::of(&trace);
            (trace, next_uses)
        });
        let mut simulated = Simulated {
            pools: pools.collect(),
            uses: Hits::default(),
        };
        simulated.uses = simulated.sum(|trace, _| count(trace, |_| true));
        simulated
    }

    fn sum(&self, of: impl Fn(&CacheTrace, &NextUses) -> Hits) -> Hits {
        let mut sum = Hits::default();
        for (trace, next_uses) in &self.pools {
            let Hits { run, generate } = of(trace, next_uses);
            sum.run += run;
            sum.generate += generate;
        }
        sum
    }

    /// First uses.
    fn cold(&self) -> Hits {
        self.sum(|trace, _| {
            let mut is_seen = vec![false; trace.item_bytes.len()];
            count(trace, |item| {
                !std::mem::replace(&mut is_seen[item as usize], true)
            })
        })
    }

    /// With so many slots in each pool.
    fn hits(&self, slots: u64) -> PolicyHits {
        let of = |policy| self.sum(|trace, _| hits(trace, slots, policy));
        let missed = self.sum(|trace, next_uses| {
            let missed = belady::misses(trace, next_uses, slots, Admission::Bypass);
            Hits {
                run: missed.run.accesses,
                generate: missed.generate.accesses,
            }
        });
        PolicyHits {
            lru: of(Policy::Lru),
            lfu: of(Policy::Lfu),
            lfu_aged: of(Policy::LfuAged),
            belady: Hits {
                run: self.uses.run - missed.run,
                generate: self.uses.generate - missed.generate,
            },
        }
    }
}

/// Hits of a cache of `slots` items, all of one size, each use a choice of its own.
pub fn hits(trace: &CacheTrace, slots: u64, policy: Policy) -> Hits {
    let items = trace.item_bytes.len() as u32;
    let slots = slots.min(u64::from(items)) as u32;
    if slots == 0 {
        return Hits::default();
    }
    let mut cache = Cache::new(items, slots, 1, policy);
    count(trace, |item| {
        cache.begin();
        let is_hit = cache.hit(item).is_some();
        if !is_hit {
            cache.replace(item, 0);
        }
        is_hit
    })
}

/// Uses of items for which `is_counted`, which sees all of them in order.
fn count(trace: &CacheTrace, mut is_counted: impl FnMut(u32) -> bool) -> Hits {
    let mut counted = Hits::default();
    trace.for_each_stretch(|range, scope| {
        let numbers = trace.accesses[range].iter();
        let items = numbers.map(|&number| trace.references[number as usize].item);
        let more = items.filter(|&item| is_counted(item)).count() as u64;
        counted.run += more;
        if scope == Scope::Generate {
            counted.generate += more;
        }
    });
    counted
}
