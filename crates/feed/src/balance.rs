//! Pure: who has how much of the memory at a moment, and what that leaves for weights.
//!
//! Memory that was only asked for is not used, so weights may have it. Two things announce that
//! it will be: a graph that is about to write to it for the first time, and a large amount that
//! was asked for just now ([`Asked`]).

use crate::setup::MARGIN_BYTES;

/// Smaller amounts announce nothing: the stack of a thread is one, and is hardly touched. What
/// is used of them is seen when it is.
const MIN_ASKED_BYTES: u64 = 32 << 20;
/// So many evaluations after memory was asked for or given back, what is still untouched is
/// taken to stay so, and weights grow again.
const CALM_EVALUATIONS: u32 = 16;

/// Kept free of a budget: pages that come meanwhile, queues of the kernel, the rows that are
/// looked up. Less of a small budget, which it would be too large a share of.
pub fn margin_bytes(limit_bytes: u64) -> u64 {
    const MIN_BYTES: u64 = 6 << 20;
    (limit_bytes / 32).clamp(MIN_BYTES, MARGIN_BYTES)
}

/// Who has how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    pub limit_bytes: u64,
    /// Used by everybody but the weights.
    pub others_bytes: u64,
    /// About to be used by them.
    pub coming_bytes: u64,
    /// Of the weights' places, all of them, whether they were read into yet or not.
    pub own_bytes: u64,
}

impl Claims {
    fn all_bytes(&self) -> u64 {
        self.others_bytes + self.coming_bytes + self.own_bytes
    }

    /// What weights have to give back. Small changes cost nothing: half of the margin is
    /// there for them, and is restored with the rest.
    pub fn lack_bytes(&self) -> u64 {
        let margin = margin_bytes(self.limit_bytes);
        match self.all_bytes() + margin / 2 > self.limit_bytes {
            true => self.all_bytes() + margin - self.limit_bytes,
            false => 0,
        }
    }

    /// Whether that is more than there is, or about to be: less than half of what may come and
    /// go is left.
    pub fn exceeds(&self) -> bool {
        self.all_bytes() + margin_bytes(self.limit_bytes) / 4 > self.limit_bytes
    }

    /// What weights may have in addition, if that is worth the trouble: what was read ahead is
    /// lost when others are kept.
    pub fn room_bytes(&self) -> u64 {
        let margin = margin_bytes(self.limit_bytes);
        let room = self.limit_bytes.saturating_sub(self.all_bytes() + margin);
        match room >= self.limit_bytes / 128 {
            true => room,
            false => 0,
        }
    }
}

/// Memory that the program has asked for, less than it has touched since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What was asked for and what was used when it was calm.
    before: Option<(u64, u64)>,
    last_bytes: u64,
    /// Evaluations since something was asked for or given back.
    calm: u32,
}

impl Default for Asked {
    /// At first it is calm: all that was asked for was asked for long ago.
    fn default() -> Asked {
        Asked {
            before: None,
            last_bytes: u64::MAX,
            calm: CALM_EVALUATIONS,
        }
    }
}

impl Asked {
    /// Of what was asked for lately, what is still untouched. Of a large amount all of it is
    /// taken to be about to be used.
    pub fn coming_bytes(&mut self, asked_bytes: u64, others_bytes: u64) -> u64 {
        if asked_bytes > self.last_bytes.saturating_add(MIN_ASKED_BYTES / 2) {
            self.calm = 0;
        }
        self.last_bytes = asked_bytes;
        let (asked_before, used_before) = *self.before.get_or_insert((asked_bytes, others_bytes));
        if asked_bytes < asked_before {
            self.before = Some((asked_bytes, others_bytes.min(used_before)));
            return 0;
        }
        let touched = others_bytes.saturating_sub(used_before);
        match (asked_bytes - asked_before).saturating_sub(touched) {
            coming if coming >= MIN_ASKED_BYTES => coming,
            _ => 0,
        }
    }

    /// Weights gave memory back.
    pub fn has_given(&mut self) {
        self.calm = 0;
    }

    /// Before each evaluation.
    pub fn evaluated(&mut self, others_bytes: u64) {
        self.calm = self.calm.saturating_add(1);
        if self.is_calm() {
            self.before = Some((self.last_bytes, others_bytes));
        }
    }

    /// Whether weights may grow.
    pub fn is_calm(&self) -> bool {
        self.calm > CALM_EVALUATIONS
    }
}

/// Weights in the order in which they give their memory back; they get it in reverse. Numbers
/// that follow one another are far apart in it, so that what is kept stays spread along the order
/// of use, however much that is.
pub fn turn_of(weight: u32) -> u32 {
    // The golden ratio: the multiples of it are spread as evenly as can be.
    weight.wrapping_mul(0x9E37_79B1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_margin_is_kept_free_and_half_of_it_may_come_and_go() {
        let of = |others_bytes| Claims {
            limit_bytes: 320 * MIB,
            others_bytes,
            coming_bytes: 10 * MIB,
            own_bytes: 100 * MIB,
        };
        let margin = margin_bytes(320 * MIB);
        assert_eq!(margin, 10 * MIB);
        let full = 210 * MIB - margin;
        assert_eq!((of(full).lack_bytes(), of(full).room_bytes()), (0, 0));
        let half = full + margin / 2;
        assert_eq!(of(half).lack_bytes(), 0);
        assert_eq!(of(half + 1).lack_bytes(), margin / 2 + 1);
        assert_eq!(of(full - 30 * MIB).room_bytes(), 30 * MIB);
        assert_eq!(of(full - MIB).room_bytes(), 0);
    }

    #[test]
    fn what_was_asked_for_is_about_to_be_used_until_it_is_calm() {
        let mut asked = Asked::default();
        assert_eq!(asked.coming_bytes(500 * MIB, 100 * MIB), 0);
        // A thread's stack is nothing; a buffer is.
        assert_eq!(asked.coming_bytes(508 * MIB, 100 * MIB), 0);
        assert_eq!(asked.coming_bytes(608 * MIB, 100 * MIB), 108 * MIB);
        assert_eq!(asked.coming_bytes(608 * MIB, 160 * MIB), 48 * MIB);
        for _ in 0..CALM_EVALUATIONS {
            asked.evaluated(160 * MIB);
            assert!(!asked.is_calm());
            assert_eq!(asked.coming_bytes(608 * MIB, 160 * MIB), 48 * MIB);
        }
        asked.evaluated(160 * MIB);
        assert!(asked.is_calm());
        assert_eq!(asked.coming_bytes(608 * MIB, 160 * MIB), 0);
        // Given back, and asked for again.
        assert_eq!(asked.coming_bytes(508 * MIB, 100 * MIB), 0);
        assert_eq!(asked.coming_bytes(608 * MIB, 100 * MIB), 100 * MIB);
        asked.has_given();
        assert!(!asked.is_calm());
    }

    #[test]
    fn turns_are_spread_along_the_order_of_use() {
        let mut order: Vec<u32> = (0..200).collect();
        order.sort_by_key(|&weight| turn_of(weight));
        for taken in [10, 50, 100, 190] {
            let mut taken: Vec<u32> = order[..taken].to_vec();
            taken.sort_unstable();
            let gaps = taken.windows(2).map(|pair| pair[1] - pair[0]);
            let even = 200 / taken.len() as u32;
            assert!(gaps.max().unwrap() <= 3 * even + 1, "{taken:?}");
        }
    }

    proptest! {
        /// Whatever others do, step by step: after weights have given what they lack they are
        /// within the limit if that is possible at all, and when it is calm they have all but
        /// the margin and what is not worth the trouble.
        #[test]
        fn weights_follow_what_others_use(
            limit_mib in 64u64..4096,
            all_mib in 1u64..8192,
            others_per_mille in prop::collection::vec((0u64..1000, 0u64..1200), 1..60),
        ) {
            let (limit_bytes, all_bytes) = (limit_mib * MIB, all_mib * MIB);
            let margin = margin_bytes(limit_bytes);
            let mut own_bytes = 0;
            let mut asked = Asked::default();
            for (used, wanted) in others_per_mille {
                let others_bytes = limit_bytes / 1000 * used;
                let asked_bytes = others_bytes.max(limit_bytes / 1000 * wanted);
                let mut at_once = |own_bytes: u64, is_before_evaluation: bool| {
                    let coming_bytes = asked.coming_bytes(asked_bytes, others_bytes);
                    let claims = Claims { limit_bytes, others_bytes, coming_bytes, own_bytes };
                    let given = claims.lack_bytes().min(own_bytes);
                    if given > 0 {
                        asked.has_given();
                    }
                    if is_before_evaluation {
                        asked.evaluated(others_bytes);
                    }
                    match is_before_evaluation && asked.is_calm() {
                        true => (own_bytes + claims.room_bytes()).min(all_bytes),
                        false => own_bytes - given,
                    }
                };
                own_bytes = at_once(own_bytes, false);
                prop_assert!(own_bytes == 0 || others_bytes + own_bytes + margin / 2 <= limit_bytes);
                for _ in 0..2 * CALM_EVALUATIONS {
                    own_bytes = at_once(own_bytes, true);
                    prop_assert!(
                        own_bytes == 0 || others_bytes + own_bytes + margin / 2 <= limit_bytes
                    );
                }
                let left = limit_bytes.saturating_sub(others_bytes + margin);
                let least = left.saturating_sub(limit_bytes / 128);
                prop_assert!(own_bytes >= least.min(all_bytes), "{own_bytes} of {left}");
            }
        }
    }
}
