//! How busy the machine was, 80 bytes of `log/machine`, some four a second:
//!
//! ```text
//! 0  8  nanos, CLOCK_MONOTONIC
//! 8  8  time of all processors that somebody used
//! 16 8  time of all processors that the hypervisor gave to others
//! 24 8  time of processors that the program used, and the programs that it started
//! 32 8  time that its threads were ready to run and did not
//! 40 8  time that a quota kept it from running
//! 48 8  bytes read back from swap
//! 56 8  mean frequency of the processors, in hertz
//! 64 8  processors that it may use
//! 72 8  its threads
//! ```
//!
//! Times are nanoseconds since some beginning, so only differences mean something. All ones:
//! not known here.

use super::{Fields, Record, le_u64};

/// `None` is what the machine does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineSample {
    pub nanos: u64,
    pub busy_nanos: Option<u64>,
    pub stolen_nanos: Option<u64>,
    pub own_nanos: Option<u64>,
    pub queued_nanos: Option<u64>,
    pub throttled_nanos: Option<u64>,
    pub swapped_in_bytes: Option<u64>,
    pub hertz: Option<u64>,
    pub processors: Option<u64>,
    pub threads: Option<u64>,
}

impl Record for MachineSample {
    const MAGIC: [u8; 8] = *b"TSMACHIN";
    const BYTES: usize = 80;

    fn encode(&self, bytes: &mut [u8]) {
        let mut fields = Fields { bytes, at: 0 };
        fields.put(self.nanos.to_le_bytes());
        for value in [
            self.busy_nanos,
            self.stolen_nanos,
            self.own_nanos,
            self.queued_nanos,
            self.throttled_nanos,
            self.swapped_in_bytes,
            self.hertz,
            self.processors,
            self.threads,
        ] {
            fields.put(value.unwrap_or(u64::MAX).to_le_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Result<MachineSample, &'static str> {
        let number = |at| Some(le_u64(bytes, at)).filter(|value| *value != u64::MAX);
        Ok(MachineSample {
            nanos: le_u64(bytes, 0),
            busy_nanos: number(8),
            stolen_nanos: number(16),
            own_nanos: number(24),
            queued_nanos: number(32),
            throttled_nanos: number(40),
            swapped_in_bytes: number(48),
            hertz: number(56),
            processors: number(64),
            threads: number(72),
        })
    }
}
