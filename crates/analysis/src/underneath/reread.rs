//! What was read, and what of it again.

use std::collections::HashMap;

use kernelio::kernel_log::io::Operation;
use reader::kernel::JoinedIo;
use serde::{Deserialize, Serialize};

use super::{
    ModelFiles,
    work::{Work, slot_name},
};

/// Bytes read from the model's files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RereadResults {
    pub read_bytes: u64,
    /// Bytes read over the bytes of the model's files.
    pub factor: f64,
    /// Bytes of the files that were read at all.
    pub distinct_bytes: u64,
    /// All others: read before, so they had been in memory and were dropped.
    pub read_again_bytes: u64,
    /// In headers and between tensors.
    pub without_tensor_bytes: u64,
    /// By the phase in which they were asked for; `none` is outside of evaluations.
    pub by_phase: Vec<PhaseReads>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseReads {
    pub phase: String,
    pub tokens: u64,
    pub read_bytes: u64,
    /// `None` outside of evaluations.
    pub bytes_per_token: Option<f64>,
    /// Bytes of a token over the model's.
    pub factor_per_token: Option<f64>,
}

/// What was read of one tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorReads {
    pub read_bytes: u64,
    pub distinct_bytes: u64,
    /// How often every byte was read: the least of them.
    pub whole_reads: u64,
}

/// Is the part a read of the model?
pub fn is_model_read(part: &JoinedIo) -> bool {
    part.io.place.is_some() && part.io.rwbs.operation() == Operation::Read
}

/// For the whole model, and for each of its tensors.
pub fn reread(
    parts: &[JoinedIo],
    work: &Work,
    model: &ModelFiles,
) -> (RereadResults, Vec<TensorReads>) {
    let mut of_tensor: Vec<Vec<(u64, u64)>> = vec![Vec::new(); model.tensors.len()];
    let mut of_file: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
    let mut results = RereadResults::default();
    let mut by_slot = [0u64; 4];
    for part in parts.iter().filter(|part| is_model_read(part)) {
        let range = (part.file_offset, part.file_offset + part.bytes);
        let owner = part.owner.map(|owner| owner.tensor as usize);
        match owner.and_then(|tensor| of_tensor.get_mut(tensor)) {
            Some(ranges) => ranges.push(range),
            None => {
                results.without_tensor_bytes += part.bytes;
                let file = part.io.place.map_or(0, |place| place.file);
                of_file.entry(file).or_default().push(range);
            }
        }
        results.read_bytes += part.bytes;
        by_slot[work.slot(part.at)] += part.bytes;
    }
    let sums: Vec<TensorReads> = of_tensor
        .into_iter()
        .zip(model.tensors)
        .map(|(ranges, tensor)| {
            coverage(
                ranges,
                tensor.file_offset,
                tensor.file_offset + tensor.size_bytes,
            )
        })
        .collect();
    let others = of_file.into_values().map(|ranges| {
        let end = ranges.iter().map(|range| range.1).max().unwrap_or(0);
        coverage(ranges, 0, end).distinct_bytes
    });
    let of_tensors: u64 = sums.iter().map(|sum| sum.distinct_bytes).sum();
    results.distinct_bytes = of_tensors + others.sum::<u64>();
    results.read_again_bytes = results.read_bytes - results.distinct_bytes;
    results.factor = model.times(results.read_bytes);
    let tokens = work.phases().map(|(_, tokens)| tokens);
    let rows = by_slot.into_iter().enumerate();
    results.by_phase = rows
        .filter(|&(slot, bytes)| bytes > 0 || tokens.get(slot).is_some_and(|tokens| *tokens > 0))
        .map(|(slot, read_bytes)| {
            let tokens = tokens.get(slot).copied().unwrap_or(0);
            let bytes_per_token = (tokens > 0).then(|| read_bytes as f64 / tokens as f64);
            PhaseReads {
                phase: slot_name(slot).to_owned(),
                tokens,
                read_bytes,
                bytes_per_token,
                factor_per_token: bytes_per_token.map(|bytes| bytes / model.bytes.max(1) as f64),
            }
        })
        .collect();
    (results, sums)
}

/// Ranges within `begin` and `end`, by how often they cover it.
fn coverage(ranges: Vec<(u64, u64)>, begin: u64, end: u64) -> TensorReads {
    let read_bytes = ranges.iter().map(|range| range.1 - range.0).sum();
    let mut borders: Vec<(u64, i64)> = Vec::with_capacity(ranges.len() * 2);
    for range in ranges {
        borders.push((range.0, 1));
        borders.push((range.1, -1));
    }
    borders.sort_unstable_by_key(|border| border.0);
    let (mut at, mut depth) = (begin, 0i64);
    let (mut distinct_bytes, mut least) = (0, i64::MAX);
    for (place, step) in borders.into_iter().chain([(end, 0)]) {
        let place = place.clamp(begin, end);
        if place > at {
            least = least.min(depth);
            distinct_bytes += if depth > 0 { place - at } else { 0 };
            at = place;
        }
        depth += step;
    }
    TensorReads {
        read_bytes,
        distinct_bytes,
        whole_reads: if least == i64::MAX { 0 } else { least as u64 },
    }
}
