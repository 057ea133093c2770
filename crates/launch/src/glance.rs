//! The machine as a prediction needs it, measured in half a second: what the disk gives while
//! as many threads as will compute are busy, how long a router's experts take to come, and how
//! far both vary.
//!
//! What cannot be measured is a constant of crate `plan`; who asks says so.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use kernelio::CeilingError;
use kernelio::disk::{
    LoadedOptions, Setting, WhileComputing, measure_while_computing as measure_disk,
};
use plan::{Machine, Spread, Use, Varies, Weight};

use crate::planning::{BLOCK_BYTES, DEPTH};

/// How long the disk is read in order.
pub const GLANCE: Duration = Duration::from_millis(300);

/// Of the speed that a virtual machine's disk has at a glance, what is left when its credits are
/// used up: 3.3 of 8.5 GB/s (docs/feeding.md).
const THROTTLED: f64 = 0.4;

/// Bytes of one read of an expert's slice, as feeding asks for it.
const SLICE_READ_BYTES: u64 = 4 << 20;

/// Asking for a batch takes this long at least. A batch that comes faster than the disk gives
/// its bytes in order says no more.
const MIN_LATENCY_SECONDS: f64 = 50e-6;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Glance {
    pub disk_bytes_per_second: f64,
    pub disk_alone_bytes_per_second: f64,
    /// Of slices of time.
    pub disk: Spread,
    /// Seconds that a batch of scattered reads takes longer than its bytes would in order.
    pub latency: Option<(f64, Spread)>,
    /// Of memory, with nothing read from the disk.
    pub memory_bytes_per_second: f64,
    pub compute_while_reading: f64,
    /// It may be fast for a while only.
    pub is_virtual_disk: bool,
}

impl Glance {
    /// Reads the file for so long, while so many threads are busy.
    pub fn take(
        file: &Path,
        threads: usize,
        weights: &[Weight],
        time: Duration,
    ) -> Result<Glance, CeilingError> {
        let options = LoadedOptions {
            threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
            setting: Setting {
                block_bytes: BLOCK_BYTES,
                depth: DEPTH,
            },
            time,
            batch: batch_of(weights),
        };
        Ok(Glance::of(&measure_disk(file, options)?))
    }

    /// As [`Glance::take`]; what this process has found before is not measured again.
    pub fn once(file: &Path, threads: usize, weights: &[Weight]) -> Result<Glance, CeilingError> {
        type Kept = (PathBuf, usize, Option<Setting>, Glance);
        static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
        let batch = batch_of(weights);
        // Whoever panicked while it was locked has added all of a glance or nothing.
        let mut kept = KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_same = |known: &&Kept| (&*known.0, known.1, known.2) == (file, threads, batch);
        if let Some(known) = kept.iter().find(is_same) {
            return Ok(known.3);
        }
        let glance = Glance::take(file, threads, weights, GLANCE)?;
        kept.push((file.to_owned(), threads, batch, glance));
        Ok(glance)
    }

    fn of(found: &WhileComputing) -> Glance {
        let rates = found.disk;
        let disk_bytes_per_second = found.disk_bytes_per_second as f64;
        let latency = found.batches.as_ref().map(|batches| {
            let in_order = batches.bytes as f64 / disk_bytes_per_second.max(1.0);
            let at = |quarter| {
                let seconds = batches.quartile_nanos(quarter) as f64 / 1e9;
                (seconds - in_order).max(MIN_LATENCY_SECONDS)
            };
            (at(2), Spread::around(at(2), at(1), at(3)))
        });
        Glance {
            disk_bytes_per_second,
            disk_alone_bytes_per_second: found.disk_alone_bytes_per_second as f64,
            disk: Spread::around(
                disk_bytes_per_second,
                rates.lowest_bytes_per_second as f64,
                rates.highest_bytes_per_second as f64,
            ),
            latency,
            memory_bytes_per_second: found.memory_alone_bytes_per_second as f64,
            compute_while_reading: found.memory_slowdown(),
            is_virtual_disk: found.is_virtual_disk,
        }
    }

    /// The machine for as long as a run may take: credits of a virtual disk may be used up.
    pub fn machine(&self) -> Machine {
        let throttled = Spread {
            low: THROTTLED,
            high: 1.0,
        };
        let disk = match self.is_virtual_disk {
            true => self.disk.or(throttled),
            false => self.disk,
        };
        let machine = Machine::new(self.disk_bytes_per_second);
        let (read_latency_seconds, read_latency) = self
            .latency
            .unwrap_or((machine.read_latency_seconds, Spread::NONE));
        let machine = Machine {
            disk_while_waiting: gain(self.disk_alone_bytes_per_second, self.disk_bytes_per_second),
            memory_bytes_per_second: Some(self.memory_bytes_per_second),
            read_latency_seconds,
            compute_while_reading: self.compute_while_reading,
            ..machine
        };
        machine.varying(Varies {
            disk,
            read_latency,
            ..Varies::default()
        })
    }
}

/// How many times as fast a disk is alone; at least once.
pub fn gain(alone: f64, while_computing: f64) -> f64 {
    let gain = alone / while_computing;
    if gain.is_finite() { gain.max(1.0) } else { 1.0 }
}

/// What a router asks for at once when it misses half of its experts: the slices of all weights
/// of a layer.
fn batch_of(weights: &[Weight]) -> Option<Setting> {
    let layer = weights
        .iter()
        .find(|weight| matches!(weight.usage, Use::Experts { .. }))?
        .layer;
    let of_layer = weights.iter().filter(|weight| weight.layer == layer);
    let slices = of_layer.filter_map(|weight| match weight.usage {
        Use::Experts {
            used, slice_bytes, ..
        } => Some((u64::from(used), slice_bytes)),
        _ => None,
    });
    let (mut reads, mut bytes) = (0, 0);
    for (used, slice_bytes) in slices {
        reads += used * slice_bytes.div_ceil(SLICE_READ_BYTES);
        bytes += used * slice_bytes;
    }
    let block_bytes = u32::try_from(bytes / reads.max(1)).ok()?;
    (block_bytes > 0).then_some(Setting {
        block_bytes,
        depth: u32::try_from(reads.div_ceil(2)).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use kernelio::disk::Batches;
    use kernelio::rate::Rates;

    use super::*;

    fn found(batches: Option<Batches>, is_virtual_disk: bool) -> WhileComputing {
        WhileComputing {
            disk_alone_bytes_per_second: 1250,
            disk_bytes_per_second: 1000,
            disk: Rates::of(vec![800, 1000, 1000, 1100, 1500]).unwrap(),
            memory_alone_bytes_per_second: 3000,
            memory_bytes_per_second: 2500,
            batches,
            is_virtual_disk,
        }
    }

    #[test]
    fn a_glance_says_how_far_the_disk_varies() {
        let glance = Glance::of(&found(None, false));
        let machine = glance.machine();
        assert_eq!(machine.disk_bytes_per_second, 1000.0);
        assert_eq!(machine.idle_disk_bytes_per_second(), 1250.0);
        let expect = Spread {
            low: 0.8,
            high: 1.5,
        };
        assert_eq!(machine.varies.disk, expect);
        assert_eq!(machine.memory_bytes_per_second, Some(3000.0));
        assert_eq!(machine.compute_while_reading, 1.2);
        assert_eq!(machine.varies.read_latency, Spread::NONE);
    }

    #[test]
    fn a_virtual_disk_may_run_out_of_credits() {
        let glance = Glance::of(&found(None, true));
        assert_eq!(glance.machine().varies.disk.low, THROTTLED);
    }

    #[test]
    fn latency_is_what_a_batch_takes_beyond_its_bytes() {
        let batches = Batches {
            bytes: 500,
            nanos: vec![
                600_000_000,
                600_000_000,
                700_000_000,
                900_000_000,
                900_000_000,
            ],
        };
        let (seconds, spread) = Glance::of(&found(Some(batches), false)).latency.unwrap();
        assert!((seconds - 0.2).abs() < 1e-9, "{seconds}");
        assert!((spread.low - 0.5).abs() < 1e-9 && (spread.high - 2.0).abs() < 1e-9);
        let fast = Batches {
            bytes: 5000,
            nanos: vec![1],
        };
        let (seconds, _) = Glance::of(&found(Some(fast), false)).latency.unwrap();
        assert_eq!(seconds, MIN_LATENCY_SECONDS);
    }

    #[test]
    fn a_batch_has_half_of_the_experts_of_one_router() {
        let weight = |layer, used, slice_bytes| Weight {
            name: "w".to_owned(),
            bytes: 8 * slice_bytes,
            layer: Some(layer),
            usage: Use::Experts {
                count: 8,
                used,
                slice_bytes,
            },
            row_bytes: None,
        };
        let check = |weights: &[Weight], expect: Option<(u32, u32)>| {
            let batch = batch_of(weights).map(|batch| (batch.block_bytes, batch.depth));
            assert_eq!(batch, expect);
        };
        check(&[], None);
        let small = [weight(0, 4, 1000), weight(0, 4, 1000), weight(1, 4, 1000)];
        check(&small, Some((1000, 4)));
        // Slices of 6 MiB are read in two.
        check(&[weight(0, 3, 6 << 20)], Some((3 << 20, 3)));
    }
}
