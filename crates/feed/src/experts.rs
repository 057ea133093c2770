//! Slots for expert slices: a cache of experts per layer, filled by reads that start
//! as soon as the router has chosen, or before (`experts/guess.rs`).
//!
//! A slot holds one expert: its slices of all roles (gate, up, down), each in an area
//! of its own, so that a role's slices lie at equal distances and `MUL_MAT_ID` finds
//! them by the slot's number instead of the expert's.
//!
//! Direct reads want offset and address at the same place inside of a block. Where a
//! slice is no multiple of a block, experts differ in where they start (their
//! *phase*), and so do slots. An expert goes into a slot of its own phase, where there
//! are enough to choose from; into any other it is moved after it was read.

mod guess;

use std::collections::HashMap;
use std::ops::Range;

use plan::choose::pool_of;
use plan::{Cache, Policy};

use crate::error::FeedError;
use crate::reader::{Reader, Request};
use crate::weights::{Fate, Usage, Weights};
use guess::Guesses;

/// Bytes of a choice in flight at a time: with less the disk idles between one read and the next
/// for a noticeable share of its time, with more the first bytes come late.
const BYTES_AT_ONCE: u64 = 4 << 20;
/// Reads of a choice in flight at least, whatever their size: while one ends, another is read.
const MIN_AT_ONCE: usize = 2;
/// Slots of each phase that there have to be, for phases to be looked at.
const MIN_SLOTS_OF_A_PHASE: u32 = 2;

/// How many reads of a choice are in flight at a time. A disk may answer all that it was asked for
/// together; then what comes first is asked for first, and computed with while the rest is read.
fn at_once(requests: &[Request]) -> usize {
    let bytes = requests.iter().map(|request| u64::from(request.bytes));
    let mean_bytes = bytes.sum::<u64>() / requests.len().max(1) as u64;
    let count = BYTES_AT_ONCE.div_ceil(mean_bytes.max(1)) as usize;
    count.max(MIN_AT_ONCE)
}

/// How many different phases slices of these sizes have.
fn phases(slices: impl Iterator<Item = u64>, alignment: u64) -> u32 {
    let period = |slice: u64| alignment / greatest_common_divisor(slice, alignment);
    slices.map(period).max().unwrap_or(1) as u32
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Where the slots of one role lie.
#[derive(Clone, Copy, Debug)]
struct Area {
    address: usize,
    stride: u64,
}

/// What is in the place of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    Absent,
    /// Being read ahead, or queued for that.
    Ahead,
    /// Read, or being read for the choice that is waited for by role.
    There,
}

struct Pool {
    areas: Vec<Area>,
    /// By slot and role.
    slices: Vec<Slice>,
    /// Experts that must not make room: those of the last choice, and those read ahead since.
    busy: u32,
    /// Expert e goes into slots s with s = e modulo the number of phases.
    cache: Cache,
    /// From the start of the experts' memory.
    range: (u64, u64),
}

/// A layer's experts.
struct Layer {
    pool: usize,
    weights: Vec<u32>,
    count: u32,
    /// Number of its first expert among those of the pool.
    first_item: u32,
}

/// Of a choice, what is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// The expert in this slot.
    Slot(u32),
}

/// Hits and misses, as experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    /// Choices that needed more experts than there are slots.
    pub too_many: u64,
    /// Experts whose reading began before the router had chosen, and those of them that it
    /// then chose. Both are misses, if they were chosen.
    pub read_ahead: u64,
    pub used_ahead: u64,
    /// Experts chosen that were among the likeliest, whether read ahead or not.
    pub foreseen: u64,
}

pub struct Experts {
    layers: Vec<Layer>,
    pools: Vec<Pool>,
    reader: Reader,
    block_bytes: u32,
    alignment: u64,
    /// Blocks in flight of the choice that is being read, by role and expert.
    pending: Vec<u32>,
    /// Slices to be moved when they are there: their place in `pending`; to, from, bytes.
    moves: Vec<(usize, (usize, usize, usize))>,
    tags: Vec<u64>,
    requests: Vec<Request>,
    /// Of the last choice: its layer, and its experts with their slots.
    chosen_layer: u32,
    chosen: Vec<(u32, u32)>,
    /// Experts of the last choice that are being read.
    missing: Vec<u32>,
    guesses: Option<Guesses>,
    pub counts: Counts,
}

/// How the slots are shared out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub pools: u32,
    pub slots: u32,
    pub policy: Policy,
    /// Where the experts' memory lies.
    pub address: usize,
    pub bytes: u64,
}

impl Experts {
    /// `groups` are the weights of each layer, in the order of their use. Answers `None`
    /// when the memory does not hold the slots.
    pub fn new(
        weights: &mut Weights,
        groups: &[Vec<u32>],
        layout: Layout,
        reader: Reader,
        block_bytes: u32,
    ) -> Option<Experts> {
        let alignment = weights.files.alignment_bytes;
        let slice_of = |weight: u32| match weights.list[weight as usize].usage {
            Usage::Experts {
                slice_bytes, count, ..
            } => Some((slice_bytes, count)),
            _ => None,
        };
        let pool_count = (layout.pools.max(1) as usize).min(groups.len().max(1));
        let mut layers: Vec<Layer> = Vec::new();
        let mut items = vec![0; pool_count];
        for (number, group) in groups.iter().enumerate() {
            let count = group
                .iter()
                .filter_map(|&w| slice_of(w))
                .map(|s| s.1)
                .min()?;
            let pool = pool_of(number, groups.len(), pool_count as u32);
            layers.push(Layer {
                pool,
                weights: group.clone(),
                count,
                first_item: items[pool],
            });
            items[pool] += count;
        }
        let mut pools = Vec::new();
        let mut at = 0;
        for (pool, &items) in items.iter().enumerate() {
            let members = || layers.iter().filter(move |layer| layer.pool == pool);
            let roles = members().map(|layer| layer.weights.len()).max()?;
            let fewest = members().map(|layer| layer.count).min()?;
            let slots = layout.slots.min(fewest);
            let slices = members()
                .flat_map(|l| &l.weights)
                .filter_map(|&w| slice_of(w));
            let phases = match phases(slices.map(|s| s.0), alignment) {
                n if slots >= n * MIN_SLOTS_OF_A_PHASE => n,
                _ => 1,
            };
            let start = at;
            let mut areas = Vec::new();
            for role in 0..roles {
                let of_role = members().filter_map(|layer| slice_of(*layer.weights.get(role)?));
                // Room for the block that a slice starts in, and for moving it.
                let stride = of_role.map(|s| s.0).max()? + 3 * alignment;
                areas.push(Area {
                    address: layout.address + at as usize,
                    stride,
                });
                at += (stride * u64::from(slots) + alignment).next_multiple_of(alignment);
            }
            pools.push(Pool {
                areas,
                slices: vec![Slice::Absent; slots as usize * roles],
                busy: 0,
                cache: Cache::new(items, slots, phases, layout.policy),
                range: (start, at),
            });
        }
        if at > layout.bytes {
            return None;
        }
        for (number, layer) in layers.iter().enumerate() {
            for (role, &weight) in layer.weights.iter().enumerate() {
                weights.list[weight as usize].fate = Fate::Sliced {
                    layer: number as u32,
                    role: role as u32,
                };
            }
        }
        Some(Experts {
            layers,
            pools,
            reader,
            block_bytes,
            alignment,
            pending: Vec::new(),
            moves: Vec::new(),
            tags: Vec::new(),
            requests: Vec::new(),
            chosen_layer: 0,
            chosen: Vec::new(),
            missing: Vec::new(),
            guesses: None,
            counts: Counts::default(),
        })
    }

    /// Slots that a layer can use at once.
    pub fn slots_of(&self, layer: u32) -> u32 {
        self.pools[self.layers[layer as usize].pool].cache.slots()
    }

    /// Slots that any layer can use at once.
    pub fn min_slots(&self) -> u32 {
        let slots = self.pools.iter().map(|pool| pool.cache.slots());
        slots.min().unwrap_or(0)
    }

    /// Address of slot 0 and distance between slots, for a weight of a layer.
    pub fn view_of(&self, weights: &Weights, layer: u32, role: u32) -> (usize, u64) {
        let layer = &self.layers[layer as usize];
        let pool = &self.pools[layer.pool];
        let area = pool.areas[role as usize];
        let weight = &weights.list[layer.weights[role as usize] as usize];
        let phase = weight.file_offset % self.alignment;
        (area.address + phase as usize, area.stride)
    }

    /// The memory below `bytes` is about to be used for something else: nothing of it is kept.
    pub fn forget_below(&mut self, bytes: u64) {
        self.stop_guessing();
        for pool in self.pools.iter_mut().filter(|pool| pool.range.0 < bytes) {
            pool.forget();
        }
    }

    /// A layer has chosen `experts` (each once). Starts reading what is not there, and
    /// says in `slot_of` where each will be. `false` when they are too many: then
    /// nothing was started.
    pub fn choose(
        &mut self,
        weights: &Weights,
        layer: u32,
        experts: &[u32],
        slot_of: &mut HashMap<u32, u32>,
    ) -> Result<bool, FeedError> {
        slot_of.clear();
        let read_ahead = self.end_guess(layer, experts);
        let Layer {
            pool: pool_number,
            count,
            first_item,
            weights: ref roles,
        } = self.layers[layer as usize];
        let roles = roles.len();
        let pool = &mut self.pools[pool_number];
        let is_known = experts.iter().all(|&expert| expert < count);
        if !is_known || experts.len() > pool.cache.slots() as usize {
            self.counts.too_many += 1;
            return Ok(false);
        }
        self.missing.clear();
        pool.cache.begin();
        for &expert in experts {
            if let Some(slot) = pool.cache.hit(first_item + expert) {
                slot_of.insert(expert, slot);
                // Read for this choice, if before it.
                let is_read = read_ahead.contains(&expert);
                if is_read || pool.of_slot(slot)[..roles].contains(&Slice::Absent) {
                    self.missing.push(expert);
                }
            }
        }
        let mut taken = Vec::new();
        for &expert in experts {
            if slot_of.contains_key(&expert) {
                continue;
            }
            let slot = pool.cache.replace(first_item + expert, expert);
            slot_of.insert(expert, slot);
            self.missing.push(expert);
            taken.push(slot);
        }
        pool.busy = experts.len() as u32;
        self.counts.misses += self.missing.len() as u64;
        self.counts.hits += (experts.len() - self.missing.len()) as u64;
        for slot in taken {
            self.empty(pool_number, slot);
        }
        self.chosen_layer = layer;
        self.chosen.clear();
        self.chosen.extend(experts.iter().map(|e| (*e, slot_of[e])));
        self.pending.clear();
        self.pending.resize(roles * experts.len(), 0);
        self.moves.clear();
        self.read_absent(weights, 0..roles)?;
        Ok(true)
    }

    /// Asks for the slices of roles that the last choice needs and nobody reads, in the order of
    /// their use.
    fn read_absent(&mut self, weights: &Weights, roles: Range<usize>) -> Result<(), FeedError> {
        let mut requests = std::mem::take(&mut self.requests);
        requests.clear();
        for role in roles {
            self.collect_absent(weights, role, &mut requests);
        }
        // SAFETY: slots that were taken for these experts: no node reads them until `wait`, and
        // no other read writes to them.
        let pushed = unsafe { self.reader.push_in_turns(&requests, at_once(&requests)) };
        self.requests = requests;
        pushed?;
        self.reader.send()
    }

    fn collect_absent(&mut self, weights: &Weights, role: usize, requests: &mut Vec<Request>) {
        let pool = self.layers[self.chosen_layer as usize].pool;
        for (number, &(expert, slot)) in self.chosen.iter().enumerate() {
            let at = role * self.chosen.len() + number;
            if self.pools[pool].slice(slot, role) != Slice::Absent {
                continue;
            }
            let Some(placed) = self.place(weights, self.chosen_layer, role, expert, slot) else {
                continue;
            };
            self.moves.extend(placed.moved.map(|moved| (at, moved)));
            let before = requests.len();
            requests.extend(placed.requests(self.block_bytes, at as u64));
            self.pending[at] += (requests.len() - before) as u32;
            *self.pools[pool].slice_mut(slot, role) = Slice::There;
        }
    }

    /// Where a slice of an expert is read from and to.
    fn place(
        &self,
        weights: &Weights,
        layer: u32,
        role: usize,
        expert: u32,
        slot: u32,
    ) -> Option<Placed> {
        let Layer {
            pool,
            weights: roles,
            ..
        } = &self.layers[layer as usize];
        let weight = &weights.list[roles[role] as usize];
        let Usage::Experts { slice_bytes, .. } = weight.usage else {
            return None;
        };
        let area = self.pools[*pool].areas[role];
        let offset = weight.file_offset + u64::from(expert) * slice_bytes;
        let phase = offset % self.alignment;
        let first = area.address + (weight.file_offset % self.alignment) as usize;
        let slice = first + (u64::from(slot) * area.stride) as usize;
        let address = slice - slice % self.alignment as usize;
        let from = address + phase as usize;
        let needed = phase + slice_bytes;
        Some(Placed {
            file: weight.file,
            offset: offset - phase,
            address,
            bytes: needed.next_multiple_of(self.alignment),
            needed,
            moved: (slice != from).then_some((slice, from, slice_bytes as usize)),
        })
    }

    /// Of the last choice.
    pub fn missing(&self) -> &[u32] {
        &self.missing
    }

    /// Whether slices of the last choice are still being read.
    pub fn is_reading(&mut self) -> Result<bool, FeedError> {
        self.reader.poll(&mut self.tags)?;
        self.count_down();
        Ok(self.pending.iter().any(|&blocks| blocks > 0))
    }

    /// Waits until the slices of a role are there.
    pub fn wait(&mut self, weights: &Weights, role: u32, wanted: Wanted) -> Result<(), FeedError> {
        self.reader.poll(&mut self.tags)?;
        self.count_down();
        for number in 0..self.chosen.len() {
            let slot = self.chosen[number].1;
            if wanted == Wanted::All || wanted == Wanted::Slot(slot) {
                self.wait_for_slice(weights, role as usize, number)?;
            }
        }
        Ok(())
    }

    fn wait_for_slice(
        &mut self,
        weights: &Weights,
        role: usize,
        number: usize,
    ) -> Result<(), FeedError> {
        let at = role * self.chosen.len() + number;
        let slot = self.chosen[number].1;
        let pool = self.layers[self.chosen_layer as usize].pool;
        loop {
            if self.pending[at] > 0 {
                self.reader.wait(&mut self.tags)?;
                self.count_down();
            } else if self.pools[pool].slice(slot, role) == Slice::Ahead {
                self.wait_for_guess();
            } else if self.pools[pool].slice(slot, role) == Slice::Absent {
                // It could not be read ahead.
                self.read_absent(weights, role..role + 1)?;
            } else {
                break;
            }
        }
        for &(of, (to, from, bytes)) in &self.moves {
            if of == at {
                // SAFETY: both lie in the slot, whose stride has room for it.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            }
        }
        self.moves.retain(|moved| moved.0 != at);
        Ok(())
    }

    fn count_down(&mut self) {
        for at in self.tags.drain(..) {
            self.pending[at as usize] -= 1;
        }
    }

    /// After an error, or an evaluation that ended early: what was being read is not
    /// to be believed.
    pub fn abandon(&mut self) {
        self.stop_guessing();
        self.reader.drain();
        self.pending.clear();
        self.chosen.clear();
        self.moves.clear();
        self.tags.clear();
        self.pools.iter_mut().for_each(Pool::forget);
    }
}

impl Pool {
    fn slice(&self, slot: u32, role: usize) -> Slice {
        self.slices[slot as usize * self.areas.len() + role]
    }

    fn slice_mut(&mut self, slot: u32, role: usize) -> &mut Slice {
        &mut self.slices[slot as usize * self.areas.len() + role]
    }

    fn of_slot(&self, slot: u32) -> &[Slice] {
        let roles = self.areas.len();
        &self.slices[slot as usize * roles..][..roles]
    }

    fn forget(&mut self) {
        self.cache.clear();
        self.slices.fill(Slice::Absent);
        self.busy = 0;
    }
}

/// An aligned read of a slice.
struct Placed {
    file: u32,
    offset: u64,
    address: usize,
    bytes: u64,
    needed: u64,
    /// Where it has to be moved when it is there: to, from, bytes.
    moved: Option<(usize, usize, usize)>,
}

impl Placed {
    fn requests(&self, block_bytes: u32, tag: u64) -> impl Iterator<Item = Request> {
        let starts = (0..self.bytes).step_by(block_bytes as usize);
        starts.map(move |asked| {
            let bytes = (self.bytes - asked).min(u64::from(block_bytes));
            Request {
                file: self.file,
                offset: self.offset + asked,
                address: self.address + asked as usize,
                bytes: bytes as u32,
                needed: self.needed.saturating_sub(asked).min(bytes) as u32,
                tag,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_large_reads_or_many_small_ones_are_in_flight() {
        let check = |bytes, count, expect| {
            let request = Request {
                file: 0,
                offset: 0,
                address: 0,
                bytes,
                needed: bytes,
                tag: 0,
            };
            assert_eq!(at_once(&vec![request; count]), expect);
        };
        check(884_736, 15, 5);
        check(4 << 20, 12, 2);
        check(16 << 10, 500, 256);
        check(0, 0, 4 << 20);
    }

    #[test]
    fn slices_that_are_no_multiples_of_blocks_have_phases() {
        let check = |slice, alignment, expect| {
            assert_eq!(phases([slice].into_iter(), alignment), expect);
        };
        check(884_736, 4096, 1);
        // gpt-oss: 4,406,400 bytes are 8,606 blocks and a quarter.
        check(4_406_400, 512, 4);
        check(4_406_400, 4096, 32);
        check(4_406_400, 1, 1);
    }
}
