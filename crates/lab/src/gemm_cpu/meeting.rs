//! A barrier that does not sleep. To wake a thread takes longer than what the threads of a
//! product wait for each other, above all in a virtual machine.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Looks until a thread lets others have its core.
const PATIENCE: u32 = 10_000;

/// Where a number of threads wait for each other, again and again.
#[derive(Debug)]
pub struct Meeting {
    members: usize,
    arrived: AtomicUsize,
    /// Meetings that are over.
    over: AtomicUsize,
}

impl Meeting {
    pub fn new(members: usize) -> Meeting {
        Meeting {
            members,
            arrived: AtomicUsize::new(0),
            over: AtomicUsize::new(0),
        }
    }

    /// Until all are here. What any of them wrote before, all see after.
    pub fn wait(&self) {
        let over = self.over.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            // Nobody arrives for the next one before this one is over.
            self.arrived.store(0, Ordering::Relaxed);
            self.over.store(over + 1, Ordering::Release);
            return;
        }
        let mut looks = 0;
        while self.over.load(Ordering::Acquire) == over {
            match looks < PATIENCE {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
            looks = PATIENCE.min(looks + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_goes_on_before_all_are_here() {
        let (meeting, arrived) = (Meeting::new(3), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 1..200 {
                        arrived.fetch_add(1, Ordering::Relaxed);
                        meeting.wait();
                        assert!(arrived.load(Ordering::Relaxed) >= 3 * round);
                        meeting.wait();
                    }
                });
            }
        });
    }
}
