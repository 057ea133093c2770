//! What feeding has done so far, for whoever looks while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::experts::Counts;
use crate::reader::Work;

#[derive(Debug, Default)]
pub struct Stats {
    pub work: Arc<Work>,
    evaluations: AtomicU64,
    waited_nanos: AtomicU64,
    waited_for_experts_nanos: AtomicU64,
    reading_nanos: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    too_many: AtomicU64,
    read_ahead: AtomicU64,
    used_ahead: AtomicU64,
    foreseen: AtomicU64,
    grown: AtomicU64,
    grown_bytes: AtomicU64,
    given: AtomicU64,
    given_bytes: AtomicU64,
    used: Mutex<Samples>,
}

/// The figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub evaluations: u64,
    pub bytes_read: u64,
    pub reads: u64,
    /// Reads that were asked for again: they failed or fell short.
    pub repeated_reads: u64,
    /// Time that computing waited for streamed and pinned weights.
    pub waited_nanos: u64,
    /// Time that computing waited for expert slices.
    pub waited_for_experts_nanos: u64,
    /// Time with streamed reads in flight.
    pub reading_nanos: u64,
    pub expert_hits: u64,
    pub expert_misses: u64,
    /// Choices of more experts than there are slots, read through the mapping.
    pub too_many_experts: u64,
    /// Experts whose reading began before the router had chosen, and those of them that it
    /// then chose; the latter are misses too.
    pub experts_read_ahead: u64,
    pub experts_used_ahead: u64,
    /// Experts chosen that were foreseen, whether they had to be read or not.
    pub experts_foreseen: u64,
    /// How often weights were kept in addition, and their bytes.
    pub times_grown: u64,
    pub grown_bytes: u64,
    /// How often weights gave memory back because others needed it, and how much.
    pub times_given: u64,
    pub given_bytes: u64,
    /// Memory of the budget that was in use before each evaluation, pages of files that the
    /// kernel may take back left out: the median, and the most.
    pub used_bytes: u64,
    pub max_used_bytes: u64,
}

impl Stats {
    pub fn snapshot(&self) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        Snapshot {
            evaluations: get(&self.evaluations),
            bytes_read: get(&self.work.bytes),
            reads: get(&self.work.reads),
            repeated_reads: get(&self.work.repeated),
            waited_nanos: get(&self.waited_nanos),
            waited_for_experts_nanos: get(&self.waited_for_experts_nanos),
            reading_nanos: get(&self.reading_nanos),
            expert_hits: get(&self.hits),
            expert_misses: get(&self.misses),
            too_many_experts: get(&self.too_many),
            experts_read_ahead: get(&self.read_ahead),
            experts_used_ahead: get(&self.used_ahead),
            experts_foreseen: get(&self.foreseen),
            times_grown: get(&self.grown),
            grown_bytes: get(&self.grown_bytes),
            times_given: get(&self.given),
            given_bytes: get(&self.given_bytes),
            used_bytes: used.median(),
            max_used_bytes: used.max,
        }
    }

    pub(crate) fn evaluation(&self) {
        self.evaluations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn grown(&self, bytes: u64) {
        add(&self.grown, 1);
        add(&self.grown_bytes, bytes);
    }

    pub(crate) fn given(&self, bytes: u64) {
        add(&self.given, 1);
        add(&self.given_bytes, bytes);
    }

    pub(crate) fn used(&self, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.add(bytes);
    }

    pub(crate) fn waited(&self, time: Duration) {
        add(&self.waited_nanos, time.as_nanos() as u64);
    }

    pub(crate) fn waited_for_experts(&self, time: Duration) {
        add(&self.waited_for_experts_nanos, time.as_nanos() as u64);
    }

    pub(crate) fn reading(&self, time: Duration) {
        self.reading_nanos
            .store(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn experts(&self, before: Counts, after: Counts) {
        add(&self.hits, after.hits - before.hits);
        add(&self.misses, after.misses - before.misses);
        add(&self.too_many, after.too_many - before.too_many);
        add(&self.read_ahead, after.read_ahead - before.read_ahead);
        add(&self.used_ahead, after.used_ahead - before.used_ahead);
        add(&self.foreseen, after.foreseen - before.foreseen);
    }
}

/// Values of a run of any length, of which a few hundred are kept, evenly spread.
#[derive(Debug, Default)]
struct Samples {
    values: Vec<u64>,
    /// One of so many is kept, to the power of two.
    thinned: u32,
    count: u64,
    max: u64,
}

impl Samples {
    const MAX_VALUES: usize = 512;

    fn add(&mut self, value: u64) {
        self.max = self.max.max(value);
        if self.count.is_multiple_of(1 << self.thinned) {
            if self.values.len() == Samples::MAX_VALUES {
                self.thinned += 1;
                let mut is_kept = false;
                self.values.retain(|_| {
                    is_kept = !is_kept;
                    is_kept
                });
            }
            self.values.push(value);
        }
        self.count += 1;
    }

    fn median(&self) -> u64 {
        let mut sorted = self.values.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_many_values_is_found_in_a_few() {
        let mut samples = Samples::default();
        assert_eq!((samples.median(), samples.max), (0, 0));
        (0..100_001).for_each(|value| samples.add(value));
        assert!(samples.values.len() <= Samples::MAX_VALUES);
        assert!(
            samples.median().abs_diff(50_000) < 500,
            "{}",
            samples.median()
        );
        assert_eq!(samples.max, 100_000);
    }
}
