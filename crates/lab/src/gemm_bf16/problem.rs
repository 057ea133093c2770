//! One product of matrices: its inputs on the card, what it should give, and a check.

use anyhow::{Context as _, ensure};
use cuda::{Buffer, Card};
use half::bf16;

use crate::inputs::{Distance, Inputs, places, value_bf16};

/// Relative to float64; rounding to bf16 alone is 1.7e-3.
const MOST_ERROR: f64 = 5e-3;

/// `c = a × bᵀ`: `a` is m × k, `b` is n × k, `c` is m × n.
pub struct Problem {
    pub shape: (usize, usize, usize),
    pub a: Buffer<bf16>,
    /// Several, where repeats must not find the weights of the last one in the cache.
    pub b: Vec<Buffer<bf16>>,
    pub c: Buffer<bf16>,
    seed: u32,
}

/// Does the product once, with the `b` of this number.
pub type Call<'a> = Box<dyn Fn(usize) -> anyhow::Result<()> + 'a>;

/// Elements of `c` with the first `b`, in float64.
pub struct Expected(Vec<((usize, usize), f64)>);

impl Problem {
    pub fn new(
        inputs: &Inputs,
        (m, n, k): (usize, usize, usize),
        weights: usize,
        seed: u32,
    ) -> anyhow::Result<Problem> {
        let b = (0..weights).map(|i| inputs.random(n * k, seed_of_b(seed, i)));
        Ok(Problem {
            shape: (m, n, k),
            a: inputs.random(m * k, seed)?,
            b: b.collect::<anyhow::Result<_>>()?,
            c: inputs.poisoned(m * n)?,
            seed,
        })
    }

    /// Operations of one product, in units of 10¹².
    pub fn tera(&self) -> f64 {
        let (m, n, k) = self.shape;
        2e-12 * m as f64 * n as f64 * k as f64
    }

    /// Bytes that it must at least read and write.
    pub fn bytes(&self) -> f64 {
        let (m, n, k) = self.shape;
        2.0 * (m * k + n * k + m * n) as f64
    }

    /// All elements of small results, some of large ones.
    pub fn expected(&self) -> Expected {
        let (m, n, k) = self.shape;
        let places = match m * n <= 40_000 {
            true => (0..m * n).map(|i| (i / n, i % n)).collect(),
            false => places(m, n, 1500, self.seed),
        };
        let b_seed = seed_of_b(self.seed, 0);
        let element = |(row, column): (usize, usize)| -> f64 {
            let products = (0..k).map(|i| {
                let a = value_bf16(self.seed, (row * k + i) as u32);
                let b = value_bf16(b_seed, (column * k + i) as u32);
                a.to_f64() * b.to_f64()
            });
            products.sum()
        };
        Expected(places.into_iter().map(|at| (at, element(at))).collect())
    }

    /// Does the product and compares: the error, or why it is wrong.
    pub fn check(
        &self,
        card: &Card,
        inputs: &Inputs,
        expected: &Expected,
        name: &str,
        call: &Call<'_>,
    ) -> anyhow::Result<f64> {
        let (m, n, k) = self.shape;
        let what = || format!("{name} at {m} × {n} × {k}");
        self.c.fill_bytes(0xff)?;
        call(0).with_context(what)?;
        card.wait().with_context(what)?;
        inputs.is_written(&self.c).with_context(what)?;
        let all = match m * n <= 40_000 {
            true => self.c.read()?,
            false => Vec::new(),
        };
        let mut distance = Distance::default();
        for &((row, column), expected) in &expected.0 {
            let at = row * n + column;
            let found = match all.get(at) {
                Some(&found) => found,
                None => self.c.read_part(at, 1)?[0],
            };
            distance.add(found.to_f64(), expected);
        }
        let error = distance.relative();
        ensure!(
            error < MOST_ERROR,
            "{} is wrong: its error against float64 is {error:.1e}",
            what()
        );
        Ok(error)
    }

    /// Milliseconds of one product, over several in a row.
    pub fn time(&self, card: &Card, call: &Call<'_>, repeats: u32) -> anyhow::Result<f64> {
        let all = card.time_ms(|| self.repeat(call, repeats))?;
        Ok(all / f64::from(repeats))
    }

    /// The same after so many that are not timed. A card at its limit of power takes about a
    /// tenth of a second to slow down or speed up: each contender is measured in the state that it
    /// brings about itself, not in that of the one before.
    pub fn time_warm(
        &self,
        card: &Card,
        call: &Call<'_>,
        warm_up: u32,
        repeats: u32,
    ) -> anyhow::Result<f64> {
        self.repeat(call, warm_up)?;
        self.time(card, call, repeats)
    }

    fn repeat(&self, call: &Call<'_>, repeats: u32) -> anyhow::Result<()> {
        for i in 0..repeats as usize {
            call(i % self.b.len())?;
        }
        Ok(())
    }
}

fn seed_of_b(seed: u32, which: usize) -> u32 {
    seed.wrapping_add(0x5bd1_e995)
        .wrapping_add(which as u32 * 77)
}
