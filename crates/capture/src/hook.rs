//! Around one call of `ggml_graph_compute`.
//!
//! 1. [`compute`] lets the recorder begin an evaluation (read inputs, write the
//!    head of its record), and puts [`on_tick`] into the plan's abort callback.
//! 2. ggml calls it on thread 0 after each executed node, before the barrier:
//!    the node's inputs are still intact. The program's own callback is chained.
//! 3. When the real function returns, the plan is as it was, and the recorder
//!    commits the record.
//!
//! An evaluation that cannot be recorded runs exactly as it would without us.

use std::{
    ffi::{c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
};

use ggml::Graph;

use crate::{
    recorder::Recorder,
    rounds::{self, Progress, Rounds},
};

/// `ggml_abort_callback`.
pub type AbortCallback = Option<unsafe extern "C" fn(*mut c_void) -> bool>;

/// The part of `ggml_cplan` that has kept its layout since 2024.
#[repr(C)]
pub struct RawPlan {
    pub work_size: usize,
    pub work_data: *mut u8,
    pub n_threads: c_int,
    pub threadpool: *mut c_void,
    pub abort_callback: AbortCallback,
    pub abort_callback_data: *mut c_void,
}

/// `ggml_graph_compute`.
pub type ComputeFn = unsafe extern "C" fn(*mut c_void, *mut RawPlan) -> c_int;

/// `GGML_STATUS_SUCCESS`.
const STATUS_SUCCESS: c_int = 0;
/// `GGML_STATUS_ABORTED`.
const STATUS_ABORTED: c_int = 1;

/// Called once per step with the step's number, before the record of the tick.
/// The audit re-protects pages there.
pub type StepObserver = unsafe fn(*mut c_void, step: usize);

/// Computes `graph` with `real`, recorded.
///
/// # Safety
/// `graph` and `plan` are what `ggml_graph_compute` was called with, `real` is
/// that function, and both structs have the layouts that [`ggml::check`] proved.
pub unsafe fn compute(
    recorder: &mut Recorder,
    graph: *mut c_void,
    plan: *mut RawPlan,
    real: ComputeFn,
) -> c_int {
    let timer = recorder.self_timer();
    // SAFETY: a live graph (caller); it does not change while it is computed.
    let recorded = match unsafe { Graph::from_ptr(graph) } {
        // SAFETY: as above, and ggml has filled its inputs before computing.
        Some(graph) => unsafe { recorder.begin(graph, (*plan).n_threads) },
        None => false,
    };
    if !recorded {
        recorder.add_self_time(timer);
        // SAFETY: the call that the program made.
        return unsafe { real(graph, plan) };
    }
    // SAFETY: the plan belongs to this call; nobody else reads it until `real`.
    let before = unsafe {
        let before = ((*plan).abort_callback, (*plan).abort_callback_data);
        recorder.chained = before;
        (*plan).abort_callback = Some(if recorder.is_timed() {
            on_timed_tick
        } else {
            on_tick
        });
        (*plan).abort_callback_data = std::ptr::from_mut(recorder).cast();
        before
    };
    recorder.add_self_time(timer);
    // SAFETY: the call that the program made, with a callback that outlives it.
    let status = unsafe { real(graph, plan) };
    let timer = recorder.self_timer();
    // SAFETY: the plan is ours again.
    unsafe {
        (*plan).abort_callback = before.0;
        (*plan).abort_callback_data = before.1;
    }
    recorder.end(status == STATUS_ABORTED);
    recorder.add_self_time(timer);
    status
}

/// Where a `ggml_cplan` has its abort callback, and its data behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanLayout {
    /// [`RawPlan`].
    Today,
    /// Until 2024-08-30 there was no `threadpool`.
    WithoutThreadpool,
}

impl PlanLayout {
    /// Bytes from the start of the plan.
    pub fn callback_offset(self) -> usize {
        let today = std::mem::offset_of!(RawPlan, abort_callback);
        match self {
            PlanLayout::Today => today,
            PlanLayout::WithoutThreadpool => std::mem::offset_of!(RawPlan, threadpool),
        }
    }
}

/// When the backend calls the abort callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticks {
    /// On thread 0 after each node.
    AfterEachNode,
    /// Until 2024-06-24; see [`crate::rounds`].
    InRounds,
}

/// How [`compute_shielded`] went for the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shield {
    Held,
    /// How far the backend was could not be followed.
    Blind,
    /// Our own code panicked. The program noticed nothing, but this recorder must
    /// not be used again.
    Broken,
}

/// As [`compute`], inside a program that must not fail because of us: a panic of
/// the recorder ends recording and nothing else. `view` is `graph` in our layout.
///
/// # Safety
/// As [`compute`]; `plan` has `layout`, and `view` stays valid during the call.
pub unsafe fn compute_shielded(
    recorder: &mut Recorder,
    view: Graph<'_>,
    graph: *mut c_void,
    plan: *mut RawPlan,
    (layout, ticks): (PlanLayout, Ticks),
    real: ComputeFn,
) -> (c_int, Shield) {
    let timer = recorder.self_timer();
    // SAFETY: `n_threads` lies in front of what moved.
    let threads = unsafe { (&raw const (*plan).n_threads).read() };
    // SAFETY: a live graph whose inputs are filled (caller).
    let began = catch_unwind(AssertUnwindSafe(|| unsafe {
        recorder.begin(view, threads)
    }));
    if !matches!(began, Ok(true)) {
        recorder.add_self_time(timer);
        recorder.is_broken |= began.is_err();
        // SAFETY: the call that the program made.
        return (unsafe { real(graph, plan) }, recorder.shield());
    }
    let slot = plan.wrapping_byte_add(layout.callback_offset());
    let callback: *mut AbortCallback = slot.cast();
    // SAFETY: the data follow the callback in every layout; the plan belongs to
    // this call and nobody else reads it until `real`.
    let data: *mut *mut c_void = unsafe { callback.add(1).cast() };
    // SAFETY: as above.
    let before = unsafe { (callback.read(), data.read()) };
    recorder.chained = before;
    // SAFETY: the graph that the recorder has begun with, and its plan.
    let mut rounds = unsafe { Rounds::new(recorder, before, graph, plan) };
    let ours: (AbortCallback, *mut c_void) = match ticks {
        Ticks::AfterEachNode => (
            Some(on_shielded_tick),
            std::ptr::from_mut(recorder).cast::<c_void>(),
        ),
        Ticks::InRounds => (Some(rounds::on_call), (&raw mut rounds).cast()),
    };
    // SAFETY: as above; what the callback uses outlives the call of `real`.
    unsafe {
        callback.write(ours.0);
        data.write(ours.1);
    }
    recorder.add_self_time(timer);
    // SAFETY: the call that the program made, with a callback that outlives it.
    let status = unsafe { real(graph, plan) };
    let timer = recorder.self_timer();
    // SAFETY: the plan is ours again.
    unsafe {
        callback.write(before.0);
        data.write(before.1);
    }
    let is_blind = ticks == Ticks::InRounds
        && status == STATUS_SUCCESS
        // SAFETY: the backend says that all nodes are done.
        && unsafe { rounds.finish() } == Progress::NotFound;
    if !recorder.is_broken {
        let end = || recorder.end(status == STATUS_ABORTED);
        let ended = catch_unwind(AssertUnwindSafe(end));
        recorder.is_broken = ended.is_err();
    }
    recorder.add_self_time(timer);
    match is_blind {
        true => (status, Shield::Blind),
        false => (status, recorder.shield()),
    }
}

unsafe extern "C" fn on_shielded_tick(data: *mut c_void) -> bool {
    // SAFETY: as in `on_tick`.
    let recorder = unsafe { &mut *data.cast::<Recorder>() };
    if !recorder.is_broken {
        let timer = recorder.self_timer();
        // SAFETY: as in `on_tick`.
        let ticked = catch_unwind(AssertUnwindSafe(|| unsafe { recorder.tick() }));
        recorder.is_broken = ticked.is_err();
        recorder.add_self_time(timer);
    }
    // SAFETY: as in `on_tick`.
    recorder
        .chained
        .0
        .is_some_and(|callback| unsafe { callback(recorder.chained.1) })
}

unsafe extern "C" fn on_tick(data: *mut c_void) -> bool {
    // SAFETY: `compute` put the recorder there and does not touch it while the
    // graph is computed; only thread 0 calls.
    let recorder = unsafe { &mut *data.cast::<Recorder>() };
    // SAFETY: called from the graph that `begin` saw.
    unsafe { recorder.tick() };
    // SAFETY: the program's own callback with its own data.
    recorder
        .chained
        .0
        .is_some_and(|callback| unsafe { callback(recorder.chained.1) })
}

unsafe extern "C" fn on_timed_tick(data: *mut c_void) -> bool {
    // SAFETY: as in `on_tick`.
    let recorder = unsafe { &mut *data.cast::<Recorder>() };
    let timer = recorder.self_timer();
    // SAFETY: as in `on_tick`.
    unsafe { recorder.tick() };
    recorder.add_self_time(timer);
    // SAFETY: as in `on_tick`.
    recorder
        .chained
        .0
        .is_some_and(|callback| unsafe { callback(recorder.chained.1) })
}
