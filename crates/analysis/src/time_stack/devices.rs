//! What devices did in the time of a phase.
//!
//! Every moment is one thing only: a device computes; else the processor computes nodes; else
//! the host copies; else it is in the call that hands an evaluation to a device; else it does
//! something of its own. So the parts add up, and what goes on beside a device that computes
//! costs nothing.
//!
//! Which part of a device's time kernels took is known of evaluations whose kernels were timed.
//! Others of the same graph are taken to have had the same kernels, and their gaps are what they
//! took longer: CUPTI makes gaps longer in those that it watches, kernels hardly. Graphs of which
//! no evaluation was watched are not told apart ([`DeviceTime::unsplit`]).

use std::collections::{BTreeMap, HashMap};

use reader::SeenCopy;
use serde::{Deserialize, Serialize};
use trace::{device::Way, format::Phase};

use crate::underneath::intervals::Union;

/// Of one phase, of all devices together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTime {
    pub evaluations: u64,
    /// Of these, how long a device took was not measured: their time is in other parts.
    pub untimed: u64,
    /// With kernels that were timed.
    pub measured: u64,
    /// A kernel ran.
    pub kernels: u64,
    /// The device had an evaluation to compute, and no kernel ran.
    pub gaps: u64,
    /// One of these two, and nobody measured which.
    pub unsplit: u64,
    /// Copies between host and device while nothing was computed; where `untimed` is not 0 they
    /// may have waited for a device.
    pub copies: u64,
    /// In calls that hand an evaluation to a device.
    pub launching: u64,
    /// Calls that copied, and their bytes, also those beside a device that computed.
    pub copy_calls: u64,
    pub to_device_bytes: u64,
    pub from_device_bytes: u64,
    /// Kernels of an evaluation, of those that were timed.
    pub kernels_each: u64,
}

impl DeviceTime {
    /// A device computed, as far as that is known.
    pub fn computing(&self) -> u64 {
        self.kernels + self.gaps + self.unsplit
    }

    pub fn nanos(&self) -> u64 {
        self.computing() + self.copies + self.launching
    }

    pub(super) fn parts(&self) -> [(&'static str, Option<u64>); 5] {
        let copies = match self.untimed {
            0 => "copying to and from devices",
            _ => "copying to and from devices, or waiting for them",
        };
        let known = |nanos: u64| (nanos > 0).then_some(nanos);
        [
            ("kernels of devices", known(self.kernels)),
            ("gaps between kernels", known(self.gaps)),
            ("devices: kernels and gaps", known(self.unsplit)),
            (copies, known(self.copies)),
            ("handing work to devices", known(self.launching)),
        ]
    }
}

/// While the log goes by.
#[derive(Debug, Default)]
pub(super) struct Seen {
    phases: HashMap<Phase, OfPhase>,
    copies: Vec<OneCopy>,
}

#[derive(Debug, Default)]
struct OfPhase {
    evaluations: u64,
    untimed: u64,
    /// In which a device was asked; it computed; the processor computed nodes.
    calls: Vec<(u64, u64)>,
    device: Vec<(u64, u64)>,
    processor: Vec<(u64, u64)>,
    graphs: BTreeMap<u32, Graph>,
}

/// Evaluations of one graph on a device that were timed.
#[derive(Debug, Default)]
struct Graph {
    /// Those whose kernels were.
    measured: u64,
    kernels: u64,
    kernel_nanos: u64,
    measured_nanos: u64,
    others: u64,
    other_nanos: u64,
}

#[derive(Debug)]
struct OneCopy {
    nanos: (u64, u64),
    way: Way,
    bytes: u64,
}

impl Seen {
    pub fn evaluation(&mut self, seen: &reader::Seen) {
        let of = self.phases.entry(seen.evaluation.phase).or_default();
        let call = (seen.evaluation.begin_nanos, seen.evaluation.end_nanos);
        if !seen.is_on_device() {
            of.processor.push(call);
            return;
        }
        of.evaluations += 1;
        of.calls.push(call);
        let Some((begin, end)) = seen.device_nanos() else {
            of.untimed += 1;
            return;
        };
        of.device.push((begin, end));
        let nanos = end.saturating_sub(begin);
        let graph = of.graphs.entry(seen.template).or_default();
        match seen.kernel_times() {
            Some(times) => {
                let ran = times.iter().filter(|times| times.is_measured());
                let ran = ran.fold(0, |n: u64, times| n.saturating_add(times.nanos));
                graph.measured += 1;
                graph.kernels += times.len() as u64;
                add(&mut graph.kernel_nanos, ran.min(nanos));
                add(&mut graph.measured_nanos, nanos);
            }
            None => {
                graph.others += 1;
                add(&mut graph.other_nanos, nanos);
            }
        }
    }

    pub fn copy(&mut self, seen: &SeenCopy) {
        self.copies.push(OneCopy {
            nanos: (seen.copy.begin_nanos, seen.copy.end_nanos),
            way: seen.copy.way,
            bytes: seen.copy.bytes,
        });
    }

    /// What devices did in a phase, and when the processor computed and no device did; `None`
    /// if devices had no part in it. `windows`: its evaluations; `pauses`: between them.
    pub fn of(
        &self,
        phase: Phase,
        windows: &Union,
        pauses: Vec<(u64, u64)>,
    ) -> Option<(DeviceTime, Union)> {
        let of = self.phases.get(&phase).filter(|of| of.evaluations > 0)?;
        let all = Union::of(windows.parts().chain(pauses));
        let device = Union::of(of.device.iter().copied()).and(windows);
        let processor = Union::of(of.processor.iter().copied());
        let processor = processor.and(windows).without(&device);
        let is_inside = |copy: &&OneCopy| all.covers(copy.nanos.0);
        let copied = || self.copies.iter().filter(is_inside);
        let computing = Union::of(device.parts().chain(processor.parts()));
        let copies = Union::of(copied().map(|copy| copy.nanos));
        let copies = copies.and(&all).without(&computing);
        let calls = Union::of(of.calls.iter().copied()).and(windows);
        let launching = calls.without(&computing).without(&copies);
        let bytes = |way: Way| {
            let of_way = copied().filter(|copy| copy.way == way);
            of_way.fold(0, |n: u64, copy| n.saturating_add(copy.bytes))
        };
        let mut time = DeviceTime {
            evaluations: of.evaluations,
            untimed: of.untimed,
            copies: copies.nanos(),
            launching: launching.nanos(),
            copy_calls: copied().count() as u64,
            to_device_bytes: bytes(Way::HostToDevice),
            from_device_bytes: bytes(Way::DeviceToHost),
            ..DeviceTime::default()
        };
        time.split(device.nanos(), of.graphs.values());
        Some((time, processor))
    }
}

impl DeviceTime {
    /// Into kernels, gaps, and what is not known, of all the time of devices.
    fn split<'a>(&mut self, nanos: u64, graphs: impl Iterator<Item = &'a Graph>) {
        let (mut kernels, mut split, mut all, mut launched) = (0.0, 0.0, 0.0, 0);
        for graph in graphs {
            let own = graph.measured_nanos as f64 + graph.other_nanos as f64;
            all += own;
            if graph.measured == 0 {
                continue;
            }
            let each = graph.kernel_nanos as f64 / graph.measured as f64;
            kernels += graph.kernel_nanos as f64;
            kernels += (each * graph.others as f64).min(graph.other_nanos as f64);
            split += own;
            self.measured += graph.measured;
            launched += graph.kernels;
        }
        // Devices that compute at the same time take it once.
        let scale = nanos as f64 / f64::max(all, 1.0);
        let split = ((split * scale) as u64).min(nanos);
        self.kernels = ((kernels * scale) as u64).min(split);
        self.gaps = split - self.kernels;
        self.unsplit = nanos - split;
        self.kernels_each = launched.checked_div(self.measured).unwrap_or(0);
    }
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}
