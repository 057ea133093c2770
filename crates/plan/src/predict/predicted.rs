//! What a prediction says.

use serde::{Deserialize, Serialize};

/// What a token costs. Times are for generating one token after another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// All weights that are more than looked up by row.
    pub weight_bytes: u64,
    pub pinned_bytes: u64,
    pub bytes_read_per_token: u64,
    /// None where neither disk nor compute are known to take time.
    pub seconds_per_token: Option<f64>,
    pub tokens_per_second: Option<f64>,
    /// With everything that varies at its worst, and at its best. The same as above where
    /// nothing is known to vary; None also in plans of older versions.
    #[serde(default)]
    pub tokens_per_second_low: Option<f64>,
    #[serde(default)]
    pub tokens_per_second_high: Option<f64>,
    /// What this memory allows at best: everything that is read overlaps computing.
    pub ceiling_tokens_per_second: Option<f64>,
    pub limited_by: LimitedBy,
    pub stock: Stock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitedBy {
    #[serde(rename = "disk")]
    Disk,
    #[serde(rename = "compute")]
    Compute,
    #[serde(rename = "expert reads")]
    ExpertReads,
}

/// Stock llama.cpp with the same memory: a page cache that forgets what it has not seen
/// for longest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stock {
    pub bytes_read_per_token: u64,
    pub tokens_per_second: Option<f64>,
    #[serde(default)]
    pub tokens_per_second_low: Option<f64>,
    #[serde(default)]
    pub tokens_per_second_high: Option<f64>,
}

/// Tokens per second, and between what they may lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    pub usual: f64,
    pub low: f64,
    pub high: f64,
}

impl Speed {
    /// From what a prediction has; of older plans the interval is a point.
    pub fn of(usual: Option<f64>, low: Option<f64>, high: Option<f64>) -> Option<Speed> {
        let usual = usual?;
        Some(Speed {
            usual,
            low: low.unwrap_or(usual),
            high: high.unwrap_or(usual),
        })
    }

    pub fn covers(&self, tokens_per_second: f64) -> bool {
        (self.low..=self.high).contains(&tokens_per_second)
    }
}

impl Stock {
    pub fn speed(&self) -> Option<Speed> {
        Speed::of(
            self.tokens_per_second,
            self.tokens_per_second_low,
            self.tokens_per_second_high,
        )
    }
}

impl Predicted {
    pub fn speed(&self) -> Option<Speed> {
        Speed::of(
            self.tokens_per_second,
            self.tokens_per_second_low,
            self.tokens_per_second_high,
        )
    }

    /// Four digits are more than a prediction is worth, and easier to read.
    pub fn rounded(self) -> Predicted {
        let round = |value: Option<f64>| value.map(four_digits);
        Predicted {
            seconds_per_token: round(self.seconds_per_token),
            tokens_per_second: round(self.tokens_per_second),
            tokens_per_second_low: round(self.tokens_per_second_low),
            tokens_per_second_high: round(self.tokens_per_second_high),
            ceiling_tokens_per_second: round(self.ceiling_tokens_per_second),
            stock: Stock {
                tokens_per_second: round(self.stock.tokens_per_second),
                tokens_per_second_low: round(self.stock.tokens_per_second_low),
                tokens_per_second_high: round(self.stock.tokens_per_second_high),
                ..self.stock
            },
            ..self
        }
    }
}

pub(super) fn four_digits(value: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return value;
    }
    format!("{value:.3e}").parse().unwrap_or(value)
}
