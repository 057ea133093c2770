//! The random numbers behind the weights: small, fast, and the same on every
//! machine and in every version, because a seed names a model.
//!
//! xoshiro256++ (Blackman and Vigna, public domain), seeded through splitmix64
//! as its authors advise. Not for secrets.

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
        let fnv1a = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut mix = seed.rotate_left(32) ^ fnv1a;
        Rng {
            state: std::array::from_fn(|_| splitmix64(&mut mix)),
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

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_the_published_sequence() {
        let mut state = 1234567;
        let got: Vec<u64> = (0..3).map(|_| splitmix64(&mut state)).collect();
        assert_eq!(
            got,
            [
                6457827717110365317,
                3203168211198807973,
                9817491932198370423
            ]
        );
    }

    #[test]
    fn streams_differ_by_seed_and_by_name() {
        let first = |seed, name| Rng::for_tensor(seed, name).next_u64();
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
    }
}
