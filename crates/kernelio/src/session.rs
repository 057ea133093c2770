//! One recording of a program: faults, block requests, residency, threads on processors, and
//! the counters that are always there.
//!
//! 1. [`Session::of_this_process`] or [`Session::of_child`] starts what it can. What
//!    the kernel refuses is in [`Session::missing`], and the rest is recorded.
//! 2. Which files a child loads shows while it runs ([`Discovery`]): until the end its
//!    logs have provisional file numbers, and requests of all disks. They have other
//!    names then (`faults.provisional`), for whoever reads them after a kill would
//!    take the numbers for those of the run.
//! 3. [`Session::wait`] waits for a child, and takes its counters while they exist.
//! 4. [`Session::finish`] ends everything and gives the logs their final numbers
//!    (`rewrite`).
//!
//! A recording never fails because something could not be started; a log that could
//! not be written to its end is an error at [`Session::finish`].

mod rewrite;
mod watch;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::block::{BlockRecorder, BlockSummary};
use crate::counters::Counters;
use crate::cpu::{CpuRecorder, CpuSummary};
use crate::discovery::{Discovery, Known};
use crate::error::{KernelError, Missing};
use crate::faults::{FaultRecorder, FaultSummary, MinorFaults, Target};
use crate::files::Files;
use crate::kernel_log;
use crate::launch::spawn_held;
use watch::Watch;

/// What is to be recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    pub faults: Option<MinorFaults>,
    pub io: bool,
    /// A sample every so many tokens; 0: only at the begin and at the end.
    pub residency_every: Option<u64>,
    /// What threads do on the processors.
    pub cpu: bool,
}

/// How many tokens were evaluated so far; asked by the sampling thread.
pub type TokenCount = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Records until it is finished or dropped.
pub struct Session {
    known: Known,
    log_directory: PathBuf,
    tokens: TokenCount,
    faults: Option<FaultRecorder>,
    io: Option<BlockRecorder>,
    watch: Option<Watch>,
    cpu: Option<CpuRecorder>,
    counting: Counting,
    missing: Vec<Missing>,
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// `None`: not wished, or missing.
    pub faults: Option<FaultSummary>,
    pub io: Option<BlockSummary>,
    /// In `log/residency`; each is of one file at one moment.
    pub samples: u64,
    pub cpu: Option<CpuSummary>,
    /// Of the program over the same time, and of the children that it has waited
    /// for: always there.
    pub counters: Counters,
    pub missing: Vec<Missing>,
}

/// What the counters are taken of.
#[derive(Debug)]
enum Counting {
    ThisProcess {
        begin: Counters,
    },
    Child {
        begin: Counters,
        /// Once it has ended.
        end: Option<Counters>,
        /// Of all children waited for, before this one was started.
        children_begin: Counters,
    },
}

impl Session {
    /// Records this process (the built-in engine). Files are known: their numbers are
    /// the order of registration.
    pub fn of_this_process(
        wish: &Wish,
        files: Files,
        log_directory: &Path,
        tokens: TokenCount,
    ) -> Session {
        let mut missing = Vec::new();
        let known = Known::Given(files.clone());
        let log = |name| log_directory.join(name);
        // The sampler and the block reader before the faults, whose events are
        // inherited by threads.
        let watch = wish.residency_every.and_then(|every| {
            let log = log(kernel_log::RESIDENCY);
            let watch = Watch::start(&known, None, &log, every, &tokens, &mut missing);
            kept(watch, RESIDENCY, &mut missing)
        });
        let io = wish
            .io
            .then(|| BlockRecorder::start(&files, &log(kernel_log::IO)));
        let io = io.and_then(|io| kept(io, REQUESTS, &mut missing));
        let faults = wish.faults.and_then(|minor| {
            let log = log(kernel_log::FAULTS);
            let faults = FaultRecorder::start(Target::ThisProcess, &files, &log, minor);
            kept(faults, FAULTS, &mut missing)
        });
        let cpu = wish
            .cpu
            .then(|| CpuRecorder::start(Target::ThisProcess, log_directory));
        let cpu = cpu.and_then(|cpu| kept(cpu, STACKS, &mut missing));
        let begin = Counters::of_this_process();
        let counting = Counting::ThisProcess {
            begin: kept(begin, COUNTERS, &mut missing).unwrap_or_default(),
        };
        Session {
            known,
            log_directory: log_directory.to_owned(),
            tokens,
            faults,
            io,
            watch,
            cpu,
            counting,
            missing,
        }
        .with_missing_parts()
    }

    /// Starts a program and records it, its threads and the processes that it starts.
    /// Which model files it loads need not be known yet. Fails only when the program
    /// cannot be run.
    pub fn of_child(
        wish: &Wish,
        command: &mut Command,
        log_directory: &Path,
        tokens: TokenCount,
    ) -> Result<(Child, Session), KernelError> {
        let mut missing = Vec::new();
        let discovery = Discovery::default();
        let known = Known::from(&discovery);
        let log = |name| rewrite::provisional(&log_directory.join(name));
        let io = wish
            .io
            .then(|| BlockRecorder::start_on_all_disks(&log(kernel_log::IO)));
        let io = io.and_then(|io| kept(io, REQUESTS, &mut missing));
        let children_begin = Counters::of_waited_children();
        let (child, (faults, cpu, begin)) = spawn_held(command, |pid| {
            let faults = wish.faults.and_then(|minor| {
                let log = log(kernel_log::FAULTS);
                let faults = FaultRecorder::start(Target::Child(pid), &discovery, &log, minor);
                kept(faults, FAULTS, &mut missing)
            });
            let cpu = wish
                .cpu
                .then(|| CpuRecorder::start(Target::Child(pid), log_directory));
            let cpu = cpu.and_then(|cpu| kept(cpu, STACKS, &mut missing));
            Ok((faults, cpu, Counters::of(pid)))
        })
        .inspect_err(|_| rewrite::remove_logs(log_directory))?;
        let counting = Counting::Child {
            begin: kept(begin, COUNTERS, &mut missing).unwrap_or_default(),
            end: None,
            children_begin,
        };
        let watch = wish.residency_every.and_then(|every| {
            let log = log(kernel_log::RESIDENCY);
            // Without the events of faults nobody else looks for files.
            let looked_at = faults.is_none().then_some(child.id());
            let watch = Watch::start(&known, looked_at, &log, every, &tokens, &mut missing);
            kept(watch, RESIDENCY, &mut missing)
        });
        let session = Session {
            known,
            log_directory: log_directory.to_owned(),
            tokens,
            faults,
            io,
            watch,
            cpu,
            counting,
            missing,
        };
        Ok((child, session.with_missing_parts()))
    }

    /// What could not be started, each with the command that allows it. The rest is
    /// recorded.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Waits for the child, takes its counters while they exist, and collects it.
    pub fn wait(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        // As `Child::wait` does: it may wait for the end of its input.
        drop(child.stdin.take());
        // Fails for one that was collected before, whose status `wait` remembers.
        self.child_has_ended(child.id());
        child.wait()
    }

    /// For callers that wait by themselves: to be called when the child has ended and
    /// was not collected yet (`waitid` with `WNOWAIT`). One that runs is waited for.
    pub fn child_has_ended(&mut self, pid: u32) {
        if let Counting::Child { end, .. } = &mut self.counting {
            *end = Counters::at_end_of(pid).ok().or(*end);
        }
    }

    /// Ends everything; of a child after it was waited for.
    ///
    /// `files` are those of the model in the order in which the run counts them, and
    /// become the numbers in the logs. Whatever lies in other files loses its place,
    /// and of a child the requests on other disks are dropped.
    pub fn finish(self, files: &Files) -> Result<SessionSummary, KernelError> {
        let Session {
            known,
            log_directory,
            tokens,
            faults,
            io,
            watch,
            cpu,
            counting,
            mut missing,
        } = self;
        // First, so that what ending costs is not counted.
        let mut counters = counting.counted();
        // All are ended before the first failure is reported.
        let faults = faults.map(FaultRecorder::finish);
        let io = io.map(BlockRecorder::finish);
        let cpu = cpu.map(CpuRecorder::finish);
        let watched = watch.map(Watch::finish);
        let (faults, io) = (faults.transpose()?, io.transpose()?);
        if let (Counting::ThisProcess { .. }, Some(faults)) = (&counting, &faults) {
            // The process's counter has those of our own reader, too.
            counters.major_faults = counters.major_faults.saturating_sub(faults.reader_major);
        }
        let watched = watched.transpose()?;
        let cpu = cpu.transpose()?;
        let numbered = rewrite::Numbered {
            provisional: known.files(),
            files,
            log_directory: &log_directory,
            is_child: matches!(known, Known::Found(_)),
        };
        let faults = faults.map(|faults| numbered.faults(faults)).transpose()?;
        let io = io.map(|io| numbered.io(io, &mut missing)).transpose()?;
        let mut samples = 0;
        if let Some(watched) = watched {
            // What a child has mapped need not be a model; about those the samples of
            // the end say the same.
            if !numbered.is_child {
                missing.extend(watched.missing);
            }
            samples = numbered.residency(tokens(), &mut missing)?;
        }
        let mut said = Vec::new();
        for one in missing {
            if !said.contains(&one) {
                said.push(one);
            }
        }
        Ok(SessionSummary {
            faults,
            io,
            samples,
            cpu,
            counters,
            missing: said,
        })
    }

    /// Adds what the parts that run say themselves.
    fn with_missing_parts(mut self) -> Session {
        let faults = self.faults.iter().flat_map(FaultRecorder::missing);
        let io = self.io.iter().flat_map(BlockRecorder::missing);
        let cpu = self.cpu.iter().flat_map(CpuRecorder::missing);
        self.missing.extend(faults.chain(io).chain(cpu).cloned());
        self
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("log_directory", &self.log_directory)
            .field("counting", &self.counting)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

impl Counting {
    fn counted(&self) -> Counters {
        match self {
            // It was readable at the begin.
            Counting::ThisProcess { begin } => {
                Counters::of_this_process().unwrap_or(*begin).since(begin)
            }
            Counting::Child {
                begin,
                end: Some(end),
                ..
            } => end.since(begin),
            // Somebody else has collected it: its numbers have gone into ours.
            Counting::Child {
                end: None,
                children_begin,
                ..
            } => Counters::of_waited_children().since(children_begin),
        }
    }
}

const FAULTS: &str = "page faults";
const REQUESTS: &str = "block requests";
const RESIDENCY: &str = "pages in memory";
const STACKS: &str = "what threads do on the processors";
const COUNTERS: &str = "counters of the process";

/// The value, or one more missing thing.
fn kept<T>(
    result: Result<T, KernelError>,
    what: &'static str,
    missing: &mut Vec<Missing>,
) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    missing.push(match error {
        KernelError::Missing(one) => one,
        error => Missing {
            what: what.to_owned(),
            fix: match &error {
                KernelError::Io { cause, .. } | KernelError::System { cause, .. }
                    if cause.kind() == io::ErrorKind::PermissionDenied =>
                {
                    "run with sudo"
                }
                _ => "the rest is recorded",
            }
            .to_owned(),
            why: error.to_string(),
        },
    });
    None
}
