//! What devices (GPUs) did: time, gaps, copies, what lies in their memory, and what their nodes
//! reached.
//!
//! A time that nobody measured is nowhere in here: sums of times come with the number of
//! evaluations they are of, and bytes are held against time only where both are known of the
//! same execution. A device computes one *split* of a graph; what belongs to a token is added
//! up over the splits of its pass. Which experts were read is on the device, and is known of
//! those evaluations only that read it back ([`ExpertsKnown`]).

mod copies;
mod memory;

use std::collections::BTreeMap;

use kernelio::card::CardCeiling;
use reader::{Device, Seen, SeenCopy, Tensors, Times, device::PROCESSOR};
use serde::{Deserialize, Serialize};
use trace::{
    format::Phase,
    template::{Direction, TensorKind},
};

use crate::{
    roofline::{
        cards::{self, Reached, Work},
        classes::class_name,
    },
    traffic::{PHASES, works_on},
};
pub use copies::CopyRow;
pub use memory::{HostPart, HostRow, MemoryRow};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceResults {
    /// Those besides the processor that computed or were copied to.
    pub devices: Vec<DeviceFacts>,
    pub experts: ExpertsKnown,
    /// What the processor keeps of a model that devices compute.
    pub host: HostPart,
    /// What lies in the host's memory.
    pub host_memory: Vec<HostRow>,
    /// Passes by phase: the splits of one graph are one.
    pub passes: Vec<Passes>,
}

/// Evaluations whose graph chooses experts, and those of them of which is known which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertsKnown {
    pub evaluations: u64,
    pub known: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passes {
    pub phase: String,
    /// Evaluations that have tokens: the others are further splits of theirs.
    pub passes: u64,
    pub tokens: u64,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub device: String,
    pub description: String,
    /// All of its memory, if it said so.
    pub memory_bytes: Option<u64>,
    pub phases: Vec<DevicePhase>,
    pub copies: Vec<CopyRow>,
    pub memory: Vec<MemoryRow>,
    /// Nodes of evaluations whose nodes were timed, those that took longest first.
    pub classes: Vec<DeviceClass>,
}

/// What a device did in one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePhase {
    pub phase: String,
    pub evaluations: u64,
    /// Those that the device timed, and how long they took together.
    pub timed_evaluations: u64,
    pub nanos: u64,
    /// Those whose kernels were timed; from their first kernel to their last; while one ran.
    pub measured_evaluations: u64,
    pub span_nanos: u64,
    pub kernel_nanos: u64,
    pub kernels: u64,
    /// From the end of an evaluation to the begin of the next, both timed, none between them;
    /// `None` where several threads computed on the device, which may have used these times.
    pub between: Option<Between>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Between {
    pub gaps: u64,
    pub nanos: u64,
}

/// Nodes of one op with weights of one type for one part of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceClass {
    pub phase: String,
    pub op: String,
    /// Of the weight that the nodes read, or of the KV cache.
    pub weight_type: Option<String>,
    pub component: String,
    pub executions: u64,
    /// What they had for themselves: kernels overlap.
    pub nanos: u64,
    /// The part of `nanos` in executions of which is known what they touched, and what that was.
    pub counted_nanos: u64,
    pub weight_bytes: u64,
    /// Of views of a KV cache the cells in use, as far as these are known.
    pub kv_bytes: u64,
    pub other_bytes: u64,
    /// The other cells of these views: not in `kv_bytes`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unused_kv_bytes: u64,
    /// Of `kv_bytes`, views of which it is not known: all of their cells.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub whole_view_bytes: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl DeviceResults {
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    pub fn of_phase(&self, phase: &str) -> Option<&Passes> {
        self.passes.iter().find(|passes| passes.phase == phase)
    }
}

impl ExpertsKnown {
    /// Nothing that needs all choices may be said otherwise.
    pub fn are_all(&self) -> bool {
        self.known == self.evaluations
    }
}

impl DeviceFacts {
    pub fn phase(&self, name: &str) -> Option<&DevicePhase> {
        self.phases.iter().find(|phase| phase.phase == name)
    }

    /// Bytes of its memory that this run is known to have used.
    pub fn used_bytes(&self) -> u64 {
        self.memory
            .iter()
            .fold(0, |n, row| n.saturating_add(row.bytes))
    }

    /// What is left: other programs and the driver take of it, too.
    pub fn free_bytes(&self) -> Option<u64> {
        Some(self.memory_bytes?.saturating_sub(self.used_bytes()))
    }
}

impl DevicePhase {
    /// No kernel ran, between the first and the last of an evaluation.
    pub fn gap_nanos(&self) -> u64 {
        self.span_nanos.saturating_sub(self.kernel_nanos)
    }
}

impl DeviceClass {
    fn add_access(&mut self, seen: &Seen, at: usize, bytes: u64) {
        let access = &seen.prepared.accesses[at];
        let add = |sum: &mut u64, bytes| *sum = sum.saturating_add(bytes);
        match access.kind {
            TensorKind::Weight => add(&mut self.weight_bytes, bytes),
            TensorKind::KvCache => {
                let used = seen.used_bytes(at);
                add(&mut self.kv_bytes, used.unwrap_or(bytes));
                let is_view = access.direction == Direction::Read && access.index.is_none();
                match used {
                    Some(used) => add(&mut self.unused_kv_bytes, bytes.saturating_sub(used)),
                    None if is_view => add(&mut self.whole_view_bytes, bytes),
                    None => {}
                }
            }
            TensorKind::Activation | TensorKind::Input => add(&mut self.other_bytes, bytes),
        }
    }

    /// `MUL_MAT q4_0 ffn`.
    pub fn name(&self) -> String {
        class_name(&self.op, self.weight_type.as_deref(), &self.component)
    }

    pub fn bytes(&self) -> u64 {
        let bytes = [self.weight_bytes, self.kv_bytes, self.other_bytes];
        bytes.into_iter().fold(0, u64::saturating_add)
    }

    pub fn bytes_per_second(&self) -> Option<f64> {
        let is_known = self.counted_nanos > 0 && self.bytes() > 0;
        is_known.then(|| self.bytes() as f64 * 1e9 / self.counted_nanos as f64)
    }

    /// Against what the card allows, where that was measured.
    pub fn reached(&self, device: &str, cards: &[CardCeiling]) -> Option<Reached> {
        let work = Work {
            device,
            op: &self.op,
            weight_type: self.weight_type.as_deref(),
            bytes: self.bytes(),
            flops: None,
            exclusive_nanos: self.counted_nanos,
        };
        cards::reached(cards, &work)
    }
}

/// Sums while the log goes by.
#[derive(Debug, Default)]
pub struct Accumulator {
    devices: BTreeMap<String, OfDevice>,
    experts: ExpertsKnown,
    passes: [Passes; 3],
    copies: copies::Accumulator,
    bits: Vec<u64>,
}

#[derive(Debug, Default)]
struct OfDevice {
    description: String,
    memory_bytes: Option<u64>,
    phases: [DevicePhase; 3],
    between: [Between; 3],
    /// The stream that computed on it; `None` after a second one did.
    stream: Option<u32>,
    has_several_streams: bool,
    /// When the evaluation before ended, and its phase; `None` if nobody measured it.
    last_end: Option<(u64, Phase)>,
    classes: BTreeMap<ClassKey, DeviceClass>,
}

/// Phase, op, type, component.
type ClassKey = (&'static str, String, Option<&'static str>, &'static str);

impl Accumulator {
    pub fn push(&mut self, seen: &Seen) {
        let phase = seen.evaluation.phase;
        if seen.has_routers() {
            self.experts.evaluations += 1;
            self.experts.known += u64::from(seen.experts_are_known());
        }
        if seen.tokens() > 0 {
            let passes = &mut self.passes[phase as usize];
            passes.passes += 1;
            passes.tokens += seen.tokens();
        }
        self.copies.push_evaluation(seen.stream, phase);
        let Some(device) = &seen.prepared.device else {
            return;
        };
        let of = self.devices.entry(device.name.to_string()).or_default();
        of.about(device);
        of.push(seen, phase, &mut self.bits);
    }

    pub fn copy(&mut self, copy: &SeenCopy) {
        let device = copy.device;
        let of = self.devices.entry(device.name.to_string()).or_default();
        of.about(device);
        self.copies.push(copy);
    }

    pub fn end_stream(&mut self) {
        self.copies.end_stream();
    }

    pub fn finish(mut self, tensors: &Tensors) -> DeviceResults {
        if self.devices.is_empty() {
            return DeviceResults::default();
        }
        let mut memory = memory::by_device(tensors);
        let host = memory::host_part(tensors);
        let mut copies = self.copies.finish();
        let devices = self.devices.into_iter().map(|(device, of)| {
            let memory = memory.remove(&device).unwrap_or_default();
            let copies = copies.remove(&device).unwrap_or_default();
            of.finish(device, memory, copies)
        });
        let devices = devices.collect();
        for (phase, passes) in PHASES.iter().zip(&mut self.passes) {
            passes.phase = phase.name().to_owned();
        }
        let passes = self.passes.into_iter();
        DeviceResults {
            devices,
            experts: self.experts,
            host,
            host_memory: memory::on_host(tensors),
            passes: passes.filter(|passes| passes.passes > 0).collect(),
        }
    }
}

impl OfDevice {
    fn about(&mut self, device: &Device) {
        if self.description.is_empty() {
            self.description = device.description.to_string();
            self.memory_bytes = device.memory_bytes;
        }
    }

    fn push(&mut self, seen: &Seen, phase: Phase, bits: &mut Vec<u64>) {
        self.has_several_streams |= self.stream.is_some_and(|stream| stream != seen.stream);
        self.stream = Some(seen.stream);
        let sum = &mut self.phases[phase as usize];
        sum.evaluations += 1;
        let timed = seen.device_nanos();
        if let Some((begin, end)) = timed {
            sum.timed_evaluations += 1;
            sum.nanos = sum.nanos.saturating_add(end.saturating_sub(begin));
            // A pause before a prompt is a user's, not the program's.
            if let Some((last, of_phase)) = self.last_end
                && of_phase == phase
            {
                let between = &mut self.between[phase as usize];
                between.gaps += 1;
                between.nanos = between.nanos.saturating_add(begin.saturating_sub(last));
            }
        }
        self.last_end = timed.map(|(_, end)| (end, phase));
        if let Some(mut times) = seen.kernel_times() {
            times.retain(reader::Times::is_measured);
            sum.add_kernels(&times);
            self.push_steps(seen, phase, bits);
        }
    }

    fn push_steps(&mut self, seen: &Seen, phase: Phase, bits: &mut Vec<u64>) {
        for executed in seen.steps() {
            let Some(times) = executed.times else {
                continue;
            };
            let step = executed.step;
            let on = works_on(seen.prepared, step, seen.tensors);
            let component = on.map_or(TensorKind::Activation.name(), |t| t.part_in(&step.op));
            let ty = on.map(|t| t.type_name());
            let key = (phase.name(), step.op.to_string(), ty, component);
            let class = self.classes.entry(key).or_default();
            class.executions += 1;
            class.nanos = class.nanos.saturating_add(times.nanos);
            if !(step.first..step.end).all(|at| seen.is_index_known(at)) {
                continue;
            }
            class.counted_nanos = class.counted_nanos.saturating_add(times.nanos);
            for at in step.first..step.end {
                class.add_access(seen, at, seen.traffic_of(at, bits).bytes);
            }
        }
    }

    fn finish(self, device: String, memory: Vec<MemoryRow>, copies: Vec<CopyRow>) -> DeviceFacts {
        let sums = PHASES.iter().zip(self.phases).zip(self.between);
        let phases = sums.map(|((phase, sum), between)| DevicePhase {
            phase: phase.name().to_owned(),
            between: (!self.has_several_streams && between.gaps > 0).then_some(between),
            ..sum
        });
        let classes = self.classes.into_iter();
        let classes = classes.map(|((phase, op, ty, component), class)| DeviceClass {
            phase: phase.to_owned(),
            op,
            weight_type: ty.map(str::to_owned),
            component: component.to_owned(),
            ..class
        });
        let mut classes: Vec<DeviceClass> = classes.collect();
        classes.sort_by_key(|class| std::cmp::Reverse(class.nanos));
        DeviceFacts {
            device,
            description: self.description,
            memory_bytes: self.memory_bytes,
            phases: phases.filter(|sum| sum.evaluations > 0).collect(),
            copies,
            memory,
            classes,
        }
    }
}

impl DevicePhase {
    fn add_kernels(&mut self, times: &[Times]) {
        let begin = times.iter().map(|t| t.begin_nanos).min().unwrap_or(0);
        let end = times.iter().map(|t| t.end_nanos).max().unwrap_or(0);
        let ran = times.iter().fold(0, |n: u64, t| n.saturating_add(t.nanos));
        self.measured_evaluations += 1;
        self.kernels += times.len() as u64;
        self.span_nanos = self.span_nanos.saturating_add(end.saturating_sub(begin));
        self.kernel_nanos = self.kernel_nanos.saturating_add(ran);
    }
}

/// Whether it is a device's memory, not the processor's.
fn is_device(name: &str) -> bool {
    name != PROCESSOR
}
