//! The cache against slots that are searched from end to end.

use plan::{Cache, Policy};
use proptest::prelude::*;

#[derive(Clone, Copy)]
struct Slot {
    item: u32,
    last_use: (u64, usize),
    uses: u64,
    key: u64,
}

/// Slots that are searched from end to end.
struct Naive {
    policy: Policy,
    slots: Vec<Option<Slot>>,
    age: u64,
    time: usize,
}

impl Naive {
    fn has(&self, item: u32) -> bool {
        self.slots.iter().flatten().any(|slot| slot.item == item)
    }

    /// Whether it was there, and its slot: one that was taken for it if not.
    fn access(&mut self, item: u32, now: u64, phases: usize) -> (bool, u32) {
        self.time += 1;
        let there = self
            .slots
            .iter()
            .position(|s| s.is_some_and(|s| s.item == item));
        let at = there.unwrap_or_else(|| {
            let best = |among: &[usize]| {
                let slot = |at: &&usize| self.slots[**at];
                let free = among
                    .iter()
                    .filter(|at| slot(at).is_none_or(|s| s.last_use.0 < now));
                free.min_by_key(|at| slot(at).map(|s| (s.key, s.last_use)))
                    .copied()
            };
            let all: Vec<usize> = (0..self.slots.len()).collect();
            let of_phase = |at: &usize| at % phases == item as usize % phases;
            let of_phase: Vec<usize> = all.iter().copied().filter(of_phase).collect();
            best(&of_phase).or_else(|| best(&all)).unwrap()
        });
        if there.is_none()
            && let Some(old) = self.slots[at].take()
        {
            self.age = self.age.max(old.key);
        }
        let uses = self.slots[at].map_or(0, |s| s.uses) + 1;
        let key = match self.policy {
            Policy::Lru => 0,
            Policy::Lfu => uses,
            Policy::LfuAged => uses + self.age,
        };
        let last_use = (now, self.time);
        self.slots[at] = Some(Slot {
            item,
            last_use,
            uses,
            key,
        });
        (there.is_some(), at as u32)
    }
}

proptest! {
    #[test]
    fn cache_is_the_list_of_slots_searched_from_end_to_end(
        policy in prop::sample::select(Policy::ALL.to_vec()),
        choices in prop::collection::vec(prop::collection::btree_set(0u32..12, 1..4), 1..60),
        slots in 3u32..9,
        phases in 1u32..5,
    ) {
        let mut cache = Cache::new(12, slots, phases, policy);
        let mut naive = Naive {
            policy,
            slots: vec![None; slots as usize],
            age: 0,
            time: 0,
        };
        for (now, choice) in (1..).zip(&choices) {
            cache.begin();
            let (hit, missed): (Vec<u32>, Vec<u32>) =
                choice.iter().partition(|&&item| naive.has(item));
            for item in hit {
                let slot = cache.hit(item).unwrap();
                prop_assert_eq!(naive.access(item, now, phases as usize), (true, slot));
            }
            for item in missed {
                let slot = cache.replace(item, item);
                prop_assert_eq!(naive.access(item, now, phases as usize), (false, slot));
            }
        }
    }
}
