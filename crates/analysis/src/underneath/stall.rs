//! Time that nodes spent while the disk was reading the model, and waiting for it.

use std::collections::BTreeMap;

use kernelio::kernel_log::faults::FaultKind;
use reader::kernel::JoinedFault;
use serde::{Deserialize, Serialize};

use super::{faults::Wait, intervals::Union, requests::Request, work::Work};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StallResults {
    pub total: StallSum,
    /// By what nodes are; those with most time with I/O outstanding first, then
    /// those with most faults.
    pub by_node: Vec<NodeStall>,
    /// `None` are nodes of no layer.
    pub by_layer: Vec<LayerStall>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StallSum {
    /// Executed nodes.
    pub executions: u64,
    /// Time in them.
    pub nanos: u64,
    /// Of it, with a read of the model outstanding.
    pub io_nanos: u64,
    pub io_share: f64,
    /// Reads of the model that were issued in them.
    pub requests: u64,
    pub read_bytes: u64,
    pub major_faults: u64,
    pub minor_faults: u64,
    /// Of all threads together, in faults that read or waited for a read.
    pub wait_nanos: u64,
    /// Threads that waited on average.
    pub mean_waiting: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStall {
    pub phase: String,
    pub op: String,
    pub layer: Option<u32>,
    #[serde(flatten)]
    pub sum: StallSum,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerStall {
    pub layer: Option<u32>,
    #[serde(flatten)]
    pub sum: StallSum,
}

impl StallSum {
    fn add(&mut self, other: &StallSum) {
        self.executions += other.executions;
        self.nanos += other.nanos;
        self.io_nanos += other.io_nanos;
        self.requests += other.requests;
        self.read_bytes += other.read_bytes;
        self.major_faults += other.major_faults;
        self.minor_faults += other.minor_faults;
        self.wait_nanos += other.wait_nanos;
    }

    fn with_shares(mut self) -> StallSum {
        let share = |part: u64| part as f64 / self.nanos.max(1) as f64;
        (self.io_share, self.mean_waiting) = (share(self.io_nanos), share(self.wait_nanos));
        self
    }
}

/// `outstanding` are the times with a read of the model outstanding.
pub fn stall(
    work: &Work,
    outstanding: &Union,
    requests: &[Request],
    faults: &[JoinedFault],
    waits: &[Wait],
) -> StallResults {
    let mut sums = vec![StallSum::default(); work.kinds().len()];
    work.for_each_node(|kind, begin, end| {
        let sum = &mut sums[kind];
        sum.executions += 1;
        sum.nanos += end.saturating_sub(begin);
        sum.io_nanos += outstanding.within(begin, end);
    });
    let kind_at = |at: Option<_>| at.and_then(|moment| work.kind_at(moment));
    for request in requests.iter().filter(|request| request.is_model_read()) {
        if let Some(kind) = kind_at(request.at) {
            sums[kind].requests += 1;
            sums[kind].read_bytes += request.model_bytes;
        }
    }
    for joined in faults.iter().filter(|joined| joined.fault.place.is_some()) {
        if let Some(kind) = kind_at(joined.at) {
            match joined.fault.kind {
                FaultKind::Major => sums[kind].major_faults += 1,
                FaultKind::Minor => sums[kind].minor_faults += 1,
            }
        }
    }
    for wait in waits {
        if let Some(kind) = kind_at(faults[wait.fault].at) {
            sums[kind].wait_nanos += wait.end_nanos - wait.begin_nanos;
        }
    }
    let mut total = StallSum::default();
    let mut layers: BTreeMap<(bool, Option<u32>), StallSum> = BTreeMap::new();
    for (kind, sum) in work.kinds().iter().zip(&sums) {
        total.add(sum);
        let layer = layers.entry((kind.layer.is_none(), kind.layer));
        layer.or_default().add(sum);
    }
    let mut by_node: Vec<NodeStall> = work
        .kinds()
        .iter()
        .zip(sums)
        .filter(|(_, sum)| sum.executions > 0)
        .map(|(kind, sum)| NodeStall {
            phase: kind.phase.name().to_owned(),
            op: kind.op.clone(),
            layer: kind.layer,
            sum: sum.with_shares(),
        })
        .collect();
    by_node.sort_by(|a, b| {
        let key = |node: &NodeStall| (node.sum.io_nanos, node.sum.major_faults);
        let name = |node: &NodeStall| (node.phase.clone(), node.op.clone(), node.layer);
        key(b).cmp(&key(a)).then_with(|| name(a).cmp(&name(b)))
    });
    StallResults {
        total: total.with_shares(),
        by_node,
        by_layer: layers
            .into_iter()
            .map(|((_, layer), sum)| LayerStall {
                layer,
                sum: sum.with_shares(),
            })
            .collect(),
    }
}
