//! Experts drawn from a stated distribution instead of the router's choice.
//!
//! A model of random weights has a router that always says the same. To measure
//! caches on it, ids are drawn here, in every mode alike: by evaluation, layer and
//! token, so that two runs of the same tokens draw the same.

use std::str::FromStr;

use support::random::Random;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Each expert as likely as any: the worst case for a cache.
    Uniform,
    /// The n-th favourite of a layer has weight 1 / n^s.
    Zipf(f64),
    /// Each expert of the token before is taken again with this probability, the
    /// others are drawn uniformly.
    Sticky(f64),
    /// As uniform, and who reads ahead is told each expert before it is chosen: the right one
    /// with this probability. For measuring what foresight of a given quality would bring,
    /// which says nothing about any router.
    Foretold(f64),
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        let number = |text: &str, most: f64| match text.parse() {
            Ok(number) if (0.0..=most).contains(&number) => Ok(number),
            _ => Err(format!("`{text}` is not a number from 0 to {most}")),
        };
        match text.split_once(':') {
            None if text == "uniform" => Ok(Distribution::Uniform),
            Some(("zipf", exponent)) => Ok(Distribution::Zipf(number(exponent, 10.0)?)),
            Some(("sticky", share)) => Ok(Distribution::Sticky(number(share, 1.0)?)),
            Some(("foretold", share)) => Ok(Distribution::Foretold(number(share, 1.0)?)),
            _ => Err(format!(
                "`{text}` is not a distribution: uniform, zipf:EXPONENT, sticky:SHARE or \
                 foretold:SHARE"
            )),
        }
    }
}

impl std::fmt::Display for Distribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Zipf(exponent) => write!(f, "zipf:{exponent}"),
            Distribution::Sticky(share) => write!(f, "sticky:{share}"),
            Distribution::Foretold(share) => write!(f, "foretold:{share}"),
        }
    }
}

/// Draws for all layers of a run.
pub struct Draw {
    distribution: Distribution,
    seed: u64,
    layers: Vec<Layer>,
}

#[derive(Default)]
struct Layer {
    /// Experts by preference, and the sums of their weights.
    favourites: Vec<u32>,
    sums: Vec<f64>,
    last: Vec<u32>,
}

impl Draw {
    pub fn new(distribution: Distribution, seed: u64) -> Draw {
        Draw {
            distribution,
            seed,
            layers: Vec::new(),
        }
    }

    /// `used` different experts of `count`, in the order that a router would give.
    pub fn experts(
        &mut self,
        evaluation: u64,
        layer: usize,
        token: u64,
        (used, count): (usize, u32),
    ) -> &[u32] {
        while self.layers.len() <= layer {
            let number = self.layers.len() as u64;
            let seed = self.seed ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d);
            self.layers.push(Layer::new(self.distribution, seed, count));
        }
        let mut random = Random(
            self.seed
                ^ evaluation.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                ^ (layer as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9)
                ^ token.wrapping_mul(0x94d0_49bb_1331_11eb),
        );
        let layer = &mut self.layers[layer];
        let used = used.min(count as usize);
        let mut chosen: Vec<u32> = Vec::with_capacity(used);
        if let Distribution::Sticky(share) = self.distribution {
            let again = layer.last.iter().copied().take(used);
            chosen.extend(again.filter(|_| random.unit() < share));
        }
        while chosen.len() < used {
            let expert = match self.distribution {
                Distribution::Zipf(_) => {
                    let total = layer.sums[layer.sums.len() - 1];
                    let drawn = random.unit() * total;
                    let at = layer.sums.partition_point(|&sum| sum <= drawn);
                    layer.favourites[at.min(layer.favourites.len() - 1)]
                }
                Distribution::Uniform | Distribution::Sticky(_) | Distribution::Foretold(_) => {
                    random.below(u64::from(count)) as u32
                }
            };
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        layer.last = chosen;
        &layer.last
    }

    /// What is told of a draw to come, if anything is: experts, the likeliest first.
    pub fn foretell(
        &mut self,
        evaluation: u64,
        layer: usize,
        token: u64,
        (used, count): (usize, u32),
    ) -> Option<Vec<u32>> {
        let Distribution::Foretold(share) = self.distribution else {
            return None;
        };
        let chosen = self.experts(evaluation, layer, token, (used, count));
        let mut told = chosen.to_vec();
        let place = evaluation.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ layer as u64;
        let mut random = Random(!self.seed ^ place);
        for expert in &mut told {
            if random.unit() >= share {
                *expert = random.below(u64::from(count)) as u32;
            }
        }
        Some(told)
    }
}

impl Layer {
    fn new(distribution: Distribution, seed: u64, count: u32) -> Layer {
        let Distribution::Zipf(exponent) = distribution else {
            return Layer::default();
        };
        let mut random = Random(seed);
        let mut favourites: Vec<u32> = (0..count).collect();
        for i in (1..favourites.len()).rev() {
            favourites.swap(i, random.below(i as u64 + 1) as usize);
        }
        let mut sum = 0.0;
        let sums = (1..=count).map(|n| {
            sum += f64::from(n).powf(-exponent);
            sum
        });
        Layer {
            sums: sums.collect(),
            favourites,
            last: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: Distribution, experts: u32) -> Vec<u32> {
        let mut draw = Draw::new(distribution, 3);
        let mut counts = vec![0; experts as usize];
        for evaluation in 0..4000 {
            let chosen = draw.experts(evaluation, 1, 0, (4, experts)).to_vec();
            assert_eq!(chosen.len(), 4);
            for (i, &expert) in chosen.iter().enumerate() {
                assert!(!chosen[..i].contains(&expert), "{chosen:?}");
                counts[expert as usize] += 1;
            }
        }
        counts
    }

    #[test]
    fn draws_follow_their_distribution() {
        let uniform = counts(Distribution::Uniform, 32);
        assert!(
            uniform.iter().all(|&n| (400..600).contains(&n)),
            "{uniform:?}"
        );
        let mut zipf = counts(Distribution::Zipf(1.0), 32);
        zipf.sort_unstable();
        assert!(zipf[31] > 5 * zipf[0], "{zipf:?}");
        // Sticky: most of a choice is that of the token before.
        let mut draw = Draw::new(Distribution::Sticky(0.75), 3);
        let (mut kept, mut before) = (0, Vec::new());
        for evaluation in 0..1000 {
            let now = draw.experts(evaluation, 0, 0, (4, 128)).to_vec();
            kept += now.iter().filter(|&expert| before.contains(expert)).count();
            before = now;
        }
        assert!((2900..3200).contains(&kept), "{kept}");
    }

    #[test]
    fn the_same_run_draws_the_same() {
        let draw = |seed| {
            let mut draw = Draw::new(Distribution::Uniform, seed);
            (0..50)
                .map(|n| draw.experts(n, n as usize % 3, 0, (8, 128)).to_vec())
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        // As many as there are, when more are asked for.
        let mut all = Draw::new(Distribution::Uniform, 1);
        assert_eq!(all.experts(0, 0, 0, (9, 4)).len(), 4);
    }

    #[test]
    fn what_is_foretold_is_right_as_often_as_stated() {
        let mut uniform = Draw::new(Distribution::Uniform, 7);
        assert_eq!(uniform.foretell(0, 0, 0, (4, 128)), None);
        let mut draw = Draw::new(Distribution::Foretold(0.75), 7);
        let mut right = 0;
        for evaluation in 0..1000 {
            let told = draw.foretell(evaluation, 2, 0, (4, 128)).unwrap();
            let drawn = draw.experts(evaluation, 2, 0, (4, 128));
            right += told.iter().filter(|&expert| drawn.contains(expert)).count();
            assert_eq!(drawn, uniform.experts(evaluation, 2, 0, (4, 128)));
        }
        assert!((2900..3200).contains(&right), "{right}");
    }

    #[test]
    fn distributions_are_read_and_written() {
        for text in ["uniform", "zipf:1.1", "sticky:0.5", "foretold:0.75"] {
            assert_eq!(text.parse::<Distribution>().unwrap().to_string(), text);
        }
        for text in ["", "zipf", "zipf:x", "sticky:2", "other"] {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }
}
