//! What each way of using memory would read from disk for a token, and how fast it
//! would be.
//!
//! Counted over the generated tokens of the run, first uses in them included; the
//! caches see the prompt too. Speeds are ceilings: they take the disk at its
//! sequential speed and nothing else in the way. `docs/analysis.md` has the
//! formulas. Read-ahead of the page cache, which only adds bytes, is not modelled.

mod verdict;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::{
    cache_trace::{CacheTrace, Count, Scope},
    curves::{Curves, LruCurve},
    error::AnalysisError,
    findings::text::bytes as human,
    pins::PinChoice,
    reuse::ReuseTables,
    sequence::{Sequence, Unit},
};
pub use verdict::{Help, Verdict};

/// A ring that streams in order holds this many of the largest unit: one that is
/// computed on, one that waits, one that is read.
pub const RING_UNITS: u64 = 3;

/// What the machine can do, as `tensorscope bench ceilings` measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub disk_bytes_per_second: u64,
    pub memory_bytes_per_second: u64,
    /// Time per generated token when all weights are in memory.
    pub compute_nanos_per_token: u64,
}

/// A way of using a budget of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// What llama.cpp does today: map the file and let the page cache do it (LRU).
    PageCache,
    /// Read everything in the order of its use, keep nothing.
    Stream,
    /// Keep the densest units, stream the others in order.
    PinAndStream,
    /// Keep what every token needs, and experts in an LRU cache.
    ExpertCache,
}

/// The outlook at several budgets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opportunities {
    pub generated_tokens: u64,
    /// Bytes of all weights that the run used.
    pub footprint_bytes: u64,
    /// Of these, the slices of experts.
    pub expert_bytes: u64,
    /// Weight bytes that computing one token reads from memory.
    pub used_bytes_per_token: u64,
    pub largest_unit_bytes: u64,
    pub machine: Option<Machine>,
    pub budgets: Vec<BudgetOutlook>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetOutlook {
    pub budget_bytes: u64,
    /// Belady's optimum over pages: no policy reads less.
    pub least_disk_bytes_per_token: u64,
    /// The page cache first.
    pub strategies: Vec<StrategyOutlook>,
    /// The fastest that helps; by bytes where no machine is given.
    pub best: Option<Strategy>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StrategyOutlook {
    pub strategy: Strategy,
    /// `None` where the strategy does not apply or does not fit.
    pub disk_bytes_per_token: Option<u64>,
    /// Of these, bytes whose address is known only when the router has spoken.
    pub routed_bytes_per_token: u64,
    pub nanos_per_token: Option<u64>,
    pub tokens_per_second: Option<f64>,
    /// Against the page cache.
    pub speedup: Option<f64>,
    pub verdict: Verdict,
}

/// What the curves have computed already; the costly part of an outlook.
pub struct Parts<'a> {
    pub units: &'a CacheTrace<'a>,
    pub page_reuse: &'a ReuseTables,
    /// At page granularity, with a point for each budget.
    pub page_curves: &'a Curves,
}

impl Opportunities {
    pub fn of(
        sequence: &Sequence,
        budgets: &[u64],
        machine: Option<Machine>,
        threads: NonZeroUsize,
    ) -> Result<Opportunities, AnalysisError> {
        let pages = CacheTrace::pages(sequence)?;
        let (page_curves, page_reuse) = Curves::and_reuse(&pages, budgets, threads);
        let parts = Parts {
            units: &CacheTrace::units(sequence),
            page_reuse: &page_reuse,
            page_curves: &page_curves,
        };
        Opportunities::from_parts(sequence, &parts, machine)
    }

    /// The same, at the budgets of curves that are there already.
    pub fn from_parts(
        sequence: &Sequence,
        parts: &Parts,
        machine: Option<Machine>,
    ) -> Result<Opportunities, AnalysisError> {
        if let Some(machine) = &machine {
            machine.check()?;
        }
        let world = World::of(sequence, parts)?;
        let points = parts.page_curves.points.iter();
        let budgets = points
            .map(|point| world.outlook(point.budget_bytes, point.belady.generate.bytes, machine))
            .collect();
        Ok(Opportunities {
            generated_tokens: world.tokens,
            footprint_bytes: world.footprint_bytes,
            expert_bytes: world.expert_bytes,
            used_bytes_per_token: world.per_token(world.used_bytes),
            largest_unit_bytes: world.largest_unit_bytes,
            machine,
            budgets,
        })
    }
}

impl Machine {
    fn check(&self) -> Result<(), AnalysisError> {
        let numbers = [
            ("the disk's bytes per second", self.disk_bytes_per_second),
            (
                "the memory's bytes per second",
                self.memory_bytes_per_second,
            ),
        ];
        match numbers.iter().find(|(_, value)| *value == 0) {
            Some(&(what, _)) => Err(AnalysisError::NotPositive { what }),
            None => Ok(()),
        }
    }

    pub fn disk_nanos(&self, bytes: u64) -> u64 {
        nanos(bytes, self.disk_bytes_per_second)
    }

    /// A token with all weights in memory: computing, or reading memory, whichever
    /// takes longer.
    pub fn resident_nanos(&self, used_bytes: u64) -> u64 {
        let memory = nanos(used_bytes, self.memory_bytes_per_second);
        memory.max(self.compute_nanos_per_token)
    }
}

fn nanos(bytes: u64, bytes_per_second: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second)) as u64
}

/// Disk bytes of all generated tokens under one strategy.
#[derive(Clone, Copy, Default)]
struct Reads {
    /// Known in advance, so that reading can overlap computing.
    ordered: u64,
    /// Known when the router has spoken.
    routed: u64,
    /// Read by page faults, while computing waits.
    faulted: u64,
}

/// Everything that does not depend on the budget.
struct World<'s> {
    sequence: &'s Sequence,
    tokens: u64,
    page_lru: LruCurve,
    cold_page_bytes: u64,
    pins: PinChoice,
    item_is_expert: Vec<bool>,
    expert_lru: LruCurve,
    footprint_bytes: u64,
    expert_bytes: u64,
    used_bytes: u64,
    used_expert_bytes: u64,
    largest_unit_bytes: u64,
}

impl<'s> World<'s> {
    fn of(sequence: &'s Sequence, parts: &Parts) -> Result<World<'s>, AnalysisError> {
        let tokens = sequence.generated_tokens();
        if tokens == 0 {
            return Err(AnalysisError::NoGeneratedToken);
        }
        let (units, page_reuse) = (parts.units, parts.page_reuse);
        let mut item_is_expert = vec![false; units.item_bytes.len()];
        for (piece, reference) in sequence.pieces.iter().zip(&units.references) {
            item_is_expert[reference.item as usize] =
                is_expert(&sequence.units[piece.unit as usize]);
        }
        let pins = PinChoice::of(units);
        let experts = CacheTrace::units_where(sequence, is_expert);
        let reads = |wanted: Option<bool>| -> u64 {
            let items = pins.items().iter();
            items
                .filter(|i| wanted.is_none_or(|w| item_is_expert[i.item as usize] == w))
                .map(|i| i.reads.generate.bytes)
                .sum()
        };
        let (used_bytes, used_expert_bytes) = (reads(None), reads(Some(true)));
        Ok(World {
            sequence,
            tokens,
            page_lru: LruCurve::of(&page_reuse.generate),
            cold_page_bytes: page_reuse.generate.cold.bytes,
            expert_lru: LruCurve::of(&ReuseTables::of(&experts).generate),
            footprint_bytes: units.footprint_bytes(),
            expert_bytes: experts.footprint_bytes(),
            used_bytes,
            used_expert_bytes,
            largest_unit_bytes: pins.items().iter().map(|i| i.bytes).max().unwrap_or(0),
            pins,
            item_is_expert,
        })
    }

    fn per_token(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.tokens)
    }

    fn outlook(&self, budget: u64, least: u64, machine: Option<Machine>) -> BudgetOutlook {
        let stock = Reads {
            faulted: self.page_lru.misses(budget).bytes,
            ..Reads::default()
        };
        let entries = [
            (Strategy::PageCache, Ok(stock)),
            (Strategy::Stream, self.streamed(budget)),
            (Strategy::PinAndStream, self.pinned(budget)),
            (Strategy::ExpertCache, self.expert_cached(budget)),
        ];
        let stock_bytes = self.per_token(stock.faulted);
        let stock_nanos = machine.map(|m| self.nanos(stock, m));
        let mut strategies: Vec<StrategyOutlook> = Vec::new();
        for (strategy, reads) in entries {
            let nanos_per_token = match (&reads, machine) {
                (Ok(reads), Some(machine)) => Some(self.nanos(*reads, machine)),
                _ => None,
            };
            let bytes = reads
                .as_ref()
                .ok()
                .map(|r| self.per_token(r.ordered + r.routed + r.faulted));
            let mut verdict = match &reads {
                Err(reason) => Verdict::no(reason.clone()),
                Ok(_) => verdict::judge(&verdict::Case {
                    strategy,
                    budget_bytes: budget,
                    footprint_bytes: self.footprint_bytes,
                    bytes: bytes.unwrap_or(0),
                    stock_bytes,
                    stock_cold_bytes: self.per_token(self.cold_page_bytes),
                    nanos: nanos_per_token,
                    stock_nanos,
                    resident_nanos: machine
                        .map(|m| m.resident_nanos(self.per_token(self.used_bytes))),
                }),
            };
            if strategy == Strategy::PinAndStream
                && self.expert_bytes > 0
                && verdict.help == Help::Helps
            {
                verdict
                    .reason
                    .push_str("; experts are pinned in hindsight, another prompt may use others");
            }
            strategies.push(StrategyOutlook {
                strategy,
                disk_bytes_per_token: bytes,
                routed_bytes_per_token: reads
                    .as_ref()
                    .map_or(0, |reads| self.per_token(reads.routed)),
                nanos_per_token,
                tokens_per_second: nanos_per_token.map(|nanos| 1e9 / nanos.max(1) as f64),
                speedup: stock_nanos
                    .zip(nanos_per_token)
                    .map(|(stock, ours)| stock as f64 / ours.max(1) as f64),
                verdict,
            });
        }
        let best = strategies
            .iter()
            .filter(|outlook| outlook.verdict.help == Help::Helps)
            .min_by_key(|outlook| (outlook.nanos_per_token, outlook.disk_bytes_per_token))
            .map(|outlook| outlook.strategy);
        BudgetOutlook {
            budget_bytes: budget,
            least_disk_bytes_per_token: self.per_token(least),
            strategies,
            best,
        }
    }

    /// Ordered reads overlap computing; routed ones wait for the router and
    /// computing waits for them; a fault stops computing.
    fn nanos(&self, reads: Reads, machine: Machine) -> u64 {
        let resident = machine.resident_nanos(self.per_token(self.used_bytes));
        let ordered = machine.disk_nanos(self.per_token(reads.ordered));
        let waited = machine.disk_nanos(self.per_token(reads.routed + reads.faulted));
        resident.max(ordered) + waited
    }

    fn ring_bytes(&self) -> u64 {
        RING_UNITS * self.largest_unit_bytes
    }

    fn streamed(&self, budget: u64) -> Result<Reads, String> {
        self.check_ring(budget)?;
        Ok(Reads {
            ordered: self.used_bytes - self.used_expert_bytes,
            routed: self.used_expert_bytes,
            faulted: 0,
        })
    }

    fn pinned(&self, budget: u64) -> Result<Reads, String> {
        // All pinned: no ring.
        let for_pins = if self.footprint_bytes <= budget {
            budget
        } else {
            self.check_ring(budget)?;
            budget - self.ring_bytes()
        };
        let set = self.pins.within(for_pins, Scope::Generate);
        let mut is_pinned = vec![false; self.item_is_expert.len()];
        for &item in &set.items {
            is_pinned[item as usize] = true;
        }
        let mut reads = Reads::default();
        for item in self.pins.items() {
            let Count { bytes, .. } = if is_pinned[item.item as usize] {
                item.first.generate
            } else {
                item.reads.generate
            };
            match self.item_is_expert[item.item as usize] {
                true => reads.routed += bytes,
                false => reads.ordered += bytes,
            }
        }
        Ok(reads)
    }

    fn expert_cached(&self, budget: u64) -> Result<Reads, String> {
        if self.expert_bytes == 0 {
            return Err("would not help: the model has no experts".into());
        }
        let dense_bytes = self.footprint_bytes - self.expert_bytes;
        if dense_bytes > budget {
            return Err(format!(
                "would not help: what every token needs takes {}, more than the budget of {}",
                human(dense_bytes),
                human(budget),
            ));
        }
        let dense = self.pins.items().iter();
        let dense = dense.filter(|item| !self.item_is_expert[item.item as usize]);
        Ok(Reads {
            ordered: dense.map(|item| item.first.generate.bytes).sum(),
            routed: self.expert_lru.misses(budget - dense_bytes).bytes,
            faulted: 0,
        })
    }

    fn check_ring(&self, budget: u64) -> Result<(), String> {
        if self.ring_bytes() <= budget {
            return Ok(());
        }
        let mut units = self.sequence.units.iter();
        let largest = units.find(|unit| unit.bytes == self.largest_unit_bytes);
        Err(format!(
            "would not help: streaming needs a ring of {RING_UNITS} times the largest tensor \
             ({}: {}), more than the budget of {}",
            largest.map_or("", |unit| unit.name.as_str()),
            human(self.largest_unit_bytes),
            human(budget),
        ))
    }
}

/// A slice that a router chooses; not an expert that every token uses.
fn is_expert(unit: &Unit) -> bool {
    unit.expert.is_some()
}
