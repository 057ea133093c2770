//! Whether a strategy would help, said with its numbers.

use serde::{Deserialize, Serialize};

use super::Strategy;
use crate::findings::text::bytes as human;

/// A gain below this share of the page cache's bytes or time is none: repeats of
/// one measurement differ by as much.
const MIN_GAIN: f64 = 0.05;

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
        return if gain(nanos, stock_nanos) < MIN_GAIN {
            Verdict::no(format!("would not help: {times}"))
        } else {
            Verdict {
                help: Help::Helps,
                reason: times,
            }
        };
    }
    if gain(case.bytes, case.stock_bytes) < MIN_GAIN {
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

fn millis(nanos: u64) -> String {
    format!("{:.3} ms", nanos as f64 / 1e6)
}
