//! What an engine's own kernels reach on a machine, measured: seconds for each unit of work,
//! by the number of tokens that share it. Where they are known, times come from them and not
//! from a share of what the hardware could do at best.

use serde::{Deserialize, Serialize};

use crate::checked;
use crate::error::{Error, Result};
use crate::roofline::Seconds;
use crate::shape::{Attention, Matrix};

/// Rates of one engine with one number of threads.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Seconds for each weight of a matrix, by tokens.
    pub products: Vec<Product>,
    /// The same for the matrices of experts, by tokens of each expert.
    pub experts: Vec<Product>,
    /// Seconds for each pair of a number of a query and of a cached key or value, by tokens of
    /// a sequence.
    pub attention: Vec<Heads>,
    /// Attention takes as long for cells that are masked.
    #[serde(default)]
    pub computes_masked: bool,
    /// Attention over fewer takes as long as over so many.
    #[serde(default)]
    pub min_cached_tokens: u64,
    /// Seconds for each number that norms, sums and gates write, by tokens.
    pub elements: Curve,
    /// Seconds for each operation, however small.
    pub node: Seconds,
    /// Around all operations of a pass: starting threads.
    #[serde(default)]
    pub seconds_per_pass: f64,
    /// What a host does for each token of a pass: looking its embedding up, masks, copies.
    #[serde(default)]
    pub seconds_per_token: f64,
    /// Copying logits back.
    #[serde(default)]
    pub seconds_per_output_byte: f64,
}

/// How long products with a matrix take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Product {
    #[serde(rename = "type")]
    pub ty: String,
    pub columns: u64,
    pub rows: u64,
    pub seconds: Curve,
}

/// How long attention takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heads {
    /// Type of the cache.
    #[serde(rename = "type")]
    pub ty: String,
    pub heads: u64,
    pub kv_heads: u64,
    pub key_length: u64,
    pub value_length: u64,
    pub seconds: Curve,
}

/// Of several, the one whose numbers are nearest, as factors.
fn nearest<'a, T, const N: usize>(
    all: impl Iterator<Item = (&'a T, [u64; N])>,
    wanted: [u64; N],
) -> Option<&'a T> {
    let ratio = |a: u64, b: u64| (a.max(1) as f64 / b.max(1) as f64).ln().abs();
    let distance = |numbers: [u64; N]| -> f64 {
        let pairs = numbers.into_iter().zip(wanted);
        pairs.map(|(a, b)| ratio(a, b)).sum()
    };
    all.map(|(one, numbers)| (one, distance(numbers)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(one, _)| one)
}

/// The product with that matrix, or with the most similar one of its type.
pub(crate) fn product(known: &[Product], matrix: Matrix) -> Option<&Curve> {
    let alike = known.iter().filter(|product| product.ty == matrix.ty);
    let numbered = alike.map(|product| (product, [product.columns, product.rows]));
    let found = nearest(numbered, [matrix.columns, matrix.rows]);
    found.map(|product| &product.seconds)
}

/// The attention of such heads, or of the most similar ones with a cache of that type.
pub(crate) fn attention<'a>(known: &'a [Heads], ty: &str, wanted: &Attention) -> Option<&'a Curve> {
    let numbers = |heads: &Heads| {
        let Heads {
            heads,
            kv_heads,
            key_length,
            value_length,
            ..
        } = *heads;
        [heads, kv_heads, key_length, value_length]
    };
    let alike = known.iter().filter(|heads| heads.ty == ty);
    let numbered = alike.map(|heads| (heads, numbers(heads)));
    let found = nearest(numbered, wanted.as_computed());
    found.map(|heads| &heads.seconds)
}

/// Seconds by tokens, ascending.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Curve {
    pub points: Vec<(u64, Seconds)>,
}

impl Curve {
    /// On the line between neighbours; below the first as the first, above the last in
    /// proportion: all units are busy there.
    pub fn at(&self, tokens: f64) -> Option<Seconds> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        if tokens <= first.0 as f64 {
            return Some(first.1);
        }
        if tokens >= last.0 as f64 {
            return Some(last.1.times(tokens / last.0 as f64));
        }
        let after = self.points.partition_point(|(at, _)| *at as f64 <= tokens);
        let (low, high) = (&self.points[after - 1], &self.points[after]);
        let share = (tokens - low.0 as f64) / (high.0 - low.0) as f64;
        Some(low.1.times(1.0 - share).plus(high.1.times(share)))
    }

    fn check(&self) -> Result<()> {
        for (tokens, seconds) in &self.points {
            checked::count("the tokens of a measured rate", *tokens)?;
            seconds.check("a measured rate")?;
        }
        match self.points.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            true => Ok(()),
            false => Err(Error::Absurd {
                what: "the tokens of measured rates",
                value: "not in order".to_owned(),
                wanted: "they must ascend, each once",
            }),
        }
    }
}

impl Rates {
    /// Rates that were read from a file are as they should be.
    pub fn check(&self) -> Result<()> {
        for product in self.products.iter().chain(&self.experts) {
            product.seconds.check()?;
        }
        for heads in &self.attention {
            heads.seconds.check()?;
        }
        self.elements.check()?;
        checked::not_negative("the time around a pass", self.seconds_per_pass)?;
        checked::not_negative("the time of a token", self.seconds_per_token)?;
        checked::not_negative("the time of an output", self.seconds_per_output_byte)?;
        self.node.check("the time of a node")
    }
}

impl Seconds {
    pub const ZERO: Seconds = Seconds {
        best: 0.0,
        likely: 0.0,
        worst: 0.0,
    };

    pub fn times(self, factor: f64) -> Seconds {
        Seconds {
            best: self.best * factor,
            likely: self.likely * factor,
            worst: self.worst * factor,
        }
    }

    pub fn plus(self, other: Seconds) -> Seconds {
        Seconds {
            best: self.best + other.best,
            likely: self.likely + other.likely,
            worst: self.worst + other.worst,
        }
    }

    fn check(self, what: &'static str) -> Result<()> {
        for seconds in [self.best, self.likely, self.worst] {
            checked::not_negative(what, seconds)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(likely: f64) -> Seconds {
        Seconds {
            best: likely,
            likely,
            worst: likely,
        }
    }

    #[test]
    fn rates_are_interpolated_and_grow_with_tokens_beyond_the_last() {
        let curve = Curve {
            points: vec![(1, seconds(1.0)), (3, seconds(2.0)), (4, seconds(4.0))],
        };
        let at = |tokens| curve.at(tokens).unwrap().likely;
        assert_eq!(
            [at(0.5), at(1.0), at(2.0), at(3.5), at(8.0)],
            [1.0, 1.0, 1.5, 3.0, 8.0]
        );
        assert_eq!(Curve::default().at(1.0), None);
    }

    #[test]
    fn a_file_with_absurd_rates_is_refused() {
        let check = |points: Vec<(u64, Seconds)>| {
            let elements = Curve { points };
            let rates = Rates {
                elements,
                ..Rates::default()
            };
            rates.check()
        };
        assert_eq!(check(vec![(1, seconds(1.0)), (2, seconds(0.0))]), Ok(()));
        assert!(check(vec![(2, seconds(1.0)), (2, seconds(1.0))]).is_err());
        assert!(check(vec![(1, seconds(-1.0))]).is_err());
        assert!(check(vec![(1, seconds(f64::NAN))]).is_err());
        assert!(check(vec![(0, seconds(1.0))]).is_err());
    }
}
