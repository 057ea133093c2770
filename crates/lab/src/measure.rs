//! Repeated measurements: who is measured takes turns, so that a machine that changes its
//! speed changes it for all.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Middle of what was measured, and the middle half around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub lower_quartile: f64,
    pub upper_quartile: f64,
}

impl Spread {
    /// Of at least one number.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len().saturating_sub(1)) as f64;
            let (low, high) = (
                sorted[place.floor() as usize],
                sorted[place.ceil() as usize],
            );
            low + (high - low) * place.fract()
        };
        Spread {
            median: at(0.5),
            lower_quartile: at(0.25),
            upper_quartile: at(0.75),
        }
    }

    /// Of what `f` makes of it, which may turn it around (a rate of a time).
    pub fn map(self, f: impl Fn(f64) -> f64) -> Spread {
        let (a, b) = (f(self.lower_quartile), f(self.upper_quartile));
        Spread {
            median: f(self.median),
            lower_quartile: a.min(b),
            upper_quartile: a.max(b),
        }
    }
}

/// Times of one contender in each round, in the unit that `once` gave.
pub type Times = Vec<f64>;

/// Measures all contenders in turns: a round of warm-up, then `rounds` of them, each in another
/// order. Who is measured after whom, and so how warm the machine is and how near its limit of
/// power, is left to chance, the same chance for all. `once` measures contender number `i` once.
/// An error ends everything.
pub fn in_turns(
    contenders: usize,
    rounds: usize,
    mut once: impl FnMut(usize) -> anyhow::Result<f64>,
) -> anyhow::Result<Vec<Times>> {
    let mut random = support::random::Random(contenders as u64);
    let mut order: Vec<usize> = (0..contenders).collect();
    let mut times = vec![Times::with_capacity(rounds); contenders];
    for round in 0..=rounds {
        for place in (1..contenders).rev() {
            order.swap(place, random.below(place as u64 + 1) as usize);
        }
        for &i in &order {
            let time = once(i)?;
            if round > 0 {
                times[i].push(time);
            }
        }
    }
    Ok(times)
}

/// How often something must be repeated so that it takes at least `enough` in all.
pub fn repeats(once: f64, enough: f64) -> u32 {
    match once > 0.0 {
        true => (enough / once).ceil().clamp(1.0, 10_000.0) as u32,
        false => 10_000,
    }
}

/// Ratio to a reference, round by round: `reference` over `times`, so that more is faster.
pub fn speed_against(times: &[f64], reference: &[f64]) -> Spread {
    let ratios: Vec<f64> = times
        .iter()
        .zip(reference)
        .map(|(time, reference)| reference / time)
        .collect();
    Spread::of(&ratios)
}

/// Seconds that `work` takes on this machine.
pub fn seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let begin = Instant::now();
    let result = work();
    (begin.elapsed().as_secs_f64(), result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_the_middle() {
        let spread = Spread::of(&[5.0, 1.0, 2.0, 4.0, 3.0]);
        assert_eq!(
            spread,
            Spread {
                median: 3.0,
                lower_quartile: 2.0,
                upper_quartile: 4.0
            }
        );
        let rate = spread.map(|time| 12.0 / time);
        assert_eq!(
            rate,
            Spread {
                median: 4.0,
                lower_quartile: 3.0,
                upper_quartile: 6.0
            }
        );
        assert_eq!(Spread::of(&[7.0]).median, 7.0);
    }

    #[test]
    fn contenders_take_turns_in_changing_order_and_the_first_round_does_not_count() {
        let mut order = Vec::new();
        let times = in_turns(5, 3, |i| {
            order.push(i);
            Ok(order.len() as f64)
        });
        let rounds: Vec<&[usize]> = order.chunks(5).collect();
        for round in &rounds {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        assert!(
            rounds.windows(2).any(|pair| pair[0] != pair[1]),
            "{rounds:?}"
        );
        let times = times.unwrap();
        assert!(
            times.iter().all(|times| times.len() == 3 && times[0] > 5.0),
            "{times:?}"
        );
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let spread = speed_against(&[2.0, 4.0, 1.0], &[1.0, 2.0, 0.5]);
        assert_eq!(spread.median, 0.5);
        assert_eq!(repeats(0.1, 1.0), 10);
    }
}
