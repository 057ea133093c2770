//! Memory that a run may have.

use std::str::FromStr;

use anyhow::bail;
use indicatif::HumanBytes;
use support::proc::kilobytes_of;
use terminal::text::size;

/// A budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    Bytes(u64),
    /// Of the model's files.
    Percent(f64),
}

/// With less nothing runs.
const MIN_BYTES: u64 = 64 << 20;

impl Memory {
    pub fn of(self, model_bytes: u64) -> anyhow::Result<u64> {
        let bytes = match self {
            Memory::Bytes(bytes) => bytes,
            Memory::Percent(percent) => (model_bytes as f64 * percent / 100.0) as u64,
        };
        if bytes < MIN_BYTES {
            bail!(
                "--memory: {} are less than the program alone takes (about {}), without KV cache, \
                 buffers and weights; `tensorscope plan MODEL --memory 1G` says what a model needs",
                HumanBytes(bytes),
                HumanBytes(MIN_BYTES)
            );
        }
        Ok(bytes)
    }
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Memory, String> {
        match text.strip_suffix('%') {
            None => size(text).map(Memory::Bytes),
            Some(percent) => match percent.parse() {
                Ok(percent) if (0.1..=1000.0).contains(&percent) => Ok(Memory::Percent(percent)),
                _ => Err(format!(
                    "`{text}` is not a valid share; write for instance 50%"
                )),
            },
        }
    }
}

/// Memory that is free, most of it.
pub fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    // Others want to live too.
    Some(kilobytes_of(&text, "MemAvailable")? / 100 * 90)
}
