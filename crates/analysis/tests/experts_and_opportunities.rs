//! Expert caches against naive simulations, and the outlook at memory budgets
//! against numbers worked out by hand.

mod common;

use std::num::NonZeroUsize;

use analysis::{
    cache_trace::{CacheTrace, PAGE_BYTES},
    caches::{CacheQuestion, Caches},
    experts_cache::{ExpertCaches, Hits, RoutedLayer, RoutingSequence, routing_of},
    facts::Facts,
    findings::findings,
    opportunities::{Fit, Help, Opportunities, Strategy, StrategyOutlook},
    sequence::{Extent, Piece, Run, Sequence},
    weights::{compute_seconds, weights_of},
};
use common::{cyclic, equal_trace, eval, unit};
use plan::{Machine, Policy, Question, Strategies, Use, routing};
use proptest::prelude::*;
use trace::format::Phase;

const MB: u64 = 1 << 20;

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
                Policy::Lfu | Policy::LfuAged => (slot.key, slot.last),
            };
            let victim = (0..slots).min_by_key(|&i| rank(&cache[i])).unwrap();
            if policy == Policy::LfuAged {
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
    fn policies_are_a_list_searched_from_end_to_end(trace in equal_trace(), slots in 0usize..12) {
        for policy in Policy::ALL {
            prop_assert_eq!(
                routing::hits(&trace, slots as u64, policy),
                naive_hits(&trace, slots, policy)
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
        prop_assert_eq!(point.per_layer.lfu, sum(Policy::Lfu));
        prop_assert_eq!(point.per_layer.lfu_aged, sum(Policy::LfuAged));

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

/// Two layers of four experts (up and down slices) and a dense tensor of two slices; token
/// by token the named expert of both layers.
fn moe(slice_bytes: u64, experts: &[u32]) -> Sequence {
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
    add(unit("blk.0.attn_q.weight", 2 * slice_bytes, None));
    for layer in 0..2 {
        for role in ["up", "down"] {
            for expert in 0..4 {
                let name = format!("blk.{layer}.ffn_{role}_exps.weight");
                let mut slice = unit(&name, slice_bytes, None);
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
    let routing = routing_of(&moe(PAGE_BYTES, &[3, 1]));
    assert_eq!(routing.uses, [(0, 3), (1, 3), (0, 1), (1, 1)]);
    assert_eq!(routing.layers.len(), 2);
    assert_eq!(routing.layers[1].expert_bytes, 2 * PAGE_BYTES);
    assert_eq!(routing.layers[1].experts, 4);
}

#[test]
fn hit_rates_follow_the_routing() {
    // Expert 0 every other token, the others in turn.
    let caches = ExpertCaches::of(
        &routing_of(&moe(PAGE_BYTES, &[0, 1, 0, 2, 0, 3, 0, 1])),
        None,
    );
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

/// 1 GB a second, 0.1 s to compute a token.
fn machine() -> Machine {
    Machine {
        memory_bytes_per_second: Some(20e9),
        compute_seconds_per_token: Some(0.1),
        ..Machine::new(1e9)
    }
}

fn caches(sequence: &Sequence, budgets: &[u64], machine: Machine) -> Caches {
    let question = CacheQuestion {
        budgets_bytes: budgets.to_vec(),
        given_bytes: Vec::new(),
        beside_weights_bytes: None,
        weights: weights_of(sequence, None),
        machine,
        threads: NonZeroUsize::MIN,
    };
    Caches::of(sequence, &question).unwrap()
}

fn opportunities(sequence: &Sequence, budgets: &[u64], machine: Machine) -> Opportunities {
    caches(sequence, budgets, machine).opportunities.unwrap()
}

/// Twenty weights of 100 MB, read in order by four generated tokens.
fn dense() -> Sequence {
    let units = (0..20).map(|i| unit(&format!("u{i}"), 100 * MB, Some(i * 100 * MB)));
    cyclic(units.collect(), 5)
}

#[test]
fn pins_alone_are_best_by_bytes_only_where_nothing_helps_by_streaming() {
    let sequence = dense();
    let all = opportunities(&sequence, &[201 * MB, 1301 * MB], Machine::new(0.0));
    // No ring fits: two weights are kept, whoever is asked.
    let tight = &all.budgets[0];
    assert_eq!(tight.best, Some(Strategy::Pin));
    let pinned = of(&tight.strategies, Strategy::Pin);
    assert_eq!(pinned.disk_bytes_per_token, Some(1800 * MB));
    assert_eq!(tight.strategy_flag(), None);
    // Here a ring does, and thirteen pins would read less.
    let middle = &all.budgets[1];
    assert_eq!(middle.best, Some(Strategy::PinAndStream));
    let pinned = of(&middle.strategies, Strategy::Pin);
    assert_eq!(pinned.disk_bytes_per_token, Some(700 * MB));
    assert_eq!(middle.strategy_flag(), None);
    // Nobody asked for these budgets, or knows what else the program needs.
    assert!(!all.budgets_are_given);
    assert_eq!(middle.program_bytes, None);
    assert_eq!(middle.fit, Fit::Some);
}

#[test]
fn a_program_that_does_not_fit_is_told_what_would() {
    let sequence = dense();
    let question = CacheQuestion {
        budgets_bytes: vec![0, 500 * MB, 2000 * MB],
        given_bytes: vec![50 * MB, 600 * MB, 2100 * MB],
        beside_weights_bytes: Some(100 * MB),
        weights: weights_of(&sequence, None),
        machine: Machine::new(0.0),
        threads: NonZeroUsize::MIN,
    };
    let all = Caches::of(&sequence, &question).unwrap();
    let all = all.opportunities.unwrap();
    let fits: Vec<Fit> = all.budgets.iter().map(|o| o.fit).collect();
    assert_eq!(fits, [Fit::No, Fit::Some, Fit::All]);
    assert_eq!(all.budgets[1].program_bytes, Some(600 * MB));
    // One weight of twenty, and a mebibyte to read it through.
    assert_eq!(all.least_program_bytes, Some(201 * MB));
    assert_eq!(all.shown().len(), 3);
    let said = findings(&Facts::default(), Some(&all));
    let said: Vec<&str> = said.iter().map(|finding| finding.text.as_str()).collect();
    assert_eq!(
        said[0],
        "50.0 MiB of memory are too little: the program needs 100.0 MiB beside the weights; 201.0 MiB is the least that \
         helps"
    );
    assert!(said[1].starts_with(
        "with 600.0 MiB of memory, 500.0 MiB of it for weights (25.0 % of those used), "
    ));
    assert!(
        said[2]
            .ends_with("(100.0 % of those used), all of them fit: nothing is read from disk again")
    );
}

#[test]
fn a_dense_model_gains_what_it_pins() {
    let (sequence, whole) = (dense(), 2000 * MB);
    let budgets = [200 * MB, 1301 * MB, whole];
    let all = opportunities(&sequence, &budgets, machine());
    assert_eq!(
        (all.footprint_bytes, all.used_bytes_per_token),
        (whole, whole)
    );
    assert_eq!(all.expert_bytes, 0);

    // No ring: two weights are kept.
    let tight = &all.budgets[0].strategies;
    let streamed = of(tight, Strategy::Stream);
    assert_eq!(streamed.disk_bytes_per_token, None);
    assert_eq!(
        streamed.verdict.reason,
        "does not fit: nothing can be streamed with 200.0 MiB for weights of 2.0 GiB"
    );
    assert_eq!(streamed.verdict.help, Help::DoesNotFit);
    // What is kept needs no ring, and a little more than its bytes.
    let kept = of(tight, Strategy::Pin);
    assert_eq!(kept.disk_bytes_per_token, Some(whole - 100 * MB));

    let middle = &all.budgets[1];
    let stock = of(&middle.strategies, Strategy::PageCache);
    assert_eq!(stock.disk_bytes_per_token, Some(whole));
    assert_eq!(stock.verdict.help, Help::Baseline);
    let pinned = of(&middle.strategies, Strategy::PinAndStream);
    // Three of the thirteen are the ring.
    assert_eq!(pinned.disk_bytes_per_token, Some(1000 * MB));
    assert_eq!(pinned.verdict.help, Help::Helps);
    assert!(middle.least_disk_bytes_per_token < 1000 * MB);
    // The disk decides.
    assert_eq!(pinned.nanos_per_token, Some(1000 * MB));
    assert_eq!(middle.best, Some(Strategy::PinAndStream));
    let streamed = of(&middle.strategies, Strategy::Stream);
    assert_eq!(streamed.nanos_per_token, Some(whole));
    let experts = of(&middle.strategies, Strategy::ExpertCache);
    assert_eq!(experts.disk_bytes_per_token, None);
    assert_eq!(
        experts.verdict.reason,
        "does not apply: the model has no experts"
    );
    assert_eq!(experts.verdict.help, Help::DoesNotApply);
    // Keeps the three that are a ring to others, and waits for the rest.
    let kept = of(&middle.strategies, Strategy::Pin);
    assert_eq!(kept.disk_bytes_per_token, Some(700 * MB));
    assert!(kept.nanos_per_token > pinned.nanos_per_token);

    let roomy = &all.budgets[2];
    assert_eq!(roomy.best, None);
    let pinned = of(&roomy.strategies, Strategy::PinAndStream);
    assert_eq!(pinned.verdict.help, Help::WouldNotHelp);
    assert!(
        pinned.verdict.reason.contains("(2.0 GiB) fit in memory"),
        "{}",
        pinned.verdict.reason
    );
}

#[test]
fn pinning_and_streaming_without_a_ring_is_pinning_and_is_called_so() {
    for machine in [machine(), Machine::new(0.0)] {
        let outlook = opportunities(&dense(), &[250 * MB], machine);
        let budget = &outlook.budgets[0];
        let kept = of(&budget.strategies, Strategy::Pin);
        let both = of(&budget.strategies, Strategy::PinAndStream);
        assert_eq!(kept.disk_bytes_per_token, Some(1800 * MB));
        assert_eq!(both.disk_bytes_per_token, kept.disk_bytes_per_token);
        assert_eq!(both.nanos_per_token, kept.nanos_per_token);
        assert_eq!(budget.best, Some(Strategy::Pin));
    }
}

#[test]
fn a_slow_processor_gains_nothing_from_fewer_reads() {
    let slow = Machine {
        compute_seconds_per_token: Some(9.0),
        ..machine()
    };
    let budget = [1301 * MB];
    let outlook = opportunities(&dense(), &budget, slow);
    let pinned = of(&outlook.budgets[0].strategies, Strategy::PinAndStream);
    assert!(pinned.disk_bytes_per_token < Some(2000 * MB));
    assert_eq!(pinned.verdict.help, Help::WouldNotHelp);
    assert_eq!(outlook.budgets[0].best, None);
    // By bytes alone it would seem to help.
    let bytes = opportunities(&dense(), &budget, Machine::new(0.0));
    assert_eq!(bytes.machine, None);
    assert_eq!(bytes.budgets[0].best, Some(Strategy::PinAndStream));
    let pinned = of(&bytes.budgets[0].strategies, Strategy::PinAndStream);
    assert_eq!(pinned.nanos_per_token, None);
    assert_eq!(
        pinned.verdict.reason,
        "reads 1000.0 MiB per token instead of 2.0 GiB"
    );
}

#[test]
fn experts_are_cached_behind_what_every_token_needs() {
    let sequence = moe(MB, &[0, 1, 0, 2, 0, 3, 0, 1]);
    // The dense tensor, and two experts in each layer, with what direct reads need more.
    let budgets = [MB, 11 * MB];
    let all = opportunities(&sequence, &budgets, machine());
    assert_eq!(all.expert_bytes, 16 * MB);
    assert_eq!(all.used_bytes_per_token, 6 * MB);
    let none = of(&all.budgets[0].strategies, Strategy::ExpertCache);
    assert_eq!(none.disk_bytes_per_token, None);
    let cached = of(&all.budgets[1].strategies, Strategy::ExpertCache);
    // Five of eight uses miss (0 1 2 3 and 1 again), four slices each.
    assert_eq!(cached.disk_bytes_per_token, Some(4 * MB * 5 / 8));
    assert_eq!(cached.routed_bytes_per_token, 4 * MB * 5 / 8);
    let caches = ExpertCaches::of(&routing_of(&sequence), Some(&[2])).unwrap();
    let hits = caches.points[0].per_layer;
    assert_eq!((hits.lru.run, caches.uses.run), (6, 16));
}

/// What the opportunities say is what a plan is made from, number by number.
#[test]
fn report_and_plan_predict_the_same() {
    let machine = machine().reading_ahead(Some(128 << 10), &[]);
    let mixture = moe(40 * MB, &[0, 1, 0, 2, 0, 3, 0, 1]);
    for sequence in [dense(), mixture] {
        let (weights, routing) = (weights_of(&sequence, None), routing_of(&sequence));
        let budgets = [100 * MB, 300 * MB, 500 * MB, 700 * MB, 1500 * MB];
        for budget in opportunities(&sequence, &budgets, machine).budgets {
            let ways = [
                (Strategy::Stream, (false, true, false)),
                (Strategy::Pin, (true, false, false)),
                (Strategy::PinAndStream, (true, true, false)),
                (Strategy::ExpertCache, (true, true, true)),
            ];
            for (strategy, (pin, stream, experts)) in ways {
                let answer = Question {
                    weights: &weights,
                    weights_bytes: budget.budget_bytes,
                    strategies: Strategies {
                        pin,
                        stream,
                        experts,
                    },
                    machine,
                    routing: Some(&routing),
                    policy: None,
                    tokens: None,
                }
                .answer();
                let stock = of(&budget.strategies, Strategy::PageCache);
                let predicted = answer.predicted;
                assert_eq!(
                    stock.disk_bytes_per_token,
                    Some(predicted.stock.bytes_read_per_token)
                );
                assert_eq!(stock.tokens_per_second, predicted.stock.tokens_per_second);
                let outlook = of(&budget.strategies, strategy);
                let helps = outlook.verdict.help == Help::Helps;
                if let Some(bytes) = outlook.disk_bytes_per_token {
                    assert_eq!(bytes, predicted.bytes_read_per_token);
                    assert_eq!(outlook.tokens_per_second, predicted.tokens_per_second);
                    assert_eq!(helps, answer.why_not.is_none());
                } else {
                    assert!(!helps);
                }
            }
        }
    }
}

#[test]
fn weights_of_a_run_are_used_as_the_run_did() {
    let mut sequence = moe(MB, &[3, 1, 1]);
    // A row of an embedding that is never read whole, before everything else.
    sequence
        .units
        .push(unit("token_embd.weight", 64 * MB, None));
    sequence.pieces.push(Piece {
        unit: sequence.units.len() as u32 - 1,
        extent: Extent::Part,
        bytes: 4096,
        first_run: 0,
        run_count: 1,
    });
    sequence.accesses[0] = sequence.pieces.len() as u32 - 1;
    sequence.evals[0].end_nanos = 3_000_000;
    sequence.evals[1].end_nanos = 1_000_000;
    sequence.evals[2].end_nanos = 2_000_000;
    let weights = weights_of(&sequence, None);
    let experts = Use::Experts {
        count: 4,
        used: 1,
        slice_bytes: MB,
    };
    let got: Vec<(&str, u64, Use)> = weights
        .iter()
        .map(|weight| (&*weight.name, weight.bytes, weight.usage))
        .collect();
    assert_eq!(
        got,
        [
            ("blk.0.attn_q.weight", 2 * MB, Use::Whole),
            ("token_embd.weight", 64 * MB, Use::Rows),
            ("blk.0.ffn_up_exps.weight", 4 * MB, experts),
            ("blk.0.ffn_down_exps.weight", 4 * MB, experts),
            ("blk.1.ffn_up_exps.weight", 4 * MB, experts),
            ("blk.1.ffn_down_exps.weight", 4 * MB, experts),
        ]
    );
    assert_eq!(weights[4].layer, Some(1));
    assert_eq!(compute_seconds(&sequence), Some(0.001));
}

#[test]
fn all_cache_results_come_at_once_and_serialise() {
    let sequence = moe(PAGE_BYTES, &[0, 1, 0, 2, 0, 3, 0, 1]);
    let json = serde_json::to_value(caches(&sequence, &[], machine())).unwrap();
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
    let outlook = &json["opportunities"]["budgets"][15]["strategies"][4];
    assert_eq!(outlook["strategy"], "expert_cache");
    assert_eq!(outlook["verdict"]["help"], "would_not_help");

    let prompt_only = caches(&cyclic(vec![unit("u", 10, None)], 1), &[], machine());
    assert_eq!(prompt_only.opportunities, None);
    assert_eq!(prompt_only.expert_caches, None);
}
