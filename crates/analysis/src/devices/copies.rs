//! Bytes between host and device, by tensor and way, with the phase that they belong to.
//!
//! A copy is logged before the evaluation that follows it. What goes to a device is for that
//! evaluation; what comes back is of the one before.

use std::collections::{BTreeMap, HashMap};

use reader::SeenCopy;
use serde::{Deserialize, Serialize};
use trace::{device::Way, format::Phase, template::TensorKind};

/// Copies of one tensor, or of those of several layers that have one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyRow {
    /// `load` for weights before the first evaluation.
    pub phase: String,
    /// Without the number of its layer.
    pub tensor: String,
    pub kind: String,
    /// `host_to_device`, `device_to_host` or `device_to_device`.
    pub way: String,
    pub calls: u64,
    pub bytes: u64,
    /// Of the calls, which need not wait.
    pub nanos: u64,
}

/// Device, phase, way, kind, tensor.
type Key = (String, &'static str, &'static str, &'static str, String);

#[derive(Debug, Default)]
pub(super) struct Accumulator {
    rows: BTreeMap<Key, CopyRow>,
    /// Of the stream at hand: to be given the phase of the evaluation that follows.
    waiting: HashMap<Key, CopyRow>,
    /// Of the evaluation before.
    last: Option<(u32, Phase)>,
}

const LOAD: &str = "load";

impl Accumulator {
    pub fn push_evaluation(&mut self, stream: u32, phase: Phase) {
        self.last = Some((stream, phase));
        self.settle(phase);
    }

    pub fn push(&mut self, seen: &SeenCopy) {
        let copy = seen.copy;
        let kind = seen.tensor.kind;
        let last = self.last.filter(|&(stream, _)| stream == seen.stream);
        let phase = match (copy.way, last) {
            (_, None) if kind == TensorKind::Weight => Some(LOAD),
            (Way::DeviceToHost, Some((_, phase))) => Some(phase.name()),
            _ => None,
        };
        let key = (
            seen.device.name.to_string(),
            phase.unwrap_or_default(),
            copy.way.name(),
            kind.name(),
            without_layer(&seen.tensor.name).to_owned(),
        );
        let row = match phase {
            Some(_) => self.rows.entry(key).or_default(),
            None => self.waiting.entry(key).or_default(),
        };
        row.calls += 1;
        row.bytes = row.bytes.saturating_add(copy.bytes);
        let nanos = copy.end_nanos.saturating_sub(copy.begin_nanos);
        row.nanos = row.nanos.saturating_add(nanos);
    }

    pub fn end_stream(&mut self) {
        let phase = self.last.take().map_or(Phase::Unknown, |(_, phase)| phase);
        self.settle(phase);
    }

    fn settle(&mut self, phase: Phase) {
        for ((device, _, way, kind, tensor), more) in self.waiting.drain() {
            let key = (device, phase.name(), way, kind, tensor);
            let row = self.rows.entry(key).or_default();
            row.calls += more.calls;
            row.bytes = row.bytes.saturating_add(more.bytes);
            row.nanos = row.nanos.saturating_add(more.nanos);
        }
    }

    /// By device; most bytes first.
    pub fn finish(self) -> BTreeMap<String, Vec<CopyRow>> {
        let mut devices: BTreeMap<String, Vec<CopyRow>> = BTreeMap::new();
        for ((device, phase, way, kind, tensor), row) in self.rows {
            devices.entry(device).or_default().push(CopyRow {
                phase: phase.to_owned(),
                tensor,
                kind: kind.to_owned(),
                way: way.to_owned(),
                ..row
            });
        }
        for rows in devices.values_mut() {
            rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        }
        devices
    }
}

/// `ffn_norm-3` is `ffn_norm`, `blk.3.ffn_up_exps.weight` is `ffn_up_exps.weight`.
fn without_layer(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some((base, layer)) = name.rsplit_once('-')
        && is_number(layer)
    {
        return base;
    }
    match name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
    {
        Some((layer, rest)) if is_number(layer) => rest,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_layers_are_one() {
        let check = |name, expected| assert_eq!(without_layer(name), expected);
        check("ffn_norm-12", "ffn_norm");
        check("blk.3.ffn_up_exps.weight", "ffn_up_exps.weight");
        check("inp_pos", "inp_pos");
        check("a-b", "a-b");
        check("blk.x.y", "blk.x.y");
    }
}
