//! Hit rates of expert caches.
//!
//! A slot holds one expert of one layer: its gate, up and down slices, which are
//! always used together. The routing sequence has one use per evaluation, layer
//! and distinct expert, layers in execution order, experts ascending, as
//! `MUL_MAT_ID` reads them. The cache sees the whole run; hits are counted over the
//! run and over the generated tokens alone. First uses miss.
//!
//! A cache is *global* (one pool of `slots_per_layer × layers`) or *per layer*
//! (that many for each). Policies:
//! - LRU: exact for every size, from reuse distances;
//! - LFU: drops the slot used least often since it came in, the least recently
//!   used among equals;
//! - LFU with ageing (LFU-DA): the same with uses + age, where the age is the key of
//!   the slot that was dropped last, so that old fame fades;
//! - Belady's rule with bypass: the optimum, because slots have one size.

use std::{collections::BTreeMap, ops::Range};

use gguf::Kind;
use serde::{Deserialize, Serialize};

use crate::{
    belady::{self, Admission, NextUses},
    cache_trace::{CacheTrace, Scope},
    curves::LruCurve,
    positions::Positions,
    reuse::ReuseTables,
    sequence::Sequence,
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
    pub fn of(sequence: &Sequence) -> RoutingSequence {
        // An expert is used where its first weight is; the others follow.
        let mut leader: BTreeMap<u32, &str> = BTreeMap::new();
        let mut layers: BTreeMap<u32, RoutedLayer> = BTreeMap::new();
        for unit in &sequence.units {
            let (Some(layer), Some(expert)) = (unit.layer, unit.expert) else {
                continue;
            };
            let entry = layers.entry(layer).or_insert(RoutedLayer {
                layer,
                experts: 0,
                expert_bytes: 0,
            });
            entry.experts = entry.experts.max(expert + 1);
            entry.expert_bytes += unit.bytes;
            if gguf::Meaning::of(&unit.name).kind == Kind::Weight {
                leader.entry(layer).or_insert(unit.role.as_str());
            }
        }
        let mut layers: Vec<RoutedLayer> = layers.into_values().collect();
        layers.retain(|l| leader.contains_key(&l.layer));
        for layer in &mut layers {
            layer.expert_bytes /= u64::from(layer.experts.max(1));
        }
        let use_of_unit: Vec<Option<(u32, u32)>> = sequence
            .units
            .iter()
            .map(|unit| {
                let (layer, expert) = (unit.layer?, unit.expert?);
                let is_leader = leader.get(&layer) == Some(&unit.role.as_str())
                    && gguf::Meaning::of(&unit.name).kind == Kind::Weight;
                let at = layers.binary_search_by_key(&layer, |l| l.layer).ok()?;
                is_leader.then_some((at as u32, expert))
            })
            .collect();
        let use_of_piece: Vec<Option<(u32, u32)>> = sequence
            .pieces
            .iter()
            .map(|piece| use_of_unit[piece.unit as usize])
            .collect();
        let mut routing = RoutingSequence {
            layers,
            ..RoutingSequence::default()
        };
        if routing.layers.is_empty() {
            return routing;
        }
        for eval in &sequence.evals {
            let first = routing.uses.len();
            let pieces = sequence.accesses_of(eval).iter();
            routing
                .uses
                .extend(pieces.filter_map(|&piece| use_of_piece[piece as usize]));
            if eval.is_generate() {
                routing.generate.push(first..routing.uses.len());
            }
        }
        routing
    }

    /// One trace for all layers.
    fn global(&self) -> CacheTrace<'static> {
        let mut base = Vec::with_capacity(self.layers.len());
        let mut items = 0u32;
        for layer in &self.layers {
            base.push(items);
            items += layer.experts;
        }
        let uses = self.uses.iter();
        let uses = uses.map(|&(layer, expert)| base[layer as usize] + expert);
        CacheTrace {
            generate: self.generate.clone(),
            ..CacheTrace::whole_items(vec![1; items as usize], uses.collect())
        }
    }

    /// One trace per layer.
    fn per_layer(&self) -> Vec<CacheTrace<'static>> {
        let mut uses: Vec<Vec<u32>> = vec![Vec::new(); self.layers.len()];
        let mut generate: Vec<Vec<Range<usize>>> = vec![Vec::new(); self.layers.len()];
        self.global().for_each_stretch(|range, scope| {
            let first: Vec<usize> = uses.iter().map(Vec::len).collect();
            for &(layer, expert) in &self.uses[range] {
                uses[layer as usize].push(expert);
            }
            if scope == Scope::Generate {
                for (layer, first) in first.into_iter().enumerate() {
                    generate[layer].push(first..uses[layer].len());
                }
            }
        });
        let traces = self.layers.iter().zip(uses).zip(generate);
        traces
            .map(|((layer, uses), generate)| CacheTrace {
                generate,
                ..CacheTrace::whole_items(vec![1; layer.experts as usize], uses)
            })
            .collect()
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

    fn plus(&mut self, more: Hits) {
        self.run += more.run;
        self.generate += more.generate;
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
        let global = Simulated::new(routing.global());
        let layers: Vec<Simulated> = routing
            .per_layer()
            .into_iter()
            .map(Simulated::new)
            .collect();
        let points = sizes.into_iter().map(|slots_per_layer| {
            let per_layer = layers.iter().zip(&routing.layers);
            let mut sum = PolicyHits::default();
            for hits in per_layer.map(|(layer, _)| layer.hits(u64::from(slots_per_layer))) {
                sum.lru.plus(hits.lru);
                sum.lfu.plus(hits.lfu);
                sum.lfu_aged.plus(hits.lfu_aged);
                sum.belady.plus(hits.belady);
            }
            let slots = u64::from(slots_per_layer) * routing.layers.len() as u64;
            let bytes = routing.layers.iter();
            let bytes = bytes.map(|l| l.expert_bytes * u64::from(slots_per_layer.min(l.experts)));
            ExpertCachePoint {
                slots_per_layer,
                slots,
                bytes: bytes.sum(),
                global: global.hits(slots),
                per_layer: sum,
            }
        });
        let cold = global.reuse.cold();
        Some(ExpertCaches {
            layers: routing.layers.clone(),
            uses: global.uses,
            cold: Hits {
                run: cold.run.accesses,
                generate: cold.generate.accesses,
            },
            points: points.collect(),
        })
    }
}

/// A trace of slots of one size, with what does not depend on the cache's size.
struct Simulated {
    trace: CacheTrace<'static>,
    reuse: ReuseTables,
    lru: (LruCurve, LruCurve),
    next_uses: NextUses,
    uses: Hits,
}

impl Simulated {
    fn new(trace: CacheTrace<'static>) -> Simulated {
        let reuse = ReuseTables::of(&trace);
        let totals = trace.totals();
        Simulated {
            lru: (LruCurve::of(&reuse.run), LruCurve::of(&reuse.generate)),
            reuse,
            next_uses: NextUses::of(&trace),
            uses: Hits {
                run: totals.run.accesses,
                generate: totals.generate.accesses,
            },
            trace,
        }
    }

    fn hits(&self, slots: u64) -> PolicyHits {
        let lru = Hits {
            run: self.lru.0.misses(slots).accesses,
            generate: self.lru.1.misses(slots).accesses,
        };
        let belady = belady::misses(&self.trace, &self.next_uses, slots, Admission::Bypass);
        PolicyHits {
            lru: self.hit(lru),
            lfu: lfu_hits(&self.trace, slots, Ageing::Never),
            lfu_aged: lfu_hits(&self.trace, slots, Ageing::Dynamic),
            belady: self.hit(Hits {
                run: belady.run.accesses,
                generate: belady.generate.accesses,
            }),
        }
    }

    fn hit(&self, misses: Hits) -> Hits {
        Hits {
            run: self.uses.run - misses.run,
            generate: self.uses.generate - misses.generate,
        }
    }
}

/// Whether old uses count for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ageing {
    Never,
    /// LFU-DA: newcomers start at the key of the slot dropped last.
    Dynamic,
}

/// Hits of an LFU cache of `slots` items, all of one size.
pub fn lfu_hits(trace: &CacheTrace, slots: u64, ageing: Ageing) -> Hits {
    let mut hits = Hits::default();
    if slots == 0 {
        return hits;
    }
    let mut cache = Lfu::new(trace.item_bytes.len(), trace.accesses.len(), slots, ageing);
    trace.for_each_stretch(|range, scope| {
        let numbers = trace.accesses[range].iter();
        let hit = numbers
            .filter(|&&number| cache.access(trace.references[number as usize].item))
            .count() as u64;
        hits.run += hit;
        if scope == Scope::Generate {
            hits.generate += hit;
        }
    });
    hits
}

const NONE: u32 = u32::MAX;

/// Slots in lists by key, each list from least to most recently used.
struct Lfu {
    ageing: Ageing,
    free_slots: u64,
    age: u32,
    /// Key of each resident item; 0 if it is not resident.
    key_of: Vec<u32>,
    uses_of: Vec<u32>,
    links: Vec<(u32, u32)>,
    /// Ends of the list of each key seen so far.
    lists: Vec<(u32, u32)>,
    keys: Positions,
}

impl Lfu {
    fn new(items: usize, accesses: usize, slots: u64, ageing: Ageing) -> Lfu {
        Lfu {
            ageing,
            free_slots: slots,
            age: 0,
            key_of: vec![0; items],
            uses_of: vec![0; items],
            links: vec![(NONE, NONE); items],
            lists: Vec::new(),
            // A key counts uses of resident items and, through the age, of dropped
            // ones, each at most once.
            keys: Positions::new(accesses + 2),
        }
    }

    /// Whether the access hits.
    fn access(&mut self, item: u32) -> bool {
        let is_hit = self.key_of[item as usize] != 0;
        if is_hit {
            self.unlink(item);
        } else {
            self.uses_of[item as usize] = 0;
            if self.free_slots > 0 {
                self.free_slots -= 1;
            } else if let Some(key) = self.keys.first() {
                self.unlink(self.lists[key as usize].0);
                if self.ageing == Ageing::Dynamic {
                    self.age = key;
                }
            }
        }
        self.uses_of[item as usize] += 1;
        self.link(item, self.uses_of[item as usize] + self.age);
        is_hit
    }

    fn link(&mut self, item: u32, key: u32) {
        if self.lists.len() <= key as usize {
            self.lists.resize(key as usize + 1, (NONE, NONE));
        }
        let last = self.lists[key as usize].1;
        self.links[item as usize] = (last, NONE);
        match last {
            NONE => {
                self.lists[key as usize].0 = item;
                self.keys.insert(key);
            }
            last => self.links[last as usize].1 = item,
        }
        self.lists[key as usize].1 = item;
        self.key_of[item as usize] = key;
    }

    fn unlink(&mut self, item: u32) {
        let key = self.key_of[item as usize];
        let (before, after) = self.links[item as usize];
        match before {
            NONE => self.lists[key as usize].0 = after,
            before => self.links[before as usize].1 = after,
        }
        match after {
            NONE => self.lists[key as usize].1 = before,
            after => self.links[after as usize].0 = before,
        }
        if self.lists[key as usize].0 == NONE {
            self.keys.remove(key);
        }
        self.key_of[item as usize] = 0;
    }
}
