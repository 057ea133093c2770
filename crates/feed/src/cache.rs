//! Which expert is in which slot, and which one goes when another comes.

use std::collections::HashMap;

use plan::Policy;

/// Layer and expert.
pub type Key = (u32, u32);

/// The slots of one pool.
pub struct Slots {
    policy: Policy,
    slot_of: HashMap<Key, u32>,
    slots: Vec<Slot>,
    /// Counts choices.
    now: u64,
    /// LFU with ageing: the score of the slot that was emptied last.
    age: u64,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    key: Option<Key>,
    last_use: u64,
    uses: u64,
    /// `uses` and the age when it came.
    score: u64,
}

impl Slots {
    pub fn new(slots: u32, policy: Policy) -> Slots {
        Slots {
            policy,
            slot_of: HashMap::new(),
            slots: vec![Slot::default(); slots as usize],
            now: 0,
            age: 0,
        }
    }

    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// A new choice: what it hits or brings in stays until the next.
    pub fn begin(&mut self) {
        self.now += 1;
    }

    pub fn hit(&mut self, key: Key) -> Option<u32> {
        let &at = self.slot_of.get(&key)?;
        let slot = &mut self.slots[at as usize];
        slot.last_use = self.now;
        slot.uses += 1;
        slot.score = match self.policy {
            Policy::LfuAged => slot.uses + self.age,
            Policy::Lru | Policy::Lfu => slot.uses,
        };
        Some(at)
    }

    /// Takes a slot for an expert that is not there: an empty one, or the one that the
    /// policy gives up, of its phase if there is one that this choice does not use.
    /// Panics when a choice is larger than the slots are many.
    pub fn replace(&mut self, key: Key, phases: u32) -> u32 {
        let phases = phases.max(1) as usize;
        let of_phase = (key.1 as usize % phases..self.slots.len()).step_by(phases);
        let at = self
            .least_wanted(of_phase)
            .or_else(|| self.least_wanted(0..self.slots.len()))
            .expect("a choice is not larger than the slots are many");
        let slot = &mut self.slots[at];
        if let Some(old) = slot.key.take() {
            self.slot_of.remove(&old);
            self.age = slot.score;
        }
        let score = match self.policy {
            Policy::LfuAged => 1 + self.age,
            Policy::Lru | Policy::Lfu => 1,
        };
        *slot = Slot {
            key: Some(key),
            last_use: self.now,
            uses: 1,
            score,
        };
        self.slot_of.insert(key, at as u32);
        at as u32
    }

    fn least_wanted(&self, among: impl Iterator<Item = usize>) -> Option<usize> {
        let is_free =
            |at: &usize| self.slots[*at].key.is_none() || self.slots[*at].last_use < self.now;
        among.filter(is_free).min_by_key(|&at| {
            let slot = &self.slots[at];
            let rank = match self.policy {
                Policy::Lru => 0,
                Policy::Lfu | Policy::LfuAged => slot.score,
            };
            (slot.key.is_some(), rank, slot.last_use)
        })
    }

    pub fn clear(&mut self) {
        self.slot_of.clear();
        self.slots.fill(Slot::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(policy: Policy, slots: u32, phases: u32, uses: &[u32]) -> usize {
        let mut cache = Slots::new(slots, policy);
        let used = uses.iter().filter(|&&expert| {
            cache.begin();
            let key = (0, expert);
            let hit = cache.hit(key);
            if hit.is_none() {
                let slot = cache.replace(key, phases);
                assert_eq!(slot % phases.max(1), expert % phases.max(1));
                assert_eq!(cache.slot_of[&key], slot);
            }
            hit.is_some()
        });
        used.count()
    }

    #[test]
    fn each_policy_gives_up_what_it_should() {
        // 0 is used often, then 1, 2, 3 in turn through three slots.
        let uses = [0, 0, 0, 1, 2, 3, 1, 2, 3, 0];
        // LRU loses 0 to 3, and then each to the next.
        assert_eq!(hits(Policy::Lru, 3, 1, &uses), 2 + 3);
        // LFU keeps 0: 1, 2, 3 take turns in the two other slots.
        assert_eq!(hits(Policy::Lfu, 3, 1, &uses), 2 + 1);
        // An old favourite fades with ageing, and does not without.
        let mut fades: Vec<u32> = vec![0; 5];
        fades.extend([1, 2].repeat(20));
        assert_eq!(hits(Policy::Lfu, 2, 1, &fades), 4);
        assert!(hits(Policy::LfuAged, 2, 1, &fades) > 30);
    }

    #[test]
    fn a_choice_keeps_what_it_uses() {
        let mut cache = Slots::new(2, Policy::Lru);
        cache.begin();
        let first = cache.replace((0, 1), 1);
        let second = cache.replace((0, 2), 1);
        assert_ne!(first, second);
        cache.begin();
        assert_eq!(cache.hit((0, 2)), Some(second));
        assert_eq!(cache.replace((1, 2), 1), first, "another layer's");
        assert_eq!(cache.hit((0, 1)), None);
    }

    #[test]
    fn phases_are_kept_while_there_are_slots_of_them() {
        let mut cache = Slots::new(6, Policy::Lru);
        cache.begin();
        // Slots 0 and 4 are of phase 0, the third expert of it has to go elsewhere.
        let slots = [0, 4, 8].map(|expert| cache.replace((0, expert), 4));
        assert_eq!(slots[..2], [0, 4]);
        assert_eq!(slots[2], 1);
        assert_eq!(cache.replace((0, 6), 4), 2);
    }

    #[test]
    #[should_panic(expected = "not larger")]
    fn more_than_there_are_slots_is_not_asked_for() {
        let mut cache = Slots::new(1, Policy::Lru);
        cache.begin();
        cache.replace((0, 1), 1);
        cache.replace((0, 2), 1);
    }
}
