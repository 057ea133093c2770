//! Weights and memory in; what is pinned, streamed, cached and left alone out.
//!
//! Decoding is a cyclic scan: whatever is kept saves its size once a token, whichever
//! weight it is. So memory is shared out in this order:
//!
//! 1. small weights are pinned: reading them costs a request and saves no memory;
//! 2. the least slot memory with which experts can be read slice by slice;
//! 3. weights that every token reads whole: pinned, as many as fit beside the ring
//!    that the rest is streamed through;
//! 4. slots for experts: all that is left.
//!
//! Pinned, ring and slots together never exceed [`Wanted::weights_bytes`].

mod slots;
mod split;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

pub use slots::{Layer, layers_of, pool_of, pool_slot_bytes};

/// Weights below this are pinned wherever memory allows.
pub const SMALL_BYTES: u64 = 256 << 10;

/// A ring with less room than this many of its largest weights can deadlock: one is
/// being computed on, one is freed only a step later, one is being read.
pub const RING_WEIGHTS: u64 = 3;

/// Bytes of one read, and reads in flight, unless told otherwise.
pub const READ_BYTES: u64 = 1 << 20;
pub const DEPTH: u32 = 32;
/// What direct reads are aligned to at most.
const ALIGNMENT_BYTES: u64 = 4096;

/// One weight tensor, in the order of first use within a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    pub name: String,
    pub bytes: u64,
    pub layer: Option<u32>,
    pub usage: Use,
    /// Bytes of a row of a matrix that is only multiplied with: rows can be streamed a few
    /// at a time. `None` where it is needed in one piece.
    pub row_bytes: Option<u64>,
}

impl Weight {
    /// Memory that the ring needs for one read of it, where `max_bytes` are offered: all of
    /// it, or as many of its rows as fit.
    pub fn ring_bytes(&self, max_bytes: u64, alignment_bytes: u64) -> u64 {
        let whole = superset_bytes(self.bytes, alignment_bytes);
        let rows = rows_per_piece(self.row_bytes.unwrap_or(0), max_bytes, alignment_bytes);
        match (whole > max_bytes, rows, self.row_bytes) {
            (true, Some(rows), Some(row_bytes)) => {
                superset_bytes(rows * row_bytes, alignment_bytes).min(whole)
            }
            _ => whole,
        }
    }

    /// The least that the ring needs for one read of it.
    pub fn min_ring_bytes(&self, alignment_bytes: u64) -> u64 {
        let whole = superset_bytes(self.bytes, alignment_bytes);
        let row = self.row_bytes.map(|row| padded(row, alignment_bytes));
        row.map_or(whole, |row| row.min(whole))
    }

    /// Bytes that one token computes with.
    pub fn touched_bytes(&self) -> f64 {
        match self.usage {
            Use::Rows => 0.0,
            Use::Whole => self.bytes as f64,
            Use::Experts { count, used, .. } => {
                self.bytes as f64 * f64::from(used.min(count)) / f64::from(count.max(1))
            }
        }
    }
}

/// How a token uses a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A few rows are looked up (the token embedding): it stays in the file.
    Rows,
    /// All of it, once a token.
    Whole,
    /// `used` of `count` slices of `slice_bytes`.
    Experts {
        count: u32,
        used: u32,
        slice_bytes: u64,
    },
}

/// Which strategies may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strategies {
    pub pin: bool,
    pub stream: bool,
    pub experts: bool,
}

/// What there is to share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Memory for weights: pinned, ring and expert slots together.
    pub weights_bytes: u64,
    pub strategies: Strategies,
    /// Bytes of one read, and reads in flight.
    pub read_bytes: u64,
    pub depth: u32,
    /// Offsets and lengths of direct reads are multiples of this.
    pub alignment_bytes: u64,
}

impl Wanted {
    /// As feeding asks for it (docs/feeding.md).
    pub fn new(weights_bytes: u64, strategies: Strategies) -> Wanted {
        Wanted {
            weights_bytes,
            strategies,
            read_bytes: READ_BYTES,
            depth: DEPTH,
            alignment_bytes: ALIGNMENT_BYTES,
        }
    }
}

/// Indices into the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Read once and kept.
    pub pinned: Vec<usize>,
    /// Read for each token through the ring, in this order.
    pub streamed: Vec<usize>,
    /// Read slice by slice into slots.
    pub sliced: Vec<usize>,
    /// Left to the page cache.
    pub mapped: Vec<usize>,
    pub ring_bytes: u64,
    pub experts: Option<ExpertMemory>,
}

/// Slots for expert slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertMemory {
    /// Pools; the layers are dealt out to them in order. One per layer where
    /// memory allows, fewer where layers have to share.
    pub pools: u32,
    /// Slots of each pool; a slot holds one expert: all slices that bear its number.
    pub slots: u32,
    pub bytes: u64,
}

/// Memory that a weight or slice takes when it is read directly: the aligned superset
/// of its bytes, wherever it starts.
pub fn superset_bytes(bytes: u64, alignment_bytes: u64) -> u64 {
    let alignment = alignment_bytes.max(1);
    let padded = bytes.saturating_add(alignment.saturating_mul(2));
    padded.div_ceil(alignment).saturating_mul(alignment)
}

/// At least as much as [`superset_bytes`] of so many bytes or fewer.
fn padded(bytes: u64, alignment_bytes: u64) -> u64 {
    bytes.saturating_add(alignment_bytes.max(1).saturating_mul(3))
}

/// Rows of a matrix that are read at once into at most `max_bytes`. `None` where not one fits.
pub fn rows_per_piece(row_bytes: u64, max_bytes: u64, alignment_bytes: u64) -> Option<u64> {
    /// Kernels take rows in blocks of so many at most.
    const BLOCK_ROWS: u64 = 256;
    let rows = max_bytes
        .saturating_sub(padded(0, alignment_bytes))
        .checked_div(row_bytes)?;
    match rows {
        0 => None,
        1..BLOCK_ROWS => Some(rows),
        _ => Some(rows / BLOCK_ROWS * BLOCK_ROWS),
    }
}

/// The smallest ring that keeps the disk busy: half as much again as is in flight.
pub fn least_ring_bytes(read_bytes: u64, depth: u32) -> u64 {
    let reads = u64::from(depth.max(1)).saturating_mul(3).div_ceil(2);
    read_bytes.max(1).saturating_mul(reads)
}

/// Rings that are tried: a larger one leaves less for pins, but reading runs further
/// ahead of long stretches of pinned weights, and weights of all sizes go through it.
const RINGS_BYTES: [u64; 7] = [
    0,
    64 << 20,
    96 << 20,
    128 << 20,
    192 << 20,
    256 << 20,
    384 << 20,
];
/// A larger ring has to gain so much.
const RING_GAIN: f64 = 0.995;

/// The best use of the memory that is there, on the machine that is there. Lists are in
/// execution order.
pub fn choose_for(weights: &[Weight], wanted: &Wanted, machine: &Machine) -> Choice {
    // What is best usually is taken: how far that varies costs time to find out.
    let usual = Machine {
        varies: crate::machine::Varies::default(),
        ..*machine
    };
    let mut best: Option<(f64, Choice)> = None;
    for ring_bytes in RINGS_BYTES {
        let choice = choose_with(weights, wanted, ring_bytes);
        let predicted = crate::predict::predict(weights, &choice, &usual, None);
        let seconds = predicted.seconds_per_token.unwrap_or(0.0);
        if choice.streamed.is_empty() {
            return best.map_or(choice, |(_, best)| best);
        }
        if best
            .as_ref()
            .is_none_or(|(least, _)| seconds < least * RING_GAIN)
        {
            best = Some((seconds, choice));
        }
    }
    best.map(|(_, choice)| choice).unwrap_or_default()
}

/// The least number of bytes, to a mebibyte, that is enough; `max_bytes` and all that is more
/// than something that is enough is, too. `None` where even that is not.
pub fn least_bytes(max_bytes: u64, is_enough: impl Fn(u64) -> bool) -> Option<u64> {
    const STEP_BYTES: u64 = 1 << 20;
    let (mut low, mut high) = (0, max_bytes.div_ceil(STEP_BYTES));
    if !is_enough(high * STEP_BYTES) {
        return None;
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        match is_enough(middle * STEP_BYTES) {
            true => high = middle,
            false => low = middle,
        }
    }
    Some(high * STEP_BYTES)
}

/// The use of memory that reads the least, whatever the machine.
pub fn choose(weights: &[Weight], wanted: &Wanted) -> Choice {
    choose_with(weights, wanted, 0)
}

fn choose_with(weights: &[Weight], wanted: &Wanted, least_ring: u64) -> Choice {
    let strategies = wanted.strategies;
    let superset = |i: usize| superset_bytes(weights[i].bytes, wanted.alignment_bytes);
    let mut choice = Choice::default();
    let (rows, rest): (Vec<_>, Vec<_>) =
        (0..weights.len()).partition(|&i| weights[i].usage == Use::Rows);
    choice.mapped = rows;
    if !(strategies.pin || strategies.stream || strategies.experts) {
        choice.mapped.extend(rest);
        return choice.in_order();
    }

    let all: u128 = rest.iter().map(|&i| u128::from(superset(i))).sum();
    if strategies.pin && all <= u128::from(wanted.weights_bytes) {
        choice.pinned = rest;
        return choice.in_order();
    }

    let mut left = wanted.weights_bytes;
    let (small, large): (Vec<_>, Vec<_>) = rest
        .into_iter()
        .partition(|&i| weights[i].bytes < SMALL_BYTES);
    for i in small {
        if superset(i) <= left {
            left -= superset(i);
            choice.pinned.push(i);
        } else {
            choice.mapped.push(i);
        }
    }

    let (experts, dense): (Vec<_>, Vec<_>) = large
        .into_iter()
        .partition(|&i| matches!(weights[i].usage, Use::Experts { .. }));
    let layers = layers_of(weights, &experts, wanted.alignment_bytes);
    let least_slots = if strategies.experts {
        slots::least_bytes(&layers).filter(|&least| least <= left)
    } else {
        None
    };

    let mut groups = vec![];
    if let Some(least) = least_slots {
        left -= least;
        choice.sliced = experts;
        groups.push(dense);
    } else if strategies.stream {
        // Streamed whole, one is as good as the other.
        let mut whole = dense;
        whole.extend(experts);
        whole.sort_unstable();
        groups.push(whole);
    } else {
        // Left in the file, experts are read in part only: others first.
        groups.extend([dense, experts]);
    }
    for group in groups {
        let ring = split::Ring::new(wanted, least_ring);
        let size_of = |&i: &usize| split::Size {
            bytes: superset(i),
            ring_bytes: weights[i].ring_bytes(ring.max_piece_bytes(), wanted.alignment_bytes),
        };
        let sizes: Vec<_> = group.iter().map(size_of).collect();
        let split = split::split(&sizes, left, wanted, &ring);
        left -= split.used_bytes;
        choice.ring_bytes += split.ring_bytes;
        for (&i, place) in group.iter().zip(&split.places) {
            match place {
                split::Place::Pinned => choice.pinned.push(i),
                split::Place::Streamed => choice.streamed.push(i),
                split::Place::Mapped => choice.mapped.push(i),
            }
        }
    }
    if let Some(least) = least_slots {
        choice.experts = Some(slots::deal(&layers, left + least));
    }
    choice.in_order()
}

impl Choice {
    /// Whether more is kept, streamed or cached than what is too small to matter.
    pub fn does_something(&self, weights: &[Weight]) -> bool {
        let is_large = |&i: &usize| weights[i].bytes >= SMALL_BYTES;
        !self.streamed.is_empty() || !self.sliced.is_empty() || self.pinned.iter().any(is_large)
    }

    fn in_order(mut self) -> Choice {
        for list in [
            &mut self.pinned,
            &mut self.streamed,
            &mut self.sliced,
            &mut self.mapped,
        ] {
            list.sort_unstable();
        }
        self
    }
}
