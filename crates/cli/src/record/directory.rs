//! The run directory of a generation by the built-in engine: its log, and what is written
//! down when it has ended.

use std::{io, path::Path, process::ExitCode};

use anyhow::anyhow;
use engine::{
    EngineError,
    context::{ContextProps, FlashAttention},
    generate::{GenerateProps, Sampling},
    model::{Model, Repack},
    recording::Recording,
};
use indicatif::HumanBytes;
use launch::{attach::statistics, underneath};
use reader::summary::summarise;
use rundir::{
    Ending, Metadata, Run, RunDirectory,
    error::reason,
    metadata::{Fed, Sampling as RunSampling, Settings, Statistics, Versions},
};
use terminal::{
    signals,
    text::{count, grouped},
};
use trace::{
    format::Phase,
    read::streams,
    seal::{Sealed, seal},
    status::{State, StatusPage},
};

use super::{below::FaultsSoFar, screen::Screen};
use crate::tables::prepare;

/// When the tables of a run are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    Made,
    Later,
}

/// A run directory that goes again with this, unless something was computed: who records
/// nothing leaves nothing behind.
pub struct Started(Option<RunDirectory>);

impl Started {
    pub fn create(path: &Path, model: &gguf::Model) -> anyhow::Result<Started> {
        let command_line = std::env::args_os()
            .map(|a| a.to_string_lossy().into_owned())
            .collect();
        let metadata = Metadata::start(command_line, Some(model));
        let directory = RunDirectory::create(path, &metadata, Some(model))?;
        Ok(Started(Some(directory)))
    }

    pub fn directory(&mut self) -> &mut RunDirectory {
        self.0.as_mut().expect("kept until it is taken")
    }

    /// Something was computed.
    pub fn keep(mut self) -> RunDirectory {
        self.0.take().expect("kept until it is taken")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(RunDirectory::discard);
    }
}

/// What a run left, before its directory is closed.
pub struct Outcome {
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// By this signal.
    pub interrupted: Option<u8>,
    /// Which bound of the recording was reached.
    pub bound: Option<&'static str>,
    /// The process's major faults before the evaluations and after.
    pub evaluating: Option<(FaultsSoFar, FaultsSoFar)>,
    pub engine_error: Option<EngineError>,
    /// If the weights were fed.
    pub fed: Option<Fed>,
    pub closed: ClosedLog,
}

impl Outcome {
    /// Of a run whose recording thread will never go on; None when nothing was computed.
    pub fn cut_off(log_directory: &Path, why: &str) -> Option<Outcome> {
        let status = StatusPage::open(&log_directory.join("status")).ok()?;
        for stream in streams(log_directory).unwrap_or_default() {
            if let Ok(Sealed::CannotBe) | Err(_) = seal(log_directory, stream) {
                status.count_lost(0, 0);
            }
        }
        status.set_state(State::Complete);
        let summary = summarise(log_directory, &mut |_| {}).ok();
        let summary = summary.filter(|summary| summary.evaluations > 0)?;
        let lost = status.get();
        Some(Outcome {
            prompt_tokens: summary.tokens(Phase::Prompt),
            generated_tokens: summary.tokens(Phase::Generate),
            interrupted: None,
            bound: None,
            evaluating: None,
            engine_error: None,
            fed: None,
            closed: ClosedLog {
                error: Some(why.to_owned()),
                lost_evaluations: lost.evals_lost,
                lost_accesses: lost.accesses_lost,
            },
        })
    }
}

/// The end of a log.
pub struct ClosedLog {
    /// Why it could not grow, or not be closed.
    error: Option<String>,
    lost_evaluations: u64,
    lost_accesses: u64,
}

/// Starts the log of a run.
pub fn start_log(
    directory: &RunDirectory,
    model: &Model,
    screen: &Screen,
) -> anyhow::Result<Recording> {
    let print_line = screen.line_printer();
    let shown = directory.path().to_owned();
    let on_failure = move |error: &io::Error| {
        let reason = reason(error);
        print_line(&format!(
            "tensorscope: {}: the log cannot grow: {reason}; generation goes on",
            shown.display()
        ));
    };
    let log_directory = directory.log_directory();
    Recording::start(model, &log_directory, Box::new(on_failure)).map_err(|error| {
        anyhow!(
            "{}: cannot start the log: {}",
            log_directory.display(),
            reason(&error)
        )
    })
}

/// Closes the log whatever happened: what was computed is recorded.
pub fn close_log(recording: Recording) -> ClosedLog {
    let closed = |error, lost_evaluations, lost_accesses| ClosedLog {
        error,
        lost_evaluations,
        lost_accesses,
    };
    match recording.finish() {
        Ok(status) => {
            let error = match status.state {
                State::Failed(errno) => Some(reason(&io::Error::from_raw_os_error(errno))),
                _ => None,
            };
            closed(error, status.evals_lost, status.accesses_lost)
        }
        Err(error) => closed(Some(reason(&error)), 0, 0),
    }
}

/// The trace is safe by now: tables that cannot be made are worth a line, and can be made at
/// any time.
pub fn make_tables(run: &Path, tables: Tables) {
    if tables == Tables::Later {
        return;
    }
    let made = Run::open(run).map_err(Into::into);
    if let Err(error) = made.and_then(|run| prepare(&run)) {
        eprintln!(
            "tensorscope: the trace is complete, but its tables could not be made: {error:#}"
        );
    }
}

/// Sums the trace up, writes the final metadata and says where everything is.
pub fn finish(
    is_quiet: bool,
    tables: Tables,
    mut directory: RunDirectory,
    outcome: Outcome,
) -> anyhow::Result<ExitCode> {
    let ClosedLog {
        error: log_error,
        lost_evaluations,
        lost_accesses,
    } = outcome.closed;
    directory.metadata_mut().fed = outcome.fed;
    let path = directory.path().to_owned();
    let summary = match summarise(&directory.log_directory(), &mut |_| {}) {
        Ok(summary) => summary,
        Err(error) => {
            let why = log_error.unwrap_or_else(|| error.to_string());
            eprintln!("tensorscope: {}: there is no trace: {why}", path.display());
            return Ok(ExitCode::from(1));
        }
    };
    // A log that could not grow any more, but did not have to, lacks nothing.
    let log_error = log_error.filter(|_| lost_evaluations > 0 || !summary.closed);
    let log_bytes = directory.log_bytes();
    let stopped = outcome.interrupted.map(|_| "interrupted").or(outcome.bound);
    let ending = match (&outcome.engine_error, &log_error, stopped) {
        (Some(error), ..) => Ending::StoppedEarly(error.to_string()),
        (None, Some(reason), _) => Ending::StoppedEarly(reason.clone()),
        (None, None, Some(stopped)) => Ending::StoppedEarly(stopped.into()),
        (None, None, None) => Ending::Complete,
    };
    let mut lacks = Vec::new();
    lacks.extend(log_error);
    if lost_evaluations > 0 {
        lacks.push(format!("{} evaluations lost", grouped(lost_evaluations)));
    }
    if summary.flagged > 0 {
        lacks.push(format!("{} evaluations flagged", grouped(summary.flagged)));
    }
    let statistics = Statistics {
        prompt_tokens: outcome.prompt_tokens,
        generated_tokens: outcome.generated_tokens,
        lost_evaluations,
        lost_accesses,
        ..statistics(&summary)
    };
    let below = directory.metadata_mut().underneath.clone();
    if let Err(error) = directory.finish(ending, statistics) {
        lacks.push(error.to_string());
    }
    if !is_quiet || !lacks.is_empty() {
        let how = match (lacks.as_slice(), stopped) {
            ([], None) => String::new(),
            ([], Some(stopped)) => format!("{stopped}: "),
            (lacks, _) => format!("the trace is incomplete ({}): ", lacks.join("; ")),
        };
        eprintln!(
            "tensorscope: {how}{} prompt and {}, {}, {} lost, {} of log, in {}",
            grouped(outcome.prompt_tokens),
            count(outcome.generated_tokens, "generated token"),
            count(summary.accesses, "access"),
            grouped(lost_accesses),
            HumanBytes(log_bytes),
            path.display()
        );
    }
    if let Some(below) = below.filter(|_| !is_quiet) {
        underneath::say(&below);
    }
    if !is_quiet {
        for (op, steps) in &summary.unknown_ops() {
            eprintln!(
                "tensorscope: op {op} is unknown to the op table; recorded as whole views: {}",
                count(*steps, "execution")
            );
        }
    }
    if lacks.is_empty() {
        signals::release();
        make_tables(&path, tables);
    }
    if let Some(error) = outcome.engine_error {
        return Err(error.into());
    }
    Ok(match outcome.interrupted {
        _ if !lacks.is_empty() => ExitCode::from(1),
        Some(signal) => ExitCode::from(signals::exit_code(signal)),
        None => ExitCode::SUCCESS,
    })
}

pub fn describe(
    metadata: &mut Metadata,
    texts: &[String],
    context: &ContextProps,
    generate: &GenerateProps,
    repack: Repack,
) {
    metadata.prompts = texts.to_vec();
    metadata.settings = Some(Settings {
        threads: context.threads as u32,
        threads_batch: context.threads as u32,
        context_tokens: context.context as u32,
        batch_tokens: context.batch as u32,
        ubatch_tokens: context.micro_batch as u32,
        kv_type_k: context.key_type.name().into(),
        kv_type_v: context.value_type.name().into(),
        flash_attention: match context.flash_attention {
            FlashAttention::Auto => "auto",
            FlashAttention::On => "on",
            FlashAttention::Off => "off",
        }
        .into(),
        repack: repack == Repack::On,
        parallel: context.sequences as u32,
        kv_unified: true,
        mmap: true,
        generate_tokens: Some(generate.tokens as u64),
    });
    metadata.sampling = match generate.sampling {
        Sampling::Greedy => RunSampling::Greedy,
        Sampling::Random {
            temperature,
            top_k,
            top_p,
            seed,
        } => RunSampling::Random {
            temperature,
            top_k: u32::try_from(top_k).ok(),
            top_p: Some(top_p),
            seed: u64::from(seed),
        },
    };
    let versions = engine::versions();
    metadata.versions = Versions {
        llama_cpp: Some(versions.llama),
        ggml: Some(versions.ggml),
        llama_cpp_sys_2: Some(versions.crate_version.into()),
        kernels: versions.kernels.map(str::to_owned),
    };
}
