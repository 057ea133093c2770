//! Faults on purpose: reads that fail, fall short or take their time, so that what a
//! bad disk does can be tried on a good one (`run --inject`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use support::random::Random;

/// What happens to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Fails,
    Short,
    Slow(Duration),
}

/// `fail=0.001,short=0.001,slow=0.001:50ms,seed=7`: shares of all reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    fail: f64,
    short: f64,
    slow: f64,
    pause: Duration,
    random: Random,
}

impl Faults {
    /// What happens to the next read.
    pub fn draw(&mut self) -> Option<Fault> {
        let drawn = self.random.unit();
        if drawn < self.fail {
            Some(Fault::Fails)
        } else if drawn < self.fail + self.short {
            Some(Fault::Short)
        } else if drawn < self.fail + self.short + self.slow {
            Some(Fault::Slow(self.pause))
        } else {
            None
        }
    }

    /// The same faults in another order, for a second reader.
    pub fn other(&self, number: u64) -> Faults {
        let mut other = self.clone();
        let seed = number.wrapping_mul(0x9e37_79b9);
        other.random.0 = self.random.0.wrapping_add(seed);
        other
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slow, pause) = (self.slow, self.pause.as_millis());
        let (fail, short, seed) = (self.fail, self.short, self.random.0);
        write!(
            f,
            "fail={fail},short={short},slow={slow}:{pause}ms,seed={seed}"
        )
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Faults, String> {
        let mut faults = Faults {
            fail: 0.0,
            short: 0.0,
            slow: 0.0,
            pause: Duration::from_millis(20),
            random: Random(1),
        };
        let share = |text: &str| match text.parse() {
            Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
            _ => Err(format!("`{text}` is not a valid share between 0 and 1")),
        };
        for part in text.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}`: faults are fail=, short=, slow= and seed="))?;
            match name {
                "fail" => faults.fail = share(value)?,
                "short" => faults.short = share(value)?,
                "slow" => {
                    let (of, pause) = value.split_once(':').unwrap_or((value, "20ms"));
                    faults.slow = share(of)?;
                    let millis = pause.strip_suffix("ms").and_then(|n| n.parse().ok());
                    faults.pause = millis
                        .map(Duration::from_millis)
                        .ok_or_else(|| format!("`{pause}` is no pause; write 20ms"))?;
                }
                "seed" => {
                    let seed = value.parse();
                    faults.random = Random(seed.map_err(|_| format!("`{value}` is no seed"))?);
                }
                _ => return Err(format!("`{name}` is no fault: fail, short, slow, seed")),
            }
        }
        Ok(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_as_often_as_asked_for() {
        let mut faults: Faults = "fail=0.1,short=0.2,slow=0.3:5ms,seed=9".parse().unwrap();
        let mut counts = [0i32; 4];
        for _ in 0..100_000 {
            let at = match faults.draw() {
                Some(Fault::Fails) => 0,
                Some(Fault::Short) => 1,
                Some(Fault::Slow(pause)) => {
                    assert_eq!(pause, Duration::from_millis(5));
                    2
                }
                None => 3,
            };
            counts[at] += 1;
        }
        for (count, expected) in counts.into_iter().zip([10_000, 20_000, 30_000, 40_000]) {
            assert!((count - expected).abs() < 1_000, "{counts:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "fail",
            "fail=2",
            "fail=x",
            "slow=0.1:5",
            "seed=-1",
            "other=1",
        ] {
            assert!(text.parse::<Faults>().is_err(), "{text}");
        }
    }
}
