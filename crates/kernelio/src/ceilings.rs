//! Disk, memory and arithmetic, one after the other, in less than ten seconds.
//!
//! One after the other because they share the memory bus and, on small machines,
//! the cores.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rundir::time::Moment;
use serde::{Deserialize, Serialize};

use crate::card::CardCeiling;
use crate::compute::{self, ComputeCeiling};
use crate::disk::{self, DiskCeiling, DiskOptions};
use crate::error::CeilingError;
use crate::memory::{self, MemoryCeiling, MemoryOptions};

/// What the hardware allows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    pub disk: DiskCeiling,
    pub memory: MemoryCeiling,
    /// `None` in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<ComputeCeiling>,
    /// Graphics cards; none where there is none, where nobody measured it, and in files of older
    /// versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cards: Vec<CardCeiling>,
    /// Hardware threads that this process may use.
    pub cpu_threads: usize,
    /// When the measurement began: RFC 3339, UTC.
    pub when: String,
}

/// What is being measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Looking for the best block size and depth.
    DiskSweep,
    Disk,
    MemoryOneThread,
    /// With more than one, up to all of them.
    MemoryAllThreads,
    Compute,
}

/// What happens next, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub stage: Stage,
    /// Of all the work, in thousandths; grows from call to call.
    pub done_permille: u32,
}

/// Of memory, for each number of threads between one and all.
const BETWEEN_TIME: Duration = Duration::from_millis(300);
/// Of each instruction set, with one thread and with all.
const COMPUTE_TIME: Duration = Duration::from_millis(100);

/// Measures the disk that holds `model`, and memory and arithmetic with `threads` threads.
pub fn measure(
    model: &Path,
    threads: NonZeroUsize,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Ceilings, CeilingError> {
    measure_with(
        model,
        threads,
        DiskOptions::default(),
        MemoryOptions::for_this_machine(),
        on_progress,
    )
}

/// As [`measure`], with other methods, settings or times.
pub fn measure_with(
    model: &Path,
    threads: NonZeroUsize,
    disk_options: DiskOptions,
    memory_options: MemoryOptions,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Ceilings, CeilingError> {
    let when = Moment::now().rfc3339();
    // Shares of the usual time: 1 s of sweep, 2 s of disk, 1.2 s of memory twice, 0.6 s of
    // arithmetic.
    let mut tell = |stage, done_permille| {
        on_progress(Progress {
            stage,
            done_permille,
        })
    };
    let disk = disk::measure(model, disk_options, &mut |event| match event {
        disk::Event::Trial { done, of } => tell(Stage::DiskSweep, 190 * done / of),
        disk::Event::Measuring => tell(Stage::Disk, 190),
    })?;
    let mut memory = memory::measure(threads, memory_options, &mut |threads| match threads {
        1 => tell(Stage::MemoryOneThread, 520),
        _ => tell(Stage::MemoryAllThreads, 720),
    })?;
    let shorter = MemoryOptions {
        time: memory_options.time.min(BETWEEN_TIME),
        ..memory_options
    };
    memory.between = memory::measure_between(threads, shorter, &mut |_| {
        tell(Stage::MemoryAllThreads, 860);
    })?;
    tell(Stage::Compute, 920);
    let compute = compute::ceiling(threads, memory_options.time.min(COMPUTE_TIME));
    Ok(Ceilings {
        disk,
        memory,
        compute: Some(compute),
        cards: Vec::new(),
        cpu_threads: thread::available_parallelism().map_or(1, NonZeroUsize::get),
        when,
    })
}
