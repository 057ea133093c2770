//! Exact reuse distances.
//!
//! The reuse distance of an access is the number of distinct bytes of *other*
//! items that were used since its item was last used. A first use has none: it is
//! *cold*. Distances are computed with a Fenwick tree over time that holds each
//! item's size at its last use. Time is renumbered whenever the tree is full, so
//! the tree is as large as the items are many, not as the trace is long, and stays
//! in the processor's cache: O(log items) an access, O(items) memory.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::cache_trace::{CacheTrace, Count, Counts, Reference, Scope, Use};

/// Quantiles that a [`ReuseHistogram`] gives.
pub const QUANTILES: [f64; 9] = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99];

/// Calls `f(position, reference, distance)` for the accesses in order; `None` is
/// a first use.
pub fn for_each_distance(trace: &CacheTrace, mut f: impl FnMut(usize, u32, Option<u64>)) {
    let mut recency = Recency::new(&trace.item_bytes);
    for (position, &number) in trace.accesses.iter().enumerate() {
        let reference = &trace.references[number as usize];
        let distance = recency.distance_of(reference);
        f(position, number, distance);
    }
}

/// How often each distance occurs: enough for histograms and for LRU caches of
/// every size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReuseTable {
    /// Ascending by distance.
    pub entries: Vec<ReuseEntry>,
    pub cold: Count,
}

/// Accesses that share distance, item size and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReuseEntry {
    pub distance_bytes: u64,
    pub item_bytes: u64,
    /// Accesses, and what they would read if they all missed.
    pub touches: u64,
    pub bytes: u64,
}

/// The tables of both scopes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReuseTables {
    pub run: ReuseTable,
    pub generate: ReuseTable,
}

impl ReuseTables {
    pub fn of(trace: &CacheTrace) -> ReuseTables {
        // Accesses of the same size and bytes share a class, so that a key is two
        // numbers; dense models have a handful of classes and of distances.
        let mut classes: HashMap<(u64, u64, u64), u32> = HashMap::new();
        let mut shapes = Vec::new();
        let class_of: Vec<u32> = trace
            .references
            .iter()
            .map(|r| {
                let shape = (trace.item_bytes[r.item as usize], r.bytes, r.touches);
                *classes.entry(shape).or_insert_with(|| {
                    shapes.push(shape);
                    shapes.len() as u32 - 1
                })
            })
            .collect();
        let mut recency = Recency::new(&trace.item_bytes);
        let (mut other, mut generate) = (Tally::new(), Tally::new());
        trace.for_each_stretch(|range, scope| {
            let tally = match scope {
                Scope::Run => &mut other,
                Scope::Generate => &mut generate,
            };
            for &number in &trace.accesses[range] {
                let reference = &trace.references[number as usize];
                let distance = recency.distance_of(reference);
                match distance {
                    None => tally.cold.add(reference),
                    Some(distance) => tally.add((distance, class_of[number as usize])),
                }
            }
        });
        let (generate, generate_cold) = generate.finish();
        let (mut run, other_cold) = other.finish();
        run.extend_from_slice(&generate);
        add_up(&mut run);
        let cold = Count {
            accesses: other_cold.accesses + generate_cold.accesses,
            bytes: other_cold.bytes + generate_cold.bytes,
        };
        ReuseTables {
            run: table(&run, cold, &shapes),
            generate: table(&generate, generate_cold, &shapes),
        }
    }

    pub fn scope(&self, scope: Scope) -> &ReuseTable {
        match scope {
            Scope::Run => &self.run,
            Scope::Generate => &self.generate,
        }
    }

    pub fn cold(&self) -> Counts {
        Counts {
            run: self.run.cold,
            generate: self.generate.cold,
        }
    }
}

/// A histogram for people and for `--json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReuseHistogram {
    /// First uses: no distance.
    pub cold: Count,
    /// Accesses that have a distance.
    pub reused: Count,
    pub buckets: Vec<ReuseBucket>,
    /// Exact: the smallest distance that at least this share of the reused
    /// accesses does not exceed.
    pub quantiles: Vec<ReuseQuantile>,
}

/// Distances from `from_bytes` to below `to_bytes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReuseBucket {
    pub from_bytes: u64,
    pub to_bytes: u64,
    pub accesses: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReuseQuantile {
    pub share: f64,
    pub distance_bytes: u64,
}

impl ReuseTable {
    /// Accesses that have a distance.
    pub fn reused(&self) -> Count {
        let mut count = Count::default();
        for entry in &self.entries {
            count.accesses += entry.touches;
            count.bytes += entry.bytes;
        }
        count
    }

    /// The smallest distance that at least `share` of the reused accesses does not
    /// exceed; `None` when nothing is reused.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let total = self.reused().accesses;
        let wanted = (share * total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let at = self.entries.iter().find(|entry| {
            seen += entry.touches;
            seen >= wanted
        });
        at.or(self.entries.last()).map(|entry| entry.distance_bytes)
    }

    /// Buckets whose bounds are powers of two; the first holds distance 0 alone.
    pub fn histogram(&self) -> ReuseHistogram {
        let mut buckets: Vec<ReuseBucket> = Vec::new();
        for entry in &self.entries {
            let bits = u64::BITS - entry.distance_bytes.leading_zeros();
            let from_bytes = if bits == 0 { 0 } else { 1 << (bits - 1) };
            if buckets.last().is_none_or(|b| b.from_bytes != from_bytes) {
                buckets.push(ReuseBucket {
                    from_bytes,
                    to_bytes: 1u64.checked_shl(bits).unwrap_or(u64::MAX),
                    accesses: 0,
                    bytes: 0,
                });
            }
            if let Some(bucket) = buckets.last_mut() {
                bucket.accesses += entry.touches;
                bucket.bytes += entry.bytes;
            }
        }
        let quantiles = QUANTILES.iter().filter_map(|&share| {
            let distance_bytes = self.quantile(share)?;
            Some(ReuseQuantile {
                share,
                distance_bytes,
            })
        });
        ReuseHistogram {
            cold: self.cold,
            reused: self.reused(),
            buckets,
            quantiles: quantiles.collect(),
        }
    }
}

/// Counts by distance and class.
///
/// Dense models have a handful of distances, mixtures millions: a small table
/// counts the recurring ones, what it displaces is sorted and added up in
/// batches. A hash table of everything would miss the processor's cache at every
/// access.
struct Tally {
    front: Vec<(Key, u64)>,
    spilled: Vec<(Key, u64)>,
    /// Spilled entries at which they are added up.
    limit: usize,
    cold: Count,
}

/// Distance and class.
type Key = (u64, u32);

const FRONT_ENTRIES: usize = 1 << 12;
const MIN_LIMIT: usize = 1 << 21;

impl Tally {
    fn new() -> Tally {
        Tally {
            front: vec![((0, 0), 0); FRONT_ENTRIES],
            spilled: Vec::new(),
            limit: MIN_LIMIT,
            cold: Count::default(),
        }
    }

    #[inline]
    fn add(&mut self, key: Key) {
        let mixed = (key.0 ^ u64::from(key.1) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let entry = &mut self.front[(mixed >> 52) as usize];
        if entry.0 == key {
            entry.1 += 1;
            return;
        }
        let displaced = std::mem::replace(entry, (key, 1));
        if displaced.1 > 0 {
            self.spilled.push(displaced);
            if self.spilled.len() == self.limit {
                add_up(&mut self.spilled);
                self.limit = (self.spilled.len() * 2).max(MIN_LIMIT);
            }
        }
    }

    /// Every key once, ascending.
    fn finish(mut self) -> (Vec<(Key, u64)>, Count) {
        self.spilled
            .extend(self.front.iter().filter(|entry| entry.1 > 0));
        add_up(&mut self.spilled);
        (self.spilled, self.cold)
    }
}

fn add_up(entries: &mut Vec<(Key, u64)>) {
    entries.sort_unstable_by_key(|entry| entry.0);
    entries.dedup_by(|later, kept| {
        let is_same = later.0 == kept.0;
        if is_same {
            kept.1 += later.1;
        }
        is_same
    });
}

fn table(tallied: &[(Key, u64)], cold: Count, shapes: &[(u64, u64, u64)]) -> ReuseTable {
    let entries = tallied.iter().map(|&((distance_bytes, class), count)| {
        let (item_bytes, bytes, touches) = shapes[class as usize];
        ReuseEntry {
            distance_bytes,
            item_bytes,
            touches: count * touches,
            bytes: count * bytes,
        }
    });
    ReuseTable {
        entries: entries.collect(),
        cold,
    }
}

/// Items by the time of their last use.
struct Recency<'i> {
    item_bytes: &'i [u64],
    /// Slot of each item's last use; 0 if it was never used.
    slot_of: Vec<u32>,
    /// Item last used at each slot; stale where `slot_of` says otherwise.
    item_at: Vec<u32>,
    /// Fenwick tree over slots `1..=capacity`.
    tree: Vec<u64>,
    /// Slots used so far.
    used: u32,
    /// Bytes of all items that were used.
    live_bytes: u64,
    /// Where the item touched last came from, its distance and its size.
    before: (u32, u64, u64),
}

impl<'i> Recency<'i> {
    fn new(item_bytes: &'i [u64]) -> Recency<'i> {
        // Twice the items: a renumbering frees at least half of the slots.
        let capacity = (item_bytes.len() * 2).next_power_of_two().max(64);
        Recency {
            item_bytes,
            slot_of: vec![0; item_bytes.len()],
            item_at: vec![0; capacity + 1],
            tree: vec![0; capacity + 1],
            used: 0,
            live_bytes: 0,
            before: (0, 0, 0),
        }
    }

    /// Of an access, which may make its item the latest.
    #[inline]
    fn distance_of(&mut self, reference: &Reference) -> Option<u64> {
        match reference.kind {
            Use::Whole => self.touch(reference.item),
            Use::Probe => self.distance(reference.item),
        }
    }

    /// Bytes of other items used since `item` was.
    #[inline]
    fn distance(&self, item: u32) -> Option<u64> {
        let slot = self.slot_of[item as usize];
        (slot != 0).then(|| self.live_bytes - self.up_to(slot))
    }

    /// The distance, and makes `item` the latest.
    #[inline]
    fn touch(&mut self, item: u32) -> Option<u64> {
        let bytes = self.item_bytes[item as usize];
        let slot = self.slot_of[item as usize];
        if slot == self.used && slot != 0 {
            self.before = (0, 0, 0);
            return Some(0);
        }
        // Two items used one after the other, as they were the last time: the one
        // lies between the uses of the other, all else is the same.
        let (slot_before, distance_before, bytes_before) = self.before;
        let distance = if slot_before != 0 && slot == slot_before + 1 {
            Some(distance_before + bytes_before - bytes)
        } else {
            self.distance(item)
        };
        self.before = (slot, distance.unwrap_or(0), bytes);
        if distance.is_some() {
            self.add(slot, bytes.wrapping_neg());
        } else {
            self.live_bytes += bytes;
        }
        if self.used as usize + 1 == self.tree.len() {
            // Not among those to renumber: it moves to the end now.
            self.slot_of[item as usize] = 0;
            self.renumber();
            self.before = (0, 0, 0);
        }
        self.used += 1;
        self.slot_of[item as usize] = self.used;
        self.item_at[self.used as usize] = item;
        self.add(self.used, bytes);
        distance
    }

    #[inline]
    fn up_to(&self, slot: u32) -> u64 {
        let (mut at, mut sum) = (slot as usize, 0u64);
        while at > 0 {
            sum = sum.wrapping_add(self.tree[at]);
            at &= at - 1;
        }
        sum
    }

    #[inline]
    fn add(&mut self, slot: u32, bytes: u64) {
        let mut at = slot as usize;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(bytes);
            at += at & at.wrapping_neg();
        }
    }

    /// Moves the items to the first slots, in order.
    fn renumber(&mut self) {
        self.tree.fill(0);
        let mut used = 0u32;
        for slot in 1..=self.used as usize {
            let item = self.item_at[slot];
            if self.slot_of[item as usize] as usize == slot {
                used += 1;
                self.slot_of[item as usize] = used;
                self.item_at[used as usize] = item;
                self.tree[used as usize] = self.item_bytes[item as usize];
            }
        }
        for at in 1..self.tree.len() {
            let parent = at + (at & at.wrapping_neg());
            if parent < self.tree.len() {
                self.tree[parent] = self.tree[parent].wrapping_add(self.tree[at]);
            }
        }
        self.used = used;
    }
}
