//! What of the log a stack of time needs, taken in while it goes by.

use std::collections::HashMap;

use reader::{Seen, SeenCopy, Visitor, prepared::Sums};
use trace::{format::Phase, read::ReadError};

use super::devices;
use crate::traffic::PHASES;

/// What the processor read of weights and KV cache in each phase, what fed weights were waited
/// for, and what devices did.
#[derive(Debug, Default)]
pub struct Bytes {
    pub(super) by_phase: HashMap<Phase, (u64, u64)>,
    pub(super) threads: HashMap<Phase, u16>,
    pub(super) devices: devices::Seen,
}

impl Bytes {
    /// Most threads that computed an evaluation of each phase, by its name.
    pub fn threads(&self) -> Vec<(String, u32)> {
        let known = |phase: &Phase| {
            let threads = *self.threads.get(phase)?;
            (threads > 0).then(|| (phase.name().to_owned(), u32::from(threads)))
        };
        PHASES.iter().filter_map(known).collect()
    }
}

impl Visitor for Bytes {
    type Error = ReadError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), ReadError> {
        self.devices.evaluation(seen);
        let sums = match seen.is_on_device() {
            // What a device reads is no business of the host's memory.
            true => Sums::default(),
            false => seen.sums(),
        };
        let (bytes, waited) = self.by_phase.entry(seen.evaluation.phase).or_default();
        *bytes = bytes.saturating_add(sums.weight_bytes.saturating_add(sums.kv_bytes));
        *waited = waited.saturating_add(seen.waited_nanos().unwrap_or(0));
        let threads = self.threads.entry(seen.evaluation.phase).or_default();
        *threads = seen.evaluation.threads.max(*threads);
        Ok(())
    }

    fn copy(&mut self, seen: &SeenCopy) -> Result<(), ReadError> {
        self.devices.copy(seen);
        Ok(())
    }
}
