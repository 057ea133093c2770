//! Which item is in which slot, and which one goes when another comes: the policies of a
//! cache whose items have one size.
//!
//! Feeding runs it with real slots, and [`crate::routing`] on the routing of a recorded
//! run. Items are numbered from 0; a *choice* is a set of items that are needed together, so
//! none of them makes room for another. A step costs the same whatever the number of slots
//! (with ageing, a walk over the keys that an item overtakes): simulations take millions.

use crate::Policy;

/// No item, no slot, no group.
const NONE: u32 = u32::MAX;

pub struct Cache {
    policy: Policy,
    slots: u32,
    items: Vec<Item>,
    groups: Vec<Group>,
    unused_groups: Vec<u32>,
    /// Slot s is of phase s modulo their number.
    phases: Vec<Phase>,
    /// Counts uses.
    now: u64,
    /// The first use of this choice.
    began: u64,
    /// The highest key of those that went.
    age: u64,
}

#[derive(Clone, Copy)]
struct Item {
    slot: u32,
    group: u32,
    /// Neighbours in the group.
    before: u32,
    after: u32,
    last_use: u64,
    uses: u64,
}

const ABSENT: Item = Item {
    slot: NONE,
    group: NONE,
    before: NONE,
    after: NONE,
    last_use: 0,
    uses: 0,
};

/// Items of one phase and one key; those with the least key go first.
#[derive(Clone, Copy)]
struct Group {
    key: u64,
    /// Its items, from the least to the most recently used.
    first: u32,
    last: u32,
    /// Neighbours in the order of keys.
    before: u32,
    after: u32,
}

/// Slots that are as good as each other for an item.
#[derive(Clone)]
struct Phase {
    /// The lowest last.
    empty: Vec<u32>,
    /// The group with the least key.
    first: u32,
}

impl Cache {
    /// A cache for items below `items`, whose slots are of so many phases.
    pub fn new(items: u32, slots: u32, phases: u32, policy: Policy) -> Cache {
        let mut cache = Cache {
            policy,
            slots,
            items: vec![ABSENT; items as usize],
            groups: Vec::new(),
            unused_groups: Vec::new(),
            phases: vec![
                Phase {
                    empty: Vec::new(),
                    first: NONE,
                };
                phases.max(1) as usize
            ],
            now: 0,
            began: 0,
            age: 0,
        };
        cache.clear();
        cache
    }

    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Forgets all items.
    pub fn clear(&mut self) {
        self.items.fill(ABSENT);
        self.groups.clear();
        self.unused_groups.clear();
        let phases = self.phases.len();
        for (first, phase) in self.phases.iter_mut().enumerate() {
            let slots = (first as u32..self.slots).step_by(phases);
            phase.empty = slots.rev().collect();
            phase.first = NONE;
        }
    }

    /// A new choice: what it hits or brings in stays until the next.
    pub fn begin(&mut self) {
        self.began = self.now;
    }

    /// The slot of an item that is there; not a use of it.
    pub fn slot_of(&self, item: u32) -> Option<u32> {
        Some(self.items[item as usize].slot).filter(|&slot| slot != NONE)
    }

    /// A use of an item that is there: its slot.
    #[inline]
    pub fn hit(&mut self, item: u32) -> Option<u32> {
        let slot = self.items[item as usize].slot;
        if slot == NONE {
            return None;
        }
        // Its key does not fall.
        let group = self.items[item as usize].group;
        self.unlink(item);
        self.link(item, self.groups[group as usize].before, group);
        self.drop_if_empty(group);
        Some(slot)
    }

    /// Takes a slot for an item that is not there: an empty one, or the one that the policy
    /// gives up, of this phase (modulo their number) if it has one that this choice does not
    /// use. Panics when a choice is larger than the slots are many.
    pub fn replace(&mut self, item: u32, phase: u32) -> u32 {
        let phases = self.phases.len();
        let of_all = || (0..phases).filter_map(|phase| self.least_wanted(phase));
        let place = self
            .least_wanted(phase as usize % phases)
            .or_else(|| of_all().min())
            .expect("a choice is not larger than the slots are many");
        if place.is_taken {
            self.unlink(place.item);
            self.drop_if_empty(self.items[place.item as usize].group);
            self.age = self.age.max(place.key);
            self.items[place.item as usize] = ABSENT;
        } else {
            self.phases[place.slot as usize % phases].empty.pop();
        }
        self.items[item as usize] = Item {
            slot: place.slot,
            ..ABSENT
        };
        self.link(item, NONE, self.phases[place.slot as usize % phases].first);
        place.slot
    }

    fn least_wanted(&self, phase: usize) -> Option<Place> {
        let phase = &self.phases[phase];
        if let Some(&slot) = phase.empty.last() {
            return Some(Place {
                is_taken: false,
                key: 0,
                last_use: 0,
                slot,
                item: NONE,
            });
        }
        let mut at = phase.first;
        while at != NONE {
            let group = &self.groups[at as usize];
            let item = &self.items[group.first as usize];
            // The first of a group was used before the others: if it is of this choice, all
            // are.
            if item.last_use < self.began {
                return Some(Place {
                    is_taken: true,
                    key: group.key,
                    last_use: item.last_use,
                    slot: item.slot,
                    item: group.first,
                });
            }
            at = group.after;
        }
        None
    }

    /// Counts a use of an item that has a slot and is in no group. Its group is looked for
    /// from `at` on, which follows `before`.
    #[inline]
    fn link(&mut self, number: u32, mut before: u32, mut at: u32) {
        let item = &mut self.items[number as usize];
        item.uses += 1;
        item.last_use = self.now;
        self.now += 1;
        let key = match self.policy {
            Policy::Lru => 0,
            Policy::Lfu => item.uses,
            Policy::LfuAged => item.uses + self.age,
        };
        while at != NONE && self.groups[at as usize].key < key {
            (before, at) = (at, self.groups[at as usize].after);
        }
        let phase = item.slot as usize % self.phases.len();
        if at == NONE || self.groups[at as usize].key != key {
            at = self.insert_group(key, before, at, phase);
        }
        let last = std::mem::replace(&mut self.groups[at as usize].last, number);
        let item = &mut self.items[number as usize];
        (item.group, item.before, item.after) = (at, last, NONE);
        match last {
            NONE => self.groups[at as usize].first = number,
            last => self.items[last as usize].after = number,
        }
    }

    #[inline]
    fn unlink(&mut self, number: u32) {
        let item = self.items[number as usize];
        let group = &mut self.groups[item.group as usize];
        match item.before {
            NONE => group.first = item.after,
            before => self.items[before as usize].after = item.after,
        }
        match item.after {
            NONE => group.last = item.before,
            after => self.items[after as usize].before = item.before,
        }
    }

    fn insert_group(&mut self, key: u64, before: u32, after: u32, phase: usize) -> u32 {
        let group = Group {
            key,
            first: NONE,
            last: NONE,
            before,
            after,
        };
        let at = self.unused_groups.pop().unwrap_or_else(|| {
            self.groups.push(group);
            self.groups.len() as u32 - 1
        });
        self.groups[at as usize] = group;
        match before {
            NONE => self.phases[phase].first = at,
            before => self.groups[before as usize].after = at,
        }
        if after != NONE {
            self.groups[after as usize].before = at;
        }
        at
    }

    #[inline]
    fn drop_if_empty(&mut self, at: u32) {
        let group = self.groups[at as usize];
        if group.first != NONE {
            return;
        }
        match group.before {
            NONE => {
                let mut phases = self.phases.iter_mut();
                if let Some(phase) = phases.find(|phase| phase.first == at) {
                    phase.first = group.after;
                }
            }
            before => self.groups[before as usize].after = group.after,
        }
        if group.after != NONE {
            self.groups[group.after as usize].before = group.before;
        }
        self.unused_groups.push(at);
    }
}

/// A slot that may be taken, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    is_taken: bool,
    key: u64,
    last_use: u64,
    slot: u32,
    item: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(policy: Policy, slots: u32, phases: u32, uses: &[u32]) -> usize {
        let mut cache = Cache::new(10, slots, phases, policy);
        let used = uses.iter().filter(|&&item| {
            cache.begin();
            let hit = cache.hit(item);
            if hit.is_none() {
                let slot = cache.replace(item, item);
                assert_eq!(slot % phases.max(1), item % phases.max(1));
                assert_eq!(cache.items[item as usize].slot, slot);
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
        let mut cache = Cache::new(10, 2, 1, Policy::Lru);
        cache.begin();
        let first = cache.replace(1, 0);
        let second = cache.replace(2, 0);
        assert_ne!(first, second);
        cache.begin();
        assert_eq!(cache.hit(2), Some(second));
        assert_eq!(cache.replace(7, 0), first);
        assert_eq!(cache.hit(1), None);
        assert_eq!((cache.slot_of(7), cache.slot_of(1)), (Some(first), None));
        cache.clear();
        assert_eq!(cache.hit(2), None);
    }

    #[test]
    fn phases_are_kept_while_there_are_slots_of_them() {
        let mut cache = Cache::new(10, 6, 4, Policy::Lru);
        cache.begin();
        // Slots 0 and 4 are of phase 0, the third item of it has to go elsewhere.
        let slots = [0, 4, 8].map(|item| cache.replace(item, item));
        assert_eq!(slots[..2], [0, 4]);
        assert_eq!(slots[2], 1);
        assert_eq!(cache.replace(6, 6), 2);
    }

    #[test]
    #[should_panic(expected = "not larger")]
    fn more_than_there_are_slots_is_not_asked_for() {
        let mut cache = Cache::new(3, 1, 1, Policy::Lru);
        cache.begin();
        cache.replace(1, 0);
        cache.replace(2, 0);
    }
}
