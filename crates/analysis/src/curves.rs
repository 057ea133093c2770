//! Miss-ratio curves: what is read again, against the memory there is.
//!
//! Three ways of using a budget of memory, on the same trace and in the same
//! counts, from cold (first reads included):
//! - *LRU*, from the reuse distances, exact for every budget at once. A use hits if
//!   and only if the distinct bytes used since plus the item's own size fit: that
//!   is what "drop the least recently used until there is room" does, also with
//!   items of different sizes. An item larger than the cache never hits and leaves
//!   the cache empty.
//! - *Belady's rule* ([`plan::belady`]), simulated for each budget.
//! - *Pin and stream* ([`crate::pins`]): the densest items stay, the rest is read
//!   each time. For a pass over W bytes with C of them pinned: W − C.

use std::{
    num::NonZeroUsize,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use plan::belady::{self, Admission, NextUses};
use serde::{Deserialize, Serialize};

use crate::{
    cache_trace::{CacheTrace, Count, Counts, Granularity, Scope},
    pins::PinChoice,
    reuse::{ReuseTable, ReuseTables},
};

/// LRU misses for every budget.
#[derive(Clone, Debug, PartialEq)]
pub struct LruCurve {
    /// Smallest cache in which a use hits, ascending, and what hits with it.
    steps: Vec<(u64, Count)>,
    total: Count,
}

impl LruCurve {
    pub fn of(table: &ReuseTable) -> LruCurve {
        let mut needs: Vec<(u64, Count)> = table
            .entries
            .iter()
            .map(|entry| {
                let need = entry.distance_bytes + entry.item_bytes;
                let count = Count {
                    accesses: entry.touches,
                    bytes: entry.bytes,
                };
                (need, count)
            })
            .collect();
        needs.sort_unstable_by_key(|&(need, _)| need);
        let mut hits = Count::default();
        let mut steps: Vec<(u64, Count)> = Vec::new();
        for (need, count) in needs {
            hits.accesses += count.accesses;
            hits.bytes += count.bytes;
            match steps.last_mut() {
                Some(step) if step.0 == need => step.1 = hits,
                _ => steps.push((need, hits)),
            }
        }
        LruCurve {
            steps,
            total: Count {
                accesses: hits.accesses + table.cold.accesses,
                bytes: hits.bytes + table.cold.bytes,
            },
        }
    }

    pub fn misses(&self, budget_bytes: u64) -> Count {
        let fitting = self
            .steps
            .partition_point(|&(need, _)| need <= budget_bytes);
        let hits = match fitting {
            0 => Count::default(),
            n => self.steps[n - 1].1,
        };
        Count {
            accesses: self.total.accesses - hits.accesses,
            bytes: self.total.bytes - hits.bytes,
        }
    }

    pub fn total(&self) -> Count {
        self.total
    }
}

/// The three curves of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    pub granularity: Granularity,
    /// All accesses, hit or missed.
    pub total: Counts,
    /// First uses, which miss under every policy.
    pub cold: Counts,
    /// Bytes of everything that is used.
    pub footprint_bytes: u64,
    pub points: Vec<CurvePoint>,
}

/// Misses at one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurvePoint {
    pub budget_bytes: u64,
    pub lru: Counts,
    pub belady: Counts,
    pub pin_and_stream: Counts,
}

/// Budgets for a curve: `count` equal steps up to everything.
pub fn even_budgets(footprint_bytes: u64, count: u64) -> Vec<u64> {
    let step = |i: u64| u128::from(footprint_bytes) * u128::from(i) / u128::from(count.max(1));
    (1..=count).map(|i| step(i) as u64).collect()
}

impl Curves {
    /// Computes all three on up to `threads` threads; the result does not depend
    /// on how many.
    pub fn of(trace: &CacheTrace, budgets: &[u64], threads: NonZeroUsize) -> Curves {
        Curves::and_reuse(trace, budgets, threads).0
    }

    /// The same, with the reuse distances that the LRU curve is made from.
    pub fn and_reuse(
        trace: &CacheTrace,
        budgets: &[u64],
        threads: NonZeroUsize,
    ) -> (Curves, ReuseTables) {
        let next_uses = NextUses::of(trace);
        let (reuse, belady) = (OnceLock::new(), vec![OnceLock::new(); budgets.len()]);
        // Reuse distances take as long as several budgets, so they come first.
        let next_job = AtomicUsize::new(0);
        let work = || {
            loop {
                match next_job.fetch_add(1, Ordering::Relaxed).checked_sub(1) {
                    None => {
                        let _ = reuse.set(ReuseTables::of(trace));
                    }
                    Some(at) if at < budgets.len() => {
                        let admission = Admission::Bypass;
                        let misses = belady::misses(trace, &next_uses, budgets[at], admission);
                        let _ = belady[at].set(misses);
                    }
                    Some(_) => return,
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.get() {
                scope.spawn(work);
            }
            work();
        });
        let reuse = reuse.into_inner().expect("the first job");
        let belady = belady
            .into_iter()
            .map(|b| b.into_inner().expect("a job for each"));
        let lru_run = LruCurve::of(&reuse.run);
        let lru_generate = LruCurve::of(&reuse.generate);
        let pins = PinChoice::of(trace);
        let points = budgets
            .iter()
            .zip(belady)
            .map(|(&budget_bytes, belady)| CurvePoint {
                budget_bytes,
                lru: Counts {
                    run: lru_run.misses(budget_bytes),
                    generate: lru_generate.misses(budget_bytes),
                },
                belady,
                pin_and_stream: Counts {
                    run: pins.within(budget_bytes, Scope::Run).misses.run,
                    generate: pins.within(budget_bytes, Scope::Generate).misses.generate,
                },
            });
        let curves = Curves {
            granularity: trace.granularity,
            total: Counts {
                run: lru_run.total(),
                generate: lru_generate.total(),
            },
            cold: reuse.cold(),
            footprint_bytes: trace.footprint_bytes(),
            points: points.collect(),
        };
        (curves, reuse)
    }
}
