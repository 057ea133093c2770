//! How many reads are kept in flight.
//!
//! What the plan says, as long as the disk is as fast as the plan believed. When it
//! is slower, twice as many are tried for a while, and kept if that was faster; then
//! half as many; whatever was best stays until the disk changes again.

use std::time::{Duration, Instant};

/// Blocks after which the rate is looked at.
const ROUND_BLOCKS: usize = 192;
/// Slower than this share of the planned rate is slow. While all cores compute, a disk gives
/// less than when it is measured alone.
const SLOW: f64 = 0.6;
/// Fewer reads than this are not tried.
const MIN_DEPTH: u32 = 4;
/// A trial has to be so much faster to be kept.
const BETTER: f64 = 1.07;
/// Rounds without a trial after one that was not kept.
const REST_ROUNDS: u32 = 24;

pub struct Depth {
    now: u32,
    most: u32,
    block_bytes: u32,
    planned_rate: f64,
    /// Since when, and how many blocks.
    round: Option<(Instant, usize)>,
    /// The depth and rate before the trial that is going on.
    before: Option<(u32, f64)>,
    tries_less: bool,
    rest: u32,
    changes: u32,
}

impl Depth {
    pub fn new(now: u32, block_bytes: u32, planned_bytes_per_second: f64) -> Depth {
        Depth {
            now: now.max(1),
            most: (now.max(1) * 4).min(128),
            block_bytes,
            planned_rate: planned_bytes_per_second,
            round: None,
            before: None,
            tries_less: false,
            rest: 0,
            changes: 0,
        }
    }

    pub fn now(&self) -> u32 {
        self.now
    }

    /// Nothing is in flight: the time that passes is not the disk's.
    pub fn pause(&mut self) {
        self.round = None;
    }

    /// So many blocks came in; `is_full` when as many were asked for as may be.
    pub fn note(&mut self, blocks: usize, is_full: bool, took: Duration) {
        if !is_full {
            // The ring has no room: the disk is not what is slow.
            self.round = None;
            return;
        }
        let now = Instant::now();
        let (since, count) = self.round.get_or_insert((now - took, 0));
        *count += blocks;
        if *count < ROUND_BLOCKS {
            return;
        }
        let seconds = now.duration_since(*since).as_secs_f64().max(1e-9);
        let rate = *count as f64 * f64::from(self.block_bytes) / seconds;
        self.round = None;
        self.judge(rate, self.planned_rate);
    }

    fn judge(&mut self, rate: f64, planned: f64) {
        match self.before.take() {
            Some((depth, before)) if rate < before * BETTER => {
                self.now = depth;
                self.tries_less = !self.tries_less;
                self.rest = REST_ROUNDS;
            }
            Some(_) => {}
            None if self.rest > 0 => self.rest -= 1,
            None if rate < planned * SLOW => {
                let other = match self.tries_less {
                    true => (self.now / 2).max(MIN_DEPTH.min(self.now)),
                    false => (self.now * 2).min(self.most),
                };
                if other == self.now {
                    self.tries_less = !self.tries_less;
                    return;
                }
                self.before = Some((self.now, rate));
                self.now = other;
                self.changes += 1;
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_as_fast_as_planned_is_left_alone() {
        let mut depth = Depth::new(16, 1 << 20, 2e9);
        for _ in 0..100 {
            depth.judge(1.9e9, 2e9);
        }
        assert_eq!((depth.now(), depth.changes), (16, 0));
    }

    #[test]
    fn a_slow_disk_gets_the_depth_that_is_best_for_it() {
        // Faster with more in flight, up to 64.
        let rate = |depth: u32| 2e7 * f64::from(depth.min(64));
        let mut depth = Depth::new(16, 1 << 20, 2e9);
        for _ in 0..100 {
            let now = rate(depth.now());
            depth.judge(now, 2e9);
        }
        assert_eq!(depth.now(), 64);
        // Faster with less in flight: 32 was tried, given up, then 8 and 4.
        let rate = |depth: u32| 1e9 / f64::from(depth.max(4));
        let mut depth = Depth::new(16, 1 << 20, 2e9);
        for _ in 0..400 {
            let now = rate(depth.now());
            depth.judge(now, 2e9);
        }
        assert!(depth.now() <= 8, "{}", depth.now());
    }
}
