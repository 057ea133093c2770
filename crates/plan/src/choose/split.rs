//! Weights that every token reads whole: which are pinned, which go through the ring.
//!
//! The ring holds three of its largest weight, or of the largest piece of one that can be
//! read piece by piece. Pinning everything above a threshold
//! makes it smaller and leaves more for pins, so the smallest ring is taken whose
//! compulsory pins still fit. What is left is spread along the execution order, so that
//! computing on pinned weights overlaps reading the others.

use super::{RING_WEIGHTS, Wanted, least_ring_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Pinned,
    Streamed,
    Mapped,
}

pub(super) struct Split {
    /// One for each size given.
    pub places: Vec<Place>,
    pub ring_bytes: u64,
    /// Pins and ring.
    pub used_bytes: u64,
}

/// What a weight takes.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// Pinned: its superset.
    pub bytes: u64,
    /// Of the ring, at a time: all of it, or its largest piece.
    pub ring_bytes: u64,
}

/// Splits weights of `sizes` (in execution order) within `bytes`.
pub(super) fn split(sizes: &[Size], bytes: u64, wanted: &Wanted, ring: &Ring) -> Split {
    let all: u128 = sizes.iter().map(|size| u128::from(size.bytes)).sum();
    if wanted.strategies.pin && all <= u128::from(bytes) {
        return Split {
            places: vec![Place::Pinned; sizes.len()],
            ring_bytes: 0,
            used_bytes: all as u64,
        };
    }

    let mut places = vec![Place::Mapped; sizes.len()];
    let mut pin_bytes = bytes;
    if wanted.strategies.stream
        && let Some((largest, too_large)) = threshold(sizes, bytes, ring, wanted.strategies.pin)
    {
        for (place, size) in places.iter_mut().zip(sizes) {
            if size.ring_bytes <= largest {
                *place = Place::Streamed;
            } else if wanted.strategies.pin {
                *place = Place::Pinned;
            }
        }
        for index in too_large {
            places[index] = Place::Mapped;
        }
        pin_bytes -= ring.bytes(largest) + pinned_bytes(&places, sizes);
    }
    if wanted.strategies.pin {
        // Those that have no place in the ring are too large for what is left, too,
        // except where there is no ring at all.
        let candidate = if places.contains(&Place::Streamed) {
            Place::Streamed
        } else {
            Place::Mapped
        };
        spread(&mut places, sizes, candidate, pin_bytes);
    }
    let largest = sizes
        .iter()
        .zip(&places)
        .filter(|&(_, &place)| place == Place::Streamed)
        .map(|(size, _)| size.ring_bytes)
        .max();
    let ring_bytes = largest.map_or(0, |largest| ring.bytes(largest));
    Split {
        used_bytes: ring_bytes + pinned_bytes(&places, sizes),
        places,
        ring_bytes,
    }
}

pub(super) struct Ring {
    least_bytes: u64,
}

impl Ring {
    pub(super) fn new(wanted: &Wanted, least_ring: u64) -> Ring {
        let alignment = wanted.alignment_bytes.max(1);
        let least = least_ring_bytes(wanted.read_bytes, wanted.depth).max(least_ring);
        Ring {
            least_bytes: least.div_ceil(alignment).saturating_mul(alignment),
        }
    }

    /// Pieces up to this make it no larger.
    pub(super) fn max_piece_bytes(&self) -> u64 {
        self.least_bytes / RING_WEIGHTS
    }

    /// For weights and pieces up to `largest`; none are streamed where that is 0.
    fn bytes(&self, largest: u64) -> u64 {
        if largest == 0 {
            return 0;
        }
        largest.saturating_mul(RING_WEIGHTS).max(self.least_bytes)
    }
}

/// The size up to which weights go through the ring, and the weights that fit nowhere:
/// as few as possible, the largest first. None when there is no room for any ring.
fn threshold(sizes: &[Size], bytes: u64, ring: &Ring, may_pin: bool) -> Option<(u64, Vec<usize>)> {
    let mut descending: Vec<usize> = (0..sizes.len()).collect();
    descending.sort_by_key(|&i| std::cmp::Reverse((sizes[i].ring_bytes, sizes[i].bytes)));
    // above[k]: the k largest together.
    let mut above = vec![0u128];
    for &i in &descending {
        above.push(above[above.len() - 1] + u128::from(sizes[i].bytes));
    }
    // The smallest feasible ring when the `dropped` largest are left in the file.
    let smallest = |dropped: usize| {
        let mut best: Option<(u64, u64)> = None;
        // Each distinct size as the threshold, from the largest down, then none at all.
        for first in dropped..=sizes.len() {
            let largest = descending.get(first).map_or(0, |&i| sizes[i].ring_bytes);
            if first > dropped && largest == sizes[descending[first - 1]].ring_bytes {
                continue;
            }
            let compulsory = above[first] - above[dropped];
            if compulsory > 0 && !may_pin {
                break;
            }
            let ring_bytes = ring.bytes(largest);
            let fits = compulsory + u128::from(ring_bytes) <= u128::from(bytes);
            // Of equal rings, the one that leaves more free to be spread.
            if fits && best.is_none_or(|(least, _)| ring_bytes < least) {
                best = Some((ring_bytes, largest));
            }
        }
        best.map(|(_, largest)| largest)
    };
    // What is feasible stays so when more is dropped.
    let (mut low, mut high) = (0, sizes.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if smallest(middle).is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    if low == sizes.len() {
        return None;
    }
    smallest(low).map(|largest| (largest, descending[..low].to_vec()))
}

/// Pins `bytes` of the candidates by error diffusion, then fills what is left with the
/// largest that still fit.
fn spread(places: &mut [Place], sizes: &[Size], candidate: Place, bytes: u64) {
    let candidates: Vec<usize> = (0..sizes.len())
        .filter(|&i| places[i] == candidate)
        .collect();
    let all: u128 = candidates.iter().map(|&i| u128::from(sizes[i].bytes)).sum();
    let mut seen = 0u128;
    let mut pinned = 0u128;
    for &i in &candidates {
        let size = u128::from(sizes[i].bytes);
        seen += size;
        let due = u128::from(bytes).min(all) as f64 * (seen as f64 / all.max(1) as f64);
        let fits = pinned + size <= u128::from(bytes);
        if fits && pinned as f64 + size as f64 / 2.0 <= due {
            places[i] = Place::Pinned;
            pinned += size;
        }
    }
    let mut left = bytes - pinned as u64;
    let mut rest: Vec<usize> = candidates
        .into_iter()
        .filter(|&i| places[i] == candidate)
        .collect();
    rest.sort_by_key(|&i| std::cmp::Reverse(sizes[i].bytes));
    for i in rest {
        if sizes[i].bytes <= left {
            left -= sizes[i].bytes;
            places[i] = Place::Pinned;
        }
    }
}

fn pinned_bytes(places: &[Place], sizes: &[Size]) -> u64 {
    places
        .iter()
        .zip(sizes)
        .filter(|&(&place, _)| place == Place::Pinned)
        .map(|(_, size)| size.bytes)
        .sum()
}
