//! Disk and memory, one after the other, in less than eight seconds.
//!
//! One after the other because they share the memory bus and, on small machines,
//! the cores.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

use rundir::time::Moment;
use serde::{Deserialize, Serialize};

use crate::disk::{self, DiskCeiling, DiskOptions};
use crate::error::CeilingError;
use crate::memory::{self, MemoryCeiling, MemoryOptions};

/// What the hardware allows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    pub disk: DiskCeiling,
    pub memory: MemoryCeiling,
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
    MemoryAllThreads,
}

/// What happens next, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub stage: Stage,
    /// Of all the work, in thousandths; grows from call to call.
    pub done_permille: u32,
}

/// Measures the disk that holds `model`, and memory with `threads` threads.
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
    // Shares of the usual time: 1 s of sweep, 2 s of disk, 1.2 s of memory twice.
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
    let memory = memory::measure(threads, memory_options, &mut |threads| match threads {
        1 => tell(Stage::MemoryOneThread, 560),
        _ => tell(Stage::MemoryAllThreads, 780),
    })?;
    Ok(Ceilings {
        disk,
        memory,
        cpu_threads: thread::available_parallelism().map_or(1, NonZeroUsize::get),
        when,
    })
}
