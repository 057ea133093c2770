//! Options of `record` that look underneath the program: page faults, block
//! requests, resident pages, threads on processors; and those that put it under memory pressure.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::bail;
use indicatif::HumanBytes;
use kernelio::{
    faults::MinorFaults,
    files::Files,
    pressure::{MemoryLimit, Usage, drop_cache},
    session::{Session, SessionSummary, Wish},
};
use rundir::metadata::Underneath;
use terminal::text::{count, size};

/// With less the kernel kills the program before it can say anything; the smallest
/// model needs hardly more.
const MIN_MEMORY_BYTES: u64 = 16 << 20;

#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Page faults, disk, memory and processors")]
pub struct UnderneathArgs {
    /// Record page faults with address and time: major ones, or all [default: major]
    #[arg(long, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "major")]
    faults: Option<Faults>,

    /// Record block requests of the disks that hold the model
    #[arg(long)]
    io: bool,

    /// Record which pages of the model are in memory, every N tokens [default: 16]; 0 for
    /// the beginning and the end only
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "16")]
    residency: Option<u64>,

    /// Record what threads do on the processors: their stacks 99 times a second, when they
    /// run, cycles and cache misses where the machine counts them, and how busy it is
    #[arg(long)]
    cpu: bool,

    /// Run inside a memory cgroup with this limit: 500M, 4G. What does not fit is read again
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// Drop the model's cached pages first; of a PROGRAM, those of the .gguf files among its
    /// arguments, or of FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    cold: Option<Option<PathBuf>>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Faults {
    Major,
    All,
}

impl UnderneathArgs {
    /// What is to be recorded; `None` when nothing is.
    pub fn wish(&self) -> Option<Wish> {
        let wish = Wish {
            faults: self.faults.map(|which| match which {
                Faults::Major => MinorFaults::LeftOut,
                Faults::All => MinorFaults::Recorded,
            }),
            io: self.io,
            residency_every: self.residency,
            cpu: self.cpu,
        };
        (wish != Wish::default()).then_some(wish)
    }

    /// The limit that was asked for, in bytes.
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    pub fn limit(&self) -> anyhow::Result<Option<MemoryLimit>> {
        if let Some(bytes) = self.memory.filter(|bytes| *bytes < MIN_MEMORY_BYTES) {
            bail!(
                "--memory: in {} no program can start and the kernel would kill it; \
                 give at least {}",
                HumanBytes(bytes),
                HumanBytes(MIN_MEMORY_BYTES)
            );
        }
        Ok(self.memory.map(MemoryLimit::new).transpose()?)
    }

    /// Files whose pages are to be dropped, for a model that is known.
    pub fn cold_files(&self, model: &gguf::Model) -> Vec<PathBuf> {
        match &self.cold {
            None => Vec::new(),
            Some(Some(file)) => vec![file.clone()],
            Some(None) => model.files().iter().map(|file| file.path.clone()).collect(),
        }
    }

    /// The same for a program, whose model nobody knows yet.
    pub fn cold_files_of_program(&self, program: &[OsString]) -> anyhow::Result<Vec<PathBuf>> {
        match &self.cold {
            None => Ok(Vec::new()),
            Some(Some(file)) => Ok(vec![file.clone()]),
            Some(None) => {
                let is_model =
                    |path: &&Path| path.extension().is_some_and(|e| e == "gguf") && path.is_file();
                let named = program.iter().map(Path::new).filter(is_model);
                let files: Vec<PathBuf> = named
                    .flat_map(|path| match gguf::Model::open(path) {
                        Ok(model) => model.files().iter().map(|f| f.path.clone()).collect(),
                        Err(_) => vec![path.to_owned()],
                    })
                    .collect();
                if files.is_empty() {
                    bail!(
                        "--cold: there is no .gguf file among the program's arguments; \
                         name it: --cold=MODEL.gguf"
                    );
                }
                Ok(files)
            }
        }
    }
}

/// Drops what is cached of some files; the bytes that are gone. Says so when the
/// kernel keeps some.
pub fn make_cold(files: &[PathBuf]) -> anyhow::Result<Option<u64>> {
    if files.is_empty() {
        return Ok(None);
    }
    let mut dropped_bytes = 0;
    for file in files {
        let dropped = drop_cache(file)?;
        dropped_bytes += dropped.before_bytes.saturating_sub(dropped.left_bytes);
        if dropped.left_bytes > 0 {
            eprintln!(
                "tensorscope: {}: {} stay in memory: another program has them mapped or locked",
                file.display(),
                HumanBytes(dropped.left_bytes)
            );
        }
    }
    Ok(Some(dropped_bytes))
}

/// Says what cannot be recorded here, and what allows it.
pub fn say_missing(session: &Session) {
    for missing in session.missing() {
        eprintln!("tensorscope: {missing}");
    }
}

/// Ends the recording underneath; for the metadata.
pub fn finish(
    session: Option<Session>,
    files: &[PathBuf],
    usage: Option<Usage>,
    dropped_bytes: Option<u64>,
) -> Option<Underneath> {
    if session.is_none() && usage.is_none() && dropped_bytes.is_none() {
        return None;
    }
    let mut underneath = Underneath {
        memory_limit_bytes: usage.map(|usage| usage.limit_bytes),
        peak_memory_bytes: usage.and_then(|usage| usage.peak_bytes),
        times_at_limit: usage.map(|usage| usage.times_at_limit),
        oom_kills: usage.map(|usage| usage.oom_kills),
        dropped_bytes,
        ..Underneath::default()
    };
    let Some(session) = session else {
        return Some(underneath);
    };
    match Files::register(files).and_then(|files| session.finish(&files)) {
        Ok(summary) => describe(&mut underneath, summary),
        Err(error) => {
            eprintln!("tensorscope: {error}; what the kernel did is not all recorded");
            underneath.missing.push(error.to_string());
        }
    }
    Some(underneath)
}

fn describe(underneath: &mut Underneath, summary: SessionSummary) {
    underneath.major_faults = Some(summary.counters.major_faults);
    underneath.minor_faults = Some(summary.counters.minor_faults);
    underneath.read_bytes = summary.counters.read_bytes;
    if let Some(faults) = summary.faults {
        underneath.recorded_faults = Some(faults.major + faults.minor);
        underneath.lost_faults = Some(faults.lost);
    }
    if let Some(io) = summary.io {
        underneath.requests = Some(io.requests);
        underneath.request_bytes = Some(io.read_bytes);
        underneath.model_read_bytes = Some(io.file_read_bytes);
        underneath.lost_requests = Some(io.lost);
    }
    underneath.residency_samples = summary.samples;
    if let Some(cpu) = summary.cpu {
        underneath.cpu_samples = Some(cpu.samples);
        underneath.cpu_switches = Some(cpu.switches);
        underneath.lost_cpu_records = Some(cpu.lost);
        underneath.cpu_counters = cpu.counters;
    }
    underneath.missing = summary.missing.iter().map(ToString::to_string).collect();
}

/// One line for people, if there is anything to say.
pub fn say(underneath: &Underneath) {
    let sentence = sentence(underneath);
    if !sentence.is_empty() {
        eprintln!("tensorscope: {sentence}");
    }
}

fn sentence(underneath: &Underneath) -> String {
    let mut parts = Vec::new();
    if let Some(major) = underneath.major_faults {
        parts.push(count(major, "major fault"));
    }
    if let (Some(bytes), Some(requests)) = (underneath.model_read_bytes, underneath.requests) {
        parts.push(format!(
            "{} of the model read in {}",
            HumanBytes(bytes),
            count(requests, "request")
        ));
    } else if let Some(bytes) = underneath.read_bytes {
        parts.push(format!("{} read from disk", HumanBytes(bytes)));
    }
    if underneath.residency_samples > 0 {
        parts.push(format!(
            "{} of resident pages",
            count(underneath.residency_samples, "sample")
        ));
    }
    if let Some(samples) = underneath.cpu_samples {
        parts.push(count(samples, "stack"));
    }
    if let Some(limit) = underneath.memory_limit_bytes {
        let peak = underneath.peak_memory_bytes.map_or(String::new(), |peak| {
            format!(", at most {} used", HumanBytes(peak))
        });
        parts.push(format!("memory limit {}{peak}", HumanBytes(limit)));
    }
    if let Some(kills) = underneath.oom_kills.filter(|kills| *kills > 0) {
        parts.push(format!("KILLED by the kernel for lack of memory ({kills})"));
    }
    parts.join(", ")
}
