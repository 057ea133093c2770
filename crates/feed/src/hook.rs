//! Around one call of `ggml_graph_compute`: before it, at each tick, after it.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use capture::RawPlan;
use capture::hook::{AbortCallback, ComputeFn, PlanLayout};
use ggml::{Graph, OpNumbers, TickRules};

use crate::error::FeedError;
use crate::feeder::Feeder;

/// `GGML_STATUS_SUCCESS`.
const STATUS_SUCCESS: c_int = 0;
/// `GGML_STATUS_ABORTED`.
const STATUS_ABORTED: c_int = 1;

struct Ticking<'a> {
    feeder: &'a mut Feeder,
    point: u32,
    error: Option<FeedError>,
    chained: (AbortCallback, *mut c_void),
}

/// How a library ticks.
pub struct Library<'a> {
    pub ops: &'a OpNumbers,
    pub rules: TickRules,
    pub plan: PlanLayout,
}

/// Computes `graph` with `real`, its weights fed. After an error the graph was not
/// computed to its end, and the status says so.
///
/// # Safety
/// `graph` (whose view is `view`) and `plan` are what `ggml_graph_compute` was called
/// with, `real` is that function, and the layouts are those that were checked.
pub unsafe fn compute(
    feeder: &mut Feeder,
    view: Graph<'_>,
    graph: *mut c_void,
    plan: *mut RawPlan,
    library: &Library<'_>,
    real: ComputeFn,
) -> (c_int, Option<FeedError>) {
    // SAFETY: about to be computed by this thread (caller).
    let began = catch_unwind(AssertUnwindSafe(|| unsafe {
        feeder.begin(view, library.ops, library.rules)
    }));
    match began {
        Ok(Ok(true)) => {}
        // SAFETY: the call that the program made.
        Ok(Ok(false)) => return (unsafe { real(graph, plan) }, None),
        Ok(Err(error)) => {
            feeder.end(false);
            return (STATUS_ABORTED, Some(error));
        }
        Err(_) => return (STATUS_ABORTED, Some(feeder.break_down())),
    }
    let slot = plan.wrapping_byte_add(library.plan.callback_offset());
    let callback: *mut AbortCallback = slot.cast();
    // SAFETY: the data follow the callback in every layout; the plan belongs to this
    // call and nobody else reads it until `real`.
    let data: *mut *mut c_void = unsafe { callback.add(1).cast() };
    // SAFETY: as above.
    let before = unsafe { (callback.read(), data.read()) };
    let mut ticking = Ticking {
        feeder,
        point: 0,
        error: None,
        chained: before,
    };
    // SAFETY: as above; `ticking` outlives the call of `real`.
    let status = unsafe {
        callback.write(Some(on_tick));
        data.write((&raw mut ticking).cast());
        let status = real(graph, plan);
        callback.write(before.0);
        data.write(before.1);
        status
    };
    let Ticking {
        feeder,
        error,
        point,
        ..
    } = ticking;
    let is_complete = status == STATUS_SUCCESS && error.is_none();
    let ticked = match is_complete {
        true => feeder.check_ticks(point),
        false => Ok(()),
    };
    feeder.end(is_complete && ticked.is_ok());
    match error.or(ticked.err()) {
        // The last node's own tick comes too late to stop anything.
        Some(error) => (STATUS_ABORTED, Some(error)),
        None => (status, None),
    }
}

unsafe extern "C" fn on_tick(data: *mut c_void) -> bool {
    // SAFETY: `compute` put it there and does not touch it while the graph is
    // computed; only thread 0 calls.
    let ticking = unsafe { &mut *data.cast::<Ticking<'_>>() };
    ticking.point += 1;
    if ticking.error.is_none() && ticking.feeder.needs_point(ticking.point) {
        let point = ticking.point;
        let feeder = &mut *ticking.feeder;
        let done = catch_unwind(AssertUnwindSafe(|| feeder.at_point(point)));
        ticking.error = match done {
            Ok(result) => result.err(),
            Err(_) => Some(feeder.break_down()),
        };
    }
    if ticking.error.is_some() {
        return true;
    }
    let (callback, data) = ticking.chained;
    // SAFETY: the program's own callback with its own data.
    callback.is_some_and(|callback| unsafe { callback(data) })
}
