//! Where the weights of a fed run came from, and what was waited for them.

use std::collections::BTreeMap;

use reader::{Seen, Traffic};
use serde::{Deserialize, Serialize};
use trace::origin::Source;

use crate::traffic::PHASES;

/// What one phase got from one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRow {
    pub phase: String,
    /// `pinned`, `loaded`, `streamed`, `cache_hit`, `cache_miss` or `page_cache`.
    pub source: String,
    pub accesses: u64,
    pub bytes: u64,
    pub waited_nanos: u64,
}

#[derive(Debug, Default)]
pub struct Accumulator {
    /// By the number of the phase: a prompt comes first.
    sums: BTreeMap<(u8, Source), (Traffic, u64)>,
}

impl Accumulator {
    pub fn push(&mut self, seen: &Seen) {
        let phase = seen.evaluation.phase as u8;
        seen.for_each_origin(|of, origin| {
            let (traffic, waited) = self.sums.entry((phase, origin.source)).or_default();
            traffic.add(1, of.access.region.bytes());
            *waited = waited.saturating_add(origin.waited_nanos);
        });
    }

    /// By phase, in the order of [`Source`]; nothing for a run that nobody fed.
    pub fn finish(self) -> Vec<SourceRow> {
        let rows = self.sums.into_iter();
        rows.map(|((phase, source), (traffic, waited_nanos))| SourceRow {
            phase: PHASES[usize::from(phase)].name().to_owned(),
            source: source.name().to_owned(),
            accesses: traffic.accesses,
            bytes: traffic.bytes,
            waited_nanos,
        })
        .collect()
    }
}
