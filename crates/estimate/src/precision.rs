//! The same model at two weight types: bytes, FLOPs for each byte, and by batch how much
//! faster the smaller one decodes, until computing is what takes the time.

use serde::Serialize;

use crate::checked;
use crate::error::Result;
use crate::machines::Machine;
use crate::number::ComputeType;
use crate::roofline::{self, Bound, Efficiency, Pass, Types};
use crate::shape::Shape;

/// The largest batch that is looked at for a turning point.
const MAX_TURNING_BATCH: u64 = 1 << 16;

/// A model with weights and cache of given types, decoding on a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    pub types: Types,
    /// What the machine multiplies in.
    pub compute: ComputeType,
    pub weight_bytes: u64,
    pub ridge_flop_per_byte: f64,
    /// Smallest batch at which a step computes longer than it reads. `None` where the cache,
    /// which grows with the batch, keeps it reading.
    pub turning_batch: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    pub batch: u64,
    pub first_seconds: f64,
    pub second_seconds: f64,
    pub first_flop_per_byte: f64,
    pub second_flop_per_byte: f64,
    pub first_bound: Bound,
    pub second_bound: Bound,
    /// How many times faster the second is.
    pub ratio: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub context_tokens: u64,
    pub first: Side,
    pub second: Side,
    /// Bytes of the first's weights over the second's: the most that decoding can gain.
    pub weight_ratio: f64,
    pub rows: Vec<Row>,
}

/// Compares two choices of types at the given batches.
pub fn compare(
    shape: &Shape,
    first: Types,
    second: Types,
    machine: &Machine,
    efficiency: Efficiency,
    context_tokens: u64,
    batches: &[u64],
) -> Result<Comparison> {
    let time = |types, batch| {
        let pass = Pass::decode(batch, context_tokens);
        roofline::time(shape, pass, types, machine, efficiency)
    };
    let rows = batches
        .iter()
        .map(|&batch| {
            let (a, b) = (time(first, batch)?, time(second, batch)?);
            Ok(Row {
                batch,
                first_seconds: a.seconds.likely,
                second_seconds: b.seconds.likely,
                first_flop_per_byte: a.flop_per_byte,
                second_flop_per_byte: b.flop_per_byte,
                first_bound: a.bound,
                second_bound: b.bound,
                ratio: a.seconds.likely / b.seconds.likely,
            })
        })
        .collect::<Result<Vec<Row>>>()?;
    let side = |types| side(shape, types, machine, efficiency, context_tokens);
    let (first, second) = (side(first)?, side(second)?);
    checked::count("the size of the weights", second.weight_bytes)?;
    Ok(Comparison {
        context_tokens,
        weight_ratio: first.weight_bytes as f64 / second.weight_bytes as f64,
        first,
        second,
        rows,
    })
}

fn side(
    shape: &Shape,
    types: Types,
    machine: &Machine,
    efficiency: Efficiency,
    context_tokens: u64,
) -> Result<Side> {
    let (compute, peak) = machine.peak(types.compute)?;
    Ok(Side {
        types,
        compute,
        weight_bytes: shape.weight_bytes(types.weights)?,
        ridge_flop_per_byte: peak / machine.memory_bytes_per_second.value,
        turning_batch: turning_batch(shape, types, machine, efficiency, context_tokens)?,
    })
}

/// Smallest batch at which a step computes longer than it reads, all stages together.
///
/// The share of computing grows with the batch: each sequence adds the same FLOPs, and bytes
/// that are the fewer for each the more there are. So halving finds it.
pub fn turning_batch(
    shape: &Shape,
    types: Types,
    machine: &Machine,
    efficiency: Efficiency,
    context_tokens: u64,
) -> Result<Option<u64>> {
    let computes = |batch| -> Result<bool> {
        let pass = Pass::decode(batch, context_tokens);
        let time = roofline::time(shape, pass, types, machine, efficiency)?;
        let sum = |of: fn(&roofline::StageTime) -> f64| time.stages.iter().map(of).sum::<f64>();
        Ok(sum(|s| s.compute_seconds) >= sum(|s| s.memory_seconds))
    };
    if !computes(MAX_TURNING_BATCH)? {
        return Ok(None);
    }
    let (mut below, mut at) = (0, MAX_TURNING_BATCH);
    while at - below > 1 {
        let middle = below + (at - below) / 2;
        if computes(middle)? {
            at = middle;
        } else {
            below = middle;
        }
    }
    Ok(Some(at))
}
