//! The machine that a prediction is for: what its disk, its memory and its processor can do.

use serde::{Deserialize, Serialize};

use crate::choose::{Use, Weight};

/// Share of the disk's speed that reading through page faults reaches, waits included:
/// stock llama.cpp got 1.4 to 2.1 of 2.9 GiB/s.
pub const FAULT_EFFICIENCY: f64 = 0.6;

/// Seconds from asking for a batch of reads to its first bytes, on an SSD.
pub const READ_LATENCY_SECONDS: f64 = 0.3e-3;

/// What a token's time depends on besides the choice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Not positive where it is not known: then no time is predicted.
    pub disk_bytes_per_second: f64,
    /// A token takes at least the time to read its weights from memory.
    pub memory_bytes_per_second: Option<f64>,
    /// Of one batch of reads.
    pub read_latency_seconds: f64,
    /// With all weights in memory. Without it, disk and memory alone decide.
    pub compute_seconds_per_token: Option<f64>,
    /// Memory for weights, in whatever way; what the choice takes where it is not known.
    pub weights_bytes: Option<u64>,
    /// Bytes that the kernel reads ahead for each byte of an expert that stock
    /// llama.cpp touches, the byte itself included.
    pub stock_amplification: f64,
    /// Share of the disk's speed that page faults reach.
    pub fault_efficiency: f64,
}

impl Machine {
    pub fn new(disk_bytes_per_second: f64) -> Machine {
        Machine {
            disk_bytes_per_second,
            memory_bytes_per_second: None,
            read_latency_seconds: READ_LATENCY_SECONDS,
            compute_seconds_per_token: None,
            weights_bytes: None,
            stock_amplification: 1.0,
            fault_efficiency: FAULT_EFFICIENCY,
        }
    }

    /// Whose kernel reads so much ahead of a page fault.
    pub fn reading_ahead(self, read_ahead_bytes: Option<u64>, weights: &[Weight]) -> Machine {
        let slices = weights.iter().filter_map(|weight| match weight.usage {
            Use::Experts { slice_bytes, .. } => Some(slice_bytes),
            _ => None,
        });
        let stock_amplification = match (read_ahead_bytes, slices.min()) {
            (Some(ahead), Some(slice)) => 1.0 + ahead as f64 / slice.max(1) as f64,
            _ => 1.0,
        };
        Machine {
            stock_amplification,
            ..self
        }
    }

    /// A token with all weights in memory: computing, or reading memory, whichever takes
    /// longer.
    pub fn resident_seconds(&self, weights: &[Weight]) -> f64 {
        let touched: f64 = weights.iter().map(Weight::touched_bytes).sum();
        let memory = self.memory_bytes_per_second.filter(|&rate| rate > 0.0);
        let reading = memory.map_or(0.0, |rate| touched / rate);
        self.compute_seconds_per_token.unwrap_or(0.0).max(reading)
    }
}
