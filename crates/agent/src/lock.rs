//! A lock for what happens rarely (loading a model, opening a stream), never on
//! the recording path.
//!
//! Not std's: a fork must not leave a child with a lock that nobody holds, so
//! `process` takes every lock around `fork` by hand.

use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Most locks are held for a moment; one that is not is waited for asleep.
const YIELDS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(100);

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
        self.take_within(Duration::MAX);
    }

    /// The same, but `false` when others do not let go of it.
    pub fn take_within(&self, time: Duration) -> bool {
        let mut turns = 0u32;
        let mut begin = None;
        while self.is_taken.swap(true, Ordering::Acquire) {
            turns = turns.saturating_add(1);
            if turns < YIELDS {
                // SAFETY: has no arguments.
                unsafe { libc::sched_yield() };
                continue;
            }
            if begin.get_or_insert_with(Instant::now).elapsed() >= time {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// The value, between [`Lock::take`] and [`Lock::release`].
    ///
    /// # Safety
    /// This thread has taken the lock, and nobody else has the value.
    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    pub unsafe fn value_while_taken(&self) -> &mut T {
        // SAFETY: as promised by the caller.
        unsafe { &mut *self.value.get() }
    }

    pub fn release(&self) {
        self.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_is_inside() {
        const TURNS: usize = 2000;
        let lock = Lock::new((0usize, false));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..TURNS {
                        lock.with(|(count, is_inside)| {
                            assert!(!std::mem::replace(is_inside, true));
                            // Others get the chance to come in.
                            let before = *count;
                            std::thread::yield_now();
                            *count = before + 1;
                            *is_inside = false;
                        });
                    }
                });
            }
        });
        assert_eq!(lock.with(|(count, _)| *count), 4 * TURNS);
    }

    #[test]
    fn a_panic_gives_the_lock_back() {
        let lock = Lock::new(1);
        let inside = std::panic::AssertUnwindSafe(|| lock.with(|_| panic!("on purpose")));
        assert!(std::panic::catch_unwind(inside).is_err());
        assert_eq!(lock.with(|value| *value), 1);
    }

    #[test]
    fn taken_by_hand_it_is_taken_until_it_is_released() {
        let lock = Lock::new(0);
        lock.take();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| lock.with(|value| std::mem::replace(value, 2)));
            // SAFETY: nobody else reaches the value before `release`.
            unsafe { *lock.value.get() = 1 };
            lock.release();
            assert_eq!(other.join().unwrap(), 1);
        });
        assert_eq!(lock.with(|value| *value), 2);
    }
}
