//! The vendor at its best: cuBLAS as everybody calls it, or an algorithm of cuBLASLt.

use cuda::Card;

use super::problem::{Call, Problem};
use crate::{
    measure,
    toolkit::vendor::{
        Vendor,
        lt::{Lt, Product},
    },
};

/// The vendor's libraries, open.
pub struct Reference {
    card: Card,
    vendor: Vendor,
    /// Not everywhere.
    lt: Option<Lt>,
}

/// What the vendor does one problem with.
pub struct Choice<'a> {
    reference: &'a Reference,
    problem: &'a Problem,
    product: Option<Product<'a>>,
    algorithm: Option<usize>,
}

impl Reference {
    pub fn open(card: &Card) -> anyhow::Result<Reference> {
        Ok(Reference {
            card: card.clone(),
            vendor: Vendor::open(card)?,
            lt: Lt::open(card).ok(),
        })
    }

    /// Times every way in turns, the three fastest again for so many milliseconds (of warm-up,
    /// and timed), and takes the fastest.
    pub fn choose<'a>(
        &'a self,
        problem: &'a Problem,
        (warm_up, timed): (f64, f64),
    ) -> anyhow::Result<Choice<'a>> {
        let product = self.lt.as_ref().and_then(|lt| lt.bf16(problem.shape).ok());
        let mut choice = Choice {
            reference: self,
            problem,
            product,
            algorithm: None,
        };
        let first = problem.time(&self.card, &choice.call(), 3)?;
        let ways = 1 + choice.product.as_ref().map_or(0, |p| p.algorithms.len());
        let mut ways: Vec<Option<usize>> = (0..ways).map(|way| way.checked_sub(1)).collect();
        for (warm_up, timed, left) in [(warm_up / 5.0, timed / 5.0, 3), (warm_up, timed, 1)] {
            let warm_up = measure::repeats(first, warm_up);
            let repeats = measure::repeats(first, timed);
            let times = measure::in_turns(ways.len(), 5, |i| {
                let call = choice.call_of(ways[i]);
                problem.time_warm(&self.card, &call, warm_up, repeats)
            })?;
            let medians = times.iter().map(|t| measure::Spread::of(t).median);
            let mut ranked: Vec<(f64, Option<usize>)> = medians.zip(ways).collect();
            ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
            ways = ranked.into_iter().map(|(_, way)| way).take(left).collect();
        }
        choice.algorithm = ways.first().copied().flatten();
        Ok(choice)
    }
}

impl<'a> Choice<'a> {
    pub fn call(&'a self) -> Call<'a> {
        self.call_of(self.algorithm)
    }

    /// An algorithm of cuBLASLt, or what cuBLAS does by itself.
    fn call_of(&'a self, algorithm: Option<usize>) -> Call<'a> {
        let problem = self.problem;
        match (algorithm, &self.product) {
            (Some(which), Some(product)) => {
                Box::new(move |i| product.run(which, &problem.a, &problem.b[i], &problem.c, None))
            }
            _ => {
                let vendor = &self.reference.vendor;
                Box::new(move |i| vendor.bf16(problem.shape, &problem.a, &problem.b[i], &problem.c))
            }
        }
    }

    /// Which one it is.
    pub fn words(&self) -> String {
        match self.algorithm {
            Some(which) => format!("cublasLtMatmul, algorithm {}", which + 1),
            None => "cublasGemmEx".to_owned(),
        }
    }
}
