//! Expert caches against naive simulations, and the outlook at memory budgets
//! against numbers worked out by hand.

mod common;

use std::num::NonZeroUsize;

use analysis::{
    cache_trace::{CacheTrace, PAGE_BYTES, Scope},
    caches::{CacheQuestion, Caches},
    error::AnalysisError,
    experts_cache::{Ageing, ExpertCaches, Hits, RoutedLayer, RoutingSequence, lfu_hits},
    opportunities::{Help, Machine, Opportunities, Strategy, StrategyOutlook},
    sequence::{Extent, Piece, Run, Sequence},
};
use common::{cyclic, equal_trace, eval, unit};
use proptest::prelude::*;
use trace::format::Phase;

const ONE: NonZeroUsize = NonZeroUsize::MIN;

#[derive(Clone, Copy, PartialEq)]
enum Policy {
    Lru,
    Lfu(Ageing),
}

struct Slot {
    item: u32,
    uses: u64,
    key: u64,
    last: usize,
}

/// A list of slots, searched from end to end.
fn naive_hits(trace: &CacheTrace, slots: usize, policy: Policy) -> Hits {
    let mut hits = Hits::default();
    let mut cache: Vec<Slot> = Vec::new();
    let mut age = 0;
    for (at, &item) in trace.accesses.iter().enumerate() {
        if slots == 0 {
            break;
        }
        if let Some(slot) = cache.iter_mut().find(|slot| slot.item == item) {
            slot.uses += 1;
            slot.key = slot.uses + age;
            slot.last = at;
            hits.run += 1;
            hits.generate += u64::from(trace.generate.iter().any(|range| range.contains(&at)));
            continue;
        }
        if cache.len() == slots {
            let rank = |slot: &Slot| match policy {
                Policy::Lru => (0, slot.last),
                Policy::Lfu(_) => (slot.key, slot.last),
            };
            let victim = (0..slots).min_by_key(|&i| rank(&cache[i])).unwrap();
            if policy == Policy::Lfu(Ageing::Dynamic) {
                age = cache[victim].key;
            }
            cache.remove(victim);
        }
        cache.push(Slot {
            item,
            uses: 1,
            key: 1 + age,
            last: at,
        });
    }
    hits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn lfu_is_the_cache_that_counts(trace in equal_trace(), slots in 0usize..12) {
        for ageing in [Ageing::Never, Ageing::Dynamic] {
            prop_assert_eq!(
                lfu_hits(&trace, slots as u64, ageing),
                naive_hits(&trace, slots, Policy::Lfu(ageing))
            );
        }
    }

    #[test]
    fn per_layer_caches_are_caches_of_their_layer(
        evals in prop::collection::vec((any::<bool>(), prop::collection::vec((0u32..3, 0u32..4), 0..9)), 0..12),
        slots in 1u32..5,
    ) {
        let mut routing = RoutingSequence {
            layers: (0..3).map(|layer| RoutedLayer { layer, experts: 4, expert_bytes: 10 }).collect(),
            ..RoutingSequence::default()
        };
        let mut by_layer: Vec<(Vec<u32>, Vec<std::ops::Range<usize>>)> = vec![Default::default(); 3];
        for (generate, uses) in evals {
            let first = routing.uses.len();
            let starts: Vec<usize> = by_layer.iter().map(|l| l.0.len()).collect();
            for &(layer, expert) in &uses {
                routing.uses.push((layer, expert));
                by_layer[layer as usize].0.push(expert);
            }
            if generate {
                routing.generate.push(first..routing.uses.len());
                for (layer, start) in by_layer.iter_mut().zip(starts) {
                    layer.1.push(start..layer.0.len());
                }
            }
        }
        let caches = ExpertCaches::of(&routing, Some(&[slots]));
        prop_assert_eq!(caches.is_none(), routing.uses.is_empty());
        let Some(caches) = caches else { return Ok(()) };
        let point = caches.points[0];
        prop_assert_eq!(point.slots, u64::from(slots) * 3);
        prop_assert_eq!(point.bytes, u64::from(slots.min(4)) * 3 * 10);
        prop_assert_eq!(caches.uses.run, routing.uses.len() as u64);

        let traces: Vec<CacheTrace> = by_layer
            .into_iter()
            .map(|(uses, generate)| CacheTrace { generate, ..CacheTrace::whole_items(vec![1; 4], uses) })
            .collect();
        let sum = |policy| {
            let mut sum = Hits::default();
            for trace in &traces {
                let hits = naive_hits(trace, slots as usize, policy);
                sum.run += hits.run;
                sum.generate += hits.generate;
            }
            sum
        };
        prop_assert_eq!(point.per_layer.lru, sum(Policy::Lru));
        prop_assert_eq!(point.per_layer.lfu, sum(Policy::Lfu(Ageing::Never)));
        prop_assert_eq!(point.per_layer.lfu_aged, sum(Policy::Lfu(Ageing::Dynamic)));

        let flat = routing.uses.iter().map(|&(layer, expert)| layer * 4 + expert).collect();
        let global = CacheTrace { generate: routing.generate.clone(), ..CacheTrace::whole_items(vec![1; 12], flat) };
        prop_assert_eq!(point.global.lru, naive_hits(&global, slots as usize * 3, Policy::Lru));
        for hits in [point.global, point.per_layer] {
            for policy in [hits.lru, hits.lfu, hits.lfu_aged] {
                prop_assert!(hits.belady.run >= policy.run);
            }
        }
    }
}

/// Two layers of four experts (up and down slices of one page each) and a dense
/// tensor of two pages; token by token the named expert of both layers.
fn moe(experts: &[u32]) -> Sequence {
    let mut sequence = Sequence::default();
    let mut file_offset = 0;
    let mut add = |mut unit: analysis::sequence::Unit| {
        unit.file = Some(0);
        unit.file_offset = Some(file_offset);
        file_offset += unit.bytes;
        sequence.pieces.push(Piece {
            unit: sequence.units.len() as u32,
            extent: Extent::Whole,
            bytes: unit.bytes,
            first_run: sequence.runs.len() as u32,
            run_count: 1,
        });
        sequence.runs.push(Run {
            offset: 0,
            bytes: unit.bytes,
        });
        sequence.units.push(unit);
    };
    add(unit("blk.0.attn_q.weight", 2 * PAGE_BYTES, None));
    for layer in 0..2 {
        for role in ["up", "down"] {
            for expert in 0..4 {
                let name = format!("blk.{layer}.ffn_{role}_exps.weight");
                let mut slice = unit(&name, PAGE_BYTES, None);
                (slice.layer, slice.expert, slice.role) = (Some(layer), Some(expert), role.into());
                add(slice);
            }
        }
    }
    for &expert in experts {
        let first = sequence.accesses.len();
        sequence.accesses.push(0);
        for layer in 0..2 {
            sequence.accesses.push(1 + layer * 8 + expert);
            sequence.accesses.push(1 + layer * 8 + 4 + expert);
        }
        sequence.evals.push(eval(Phase::Generate, first, 5));
    }
    sequence
}

#[test]
fn an_expert_is_used_once_for_all_its_slices() {
    let routing = RoutingSequence::of(&moe(&[3, 1]));
    assert_eq!(routing.uses, [(0, 3), (1, 3), (0, 1), (1, 1)]);
    assert_eq!(routing.layers.len(), 2);
    assert_eq!(routing.layers[1].expert_bytes, 2 * PAGE_BYTES);
    assert_eq!(routing.layers[1].experts, 4);
}

#[test]
fn hit_rates_follow_the_routing() {
    // Expert 0 every other token, the others in turn.
    let caches = ExpertCaches::of(&RoutingSequence::of(&moe(&[0, 1, 0, 2, 0, 3, 0, 1])), None);
    let caches = caches.unwrap();
    assert_eq!(caches.points.len(), 4);
    assert_eq!(caches.uses.run, 16);
    assert_eq!(caches.cold.run, 8);
    // One slot a layer: LRU loses expert 0 each time, the optimum keeps it.
    assert_eq!(caches.points[0].per_layer.lru.run, 0);
    assert_eq!(caches.points[0].per_layer.belady.run, 2 * 3);
    assert_eq!(caches.points[1].per_layer.lru.run, 2 * 3);
    assert_eq!(caches.points[3].global.lru.run, 8);
    assert_eq!(caches.points[3].global.lru.rate(caches.uses), 0.5);
}

fn of(outlook: &[StrategyOutlook], strategy: Strategy) -> &StrategyOutlook {
    outlook.iter().find(|o| o.strategy == strategy).unwrap()
}

const MACHINE: Machine = Machine {
    disk_bytes_per_second: 1_000_000_000,
    memory_bytes_per_second: 20_000_000_000,
    compute_nanos_per_token: 1_000_000,
};

#[test]
fn a_dense_model_gains_what_it_pins() {
    let unit_bytes = 100 * PAGE_BYTES;
    let units = (0..20).map(|i| unit(&format!("u{i}"), unit_bytes, Some(i * unit_bytes)));
    let sequence = cyclic(units.collect(), 5);
    let whole = 20 * unit_bytes;
    let budgets = [2 * unit_bytes, 13 * unit_bytes, whole];
    let all = Opportunities::of(&sequence, &budgets, Some(MACHINE), ONE).unwrap();
    assert_eq!(
        (all.footprint_bytes, all.used_bytes_per_token),
        (whole, whole)
    );
    assert_eq!(all.expert_bytes, 0);

    let tight = &all.budgets[0].strategies;
    let reason = &of(tight, Strategy::PinAndStream).verdict.reason;
    assert!(
        reason.contains("3 times the largest tensor (u0: 400.0 KiB)"),
        "{reason}"
    );

    let middle = &all.budgets[1];
    assert_eq!(middle.least_disk_bytes_per_token, 7 * unit_bytes);
    let stock = of(&middle.strategies, Strategy::PageCache);
    assert_eq!(stock.disk_bytes_per_token, Some(whole));
    assert_eq!(stock.verdict.help, Help::Baseline);
    assert_eq!(stock.nanos_per_token, Some(1_000_000 + whole));
    let pinned = of(&middle.strategies, Strategy::PinAndStream);
    // Three of the thirteen are the ring.
    assert_eq!(pinned.disk_bytes_per_token, Some(10 * unit_bytes));
    assert_eq!(pinned.nanos_per_token, Some(10 * unit_bytes));
    assert_eq!(pinned.verdict.help, Help::Helps);
    assert_eq!(middle.best, Some(Strategy::PinAndStream));
    let streamed = of(&middle.strategies, Strategy::Stream);
    assert_eq!(streamed.nanos_per_token, Some(whole));
    let experts = of(&middle.strategies, Strategy::ExpertCache);
    assert_eq!(experts.disk_bytes_per_token, None);
    assert_eq!(
        experts.verdict.reason,
        "would not help: the model has no experts"
    );

    let roomy = &all.budgets[2];
    assert_eq!(roomy.best, None);
    let pinned = of(&roomy.strategies, Strategy::PinAndStream);
    assert_eq!(pinned.disk_bytes_per_token, Some(0));
    assert_eq!(pinned.verdict.help, Help::WouldNotHelp);
    assert!(
        pinned.verdict.reason.contains("7.8 MiB"),
        "{}",
        pinned.verdict.reason
    );
}

#[test]
fn a_slow_processor_gains_nothing_from_fewer_reads() {
    let units = (0..20).map(|i| unit(&format!("u{i}"), PAGE_BYTES, Some(i * PAGE_BYTES)));
    let sequence = cyclic(units.collect(), 5);
    let slow = Machine {
        compute_nanos_per_token: 1_000_000_000,
        ..MACHINE
    };
    let budget = [10 * PAGE_BYTES];
    let outlook = Opportunities::of(&sequence, &budget, Some(slow), ONE).unwrap();
    let pinned = of(&outlook.budgets[0].strategies, Strategy::PinAndStream);
    assert!(pinned.disk_bytes_per_token < Some(20 * PAGE_BYTES));
    assert_eq!(pinned.verdict.help, Help::WouldNotHelp);
    assert_eq!(outlook.budgets[0].best, None);
    // By bytes alone it would seem to help.
    let bytes = Opportunities::of(&sequence, &budget, None, ONE).unwrap();
    assert_eq!(bytes.budgets[0].best, Some(Strategy::PinAndStream));
}

#[test]
fn experts_are_cached_behind_what_every_token_needs() {
    let sequence = moe(&[0, 1, 0, 2, 0, 3, 0, 1]);
    // Two pages for the dense tensor, eight for two experts in each layer.
    let budgets = [PAGE_BYTES, 10 * PAGE_BYTES];
    let all = Opportunities::of(&sequence, &budgets, Some(MACHINE), ONE).unwrap();
    assert_eq!(all.expert_bytes, 16 * PAGE_BYTES);
    let none = of(&all.budgets[0].strategies, Strategy::ExpertCache);
    assert_eq!(none.disk_bytes_per_token, None);
    let cached = of(&all.budgets[1].strategies, Strategy::ExpertCache);
    // Five of eight uses miss (0 1 2 3 and 1 again), four pages each, and the
    // dense tensor once.
    assert_eq!(
        cached.routed_bytes_per_token,
        (5 * 4 * PAGE_BYTES).div_ceil(8)
    );
    assert_eq!(
        cached.disk_bytes_per_token,
        Some((22 * PAGE_BYTES).div_ceil(8))
    );
    let caches = ExpertCaches::of(&RoutingSequence::of(&sequence), Some(&[2])).unwrap();
    let misses = caches.uses.run - caches.points[0].global.lru.run;
    assert_eq!(misses * 2 * PAGE_BYTES, 5 * 4 * PAGE_BYTES);
}

#[test]
fn all_cache_results_come_at_once_and_serialise() {
    let question = CacheQuestion {
        budgets_bytes: Vec::new(),
        machine: Some(MACHINE),
        threads: ONE,
    };
    let sequence = moe(&[0, 1, 0, 2, 0, 3, 0, 1]);
    let caches = Caches::of(&sequence, &question).unwrap();
    let json = serde_json::to_value(&caches).unwrap();
    assert_eq!(
        json["unit"]["curves"]["points"].as_array().unwrap().len(),
        16
    );
    let last = &json["page"]["curves"]["points"][15];
    assert_eq!(last["budget_bytes"], 18 * PAGE_BYTES);
    assert_eq!(last["lru"]["generate"]["bytes"], 18 * PAGE_BYTES);
    assert_eq!(json["unit"]["reuse"]["cold"]["accesses"], 1 + 4 * 4);
    assert_eq!(
        json["expert_caches"]["points"][3]["global"]["lru"]["run"],
        8
    );
    let outlook = &json["opportunities"]["budgets"][15]["strategies"][3];
    assert_eq!(outlook["strategy"], "expert_cache");
    assert_eq!(outlook["verdict"]["help"], "would_not_help");

    let prompt_only = Caches::of(&cyclic(vec![unit("u", 10, None)], 1), &question).unwrap();
    assert_eq!(prompt_only.opportunities, None);
    assert_eq!(prompt_only.expert_caches, None);
}

#[test]
fn impossible_questions_are_refused() {
    let prompt_only = cyclic(vec![unit("u", 10, None)], 1);
    let answer = Opportunities::of(&prompt_only, &[1], None, ONE);
    assert!(matches!(answer, Err(AnalysisError::NoGeneratedToken)));
    let no_disk = Machine {
        disk_bytes_per_second: 0,
        ..MACHINE
    };
    let sequence = cyclic(vec![unit("u", 10, None)], 2);
    let answer = Opportunities::of(&sequence, &[1], Some(no_disk), ONE);
    assert!(matches!(answer, Err(AnalysisError::NotPositive { .. })));
    let trace = CacheTrace::units(&sequence);
    assert_eq!(trace.totals().of(Scope::Generate).bytes, 10);
}
