//! What the hardware gives, for a diagnosis: measured now where the run is of this machine, and
//! kept beside the run, because the machine may be busy, or another one, when it is asked again.

use std::{num::NonZeroUsize, path::Path, time::Duration};

use analysis::time_stack::PhaseTime;
use diagnose::Ceilings;
use kernelio::{
    compute,
    disk::{self, DiskCeiling, DiskOptions},
    memory::{self, MemoryCeiling, MemoryOptions},
};
use rundir::Run;
use serde::{Deserialize, Serialize};

const FILE: &str = "measured.json";
/// Threads that had a processor for less of the time measured somebody else's load.
const MIN_ON_CPU_PERMILLE: u32 = 900;
/// Waiting for the disk for less of a phase's time is not worth measuring the disk.
const NOTABLE_DISK: f64 = 0.05;
const COMPUTE_TIME: Duration = Duration::from_millis(200);

/// What was measured; what was not is absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    pub memory: Option<MemoryCeiling>,
    pub disk: Option<DiskCeiling>,
    /// Products of 32-bit numbers in registers, with all processors.
    pub flops_per_second: Option<f64>,
}

/// Whether something may be measured, or only what was kept is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    Now,
    Never,
}

impl Measured {
    /// What was kept; the rest is measured, where that is allowed and the numbers are needed.
    pub fn of(run: &Run, times: &[PhaseTime], measure: Measure) -> Measured {
        let path = run.path().join(FILE);
        let bytes = std::fs::read(&path).unwrap_or_default();
        let mut known: Measured = serde_json::from_slice(&bytes).unwrap_or_default();
        if measure == Measure::Never {
            return known;
        }
        let mut is_new = known.fill_memory();
        let waits =
            |time: &PhaseTime| time.disk.unwrap_or(0) as f64 > time.nanos as f64 * NOTABLE_DISK;
        if times.iter().any(waits) {
            is_new |= known.fill_disk(run);
        }
        if is_new {
            let text = serde_json::to_vec(&known).unwrap_or_default();
            // A run on a disk that cannot be written to is measured each time.
            let _ = std::fs::write(path, text);
        }
        known
    }

    /// For as many threads as a run had.
    pub fn ceilings(&self, threads: Option<usize>) -> Ceilings {
        let memory = self.memory.as_ref();
        let of_threads = |memory: &MemoryCeiling| match threads {
            Some(threads) => memory.with_threads(threads) as u64,
            None => memory.bytes_per_second,
        };
        Ceilings {
            memory: memory.map(of_threads),
            memory_all: memory.map(|memory| memory.bytes_per_second),
            disk: self.disk.as_ref().map(|disk| disk.bytes_per_second),
            flops_per_second: self.flops_per_second,
        }
    }

    fn fill_memory(&mut self) -> bool {
        if self.memory.is_some() {
            return false;
        }
        eprintln!(
            "tensorscope: measuring what memory gives, for two seconds (--no-measure leaves it out)"
        );
        let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let options = MemoryOptions::for_this_machine();
        let Ok(ceiling) = memory::measure(processors, options, &mut |_| ()) else {
            return false;
        };
        let on_cpu = [&ceiling.one_thread, &ceiling.all_threads].map(|c| c.on_cpu_permille);
        if on_cpu
            .iter()
            .any(|permille| *permille < MIN_ON_CPU_PERMILLE)
        {
            eprintln!(
                "tensorscope: other programs use the processors: what memory gives is not known"
            );
            return false;
        }
        self.memory = Some(ceiling);
        self.flops_per_second = Some(compute::measure(processors, COMPUTE_TIME));
        true
    }

    fn fill_disk(&mut self, run: &Run) -> bool {
        let model = run.metadata().and_then(|m| m.model.as_ref());
        let Some(file) = model.and_then(|model| model.files.first()) else {
            return false;
        };
        if self.disk.is_some() {
            return false;
        }
        eprintln!("tensorscope: measuring what the disk gives, for three seconds");
        let path = Path::new(&file.path);
        self.disk = disk::measure(path, DiskOptions::default(), &mut |_| ()).ok();
        self.disk.is_some()
    }
}
