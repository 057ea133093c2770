//! Short times in which CUPTI is attached, so that single kernels have times.
//!
//! There is one at a time in the process. Programs evaluate a context now on this thread, now
//! on that, so it belongs to none.
//!
//! 1. Before a graph is launched the [`Governor`] is asked. If a burst may begin, the card is
//!    waited for and CUPTI attached.
//! 2. The next evaluations are *calls* of the burst. Each notes the correlation numbers of what
//!    it launches.
//! 3. Before the one after them, once none is under way, the card is waited for, CUPTI's
//!    buffers are flushed (without that the last launch would get the times of the next) and
//!    CUPTI is taken off again.
//! 4. What was measured is joined with the calls by these numbers, and given to
//!    [`super::Pending`].

mod governor;

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    mem::ManuallyDrop,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use capture::recorder::device::Launch;
use trace::{clock::now_nanos, device::KernelKind};

pub use self::governor::GpuTimes;
use self::governor::{Decision, Governor};
use super::cupti::{self, Cupti, Kernel};
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
    calls_left: u32,
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
    /// `None` if these are not the kernels that ran.
    pub fn of_graph(&self, known: &[Launch]) -> Option<Vec<(u64, u64)>> {
        let mut times = vec![(0, 0); known.len()];
        let mut left = known
            .iter()
            .filter(|l| l.kind == KernelKind::Kernel)
            .count();
        for (_, kernel) in &self.kernels {
            let at = kernel.graph_node as u32 as usize;
            let launch = known.get(at).filter(|l| l.kind == KernelKind::Kernel)?;
            if launch.name != kernel.name || times[at] != (0, 0) {
                return None;
            }
            times[at] = (kernel.begin_nanos, kernel.end_nanos);
            left = left.checked_sub(1)?;
        }
        (left == 0).then_some(times)
    }

    /// What was launched one by one, with its times; `nodes` says which node each question was
    /// about.
    pub fn one_by_one(&self, nodes: &[Option<u32>]) -> (Vec<Launch>, Vec<(u64, u64)>) {
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
        (launches.collect(), times.collect())
    }
}

/// A graph is about to be launched by this thread; the number of its call in a burst.
pub fn begins(known: &Known) -> Option<u64> {
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
            finish(ended, Some(known));
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
                unsafe { known.synchronize() };
                match Cupti::attach(path) {
                    Ok(cupti) => {
                        FIRST_OPEN.store(NEXT_CALL.load(Ordering::Relaxed), Ordering::Release);
                        let begun_nanos = now_nanos();
                        *burst = Some(Burst {
                            cupti,
                            calls: Vec::new(),
                            calls_left: calls,
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

/// Everything of the call was launched.
pub fn ends() -> Option<u64> {
    let call = CALL.take()?;
    let launched = LAUNCHED.with_borrow_mut(|launched| std::mem::take(&mut **launched));
    BURST.with(|burst| {
        if let Some(burst) = burst {
            burst.calls_open = burst.calls_open.saturating_sub(1);
            burst.calls.push((call, launched));
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

fn finish(burst: Burst, known: Option<&Known>) {
    let begun = now_nanos();
    if let Some(known) = known {
        // SAFETY: in a call that was made for this backend.
        unsafe { known.synchronize() };
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
