//! Experts that are read before the router has chosen: given slots while nothing that is
//! needed is being read, and judged when the layer has chosen.
//!
//! Slices in flight are nobody's until they have arrived: a slot whose expert turns out to be
//! wrong is not given to another one before.

use super::{Experts, Layer, Slice};
use crate::ahead::{Ahead, Arrival, SliceId, SliceRead};
use crate::foresight::Question;
use crate::weights::{Usage, Weights};
use crate::worth::{Outcome, Worth};

pub(super) struct Guesses {
    ahead: Ahead,
    worth: Worth,
    /// What the next choice of a layer is expected to be.
    next: Option<Guess>,
    /// Slices to be moved when they have arrived: to, from, bytes.
    moves: Vec<(SliceId, (usize, usize, usize))>,
    arrived: Vec<(SliceId, Arrival)>,
    taken_back: Vec<SliceId>,
}

struct Guess {
    layer: u32,
    /// As many as the layer will choose, the likeliest first.
    likeliest: Vec<u32>,
    queued: Vec<Queued>,
}

/// An expert that is read ahead.
struct Queued {
    expert: u32,
    slot: u32,
    /// Some may be there already.
    slices: u32,
}

impl Experts {
    /// From now on reads ahead.
    pub fn guess_with(&mut self, ahead: Ahead) {
        let slots = self.pools.iter().map(|pool| pool.cache.slots());
        self.guesses = Some(Guesses {
            ahead,
            worth: Worth::new(slots.max().unwrap_or(0)),
            next: None,
            moves: Vec::new(),
            arrived: Vec::new(),
            taken_back: Vec::new(),
        });
    }

    pub fn is_guessing(&self) -> bool {
        self.guesses.is_some()
    }

    /// Has somebody work out which experts a layer is likely to choose.
    pub fn ask(&self, layer: u32, question: Question) {
        if let Some(guesses) = &self.guesses {
            guesses.ahead.ask(layer, question);
        }
    }

    /// What came of it: the layer and its experts, the likeliest first.
    pub fn answer(&self) -> Option<(u32, Vec<u32>)> {
        self.guesses.as_ref()?.ahead.answer()
    }

    /// Starts reading what is likely to be chosen by a layer and is not there.
    pub fn read_ahead(&mut self, weights: &Weights, layer: u32, ranking: &[u32]) {
        let &Layer {
            pool: number,
            weights: ref roles,
            count,
            first_item,
        } = &self.layers[layer as usize];
        let (roles, first_weight) = (roles.len(), roles[0]);
        let Usage::Experts { used, .. } = weights.list[first_weight as usize].usage else {
            return;
        };
        let Some(guesses) = &mut self.guesses else {
            return;
        };
        let width = guesses.worth.width() as usize;
        let known = ranking.iter().copied().filter(|&expert| expert < count);
        let likeliest: Vec<u32> = known.take(used as usize).collect();
        let mut queued = Vec::new();
        let mut moves = Vec::new();
        let mut reads = Vec::new();
        for &expert in &likeliest {
            let pool = &mut self.pools[number];
            if queued.len() == width || pool.busy >= pool.cache.slots() {
                break;
            }
            let slot = match pool.cache.slot_of(first_item + expert) {
                Some(slot) if !pool.of_slot(slot)[..roles].contains(&Slice::Absent) => continue,
                Some(slot) => {
                    // A use, so that none of those that follow takes its slot.
                    pool.busy += 1;
                    pool.cache.hit(first_item + expert);
                    slot
                }
                None => {
                    pool.busy += 1;
                    let slot = pool.cache.replace(first_item + expert, expert);
                    self.empty(number, slot);
                    slot
                }
            };
            let before = reads.len();
            for role in 0..roles {
                if self.pools[number].slice(slot, role) != Slice::Absent {
                    continue;
                }
                let Some(placed) = self.place(weights, layer, role, expert, slot) else {
                    continue;
                };
                let id = SliceId {
                    pool: number as u32,
                    slot,
                    role: role as u32,
                };
                moves.extend(placed.moved.map(|moved| (id, moved)));
                let requests = placed.requests(self.block_bytes, 0).collect();
                reads.push(SliceRead { id, requests });
                *self.pools[number].slice_mut(slot, role) = Slice::Ahead;
            }
            queued.push(Queued {
                expert,
                slot,
                slices: (reads.len() - before) as u32,
            });
        }
        if let Some(guesses) = &mut self.guesses {
            guesses.moves.append(&mut moves);
            // SAFETY: places of slots that were just taken for these experts; they are nobody
            // else's until they have arrived (`empty`, `wait`) or were taken back.
            unsafe { guesses.ahead.queue(reads.into_iter()) };
            guesses.next = Some(Guess {
                layer,
                likeliest,
                queued,
            });
        }
    }

    /// A layer has chosen: what was to be read ahead of that, and was not begun, is not read
    /// any more. Who needs it reads it. Answers the experts that were read ahead for this
    /// choice.
    pub(super) fn end_guess(&mut self, layer: u32, experts: &[u32]) -> Vec<u32> {
        let Some(guesses) = &mut self.guesses else {
            return Vec::new();
        };
        let next = guesses.next.take().filter(|guess| guess.layer == layer);
        guesses.ahead.take_back(&mut guesses.taken_back);
        guesses.ahead.arrived(&mut guesses.arrived);
        let taken_back = guesses.taken_back.clone();
        self.take_in();
        let Some(guess) = next else {
            return Vec::new();
        };
        let pool = self.layers[layer as usize].pool;
        let mut outcome = Outcome::default();
        for queued in &guess.queued {
            let is_it = |id: &&SliceId| (id.pool as usize, id.slot) == (pool, queued.slot);
            let too_late = taken_back.iter().filter(is_it).count() as u32;
            let slices = self.pools[pool].of_slot(queued.slot).iter();
            let in_flight = slices.filter(|&&slice| slice == Slice::Ahead).count() as u32;
            let begun = queued.slices - too_late;
            let has_begun = u64::from(begun > 0);
            outcome.too_late += too_late;
            self.counts.read_ahead += has_begun;
            if experts.contains(&queued.expert) {
                outcome.used += begun;
                self.counts.used_ahead += has_begun;
            } else {
                outcome.wrong += begun;
                outcome.in_the_way += in_flight;
            }
        }
        let is_foreseen = |expert: &&u32| guess.likeliest.contains(expert);
        self.counts.foreseen += experts.iter().filter(is_foreseen).count() as u64;
        if let Some(guesses) = &mut self.guesses {
            guesses.worth.note(outcome);
        }
        guess.queued.iter().map(|queued| queued.expert).collect()
    }

    /// Waits for a slice that is being read ahead.
    pub(super) fn wait_for_guess(&mut self) {
        if let Some(guesses) = &mut self.guesses {
            guesses.ahead.wait(&mut guesses.arrived);
        }
        self.take_in();
    }

    /// Makes a slot that was taken for another expert nobody's.
    pub(super) fn empty(&mut self, pool: usize, slot: u32) {
        while self.pools[pool].of_slot(slot).contains(&Slice::Ahead) {
            self.wait_for_guess();
        }
        let roles = self.pools[pool].areas.len();
        (0..roles).for_each(|role| *self.pools[pool].slice_mut(slot, role) = Slice::Absent);
    }

    /// Nothing is read ahead any more, and nobody looks at weights.
    pub(super) fn stop_guessing(&mut self) {
        let Some(guesses) = &mut self.guesses else {
            return;
        };
        guesses.ahead.stop();
        guesses.next = None;
        guesses.moves.clear();
        guesses.arrived.clear();
        guesses.taken_back.clear();
        let slices = self.pools.iter_mut().flat_map(|pool| &mut pool.slices);
        slices
            .filter(|slice| **slice == Slice::Ahead)
            .for_each(|slice| *slice = Slice::Absent);
    }

    /// Notes what has arrived and what was taken back.
    fn take_in(&mut self) {
        let Some(guesses) = &mut self.guesses else {
            return;
        };
        let pools = &mut self.pools;
        let mut becomes = |id: SliceId, slice| {
            let pool = &mut pools[id.pool as usize];
            *pool.slice_mut(id.slot, id.role as usize) = slice;
        };
        for (id, arrival) in guesses.arrived.drain(..) {
            let moved = guesses.moves.iter().position(|(of, _)| *of == id);
            let moved = moved.map(|at| guesses.moves.swap_remove(at).1);
            match (arrival, moved) {
                (Arrival::Failed, _) => becomes(id, Slice::Absent),
                (Arrival::Read, None) => becomes(id, Slice::There),
                (Arrival::Read, Some((to, from, bytes))) => {
                    // SAFETY: both lie in the slot, whose stride has room for it, and which
                    // nobody reads yet.
                    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                    becomes(id, Slice::There);
                }
            }
        }
        for id in guesses.taken_back.drain(..) {
            guesses.moves.retain(|(of, _)| *of != id);
            becomes(id, Slice::Absent);
        }
    }
}
