//! The machine that a prediction is for: what its disk, its memory and its processor can do,
//! and how far that varies.

use serde::{Deserialize, Serialize};

use crate::choose::{Use, Weight};

/// Share of the disk's speed that reading through page faults reaches, waits included, where
/// weights are read in order: stock llama.cpp got 1.4 to 2.1 of 2.9 GiB/s.
pub const FAULT_EFFICIENCY: f64 = 0.6;

/// The same where experts are read here and there: 1.3 to 1.5 of 3 GB/s (docs/feeding.md, 8 MiB
/// of read-ahead), because nobody reads the next one ahead.
pub const SCATTERED_FAULT_EFFICIENCY: f64 = 0.43;

/// How far these two were off, by the same runs.
const FAULTS_VARY: Spread = Spread {
    low: 0.75,
    high: 1.25,
};

/// Seconds from asking for a batch of reads to its first bytes, on an SSD.
pub const READ_LATENCY_SECONDS: f64 = 0.3e-3;

/// How far a figure varies: its lowest and highest value, over the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// Of a figure that is always the same, or not known to vary.
    pub const NONE: Spread = Spread {
        low: 1.0,
        high: 1.0,
    };

    /// Of a figure that is usually this, and was seen from `low` to `high`. What is not a
    /// positive number says nothing.
    pub fn around(usual: f64, low: f64, high: f64) -> Spread {
        let share = |value: f64| {
            let share = value / usual;
            (share.is_finite() && share >= 0.0).then_some(share)
        };
        Spread {
            low: share(low).unwrap_or(1.0).min(1.0),
            high: share(high).unwrap_or(1.0).max(1.0),
        }
    }

    /// As far as either.
    pub fn or(self, other: Spread) -> Spread {
        Spread {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
        }
    }
}

impl Default for Spread {
    fn default() -> Spread {
        Spread::NONE
    }
}

/// How far the figures of a machine vary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Varies {
    pub disk: Spread,
    pub read_latency: Spread,
    pub compute: Spread,
    /// Both shares of the disk's speed that page faults reach.
    pub fault_efficiency: Spread,
}

/// What a token's time depends on besides the choice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// While all threads compute. Not positive where it is not known: then no time is
    /// predicted.
    pub disk_bytes_per_second: f64,
    /// How many times as fast the disk is while computing waits for it.
    #[serde(default = "once")]
    pub disk_while_waiting: f64,
    /// A token takes at least the time to read its weights from memory.
    pub memory_bytes_per_second: Option<f64>,
    /// Of one batch of reads, for which a router is waited for.
    pub read_latency_seconds: f64,
    /// With all weights in memory. Without it, disk and memory alone decide.
    pub compute_seconds_per_token: Option<f64>,
    /// How many times as long computing takes while the disk is read: both need memory, and
    /// reading needs a processor.
    #[serde(default = "once")]
    pub compute_while_reading: f64,
    /// Memory for weights, in whatever way; what the choice takes where it is not known.
    pub weights_bytes: Option<u64>,
    /// Bytes that the kernel reads for each byte of an expert that stock llama.cpp touches
    /// and does not find in memory.
    pub stock_amplification: f64,
    /// Share of the disk's speed that page faults reach: in order, and here and there.
    pub fault_efficiency: f64,
    #[serde(default = "scattered_fault_efficiency")]
    pub scattered_fault_efficiency: f64,
    #[serde(default)]
    pub varies: Varies,
}

fn once() -> f64 {
    1.0
}

fn scattered_fault_efficiency() -> f64 {
    SCATTERED_FAULT_EFFICIENCY
}

impl Machine {
    /// Of which the disk alone is known, and not to vary.
    pub fn new(disk_bytes_per_second: f64) -> Machine {
        Machine {
            disk_bytes_per_second,
            disk_while_waiting: once(),
            memory_bytes_per_second: None,
            read_latency_seconds: READ_LATENCY_SECONDS,
            compute_seconds_per_token: None,
            compute_while_reading: once(),
            weights_bytes: None,
            stock_amplification: 1.0,
            fault_efficiency: FAULT_EFFICIENCY,
            scattered_fault_efficiency: SCATTERED_FAULT_EFFICIENCY,
            varies: Varies::default(),
        }
    }

    /// As it was measured, with what is known of how it varies.
    pub fn varying(self, varies: Varies) -> Machine {
        let fault_efficiency = varies.fault_efficiency.or(FAULTS_VARY);
        Machine {
            varies: Varies {
                fault_efficiency,
                ..varies
            },
            ..self
        }
    }

    /// Whose kernel reads so much ahead of a page fault.
    ///
    /// A fault outside of what is read ahead reads a window around itself: half before, half
    /// behind. Three quarters into it the next whole window is asked for, and at the begin of
    /// that one its next (mm/filemap.c, mm/readahead.c). So the windows of a slice follow from
    /// its size; one more is what was measured with two sizes of slices and three of memory
    /// (docs/decisions/0024-predictions-with-intervals.md), where several threads fault.
    pub fn reading_ahead(self, read_ahead_bytes: Option<u64>, weights: &[Weight]) -> Machine {
        let slices = weights.iter().filter_map(|weight| match weight.usage {
            Use::Experts { slice_bytes, .. } => Some(slice_bytes),
            _ => None,
        });
        let stock_amplification = match (read_ahead_bytes, slices.min()) {
            (Some(window), Some(slice)) if window > 0 => {
                let (window, slice) = (window as f64, slice.max(1) as f64);
                let in_windows = slice / window;
                let windows = match in_windows {
                    part if part <= 0.25 => 1.0,
                    part if part <= 0.5 => 2.0,
                    parts => 3.0 + (parts - 1.5).ceil().max(0.0),
                };
                (windows + 1.0) * window / slice
            }
            _ => 1.0,
        };
        Machine {
            stock_amplification,
            ..self
        }
    }

    /// The disk's speed while nothing computes.
    pub fn idle_disk_bytes_per_second(&self) -> f64 {
        self.disk_bytes_per_second * self.disk_while_waiting.max(1.0)
    }

    /// A token with all weights in memory: computing, or reading memory, whichever takes
    /// longer.
    pub fn resident_seconds(&self, weights: &[Weight]) -> f64 {
        let touched: f64 = weights.iter().map(Weight::touched_bytes).sum();
        let memory = self.memory_bytes_per_second.filter(|&rate| rate > 0.0);
        let reading = memory.map_or(0.0, |rate| touched / rate);
        self.compute_seconds_per_token.unwrap_or(0.0).max(reading)
    }

    /// With everything at its slowest, and not varying any further.
    pub fn slowest(self) -> Machine {
        let Varies {
            disk,
            read_latency,
            compute,
            fault_efficiency,
        } = self.varies;
        self.scaled(
            disk.low,
            read_latency.high,
            compute.high,
            fault_efficiency.low,
        )
    }

    /// With everything at its fastest, and not varying any further.
    pub fn fastest(self) -> Machine {
        let Varies {
            disk,
            read_latency,
            compute,
            fault_efficiency,
        } = self.varies;
        self.scaled(
            disk.high,
            read_latency.low,
            compute.low,
            fault_efficiency.high,
        )
    }

    fn scaled(self, disk: f64, latency: f64, compute: f64, faults: f64) -> Machine {
        Machine {
            disk_bytes_per_second: self.disk_bytes_per_second * disk,
            read_latency_seconds: self.read_latency_seconds * latency,
            compute_seconds_per_token: self.compute_seconds_per_token.map(|s| s * compute),
            fault_efficiency: self.fault_efficiency * faults,
            scattered_fault_efficiency: self.scattered_fault_efficiency * faults,
            varies: Varies::default(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_holds_the_usual_figure() {
        let check = |usual, low, high, expect: (f64, f64)| {
            let spread = Spread::around(usual, low, high);
            assert_eq!((spread.low, spread.high), expect);
        };
        check(2.0, 1.0, 3.0, (0.5, 1.5));
        check(2.0, 3.0, 1.0, (1.0, 1.0));
        check(0.0, 0.0, 5.0, (1.0, 1.0));
        check(f64::NAN, 1.0, 1.0, (1.0, 1.0));
        let wide = Spread::around(2.0, 1.0, 2.0).or(Spread::around(2.0, 2.0, 4.0));
        assert_eq!(
            wide,
            Spread {
                low: 0.5,
                high: 2.0
            }
        );
    }

    #[test]
    fn read_ahead_is_counted_in_windows() {
        const MIB: u64 = 1 << 20;
        let check = |slice_bytes: u64, window_bytes: u64, windows: f64| {
            let weights = [Weight {
                name: "experts".to_owned(),
                bytes: 8 * slice_bytes,
                layer: Some(0),
                usage: Use::Experts {
                    count: 8,
                    used: 2,
                    slice_bytes,
                },
                row_bytes: None,
            }];
            let machine = Machine::new(1e9).reading_ahead(Some(window_bytes), &weights);
            let read = machine.stock_amplification * slice_bytes as f64;
            assert_eq!((read / window_bytes as f64).round(), windows);
        };
        check(MIB, 8 * MIB, 2.0);
        check(3 * MIB, 8 * MIB, 3.0);
        check(5 * MIB, 8 * MIB, 4.0);
        check(32 * MIB, 8 * MIB, 7.0);
        let none = Machine::new(1e9).reading_ahead(None, &[]);
        assert_eq!(none.stock_amplification, 1.0);
    }
}
