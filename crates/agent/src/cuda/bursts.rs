//! Short times in which CUPTI is attached, so that single kernels have times.
//!
//! There is one at a time in the process. Programs evaluate a context now on this thread, now
//! on that, so it belongs to none.
//!
//! 1. Before a graph is launched the [`Governor`] is asked. If a burst may begin, the card is
//!    waited for and CUPTI attached.
//! 2. The next evaluations are *calls* of the burst. Each notes the correlation numbers of what
//!    it launches.
//! 3. Before the one after them, once none is under way, the cards are waited for, until they have
//!    ended what each call launched, on whichever of them and in whichever stream. CUPTI's
//!    buffers are flushed (without that the last launch would get the times of the next) and
//!    CUPTI is taken off again.
//! 4. What was measured is joined with the calls by these numbers, and given to
//!    [`super::Pending`].

mod governor;

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    ffi::c_void,
    mem::ManuallyDrop,
    sync::{
        Once,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use capture::recorder::device::Launch;
use trace::{clock::now_nanos, device::KernelKind};

pub use self::governor::GpuTimes;
use self::governor::{Decision, Governor};
use super::{
    cupti::{self, Cupti, Kernel},
    driver::{Driver, Event},
};
use crate::{devices::Known, lock::Lock, settings};

/// The burst that goes on.
static BURST: Lock<Option<Burst>> = Lock::new(None);
/// The first call that is still open; those before it are finished.
static FIRST_OPEN: AtomicU64 = AtomicU64::new(u64::MAX);
static FINISHED: Lock<Vec<(u64, Records)>> = Lock::new(Vec::new());
static GOVERNOR: Lock<Option<Governor>> = Lock::new(None);
static NEXT_CALL: AtomicU64 = AtomicU64::new(0);

/// What is kept for evaluations that ask late.
const MAX_FINISHED: usize = 1024;

thread_local! {
    /// The call of a burst that this thread is in.
    static CALL: Cell<Option<u64>> = const { Cell::new(None) };
    /// Never dropped: it is asked when the process ends, after what threads drop.
    static LAUNCHED: RefCell<ManuallyDrop<Vec<Launched>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

struct Burst {
    cupti: Cupti,
    calls: Vec<(u64, Vec<Launched>)>,
    /// What the cards come to when they have ended these calls.
    ends: Vec<Event>,
    calls_left: u32,
    /// The card's, of the thread that began it.
    context: Option<usize>,
    /// Calls that have begun and not ended.
    calls_open: u32,
    begun_nanos: u64,
    /// What attaching took.
    attached_nanos: u64,
}

/// Something that a call launched.
#[derive(Clone, Copy, Debug)]
pub struct Launched {
    pub correlation: u32,
    /// The question of the backend's walk that it was launched for.
    pub question: Option<u32>,
}

/// When each kernel began and ended.
pub type Times = Vec<(u64, u64)>;

/// What was measured of a call.
pub struct Records {
    /// By launch, in their order; of a graph of the card's own all its kernels have one.
    kernels: Vec<(Option<u32>, Kernel)>,
    pub flushed_nanos: u64,
    /// CUPTI lost none; which it lost is not known.
    pub is_whole: bool,
}

impl Records {
    /// The times of a graph of the card's own, for each of `known`, which were recorded from it;
    /// if these are not the kernels that ran, a sentence about the first that differs.
    pub fn of_graph(&self, known: &[Launch]) -> Result<Vec<(u64, u64)>, String> {
        let mut times = vec![(0, 0); known.len()];
        for (_, kernel) in &self.kernels {
            let at = kernel.graph_node as u32 as usize;
            let name = String::from_utf8_lossy(&kernel.name);
            let launch = known
                .get(at)
                .ok_or_else(|| format!("{name} ran as node {at} of {}", known.len()))?;
            // The driver has kernels of its own for copies and fills inside a card's memory. An
            // older one does not tell the names of the graph's.
            let is_named = launch.kind == KernelKind::Kernel && !launch.name.is_empty();
            if is_named && launch.name != kernel.name {
                let known = String::from_utf8_lossy(&launch.name);
                return Err(format!("{name} ran as node {at} instead of {known}"));
            }
            if times[at] != (0, 0) {
                return Err(format!("{name}, node {at}, ran twice"));
            }
            times[at] = (kernel.begin_nanos, kernel.end_nanos);
        }
        let missing = |&(launch, time): &(&Launch, &(u64, u64))| {
            launch.kind == KernelKind::Kernel && *time == (0, 0)
        };
        match known.iter().zip(&times).find(missing) {
            None => Ok(times),
            Some((launch, _)) => Err(format!(
                "{} did not run; {} kernels did, of {}",
                String::from_utf8_lossy(&launch.name),
                self.kernels.len(),
                known.len()
            )),
        }
    }

    /// The times, if they can be those of an evaluation that began then.
    pub fn checked(
        &self,
        times: Vec<(u64, u64)>,
        begin_nanos: u64,
    ) -> Result<Vec<(u64, u64)>, String> {
        let measured = times.iter().filter(|&&(begin, _)| begin != 0);
        let outside = measured
            .clone()
            .find(|&&(begin, end)| begin < begin_nanos || begin > end || end > self.flushed_nanos);
        if !self.is_whole {
            return Err("CUPTI lost records".to_owned());
        }
        if let Some((begin, end)) = outside {
            return Err(format!(
                "a kernel is said to have run from {begin} to {end} ns, of an evaluation from {begin_nanos} to {}",
                self.flushed_nanos
            ));
        }
        match measured.count() {
            0 => Err("no kernel ran".to_owned()),
            _ => Ok(times),
        }
    }

    /// What was launched one by one, with its times; `nodes` says which node each question was
    /// about. Whether a kernel is missing cannot be told: not all that is launched has to be one.
    pub fn one_by_one(&self, nodes: &[Option<u32>]) -> Result<(Vec<Launch>, Times), String> {
        let mut kernels = self.kernels.iter().map(|(_, kernel)| kernel);
        if let Some(kernel) = kernels.find(|k| k.begin_nanos == 0 || k.end_nanos == 0) {
            let name = String::from_utf8_lossy(&kernel.name);
            return Err(format!("{name} had not ended when CUPTI was asked"));
        }
        let launches = self.kernels.iter().map(|(question, kernel)| Launch {
            node: question.and_then(|at| nodes.get(at as usize).copied()?),
            kind: KernelKind::Kernel,
            name: kernel.name.clone(),
            grid: kernel.grid,
            block: kernel.block,
        });
        let times = self
            .kernels
            .iter()
            .map(|(_, k)| (k.begin_nanos, k.end_nanos));
        Ok((launches.collect(), times.collect()))
    }
}

/// A graph is about to be launched by this thread; the number of its call in a burst.
pub fn begins(known: &Known, backend: *mut c_void) -> Option<u64> {
    let settings = settings::get()?;
    let Some(path) = settings.cupti.as_deref() else {
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        if settings.gpu_times != GpuTimes::Off && !IS_SAID.swap(true, Ordering::Relaxed) {
            cupti::note("no CUPTI was found");
        }
        return None;
    };
    BURST.with(|burst| {
        if let Some(ended) = burst.take_if(|burst| burst.calls_left == 0 && burst.calls_open == 0) {
            finish(ended, Some((known, backend)));
        }
        if burst.is_none() {
            let now = now_nanos();
            let decision = GOVERNOR.with(|governor| {
                let times = settings::get().map(|s| s.gpu_times).unwrap_or_default();
                governor
                    .get_or_insert_with(|| Governor::new(times))
                    .decide(now)
            });
            if let Decision::Measure { calls } = decision {
                // SAFETY: in a call that was made for this backend.
                unsafe { known.synchronize(backend) };
                match Cupti::attach(path) {
                    Ok(cupti) => {
                        static IS_REGISTERED: Once = Once::new();
                        IS_REGISTERED.call_once(super::call_at_exit);
                        FIRST_OPEN.store(NEXT_CALL.load(Ordering::Relaxed), Ordering::Release);
                        let begun_nanos = now_nanos();
                        *burst = Some(Burst {
                            cupti,
                            calls: Vec::new(),
                            ends: Vec::new(),
                            calls_left: calls,
                            context: Driver::get().and_then(Driver::current_context),
                            calls_open: 0,
                            begun_nanos,
                            attached_nanos: begun_nanos - now,
                        });
                    }
                    Err(reason) => {
                        GOVERNOR.with(|g| g.as_mut().into_iter().for_each(Governor::stop));
                        cupti::note(&reason);
                    }
                }
            }
        }
        let burst = burst.as_mut()?;
        burst.calls_left = burst.calls_left.checked_sub(1)?;
        burst.calls_open += 1;
        Some(NEXT_CALL.fetch_add(1, Ordering::Relaxed))
    })
}

/// What this thread launches from now on belongs to this call.
pub fn call_is(call: Option<u64>) {
    LAUNCHED.with_borrow_mut(|launched| launched.clear());
    CALL.set(call);
}

/// Everything of the call was launched; the event behind it, if there is one.
pub fn ends(end: Option<Event>) -> Option<u64> {
    let call = CALL.take()?;
    let launched = LAUNCHED.with_borrow_mut(|launched| std::mem::take(&mut **launched));
    BURST.with(|burst| {
        if let Some(burst) = burst {
            burst.calls_open = burst.calls_open.saturating_sub(1);
            burst.calls.push((call, launched));
            burst.ends.extend(end);
        }
    });
    Some(call)
}

/// CUPTI says that this thread launches something.
pub fn launches(correlation: u32) {
    if CALL.get().is_some() {
        let question = super::question();
        let launched = Launched {
            correlation,
            question,
        };
        // Where the list is in use, something is launched by ourselves: nothing of ours is.
        LAUNCHED.with(|list| {
            if let Ok(mut list) = list.try_borrow_mut() {
                list.push(launched);
            }
        });
    }
}

/// Whether what was measured of a call is still to come.
pub fn is_open(call: u64) -> bool {
    call >= FIRST_OPEN.load(Ordering::Acquire)
}

/// What was measured of a call.
pub fn take(call: u64) -> Option<Records> {
    FINISHED.with(|finished| {
        let at = finished.iter().position(|(number, _)| *number == call)?;
        Some(finished.swap_remove(at).1)
    })
}

/// Ends the burst, if there is one: the process ends.
pub fn stop() {
    BURST.with(|burst| {
        burst
            .take()
            .into_iter()
            .for_each(|burst| finish(burst, None))
    });
}

fn finish(burst: Burst, known: Option<(&Known, *mut c_void)>) {
    let begun = now_nanos();
    match known {
        // SAFETY: in a call that was made for this backend.
        Some((known, backend)) => unsafe { known.synchronize(backend) },
        None => {
            let driver = Driver::get().zip(burst.context);
            driver.map(|(driver, context)| driver.wait_for_all(context));
        }
    }
    // That was one backend, or one card; other contexts have others.
    if let Some(driver) = Driver::get() {
        for &event in &burst.ends {
            driver.wait(event);
        }
    }
    let synchronised = now_nanos();
    let calls = burst.calls.len() as u64;
    let (kernels, is_whole) = burst.cupti.detach();
    let flushed_nanos = now_nanos();
    let mut by_correlation: HashMap<u32, Vec<Kernel>> = HashMap::new();
    for kernel in kernels {
        by_correlation
            .entry(kernel.correlation)
            .or_default()
            .push(kernel);
    }
    let records = burst.calls.into_iter().map(|(call, launched)| {
        let kernels = launched.iter().flat_map(|launch| {
            let kernels = by_correlation
                .remove(&launch.correlation)
                .unwrap_or_default();
            kernels.into_iter().map(|kernel| (launch.question, kernel))
        });
        let records = Records {
            kernels: kernels.collect(),
            flushed_nanos,
            is_whole,
        };
        (call, records)
    });
    FINISHED.with(|finished| {
        finished.extend(records);
        let extra = finished.len().saturating_sub(MAX_FINISHED);
        finished.drain(..extra);
    });
    FIRST_OPEN.store(u64::MAX, Ordering::Release);
    GOVERNOR.with(|governor| {
        if let Some(governor) = governor {
            let overhead = burst.attached_nanos + (flushed_nanos - synchronised);
            governor.measured(calls, overhead, begun - burst.begun_nanos, flushed_nanos);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(kind: KernelKind, name: &str) -> Launch {
        Launch {
            node: Some(0),
            kind,
            name: name.into(),
            grid: [1; 3],
            block: [1; 3],
        }
    }

    /// Each with the number of its graph's node in the low half, as CUPTI has it.
    fn records(kernels: &[(u64, &str)]) -> Records {
        let kernels = kernels.iter().map(|&(node, name)| {
            let kernel = Kernel {
                begin_nanos: 100 + 10 * node,
                end_nanos: 105 + 10 * node,
                correlation: 7,
                graph_node: 3 << 32 | node,
                name: name.into(),
                grid: [1; 3],
                block: [1; 3],
            };
            (None, kernel)
        });
        Records {
            kernels: kernels.collect(),
            flushed_nanos: 1000,
            is_whole: true,
        }
    }

    #[test]
    fn times_of_a_graph_are_those_of_its_kernels() {
        let known = [
            launch(KernelKind::Kernel, "a"),
            launch(KernelKind::Copy, "copy"),
            launch(KernelKind::Kernel, "b"),
        ];
        let of = |kernels: &[(u64, &str)]| records(kernels).of_graph(&known);
        let (a, copy, b) = ((100, 105), (110, 115), (120, 125));
        assert_eq!(of(&[(0, "a"), (2, "b")]), Ok(vec![a, (0, 0), b]));
        // Seen on an H200: a copy that the driver has a kernel for.
        let with_copy = of(&[(0, "a"), (1, "memcpy32_post"), (2, "b")]);
        assert_eq!(with_copy, Ok(vec![a, copy, b]));
        for (kernels, reason) in [
            (&[(0, "a")][..], "b did not run"),
            (&[(0, "a"), (2, "c")], "c ran as node 2 instead of b"),
            (&[(0, "a"), (0, "a"), (2, "b")], "ran twice"),
            (&[(0, "a"), (2, "b"), (3, "d")], "d ran as node 3 of 3"),
        ] {
            let failed = of(kernels).unwrap_err();
            assert!(failed.contains(reason), "{failed}");
        }
    }

    #[test]
    fn a_kernel_that_had_not_ended_has_no_times() {
        let mut records = records(&[(0, "a"), (1, "b")]);
        let (launches, times) = records.one_by_one(&[]).unwrap();
        assert_eq!(launches.len(), 2);
        assert_eq!(times, [(100, 105), (110, 115)]);
        records.kernels[1].1.end_nanos = 0;
        assert!(records.one_by_one(&[]).unwrap_err().starts_with("b had"));
    }

    #[test]
    fn kernels_without_names_are_told_by_their_place() {
        let known = [
            launch(KernelKind::Kernel, ""),
            launch(KernelKind::Kernel, "b"),
        ];
        let of = |kernels: &[(u64, &str)]| records(kernels).of_graph(&known);
        assert_eq!(of(&[(0, "a"), (1, "b")]), Ok(vec![(100, 105), (110, 115)]));
        assert!(of(&[(0, "a"), (1, "a")]).is_err());
        assert!(of(&[(1, "b")]).is_err());
    }

    #[test]
    fn times_outside_of_an_evaluation_are_not_kept() {
        let records = records(&[]);
        let inside = vec![(0, 0), (100, 105)];
        assert_eq!(records.checked(inside.clone(), 100), Ok(inside));
        for (times, begin) in [
            (vec![(100, 105)], 101),
            (vec![(105, 100)], 50),
            (vec![(100, 1001)], 50),
            (vec![(0, 0)], 50),
        ] {
            assert!(records.checked(times, begin).is_err());
        }
    }
}
