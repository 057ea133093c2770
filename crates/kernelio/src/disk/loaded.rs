//! What the disk gives while all cores compute, and what reading takes from them.
//!
//! First the file is read for a moment with nothing else to do. Then threads read memory as if
//! they computed with weights. Meanwhile:
//!
//! 1. for a moment nothing else happens: the speed of memory;
//! 2. the file is read in order, as weights are streamed: slices of time, so that a spread is
//!    known, and what memory still gives;
//! 3. batches of scattered reads are asked for and waited for, as a router's experts are.
//!
//! In less than a second, so a disk with burst credits shows its burst only: whoever predicts
//! more than a second has to allow for that ([`WhileComputing::is_virtual_disk`]).

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use support::random::Random;

use super::job::{Job, Order, Span};
use super::{MAX_IN_FLIGHT_BYTES, MethodChoice, Setting, check, choose_method, is_virtual};
use crate::error::CeilingError;
use crate::memory::{Counter, load_bytes, while_reading};
use crate::rate::{Rates, bytes_per_second};
use crate::target::Target;

/// How long memory alone is measured.
const ALONE: Duration = Duration::from_millis(60);
/// Threads that just woke up have not found their speed.
const WAKING_UP: Duration = Duration::from_millis(20);
const SLICE: Duration = Duration::from_millis(30);
/// Batches that are waited for, and those before that do not count.
const BATCHES: usize = 9;
const WARM_UP_BATCHES: usize = 1;

#[derive(Clone, Copy, Debug)]
pub struct LoadedOptions {
    /// That compute.
    pub threads: NonZeroUsize,
    /// Of the reads in order.
    pub setting: Setting,
    /// How long these go on while threads are busy, and half of it before.
    pub time: Duration,
    /// Scattered reads that are waited for together: their size, and how many.
    pub batch: Option<Setting>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WhileComputing {
    /// All that the disk gave, alone and while threads were busy.
    pub disk_alone_bytes_per_second: u64,
    pub disk_bytes_per_second: u64,
    /// The latter in slices of time.
    pub disk: Rates,
    /// What the threads read of memory: before, and while the disk was read.
    pub memory_alone_bytes_per_second: u64,
    pub memory_bytes_per_second: u64,
    pub batches: Option<Batches>,
    /// Of a virtual machine: it may be fast for a while only.
    pub is_virtual_disk: bool,
}

/// Scattered reads that were waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Of one batch.
    pub bytes: u64,
    /// Ascending.
    pub nanos: Vec<u64>,
}

impl Batches {
    /// The nanoseconds that so many quarters of the batches took at most; 2 is the median.
    pub fn quartile_nanos(&self, quarter: usize) -> u64 {
        let last = self.nanos.len().saturating_sub(1);
        let at = (last * quarter.min(4) + 2) / 4;
        self.nanos.get(at).copied().unwrap_or(0)
    }
}

impl WhileComputing {
    /// How many times as long reading memory takes while the disk is read; at least once.
    pub fn memory_slowdown(&self) -> f64 {
        let (alone, shared) = (
            self.memory_alone_bytes_per_second as f64,
            self.memory_bytes_per_second as f64,
        );
        match shared > 0.0 {
            true => (alone / shared).max(1.0),
            false => 1.0,
        }
    }
}

pub fn measure_while_computing(
    path: &Path,
    options: LoadedOptions,
) -> Result<WhileComputing, CeilingError> {
    check(options.setting)?;
    let target = Target::open(path)?;
    let (mut job, _) = choose_method(&target, MethodChoice::Best)?;
    let threads = options.threads.get();
    let setting = job.fitting(options.setting);
    let alone = job.run(setting, Span::Time(options.time / 2), SLICE)?;
    let work = |counter: Counter<'_>| measure(&mut job, options, counter);
    let (measured, _) = while_reading(threads, load_bytes(threads)?, work)?;
    let disk = rundir::machine::describe(Some(path)).model_disk;
    Ok(WhileComputing {
        is_virtual_disk: disk.as_ref().is_some_and(is_virtual),
        disk_alone_bytes_per_second: bytes_per_second(alone.bytes_read, alone.elapsed),
        ..measured?
    })
}

fn measure(
    job: &mut Job<'_>,
    options: LoadedOptions,
    counter: Counter<'_>,
) -> Result<WhileComputing, CeilingError> {
    thread::sleep(WAKING_UP);
    let (begin, before) = (Instant::now(), counter.bytes());
    thread::sleep(ALONE);
    let alone = bytes_per_second(counter.bytes() - before, begin.elapsed());
    let setting = job.fitting(options.setting);
    let (begin, before) = (Instant::now(), counter.bytes());
    let streamed = job.run(setting, Span::Time(options.time), SLICE)?;
    let memory = bytes_per_second(counter.bytes() - before, begin.elapsed());
    let batches = options.batch.map(|batch| measure_batches(job, batch));
    Ok(WhileComputing {
        disk_alone_bytes_per_second: 0,
        disk_bytes_per_second: bytes_per_second(streamed.bytes_read, streamed.elapsed),
        disk: streamed.rates,
        memory_alone_bytes_per_second: alone,
        memory_bytes_per_second: memory,
        batches: batches.transpose()?,
        is_virtual_disk: false,
    })
}

fn measure_batches(job: &mut Job<'_>, batch: Setting) -> Result<Batches, CeilingError> {
    let batch = job.fitting(batch);
    let most = (MAX_IN_FLIGHT_BYTES / u64::from(batch.block_bytes.max(1))).max(1) as u32;
    let batch = Setting {
        depth: batch.depth.clamp(1, most),
        ..batch
    };
    check(batch)?;
    let block_bytes = job.file_bytes().min(u64::from(batch.block_bytes));
    let bytes = block_bytes * u64::from(batch.depth);
    let mut random = Random(1);
    let mut nanos = Vec::new();
    for number in 0..WARM_UP_BATCHES + BATCHES {
        let order = Order::Scattered(Random(random.next_u64()));
        let outcome = job.run_in(order, batch, Span::Bytes(bytes), SLICE)?;
        if number >= WARM_UP_BATCHES {
            nanos.push(outcome.elapsed.as_nanos() as u64);
        }
    }
    nanos.sort_unstable();
    Ok(Batches { bytes, nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_measured_while_threads_read_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, vec![7u8; 1 << 20]).unwrap();
        let options = LoadedOptions {
            threads: NonZeroUsize::MIN,
            setting: Setting {
                block_bytes: 64 << 10,
                depth: 4,
            },
            time: Duration::from_millis(60),
            batch: Some(Setting {
                block_bytes: 100_000,
                depth: 6,
            }),
        };
        let found = measure_while_computing(&path, options).unwrap();
        assert!(found.disk.median_bytes_per_second > 0);
        assert!(found.disk_alone_bytes_per_second > 0 && found.disk_bytes_per_second > 0);
        assert!(found.memory_alone_bytes_per_second > 0);
        assert!(found.memory_bytes_per_second > 0);
        assert!(found.memory_slowdown() >= 1.0);
        let batches = found.batches.unwrap();
        // Rounded up to what direct reads ask for, at most to a page.
        assert!((600_000..625_000).contains(&batches.bytes));
        assert_eq!(batches.nanos.len(), BATCHES);
        assert!(batches.nanos.is_sorted());
        assert!(batches.quartile_nanos(1) <= batches.quartile_nanos(2));
        assert_eq!(batches.quartile_nanos(4), batches.nanos[BATCHES - 1]);
    }

    #[test]
    fn a_file_smaller_than_a_read_is_measured_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, [7u8; 5000]).unwrap();
        let options = LoadedOptions {
            threads: NonZeroUsize::MIN,
            setting: Setting {
                block_bytes: 64 << 10,
                depth: 4,
            },
            time: Duration::from_millis(30),
            batch: Some(Setting {
                block_bytes: 64 << 10,
                depth: 3,
            }),
        };
        let found = measure_while_computing(&path, options).unwrap();
        assert_eq!(found.batches.unwrap().bytes, 15_000);
    }
}
