//! One token after another against a disk of constant speed.
//!
//! Weights are used in order. The ring's reader runs ahead as far as the ring has room: a
//! weight's room is free once the step after its own is computed. Reads that a token waits for (page
//! faults, slices of experts) go before those of the ring. What is left of the disk is
//! the ring's.

use std::collections::VecDeque;

/// Tokens until the first ones' empty ring no longer shows.
const TOKENS: usize = 3;

/// One weight of a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub compute_seconds: f64,
    pub need: Need,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Need {
    Nothing,
    /// Comes through the ring.
    Ring {
        bytes: f64,
    },
    /// Is read while the token waits; bytes at the disk's full speed.
    Faults {
        bytes: f64,
    },
    /// Slices of experts: the first weight of a layer asks for those of all.
    Slices {
        ask: Option<Ask>,
        is_last: bool,
    },
}

/// All reads of a layer's experts: those of the last weight come last, the others arrive
/// together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub latency: f64,
    pub first: f64,
    pub last: f64,
}

/// Seconds of a token in the steady state.
pub(super) fn seconds_per_token(
    steps: &[Step],
    ring_bytes: u64,
    disk_bytes_per_second: f64,
) -> f64 {
    // Nothing takes no time, also from a disk of unknown speed.
    let seconds = |bytes: f64| {
        if bytes > 0.0 {
            bytes / disk_bytes_per_second.max(0.0)
        } else {
            0.0
        }
    };
    let mut disk = Disk::default();
    let mut ring = Ring::new(ring_bytes as f64);
    // When the slices of the layer in hand are there: of the last weight, of the others.
    let (mut last_there, mut first_there) = (0.0, 0.0);
    let mut now = 0.0f64;
    // Of the last weight: its room is free when another step is done.
    let mut used: Option<f64> = None;
    let mut before = 0.0;
    for _ in 0..TOKENS {
        before = now;
        for step in steps {
            match step.need {
                Need::Nothing => {}
                Need::Ring { bytes } => {
                    let start = ring.make_room(bytes, now);
                    now = now.max(disk.read_behind(start, seconds(bytes)));
                }
                Need::Faults { bytes } => now = disk.read_now(now, seconds(bytes)),
                Need::Slices { ask, is_last } => {
                    if let Some(ask) = ask {
                        let asked = now + ask.latency;
                        first_there = disk.read_now(asked, seconds(ask.first));
                        last_there = disk.read_now(first_there, seconds(ask.last));
                    }
                    now = now.max(if is_last { last_there } else { first_there });
                }
            }
            now += step.compute_seconds;
            if let Some(bytes) = used.take() {
                ring.computed(bytes, now);
            }
            if let Need::Ring { bytes } = step.need {
                ring.take(bytes);
                used = Some(bytes);
            }
        }
    }
    now - before
}

/// Weights in the ring, oldest first, with the time from which their room is free.
struct Ring {
    bytes: f64,
    used: f64,
    weights: VecDeque<(f64, f64)>,
    free_at: f64,
}

impl Ring {
    fn new(bytes: f64) -> Ring {
        Ring {
            bytes,
            used: 0.0,
            weights: VecDeque::new(),
            free_at: 0.0,
        }
    }

    /// When there is room for so many bytes more; now, where the ring is too small for what
    /// is in use.
    fn make_room(&mut self, bytes: f64, now: f64) -> f64 {
        while self.used + bytes > self.bytes {
            let Some((oldest, computed)) = self.weights.pop_front() else {
                self.free_at = self.free_at.max(now);
                break;
            };
            self.used -= oldest;
            self.free_at = computed;
        }
        self.free_at
    }

    fn take(&mut self, bytes: f64) {
        self.used += bytes;
    }

    fn computed(&mut self, bytes: f64, at: f64) {
        self.weights.push_back((bytes, at));
    }
}

/// The times at which the disk is busy with reads that a token waits for, and how far the
/// ring's reader is.
#[derive(Default)]
struct Disk {
    busy: VecDeque<(f64, f64)>,
    busy_until: f64,
    ring_until: f64,
}

impl Disk {
    /// A read that goes before the ring's. Returns its end.
    fn read_now(&mut self, start: f64, seconds: f64) -> f64 {
        if seconds <= 0.0 {
            return start;
        }
        let start = start.max(self.busy_until);
        self.busy_until = start + seconds;
        self.busy.push_back((start, self.busy_until));
        self.busy_until
    }

    /// The ring's next read, in what time the others leave. Returns its end.
    fn read_behind(&mut self, start: f64, seconds: f64) -> f64 {
        let mut at = start.max(self.ring_until);
        let mut left = seconds;
        while let Some(&(from, to)) = self.busy.front() {
            if to > at {
                if at + left <= from {
                    break;
                }
                left -= (from - at).max(0.0);
                at = to;
            }
            self.busy.pop_front();
        }
        self.ring_until = at + left;
        self.ring_until
    }
}
