//! `tensorscope record -- PROGRAM ARGS…`: record llama.cpp inside a program that
//! nobody rebuilt.
//!
//! 1. The program's file is looked at: some cannot be recorded ([`crate::program`]).
//! 2. The run directory is made, without a model: nobody knows it yet.
//! 3. The program runs with the preload library in it (crate `agent`), and so do
//!    the programs that it starts. Each process that computes writes streams of
//!    its own into the log folder, and a report (`process-NNNN.txt`).
//! 4. When it has ended, streams that were not closed are, and the metadata are
//!    completed from what the processes reported.
//!
//! Exit code, standard input, output and error are the program's; our own lines
//! go to standard error and start with `tensorscope:`.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use gguf::Vocabulary;
use indicatif::HumanBytes;
use kernelio::session::{Session, Wish};
use reader::{
    Log, Seen, Visitor,
    summary::{Summary, summarise},
};
use rundir::{
    Ending, Metadata, RunDirectory,
    error::reason,
    metadata::{Statistics, Versions},
};
use support::proc;
use terminal::text::{count, grouped};
use trace::{
    control::{Bounds, Control, Stop},
    format::Phase,
    read::{ReadError, streams},
    seal::{Sealed, seal},
    status::{State, StatusPage},
};

use crate::{
    child,
    feeding::{self, FeedProps},
    gpu::{self, GpuTimes},
    library_file, needs,
    program::{self, preload, typed, why},
    underneath::{self, UnderneathArgs},
};

/// Why a recording ended before its program.
pub const DURATION_OVER: &str = "the duration that was asked for is over";
pub const LOG_FULL: &str = "the log reached its largest size";
const TOKENS_RECORDED: &str = "the tokens that were asked for are recorded";

/// What is to be recorded, and how.
pub struct AttachProps {
    /// Program and arguments; not empty.
    pub program: Vec<OsString>,
    pub output: Option<PathBuf>,
    /// From the first evaluation on.
    pub duration: Option<Duration>,
    pub max_log_bytes: Option<u64>,
    pub max_tokens: Option<u64>,
    pub repacking: Repacking,
    pub purpose: Purpose,
    pub underneath: UnderneathArgs,
    /// Its weights are fed too; the memory limit is that of the feeding then.
    pub feed: Option<FeedProps>,
    pub gpu_times: GpuTimes,
    pub verbosity: Verbosity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Record,
    /// Each page that is touched is noted, beside the trace.
    Audit,
    /// Only every third evaluation is recorded, and all are timed.
    Measure,
}

/// Whether llama.cpp may copy weights into an order of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repacking {
    AsTheProgramSays,
    Prevented,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    Normal,
    Quiet,
}

/// What came of it.
pub struct Attached {
    /// The program's.
    pub exit_code: u8,
    /// The run directory, when nothing of the trace is missing.
    pub run: Option<PathBuf>,
}

pub fn run(props: &AttachProps) -> anyhow::Result<Attached> {
    let name = props.program[0].to_string_lossy().into_owned();
    let program = program::find(&props.program[0])
        .map_err(|error| anyhow!("{name}: cannot run it: {}", why(&error)))?;
    if let Some(refusal) = program::refusal(&program) {
        return Err(anyhow!("{name}: {refusal}"));
    }
    let library = library_file::path().context("no program can be recorded")?;
    let cold_files = props.underneath.cold_files_of_program(&props.program)?;
    let fed = props.feed.as_ref().map(feeding::prepare).transpose()?;
    let mut limit = match &fed {
        Some(_) => None,
        None => props.underneath.limit()?,
    };
    let path = props
        .output
        .clone()
        .unwrap_or_else(RunDirectory::default_path);
    let command_line = std::env::args_os()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let metadata = Metadata::start(command_line, None);
    let directory = RunDirectory::create(&path, &metadata, None)?;
    let started = Shared::create(&directory, props);
    let shared = match started {
        Ok(shared) => shared,
        Err(error) => {
            directory.discard();
            return Err(error);
        }
    };
    let mut command = command(props, &program, &library, &shared);
    let started = underneath::make_cold(&cold_files).and_then(|dropped_bytes| {
        if let Some(fed) = &fed {
            fed.tell(&mut command)?;
            limit = fed.confine(&mut command);
        } else if let Some(limit) = &limit {
            limit.confine(&mut command)?;
        }
        Ok(dropped_bytes)
    });
    let dropped_bytes = match started {
        Ok(dropped_bytes) => dropped_bytes,
        Err(error) => {
            directory.discard();
            return Err(error);
        }
    };
    let mut watch = Watch {
        wish: props.underneath.wish(),
        log_directory: shared.log_directory.clone(),
        session: None,
    };
    match child::run(&mut command, &mut watch) {
        Ok(status) => {
            let usage = limit.as_ref().and_then(|limit| limit.usage().ok());
            // Gone before tables are made, which need memory of their own.
            drop(limit);
            let mut directory = directory;
            let lack = needs::lack_of_memory(&props.program, usage.as_ref());
            directory.metadata_mut().fed = fed.and_then(|fed| fed.finish(status));
            directory.metadata_mut().underneath = underneath::finish(
                watch.session,
                &model_files(&shared.log_directory),
                usage,
                dropped_bytes,
            );
            Ok(Attached {
                run: finish(props, &name, directory, &shared, status, lack),
                exit_code: child::exit_code(status),
            })
        }
        Err(error) => {
            drop(shared);
            directory.discard();
            Err(anyhow!("{name}: cannot run it: {}", why(&error)))
        }
    }
}

/// The program, watched from below when that is wished.
struct Watch {
    wish: Option<Wish>,
    log_directory: PathBuf,
    session: Option<Session>,
}

impl child::Start for Watch {
    fn spawn(&mut self, command: &mut Command) -> io::Result<Child> {
        let Some(wish) = &self.wish else {
            return command.spawn();
        };
        let control = Control::open(&self.log_directory)?;
        let tokens = Arc::new(move || control.tokens());
        let (child, session) = Session::of_child(wish, command, &self.log_directory, tokens)
            .map_err(io::Error::other)?;
        underneath::say_missing(&session);
        self.session = Some(session);
        Ok(child)
    }

    fn wait(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        match &mut self.session {
            Some(session) => session.wait(child),
            None => child.wait(),
        }
    }
}

/// What the launcher and the recorded processes share.
struct Shared {
    log_directory: PathBuf,
    status: StatusPage,
    control: Control,
}

impl Shared {
    fn create(directory: &RunDirectory, props: &AttachProps) -> anyhow::Result<Shared> {
        let log_directory = fs::canonicalize(directory.log_directory())?;
        let bounds = Bounds {
            duration_nanos: props
                .duration
                .map(|d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
            log_bytes: props.max_log_bytes,
            tokens: props.max_tokens,
        };
        let start = || {
            let status = StatusPage::create(&log_directory.join("status"))?;
            let control = Control::create(&log_directory, bounds)?;
            Ok((status, control))
        };
        let (status, control) = start().map_err(|error: std::io::Error| {
            let shown = log_directory.display();
            anyhow!("{shown}: cannot start the log: {}", reason(&error))
        })?;
        Ok(Shared {
            log_directory,
            status,
            control,
        })
    }
}

fn command(props: &AttachProps, program: &Path, library: &Path, shared: &Shared) -> Command {
    let mut command = typed(&props.program, program);
    preload(&mut command, library);
    command.env_remove("TENSORSCOPE_FEED");
    command.env("TENSORSCOPE_LOG", &shared.log_directory);
    gpu::prepare(&mut command, program, props.gpu_times);
    match props.repacking {
        Repacking::Prevented => command.env("TENSORSCOPE_NO_REPACK", "1"),
        Repacking::AsTheProgramSays => command.env_remove("TENSORSCOPE_NO_REPACK"),
    };
    for (purpose, variable) in [
        (Purpose::Audit, "TENSORSCOPE_AUDIT"),
        (Purpose::Measure, "TENSORSCOPE_MEASURE"),
    ] {
        match props.purpose == purpose {
            true => command.env(variable, "1"),
            false => command.env_remove(variable),
        };
    }
    command
}

/// Completes the run and says how it went. The program's exit code stands
/// whatever happens here. The run directory, when nothing is missing.
fn finish(
    props: &AttachProps,
    name: &str,
    mut directory: RunDirectory,
    shared: &Shared,
    status: ExitStatus,
    lack_of_memory: Option<String>,
) -> Option<PathBuf> {
    let path = directory.path().to_owned();
    if !shared.log_directory.exists() {
        eprintln!(
            "tensorscope: {}: there is no trace: the directory was removed while {name} ran",
            path.display()
        );
        return None;
    }
    let reports = Report::read_all(&shared.log_directory);
    let still_running: Vec<u32> = reports
        .iter()
        .filter_map(|report| report.pid)
        .filter(|&pid| is_recording(pid, &shared.log_directory))
        .collect();
    if still_running.is_empty() {
        for stream in streams(&shared.log_directory).unwrap_or_default() {
            if let Ok(Sealed::CannotBe) | Err(_) = seal(&shared.log_directory, stream) {
                shared.status.count_lost(0, 0);
            }
        }
    }
    let say_nothing_recorded = || {
        let why = truncated(&shared.log_directory, status).or(lack_of_memory.clone());
        say_nothing_recorded(name, &reports, status, why);
    };
    let Ok(summary) = summarise(&shared.log_directory, &mut |_| {}) else {
        say_nothing_recorded();
        directory.discard();
        return None;
    };
    if summary.evaluations == 0 {
        say_nothing_recorded();
        directory.discard();
        return None;
    }
    let truncated = truncated(&shared.log_directory, status);
    let mut lacks: Vec<String> = truncated.iter().cloned().collect();
    lacks.extend(reports.iter().filter_map(|report| report.off.clone()));
    if let Err(error) = describe(&mut directory, &shared.log_directory, &reports)
        && truncated.is_none()
    {
        lacks.push(format!("{error:#}"));
    }
    let how = shared.status.get();
    if let State::Failed(errno) = how.state {
        lacks.push(reason(&std::io::Error::from_raw_os_error(errno)));
    }
    if how.evals_lost > 0 {
        lacks.push(format!("{} lost", count(how.evals_lost, "evaluation")));
    }
    if summary.flagged > 0 {
        let mut flagged = format!("{} flagged", count(summary.flagged, "evaluation"));
        if let Some(why) = reports.iter().find_map(|r| r.kernels_differ.as_ref()) {
            flagged += &format!(", CUPTI saw other kernels: {why}");
        }
        lacks.push(flagged);
    }
    lacks.extend(
        still_running
            .iter()
            .map(|pid| format!("process {pid} was still running when {name} ended")),
    );
    let stopped = shared.control.stop().map(|stop| match stop {
        Stop::Duration => DURATION_OVER,
        Stop::LogBytes => LOG_FULL,
        Stop::Tokens => TOKENS_RECORDED,
    });
    let ending = match (lacks.first(), stopped) {
        (Some(lack), _) => Ending::StoppedEarly(lack.clone()),
        (None, Some(stopped)) => Ending::StoppedEarly(stopped.to_owned()),
        (None, None) => Ending::Complete,
    };
    if still_running.is_empty() {
        shared.status.set_state(State::Complete);
    }
    let (prompt_tokens, generated_tokens) = tokens(&summary);
    let statistics = Statistics {
        prompt_tokens,
        generated_tokens,
        lost_evaluations: how.evals_lost,
        lost_accesses: how.accesses_lost,
        ..statistics(&summary)
    };
    let log_bytes = directory.log_bytes();
    let below = directory.metadata_mut().underneath.clone();
    if let Err(error) = directory.finish(ending, statistics) {
        lacks.push(error.to_string());
    }
    if props.verbosity == Verbosity::Normal || !lacks.is_empty() {
        let how = match (lacks.as_slice(), stopped) {
            ([], None) => String::new(),
            ([], Some(stopped)) => format!("{stopped}: "),
            (lacks, _) => format!("the trace is incomplete ({}): ", lacks.join("; ")),
        };
        let devices = summary.devices();
        let devices = devices.map_or(String::new(), |devices| format!(" ({devices})"));
        eprintln!(
            "tensorscope: {how}{} prompt and {} in {}{}, {}, {} of log, in {}",
            grouped(prompt_tokens),
            count(generated_tokens, "generated token"),
            count(summary.evaluations, "evaluation"),
            devices,
            count(summary.accesses, "access"),
            HumanBytes(log_bytes),
            path.display()
        );
        if let Some(below) = below.filter(|_| props.verbosity == Verbosity::Normal) {
            underneath::say(&below);
        }
        for report in reports
            .iter()
            .filter(|_| props.verbosity == Verbosity::Normal)
        {
            report.gpu.say(Path::new(&props.program[0]));
        }
    }
    if let Some(lack) = lack_of_memory {
        // Also when quiet: the program cannot say why it ended.
        eprintln!("tensorscope: {name}: {lack}");
    }
    lacks.is_empty().then_some(path)
}

fn say_nothing_recorded(name: &str, reports: &[Report], status: ExitStatus, why: Option<String>) {
    // A process that recorded nothing has said why itself.
    if reports.iter().any(|report| report.off.is_some()) {
        return;
    }
    if !status.success() {
        let failure = why.unwrap_or_else(|| child::failure(status));
        eprintln!("tensorscope: {name}: no trace was written: {failure}");
        return;
    }
    eprintln!(
        "tensorscope: {name}: no trace was written: no llama.cpp (2024 or later) computed a graph\n  \
         try: `tensorscope doctor`; docs/attaching.md lists what can be recorded"
    );
}

/// Puts into the metadata what the processes found out.
fn describe(
    directory: &mut RunDirectory,
    log_directory: &Path,
    reports: &[Report],
) -> anyhow::Result<()> {
    let first = |get: fn(&Report) -> &Option<String>| reports.iter().find_map(|r| get(r).clone());
    directory.metadata_mut().versions = Versions {
        llama_cpp: first(|r| &r.llama),
        ggml: first(|r| &r.ggml),
        ..Versions::default()
    };
    let files = model_files(log_directory);
    let mut models: Vec<gguf::Model> = Vec::new();
    for file in &files {
        let is_known = models
            .iter()
            .any(|m| m.files().iter().any(|f| same_file(&f.path, file)));
        if !is_known {
            models.push(gguf::Model::open(file)?);
        }
    }
    directory.add_models(&models, &files)?;
    name_tokens(log_directory, &models)
}

/// Adds the texts of the tokens that occurred, unless models disagree about them:
/// an evaluation does not say which vocabulary its tokens are of.
fn name_tokens(log_directory: &Path, models: &[gguf::Model]) -> anyhow::Result<()> {
    let mut vocabularies = Vec::new();
    for model in models {
        vocabularies.extend(Vocabulary::of(model)?);
    }
    let mut ids = TokenIds::default();
    Log::new(log_directory).walk(&mut ids)?;
    let named = ids.0.into_iter().filter_map(|id| {
        let mut texts = vocabularies.iter().map(|v| v.text(id));
        let first = texts.next()??;
        let agree = texts.all(|text| text.as_ref() == Some(&first));
        agree.then_some((id, first))
    });
    trace::tokens::write(log_directory, named)?;
    Ok(())
}

/// Those that occurred.
#[derive(Default)]
struct TokenIds(BTreeSet<u32>);

impl Visitor for TokenIds {
    type Error = ReadError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), ReadError> {
        let ids = seen.token_ids().iter();
        self.0.extend(ids.filter_map(|&id| u32::try_from(id).ok()));
        Ok(())
    }
}

/// The files that the recorded programs loaded, as the trace counts them.
pub fn model_files(log_directory: &Path) -> Vec<PathBuf> {
    let text = fs::read(log_directory.join(rundir::MODELS)).unwrap_or_default();
    text.split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| PathBuf::from(OsStr::from_bytes(line)))
        .collect()
}

/// Why a program died of SIGBUS, if a file that it had loaded is shorter by now.
fn truncated(log_directory: &Path, status: ExitStatus) -> Option<String> {
    if child::signal(status) != Some(libc::SIGBUS) {
        return None;
    }
    let sizes = fs::read_to_string(log_directory.join(rundir::MODEL_SIZES)).unwrap_or_default();
    let sizes = sizes.lines().map(|line| line.parse().unwrap_or(0));
    let mut files = model_files(log_directory).into_iter().zip(sizes);
    files.find_map(|(file, before): (PathBuf, u64)| {
        let now = fs::metadata(&file).map_or(0, |about| about.len());
        (now < before).then(|| {
            format!(
                "killed by SIGBUS: model file {} was truncated from {before} to {now} bytes \
                 while the program ran",
                file.display()
            )
        })
    })
}

fn same_file(a: &Path, b: &Path) -> bool {
    a == b || fs::canonicalize(a).is_ok_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b))
}

/// As far as the log itself tells them.
pub fn statistics(summary: &Summary) -> Statistics {
    let rate = |phase: Phase| {
        let sum = summary.by_phase.get(phase.name())?;
        sum.tokens_per_second()
    };
    Statistics {
        evaluations: summary.evaluations,
        steps: summary.steps,
        accesses: summary.accesses,
        templates: summary.templates,
        tick_mismatches: summary.flagged,
        unknown_ops: summary.unknown_ops(),
        duration_nanos: summary.last_nanos.saturating_sub(summary.first_nanos),
        tokens_per_second_prompt: rate(Phase::Prompt),
        tokens_per_second_generate: rate(Phase::Generate),
        ..Statistics::default()
    }
}

fn tokens(summary: &Summary) -> (u64, u64) {
    (
        summary.tokens(Phase::Prompt),
        summary.tokens(Phase::Generate) + summary.tokens(Phase::Unknown),
    )
}

/// What one process said about itself (crate `agent`, `process.rs`).
#[derive(Default)]
struct Report {
    pid: Option<u32>,
    ggml: Option<String>,
    llama: Option<String>,
    /// Why it switched recording off.
    off: Option<String>,
    gpu: gpu::Said,
    /// How those that were measured differ from those that are known.
    kernels_differ: Option<String>,
}

impl Report {
    fn read_all(log_directory: &Path) -> Vec<Report> {
        let mut paths: Vec<PathBuf> = fs::read_dir(log_directory)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                let name = path.file_name().map(OsStr::as_bytes);
                name.is_some_and(|name| name.starts_with(rundir::PROCESS.as_bytes()))
            })
            .collect();
        paths.sort();
        paths.iter().map(|path| Report::read(path)).collect()
    }

    fn read(path: &Path) -> Report {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut report = Report::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            match key {
                "pid" => report.pid = value.parse().ok(),
                "ggml" => report.ggml = Some(value.to_owned()),
                "llama" => report.llama = Some(value.to_owned()),
                "off" => report.off = Some(value.to_owned()),
                "kernels_differ" => report.kernels_differ = Some(value.to_owned()),
                _ => report.gpu.take(key, value),
            }
        }
        report
    }
}

/// Whether the process still has the run's status page mapped.
fn is_recording(pid: u32, log_directory: &Path) -> bool {
    let status = log_directory.join("status");
    let maps = proc::maps(pid).unwrap_or_default();
    proc::mappings(&maps).any(|mapping| mapping.path == status.as_os_str().as_bytes())
}
