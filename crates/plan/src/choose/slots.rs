//! Slots for expert slices: how many, in how many pools, of what size.
//!
//! A slot holds one expert: the slices of all weights of a layer that bear its number.
//! Layers are dealt to pools in contiguous blocks; a pool's slots have the size that its
//! largest layer needs.

use std::collections::BTreeMap;

use super::{ExpertMemory, Use, Weight, superset_bytes};

/// What the sliced weights of one layer ask of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    pub layer: Option<u32>,
    /// Supersets of one slice of each weight, together.
    pub slot_bytes: u64,
    /// Experts that all of its weights have.
    pub count: u32,
    pub used: u32,
}

/// The layers of the sliced weights, ascending. Weights with other uses are skipped.
pub fn layers_of(weights: &[Weight], sliced: &[usize], alignment_bytes: u64) -> Vec<Layer> {
    let mut layers: BTreeMap<Option<u32>, Layer> = BTreeMap::new();
    for &i in sliced {
        let Some(weight) = weights.get(i) else {
            continue;
        };
        let Use::Experts {
            count,
            used,
            slice_bytes,
        } = weight.usage
        else {
            continue;
        };
        let layer = layers.entry(weight.layer).or_insert(Layer {
            layer: weight.layer,
            slot_bytes: 0,
            count: u32::MAX,
            used: 0,
        });
        layer.slot_bytes = layer
            .slot_bytes
            .saturating_add(superset_bytes(slice_bytes, alignment_bytes));
        layer.count = layer.count.min(count);
        layer.used = layer.used.max(used);
    }
    layers.into_values().collect()
}

/// The pool of the layer that is `index`th of `layers`.
pub fn pool_of(index: usize, layers: usize, pools: u32) -> usize {
    let pool = index as u128 * u128::from(pools) / (layers.max(1) as u128);
    pool as usize
}

/// Bytes of one slot of each pool.
pub fn pool_slot_bytes(layers: &[Layer], pools: u32) -> Vec<u64> {
    let mut sizes = vec![0; pools as usize];
    for (index, layer) in layers.iter().enumerate() {
        if let Some(size) = sizes.get_mut(pool_of(index, layers.len(), pools)) {
            *size = layer.slot_bytes.max(*size);
        }
    }
    sizes
}

/// Slots that a pool needs at least, and at most. None when no number suits all layers.
fn limits(layers: &[Layer]) -> Option<(u32, u32)> {
    let used = layers.iter().map(|layer| layer.used).max()?.max(1);
    let count = layers.iter().map(|layer| layer.count).min()?;
    (used <= count).then_some((used, count))
}

/// The least memory that works: one pool with room for the experts of one token.
pub(super) fn least_bytes(layers: &[Layer]) -> Option<u64> {
    let (used, _) = limits(layers)?;
    let slot = layers.iter().map(|layer| layer.slot_bytes).max()?;
    slot.checked_mul(u64::from(used))
}

/// The most pools that leave each enough slots. `bytes` is at least [`least_bytes`].
pub(super) fn deal(layers: &[Layer], bytes: u64) -> ExpertMemory {
    let (used, count) = limits(layers).unwrap_or((0, 0));
    // No pool has smaller slots than the smallest layer: more pools cannot fit.
    let smallest = layers.iter().map(|layer| layer.slot_bytes).min();
    let most = bytes / smallest.unwrap_or(1).max(1) / u64::from(used.max(1));
    let most = most.min(layers.len() as u64) as u32;
    for pools in (1..=most).rev() {
        let row: u128 = pool_slot_bytes(layers, pools)
            .iter()
            .map(|&slot| u128::from(slot))
            .sum();
        let slots = (u128::from(bytes) / row.max(1)).min(u128::from(count)) as u32;
        if slots >= used {
            return ExpertMemory {
                pools,
                slots,
                bytes: (row * u128::from(slots)) as u64,
            };
        }
    }
    ExpertMemory {
        pools: 0,
        slots: 0,
        bytes: 0,
    }
}
