//! The random numbers behind the weights: small, fast, and the same on every
//! machine and in every version, because a seed names a model.
//!
//! xoshiro256++ (Blackman and Vigna, public domain), seeded through splitmix64
//! as its authors advise. Not for secrets.

use support::{hash::fnv1a, random::Random};

/// A xoshiro256++ stream.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of one tensor: it depends on the model's seed and the
    /// tensor's name only, so that neither the order of tensors nor a split
    /// changes any weight.
    pub fn for_tensor(seed: u64, name: &str) -> Rng {
        let mut mix = Random(seed.rotate_left(32) ^ fnv1a(name.as_bytes()));
        Rng {
            state: std::array::from_fn(|_| mix.next_u64()),
        }
    }

    #[inline(always)]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Fills whole; a rest of fewer than eight bytes uses one number.
    #[inline(always)]
    pub fn fill(&mut self, out: &mut [u8]) {
        let (whole, rest) = out.as_chunks_mut::<8>();
        for chunk in whole {
            *chunk = self.next_u64().to_le_bytes();
        }
        if !rest.is_empty() {
            let last = self.next_u64().to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_seed_and_by_name() {
        let first = |seed, name| Rng::for_tensor(seed, name).next_u64();
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
    }
}
