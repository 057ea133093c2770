//! Bytes and seconds per token that follow from a choice.
//!
//! Bytes follow from the choice alone. Seconds come from walking one token's weights
//! against a disk of constant speed (`simulate`), so that a small ring, pins in the
//! wrong place and the wait after a router all show. Three times: with the machine and the
//! experts' slots (`outlook`) as they usually are, at their worst and at their best; the
//! last two are the interval. What stock llama.cpp would do with
//! the same memory (`page_cache`) stands beside it: whoever reads it sees whether it pays.

mod outlook;
mod page_cache;
mod predicted;
mod simulate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::choose::{Choice, RING_WEIGHTS, Use, Weight};
use crate::machine::{Machine, Varies};
pub(crate) use outlook::SHORT_RUN_TOKENS;
pub use outlook::{ExpertsOutlook, TokenSpan};
use page_cache::{Load, Share};
use predicted::four_digits;
pub use predicted::{LimitedBy, Predicted, Speed, Stock};
use simulate::{Need, Step};

/// No disk is as fast as this: the file lies in memory.
const MEMORY_BYTES_PER_SECOND: f64 = 30e9;

/// Until a token's time and what its disk and processor give each other agree, to a percent.
const ROUNDS: usize = 4;

/// A plan that predicts less than this over stock is not worth its trouble.
const MIN_GAIN: f64 = 1.05;

/// Predicts a choice for these weights. Without an outlook, experts are taken to be used
/// evenly, for as long as it takes until their slots are full.
pub fn predict(
    weights: &[Weight],
    choice: &Choice,
    machine: &Machine,
    outlook: Option<ExpertsOutlook>,
) -> Predicted {
    let outlook = outlook
        .and_then(ExpertsOutlook::checked)
        .unwrap_or_else(|| ExpertsOutlook::uniform(weights, choice, None));
    let usual = Walk::of(weights, choice, machine, outlook.hit_rate);
    let is_certain = machine.varies == Varies::default() && outlook.low == outlook.high;
    let (slowest, fastest) = match is_certain {
        true => (usual.times, usual.times),
        false => {
            let walk = |machine: Machine, rate| Walk::of(weights, choice, &machine, rate).times;
            (
                walk(machine.slowest(), outlook.low),
                walk(machine.fastest(), outlook.high),
            )
        }
    };
    let Walk {
        traffic,
        compute,
        times,
    } = usual;
    // Reads that wait for each other may end sooner on a slower disk, by a little.
    let rate = |seconds: f64| time(seconds).map(f64::recip);
    let (seconds, stock) = (times.seconds, times.stock_seconds);
    Predicted {
        weight_bytes: traffic.weight_bytes,
        pinned_bytes: choice.pinned.iter().map(|&i| weights[i].bytes).sum(),
        bytes_read_per_token: traffic.total().round() as u64,
        seconds_per_token: time(seconds),
        tokens_per_second: rate(seconds),
        tokens_per_second_low: rate(slowest.seconds.max(seconds)),
        tokens_per_second_high: rate(fastest.seconds.min(seconds)),
        ceiling_tokens_per_second: rate(times.ceiling_seconds),
        limited_by: limited_by(&traffic, machine, seconds, compute),
        stock: Stock {
            bytes_read_per_token: (traffic.stock_whole + traffic.stock_experts).round() as u64,
            tokens_per_second: rate(stock),
            tokens_per_second_low: rate(slowest.stock_seconds.max(stock)),
            tokens_per_second_high: rate(fastest.stock_seconds.min(stock)),
        },
    }
}

/// One token of a choice, on a machine that does not vary.
struct Walk {
    traffic: Traffic,
    /// Computing, as reading slows it down.
    compute: f64,
    times: Times,
}

#[derive(Clone, Copy)]
struct Times {
    seconds: f64,
    ceiling_seconds: f64,
    stock_seconds: f64,
}

impl Walk {
    fn of(weights: &[Weight], choice: &Choice, machine: &Machine, hit_rate: f64) -> Walk {
        let traffic = Traffic::new(weights, choice, machine, hit_rate);
        let idle_disk = machine.idle_disk_bytes_per_second();
        let alone = machine.resident_seconds(weights);
        let walk = |compute: f64, disk: f64| {
            let steps = steps(weights, choice, machine, compute, hit_rate, &traffic);
            simulate::seconds_per_token(&steps, choice.ring_bytes, disk)
        };
        let (mut compute, mut seconds) = (alone, walk(alone, idle_disk));
        let slowdown = machine.compute_while_reading.max(1.0) - 1.0;
        let gain = machine.disk_while_waiting.max(1.0) - 1.0;
        if (slowdown > 0.0 || gain > 0.0) && alone > 0.0 && seconds.is_finite() {
            // Each slows the other down for the part of the time in which it is busy: the disk
            // while something computes, and computing while the ring is filled (for other
            // reads it waits). How long that is follows from how long the token takes.
            for _ in 0..ROUNDS {
                let computing = (compute / seconds).min(1.0);
                let disk = machine.disk_bytes_per_second * (1.0 + gain * (1.0 - computing));
                let filling = match traffic.streamed > 0.0 {
                    true => (traffic.streamed / disk / seconds).min(1.0),
                    false => 0.0,
                };
                compute = alone * (1.0 + slowdown * filling);
                seconds = walk(compute, disk);
            }
        }
        // A ring holds what the next token needs first: those bytes are kept, in effect.
        let missing = (traffic.total() - choice.ring_bytes as f64).max(0.0);
        Walk {
            times: Times {
                seconds,
                ceiling_seconds: alone.max(missing / idle_disk),
                stock_seconds: alone.max(traffic.stock_disk_seconds(machine)),
            },
            traffic,
            compute,
        }
    }
}

fn limited_by(traffic: &Traffic, machine: &Machine, seconds: f64, compute: f64) -> LimitedBy {
    let disk = machine.disk_bytes_per_second;
    let dense_seconds =
        traffic.streamed / disk + traffic.mapped / (disk * machine.fault_efficiency);
    if traffic.total() == 0.0 || seconds <= compute * 1.1 {
        LimitedBy::Compute
    } else if traffic.miss_seconds > dense_seconds {
        LimitedBy::ExpertReads
    } else {
        LimitedBy::Disk
    }
}

/// Why stock llama.cpp is as good, for "because …"; None when the choice is worth it. By time,
/// or by bytes where no time is known.
pub fn why_not(
    weights: &[Weight],
    choice: &Choice,
    machine: &Machine,
    predicted: &Predicted,
) -> Option<String> {
    let memory = memory_of(weights, choice, machine);
    if fits(weights, choice, machine) {
        return Some(format!(
            "all weights ({}) fit in memory: without a plan they stay there, too",
            size(predicted.weight_bytes)
        ));
    }
    if machine.disk_bytes_per_second >= MEMORY_BYTES_PER_SECOND {
        return Some(format!(
            "no disk reads {} a second: the model's file lies in memory already",
            size(machine.disk_bytes_per_second as u64)
        ));
    }
    if !choice.does_something(weights) {
        let memory = match memory {
            0 => "no memory".to_owned(),
            memory => size(memory),
        };
        return Some(format!(
            "nothing can be kept or streamed with {memory} for weights of {}",
            size(predicted.weight_bytes)
        ));
    }
    // What stock reads depends on the memory alone, and not on what experts hit.
    let stock_disk_seconds =
        Traffic::new(weights, choice, machine, 0.0).stock_disk_seconds(machine);
    let compute = machine.resident_seconds(weights);
    if compute > 0.0 && compute >= stock_disk_seconds {
        return Some(format!(
            "computing a token takes {} s, and reading its weights {} s without a plan",
            four_digits(compute),
            four_digits(stock_disk_seconds)
        ));
    }
    match (
        predicted.tokens_per_second,
        predicted.stock.tokens_per_second,
    ) {
        (Some(ours), Some(stock)) => (ours < stock * MIN_GAIN).then(|| {
            format!(
                "it would give {} tokens a second, and {} come without a plan",
                four_digits(ours),
                four_digits(stock)
            )
        }),
        _ => {
            let (ours, stock) = (
                predicted.bytes_read_per_token,
                predicted.stock.bytes_read_per_token,
            );
            (ours as f64 * MIN_GAIN > stock as f64).then(|| {
                format!(
                    "it would read {} for a token, and {} are read without a plan",
                    size(ours),
                    size(stock)
                )
            })
        }
    }
}

/// Bytes of one token, by the way they come.
struct Traffic {
    weight_bytes: u64,
    streamed: f64,
    /// Through page faults, with the share of each kind that is read again.
    mapped: f64,
    mapped_share: Share,
    missed: f64,
    /// Waits for the router's choice: latencies and reads.
    miss_seconds: f64,
    /// Of stock llama.cpp: in order, and of experts.
    stock_whole: f64,
    stock_experts: f64,
}

impl Traffic {
    fn new(weights: &[Weight], choice: &Choice, machine: &Machine, hit_rate: f64) -> Traffic {
        let all = Load::of(weights.iter());
        let mapped = Load::of(choice.mapped.iter().map(|&i| &weights[i]));
        let taken = taken_bytes(weights, choice);
        let left = machine.weights_bytes.unwrap_or(0).saturating_sub(taken);
        let amplification = machine.stock_amplification.max(1.0);
        let mapped_share = mapped.share(left, amplification);
        let stock_share = if fits(weights, choice, machine) {
            Share::default()
        } else {
            all.share(memory_of(weights, choice, machine), amplification)
        };
        let misses = layer_misses(weights, choice, machine, hit_rate);
        let missed: f64 = misses.values().map(|miss| miss.first + miss.last).sum();
        let latency: f64 = misses.values().map(|miss| miss.latency).sum();
        Traffic {
            weight_bytes: (all.whole + all.experts) as u64,
            streamed: choice
                .streamed
                .iter()
                .map(|&i| weights[i].bytes as f64)
                .sum(),
            mapped: mapped.read(mapped_share),
            mapped_share,
            missed,
            miss_seconds: latency + missed / machine.disk_bytes_per_second,
            stock_whole: all.whole * stock_share.whole,
            stock_experts: all.touched * stock_share.experts,
        }
    }

    fn stock_disk_seconds(&self, machine: &Machine) -> f64 {
        let seconds = |bytes: f64, efficiency: f64| match bytes > 0.0 {
            true => bytes / (machine.idle_disk_bytes_per_second() * efficiency),
            false => 0.0,
        };
        seconds(self.stock_whole, machine.fault_efficiency)
            + seconds(self.stock_experts, machine.scattered_fault_efficiency)
    }

    fn total(&self) -> f64 {
        self.streamed + self.mapped + self.missed
    }
}

/// Expected reads of one layer once its router has chosen.
struct Misses {
    /// Index of the weight that waits for the last of them.
    last_weight: usize,
    /// Bytes for all weights but the last, and for the last.
    first: f64,
    last: f64,
    /// Paid where at least one expert is missing.
    latency: f64,
}

fn layer_misses(
    weights: &[Weight],
    choice: &Choice,
    machine: &Machine,
    hit_rate: f64,
) -> BTreeMap<Option<u32>, Misses> {
    let mut layers: BTreeMap<Option<u32>, Misses> = BTreeMap::new();
    for &i in &choice.sliced {
        let Use::Experts {
            used, slice_bytes, ..
        } = weights[i].usage
        else {
            continue;
        };
        let bytes = f64::from(used) * (1.0 - hit_rate) * slice_bytes as f64;
        let any_missing = 1.0 - hit_rate.powf(f64::from(used));
        let latency = any_missing * machine.read_latency_seconds.max(0.0);
        let layer = layers.entry(weights[i].layer).or_insert(Misses {
            last_weight: i,
            first: 0.0,
            last: 0.0,
            latency: 0.0,
        });
        layer.first += layer.last;
        layer.last = bytes;
        layer.last_weight = i;
        layer.latency = layer.latency.max(latency);
    }
    layers
}

/// Bytes of a token that can be read only when a router has chosen.
pub fn routed_bytes_per_token(
    weights: &[Weight],
    choice: &Choice,
    machine: &Machine,
    hit_rate: f64,
) -> u64 {
    let misses = layer_misses(weights, choice, machine, hit_rate);
    let bytes: f64 = misses.values().map(|miss| miss.first + miss.last).sum();
    bytes.round() as u64
}

/// One token as the simulation takes it. Computing takes time by bytes touched.
fn steps(
    weights: &[Weight],
    choice: &Choice,
    machine: &Machine,
    compute: f64,
    hit_rate: f64,
    traffic: &Traffic,
) -> Vec<Step> {
    let touched: f64 = weights.iter().map(Weight::touched_bytes).sum();
    let mut needs = vec![Need::Nothing; weights.len()];
    for &i in &choice.streamed {
        needs[i] = Need::Ring {
            bytes: weights[i].bytes as f64,
        };
    }
    for &i in &choice.mapped {
        let (share, efficiency) = match weights[i].usage {
            Use::Experts { .. } => (
                traffic.mapped_share.experts,
                machine.scattered_fault_efficiency,
            ),
            _ => (traffic.mapped_share.whole, machine.fault_efficiency),
        };
        needs[i] = Need::Faults {
            bytes: weights[i].touched_bytes() * share / efficiency,
        };
    }
    let misses = layer_misses(weights, choice, machine, hit_rate);
    let mut asked = BTreeSet::new();
    for &i in &choice.sliced {
        let Some(layer) = misses.get(&weights[i].layer) else {
            continue;
        };
        needs[i] = Need::Slices {
            ask: asked.insert(weights[i].layer).then_some(simulate::Ask {
                latency: layer.latency,
                first: layer.first,
                last: layer.last,
            }),
            is_last: i == layer.last_weight,
        };
    }
    let mut steps = Vec::with_capacity(weights.len());
    for (weight, need) in weights.iter().zip(needs) {
        let seconds = compute * weight.touched_bytes() / touched.max(1.0);
        // What is streamed in pieces is computed with piece by piece.
        let (pieces, need) = match need {
            Need::Ring { bytes } => {
                let pieces = pieces_of(weight, choice.ring_bytes);
                let bytes = bytes / f64::from(pieces);
                (pieces, Need::Ring { bytes })
            }
            need => (1, need),
        };
        let step = Step {
            compute_seconds: seconds / f64::from(pieces),
            need,
        };
        steps.extend(std::iter::repeat_n(step, pieces as usize));
    }
    steps
}

fn pieces_of(weight: &Weight, ring_bytes: u64) -> u32 {
    /// More make no difference to the prediction.
    const MAX_PIECES: u64 = 1000;
    let piece_bytes = weight.ring_bytes(ring_bytes / RING_WEIGHTS, 1);
    weight
        .bytes
        .div_ceil(piece_bytes.max(1))
        .clamp(1, MAX_PIECES) as u32
}

fn taken_bytes(weights: &[Weight], choice: &Choice) -> u64 {
    let pinned: u64 = choice.pinned.iter().map(|&i| weights[i].bytes).sum();
    pinned + choice.ring_bytes + choice.experts.map_or(0, |memory| memory.bytes)
}

fn memory_of(weights: &[Weight], choice: &Choice, machine: &Machine) -> u64 {
    machine
        .weights_bytes
        .unwrap_or_else(|| taken_bytes(weights, choice))
}

/// Whether no weight has to leave memory between tokens.
pub(crate) fn fits(weights: &[Weight], choice: &Choice, machine: &Machine) -> bool {
    let needed = || {
        weights
            .iter()
            .filter(|weight| weight.usage != Use::Rows)
            .map(|weight| weight.bytes)
            .sum::<u64>()
    };
    let kept = choice.streamed.is_empty()
        && choice.sliced.is_empty()
        && choice.mapped.iter().all(|&i| weights[i].usage == Use::Rows);
    kept || machine.weights_bytes.is_some_and(|bytes| needed() <= bytes)
}

/// A time that says something.
fn time(seconds: f64) -> Option<f64> {
    (seconds.is_finite() && seconds > 0.0).then_some(seconds)
}

/// `3.9 GiB`, `350.0 MiB`.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64 / 1024.0;
    let mut unit = "KiB";
    for larger in ["MiB", "GiB", "TiB"] {
        if value >= 1024.0 {
            value /= 1024.0;
            unit = larger;
        }
    }
    format!("{value:.1} {unit}")
}
