//! `tensorscope record`: generate with the built-in engine, every access recorded;
//! with a program behind `--` see [`launch::attach`].

mod below;
mod bounds;
pub(crate) mod screen;

use std::{
    ffi::OsString,
    io,
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::anyhow;
use capture::BatchToken;
use engine::{
    EngineError,
    context::{Context, ContextProps, FlashAttention},
    generate::{GenerateProps, Observer, Sampling, generate},
    loading::Loading,
    model::{Model, Repack},
    recording::Recording,
};
use indicatif::HumanBytes;
use kernelio::pressure::MemoryLimit;
use launch::{
    attach::{self, AttachProps, Purpose, Repacking, Verbosity, statistics},
    underneath::{self, UnderneathArgs},
};
use reader::summary::summarise;
use rundir::{
    Ending, Metadata, Run, RunDirectory,
    error::reason,
    metadata::{Sampling as RunSampling, Settings, Statistics, Underneath, Versions},
};
use trace::{format::Phase, status::State};

use self::{
    below::{FaultsSoFar, faults_so_far, watch},
    bounds::Bounds,
    screen::{Bar, Screen},
};
use terminal::{progress, signals, text::grouped};

use crate::{
    engine_args::{EngineArgs, OF_ENGINE},
    tables::prepare,
    view::Live,
};

/// Record every tensor access of an inference
///
/// Generates text with the built-in llama.cpp and records each graph evaluation, each
/// executed node and each byte range that it touches. The text goes to standard output,
/// the trace into a run directory, the argument of every later command.
///
/// With a program behind `--` that program is run and whatever llama.cpp computes in it,
/// and in the programs that it starts, is recorded: llama-server, llama-cli, Python, Node.
/// Nothing has to be rebuilt; its llama.cpp must be a shared library (2024 or later). Its
/// input, output, signals and exit code are its own.
///
/// Ctrl-C (or SIGTERM) ends the run after the evaluation that is going on; the trace is
/// complete up to there. A second Ctrl-C kills, which loses at most that evaluation. A full
/// disk or a removed directory ends the recording, not the generation.
///
/// Exit code 0 when all is recorded, 1 when the trace lacks something, 2 for bad input,
/// 128 + the signal's number when interrupted (130 for Ctrl-C, 143 for SIGTERM). With a
/// program: the program's, or 2 when it cannot be recorded.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope record -m model.gguf -p 'Once upon a time' -n 64
  tensorscope record -m model.gguf -f prompt.txt -n 200 -t 8 -o my-run
  tensorscope record -m moe.gguf -p 'To be' -p 'Now is' -n 32      # two sequences
  echo 'Hello' | tensorscope record -m model.gguf -f - --temp 0.8 --seed 7
  tensorscope record -m big.gguf -p Hi -n 32 --memory 4G --cold --faults --io --residency
  tensorscope record -- llama-server -m model.gguf --port 8080    # until Ctrl-C
  tensorscope record -o my-run --tokens 500 -- python3 chat.py
  tensorscope record --duration 60s --no-repack -- node app.mjs")]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// Run directory to create [default: tensorscope-run-DATE-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Let llama.cpp copy weights into its own order (faster for some types; what is read
    /// then no longer lies in the file, and the trace says so)
    #[arg(long, conflicts_with = "program")]
    repack: bool,

    /// Keep weights in the file's order in a PROGRAM that would copy them into its own, so
    /// that what is read lies in the file (the built-in engine does so without being asked)
    #[arg(long, conflicts_with = "repack")]
    no_repack: bool,

    /// Record no longer than this from the first evaluation on: 90s, 5m, 1h. A PROGRAM
    /// runs on without being recorded; the built-in engine ends
    #[arg(long, value_name = "TIME", value_parser = terminal::text::duration)]
    duration: Option<Duration>,

    /// Record no more than this much log: 500M, 2G; then as with --duration
    #[arg(long, value_name = "SIZE", value_parser = terminal::text::size)]
    max_size: Option<u64>,

    #[command(flatten)]
    underneath: UnderneathArgs,

    /// Keep the raw log only: `sql`, `report` and `view` prepare what they need later
    #[arg(long)]
    no_tables: bool,

    /// Show the run in the browser while it grows (as `view` does); stays until Ctrl-C
    #[arg(long, conflicts_with = "program")]
    live: bool,

    /// Port of --live on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "N", requires = "live")]
    port: Option<u16>,

    /// Print no progress and no closing line
    #[arg(short, long)]
    quiet: bool,

    /// Program to run and record, with its arguments
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = OF_ENGINE)]
    program: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !args.program.is_empty() {
        return program(args);
    }
    let texts = args.engine.texts()?;
    if args.quiet {
        progress::be_quiet();
    }
    // The directory first: a bad path must not wait for a model to load.
    let path = args
        .output
        .clone()
        .unwrap_or_else(RunDirectory::default_path);
    let model_file = gguf::Model::open(args.engine.model())?;
    let command_line = std::env::args_os()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let metadata = Metadata::start(command_line, Some(&model_file));
    let mut limit = args.underneath.limit()?;
    let mut directory = RunDirectory::create(&path, &metadata, Some(&model_file))?;
    let pressure =
        underneath::make_cold(&args.underneath.cold_files(&model_file)).and_then(|dropped_bytes| {
            limit.as_mut().map(MemoryLimit::enter).transpose()?;
            Ok(dropped_bytes)
        });
    let dropped_bytes = match pressure {
        Ok(dropped_bytes) => dropped_bytes,
        Err(error) => {
            directory.discard();
            return Err(error);
        }
    };
    let files: Vec<PathBuf> = model_file.files().iter().map(|f| f.path.clone()).collect();
    drop(model_file);
    signals::catch();
    let live = match args.live.then(|| Live::start(&path, args.port)).transpose() {
        Ok(live) => live,
        Err(error) => {
            directory.discard();
            return Err(error);
        }
    };
    let tokens = Arc::new(AtomicU64::new(0));
    let session = match watch(&args.underneath, &files, &directory, &tokens) {
        Ok(session) => session,
        Err(error) => {
            directory.discard();
            return Err(error);
        }
    };
    match record(&args, texts, &mut directory, &tokens) {
        Ok(outcome) => {
            let usage = limit.as_ref().and_then(|limit| limit.usage().ok());
            // Gone before tables are made, which need memory of their own.
            drop(limit);
            let below = underneath::finish(session, &files, usage, dropped_bytes);
            directory.metadata_mut().underneath = below.map(|below| match &outcome.evaluating {
                Some((begin, end)) => Underneath {
                    evaluating_since_nanos: Some(begin.nanos),
                    evaluating_until_nanos: Some(end.nanos),
                    evaluating_major_faults: Some(end.major.saturating_sub(begin.major)),
                    recorder_threads: end.own_threads.clone(),
                    ..below
                },
                None => below,
            });
            let finished = finish(&args, directory, outcome);
            live.into_iter().for_each(Live::finish);
            finished
        }
        Err(error) => {
            // Nothing was computed: leave nothing behind.
            directory.discard();
            Err(error)
        }
    }
}

/// The program's exit code stands whatever becomes of the tables.
fn program(args: Args) -> anyhow::Result<ExitCode> {
    if args.quiet {
        progress::be_quiet();
    }
    let attached = attach::run(&AttachProps {
        program: args.program,
        output: args.output,
        duration: args.duration,
        max_log_bytes: args.max_size,
        max_tokens: args.engine.tokens.map(u64::from),
        repacking: match args.no_repack {
            true => Repacking::Prevented,
            false => Repacking::AsTheProgramSays,
        },
        purpose: Purpose::Record,
        underneath: args.underneath,
        verbosity: match args.quiet {
            true => Verbosity::Quiet,
            false => Verbosity::Normal,
        },
    })?;
    if let Some(run) = attached.run.filter(|_| !args.no_tables) {
        let made = Run::open(&run).map_err(Into::into);
        if let Err(error) = made.and_then(|run| prepare(&run)) {
            eprintln!(
                "tensorscope: the trace is complete, but its tables could not be made: {error:#}"
            );
        }
    }
    Ok(ExitCode::from(attached.exit_code))
}

/// What a run left, before its directory is closed.
struct Outcome {
    prompt_tokens: u64,
    generated_tokens: u64,
    /// By this signal.
    interrupted: Option<u8>,
    /// Which bound of the recording was reached.
    bound: Option<&'static str>,
    /// The process's major faults before the evaluations and after.
    evaluating: Option<(FaultsSoFar, FaultsSoFar)>,
    engine_error: Option<EngineError>,
    /// Why the log could not grow, or not be closed.
    log_error: Option<String>,
    lost_evaluations: u64,
    lost_accesses: u64,
}

/// Fails only before the first evaluation; what goes wrong later is in the outcome.
fn record(
    args: &Args,
    texts: Vec<String>,
    directory: &mut RunDirectory,
    tokens: &AtomicU64,
) -> anyhow::Result<Outcome> {
    let repack = if args.repack { Repack::On } else { Repack::Off };
    let prepared = args.engine.prepare(texts, repack, Loading::AsFound)?;
    describe(
        directory.metadata_mut(),
        &prepared.texts,
        &prepared.context,
        &prepared.generate,
        repack,
    );
    directory.update()?;
    let mut context = Context::new(&prepared.model, prepared.context.clone())?;
    let sequences = prepared.generate.prompts.len();
    let bar = if args.quiet {
        Bar::Never
    } else {
        Bar::OnTerminals
    };
    let screen = Screen::new(
        (prepared.generate.tokens * sequences) as u64,
        "recording",
        bar,
    );
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
    let recording = Recording::start(&prepared.model, &log_directory, Box::new(on_failure))
        .map_err(|error| {
            anyhow!(
                "{}: cannot start the log: {}",
                log_directory.display(),
                reason(&error)
            )
        })?;
    let mut generation = Generation {
        model: &prepared.model,
        recording,
        tokens,
        phase: Phase::Prompt,
        screen,
        texts: if sequences == 1 {
            Texts::Streamed
        } else {
            Texts::Kept(vec![Vec::new(); sequences])
        },
        generated_tokens: 0,
        bounds: Bounds {
            end: args.duration.map(|duration| Instant::now() + duration),
            log_bytes: args.max_size,
            reached: None,
        },
    };
    let begin = faults_so_far();
    let generated = generate(
        &prepared.model,
        &mut context,
        &prepared.generate,
        &mut generation,
    );
    let evaluating = begin.zip(faults_so_far());
    let Generation {
        recording,
        mut screen,
        texts,
        generated_tokens,
        bounds,
        ..
    } = generation;
    screen.end();
    match texts {
        Texts::Streamed => screen.write(b"\n"),
        Texts::Kept(texts) => {
            for (sequence, text) in texts.iter().enumerate() {
                screen.write(&[format!("[{sequence}] ").as_bytes(), text, b"\n"].concat());
            }
        }
    }
    // The log is closed whatever happened: what was computed is recorded.
    let (log_error, lost_evaluations, lost_accesses) = match recording.finish() {
        Ok(status) => {
            let error = match status.state {
                State::Failed(errno) => Some(reason(&io::Error::from_raw_os_error(errno))),
                _ => None,
            };
            (error, status.evals_lost, status.accesses_lost)
        }
        Err(error) => (Some(reason(&error)), 0, 0),
    };
    Ok(Outcome {
        prompt_tokens: prepared
            .generate
            .prompts
            .iter()
            .map(Vec::len)
            .sum::<usize>() as u64,
        generated_tokens,
        interrupted: signals::asked().filter(|_| generated.as_ref().is_ok_and(|g| g.interrupted)),
        bound: bounds.reached,
        evaluating,
        engine_error: generated.err(),
        log_error,
        lost_evaluations,
        lost_accesses,
    })
}

/// Sums the trace up, writes the final metadata and says where everything is.
fn finish(args: &Args, mut directory: RunDirectory, outcome: Outcome) -> anyhow::Result<ExitCode> {
    let path = directory.path().to_owned();
    let summary = match summarise(&directory.log_directory(), &mut |_| {}) {
        Ok(summary) => summary,
        Err(error) => {
            let why = outcome.log_error.unwrap_or_else(|| error.to_string());
            eprintln!("tensorscope: {}: there is no trace: {why}", path.display());
            return Ok(ExitCode::from(1));
        }
    };
    // A log that could not grow any more, but did not have to, lacks nothing.
    let log_error = outcome
        .log_error
        .filter(|_| outcome.lost_evaluations > 0 || !summary.closed);
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
    if outcome.lost_evaluations > 0 {
        lacks.push(format!(
            "{} evaluations lost",
            grouped(outcome.lost_evaluations)
        ));
    }
    if summary.flagged > 0 {
        lacks.push(format!("{} evaluations flagged", grouped(summary.flagged)));
    }
    let statistics = Statistics {
        prompt_tokens: outcome.prompt_tokens,
        generated_tokens: outcome.generated_tokens,
        lost_evaluations: outcome.lost_evaluations,
        lost_accesses: outcome.lost_accesses,
        ..statistics(&summary)
    };
    let below = directory.metadata_mut().underneath.clone();
    if let Err(error) = directory.finish(ending, statistics) {
        lacks.push(error.to_string());
    }
    if !args.quiet || !lacks.is_empty() {
        let how = match (lacks.as_slice(), stopped) {
            ([], None) => String::new(),
            ([], Some(stopped)) => format!("{stopped}: "),
            (lacks, _) => format!("the trace is incomplete ({}): ", lacks.join("; ")),
        };
        eprintln!(
            "tensorscope: {how}{} prompt and {} generated tokens, {} accesses, {} lost, {} of log, in {}",
            grouped(outcome.prompt_tokens),
            grouped(outcome.generated_tokens),
            grouped(summary.accesses),
            grouped(outcome.lost_accesses),
            HumanBytes(log_bytes),
            path.display()
        );
    }
    if let Some(below) = below.filter(|_| !args.quiet) {
        eprintln!("tensorscope: {}", underneath::sentence(&below));
    }
    if !args.quiet {
        for (op, steps) in &summary.unknown_ops() {
            eprintln!(
                "tensorscope: op {op} is unknown to the op table; {steps} executions are recorded as whole views"
            );
        }
    }
    // The trace is safe by now: tables that cannot be made are worth a line, and
    // can be made at any time.
    if !args.no_tables && lacks.is_empty() {
        signals::release();
        let made = Run::open(&path)
            .map_err(Into::into)
            .and_then(|run| prepare(&run));
        if let Err(error) = made {
            eprintln!(
                "tensorscope: the trace is complete, but its tables could not be made: {error:#}"
            );
        }
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

fn describe(
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
    };
}

/// What becomes of the text.
enum Texts {
    Streamed,
    /// By sequence: side by side they cannot be read.
    Kept(Vec<Vec<u8>>),
}

struct Generation<'a> {
    model: &'a Model,
    recording: Recording,
    /// Evaluated so far, prompts included.
    tokens: &'a AtomicU64,
    phase: Phase,
    screen: Screen,
    texts: Texts,
    generated_tokens: u64,
    bounds: Bounds,
}

impl Observer for Generation<'_> {
    fn before(&mut self, phase: Phase, _: &[BatchToken]) -> ControlFlow<()> {
        self.phase = phase;
        self.screen.begin();
        if signals::asked().is_some() || self.bounds.check(self.recording.log_bytes()).is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        self.tokens.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.recording
            .decode(self.model, context, self.phase, batch, wants_logits, &mut [])
    }

    fn token(&mut self, sequence: usize, token: i32) {
        let text = self.model.token_text(token);
        match &mut self.texts {
            Texts::Streamed => self.screen.write(&text),
            Texts::Kept(texts) => texts[sequence].extend(text),
        }
        self.generated_tokens += 1;
        self.screen.count_token(format!(
            "{} accesses, {} log",
            grouped(self.recording.counts().accesses),
            HumanBytes(self.recording.log_bytes())
        ));
    }
}
