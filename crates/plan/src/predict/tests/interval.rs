//! How far predictions vary, and with what.

use super::*;
use crate::machine::{Spread, Varies};

#[test]
fn slots_fill_token_by_token() {
    let weights: Vec<Weight> = (0..4).map(|layer| experts(layer, 8, 2, MB)).collect();
    let choice = Choice {
        sliced: (0..4).collect(),
        experts: Some(ExpertMemory {
            pools: 4,
            slots: 4,
            bytes: 0,
        }),
        ..Choice::default()
    };
    let rate = |first, end| {
        let span = Some(TokenSpan { first, end });
        ExpertsOutlook::uniform(&weights, &choice, span).hit_rate
    };
    assert_eq!(rate(0, 1), 0.0);
    assert_eq!(rate(1, 2), 0.25);
    assert_eq!(rate(2, 3), 1.0 - 0.75 * 0.75);
    // Four of eight have a slot.
    assert_eq!(rate(9, 12), 0.5);
    let steady = ExpertsOutlook::uniform(&weights, &choice, None);
    assert_eq!((steady.hit_rate, steady.high), (0.5, 0.5));
}

#[test]
fn a_machine_that_does_not_vary_gives_a_point() {
    let (weights, choice, machine) = dense(0.5);
    let got = predict(&weights, &choice, &machine, None);
    assert_eq!(got.tokens_per_second_low, got.tokens_per_second);
    assert_eq!(got.tokens_per_second_high, got.tokens_per_second);
    assert_eq!(got.stock.tokens_per_second_low, got.stock.tokens_per_second);
}

#[test]
fn a_disk_that_varies_gives_an_interval() {
    let (weights, choice) = streamed(4, 300 * MB);
    let varies = Varies {
        disk: Spread {
            low: 0.5,
            high: 2.0,
        },
        ..Varies::default()
    };
    let machine = Machine::new(100e6).varying(varies);
    let got = predict(&weights, &choice, &machine, None);
    close(got.tokens_per_second, 0.25);
    close(got.tokens_per_second_low, 0.125);
    close(got.tokens_per_second_high, 0.5);
}

#[test]
fn computing_takes_longer_while_the_disk_is_read() {
    let machine = Machine {
        compute_while_reading: 1.5,
        ..slow(8.0)
    };
    let (weights, choice) = streamed(4, 300 * MB);
    // The disk is busy for 4 of t seconds: t = 8 + 8 * 0.5 * 4 / t.
    let got = predict(&weights, &choice, &machine, None);
    let seconds = got.seconds_per_token.unwrap();
    assert!((seconds - (4.0 + 32f64.sqrt())).abs() < 0.01, "{seconds}");
    // All of the time: it is the disk that is waited for.
    let machine = Machine {
        compute_seconds_per_token: Some(2.0),
        ..machine
    };
    close(
        predict(&weights, &choice, &machine, None).seconds_per_token,
        4.0,
    );
}

#[test]
fn the_disk_is_faster_while_computing_waits_for_it() {
    let (weights, choice) = streamed(4, 300 * MB);
    let machine = Machine {
        disk_while_waiting: 1.25,
        ..slow(2.0)
    };
    // 400 MB, of which 100 a second come in 2 s of computing and 125 a second in the rest.
    let got = predict(&weights, &choice, &machine, None);
    let seconds = got.seconds_per_token.unwrap();
    assert!((seconds - (2.0 + 200.0 / 125.0)).abs() < 0.02, "{seconds}");
    // Nothing waits for it.
    let machine = Machine {
        compute_seconds_per_token: Some(8.0),
        ..machine
    };
    close(
        predict(&weights, &choice, &machine, None).seconds_per_token,
        8.0,
    );
}

fn any_spread() -> impl Strategy<Value = Spread> {
    (0.1..=1.0f64, 1.0..=4.0f64).prop_map(|(low, high)| Spread { low, high })
}

proptest! {
    #[test]
    fn the_interval_holds_the_prediction(
        weights in prop::collection::vec(any_weight(), 1..40),
        weights_bytes in 1..1500 * MB,
        (compute, hit_rate) in (0.0..3.0f64, 0.0..1.0f64),
        (disk, read_latency, varying_compute) in (any_spread(), any_spread(), any_spread()),
        (early, late) in (0.0..1.0f64, 0.0..1.0f64),
    ) {
        let wanted = Wanted::new(weights_bytes, Strategies::ALL);
        let choice = choose(&weights, &wanted);
        let varies = Varies { disk, read_latency, compute: varying_compute, ..Varies::default() };
        let machine = Machine {
            compute_seconds_per_token: Some(compute),
            weights_bytes: Some(weights_bytes),
            ..Machine::new(500e6).varying(varies)
        };
        let outlook = ExpertsOutlook { hit_rate, low: early, high: late };
        let got = predict(&weights, &choice, &machine, Some(outlook));
        let of = |rate: Option<f64>| rate.unwrap_or(f64::INFINITY);
        prop_assert!(of(got.tokens_per_second_low) <= of(got.tokens_per_second));
        prop_assert!(of(got.tokens_per_second) <= of(got.tokens_per_second_high));
        let stock = got.stock;
        prop_assert!(of(stock.tokens_per_second_low) <= of(stock.tokens_per_second));
        prop_assert!(of(stock.tokens_per_second) <= of(stock.tokens_per_second_high));
    }

    #[test]
    fn more_memory_is_never_predicted_to_be_slower(
        layers in prop::collection::vec((1..20u64, 1..20u64), 1..20),
        (less, more) in (1..1500 * MB, 1..1500 * MB),
        (disk, compute) in (50e6..8e9f64, 0.0..1.0f64),
        (count, used) in (4..32u32, 1..4u32),
    ) {
        let mut weights = vec![];
        for (layer, &(dense, slice)) in layers.iter().enumerate() {
            weights.push(whole(dense * MB));
            weights.push(experts(layer as u32, count, used, slice * MB / 4));
        }
        let seconds = |weights_bytes: u64| {
            let question = crate::Question {
                weights: &weights,
                weights_bytes,
                strategies: Strategies::ALL,
                machine: Machine {
                    compute_seconds_per_token: Some(compute),
                    compute_while_reading: 1.1,
                    disk_while_waiting: 1.2,
                    ..Machine::new(disk)
                },
                routing: None,
                policy: None,
                tokens: None,
            };
            let predicted = question.answer().predicted;
            (predicted.seconds_per_token.unwrap_or(0.0), predicted.stock.tokens_per_second)
        };
        let (ours, stock) = seconds(less.min(more));
        let (ours_with_more, stock_with_more) = seconds(less.max(more));
        prop_assert!(ours_with_more <= ours * 1.02 + 1e-9, "{} > {}", ours_with_more, ours);
        let or_any = |rate: Option<f64>| rate.unwrap_or(f64::INFINITY);
        prop_assert!(or_any(stock) <= or_any(stock_with_more) * 1.0001);
    }
}
