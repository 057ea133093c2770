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

use std::ffi::{c_int, c_void};

use ggml::Graph;

use crate::recorder::Recorder;

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
