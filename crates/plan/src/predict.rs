//! Bytes and seconds per token that follow from a choice.
//!
//! Bytes follow from the choice alone. Seconds come from walking one token's weights
//! against a disk of constant speed (`simulate`), so that a small ring, pins in the
//! wrong place and the wait after a router all show. What stock llama.cpp would do with
//! the same memory stands beside it: whoever reads it sees whether it pays.

mod simulate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::choose::{Choice, RING_WEIGHTS, Use, Weight};
use crate::machine::Machine;
use simulate::{Need, Step};

/// No disk is as fast as this: the file lies in memory.
const MEMORY_BYTES_PER_SECOND: f64 = 30e9;

/// A plan that predicts less than this over stock is not worth its trouble.
const MIN_GAIN: f64 = 1.05;

/// How often an expert that the router asks for is in its slot already.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsOutlook {
    pub hit_rate: f64,
}

impl ExpertsOutlook {
    /// When every expert is as likely as any other, which is the worst case of a model:
    /// the share of experts that have a slot. Layers that share a pool too small for one
    /// token push each other out.
    pub fn uniform(weights: &[Weight], choice: &Choice) -> ExpertsOutlook {
        let mut layers = BTreeSet::new();
        let (mut used, mut count) = (0, 0);
        for &i in &choice.sliced {
            if let Use::Experts {
                count: c, used: u, ..
            } = weights[i].usage
            {
                layers.insert(weights[i].layer);
                used = used.max(u);
                count = count.max(c);
            }
        }
        let layers = layers.len() as f64;
        let slots = choice.experts.map_or(0.0, |memory| {
            f64::from(memory.pools) * f64::from(memory.slots)
        });
        let hit_rate = if slots < layers * f64::from(used) || layers == 0.0 {
            0.0
        } else {
            (slots / (layers * f64::from(count.max(1)))).min(1.0)
        };
        ExpertsOutlook { hit_rate }
    }
}

/// What a token costs. Times are for generating one token after another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// All weights that are more than looked up by row.
    pub weight_bytes: u64,
    pub pinned_bytes: u64,
    pub bytes_read_per_token: u64,
    /// None where neither disk nor compute are known to take time.
    pub seconds_per_token: Option<f64>,
    pub tokens_per_second: Option<f64>,
    /// What this memory allows at best: everything that is read overlaps computing.
    pub ceiling_tokens_per_second: Option<f64>,
    pub limited_by: LimitedBy,
    pub stock: Stock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitedBy {
    #[serde(rename = "disk")]
    Disk,
    #[serde(rename = "compute")]
    Compute,
    #[serde(rename = "expert reads")]
    ExpertReads,
}

/// Stock llama.cpp with the same memory: a page cache that forgets what it has not seen
/// for longest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stock {
    pub bytes_read_per_token: u64,
    pub tokens_per_second: Option<f64>,
}

impl Predicted {
    /// Four digits are more than a prediction is worth, and easier to read.
    pub fn rounded(self) -> Predicted {
        let round = |value: Option<f64>| value.map(four_digits);
        Predicted {
            seconds_per_token: round(self.seconds_per_token),
            tokens_per_second: round(self.tokens_per_second),
            ceiling_tokens_per_second: round(self.ceiling_tokens_per_second),
            stock: Stock {
                tokens_per_second: round(self.stock.tokens_per_second),
                ..self.stock
            },
            ..self
        }
    }
}

/// Predicts a choice for these weights. Without a hit rate, experts are taken to be used
/// evenly.
pub fn predict(
    weights: &[Weight],
    choice: &Choice,
    machine: &Machine,
    hit_rate: Option<f64>,
) -> Predicted {
    let hit_rate = hit_rate
        .filter(|rate| rate.is_finite())
        .unwrap_or_else(|| ExpertsOutlook::uniform(weights, choice).hit_rate)
        .clamp(0.0, 1.0);
    let traffic = Traffic::new(weights, choice, machine, hit_rate);
    let disk = machine.disk_bytes_per_second;
    let compute = machine.resident_seconds(weights);

    let steps = steps(weights, choice, machine, hit_rate, &traffic);
    let seconds = simulate::seconds_per_token(&steps, choice.ring_bytes, disk);
    // A ring holds what the next token needs first: those bytes are kept, in effect.
    let ceiling_bytes =
        (traffic.streamed + traffic.mapped + traffic.missed - choice.ring_bytes as f64).max(0.0);
    let ceiling = compute.max(ceiling_bytes / disk);
    let stock_seconds = compute.max(traffic.stock / (disk * machine.fault_efficiency));

    let dense_seconds =
        traffic.streamed / disk + traffic.mapped / (disk * machine.fault_efficiency);
    let limited_by = if traffic.total() == 0.0 || seconds <= compute * 1.1 {
        LimitedBy::Compute
    } else if traffic.miss_seconds > dense_seconds {
        LimitedBy::ExpertReads
    } else {
        LimitedBy::Disk
    };
    Predicted {
        weight_bytes: traffic.weight_bytes,
        pinned_bytes: choice.pinned.iter().map(|&i| weights[i].bytes).sum(),
        bytes_read_per_token: traffic.total().round() as u64,
        seconds_per_token: time(seconds),
        tokens_per_second: time(seconds).map(f64::recip),
        ceiling_tokens_per_second: time(ceiling).map(f64::recip),
        limited_by,
        stock: Stock {
            bytes_read_per_token: traffic.stock.round() as u64,
            tokens_per_second: time(stock_seconds).map(f64::recip),
        },
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
    let stock_disk_seconds = predicted.stock.bytes_read_per_token as f64
        / (machine.disk_bytes_per_second * machine.fault_efficiency);
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
    stock: f64,
}

impl Traffic {
    fn new(weights: &[Weight], choice: &Choice, machine: &Machine, hit_rate: f64) -> Traffic {
        let load = |list: &mut dyn Iterator<Item = usize>| {
            let mut load = Load::default();
            for i in list {
                load.add(&weights[i]);
            }
            load
        };
        let all = load(&mut (0..weights.len()));
        let mapped = load(&mut choice.mapped.iter().copied());
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
            stock: all.read(stock_share),
        }
    }

    fn total(&self) -> f64 {
        self.streamed + self.mapped + self.missed
    }
}

/// What a token asks of a page cache.
#[derive(Clone, Copy, Default)]
struct Load {
    /// Bytes that every token touches.
    whole: f64,
    /// Bytes of all experts, and of those that one token touches.
    experts: f64,
    touched: f64,
}

/// Bytes read for each byte that is touched.
#[derive(Clone, Copy, Default)]
struct Share {
    whole: f64,
    experts: f64,
}

impl Load {
    fn add(&mut self, weight: &Weight) {
        match weight.usage {
            Use::Rows => {}
            Use::Whole => self.whole += weight.bytes as f64,
            Use::Experts { .. } => {
                self.experts += weight.bytes as f64;
                self.touched += weight.touched_bytes();
            }
        }
    }

    /// A cache that forgets the oldest keeps nothing of a scan that is larger than it.
    /// That holds for experts too: with four fifths of a mixture in memory llama.cpp was
    /// measured to read as much for each token as with half of it (docs/underneath.md).
    fn share(&self, memory_bytes: u64, amplification: f64) -> Share {
        if self.whole + self.experts <= memory_bytes as f64 {
            return Share::default();
        }
        Share {
            whole: 1.0,
            experts: if self.touched > 0.0 {
                amplification.min(self.experts / self.touched)
            } else {
                1.0
            },
        }
    }

    fn read(&self, share: Share) -> f64 {
        self.whole * share.whole + self.touched * share.experts
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
    hit_rate: f64,
    traffic: &Traffic,
) -> Vec<Step> {
    let compute = machine.resident_seconds(weights);
    let touched: f64 = weights.iter().map(Weight::touched_bytes).sum();
    let mut needs = vec![Need::Nothing; weights.len()];
    for &i in &choice.streamed {
        needs[i] = Need::Ring {
            bytes: weights[i].bytes as f64,
        };
    }
    for &i in &choice.mapped {
        let share = match weights[i].usage {
            Use::Experts { .. } => traffic.mapped_share.experts,
            _ => traffic.mapped_share.whole,
        };
        needs[i] = Need::Faults {
            bytes: weights[i].touched_bytes() * share / machine.fault_efficiency,
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

fn four_digits(value: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return value;
    }
    format!("{value:.3e}").parse().unwrap_or(value)
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
