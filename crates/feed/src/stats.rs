//! What feeding has done so far, for whoever looks while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
}

impl Stats {
    pub fn snapshot(&self) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
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
        }
    }

    pub(crate) fn evaluation(&self) {
        self.evaluations.fetch_add(1, Ordering::Relaxed);
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

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
