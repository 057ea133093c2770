//! Belady's rule: drop what is needed again last.
//!
//! Needs the future, so no cache can do it; it bounds what any cache could. Two
//! versions, by granularity:
//! - *pages*: an atom may be kept in part, and all pages have one size, so the rule
//!   is the optimum: no policy misses fewer pages.
//! - *units*: sizes differ and units are kept whole or not at all; the optimum is
//!   NP-hard then. What is computed is the rule itself, *farthest next use with
//!   bypass*: a missed unit is admitted if dropping units that are needed later
//!   than it makes enough room, else it is read past the cache and nothing is
//!   dropped. It is a policy, so its misses are reachable, but not a bound.
//!
//! The resident items are kept as a set of the positions of their next use, in a
//! tree of 64-bit words: the farthest is found in five steps.

use crate::{
    cache_trace::{CacheTrace, Count, Counts, Granularity, PAGE_BYTES, Scope, Use},
    positions::Positions,
};

/// No next use.
const NEVER: u32 = u32::MAX;

/// Whether a missed item must enter the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may be read past the cache: better, and what streaming can do.
    Bypass,
    /// It always enters, as in a cache that serves demand reads only. Units only.
    Always,
}

/// For each access, the position of the next whole use of its item.
pub struct NextUses {
    next: Vec<u32>,
}

impl NextUses {
    pub fn of(trace: &CacheTrace) -> NextUses {
        let mut next = vec![NEVER; trace.accesses.len()];
        let mut upcoming = vec![NEVER; trace.item_bytes.len()];
        for (position, &number) in trace.accesses.iter().enumerate().rev() {
            let reference = &trace.references[number as usize];
            next[position] = upcoming[reference.item as usize];
            if reference.kind == Use::Whole {
                upcoming[reference.item as usize] = position as u32;
            }
        }
        NextUses { next }
    }
}

/// What Belady's rule misses with `budget_bytes` of cache.
pub fn misses(
    trace: &CacheTrace,
    next_uses: &NextUses,
    budget_bytes: u64,
    admission: Admission,
) -> Counts {
    let mut missed = Counts::default();
    match trace.granularity {
        Granularity::Unit => {
            let mut cache = UnitCache::new(trace, next_uses, budget_bytes, admission);
            trace.for_each_stretch(|range, scope| {
                let mut count = Count::default();
                for position in range {
                    let reference = &trace.references[trace.accesses[position] as usize];
                    if !cache.access(position) {
                        count.add(reference);
                    }
                }
                add(&mut missed, scope, count);
            });
        }
        Granularity::Page => {
            let mut cache = PageCache::new(trace, next_uses, budget_bytes);
            trace.for_each_stretch(|range, scope| {
                let mut count = Count::default();
                for position in range {
                    let bytes = cache.access(position);
                    count.bytes += bytes;
                    count.accesses += bytes / PAGE_BYTES;
                }
                add(&mut missed, scope, count);
            });
        }
    }
    missed
}

fn add(missed: &mut Counts, scope: Scope, count: Count) {
    missed.run.accesses += count.accesses;
    missed.run.bytes += count.bytes;
    if scope == Scope::Generate {
        missed.generate.accesses += count.accesses;
        missed.generate.bytes += count.bytes;
    }
}

/// Items whole or not at all.
struct UnitCache<'t, 's> {
    trace: &'t CacheTrace<'s>,
    next: &'t [u32],
    admission: Admission,
    capacity_bytes: u64,
    free_bytes: u64,
    resident: Vec<bool>,
    /// Next uses of the resident items.
    uses: Positions,
    /// Resident bytes by next use, summed over 64, 64² and 64³ positions.
    sums: [Vec<u64>; 3],
    /// Resident items without a next use; only [`Admission::Always`] keeps any.
    dead: Vec<u32>,
}

impl<'t, 's> UnitCache<'t, 's> {
    fn new(
        trace: &'t CacheTrace<'s>,
        next_uses: &'t NextUses,
        budget_bytes: u64,
        admission: Admission,
    ) -> UnitCache<'t, 's> {
        UnitCache {
            trace,
            next: &next_uses.next,
            admission,
            capacity_bytes: budget_bytes,
            free_bytes: budget_bytes,
            resident: vec![false; trace.item_bytes.len()],
            uses: Positions::new(trace.accesses.len()),
            sums: [1, 2, 3].map(|level| vec![0; (trace.accesses.len() >> (6 * level)) + 1]),
            dead: Vec::new(),
        }
    }

    fn item_at(&self, position: u32) -> u32 {
        self.trace.references[self.trace.accesses[position as usize] as usize].item
    }

    /// Whether the access hits.
    #[inline]
    fn access(&mut self, position: usize) -> bool {
        let reference = &self.trace.references[self.trace.accesses[position] as usize];
        let item = reference.item;
        let is_hit = self.resident[item as usize];
        if reference.kind == Use::Probe {
            return is_hit;
        }
        let next = self.next[position];
        if is_hit {
            self.forget(position as u32, self.trace.item_bytes[item as usize]);
            self.keep(item, next);
        } else {
            self.admit(item, next);
        }
        is_hit
    }

    /// A resident item's next use changes.
    fn keep(&mut self, item: u32, next: u32) {
        if next != NEVER {
            self.uses.insert(next);
            for (level, sums) in self.sums.iter_mut().enumerate() {
                sums[next as usize >> (6 * (level + 1))] += self.trace.item_bytes[item as usize];
            }
        } else if self.admission == Admission::Always {
            self.dead.push(item);
        } else {
            self.drop_item(item);
        }
    }

    fn forget(&mut self, next: u32, bytes: u64) {
        self.uses.remove(next);
        for (level, sums) in self.sums.iter_mut().enumerate() {
            sums[next as usize >> (6 * (level + 1))] -= bytes;
        }
    }

    fn drop_item(&mut self, item: u32) {
        self.resident[item as usize] = false;
        self.free_bytes += self.trace.item_bytes[item as usize];
    }

    fn admit(&mut self, item: u32, next: u32) {
        let bytes = self.trace.item_bytes[item as usize];
        let may_bypass = self.admission == Admission::Bypass;
        if bytes > self.capacity_bytes || (may_bypass && next == NEVER) {
            return;
        }
        // Asked before anything is dropped: thousands of small items that are
        // needed late may not make room for a large one.
        if may_bypass && self.free_bytes < bytes && !self.has_later(next, bytes - self.free_bytes) {
            return;
        }
        while self.free_bytes < bytes {
            if let Some(dead) = self.dead.pop() {
                self.drop_item(dead);
                continue;
            }
            let Some(farthest) = self.uses.last() else {
                break;
            };
            let victim = self.item_at(farthest);
            self.forget(farthest, self.trace.item_bytes[victim as usize]);
            self.drop_item(victim);
        }
        self.free_bytes -= bytes;
        self.resident[item as usize] = true;
        self.keep(item, next);
    }

    /// Whether `wanted` bytes are resident that are needed later than `next`.
    fn has_later(&self, next: u32, wanted: u64) -> bool {
        if self.uses.last().is_none_or(|last| last <= next) {
            return false;
        }
        let mut found = 0;
        let mut at = next as usize;
        for position in self.uses.later_in_word(next) {
            found += self.trace.item_bytes[self.item_at(position) as usize];
        }
        for (level, sums) in self.sums.iter().enumerate() {
            // What follows within the block above; all that follows at the top.
            at >>= 6;
            let end = match level {
                2 => sums.len(),
                _ => ((at | 63) + 1).min(sums.len()),
            };
            found += sums[at + 1..end].iter().sum::<u64>();
            if found >= wanted {
                return true;
            }
        }
        false
    }
}

/// Items in part: so many of their pages.
struct PageCache<'t, 's> {
    trace: &'t CacheTrace<'s>,
    next: &'t [u32],
    free_bytes: u64,
    resident_bytes: Vec<u64>,
    uses: Positions,
}

impl<'t, 's> PageCache<'t, 's> {
    fn new(
        trace: &'t CacheTrace<'s>,
        next_uses: &'t NextUses,
        budget_bytes: u64,
    ) -> PageCache<'t, 's> {
        PageCache {
            trace,
            next: &next_uses.next,
            free_bytes: budget_bytes - budget_bytes % PAGE_BYTES,
            resident_bytes: vec![0; trace.item_bytes.len()],
            uses: Positions::new(trace.accesses.len()),
        }
    }

    /// Bytes that the access misses.
    #[inline]
    fn access(&mut self, position: usize) -> u64 {
        // At page granularity a reference is its atom.
        let item = self.trace.accesses[position] as usize;
        let here = self.resident_bytes[item];
        let missed = self.trace.item_bytes[item] - here;
        if here > 0 {
            self.uses.remove(position as u32);
        }
        let next = self.next[position];
        if next == NEVER {
            self.free_bytes += here;
            self.resident_bytes[item] = 0;
            return missed;
        }
        let mut wanted = missed;
        loop {
            let taken = wanted.min(self.free_bytes);
            self.free_bytes -= taken;
            wanted -= taken;
            if wanted == 0 {
                break;
            }
            let Some(farthest) = self.uses.last().filter(|&at| at > next) else {
                break;
            };
            let victim = self.trace.accesses[farthest as usize] as usize;
            let dropped = wanted.min(self.resident_bytes[victim]);
            self.resident_bytes[victim] -= dropped;
            self.free_bytes += dropped;
            if self.resident_bytes[victim] == 0 {
                self.uses.remove(farthest);
            }
        }
        self.resident_bytes[item] = self.trace.item_bytes[item] - wanted;
        if self.resident_bytes[item] > 0 {
            self.uses.insert(next);
        }
        missed
    }
}
