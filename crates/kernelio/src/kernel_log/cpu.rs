//! What a thread did on a processor, 32 bytes of `log/cpu`:
//!
//! ```text
//! 0  8  nanos, CLOCK_MONOTONIC
//! 8  8  a sample: nanoseconds that it stands for; a counter: events that it stands for
//! 16 4  process
//! 20 4  thread
//! 24 4  a sample: number of its stack in `log/stacks`, 0 without one
//! 28 2  cpu
//! 30 1  kind: 0 sample, 1 sample in the kernel, 2 runs again, 3 waits, 4 was preempted, 5 counter
//! 31 1  a counter: which one
//! ```

use super::{Fields, Record, le_u32, le_u64};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The thread was found running, in the program or in the kernel for it. Each sample
    /// stands for the time since the one before.
    Sample {
        stack: u32,
        nanos: u64,
        is_in_kernel: bool,
    },
    /// It runs again.
    On,
    /// It gave its processor up to wait for something.
    Waits,
    /// The kernel took its processor away: it could have gone on.
    Preempted,
    /// So many events of the processor.
    Counted { counter: Counter, events: u64 },
}

/// Events that processors count, where they are allowed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counter {
    Cycles,
    Instructions,
    /// Of the last level of caches.
    CacheMisses,
    /// Reads whose page was not in the translation buffer.
    TranslationMisses,
    /// Cycles without progress, for lack of data or units.
    StalledCycles,
}

impl Counter {
    pub const ALL: [Counter; 5] = [
        Counter::Cycles,
        Counter::Instructions,
        Counter::CacheMisses,
        Counter::TranslationMisses,
        Counter::StalledCycles,
    ];

    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Counter::Cycles => "cycles",
            Counter::Instructions => "instructions",
            Counter::CacheMisses => "cache_misses",
            Counter::TranslationMisses => "translation_misses",
            Counter::StalledCycles => "stalled_cycles",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuEvent {
    pub nanos: u64,
    pub pid: u32,
    pub tid: u32,
    pub cpu: u16,
    pub what: What,
}

impl Record for CpuEvent {
    const MAGIC: [u8; 8] = *b"TSCPU\0\0\0";
    const BYTES: usize = 32;

    fn encode(&self, bytes: &mut [u8]) {
        let (kind, stack, value, counter) = match self.what {
            What::Sample {
                stack,
                nanos,
                is_in_kernel,
            } => (u8::from(is_in_kernel), stack, nanos, 0),
            What::On => (2, 0, 0, 0),
            What::Waits => (3, 0, 0, 0),
            What::Preempted => (4, 0, 0, 0),
            What::Counted { counter, events } => (5, 0, events, counter as u8),
        };
        Fields { bytes, at: 0 }
            .put(self.nanos.to_le_bytes())
            .put(value.to_le_bytes())
            .put(self.pid.to_le_bytes())
            .put(self.tid.to_le_bytes())
            .put(stack.to_le_bytes())
            .put(self.cpu.to_le_bytes())
            .put([kind, counter]);
    }

    fn decode(bytes: &[u8]) -> Result<CpuEvent, &'static str> {
        let (value, stack) = (le_u64(bytes, 8), le_u32(bytes, 24));
        let what = match bytes[30] {
            kind @ 0..=1 => What::Sample {
                stack,
                nanos: value,
                is_in_kernel: kind == 1,
            },
            2 => What::On,
            3 => What::Waits,
            4 => What::Preempted,
            5 => What::Counted {
                counter: *Counter::ALL
                    .get(usize::from(bytes[31]))
                    .ok_or("an unknown counter")?,
                events: value,
            },
            _ => return Err("an unknown kind of event"),
        };
        Ok(CpuEvent {
            nanos: le_u64(bytes, 0),
            pid: le_u32(bytes, 16),
            tid: le_u32(bytes, 20),
            cpu: u16::from_le_bytes([bytes[28], bytes[29]]),
            what,
        })
    }
}
