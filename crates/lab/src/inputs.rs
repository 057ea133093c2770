//! Random inputs that the card and the host compute alike, and a check of results.
//!
//! Matrices are filled on the card. To check a result, the host computes some of its elements
//! again in float64 from the same numbers; that nothing was left out, the card counts: every
//! output is full of NaN before a kernel runs.

use std::rc::Rc;

use anyhow::ensure;
use cuda::{Buffer, Card, Element, Kernel, Launch, Module};
use half::bf16;

use crate::toolkit::Compile;

/// As `random_value` in kernels/common.cuh: in [-1, 1), from a seed and a place.
pub fn value(seed: u32, index: u32) -> f32 {
    let mut x = index.wrapping_mul(0x9e37_79b9).wrapping_add(seed);
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^= x >> 16;
    (x >> 8) as f32 * (1.0 / 8_388_608.0) - 1.0
}

/// The same, rounded as the card rounds it.
pub fn value_bf16(seed: u32, index: u32) -> bf16 {
    bf16::from_f32(value(seed, index))
}

/// Kernels that fill and look.
pub struct Inputs {
    card: Card,
    fill_f32: Kernel,
    fill_bf16: Kernel,
    count_f32: Kernel,
    count_bf16: Kernel,
}

/// A number that [`Inputs`] can fill with and look for.
pub trait Number: Element {
    fn fill(inputs: &Inputs) -> &Kernel;
    fn count(inputs: &Inputs) -> &Kernel;
}

impl Number for f32 {
    fn fill(inputs: &Inputs) -> &Kernel {
        &inputs.fill_f32
    }

    fn count(inputs: &Inputs) -> &Kernel {
        &inputs.count_f32
    }
}

impl Number for bf16 {
    fn fill(inputs: &Inputs) -> &Kernel {
        &inputs.fill_bf16
    }

    fn count(inputs: &Inputs) -> &Kernel {
        &inputs.count_bf16
    }
}

const GRID: u32 = 1024;
const BLOCK: u32 = 256;

impl Inputs {
    pub fn new(card: &Card) -> anyhow::Result<Inputs> {
        let source = include_str!("../kernels/inputs.cu");
        let module: Rc<Module> =
            Rc::new(card.kernels("crates/lab/kernels/inputs.cu", source, &[])?);
        Ok(Inputs {
            card: card.clone(),
            fill_f32: module.kernel("fill_f32")?,
            fill_bf16: module.kernel("fill_bf16")?,
            count_f32: module.kernel("count_not_finite_f32")?,
            count_bf16: module.kernel("count_not_finite_bf16")?,
        })
    }

    /// So many numbers; number `i` is `value(seed, i)`.
    pub fn random<T: Number>(&self, elements: usize, seed: u32) -> anyhow::Result<Buffer<T>> {
        let buffer = self.card.buffer::<T>(elements)?;
        let how = Launch::new((GRID, 1, 1), BLOCK, 0);
        // SAFETY: the kernel takes a buffer, its length and a seed.
        unsafe { T::fill(self).launch(how, &[&buffer, &(elements as u64), &seed])? };
        Ok(buffer)
    }

    /// Room for a result, full of NaN.
    pub fn poisoned<T: Number>(&self, elements: usize) -> anyhow::Result<Buffer<T>> {
        let buffer = self.card.buffer::<T>(elements)?;
        buffer.fill_bytes(0xff)?;
        Ok(buffer)
    }

    /// An error if any element is NaN or infinite: a kernel did not write all of its result.
    pub fn is_written<T: Number>(&self, buffer: &Buffer<T>) -> anyhow::Result<()> {
        let found = self.card.buffer_with(&[0u32])?;
        let how = Launch::new((GRID, 1, 1), BLOCK, 0);
        // SAFETY: the kernel takes a buffer, its length and a counter.
        unsafe { T::count(self).launch(how, &[buffer, &(buffer.elements() as u64), &found])? };
        let found = found.read()?[0];
        ensure!(
            found == 0,
            "{found} of {} results are NaN or were not written",
            buffer.elements()
        );
        Ok(())
    }
}

/// Places of a matrix to look at: its corners, the last row and column, and others by chance.
pub fn places(rows: usize, columns: usize, count: usize, seed: u32) -> Vec<(usize, usize)> {
    let mut places = vec![
        (0, 0),
        (0, columns - 1),
        (rows - 1, 0),
        (rows - 1, columns - 1),
    ];
    let mut random = support::random::Random(u64::from(seed));
    for i in 0..count {
        let row = random.below(rows as u64) as usize;
        let column = random.below(columns as u64) as usize;
        places.push(match i % 8 {
            0 => (rows - 1, column),
            1 => (row, columns - 1),
            _ => (row, column),
        });
    }
    places
}

/// How far results are from what they should be: the norm of the difference over the norm of
/// what was expected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distance {
    difference: f64,
    expected: f64,
}

impl Distance {
    pub fn add(&mut self, found: f64, expected: f64) {
        self.difference += (found - expected).powi(2);
        self.expected += expected.powi(2);
    }

    pub fn relative(self) -> f64 {
        match self.expected > 0.0 {
            true => (self.difference / self.expected).sqrt(),
            false => self.difference.sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_over_their_range() {
        let numbers: Vec<f32> = (0..10_000).map(|i| value(7, i)).collect();
        assert!(numbers.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean: f32 = numbers.iter().sum::<f32>() / 10_000.0;
        assert!(mean.abs() < 0.03, "{mean}");
        assert_ne!(value(7, 1), value(8, 1));
    }

    #[test]
    fn a_wrong_result_has_a_distance_and_nan_too() {
        let mut distance = Distance::default();
        distance.add(1.0, 1.0);
        assert_eq!(distance.relative(), 0.0);
        distance.add(1.1, 1.0);
        assert!(distance.relative() > 0.05);
        distance.add(f64::NAN, 1.0);
        assert!(distance.relative().is_nan());
    }

    #[test]
    fn corners_are_always_looked_at() {
        let places = places(3, 5, 20, 1);
        assert!(
            [(0, 0), (0, 4), (2, 0), (2, 4)]
                .iter()
                .all(|place| places.contains(place))
        );
        assert!(places.iter().all(|&(row, column)| row < 3 && column < 5));
    }
}
