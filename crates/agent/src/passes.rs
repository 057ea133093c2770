//! Whole passes: all that a scheduler computes in one call, of which the processor may get
//! several graphs, one after the other, and a device what is between them.
//!
//! While a model is fed there is one pass at a time. So graphs of two contexts do not mix, and
//! whatever the scheduler copies to a device between two graphs, it reads while nobody computes:
//! then a weight's tensor points at the file's mapping, or at where it is kept, never at a place
//! that is about to be read into again.

use std::{
    cell::Cell,
    ffi::c_void,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::lock::Lock;

static TURN: Lock<()> = Lock::new(());
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static CURRENT: Cell<Option<Whole>> = const { Cell::new(None) };
}

/// The graph of a pass, as its library lays it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    pub graph: *mut c_void,
    /// Of the pass; no other has it.
    pub number: u64,
}

/// As long as it lives, this thread computes that pass.
pub struct Pass(());

impl Pass {
    /// `None` inside of a pass: one function of the scheduler calls another.
    pub fn begin(graph: *mut c_void) -> Option<Pass> {
        if CURRENT.get().is_some() || graph.is_null() {
            return None;
        }
        TURN.take();
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        CURRENT.set(Some(Whole { graph, number }));
        Some(Pass(()))
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        CURRENT.set(None);
        TURN.release();
    }
}

/// The pass that this thread computes.
pub fn current() -> Option<Whole> {
    CURRENT.get()
}

/// In a forked child there is nobody else who could compute.
pub fn after_fork_in_child() {
    if CURRENT.get().is_none() {
        TURN.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_come_one_at_a_time_and_not_inside_of_each_other() {
        let graph = |number: usize| number as *mut c_void;
        assert_eq!(current(), None);
        let pass = Pass::begin(graph(8)).unwrap();
        let first = current().unwrap();
        assert_eq!(first.graph, graph(8));
        assert!(Pass::begin(graph(16)).is_none());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let pass = Pass::begin(graph(16)).unwrap();
                let number = current().unwrap().number;
                drop(pass);
                number
            });
            assert_eq!(current(), Some(first));
            drop(pass);
            assert_ne!(other.join().unwrap(), first.number);
        });
        assert_eq!(current(), None);
        assert!(Pass::begin(std::ptr::null_mut()).is_none());
    }
}
