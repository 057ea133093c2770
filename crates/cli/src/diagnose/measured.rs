//! What the hardware gives, for a diagnosis: measured now where the run is of this machine, and
//! kept beside the run, because the machine may be busy, or another one, when it is asked again.

use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use analysis::{
    roofline::{Roofline, classes::ClassRow},
    time_stack::PhaseTime,
};
use bench::ceilings::{self, Question};
use diagnose::Ceilings;
use kernelio::{
    compute::{self, ComputeCeiling},
    disk::{self, DiskCeiling, DiskOptions},
    memory::{self, MemoryCeiling, MemoryOptions},
};
use rundir::Run;
use serde::{Deserialize, Serialize};

use crate::analyse::keep_file;

const FILE: &str = "measured.json";
/// Threads that had a processor for less of the time measured somebody else's load.
const MIN_ON_CPU_PERMILLE: u32 = 900;
/// Waiting for the disk for less of a phase's time is not worth measuring the disk.
const NOTABLE_DISK: f64 = 0.05;
/// Of each instruction set and number of threads.
const COMPUTE_TIME: Duration = Duration::from_millis(50);
/// Of the model's types, those with most bytes.
const MAX_TYPES: usize = 2;

/// What was measured; what was not is absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    pub memory: Option<MemoryCeiling>,
    pub disk: Option<DiskCeiling>,
    /// Arithmetic, and llama.cpp's products with weights of the model's types.
    pub compute: Option<ComputeCeiling>,
}

/// Whether something may be measured, or only what was kept is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    Now,
    Never,
}

impl Measured {
    /// What was kept; the rest is measured, where that is allowed and the numbers are needed.
    pub fn of(
        run: &Run,
        times: &[PhaseTime],
        threads: Option<usize>,
        measure: Measure,
    ) -> Measured {
        let mut known = Measured::kept(run);
        if measure == Measure::Never {
            return known;
        }
        let mut is_new = known.fill_memory(run, threads);
        let waits =
            |time: &PhaseTime| time.disk.unwrap_or(0) as f64 > time.nanos as f64 * NOTABLE_DISK;
        if times.iter().any(waits) {
            is_new |= known.fill_disk(run);
        }
        if is_new {
            let text = serde_json::to_vec(&known).unwrap_or_default();
            // A run on a disk that cannot be written to is measured each time.
            let _ = keep_file(run, FILE, &text);
        }
        known
    }

    /// What an earlier diagnosis measured.
    pub fn kept(run: &Run) -> Measured {
        let bytes = std::fs::read(run.path().join(FILE)).unwrap_or_default();
        let kept: Measured = serde_json::from_slice(&bytes).unwrap_or_default();
        Measured {
            // A speed of 0 is of a damaged file; it predicts nothing.
            memory: kept.memory.filter(|memory| memory.bytes_per_second > 0),
            disk: kept.disk.filter(|disk| disk.bytes_per_second > 0),
            ..kept
        }
    }

    /// Where memory was measured.
    pub fn roofline(&self, classes: &[ClassRow]) -> Option<Roofline> {
        let memory = self.memory.as_ref()?;
        Some(Roofline::of(classes, memory, self.compute.as_ref()))
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
            compute: self.compute.clone(),
        }
    }

    fn fill_memory(&mut self, run: &Run, threads: Option<usize>) -> bool {
        if self.memory.is_some() && self.compute.is_some() {
            return false;
        }
        eprintln!(
            "tensorscope: measuring what memory and llama.cpp's kernels give, for five seconds (--no-measure leaves it out)"
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
        let mut compute = compute::ceiling(processors, COMPUTE_TIME);
        let file = model_file(run);
        let mut types = file.map_or_else(Vec::new, |file| ceilings::types_of(&file));
        types.truncate(MAX_TYPES);
        // As the run computed, and between that and all.
        let all = processors.get();
        let own = threads.unwrap_or(1).min(all);
        let question = Question {
            types,
            threads: BTreeSet::from([1, own, all.div_ceil(2), all]),
            repacked_with: Some(own),
        };
        // Without llama.cpp's kernels less can be predicted.
        if let Err(error) = ceilings::add_kernels(&mut compute, &question) {
            eprintln!("tensorscope: llama.cpp's kernels were not measured: {error:#}");
        }
        self.compute = Some(compute);
        true
    }

    fn fill_disk(&mut self, run: &Run) -> bool {
        let Some(path) = model_file(run) else {
            return false;
        };
        if self.disk.is_some() {
            return false;
        }
        eprintln!("tensorscope: measuring what the disk gives, for three seconds");
        self.disk = disk::measure(&path, DiskOptions::default(), &mut |_| ()).ok();
        self.disk.is_some()
    }
}

/// The first one of the run's model.
fn model_file(run: &Run) -> Option<PathBuf> {
    let model = run.metadata()?.model.as_ref()?;
    let file = model.files.first()?;
    Some(Path::new(&file.path).to_owned())
}
