//! What threads did on the processors, each moment with its node.

use std::collections::HashMap;

use kernelio::kernel_log::{
    cpu::{Counter, CpuEvent, What},
    machine::MachineSample,
    stacks::{Function, Stacks},
};

use super::{Moment, Timeline};

/// No sample stands for more; a damaged log may claim anything.
const MAX_SAMPLED_NANOS: u64 = 10_000_000_000;

/// Everything that `record --cpu` has recorded.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    /// By time.
    pub samples: Vec<CpuSample>,
    /// By their beginning.
    pub off: Vec<OffCpu>,
    pub counted: Vec<Counted>,
    pub machine: Vec<MachineSample>,
    pub stacks: Stacks,
    /// What each stack is about; the first is that of no stack.
    activities: Vec<Activity>,
}

/// A thread that was found running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSample {
    pub nanos: u64,
    pub pid: u32,
    pub tid: u32,
    pub cpu: u16,
    /// Time that it stands for.
    pub sampled_nanos: u64,
    pub is_in_kernel: bool,
    /// Of [`Cpu::stacks`].
    pub stack: u32,
    /// `None` outside evaluations.
    pub at: Option<Moment>,
}

/// A time in which a thread did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffCpu {
    pub begin_nanos: u64,
    /// `None` when it did not run again.
    pub end_nanos: Option<u64>,
    pub pid: u32,
    pub tid: u32,
    /// Where it had run, and where it ran then.
    pub cpu: u16,
    pub next_cpu: Option<u16>,
    /// It could have gone on; else it waited for something.
    pub is_preempted: bool,
    /// When it ceased to run.
    pub at: Option<Moment>,
}

/// Events that a processor has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub nanos: u64,
    pub pid: u32,
    pub tid: u32,
    pub cpu: u16,
    pub counter: Counter,
    pub events: u64,
    pub at: Option<Moment>,
}

/// What a thread was doing when it was found running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Activity {
    /// The program's own functions.
    Computing,
    /// In a loop that waits for other threads.
    Waiting,
    /// The kernel, for the program: faults, system calls.
    Kernel,
}

impl Activity {
    pub fn name(self) -> &'static str {
        match self {
            Activity::Computing => "computing",
            Activity::Waiting => "waiting",
            Activity::Kernel => "kernel",
        }
    }

    fn of(innermost: Option<&Function>) -> Activity {
        match innermost {
            Some(function) if function.module == "[kernel]" => Activity::Kernel,
            Some(function) if waits(function) => Activity::Waiting,
            _ => Activity::Computing,
        }
    }
}

/// Functions in which threads wait for each other without giving their processor up: those
/// of ggml's own threads, and all of OpenMP's libraries, whose inner functions have no names.
fn waits(function: &Function) -> bool {
    const NAMES: &[&str] = &[
        "ggml_barrier",
        "ggml_thread_cpu_relax",
        "ggml_graph_compute_poll_for_work",
        "ggml_graph_compute_check_for_work",
    ];
    const BEGINNINGS: &[&str] = &["gomp_", "GOMP_", "__kmp_", "__kmpc_"];
    const LIBRARIES: &[&str] = &["libgomp", "libomp", "libiomp5"];
    NAMES.contains(&function.name.as_str())
        || BEGINNINGS.iter().any(|b| function.name.starts_with(b))
        || LIBRARIES.iter().any(|b| function.module.starts_with(b))
}

impl Cpu {
    /// `events` in any order; those of `own_threads`, which record, are left out.
    pub fn join(
        mut events: Vec<CpuEvent>,
        stacks: Stacks,
        machine: Vec<MachineSample>,
        own_threads: &[u32],
        timeline: &Timeline,
    ) -> Cpu {
        let numbers = 0..=stacks.len() as u32;
        let mut cpu = Cpu {
            activities: numbers
                .map(|stack| Activity::of(stacks.innermost(stack)))
                .collect(),
            stacks,
            machine,
            ..Cpu::default()
        };
        events.retain(|event| !own_threads.contains(&event.tid));
        events.sort_by_key(|event| event.nanos);
        // The last time that each thread ceased to run, by its place in the list.
        let mut open: HashMap<u32, usize> = HashMap::new();
        for event in events {
            let CpuEvent {
                nanos,
                pid,
                tid,
                cpu: processor,
                what,
            } = event;
            let at = timeline.at(nanos);
            match what {
                What::Sample {
                    stack,
                    nanos: sampled_nanos,
                    is_in_kernel,
                } => cpu.samples.push(CpuSample {
                    nanos,
                    pid,
                    tid,
                    cpu: processor,
                    sampled_nanos: sampled_nanos.min(MAX_SAMPLED_NANOS),
                    is_in_kernel,
                    stack,
                    at,
                }),
                What::Waits | What::Preempted => {
                    open.insert(tid, cpu.off.len());
                    cpu.off.push(OffCpu {
                        begin_nanos: nanos,
                        end_nanos: None,
                        pid,
                        tid,
                        cpu: processor,
                        next_cpu: None,
                        is_preempted: what == What::Preempted,
                        at,
                    });
                }
                What::On => {
                    if let Some(off) = open.remove(&tid).map(|number| &mut cpu.off[number]) {
                        off.end_nanos = Some(nanos);
                        off.next_cpu = Some(processor);
                    }
                }
                What::Counted { counter, events } => cpu.counted.push(Counted {
                    nanos,
                    pid,
                    tid,
                    cpu: processor,
                    counter,
                    events,
                    at,
                }),
            }
        }
        cpu
    }

    pub fn activity(&self, sample: &CpuSample) -> Activity {
        match sample.is_in_kernel {
            true => Activity::Kernel,
            // A stack that a kill has cut off is not there.
            false => *self
                .activities
                .get(sample.stack as usize)
                .unwrap_or(&Activity::Computing),
        }
    }

    /// Functions of a stack from the outside in.
    pub fn calls(&self, stack: u32) -> Vec<&Function> {
        let functions = self.stacks.functions();
        let mut calls: Vec<&Function> = self
            .stacks
            .inwards_out(stack)
            .filter_map(|number| functions.get(number as usize))
            .collect();
        calls.reverse();
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(nanos: u64, tid: u32, cpu: u16, what: What) -> CpuEvent {
        CpuEvent {
            nanos,
            pid: 1,
            tid,
            cpu,
            what,
        }
    }

    #[test]
    fn a_thread_is_off_between_ceasing_and_running_again() {
        let events = vec![
            event(5, 7, 0, What::On),
            event(30, 8, 1, What::Waits),
            event(40, 7, 2, What::On),
            event(10, 7, 0, What::Preempted),
            event(50, 9, 0, What::Preempted),
        ];
        let cpu = Cpu::join(
            events,
            Stacks::default(),
            Vec::new(),
            &[9],
            &Timeline::default(),
        );
        let off: Vec<_> = cpu
            .off
            .iter()
            .map(|o| {
                (
                    o.tid,
                    o.begin_nanos,
                    o.end_nanos,
                    o.next_cpu,
                    o.is_preempted,
                )
            })
            .collect();
        assert_eq!(
            off,
            [(7, 10, Some(40), Some(2), true), (8, 30, None, None, false)]
        );
    }

    #[test]
    fn threads_that_wait_for_each_other_are_told_from_those_that_compute() {
        let activity = |name: &str, module: &str| {
            let (name, module) = (name.to_owned(), module.to_owned());
            Activity::of(Some(&Function { name, module }))
        };
        assert_eq!(
            activity("ggml_barrier", "libggml-cpu.so"),
            Activity::Waiting
        );
        assert_eq!(
            activity("gomp_team_barrier_wait_end", "x"),
            Activity::Waiting
        );
        assert_eq!(
            activity("[libgomp.so.1.0.0]", "libgomp.so.1.0.0"),
            Activity::Waiting
        );
        assert_eq!(activity("ggml_vec_dot_q8_0", "x"), Activity::Computing);
        assert_eq!(activity("do_fault", "[kernel]"), Activity::Kernel);
        assert_eq!(Activity::of(None), Activity::Computing);
    }
}
