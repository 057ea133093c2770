//! Before each graph: memory that others need is given back, and memory that nobody uses is
//! taken for weights.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use ggml::{Graph, OpNumbers, TickRules};
use plan::choose::{RING_WEIGHTS, least_ring_bytes};

use super::{Fed, Feeder, NO_RING, Schedule};
use crate::balance::turn_of;
use crate::coming::untouched_bytes;
use crate::elastic::{Elastic, MIN_BYTES};
use crate::error::FeedError;
use crate::memory::Region;
use crate::pump::Place;
use crate::setup::Props;
use crate::stats::Stats;
use crate::usage::Meter;
use crate::weights::{Fate, Usage, WeightInMemory, point};

impl Feeder {
    /// Believes `meter` about what is used, instead of the kernel.
    pub fn measured_by(mut self, meter: Arc<dyn Meter>) -> Feeder {
        self.meter = Some(meter);
        self
    }

    /// Makes room for what a graph is about to touch, which may need `work`.
    pub(super) fn make_room(
        &mut self,
        graph: Graph<'_>,
        ops: &OpNumbers,
        rules: TickRules,
        work: Range<usize>,
    ) -> Result<(), FeedError> {
        let Some(fed) = &mut self.fed else {
            return Ok(());
        };
        let coming_bytes = match self.schedule.is_of(graph) {
            true => 0,
            false => untouched_bytes(graph, ops, rules, work),
        };
        let lack_bytes = fed.memory.elastic.make_room(coming_bytes);
        let has_given = fed.follow_given();
        let has_changed = match lack_bytes {
            0 if !has_given => fed.grow(&self.stats)?,
            0 => {
                fed.make_ring(&self.props, coming_bytes)?;
                true
            }
            _ => fed.leave_ring() || has_given,
        };
        if has_changed {
            // Which weights come in pieces has changed, too.
            self.schedule = Schedule::default();
            fed.memory.shares.follow(&fed.weights);
        }
        Ok(())
    }
}

impl Fed {
    /// Weights whose memory was given back come from the file from now on.
    fn follow_given(&mut self) -> bool {
        let given = self.memory.elastic.take_given();
        for &number in &given {
            let weight = &mut self.weights.list[number as usize];
            point(weight.tensor, weight.original);
            weight.fate = match self.memory.ring {
                Some(_) => Fate::Streamed,
                None => Fate::Mapped,
            };
        }
        !given.is_empty()
    }

    /// Keeps as many more weights as there is room for.
    fn grow(&mut self, stats: &Stats) -> Result<bool, FeedError> {
        let mut room_bytes = match self.memory.may_grow {
            true => self.memory.elastic.room_bytes(),
            false => 0,
        };
        if room_bytes == 0 {
            return Ok(false);
        }
        let is_candidate = |&number: &u32| {
            let weight = &self.weights.list[number as usize];
            let comes_whole = match weight.fate {
                Fate::Streamed => true,
                Fate::Mapped => weight.usage != Usage::Rows,
                Fate::Pinned { .. } | Fate::Sliced { .. } => false,
            };
            comes_whole && weight.bytes >= MIN_BYTES
        };
        let mut candidates: Vec<u32> = (0..self.weights.list.len() as u32)
            .filter(is_candidate)
            .collect();
        // Of experts that are left in the file a token reads only some.
        candidates.sort_unstable_by_key(|&number| {
            let weight = &self.weights.list[number as usize];
            let is_read_in_part = weight.fate == Fate::Mapped && weight.usage != Usage::Whole;
            (is_read_in_part, Reverse(turn_of(number)))
        });
        let mut grown_bytes = 0;
        for number in candidates {
            let planned = self.weights.planned(number, Place::Ring);
            let bytes = Elastic::bytes_of(&planned);
            if bytes > room_bytes {
                continue;
            }
            let kept = self.memory.elastic.keep(&planned);
            let (address, _) = kept.map_err(|cause| FeedError::Memory { bytes, cause })?;
            self.weights.list[number as usize].fate = Fate::Pinned {
                address,
                is_loaded: false,
            };
            room_bytes -= bytes;
            grown_bytes += bytes;
        }
        if grown_bytes > 0 {
            stats.grown(grown_bytes);
        }
        Ok(grown_bytes > 0)
    }

    /// All was kept at first, so that there is no ring: where more is left to the page cache
    /// than a ring takes, that is worth one. Kept weights make room for it.
    fn make_ring(&mut self, props: &Props, coming_bytes: u64) -> Result<(), FeedError> {
        if self.memory.ring.is_some() || !self.memory.may_stream {
            return Ok(());
        }
        let is_left = |weight: &WeightInMemory| {
            weight.fate == Fate::Mapped && weight.usage == Usage::Whole && weight.bytes >= MIN_BYTES
        };
        let left = self.weights.list.iter().filter(|weight| is_left(weight));
        let left_bytes: u64 = left.map(|weight| weight.bytes).sum();
        let bytes = least_ring_bytes(u64::from(props.block_bytes), props.depth);
        let elastic = &self.memory.elastic;
        if left_bytes < bytes || elastic.make_room(coming_bytes + bytes) > 0 {
            return Ok(());
        }
        let ring = Region::new(bytes).map_err(|cause| FeedError::Memory { bytes, cause })?;
        elastic.add_fixed(&ring.0);
        self.memory.shares.ring_bytes = ring.0.len();
        self.memory.max_piece_bytes = ring.0.len() / RING_WEIGHTS;
        self.memory.ring = Some(ring.0);
        self.follow_given();
        for weight in self
            .weights
            .list
            .iter_mut()
            .filter(|weight| is_left(weight))
        {
            weight.fate = Fate::Streamed;
        }
        Ok(())
    }

    /// Kept weights are not enough: the ring's memory goes, too, and what was streamed is left
    /// to the page cache, for good.
    fn leave_ring(&mut self) -> bool {
        let Some(ring) = self.memory.ring.take() else {
            return false;
        };
        // Nothing is in flight when this returns.
        self.next_use = self.memory.pump.install(Arc::default(), None, NO_RING);
        self.expected = None;
        self.memory.may_stream = false;
        self.memory.elastic.remove_fixed(&ring);
        self.memory.shares.ring_bytes = 0;
        for weight in &mut self.weights.list {
            if weight.fate == Fate::Streamed {
                weight.fate = Fate::Mapped;
            }
        }
        true
    }
}
