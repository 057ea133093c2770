//! Before each graph: memory that others need is given back, and memory that nobody uses is
//! taken for weights.

use std::cmp::Reverse;
use std::sync::Arc;

use plan::choose::{RING_WEIGHTS, least_ring_bytes};

use super::{Fed, Feeder, KeptPart, NO_RING, Schedule, restore};
use crate::balance::turn_of;
use crate::elastic::{Elastic, Key, MIN_BYTES};
use crate::error::FeedError;
use crate::memory::Region;
use crate::pieces::parts_of;
use crate::pump::Place;
use crate::setup::Props;
use crate::stats::Stats;
use crate::usage::Meter;
use crate::weights::{Fate, Usage, WeightInMemory, point};

/// A ring that had to go so often stays away: others need its memory again and again.
const MAX_RINGS_LEFT: u32 = 3;

impl Feeder {
    /// Believes `meter` about what is used, instead of the kernel.
    pub fn measured_by(mut self, meter: Arc<dyn Meter>) -> Feeder {
        self.meter = Some(meter);
        self
    }

    /// Makes room for what is about to be touched for the first time. `is_known`: by the graph
    /// of the present schedule.
    pub(super) fn make_room(&mut self, coming_bytes: u64, is_known: bool) -> Result<(), FeedError> {
        let Some(fed) = &mut self.fed else {
            return Ok(());
        };
        let lack_bytes = fed.memory.elastic.make_room(coming_bytes);
        let given = fed.follow_given();
        let has_given = !given.is_empty();
        if is_known {
            // Views follow; those of other graphs still find the file's bytes where they point.
            let needs = self.schedule.needs.iter();
            for need in needs.filter(|need| given.contains(&Key::of(need.weight))) {
                restore(&self.schedule, &fed.weights, need);
            }
        }
        let has_changed = match lack_bytes {
            0 if !has_given => {
                fed.return_to_ring(&self.props, coming_bytes)?
                    || fed.grow(coming_bytes, &self.stats)?
            }
            0 => {
                fed.make_ring(&self.props, coming_bytes)?;
                true
            }
            _ => fed.leave_ring() || has_given,
        };
        if has_changed {
            // Which weights come in pieces has changed, too.
            self.schedule = Schedule::default();
            self.pass.forget();
            let part_bytes = fed.parts.values().map(|part| part.bytes).sum();
            fed.memory.shares.follow(&fed.weights, part_bytes);
        }
        Ok(())
    }
}

impl Fed {
    /// Weights whose memory was given back come from the file from now on.
    fn follow_given(&mut self) -> Vec<Key> {
        let given = self.memory.elastic.take_given();
        for &key in &given {
            if self.parts.remove(&key).is_some() {
                continue;
            }
            let weight = &mut self.weights.list[key.weight as usize];
            point(weight.tensor, weight.original);
            weight.fate = match self.memory.ring {
                Some(_) => Fate::Streamed,
                None => Fate::Mapped,
            };
        }
        given
    }

    /// Keeps as many more weights as there is room for.
    fn grow(&mut self, coming_bytes: u64, stats: &Stats) -> Result<bool, FeedError> {
        let mut room_bytes = match self.memory.may_grow {
            true => self.memory.elastic.room_bytes(coming_bytes),
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
        let has_parts = |number: u32| self.parts.keys().any(|key| key.weight == number);
        for &number in candidates.iter().filter(|&&number| !has_parts(number)) {
            let planned = self.weights.planned(number, Place::Ring);
            let bytes = Elastic::bytes_of(&planned);
            if bytes > room_bytes {
                continue;
            }
            let kept = self.memory.elastic.keep(Key::of(number), &planned);
            let (address, _) = kept.map_err(|cause| FeedError::Memory { bytes, cause })?;
            self.weights.list[number as usize].fate = Fate::Pinned {
                address,
                is_loaded: false,
            };
            room_bytes -= bytes;
            grown_bytes += bytes;
        }
        let kept_bytes = self.keep_parts(&candidates, room_bytes)?;
        grown_bytes += kept_bytes;
        room_bytes -= kept_bytes;
        if room_bytes > self.memory.elastic.limit_bytes / 64
            && let Some(number) = self.cut_finer(&candidates, room_bytes)
        {
            grown_bytes += self.keep_parts(&[number], room_bytes)?;
        }
        if grown_bytes > 0 {
            stats.grown(grown_bytes);
        }
        Ok(grown_bytes > 0)
    }

    /// What is left is too little for any whole weight: pieces of those that come in pieces. The
    /// bytes that are kept.
    fn keep_parts(&mut self, candidates: &[u32], mut room_bytes: u64) -> Result<u64, FeedError> {
        let mut kept_bytes = 0;
        let max_bytes = self.memory.max_piece_bytes;
        for &weight in candidates {
            for (first, bytes) in parts_of(weight, &self.weights, max_bytes) {
                let key = Key {
                    weight,
                    part: Some(first),
                };
                let part = (first, bytes);
                let planned = self.weights.planned_part(weight, part, Place::Ring);
                let taken_bytes = Elastic::bytes_of(&planned);
                if taken_bytes > room_bytes || self.parts.contains_key(&key) {
                    continue;
                }
                let kept = self.memory.elastic.keep(key, &planned);
                let (address, _) = kept.map_err(|cause| FeedError::Memory { bytes, cause })?;
                let kept = KeptPart {
                    address,
                    bytes,
                    is_loaded: false,
                };
                self.parts.insert(key, kept);
                room_bytes -= taken_bytes;
                kept_bytes += taken_bytes;
            }
        }
        Ok(kept_bytes)
    }

    /// Pieces are too large for what is left: the smallest weight that is streamed is cut into
    /// smaller ones.
    fn cut_finer(&mut self, candidates: &[u32], room_bytes: u64) -> Option<u32> {
        const MIN_PIECE_BYTES: u64 = 1 << 20;
        let is_candidate = |&number: &u32| {
            let weight = &self.weights.list[number as usize];
            let is_cut = self.parts.keys().any(|key| key.weight == number);
            weight.fate == Fate::Streamed && weight.row_bytes.is_some() && !is_cut
        };
        let streamed = candidates.iter().copied().filter(is_candidate);
        let number = streamed.min_by_key(|&number| self.weights.list[number as usize].bytes)?;
        let weight = &mut self.weights.list[number as usize];
        weight.max_piece_bytes = (room_bytes / 4).max(MIN_PIECE_BYTES);
        Some(number)
    }

    /// The ring had to go, and it is calm now: what was streamed is streamed again, unless all
    /// of it can be kept, if kept weights can make room for a ring. Whether there is one again.
    fn return_to_ring(&mut self, props: &Props, coming_bytes: u64) -> Result<bool, FeedError> {
        let had_to_go = self.memory.rings_left > 0 && self.memory.ring.is_none();
        let elastic = &self.memory.elastic;
        if !had_to_go || !elastic.is_calm() || elastic.room_bytes(coming_bytes) >= self.left_bytes()
        {
            return Ok(false);
        }
        self.make_ring(props, coming_bytes)?;
        Ok(self.memory.ring.is_some())
    }

    /// Where there is no ring (all was kept at first, or it had to go), and more is left to
    /// the page cache than a ring takes, that is worth one. Kept weights make room for it.
    fn make_ring(&mut self, props: &Props, coming_bytes: u64) -> Result<(), FeedError> {
        if self.memory.ring.is_some() || !self.memory.may_stream {
            return Ok(());
        }
        let bytes = least_ring_bytes(u64::from(props.block_bytes), props.depth);
        let elastic = &self.memory.elastic;
        if self.left_bytes() < bytes
            || !elastic.could_hold(bytes, coming_bytes)
            || elastic.make_room(coming_bytes + bytes) > 0
        {
            return Ok(());
        }
        let ring = Region::new(bytes).map_err(|cause| FeedError::Memory { bytes, cause })?;
        elastic.add_fixed(&ring.0);
        self.memory.shares.ring_bytes = ring.0.len();
        self.memory.max_piece_bytes = ring.0.len() / RING_WEIGHTS;
        self.memory.ring = Some(ring.0);
        self.follow_given();
        let weights = self.weights.list.iter_mut();
        for weight in weights.filter(|weight| is_left(weight)) {
            weight.fate = Fate::Streamed;
        }
        Ok(())
    }

    /// Of weights that a ring would be for.
    fn left_bytes(&self) -> u64 {
        let left = self.weights.list.iter().filter(|weight| is_left(weight));
        left.map(|weight| weight.bytes).sum()
    }

    /// Kept weights are not enough, or were not read yet and cannot be given back: the ring's
    /// memory goes, too, and what was streamed is left to the page cache until it is calm; for
    /// good when that has happened too often.
    fn leave_ring(&mut self) -> bool {
        let Some(ring) = self.memory.ring.take() else {
            return false;
        };
        // Nothing is in flight when this returns.
        self.next_use = self.memory.pump.install(Arc::default(), None, NO_RING);
        self.queue = None;
        self.memory.rings_left += 1;
        self.memory.may_stream &= self.memory.rings_left < MAX_RINGS_LEFT;
        self.memory.max_piece_bytes = 0;
        self.memory.elastic.remove_fixed(&ring);
        self.memory.elastic.remove_parts();
        self.parts.clear();
        self.memory.shares.ring_bytes = 0;
        for weight in &mut self.weights.list {
            if weight.fate == Fate::Streamed {
                weight.fate = Fate::Mapped;
            }
        }
        true
    }
}

/// Whether it is read whole and left to the page cache.
fn is_left(weight: &WeightInMemory) -> bool {
    weight.fate == Fate::Mapped && weight.usage == Usage::Whole && weight.bytes >= MIN_BYTES
}
