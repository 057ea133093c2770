//! Choices for shapes of published models, and what holds for any.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const ALL: Strategies = Strategies {
    pin: true,
    stream: true,
    experts: true,
};

fn wanted(weights_bytes: u64, strategies: Strategies) -> Wanted {
    Wanted {
        weights_bytes,
        strategies,
        read_bytes: MIB,
        depth: 16,
        alignment_bytes: 4096,
    }
}

fn whole(name: &str, bytes: u64, layer: Option<u32>) -> Weight {
    Weight {
        name: name.to_owned(),
        bytes,
        layer,
        usage: Use::Whole,
        row_bytes: None,
    }
}

/// Llama 2 7B in q4_1: 4.2 GB.
fn llama() -> Vec<Weight> {
    let mut weights = vec![Weight {
        usage: Use::Rows,
        ..whole("token_embd", 81_920_000, None)
    }];
    for layer in 0..32 {
        weights.push(whole("attn_norm", 16_384, Some(layer)));
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            weights.push(whole(name, 10_485_760, Some(layer)));
        }
        weights.push(whole("ffn_norm", 16_384, Some(layer)));
        for name in ["ffn_gate", "ffn_up", "ffn_down"] {
            weights.push(whole(name, 28_180_480, Some(layer)));
        }
    }
    weights.push(whole("output_norm", 16_384, None));
    weights.push(whole("output", 81_920_000, None));
    weights
}

/// gpt-oss 20b: 12 GB, most of it experts.
fn gpt_oss() -> Vec<Weight> {
    let mut weights = vec![Weight {
        usage: Use::Rows,
        ..whole("token_embd", 1_158_266_880, None)
    }];
    for layer in 0..24 {
        weights.push(whole("attn_norm", 11_520, Some(layer)));
        weights.push(whole("attn_q", 12_533_760, Some(layer)));
        weights.push(whole("attn_output", 12_533_760, Some(layer)));
        for name in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
            weights.push(Weight {
                usage: Use::Experts {
                    count: 32,
                    used: 4,
                    slice_bytes: 4_406_400,
                },
                ..whole(name, 32 * 4_406_400, Some(layer))
            });
        }
    }
    weights.push(whole("output", 615_329_280, None));
    weights
}

fn total(weights: &[Weight], list: &[usize]) -> u64 {
    list.iter().map(|&i| weights[i].bytes).sum()
}

fn resident(weights: &[Weight], choice: &Choice, wanted: &Wanted) -> u64 {
    let pinned: u64 = choice
        .pinned
        .iter()
        .map(|&i| superset_bytes(weights[i].bytes, wanted.alignment_bytes))
        .sum();
    pinned + choice.ring_bytes + choice.experts.map_or(0, |experts| experts.bytes)
}

fn by_name(weights: &[Weight], list: &[usize], name: &str) -> usize {
    list.iter().filter(|&&i| weights[i].name == name).count()
}

#[test]
fn dense_model_streams_what_memory_cannot_hold() {
    let weights = llama();
    let all: u64 = weights[1..].iter().map(|weight| weight.bytes).sum();
    for (percent, ring_weight) in [
        (750, 10_485_760),
        (500, 28_180_480),
        (250, 28_180_480),
        (125, 28_180_480),
    ] {
        let wanted = wanted(all / 1000 * percent, ALL);
        let choice = choose(&weights, &wanted);
        assert_eq!(choice.mapped, [0], "{percent}");
        assert!(choice.sliced.is_empty(), "{percent}");
        assert_eq!(choice.experts, None);
        assert_eq!(by_name(&weights, &choice.pinned, "output"), 1);
        assert_eq!(by_name(&weights, &choice.pinned, "attn_norm"), 32);
        assert_eq!(choice.ring_bytes, 3 * superset_bytes(ring_weight, 4096));
        // No more memory is left over than the smallest weight streamed.
        let used = resident(&weights, &choice, &wanted);
        assert!(used <= wanted.weights_bytes);
        assert!(wanted.weights_bytes - used < superset_bytes(10_485_760, 4096));
        let best = all - (wanted.weights_bytes - choice.ring_bytes);
        let streamed = total(&weights, &choice.streamed);
        assert!(streamed >= best && streamed < best + 13 * MIB, "{percent}");
    }
}

#[test]
fn pins_are_spread_over_the_layers() {
    let weights = llama();
    let choice = choose(&weights, &wanted(2_000 * MIB, ALL));
    let per_layer: Vec<u64> = (0..32)
        .map(|layer| {
            let pins = choice.pinned.iter();
            pins.filter(|&&i| weights[i].layer == Some(layer))
                .map(|&i| weights[i].bytes)
                .sum()
        })
        .collect();
    let mean = per_layer.iter().sum::<u64>() / 32;
    for (layer, &bytes) in per_layer.iter().enumerate() {
        assert!(
            bytes.abs_diff(mean) <= 28_180_480,
            "layer {layer}: {bytes} of {mean}"
        );
    }
}

#[test]
fn experts_get_what_the_others_leave() {
    let weights = gpt_oss();
    let file: u64 = weights.iter().map(|weight| weight.bytes).sum();
    let slot = 3 * superset_bytes(4_406_400, 4096);
    let dense: u64 = weights
        .iter()
        .filter(|weight| weight.usage == Use::Whole)
        .map(|weight| superset_bytes(weight.bytes, 4096))
        .sum();
    for (percent, pools, slots) in [(500, 24, 15), (250, 24, 6), (125, 6, 4)] {
        let wanted = wanted(file / 1000 * percent, ALL);
        let choice = choose(&weights, &wanted);
        assert_eq!(choice.mapped, [0]);
        assert!(choice.streamed.is_empty());
        assert_eq!(choice.ring_bytes, 0);
        assert_eq!(choice.sliced.len(), 72);
        let experts = choice.experts.unwrap();
        assert_eq!((experts.pools, experts.slots), (pools, slots), "{percent}");
        assert_eq!(experts.bytes, u64::from(pools * slots) * slot);
        let left = wanted.weights_bytes - dense;
        assert!(experts.bytes <= left);
        assert!(left - experts.bytes < u64::from(pools.max(slots)) * slot);
    }
}

#[test]
fn everything_that_fits_is_pinned() {
    for weights in [llama(), gpt_oss()] {
        let choice = choose(&weights, &wanted(1 << 40, ALL));
        assert_eq!(choice.mapped, [0]);
        assert_eq!(choice.pinned.len(), weights.len() - 1);
        assert_eq!((choice.ring_bytes, choice.experts), (0, None));
    }
}

#[test]
fn without_memory_or_strategies_everything_stays_in_the_file() {
    let none = Strategies {
        pin: false,
        stream: false,
        experts: false,
    };
    for weights in [llama(), gpt_oss()] {
        for wanted in [wanted(0, ALL), wanted(1 << 40, none)] {
            let choice = choose(&weights, &wanted);
            assert_eq!(choice.mapped.len(), weights.len());
            assert_eq!((choice.ring_bytes, choice.experts), (0, None));
        }
    }
    // Some memory, but neither a ring nor a weight fits in it.
    let choice = choose(&llama(), &wanted(5 * MIB, ALL));
    assert_eq!(choice.pinned.len(), 65);
    assert_eq!(choice.mapped.len(), llama().len() - 65);
}

#[test]
fn strategies_that_are_off_are_not_used() {
    let weights = gpt_oss();
    let some = wanted(4_000 * MIB, ALL);
    let off = |change: fn(&mut Strategies)| {
        let mut wanted = some;
        change(&mut wanted.strategies);
        choose(&weights, &wanted)
    };

    let without_pins = off(|strategies| strategies.pin = false);
    assert!(total(&weights, &without_pins.pinned) < 24 * SMALL_BYTES);
    assert_eq!(without_pins.streamed.len(), 49);
    assert_eq!(
        without_pins.ring_bytes,
        3 * superset_bytes(615_329_280, 4096)
    );
    assert_eq!(without_pins.sliced.len(), 72);

    let without_streams = off(|strategies| {
        strategies.stream = false;
        strategies.experts = false;
    });
    assert_eq!(without_streams.ring_bytes, 0);
    assert!(without_streams.streamed.is_empty());
    // Others before experts, which a token reads in part.
    assert_eq!(by_name(&weights, &without_streams.pinned, "output"), 1);
    assert_eq!(by_name(&weights, &without_streams.pinned, "attn_q"), 24);
    assert!(by_name(&weights, &without_streams.mapped, "ffn_up_exps") > 0);

    let without_experts = off(|strategies| strategies.experts = false);
    assert_eq!(without_experts.experts, None);
    assert!(without_experts.sliced.is_empty());
    assert!(by_name(&weights, &without_experts.streamed, "ffn_up_exps") > 0);
    assert_eq!(without_experts.mapped, [0]);
}

#[test]
fn experts_without_their_least_slots_are_streamed_whole() {
    let mut weights = gpt_oss();
    weights.pop();
    let least = 4 * 3 * superset_bytes(4_406_400, 4096);
    let small = 24 * superset_bytes(11_520, 4096);
    let enough = choose(&weights, &wanted(small + least, ALL));
    assert_eq!(enough.sliced.len(), 72);
    let memory = enough.experts.unwrap();
    assert_eq!((memory.pools, memory.slots, memory.bytes), (1, 4, least));
    let too_little = choose(&weights, &wanted(small + least - 1, ALL));
    assert!(too_little.sliced.is_empty());
    assert_eq!(too_little.experts, None);
    // Whole experts do not fit in any ring; attention does.
    assert!(by_name(&weights, &too_little.streamed, "attn_q") > 0);
    assert_eq!(by_name(&weights, &too_little.mapped, "ffn_up_exps"), 24);
}

#[test]
fn weight_too_large_for_ring_and_pin_is_left_in_the_file() {
    let mut weights = llama();
    weights.push(whole("huge", 2_000 * MIB, None));
    let choice = choose(&weights, &wanted(1_500 * MIB, ALL));
    assert_eq!(choice.mapped, [0, weights.len() - 1]);
    assert_eq!(by_name(&weights, &choice.pinned, "output"), 1);
    assert_eq!(choice.ring_bytes, 3 * superset_bytes(28_180_480, 4096));
}

#[test]
fn layers_of_different_size_share_pools_of_the_larger() {
    let expert = |layer, slice_bytes| Weight {
        usage: Use::Experts {
            count: 8,
            used: 2,
            slice_bytes,
        },
        ..whole("exps", 8 * slice_bytes, Some(layer))
    };
    let weights = [
        expert(0, 8 * MIB),
        expert(1, 4 * MIB),
        expert(2, 4 * MIB),
        expert(3, 4 * MIB),
    ];
    let padded = |mib: u64| mib * MIB + 8192;
    let layers = layers_of(&weights, &[0, 1, 2, 3], 4096);
    assert_eq!(pool_slot_bytes(&layers, 4)[1], padded(4));
    assert_eq!(pool_slot_bytes(&layers, 2), [padded(8), padded(4)]);
    // A row of one slot in each of four pools is 20 MiB, in two pools 12 MiB.
    for (mib, expect) in [(105, (4, 5, 20)), (62, (4, 3, 20)), (30, (2, 2, 12))] {
        let memory = choose(&weights, &wanted(mib * MIB, ALL)).experts.unwrap();
        let (pools, slots, row) = expect;
        assert_eq!((memory.pools, memory.slots), (pools, slots), "{mib}");
        let padding = u64::from(pools) * 8192;
        assert_eq!(memory.bytes, u64::from(slots) * (row * MIB + padding));
    }
}

/// As in Gemma 3 270M: an output head of 178 MB beside layers of 3 MB.
#[test]
fn head_larger_than_the_memory_is_streamed_in_pieces() {
    const ROW: u64 = 680;
    let mut weights: Vec<Weight> = (0..18)
        .map(|layer| whole("ffn", 3 * MIB, Some(layer)))
        .collect();
    weights.push(Weight {
        row_bytes: Some(ROW),
        ..whole("head", 262_144 * ROW, None)
    });
    let wanted = wanted(64 * MIB, ALL);
    let choice = choose(&weights, &wanted);
    assert!(choice.streamed.contains(&18), "{choice:?}");
    assert!(choice.mapped.is_empty(), "{choice:?}");
    assert!(resident(&weights, &choice, &wanted) <= 64 * MIB);
    // In one piece it has no place.
    weights[18].row_bytes = None;
    let choice = choose(&weights, &wanted);
    assert_eq!(choice.mapped, [18]);
}

#[test]
fn the_least_that_is_enough_is_found_to_a_mebibyte() {
    let least = |max, enough| least_bytes(max, |bytes| bytes >= enough);
    assert_eq!(least(100 * MIB, 7 * MIB), Some(7 * MIB));
    assert_eq!(least(100 * MIB, 7 * MIB + 1), Some(8 * MIB));
    assert_eq!(least(100 * MIB - 5, 100 * MIB), Some(100 * MIB));
    assert_eq!(least(100 * MIB, 101 * MIB), None);
    assert_eq!(least(0, 1), None);
}

#[test]
fn pieces_are_rows_that_fit() {
    let matrix = |bytes, row_bytes| Weight {
        row_bytes,
        ..whole("matrix", bytes, None)
    };
    // Whole, where that fits.
    assert_eq!(
        matrix(MIB, Some(1000)).ring_bytes(2 * MIB, 4096),
        MIB + 8192
    );
    let piece = matrix(100 * MIB, Some(1000)).ring_bytes(MIB, 4096);
    // 1036 rows fit; four blocks of 256 are read.
    assert_eq!(piece, (1_024_000u64 + 8192).next_multiple_of(4096));
    assert_eq!(rows_per_piece(1000, MIB, 4096), Some(1024));
    assert_eq!(rows_per_piece(100_000, MIB, 4096), Some(10));
    // Not even one row; then all of it.
    assert_eq!(rows_per_piece(MIB, MIB, 4096), None);
    assert_eq!(rows_per_piece(0, MIB, 4096), None);
    let weight = matrix(10 * MIB, Some(2 * MIB));
    assert_eq!(weight.ring_bytes(MIB, 4096), 10 * MIB + 8192);
    assert_eq!(weight.min_ring_bytes(4096), 2 * MIB + 12288);
}

#[test]
fn contiguous_layers_share_a_pool() {
    let pools: Vec<usize> = (0..7).map(|index| pool_of(index, 7, 3)).collect();
    assert_eq!(pools, [0, 0, 0, 1, 1, 2, 2]);
}

fn any_weight() -> impl Strategy<Value = Weight> {
    let bytes = prop_oneof![
        2 => 0..SMALL_BYTES,
        5 => SMALL_BYTES..40 * MIB,
        3 => prop::sample::select(vec![10 * MIB, 28 * MIB]),
        1 => 40 * MIB..400 * MIB,
    ];
    (bytes, 0u8..12, 0u32..6, 1u32..40, 0u32..12).prop_map(|(bytes, kind, layer, count, used)| {
        match kind {
            0 => Weight {
                usage: Use::Rows,
                ..whole("rows", bytes, None)
            },
            1..=3 => Weight {
                usage: Use::Experts {
                    count,
                    used,
                    slice_bytes: bytes / u64::from(count),
                },
                ..whole("exps", bytes, Some(layer))
            },
            4..=7 => Weight {
                row_bytes: Some(1 + bytes / 1000),
                ..whole("matrix", bytes, Some(layer))
            },
            _ => whole("whole", bytes, Some(layer)),
        }
    })
}

fn any_wanted() -> impl Strategy<Value = Wanted> {
    let strategies = any::<(bool, bool, bool)>().prop_map(|(pin, stream, experts)| Strategies {
        pin,
        stream,
        experts,
    });
    let bytes = prop_oneof![0..2_000 * MIB, 0..20 * MIB];
    (bytes, strategies, 12u32..23, 1u32..64).prop_map(|(weights_bytes, strategies, read, depth)| {
        Wanted {
            weights_bytes,
            strategies,
            read_bytes: 1 << read,
            depth,
            alignment_bytes: 4096,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_choice_is_complete_and_keeps_to_its_memory(
        weights in prop::collection::vec(any_weight(), 0..60),
        wanted in any_wanted(),
    ) {
        let choice = choose(&weights, &wanted);
        let lists = [&choice.pinned, &choice.streamed, &choice.sliced, &choice.mapped];
        let mut seen: Vec<usize> = lists.into_iter().flatten().copied().collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..weights.len()).collect::<Vec<_>>());
        for list in lists {
            prop_assert!(list.is_sorted());
        }
        prop_assert!(resident(&weights, &choice, &wanted) <= wanted.weights_bytes);

        let offered = choice.ring_bytes / RING_WEIGHTS;
        let in_ring = |i: &usize| weights[*i].ring_bytes(offered, wanted.alignment_bytes);
        let largest = choice.streamed.iter().map(in_ring).max();
        match largest {
            Some(largest) => {
                prop_assert!(choice.ring_bytes >= RING_WEIGHTS * largest);
                let least = least_ring_bytes(wanted.read_bytes, wanted.depth);
                prop_assert!(choice.ring_bytes >= least);
            }
            None => prop_assert_eq!(choice.ring_bytes, 0),
        }

        for (index, weight) in weights.iter().enumerate() {
            if weight.usage == Use::Rows {
                prop_assert!(choice.mapped.contains(&index));
            }
        }
        let Strategies { pin, stream, experts } = wanted.strategies;
        prop_assert!(stream || choice.streamed.is_empty());
        prop_assert!(experts || choice.sliced.is_empty());
        prop_assert!(pin || choice.pinned.iter().all(|&i| weights[i].bytes < SMALL_BYTES));
    }

    #[test]
    fn slots_serve_every_layer(
        weights in prop::collection::vec(any_weight(), 0..60),
        wanted in any_wanted(),
    ) {
        let choice = choose(&weights, &wanted);
        prop_assert_eq!(choice.experts.is_some(), !choice.sliced.is_empty());
        let Some(memory) = choice.experts else { return Ok(()) };
        let layers = layers_of(&weights, &choice.sliced, wanted.alignment_bytes);
        prop_assert!(memory.pools >= 1 && memory.pools as usize <= layers.len());
        for layer in &layers {
            prop_assert!(memory.slots >= layer.used.max(1));
            prop_assert!(memory.slots <= layer.count);
        }
        let row: u64 = pool_slot_bytes(&layers, memory.pools).iter().sum();
        prop_assert_eq!(memory.bytes, row * u64::from(memory.slots));
        // Each pool has a layer, and one more pool would leave too few slots.
        prop_assert!(pool_slot_bytes(&layers, memory.pools).iter().all(|&slot| slot > 0));
    }

    #[test]
    fn more_memory_reads_no_more(
        weights in prop::collection::vec(any_weight(), 0..60),
        wanted in any_wanted(),
        more in 0..500 * MIB,
    ) {
        // With experts, memory may go to slots instead, which read slices.
        let mut less = wanted;
        less.strategies.experts = false;
        let more = Wanted { weights_bytes: less.weights_bytes + more, ..less };
        let largest = weights
            .iter()
            .map(|weight| superset_bytes(weight.bytes, less.alignment_bytes))
            .max()
            .unwrap_or(0);
        let (before, after) = (choose(&weights, &less), choose(&weights, &more));
        let (mapped_before, mapped_after) =
            (total(&weights, &before.mapped), total(&weights, &after.mapped));
        prop_assert!(mapped_after <= mapped_before + largest);
        // A ring for what was left in the file before may cost pins.
        if before.mapped != after.mapped {
            return Ok(());
        }
        let (read_before, read_after) =
            (total(&weights, &before.streamed), total(&weights, &after.streamed));
        prop_assert!(read_after <= read_before + largest, "{} then {}", read_before, read_after);
    }
}
