//! SplitMix64: numbers that look random, the same from the same seed on every machine and in
//! every version. Not for secrets.

/// The seed, then the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Random(pub u64);

impl Random {
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `bound`, or 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }

    /// One time in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// From 0 up to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence_comes_out() {
        let mut random = Random(1234567);
        assert_eq!(
            [random.next_u64(), random.next_u64(), random.next_u64()],
            [
                6457827717110365317,
                3203168211198807973,
                9817491932198370423
            ]
        );
    }

    #[test]
    fn bounds_are_kept() {
        let mut random = Random(1);
        for bound in 0..200 {
            assert!(random.below(bound) < bound.max(1));
            assert!((0.0..1.0).contains(&random.unit()));
        }
    }
}
