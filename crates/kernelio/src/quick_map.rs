//! A map for numbers that the kernel gives: sectors, threads, processes.
//!
//! The hasher of the standard library withstands keys chosen to collide, at a price
//! that shows where every fault and every request is looked up. Nobody chooses these
//! keys to hurt us, and there are few at a time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;

/// One multiplication for each number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuickHasher(u64);

/// Odd, with its bits spread: 2^64 over the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(FACTOR);
    }

    /// Multiplying moves bits upwards only, and sectors are multiples of 8: the lowest
    /// bits, which choose the place, come from the upper ones.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher as _, BuildHasherDefault};

    use super::*;
    use crate::devices::Device;

    #[test]
    fn sectors_of_pages_are_spread() {
        let build = BuildHasherDefault::<QuickHasher>::default();
        let device = Device { major: 8, minor: 0 };
        for step in [8u64, 256, 4096] {
            let places: HashSet<u64> = (0..1024u64)
                .map(|number| build.hash_one((device, number * step)) % 1024)
                .collect();
            assert!(places.len() > 400, "step {step}: {} places", places.len());
        }
    }
}
