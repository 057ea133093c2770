//! What to keep in memory for good: the densest items, spread along the run.
//!
//! Pinning an item saves all reads of it but the first. Its *density* is bytes
//! read per byte of size; pinning by falling density is the best static choice up
//! to the last item. Among items of one density (all of a dense model's) it makes
//! no difference in bytes which are pinned, but it does in time: they are spread
//! evenly along the order of first use, so that computing on pinned ones overlaps
//! reading the others.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::cache_trace::{CacheTrace, Count, Counts, Granularity, PAGE_BYTES, Scope, Use};

/// What pinning one item saves.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ItemReads {
    item: u32,
    bytes: u64,
    /// What all its accesses read, in each scope.
    reads: Counts,
    /// What its first access reads; nothing of it can be saved.
    first: Counts,
}

/// The items of a trace with what is read of them, in order of first use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinChoice {
    granularity: Granularity,
    items: Vec<ItemReads>,
    total: Counts,
}

/// Pinned items, and what is then still read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinSet {
    /// Items that are pinned whole, ascending.
    pub items: Vec<u32>,
    /// Bytes pinned; at page granularity part of the last density included.
    pub pinned_bytes: u64,
    /// Still read: everything of the others, and the first load of the pinned.
    pub misses: Counts,
}

impl PinChoice {
    pub fn of(trace: &CacheTrace) -> PinChoice {
        let mut index: Vec<Option<u32>> = vec![None; trace.item_bytes.len()];
        let mut items: Vec<ItemReads> = Vec::new();
        let mut uses = vec![0u64; trace.references.len()];
        let mut total = Counts::default();
        trace.for_each_stretch(|range, scope| {
            uses.fill(0);
            for position in range {
                let number = trace.accesses[position] as usize;
                uses[number] += 1;
                if uses[number] > 1 {
                    continue;
                }
                let reference = &trace.references[number];
                let slot = &mut index[reference.item as usize];
                if slot.is_none() {
                    *slot = Some(items.len() as u32);
                    let whole = Count {
                        accesses: reference.touches,
                        bytes: trace.item_bytes[reference.item as usize],
                    };
                    // In order of first use.
                    items.push(ItemReads {
                        item: reference.item,
                        bytes: whole.bytes,
                        reads: Counts::default(),
                        first: Counts {
                            run: whole,
                            generate: match scope {
                                Scope::Run => Count::default(),
                                Scope::Generate => whole,
                            },
                        },
                    });
                }
            }
            for (reference, &uses) in trace.references.iter().zip(&uses) {
                if uses == 0 {
                    continue;
                }
                let count = Count {
                    accesses: uses * reference.touches,
                    bytes: uses * reference.bytes,
                };
                if let Some(at) = index[reference.item as usize] {
                    let item = &mut items[at as usize];
                    plus(&mut item.reads.run, count);
                    plus(&mut total.run, count);
                    if scope == Scope::Generate {
                        plus(&mut item.reads.generate, count);
                        plus(&mut total.generate, count);
                    }
                }
                debug_assert!(reference.kind == Use::Whole || reference.bytes > 0);
            }
        });
        PinChoice {
            granularity: trace.granularity,
            items,
            total,
        }
    }

    /// Pins at most `budget_bytes`, by what is read in `scope`.
    pub fn within(&self, budget_bytes: u64, scope: Scope) -> PinSet {
        let mut order: Vec<&ItemReads> = self
            .items
            .iter()
            .filter(|item| item.bytes > 0 && saved(item, scope) > 0)
            .collect();
        // Stable: equals stay in order of first use.
        order.sort_by(|a, b| by_density(b, a, scope));
        let mut set = PinSet {
            items: Vec::new(),
            pinned_bytes: 0,
            misses: self.total,
        };
        let mut left = match self.granularity {
            Granularity::Unit => budget_bytes,
            Granularity::Page => budget_bytes - budget_bytes % PAGE_BYTES,
        };
        for group in order.chunk_by(|a, b| by_density(a, b, scope) == Ordering::Equal) {
            let group_bytes: u64 = group.iter().map(|item| item.bytes).sum();
            if group_bytes <= left {
                for item in group {
                    set.pin(item, item.bytes);
                }
                left -= group_bytes;
                continue;
            }
            match self.granularity {
                Granularity::Unit => {
                    for item in spread(group, group_bytes, left) {
                        set.pin(item, item.bytes);
                        left -= item.bytes;
                    }
                }
                Granularity::Page => {
                    // Pages of one density are alike: whole pages of each item in
                    // turn, until the budget is used up.
                    for item in group {
                        let bytes = item.bytes.min(left);
                        set.pin(item, bytes);
                        left -= bytes;
                    }
                    break;
                }
            }
        }
        set.items.sort_unstable();
        set
    }
}

impl PinSet {
    fn pin(&mut self, item: &ItemReads, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if bytes == item.bytes {
            self.items.push(item.item);
        }
        self.pinned_bytes += bytes;
        for (misses, reads, first) in [
            (&mut self.misses.run, item.reads.run, item.first.run),
            (
                &mut self.misses.generate,
                item.reads.generate,
                item.first.generate,
            ),
        ] {
            let share = |count: u64| {
                (u128::from(count) * u128::from(bytes) / u128::from(item.bytes)) as u64
            };
            misses.accesses = misses.accesses + share(first.accesses) - share(reads.accesses);
            misses.bytes = misses.bytes + share(first.bytes) - share(reads.bytes);
        }
    }
}

/// Bytes that pinning an item saves: what is read of it, less loading it once if
/// that falls into the scope.
fn saved(item: &ItemReads, scope: Scope) -> u64 {
    let (reads, first) = (item.reads.of(scope), item.first.of(scope));
    reads.bytes.saturating_sub(first.bytes)
}

fn by_density(a: &ItemReads, b: &ItemReads, scope: Scope) -> Ordering {
    let left = u128::from(saved(a, scope)) * u128::from(b.bytes);
    let right = u128::from(saved(b, scope)) * u128::from(a.bytes);
    left.cmp(&right)
}

/// Of items in order, a share of `left / group_bytes` of them, evenly.
fn spread<'i>(group: &[&'i ItemReads], group_bytes: u64, left: u64) -> Vec<&'i ItemReads> {
    let (mut walked, mut taken) = (0u64, 0u64);
    let (mut chosen, mut passed) = (Vec::new(), Vec::new());
    for &item in group {
        walked += item.bytes;
        let due = (u128::from(left) * u128::from(walked) / u128::from(group_bytes)) as u64;
        if taken + item.bytes / 2 < due && taken + item.bytes <= left {
            taken += item.bytes;
            chosen.push(item);
        } else {
            passed.push(item);
        }
    }
    // Rounding leaves a rest: the largest that still fits goes first.
    passed.sort_by_key(|item| std::cmp::Reverse(item.bytes));
    for item in passed {
        if taken + item.bytes <= left {
            taken += item.bytes;
            chosen.push(item);
        }
    }
    chosen
}

fn plus(sum: &mut Count, more: Count) {
    sum.accesses += more.accesses;
    sum.bytes += more.bytes;
}
