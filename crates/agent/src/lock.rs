//! A lock for what happens rarely (loading a model, opening a stream), never on
//! the recording path.
//!
//! Not std's: a fork must not leave a child with a lock that nobody holds, so
//! `process` takes every lock around `fork` by hand.

use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, Ordering},
};

pub struct Lock<T> {
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            is_taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Calls `f` while no other thread does.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        /// Gives the lock back even if `f` panics.
        struct Release<'a>(&'a AtomicBool);
        impl Drop for Release<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        self.take();
        let _release = Release(&self.is_taken);
        // SAFETY: this thread alone has the lock.
        f(unsafe { &mut *self.value.get() })
    }

    /// Takes the lock until [`Lock::release`]; for the time of a fork.
    pub fn take(&self) {
        while self.is_taken.swap(true, Ordering::Acquire) {
            // SAFETY: has no arguments.
            unsafe { libc::sched_yield() };
        }
    }

    pub fn release(&self) {
        self.is_taken.store(false, Ordering::Release);
    }
}
