//! Nodes on a graphics card against what that card allows.
//!
//! The same question as for the processor, with other roofs: bytes against what a kernel reads
//! from the card's memory; operations of products against the tensor cores, others against the
//! 32-bit units. Time is *exclusive* time: kernels overlap, and durations added up would count the
//! same moment twice.
//!
//! A share may be above one. A card's cache holds what was touched a moment ago, and products may
//! be computed in ways that were not measured: quantised weights in 8-bit integers, 32-bit weights
//! in TF32, and on Hopper and later with instructions that only these have.

use kernelio::card::{CardCeiling, Quantity};
use serde::{Deserialize, Serialize};

use super::Bound;

/// Ops that the tensor cores compute.
const ON_TENSOR_CORES: [&str; 3] = ["MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT"];

/// What nodes of one class did on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work<'a> {
    /// As llama.cpp calls it: `CUDA0`.
    pub device: &'a str,
    pub op: &'a str,
    /// Of the weight that they read, or of the KV cache.
    pub weight_type: Option<&'a str>,
    pub bytes: u64,
    /// `None` where some are not counted.
    pub flops: Option<u64>,
    pub exclusive_nanos: u64,
}

/// What they reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    pub bytes_per_second: f64,
    pub flops_per_second: Option<f64>,
    /// Operations for each byte.
    pub intensity: Option<f64>,
    pub bound: Bound,
    /// Of what the bound would allow: 1 is the roof itself.
    pub share_of_ceiling: f64,
    /// Bytes a second of the card's memory.
    pub memory_roof: f64,
    /// Which arithmetic is over it, and its operations a second; `None` where it was not measured.
    pub compute_roof: Option<(Quantity, f64)>,
}

/// `None` for a device that is not among the cards, one whose memory was not measured, and for
/// nodes that took no time or touched nothing.
pub fn reached(cards: &[CardCeiling], work: &Work) -> Option<Reached> {
    let card = of_device(cards, work.device)?;
    // What copies move is no more than what is read, on cards where reading was not measured.
    let memory_roof = card
        .per_second(Quantity::Read)
        .or(card.per_second(Quantity::Copy))?;
    if work.exclusive_nanos == 0 || work.bytes == 0 {
        return None;
    }
    let compute_roof = arithmetic(work)
        .iter()
        .find_map(|&quantity| Some((quantity, card.per_second(quantity)?)));
    let seconds = work.exclusive_nanos as f64 / 1e9;
    let (bytes, flops) = (work.bytes as f64, work.flops.map(|flops| flops as f64));
    let reading = bytes / memory_roof;
    let computing = match (flops, compute_roof) {
        (Some(flops), Some((_, roof))) => flops / roof,
        _ => 0.0,
    };
    Some(Reached {
        bytes_per_second: bytes / seconds,
        flops_per_second: flops.map(|flops| flops / seconds),
        intensity: flops.map(|flops| flops / bytes),
        bound: match computing > reading {
            true => Bound::Compute,
            false => Bound::Memory,
        },
        share_of_ceiling: reading.max(computing) / seconds,
        memory_roof,
        compute_roof,
    })
}

/// Of what the way between host and card allows, 1 is all; `quantity` is one of the four ways.
pub fn copied(
    cards: &[CardCeiling],
    device: &str,
    quantity: Quantity,
    bytes: u64,
    nanos: u64,
) -> Option<f64> {
    let roof = of_device(cards, device)?.per_second(quantity)?;
    (nanos > 0).then(|| bytes as f64 / roof / (nanos as f64 / 1e9))
}

fn of_device<'a>(cards: &'a [CardCeiling], device: &str) -> Option<&'a CardCeiling> {
    cards.iter().find(|card| card.device == device)
}

/// Which figure is the roof: the first of them that the card has.
fn arithmetic(work: &Work) -> &'static [Quantity] {
    let is_product = ON_TENSOR_CORES.contains(&work.op);
    match work.weight_type {
        Some("bf16") if is_product => &[Quantity::Bf16, Quantity::F16, Quantity::F32],
        Some("f32") => &[Quantity::F32],
        Some(_) if is_product => &[Quantity::F16, Quantity::F32],
        _ => &[Quantity::F32],
    }
}
