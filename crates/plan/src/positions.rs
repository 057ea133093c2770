//! A set of integers that finds its largest in a few steps, whatever its size: what cache
//! simulations need millions of times a second.

/// Numbers below a bound: one bit each, and above every 64 words a word that says
/// which of them are not empty.
pub(crate) struct Positions {
    levels: Vec<Vec<u64>>,
}

impl Positions {
    pub fn new(len: usize) -> Positions {
        let mut levels = Vec::new();
        let mut words = len.div_ceil(64).max(1);
        loop {
            levels.push(vec![0u64; words]);
            if words == 1 {
                return Positions { levels };
            }
            words = words.div_ceil(64);
        }
    }

    #[inline]
    pub fn insert(&mut self, position: u32) {
        let mut at = position as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                return;
            }
            at /= 64;
        }
    }

    #[inline]
    pub fn remove(&mut self, position: u32) {
        let mut at = position as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
    }

    #[inline]
    pub fn last(&self) -> Option<u32> {
        let mut at = 0usize;
        for level in self.levels.iter().rev() {
            let word = level[at];
            if word == 0 {
                return None;
            }
            at = at * 64 + 63 - word.leading_zeros() as usize;
        }
        Some(at as u32)
    }

    /// Members above `position` that share its word, ascending.
    #[inline]
    pub fn later_in_word(&self, position: u32) -> impl Iterator<Item = u32> + use<> {
        let base = position & !63;
        let above = !1u64 << (position % 64);
        let mut bits = self.levels[0][position as usize / 64] & above;
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(base + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positions_agree_with_a_sorted_set(
            len in 1usize..9000,
            changes in prop::collection::vec((any::<bool>(), any::<u32>()), 0..300),
        ) {
            let (mut positions, mut set) = (Positions::new(len), BTreeSet::new());
            for (insert, at) in changes {
                let at = at % len as u32;
                if insert {
                    positions.insert(at);
                    set.insert(at);
                } else {
                    positions.remove(at);
                    set.remove(&at);
                }
                prop_assert_eq!(positions.last(), set.last().copied());
                let later: Vec<u32> = positions.later_in_word(at).collect();
                let word = set.range(at + 1..).copied().take_while(|p| p / 64 == at / 64);
                prop_assert_eq!(later, word.collect::<Vec<_>>());
            }
        }
    }
}
