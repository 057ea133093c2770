//! Reuse distances and curves against references that are too simple to be wrong
//! and too slow to be used.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
};

use analysis::{
    cache_trace::{self, CacheTrace, Count, Counts, PAGE_BYTES, Scope, Use},
    curves::{Curves, LruCurve, even_budgets},
    pins::PinChoice,
    reuse::{ReuseTables, for_each_distance},
    sequence::Sequence,
};
use common::{cyclic, equal_trace, placed_sequence, unit};
use plan::belady::{self, Admission, NextUses};
use proptest::prelude::*;

const ONE: NonZeroUsize = NonZeroUsize::MIN;

/// Item, kind of use, bytes of a miss, and scope of each access.
fn spelled_out(trace: &CacheTrace) -> Vec<(usize, Use, u64, Scope)> {
    let scope = |at| match trace.generate.iter().any(|range| range.contains(&at)) {
        true => Scope::Generate,
        false => Scope::Run,
    };
    let accesses = trace.accesses.iter().enumerate();
    accesses
        .map(|(at, &number)| {
            let reference = trace.references[number as usize];
            (
                reference.item as usize,
                reference.kind,
                reference.bytes,
                scope(at),
            )
        })
        .collect()
}

fn count(counts: &mut Counts, scope: Scope, bytes: u64) {
    for count in match scope {
        Scope::Run => vec![&mut counts.run],
        Scope::Generate => vec![&mut counts.run, &mut counts.generate],
    } {
        count.accesses += 1;
        count.bytes += bytes;
    }
}

fn naive_distances(trace: &CacheTrace) -> Vec<Option<u64>> {
    let uses = spelled_out(trace);
    (0..uses.len())
        .map(|at| {
            let same = |b: &usize| uses[*b].0 == uses[at].0 && uses[*b].1 == Use::Whole;
            let last = (0..at).rev().find(same)?;
            let between: BTreeSet<usize> = uses[last + 1..at]
                .iter()
                .filter(|u| u.1 == Use::Whole)
                .map(|u| u.0)
                .collect();
            Some(between.iter().map(|&item| trace.item_bytes[item]).sum())
        })
        .collect()
}

/// Drops the least recently used until there is room.
fn naive_lru(trace: &CacheTrace, budget: u64) -> Counts {
    let mut missed = Counts::default();
    let mut cache: Vec<usize> = Vec::new(); // most recent last
    for (item, kind, bytes, scope) in spelled_out(trace) {
        let place = cache.iter().position(|&i| i == item);
        if place.is_none() {
            count(&mut missed, scope, bytes);
        }
        if kind == Use::Probe {
            continue;
        }
        if let Some(place) = place {
            cache.remove(place);
        }
        cache.push(item);
        while cache.iter().map(|&i| trace.item_bytes[i]).sum::<u64>() > budget {
            cache.remove(0);
        }
    }
    missed
}

/// Belady's rule by looking ahead through the whole trace.
fn naive_belady(trace: &CacheTrace, budget: u64, admission: Admission) -> Counts {
    let uses = spelled_out(trace);
    let next = |item: usize, after: usize| {
        let later = (after + 1..uses.len()).find(|&b| uses[b].0 == item && uses[b].1 == Use::Whole);
        later.unwrap_or(usize::MAX)
    };
    let mut missed = Counts::default();
    let mut cache: BTreeSet<usize> = BTreeSet::new();
    for (at, &(item, kind, bytes, scope)) in uses.iter().enumerate() {
        let is_hit = cache.contains(&item);
        if !is_hit {
            count(&mut missed, scope, bytes);
        }
        if kind == Use::Probe {
            continue;
        }
        if admission == Admission::Bypass {
            cache.retain(|&i| next(i, at) != usize::MAX);
        }
        let size = trace.item_bytes[item];
        let own = next(item, at);
        if is_hit || size > budget || (admission == Admission::Bypass && own == usize::MAX) {
            continue;
        }
        let mut after = cache.clone();
        let total = |set: &BTreeSet<usize>| set.iter().map(|&i| trace.item_bytes[i]).sum::<u64>();
        while total(&after) + size > budget {
            let Some(&farthest) = after.iter().max_by_key(|&&i| next(i, at)) else {
                break;
            };
            if admission == Admission::Bypass && next(farthest, at) < own {
                break;
            }
            after.remove(&farthest);
        }
        if total(&after) + size <= budget {
            after.insert(item);
            cache = after;
        }
    }
    missed
}

/// The fewest misses of any policy with bypass, by trying all cache contents.
fn fewest_misses(accesses: &[u32], items: u32, slots: u32) -> u64 {
    let sets: Vec<u32> = (0..1u32 << items)
        .filter(|s| s.count_ones() <= slots)
        .collect();
    let mut cost: BTreeMap<u32, u64> = BTreeMap::from([(0, 0)]);
    for &item in accesses {
        let mut after: BTreeMap<u32, u64> = BTreeMap::new();
        for (&set, &misses) in &cost {
            let misses = misses + u64::from(set & 1 << item == 0);
            for &kept in sets.iter().filter(|&&k| k & !(set | 1 << item) == 0) {
                let best = after.entry(kept).or_insert(u64::MAX);
                *best = (*best).min(misses);
            }
        }
        cost = after;
    }
    cost.into_values().min().unwrap_or(0)
}

/// Every page by itself, all of one size.
fn pages_one_by_one(sequence: &Sequence) -> CacheTrace<'static> {
    let mut numbers: BTreeMap<(i64, u64), u32> = BTreeMap::new();
    let (mut accesses, mut generate) = (Vec::new(), Vec::new());
    for eval in &sequence.evals {
        let first = accesses.len();
        for &piece in sequence.accesses_of(eval) {
            let piece = &sequence.pieces[piece as usize];
            let unit = &sequence.units[piece.unit as usize];
            // A weight in no file has an address space of its own.
            let space = unit.file.map_or(-1 - i64::from(piece.unit), i64::from);
            let base = unit.file_offset.unwrap_or(0);
            let mut touched = BTreeSet::new();
            for run in sequence.runs_of(piece) {
                let (start, end) = (base + run.offset, base + run.offset + run.bytes);
                touched.extend(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
            }
            for page in touched {
                let fresh = numbers.len() as u32;
                accesses.push(*numbers.entry((space, page)).or_insert(fresh));
            }
        }
        if eval.is_generate() {
            generate.push(first..accesses.len());
        }
    }
    let mut trace = CacheTrace::whole_items(vec![PAGE_BYTES; numbers.len()], accesses);
    trace.generate = generate;
    trace
}

fn lru(trace: &CacheTrace, budget: u64) -> Counts {
    let reuse = ReuseTables::of(trace);
    Counts {
        run: LruCurve::of(&reuse.run).misses(budget),
        generate: LruCurve::of(&reuse.generate).misses(budget),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn reuse_distance_is_the_distinct_bytes_between(trace in common::cache_trace()) {
        let mut distances = Vec::new();
        for_each_distance(&trace, |_, _, distance| distances.push(distance));
        let naive = naive_distances(&trace);
        prop_assert_eq!(&distances, &naive);

        let table = ReuseTables::of(&trace).run;
        let mut sorted: Vec<u64> = naive.iter().flatten().copied().collect();
        sorted.sort_unstable();
        prop_assert_eq!(table.reused().accesses, sorted.len() as u64);
        prop_assert_eq!(table.cold.accesses as usize, naive.len() - sorted.len());
        let histogram = table.histogram();
        for bucket in &histogram.buckets {
            let inside = |d: &&u64| bucket.from_bytes <= **d && **d < bucket.to_bytes;
            prop_assert_eq!(bucket.accesses as usize, sorted.iter().filter(inside).count());
        }
        prop_assert_eq!(
            histogram.buckets.iter().map(|b| b.accesses).sum::<u64>(),
            sorted.len() as u64
        );
        for quantile in &histogram.quantiles {
            let at = ((quantile.share * sorted.len() as f64).ceil() as usize).max(1) - 1;
            prop_assert_eq!(quantile.distance_bytes, sorted[at]);
        }
    }

    #[test]
    fn lru_curve_is_an_lru_cache_of_every_size(trace in common::cache_trace()) {
        for budget in 0..90 {
            prop_assert_eq!(lru(&trace, budget), naive_lru(&trace, budget));
        }
    }

    #[test]
    fn belady_is_the_rule_that_looks_ahead(trace in common::cache_trace(), budget in 0u64..60) {
        let check = |trace: &CacheTrace, admission| {
            let misses = belady::misses(trace, &NextUses::of(trace), budget, admission);
            prop_assert_eq!(misses, naive_belady(trace, budget, admission));
            Ok(())
        };
        check(&trace, Admission::Bypass)?;
        // Which of the items that are never used again goes first is open, and a
        // probe would see it: whole uses only.
        let items = trace.item_bytes.len() as u32;
        let whole = trace.accesses.iter().map(|number| number % items).collect();
        let whole = CacheTrace::whole_items(trace.item_bytes.clone(), whole);
        check(&whole, Admission::Bypass)?;
        check(&whole, Admission::Always)?;
    }

    #[test]
    fn atoms_behave_as_their_pages_do(sequence in placed_sequence(), budget in 0u64..60) {
        let atoms = cache_trace::pages(&sequence).unwrap();
        let pages = pages_one_by_one(&sequence);
        let budget = budget * PAGE_BYTES + 17;
        prop_assert_eq!(atoms.totals(), pages.totals());
        prop_assert_eq!(atoms.footprint_bytes(), pages.footprint_bytes());
        prop_assert_eq!(lru(&atoms, budget), naive_lru(&pages, budget));
        prop_assert_eq!(
            belady::misses(&atoms, &NextUses::of(&atoms), budget, Admission::Bypass),
            naive_belady(&pages, budget, Admission::Bypass)
        );
        for scope in [Scope::Run, Scope::Generate] {
            prop_assert_eq!(
                PinChoice::of(&atoms).within(budget, scope).misses.of(scope),
                PinChoice::of(&pages).within(budget, scope).misses.of(scope)
            );
        }
    }

    #[test]
    fn pins_are_read_once_and_the_rest_each_time(trace in common::cache_trace(), budget in 0u64..60) {
        let set = PinChoice::of(&trace).within(budget, Scope::Run);
        let is_pinned = |item| set.items.contains(&(item as u32));
        let pinned: u64 = set.items.iter().map(|&i| trace.item_bytes[i as usize]).sum();
        prop_assert_eq!(pinned, set.pinned_bytes);
        prop_assert!(pinned <= budget);
        let mut loaded = BTreeSet::new();
        let mut bytes = 0;
        for (item, _, read, _) in spelled_out(&trace) {
            if !is_pinned(item) {
                bytes += read;
            } else if loaded.insert(item) {
                bytes += trace.item_bytes[item];
            }
        }
        prop_assert_eq!(set.misses.run.bytes, bytes);
    }

    #[test]
    fn equal_pins_are_the_best_static_choice(trace in equal_trace(), slots in 0u64..12) {
        let mut uses = vec![0u64; trace.item_bytes.len()];
        trace.accesses.iter().for_each(|&item| uses[item as usize] += 1);
        let mut saved: Vec<u64> = uses.iter().map(|&n| n.saturating_sub(1)).collect();
        saved.sort_unstable_by(|a, b| b.cmp(a));
        let best: u64 = saved.iter().take(slots as usize).sum();
        let set = PinChoice::of(&trace).within(slots, Scope::Run);
        prop_assert_eq!(set.misses.run.accesses, trace.accesses.len() as u64 - best);
    }

    #[test]
    fn curves_fall_with_memory_and_keep_their_order(sequence in placed_sequence()) {
        let trace = cache_trace::pages(&sequence).unwrap();
        let budgets = even_budgets(trace.footprint_bytes(), 9);
        let curves = Curves::of(&trace, &budgets, NonZeroUsize::new(3).unwrap());
        prop_assert_eq!(&curves, &Curves::of(&trace, &budgets, ONE));
        prop_assert_eq!(curves.total, trace.totals());
        for pair in curves.points.windows(2) {
            prop_assert!(pair[0].lru.run.bytes >= pair[1].lru.run.bytes);
            prop_assert!(pair[0].belady.run.bytes >= pair[1].belady.run.bytes);
            prop_assert!(pair[0].pin_and_stream.run.bytes >= pair[1].pin_and_stream.run.bytes);
        }
        for point in &curves.points {
            prop_assert!(point.belady.run.bytes <= point.lru.run.bytes);
            prop_assert!(point.belady.run.bytes <= point.pin_and_stream.run.bytes);
            prop_assert!(point.belady.run.bytes >= curves.cold.run.bytes);
        }
        if let Some(last) = curves.points.last() {
            prop_assert_eq!(last.lru.run, curves.cold.run);
            prop_assert_eq!(last.belady.run, curves.cold.run);
            prop_assert_eq!(last.pin_and_stream.run, curves.cold.run);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn belady_with_equal_sizes_is_the_optimum(
        accesses in prop::collection::vec(0u32..5, 0..40),
        slots in 1u32..5,
    ) {
        let trace = CacheTrace::whole_items(vec![1; 5], accesses.clone());
        let next_uses = NextUses::of(&trace);
        let misses = belady::misses(&trace, &next_uses, u64::from(slots), Admission::Bypass);
        prop_assert_eq!(misses.run.accesses, fewest_misses(&accesses, 5, slots));
    }
}

/// Enough uses to renumber time many times over.
#[test]
fn long_traces_keep_exact_distances() {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let items = 150usize;
    let sizes: Vec<u64> = (0..items).map(|_| 1 + random(1000)).collect();
    let accesses = (0..5000)
        .map(|_| (random(150) * random(150) / 150) as u32)
        .collect();
    let trace = CacheTrace::whole_items(sizes, accesses);
    let mut distances = Vec::new();
    for_each_distance(&trace, |_, _, distance| distances.push(distance));
    assert_eq!(distances, naive_distances(&trace));
}

/// Long enough that next uses spread over all levels of the sums that tell whether
/// there is room.
#[test]
fn long_traces_keep_the_rule() {
    let mut state = 3u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let items = 14usize;
    let sizes: Vec<u64> = (0..items).map(|_| 1 + random(100)).collect();
    // The second half of the items is used once in a hundred thousand times.
    let mut accesses: Vec<u32> = Vec::new();
    for _ in 0..600_000 {
        let rare = random(15_000) == 0;
        accesses.push((random(7) + if rare { 7 } else { 0 }) as u32);
    }
    let mut next = vec![usize::MAX; accesses.len()];
    let mut upcoming = vec![usize::MAX; items];
    for (at, &item) in accesses.iter().enumerate().rev() {
        next[at] = upcoming[item as usize];
        upcoming[item as usize] = at;
    }
    let trace = CacheTrace::whole_items(sizes.clone(), accesses.clone());
    let next_uses = NextUses::of(&trace);
    let total: u64 = sizes.iter().sum();
    for budget in [total / 5, total / 2, total * 4 / 5] {
        let mut cache: BTreeMap<usize, usize> = BTreeMap::new();
        let mut misses = 0;
        for (at, &item) in accesses.iter().enumerate() {
            let is_hit = cache.remove(&(item as usize)).is_some();
            misses += u64::from(!is_hit);
            if next[at] == usize::MAX {
                continue;
            }
            let used =
                |cache: &BTreeMap<usize, usize>| cache.keys().map(|&i| sizes[i]).sum::<u64>();
            let mut after = cache.clone();
            while used(&after) + sizes[item as usize] > budget {
                let Some((&victim, &when)) = after.iter().max_by_key(|(_, when)| **when) else {
                    break;
                };
                if when < next[at] {
                    break;
                }
                after.remove(&victim);
            }
            if used(&after) + sizes[item as usize] <= budget {
                after.insert(item as usize, next[at]);
                cache = after;
            }
        }
        let ours = belady::misses(&trace, &next_uses, budget, Admission::Bypass);
        assert_eq!(ours.run.accesses, misses, "budget {budget}");
        assert!(misses > items as u64 && misses < accesses.len() as u64);
    }
}

#[test]
fn a_cyclic_scan_defeats_lru_and_pinning_saves_what_it_pins() {
    let page = PAGE_BYTES;
    let units = (0..10).map(|i| unit(&format!("u{i}"), 4 * page, Some(i * 4 * page)));
    let sequence = cyclic(units.collect(), 11);
    let whole = 40 * page;
    for trace in [
        cache_trace::units(&sequence),
        cache_trace::pages(&sequence).unwrap(),
    ] {
        let curves = Curves::of(&trace, &[whole / 2, whole - 1, whole], ONE);
        let [half, nearly, all] = curves.points[..] else {
            panic!("three points")
        };
        assert_eq!(half.lru.generate.bytes, 10 * whole);
        assert_eq!(half.pin_and_stream.generate.bytes, 10 * whole / 2);
        assert_eq!(half.belady.generate.bytes, 10 * whole / 2);
        assert_eq!(nearly.lru.generate.bytes, 10 * whole);
        assert_eq!(all.lru.generate, Count::default());
        assert_eq!(all.lru.run.bytes, whole);
    }
}

#[test]
fn pins_are_spread_along_the_run() {
    let units = (0..12).map(|i| unit(&format!("u{i}"), 100, Some(i * 100)));
    let sequence = cyclic(units.collect(), 3);
    let trace = cache_trace::units(&sequence);
    let set = PinChoice::of(&trace).within(400, Scope::Generate);
    assert_eq!(set.items.len(), 4);
    let gaps: Vec<u32> = set.items.windows(2).map(|w| w[1] - w[0]).collect();
    assert_eq!(gaps, [3, 3, 3]);
}
