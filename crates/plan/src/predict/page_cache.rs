//! What a page cache reads for a token that leaves weights to it.

use crate::choose::{Use, Weight};

/// What a token asks of a page cache.
#[derive(Clone, Copy, Default)]
pub(super) struct Load {
    /// Bytes that every token touches.
    pub whole: f64,
    /// Bytes of all experts, and of those that one token touches.
    pub experts: f64,
    pub touched: f64,
}

/// Bytes read for each byte that is touched.
#[derive(Clone, Copy, Default)]
pub(super) struct Share {
    pub whole: f64,
    pub experts: f64,
}

impl Load {
    pub fn of<'a>(weights: impl Iterator<Item = &'a Weight>) -> Load {
        let mut load = Load::default();
        for weight in weights {
            match weight.usage {
                Use::Rows => {}
                Use::Whole => load.whole += weight.bytes as f64,
                Use::Experts { .. } => {
                    load.experts += weight.bytes as f64;
                    load.touched += weight.touched_bytes();
                }
            }
        }
        load
    }

    /// A cache that forgets the oldest keeps nothing of a scan that is larger than it. Of a
    /// mixture it keeps what every token touches, where that fits, and of the experts
    /// any that have room beside it. A missing one costs what is read ahead, too, but one
    /// token reads no more than all of them (the 12 GB shape of docs/underneath.md and
    /// docs/feeding.md: 1.7, 4.4 to 4.8 and 7.7 GB a token at 80, 50 and 25 % of the model).
    pub fn share(&self, memory_bytes: u64, amplification: f64) -> Share {
        let memory = memory_bytes as f64;
        if self.whole + self.experts <= memory {
            return Share::default();
        }
        if self.touched <= 0.0 {
            return Share {
                whole: 1.0,
                experts: 1.0,
            };
        }
        let missed = amplification.max(1.0).min(self.experts / self.touched);
        let left = memory - self.whole;
        match left >= 0.0 {
            true => Share {
                whole: 0.0,
                experts: missed * (1.0 - left / self.experts),
            },
            false => Share {
                whole: 1.0,
                experts: missed,
            },
        }
    }

    pub fn read(&self, share: Share) -> f64 {
        self.whole * share.whole + self.touched * share.experts
    }
}
