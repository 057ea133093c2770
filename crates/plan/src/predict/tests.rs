//! Predictions against times worked out by hand.

mod interval;

use proptest::prelude::*;

use super::*;
use crate::choose::{ExpertMemory, Strategies, Wanted, choose};
use crate::machine::{FAULT_EFFICIENCY, SCATTERED_FAULT_EFFICIENCY};

const MB: u64 = 1_000_000;

fn whole(bytes: u64) -> Weight {
    Weight {
        name: "w".to_owned(),
        bytes,
        layer: None,
        usage: Use::Whole,
        row_bytes: None,
    }
}

fn experts(layer: u32, count: u32, used: u32, slice_bytes: u64) -> Weight {
    Weight {
        layer: Some(layer),
        usage: Use::Experts {
            count,
            used,
            slice_bytes,
        },
        ..whole(u64::from(count) * slice_bytes)
    }
}

/// 100 MB a second, no latency.
fn slow(compute: f64) -> Machine {
    Machine {
        read_latency_seconds: 0.0,
        compute_seconds_per_token: Some(compute),
        ..Machine::new(100e6)
    }
}

fn close(got: Option<f64>, expect: f64) {
    let got = got.unwrap();
    assert!((got - expect).abs() < 1e-9, "{got} instead of {expect}");
}

fn streamed(weights: usize, ring_bytes: u64) -> (Vec<Weight>, Choice) {
    let choice = Choice {
        streamed: (0..weights).collect(),
        ring_bytes,
        ..Choice::default()
    };
    (vec![whole(100 * MB); weights], choice)
}

#[test]
fn streaming_alone_takes_the_disk_s_time() {
    let (weights, choice) = streamed(4, 300 * MB);
    let machine = Machine::new(100e6);
    let got = predict(&weights, &choice, &machine, None);
    assert_eq!(got.weight_bytes, 400 * MB);
    assert_eq!(got.pinned_bytes, 0);
    assert_eq!(got.bytes_read_per_token, 400 * MB);
    close(got.seconds_per_token, 4.0);
    close(got.tokens_per_second, 0.25);
    // The ring's 300 of the 400 MB count as kept.
    close(got.ceiling_tokens_per_second, 1.0);
    assert_eq!(got.limited_by, LimitedBy::Disk);
    // A page cache of 300 MB reads all of a scan of 400 MB, at 60 MB a second.
    assert_eq!(got.stock.bytes_read_per_token, 400 * MB);
    close(got.stock.tokens_per_second, 60.0 / 400.0);
}

#[test]
fn reading_overlaps_computing_as_far_as_the_ring_allows() {
    let check = |ring_weights: u64, compute: f64, expect: f64, limited_by: LimitedBy| {
        let (weights, choice) = streamed(4, ring_weights * 100 * MB);
        let got = predict(&weights, &choice, &slow(compute), None);
        close(got.seconds_per_token, expect);
        assert_eq!(got.limited_by, limited_by);
    };
    check(3, 2.0, 4.0, LimitedBy::Disk);
    check(3, 8.0, 8.0, LimitedBy::Compute);
    // Room for one: each is read only when the one before is computed.
    check(1, 8.0, 4.0 * (1.0 + 2.0), LimitedBy::Disk);
    check(1, 2.0, 4.0 * (1.0 + 0.5), LimitedBy::Disk);
}

#[test]
fn spread_pins_overlap_better_than_clumped_ones() {
    let weights = vec![whole(100 * MB); 6];
    let check = |pinned: [usize; 3], streamed: [usize; 3], expect| {
        let choice = Choice {
            pinned: pinned.to_vec(),
            streamed: streamed.to_vec(),
            ring_bytes: 200 * MB,
            ..Choice::default()
        };
        let got = predict(&weights, &choice, &slow(6.0), None);
        close(got.seconds_per_token, expect);
        assert_eq!(got.pinned_bytes, 300 * MB);
    };
    // Reading two overlaps the three pins; the third has room only after the second.
    check([3, 4, 5], [0, 1, 2], 7.0);
    check([1, 3, 5], [0, 2, 4], 6.0);
}

/// One pinned weight, and one layer of three weights of which 2 of 4 slices are used.
fn moe() -> (Vec<Weight>, Choice) {
    let mut weights = vec![whole(100 * MB)];
    weights.extend((0..3).map(|_| experts(0, 4, 2, 50 * MB)));
    let choice = Choice {
        pinned: vec![0],
        sliced: vec![1, 2, 3],
        experts: Some(ExpertMemory {
            pools: 1,
            slots: 2,
            bytes: 300 * MB,
        }),
        ..Choice::default()
    };
    (weights, choice)
}

#[test]
fn last_slices_arrive_while_the_others_are_computed() {
    let (weights, choice) = moe();
    let machine = Machine {
        read_latency_seconds: 0.4,
        ..slow(4.0)
    };
    let got = predict(&weights, &choice, &machine, Some(0.5.into()));
    // Pinned: 1 s. Latency where not both hit: 0.75 * 0.4. Two weights, 2 * 0.5 slices of
    // each: 1 s; the third comes while they are computed (2 s), then takes 1 s.
    close(got.seconds_per_token, 1.0 + 0.3 + 1.0 + 2.0 + 1.0);
    assert_eq!(got.bytes_read_per_token, 150 * MB);
    assert_eq!(got.weight_bytes, 700 * MB);
    assert_eq!(got.limited_by, LimitedBy::ExpertReads);
    close(got.ceiling_tokens_per_second, 0.25);
}

#[test]
fn experts_that_always_hit_cost_nothing() {
    let (weights, choice) = moe();
    let got = predict(&weights, &choice, &slow(4.0), Some(1.0.into()));
    close(got.seconds_per_token, 4.0);
    assert_eq!(got.bytes_read_per_token, 0);
    assert_eq!(got.limited_by, LimitedBy::Compute);
}

#[test]
fn ring_gets_what_expert_reads_leave_of_the_disk() {
    let weights = [whole(100 * MB), experts(0, 2, 1, 100 * MB)];
    let choice = Choice {
        streamed: vec![0],
        sliced: vec![1],
        ring_bytes: 300 * MB,
        experts: Some(ExpertMemory {
            pools: 1,
            slots: 1,
            bytes: 100 * MB,
        }),
        ..Choice::default()
    };
    let got = predict(&weights, &choice, &slow(0.0), Some(0.0.into()));
    close(got.seconds_per_token, 2.0);
    assert_eq!(got.bytes_read_per_token, 200 * MB);
    // Computing leaves the disk time for the ring: 1 s of slices, 3 s of computing.
    let got = predict(&weights, &choice, &slow(3.0), Some(0.0.into()));
    close(got.seconds_per_token, 4.0);
}

#[test]
fn evenly_used_experts_hit_by_their_share_of_slots() {
    let weights: Vec<Weight> = (0..24).map(|layer| experts(layer, 32, 4, MB)).collect();
    let check = |pools, slots, expect: f64| {
        let choice = Choice {
            sliced: (0..24).collect(),
            experts: Some(ExpertMemory {
                pools,
                slots,
                bytes: 0,
            }),
            ..Choice::default()
        };
        let outlook = ExpertsOutlook::uniform(&weights, &choice, None);
        assert_eq!(outlook.hit_rate, expect);
        let got = predict(&weights, &choice, &slow(0.0), None);
        let missed = 24.0 * 4.0 * 1e6 * (1.0 - expect);
        assert_eq!(got.bytes_read_per_token, missed as u64);
    };
    check(24, 16, 0.5);
    check(24, 4, 0.125);
    // Four layers push each other out of one pool.
    check(6, 4, 0.0);
    assert_eq!(
        ExpertsOutlook::uniform(&[], &Choice::default(), None).hit_rate,
        0.0
    );
}

#[test]
fn stock_keeps_a_scan_only_when_it_fits() {
    let weights = vec![whole(100 * MB); 9];
    let choice = Choice {
        mapped: (0..9).collect(),
        ..Choice::default()
    };
    for (memory, expect) in [(900, 0.0), (850, 900.0), (100, 900.0)] {
        let machine = Machine {
            weights_bytes: Some(memory * MB),
            ..slow(0.0)
        };
        let got = predict(&weights, &choice, &machine, None);
        assert_eq!(got.stock.bytes_read_per_token, (expect * 1e6) as u64);
        match expect > 0.0 {
            true => close(got.seconds_per_token, expect / 60.0),
            false => assert_eq!(got.seconds_per_token, None),
        }
    }
}

#[test]
fn stock_keeps_what_every_token_uses_and_some_experts() {
    // 100 MB always, 200 of 800 MB of experts.
    let weights = [whole(100 * MB), experts(0, 8, 2, 100 * MB)];
    let check = |memory: u64, amplification: f64, (whole, experts): (f64, f64)| {
        let machine = Machine {
            weights_bytes: Some(memory * MB),
            stock_amplification: amplification,
            ..slow(0.0)
        };
        let choice = Choice {
            mapped: vec![0, 1],
            ..Choice::default()
        };
        let got = predict(&weights, &choice, &machine, None);
        let bytes = ((whole + experts) * 1e6).round() as u64;
        assert_eq!(got.stock.bytes_read_per_token, bytes);
        // All is left to the page cache: the same as stock.
        assert_eq!(got.bytes_read_per_token, got.stock.bytes_read_per_token);
        let seconds =
            whole / (100.0 * FAULT_EFFICIENCY) + experts / (100.0 * SCATTERED_FAULT_EFFICIENCY);
        match seconds > 0.0 {
            true => {
                close(got.seconds_per_token, seconds);
                close(got.stock.tokens_per_second.map(f64::recip), seconds);
            }
            false => assert_eq!(got.seconds_per_token, None),
        }
    };
    check(900, 1.0, (0.0, 0.0));
    // Room for three quarters of the experts, a half, none.
    check(700, 1.0, (0.0, 50.0));
    check(500, 2.0, (0.0, 200.0));
    check(100, 1.0, (0.0, 200.0));
    // Not even for what every token uses.
    check(50, 1.0, (100.0, 200.0));
    // Never more than all of them.
    check(50, 9.0, (100.0, 800.0));
}

#[test]
fn everything_in_memory_runs_at_the_speed_of_computing() {
    let weights = vec![whole(100 * MB); 3];
    let choice = Choice {
        pinned: vec![0, 1, 2],
        ..Choice::default()
    };
    let got = predict(&weights, &choice, &slow(2.0), None);
    assert_eq!(got.bytes_read_per_token, 0);
    assert_eq!(got.stock.bytes_read_per_token, 0);
    assert_eq!(got.limited_by, LimitedBy::Compute);
    close(got.seconds_per_token, 2.0);
    close(got.ceiling_tokens_per_second, 0.5);
    close(got.stock.tokens_per_second, 0.5);
    let nothing_known = predict(&weights, &choice, &Machine::new(100e6), None);
    assert_eq!(nothing_known.tokens_per_second, None);
}

#[test]
fn disk_of_unknown_speed_gives_no_times() {
    let (weights, choice) = streamed(4, 300 * MB);
    for rate in [0.0, -1.0, f64::NAN] {
        let got = predict(
            &weights,
            &choice,
            &Machine::new(rate),
            Some(f64::NAN.into()),
        );
        assert_eq!(got.bytes_read_per_token, 400 * MB);
        assert_eq!(got.seconds_per_token, None, "{rate}");
        assert_eq!(got.stock.tokens_per_second, None, "{rate}");
    }
}

/// The dense model and the disk of DESIGN.md: 3.9 GB, 3.1 GB/s, 0.35 s in memory.
fn dense(share: f64) -> (Vec<Weight>, Choice, Machine) {
    let mut weights = vec![];
    for _ in 0..32 {
        weights.extend([10 * MB; 4].map(whole));
        weights.extend([27 * MB; 3].map(whole));
    }
    weights.push(whole(80 * MB));
    let all: u64 = weights.iter().map(|weight| weight.bytes).sum();
    let wanted = Wanted {
        weights_bytes: (all as f64 * share) as u64,
        strategies: Strategies {
            pin: true,
            stream: true,
            experts: true,
        },
        read_bytes: 1 << 20,
        depth: 16,
        alignment_bytes: 4096,
    };
    let machine = Machine {
        compute_seconds_per_token: Some(0.35),
        weights_bytes: Some(wanted.weights_bytes),
        ..Machine::new(3.1e9)
    };
    let choice = choose(&weights, &wanted);
    (weights, choice, machine)
}

#[test]
fn dense_model_runs_near_the_speed_of_the_disk() {
    // Measured: 0.53, 0.62, 0.92, 1.00 s with this memory and 150 MB more; stock about 1.8.
    for (share, least, most) in [
        (0.75, 0.35, 0.45),
        (0.5, 0.60, 0.72),
        (0.25, 0.90, 1.05),
        (0.125, 1.05, 1.20),
    ] {
        let (weights, choice, machine) = dense(share);
        let got = predict(&weights, &choice, &machine, None);
        let seconds = got.seconds_per_token.unwrap();
        assert!((least..most).contains(&seconds), "{share}: {seconds}");
        let disk = got.bytes_read_per_token as f64 / 3.1e9;
        assert!(seconds >= disk && seconds <= disk.max(0.35) * 1.05);
        assert!(got.tokens_per_second <= got.ceiling_tokens_per_second);
        let stock = got.stock.tokens_per_second.unwrap().recip();
        assert!((2.0..2.2).contains(&stock), "{share}: {stock}");
        assert_eq!(why_not(&weights, &choice, &machine, &got), None);
    }
}

#[test]
fn plan_that_does_not_help_says_why() {
    let check = |weights: &[Weight], choice: &Choice, machine: &Machine, reason: &str| {
        let predicted = predict(weights, choice, machine, None);
        let got = why_not(weights, choice, machine, &predicted).unwrap();
        assert_eq!(got, reason);
    };
    let (weights, choice, machine) = dense(0.5);
    let ample = Machine {
        weights_bytes: Some(5_000 * MB),
        ..machine
    };
    let fits = "all weights (3.7 GiB) fit in memory: without a plan they stay there, too";
    check(&weights, &choice, &ample, fits);
    let (_, all_pinned, _) = dense(1.1);
    let unknown = Machine {
        weights_bytes: None,
        ..machine
    };
    check(&weights, &all_pinned, &unknown, fits);

    let in_memory = Machine {
        disk_bytes_per_second: 40e9,
        ..machine
    };
    let reason = "no disk reads 37.3 GiB a second: the model's file lies in memory already";
    check(&weights, &choice, &in_memory, reason);

    let (_, nothing, machine_without) = dense(0.001);
    let reason = "nothing can be kept or streamed with 3.8 MiB for weights of 3.7 GiB";
    check(&weights, &nothing, &machine_without, reason);

    let slow = Machine {
        compute_seconds_per_token: Some(9.0),
        ..machine
    };
    let stock_seconds = four_digits(3_952e6 / (3.1e9 * 0.6));
    let reason = format!(
        "computing a token takes 9 s, and reading its weights {stock_seconds} s without a plan"
    );
    check(&weights, &choice, &slow, &reason);

    // A ring for one weight, and a page cache that is as fast as the disk.
    let (weights, choice) = streamed(4, 100 * MB);
    let machine = Machine {
        fault_efficiency: 1.0,
        compute_seconds_per_token: Some(2.0),
        ..Machine::new(100e6)
    };
    let reason = "it would give 0.1667 tokens a second, and 0.25 come without a plan";
    check(&weights, &choice, &machine, reason);
    let unknown_disk = Machine::new(0.0);
    let reason = "it would read 381.5 MiB for a token, and 381.5 MiB are read without a plan";
    check(&weights, &choice, &unknown_disk, reason);
}

#[test]
fn memory_s_speed_bounds_a_token_too() {
    let (weights, choice) = streamed(4, 300 * MB);
    let machine = |rate| Machine {
        memory_bytes_per_second: Some(rate),
        ..slow(2.0)
    };
    let seconds = |rate| predict(&weights, &choice, &machine(rate), None).seconds_per_token;
    close(seconds(1e9), 4.0);
    close(seconds(50e6), 8.0);
}

#[test]
fn rounded_predictions_have_four_digits() {
    let (weights, choice) = streamed(3, 300 * MB);
    let got = predict(&weights, &choice, &Machine::new(100e6), None).rounded();
    assert_eq!(got.tokens_per_second, Some(0.3333));
    assert_eq!(four_digits(123_456.0), 123_500.0);
    assert_eq!(four_digits(0.0), 0.0);
}

fn any_weight() -> impl Strategy<Value = Weight> {
    (1..60u64, 0..5u32, 1..9u32, 1..9u32).prop_map(|(mb, layer, count, used)| {
        if mb % 3 == 0 {
            experts(layer, count.max(used), count.min(used), mb * MB)
        } else {
            whole(mb * MB)
        }
    })
}

proptest! {
    #[test]
    fn no_prediction_beats_disk_or_compute(
        weights in prop::collection::vec(any_weight(), 1..40),
        weights_bytes in 1..1500 * MB,
        compute in 0.0..3.0f64,
        hit_rate in 0.0..1.0f64,
        (pin, stream, experts) in any::<(bool, bool, bool)>(),
    ) {
        let wanted = Wanted {
            weights_bytes,
            strategies: Strategies { pin, stream, experts },
            read_bytes: 1 << 20,
            depth: 8,
            alignment_bytes: 4096,
        };
        let choice = choose(&weights, &wanted);
        let machine = Machine {
            compute_seconds_per_token: Some(compute),
            weights_bytes: Some(weights_bytes),
            ..Machine::new(500e6)
        };
        let got = predict(&weights, &choice, &machine, Some(hit_rate.into()));
        let seconds = got.seconds_per_token.unwrap_or(0.0);
        let disk = got.bytes_read_per_token as f64 / 500e6;
        prop_assert!(seconds >= compute * 0.999, "{} < {}", seconds, compute);
        prop_assert!(seconds >= disk * 0.999, "{} < {}", seconds, disk);
        prop_assert!(got.tokens_per_second <= got.ceiling_tokens_per_second.map(|c| c * 1.001));
        // Nothing takes longer than one after the other, page faults at their speed.
        let waits = 5.0 * machine.read_latency_seconds;
        prop_assert!(seconds <= compute + disk / SCATTERED_FAULT_EFFICIENCY + waits + 1e-6);
        prop_assert!(got.pinned_bytes <= got.weight_bytes);
        prop_assert_eq!(got, predict(&weights, &choice, &machine, Some(hit_rate.into())));
    }
}
