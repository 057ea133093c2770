//! Whether a strategy would help, said with its numbers.

use serde::{Deserialize, Serialize};

use super::Strategy;

/// A gain below this share of the page cache's bytes or time is none: repeats of
/// one measurement differ by as much.
const LEAST_GAIN: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Help {
    Helps,
    WouldNotHelp,
    /// What the others are compared with.
    Baseline,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub help: Help,
    /// One sentence with the numbers that decide.
    pub reason: String,
}

impl Verdict {
    pub(super) fn no(reason: String) -> Verdict {
        Verdict {
            help: Help::WouldNotHelp,
            reason,
        }
    }
}

/// The numbers of one strategy at one budget, per token.
pub(super) struct Case {
    pub strategy: Strategy,
    pub budget_bytes: u64,
    pub footprint_bytes: u64,
    pub bytes: u64,
    pub stock_bytes: u64,
    pub stock_cold_bytes: u64,
    pub nanos: Option<u64>,
    pub stock_nanos: Option<u64>,
    pub resident_nanos: Option<u64>,
}

pub(super) fn judge(case: &Case) -> Verdict {
    let stock = human(case.stock_bytes);
    if case.strategy == Strategy::PageCache {
        return Verdict {
            help: Help::Baseline,
            reason: format!("reads {stock} per token"),
        };
    }
    if case.stock_bytes <= case.stock_cold_bytes {
        return Verdict::no(format!(
            "would not help: the weights in use ({}) stay in {}, the page cache reads nothing twice",
            human(case.footprint_bytes),
            human(case.budget_bytes),
        ));
    }
    let ours = human(case.bytes);
    if let (Some(nanos), Some(stock_nanos), Some(resident)) =
        (case.nanos, case.stock_nanos, case.resident_nanos)
    {
        let times = format!(
            "{} per token instead of {} (reads {ours} instead of {stock}; {} with all in memory)",
            millis(nanos),
            millis(stock_nanos),
            millis(resident),
        );
        return if gain(nanos, stock_nanos) < LEAST_GAIN {
            Verdict::no(format!("would not help: {times}"))
        } else {
            Verdict {
                help: Help::Helps,
                reason: times,
            }
        };
    }
    if gain(case.bytes, case.stock_bytes) < LEAST_GAIN {
        return Verdict::no(format!(
            "would not help: reads {ours} per token, the page cache {stock}"
        ));
    }
    Verdict {
        help: Help::Helps,
        reason: format!("reads {ours} per token instead of {stock}"),
    }
}

fn gain(ours: u64, stock: u64) -> f64 {
    1.0 - ours as f64 / stock.max(1) as f64
}

/// Bytes for a sentence: three digits and a unit of 1000.
pub(super) fn human(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", units[unit])
}

fn millis(nanos: u64) -> String {
    format!("{:.3} ms", nanos as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_as_three_digits() {
        let check = |bytes, expect: &str| assert_eq!(human(bytes), expect);
        check(0, "0 B");
        check(999, "999 B");
        check(1000, "1.00 kB");
        check(99_960, "100 kB");
        check(3_900_000_000, "3.90 GB");
    }
}
