//! Ticks of CPU backends before 2024-06-24, which counted otherwise.
//!
//! Such a backend calls the abort callback on *every* thread:
//!
//! 1. at the top of each round, when a thread has done its share of the node that
//!    all threads work on, and before the last of them may go on;
//! 2. after each node that one thread computes alone, on that thread, which is
//!    whichever came last.
//!
//! How far the graph is, only the backend knows: `node_n` of its
//! `ggml_compute_state_shared`, a local variable of `ggml_graph_compute`. It is
//! found on the stack of the thread that called that function, between the
//! callback and ourselves, by the two pointers that it begins with. Only that
//! thread's calls are looked at:
//!
//! - `node_n` has moved: the top of a round; the nodes up to `node_n` are done;
//! - it has not: this thread computes alone, and one node more is done.
//!
//! Nodes that other threads computed alone are thus noticed at the next round;
//! those at the end of the graph when the call returns.

use std::{
    ffi::{c_int, c_void},
    sync::atomic::{AtomicI32, Ordering},
};

use crate::hook::{AbortCallback, RawCplan, Ticking};

/// `ggml_compute_state_shared`, as far as it never changed before 2024-06-24.
#[repr(C)]
struct Shared {
    graph: *const c_void,
    cplan: *const c_void,
    perf_node_start_cycles: i64,
    perf_node_start_time_us: i64,
    n_threads: c_int,
    n_active: AtomicI32,
    node_n: AtomicI32,
}

/// The callback's data while a graph is computed. Other threads read only what
/// never changes.
pub struct Rounds {
    ticking: *mut Ticking,
    chained: (AbortCallback, *mut c_void),
    /// An address that only the thread that called has.
    thread: *const u8,
    graph: *const c_void,
    cplan: *const c_void,
    n_threads: c_int,
    /// Null until it is found.
    shared: *const Shared,
    /// `node_n` at the last top of a round.
    node: c_int,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Followed,
    /// The backend's own count was not where it should be.
    NotFound,
}

thread_local! {
    static HERE: u8 = const { 0 };
}

fn this_thread() -> *const u8 {
    HERE.with(std::ptr::from_ref)
}

impl Rounds {
    /// # Safety
    /// `graph` and `cplan` are what `ggml_graph_compute` will be called with, on
    /// this thread; `ticking` lives as long as this.
    pub(crate) unsafe fn new(
        ticking: *mut Ticking,
        graph: *const c_void,
        cplan: *const RawCplan,
    ) -> Rounds {
        Rounds {
            ticking,
            // SAFETY: as promised by the caller.
            chained: unsafe { (*ticking).chained },
            thread: this_thread(),
            graph,
            cplan: cplan.cast(),
            // SAFETY: the field lies in front of what moved.
            n_threads: unsafe { (&raw const (*cplan).n_threads).read() },
            shared: std::ptr::null(),
            node: -1,
            progress: Progress::Followed,
        }
    }

    /// Ticks for the nodes that were done after the last round.
    ///
    /// # Safety
    /// The graph, which has so many `steps`, has been computed to its end.
    pub(crate) unsafe fn finish(&mut self, steps: u32) -> Progress {
        // SAFETY: lives as long as this (`new`).
        let ticking = unsafe { &mut *self.ticking };
        while self.progress == Progress::Followed && ticking.ticks() < steps {
            if ticking.is_stopped() {
                break;
            }
            // SAFETY: the node is done.
            unsafe { ticking.tick() };
        }
        self.progress
    }

    /// # Safety
    /// Called by the backend on the thread of `new`.
    unsafe fn follow(&mut self) {
        if self.progress == Progress::NotFound {
            return;
        }
        let is_first = self.shared.is_null();
        if is_first {
            match self.find_shared() {
                Some(shared) => self.shared = shared,
                None => {
                    self.progress = Progress::NotFound;
                    return;
                }
            }
        }
        // SAFETY: a local variable of a function that has not returned.
        let node = unsafe { (*self.shared).node_n.load(Ordering::Acquire) };
        // SAFETY: lives as long as this (`new`).
        let ticking = unsafe { &mut *self.ticking };
        let done = match (is_first, node == self.node) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => {
                let steps = u32::try_from(node + 1).unwrap_or(0);
                steps.saturating_sub(ticking.ticks())
            }
        };
        self.node = node;
        for _ in 0..done {
            // SAFETY: the node is done, and this thread keeps the next one from
            // beginning.
            unsafe { ticking.tick() };
        }
    }

    /// Looks at the stack between here and the caller of `ggml_graph_compute`,
    /// who holds this struct.
    fn find_shared(&self) -> Option<*const Shared> {
        let here = 0u8;
        let from = (&raw const here as usize).next_multiple_of(align_of::<Shared>());
        let to = std::ptr::from_ref(self) as usize;
        (from..to.checked_sub(size_of::<Shared>())?)
            .step_by(align_of::<Shared>())
            .map(|address| address as *const Shared)
            .find(|&shared| {
                // SAFETY: memory of this thread's stack that is in use: its
                // frames lie between two of our variables. Whatever is there can
                // be read as integers.
                unsafe {
                    (&raw const (*shared).graph).read_volatile() == self.graph
                        && (&raw const (*shared).cplan).read_volatile() == self.cplan
                        && (&raw const (*shared).n_threads).read_volatile() == self.n_threads
                        && (&raw const (*shared).node_n)
                            .cast::<c_int>()
                            .read_volatile()
                            == -1
                }
            })
    }
}

/// The abort callback, on any thread.
pub(crate) unsafe extern "C" fn on_call(data: *mut c_void) -> bool {
    let rounds = data.cast::<Rounds>();
    // SAFETY: `hook` put it there; these fields never change.
    let (thread, chained) = unsafe { ((*rounds).thread, (*rounds).chained) };
    if thread == this_thread() {
        // SAFETY: only this thread changes it, and only here.
        unsafe { (*rounds).follow() };
    }
    // SAFETY: the program's own callback with its own data.
    chained
        .0
        .is_some_and(|callback| unsafe { callback(chained.1) })
}
