//! What devices (GPUs) did: which computed an evaluation, its kernels, when its steps ran, and
//! copies between memories.
//!
//! A device computes after the call that asked for it has returned, so the host's times say
//! nothing of a step. What was measured on the device is a time; what was not has none, and is
//! never made up from its neighbours. Kernels overlap: the next one may start before the one
//! before it has ended. What a kernel had for itself is [`Times::nanos`], and only that may be
//! added up.

use std::sync::Arc;

use trace::{
    device::{Copy, KernelKind, Launches},
    format::flags,
    read::{Definitions, Evaluation},
};

use crate::tensors::Tensor;

/// What tables call the processor's own memory and evaluations.
pub const PROCESSOR: &str = "CPU";

/// Something that computes graphs besides the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// ggml's name: `CUDA0`, `Vulkan0`.
    pub name: Arc<str>,
    /// What it is, in ggml's words.
    pub description: Arc<str>,
    /// All of its memory, if it said so.
    pub memory_bytes: Option<u64>,
}

impl Device {
    pub(crate) fn of(definitions: &Definitions, number: u32) -> Option<Device> {
        let def = definitions.devices.get(number as usize)?;
        Some(Device {
            name: definitions.text(def.name).into(),
            description: definitions.text(def.description).into(),
            memory_bytes: (def.memory_bytes != 0).then_some(def.memory_bytes),
        })
    }
}

/// A kernel that a graph launches on its device.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The step that launches it, where that is known.
    pub step: Option<u32>,
    pub kind: KernelKind,
    /// As the device's compiler spells it.
    pub name: Arc<str>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

impl Kernel {
    pub(crate) fn all(definitions: &Definitions, launches: &Launches) -> Vec<Kernel> {
        let kernels = launches.kernels.iter();
        kernels
            .map(|def| Kernel {
                step: def.step,
                kind: def.kind,
                name: definitions.text(def.name).into(),
                grid: def.grid,
                block: def.block,
            })
            .collect()
    }
}

/// When a step or a kernel ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub begin_nanos: u64,
    pub end_nanos: u64,
    /// What it had for itself: times of this kind add up to no more than their evaluation's.
    pub nanos: u64,
}

impl Times {
    /// Copies and fills inside a graph of the card's own have no times, its kernels have.
    pub fn is_measured(&self) -> bool {
        self.begin_nanos != 0
    }
}

/// Bytes of a tensor that were copied between host and device.
pub struct SeenCopy<'a> {
    /// Its number in the run.
    pub number: u64,
    /// Number in the run of the evaluation that follows it.
    pub eval: u64,
    pub stream: u32,
    pub copy: &'a Copy,
    pub tensor: &'a Tensor,
    pub device: &'a Device,
}

/// When each kernel ran, as far as [`Times::is_measured`]; `None` where none was measured. `kernels` is how many there are.
pub(crate) fn kernel_times(evaluation: &Evaluation, kernels: usize) -> Option<Vec<Times>> {
    let measured = &evaluation.device.as_ref()?.kernel_nanos;
    let is_good = !measured.is_empty()
        && measured.len() == kernels
        && evaluation.flags & flags::KERNELS_DIFFER == 0;
    is_good.then(|| exclusive(measured))
}

/// Each kernel from when the latest of those that began before it had ended.
fn exclusive(measured: &[(u64, u64)]) -> Vec<Times> {
    let mut order: Vec<usize> = (0..measured.len()).collect();
    // Stable: of those that began together the one launched first comes first.
    order.sort_by_key(|&at| measured[at].0);
    let times = |&(begin_nanos, end_nanos): &(u64, u64)| Times {
        begin_nanos,
        end_nanos,
        nanos: 0,
    };
    let mut all: Vec<Times> = measured.iter().map(times).collect();
    let mut latest = 0;
    for at in order {
        let kernel = &mut all[at];
        let begin = kernel.begin_nanos.max(latest);
        kernel.nanos = kernel.end_nanos.saturating_sub(begin);
        latest = latest.max(kernel.end_nanos);
    }
    all
}

/// When each step ran, by its kernels: from the begin of the first to the end of the last.
/// `None` for one that launched nothing, or nothing that was measured.
pub(crate) fn step_times(kernels: &[Kernel], times: &[Times], steps: usize) -> Vec<Option<Times>> {
    let mut of_steps: Vec<Option<Times>> = vec![None; steps];
    let measured = kernels.iter().zip(times);
    for (kernel, times) in measured.filter(|(_, times)| times.is_measured()) {
        let step = kernel.step.and_then(|step| of_steps.get_mut(step as usize));
        match step {
            Some(Some(step)) => {
                step.begin_nanos = step.begin_nanos.min(times.begin_nanos);
                step.end_nanos = step.end_nanos.max(times.end_nanos);
                step.nanos = step.nanos.saturating_add(times.nanos);
            }
            Some(step) => *step = Some(*times),
            None => {}
        }
    }
    of_steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(measured: &[(u64, u64)]) -> Vec<u64> {
        exclusive(measured)
            .iter()
            .map(|times| times.nanos)
            .collect()
    }

    #[test]
    fn a_kernel_has_for_itself_what_no_earlier_one_covers() {
        // One behind the other, and with a gap.
        assert_eq!(nanos(&[(10, 20), (20, 35), (40, 41)]), [10, 15, 1]);
        // The next one starts before the one before it has ended.
        assert_eq!(nanos(&[(10, 20), (15, 30)]), [10, 10]);
        // Within another.
        assert_eq!(nanos(&[(10, 50), (15, 30), (45, 60)]), [40, 0, 10]);
        // Launched in another order than they ran.
        assert_eq!(nanos(&[(30, 40), (10, 35)]), [5, 25]);
        // What cannot be takes no time.
        assert_eq!(nanos(&[(30, 10), (0, u64::MAX)]), [0, u64::MAX]);
    }

    #[test]
    fn a_step_that_only_copies_inside_a_graph_has_no_time() {
        let kernel = |step, kind| Kernel {
            step: Some(step),
            kind,
            name: "k".into(),
            grid: [1; 3],
            block: [1; 3],
        };
        let kernels = [kernel(0, KernelKind::Kernel), kernel(1, KernelKind::Copy)];
        let times = exclusive(&[(10, 20), (0, 0)]);
        let of_steps = step_times(&kernels, &times, 2);
        assert_eq!(
            of_steps.iter().map(Option::is_some).collect::<Vec<_>>(),
            [true, false]
        );
    }

    #[test]
    fn exclusive_times_are_what_the_kernels_cover_together() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for _ in 0..200 {
            let measured: Vec<(u64, u64)> = (0..next(12))
                .map(|_| {
                    let begin = 1 + next(60);
                    (begin, begin + next(20))
                })
                .collect();
            let covered = (0..100u64)
                .filter(|at| measured.iter().any(|(b, e)| (b..e).contains(&at)))
                .count() as u64;
            assert_eq!(nanos(&measured).iter().sum::<u64>(), covered);
        }
    }
}
