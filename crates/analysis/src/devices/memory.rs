//! What lies in whose memory, by the tensors that graphs touched.
//!
//! Activations share their places: counted are bytes of memory, not of tensors. A buffer that
//! no tensor of a graph lies in, a driver's own memory and other programs are not seen.

use std::collections::{BTreeMap, BTreeSet};

use reader::{Tensor, Tensors, device::PROCESSOR};
use serde::{Deserialize, Serialize};
use trace::template::TensorKind;

use super::is_device;

/// What lies in a device's memory for one purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRow {
    pub kind: String,
    /// Of weights; of the rest their kind.
    pub component: String,
    pub tensors: u64,
    pub bytes: u64,
}

/// The same in the host's memory, by the kind of buffer: `CPU_Mapped` is the model's file,
/// mapped; `CUDA_Host` is memory that a device can copy from by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRow {
    pub buffer_type: String,
    #[serde(flatten)]
    pub row: MemoryRow,
}

/// What the processor keeps of a model of which devices compute a part. Layers are those with
/// weights; the embedding, which is always the processor's, is not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPart {
    pub layers: u64,
    /// All of whose weights lie in the host's memory, and their bytes with their KV cache.
    pub host_layers: u64,
    pub host_layer_bytes: u64,
    /// Whose experts alone do, and their bytes.
    pub expert_layers: u64,
    pub expert_bytes: u64,
    /// KV cache in the host's memory, of layers whose weights are on a device.
    pub kv_bytes: u64,
    pub is_output_on_device: bool,
}

pub(super) fn by_device(tensors: &Tensors) -> BTreeMap<String, Vec<MemoryRow>> {
    let device = |tensor: &Tensor| tensor.device().is_some_and(is_device);
    rows_by_buffer(tensors, device)
}

pub(super) fn on_host(tensors: &Tensors) -> Vec<HostRow> {
    let by_buffer = rows_by_buffer(tensors, |tensor| tensor.device() == Some(PROCESSOR));
    let rows = by_buffer.into_iter().flat_map(|(buffer_type, rows)| {
        rows.into_iter().map(move |row| HostRow {
            buffer_type: buffer_type.clone(),
            row,
        })
    });
    rows.collect()
}

/// Of the tensors that are kept. A device's buffer type is called like the device.
fn rows_by_buffer(
    tensors: &Tensors,
    keeps: impl Fn(&Tensor) -> bool,
) -> BTreeMap<String, Vec<MemoryRow>> {
    let mut places: BTreeMap<(&str, &str, &str), Places> = BTreeMap::new();
    for tensor in tensors.all().iter().filter(|tensor| keeps(tensor)) {
        let buffer = tensor.buffer_type.as_str();
        let key = (buffer, tensor.kind.name(), tensor.part());
        let of = places.entry(key).or_default();
        of.ranges.push((tensor.address, tensor.size_bytes));
        of.names.insert(&tensor.name);
    }
    let mut buffers: BTreeMap<String, Vec<MemoryRow>> = BTreeMap::new();
    for ((buffer, kind, component), places) in places {
        let rows = buffers.entry(buffer.to_owned()).or_default();
        rows.push(MemoryRow {
            kind: kind.to_owned(),
            component: component.to_owned(),
            tensors: places.names.len() as u64,
            bytes: covered(places.ranges),
        });
    }
    for rows in buffers.values_mut() {
        rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    }
    buffers
}

#[derive(Default)]
struct Places<'a> {
    /// Address and size.
    ranges: Vec<(u64, u64)>,
    names: BTreeSet<&'a str>,
}

/// Bytes that lie in at least one of the ranges.
fn covered(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let (mut bytes, mut reached) = (0u64, 0u64);
    for (address, size) in ranges {
        let end = address.saturating_add(size);
        bytes = bytes.saturating_add(end.saturating_sub(address.max(reached)));
        reached = reached.max(end);
    }
    bytes
}

/// Bytes of a layer: on the host and on devices.
#[derive(Default)]
struct Layer {
    experts: [u64; 2],
    others: [u64; 2],
    kv: [u64; 2],
}

pub(super) fn host_part(tensors: &Tensors) -> HostPart {
    let mut part = HostPart::default();
    let mut layers: BTreeMap<u32, Layer> = BTreeMap::new();
    for (at, tensor) in tensors.all().iter().enumerate() {
        let Some(device) = tensor.device().filter(|_| tensor.first as usize == at) else {
            continue;
        };
        let side = usize::from(device != PROCESSOR);
        if let Some(layer) = layer_of(tensor) {
            let layer = layers.entry(layer).or_default();
            let sums = match (tensor.kind, tensor.component()) {
                (TensorKind::KvCache, _) => &mut layer.kv,
                (_, Some("expert")) => &mut layer.experts,
                _ => &mut layer.others,
            };
            sums[side] = sums[side].saturating_add(tensor.size_bytes);
        } else if tensor.component() == Some("output") {
            part.is_output_on_device |= side == 1;
        }
    }
    layers.retain(|_, layer| layer.others.iter().chain(&layer.experts).any(|&n| n > 0));
    part.layers = layers.len() as u64;
    let add = |sum: &mut u64, bytes: u64| *sum = sum.saturating_add(bytes);
    for layer in layers.values() {
        let [host, device] =
            [0, 1].map(|side| layer.others[side].saturating_add(layer.experts[side]));
        if device == 0 {
            part.host_layers += 1;
            add(&mut part.host_layer_bytes, host);
            add(&mut part.host_layer_bytes, layer.kv[0]);
            continue;
        }
        add(&mut part.kv_bytes, layer.kv[0]);
        if layer.experts[0] > 0 && layer.others[1] > 0 {
            part.expert_layers += 1;
            add(&mut part.expert_bytes, layer.experts[0]);
        }
    }
    part
}

/// Of a weight by its name, of a cache by llama.cpp's (`cache_k_l3`).
fn layer_of(tensor: &Tensor) -> Option<u32> {
    match tensor.kind {
        TensorKind::Weight => tensor.meaning.as_ref()?.layer,
        TensorKind::KvCache => tensor.name.rsplit_once("_l")?.1.parse().ok(),
        TensorKind::Activation | TensorKind::Input => None,
    }
}

#[cfg(test)]
mod tests {
    use super::covered;

    #[test]
    fn memory_that_tensors_share_is_counted_once() {
        assert_eq!(covered(vec![(100, 10), (100, 30), (120, 20), (200, 5)]), 45);
        assert_eq!(covered(vec![]), 0);
        assert_eq!(covered(vec![(u64::MAX - 1, 5), (0, 1)]), 2);
    }
}
