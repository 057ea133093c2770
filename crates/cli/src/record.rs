//! `tensorscope record`: generate with the built-in engine, every access recorded.

use std::{
    io::Write,
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context as _;
use capture::BatchToken;
use engine::{
    EngineError,
    context::{Context, ContextProps, FlashAttention},
    generate::{Generated, GenerateProps, Observer, Sampling, generate},
    model::{Model, Repack},
    recording::Recording,
};
use indicatif::{HumanBytes, ProgressBar};
use rundir::{
    Ending, Metadata, RunDirectory,
    metadata::{Sampling as RunSampling, Settings, Statistics, Versions},
};
use trace::{format::Phase, status::State, summary::summarise};

use crate::{engine_args::EngineArgs, progress, signals, text::grouped};

/// Record every tensor access of an inference
///
/// Generates text with the built-in llama.cpp and records each graph evaluation, each
/// executed node and each byte range that it touches. The text goes to standard output,
/// the trace into a run directory, the argument of every later command.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope record -m model.gguf -p 'Once upon a time' -n 64
  tensorscope record -m model.gguf -f prompt.txt -n 200 -t 8 -o my-run
  tensorscope record -m moe.gguf -p 'To be' -p 'Now is' -n 32      # two sequences
  echo 'Hello' | tensorscope record -m model.gguf -f - --temp 0.8 --seed 7")]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// Run directory to create [default: tensorscope-run-DATE-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Let llama.cpp copy weights into its own order (faster for some types; what is read
    /// then no longer lies in the file, and the trace says so)
    #[arg(long)]
    repack: bool,

    /// Print no progress and no closing line
    #[arg(short, long)]
    quiet: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let texts = args.engine.texts()?;
    let repack = if args.repack { Repack::On } else { Repack::Off };
    // The directory first: a bad path must not wait for a model to load.
    let path = args.output.clone().unwrap_or_else(RunDirectory::default_path);
    let model_file = gguf::Model::open(&args.engine.model)?;
    let command_line = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let metadata = Metadata::start(command_line, Some(&model_file));
    let mut directory = RunDirectory::create(&path, &metadata, Some(&model_file))?;
    drop(model_file);
    let outcome = record(&args, texts, repack, &mut directory);
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // Nothing was computed: leave nothing behind.
            if !directory.log_directory().join("status").exists() {
                let _ = std::fs::remove_dir_all(&path);
            }
            return Err(error);
        }
    };
    finish(&args, directory, outcome)
}

/// What a run left, before its directory is closed.
struct Outcome {
    generated: Generated,
    failure: Option<String>,
    lost_evaluations: u64,
    lost_accesses: u64,
}

fn record(
    args: &Args,
    texts: Vec<String>,
    repack: Repack,
    directory: &mut RunDirectory,
) -> anyhow::Result<Outcome> {
    let prepared = args.engine.prepare(texts, repack)?;
    describe(directory.metadata_mut(), &prepared.texts, &prepared.context, &prepared.generate, repack);
    directory.update().context("cannot write the metadata")?;
    let mut context = Context::new(&prepared.model, prepared.context.clone())?;
    let log_directory = directory.log_directory();
    let shown = directory.path().to_owned();
    let recording = Recording::start(
        &prepared.model,
        &log_directory,
        Box::new(move |error| {
            eprintln!("tensorscope: {}: recording stopped: {error}; generation goes on", shown.display());
        }),
    )
    .with_context(|| format!("{}: cannot start the log", log_directory.display()))?;
    signals::catch();
    let total = (prepared.generate.tokens * prepared.generate.prompts.len()) as u64;
    let bar = if args.quiet { ProgressBar::hidden() } else { progress::bar(total, "recording", "tokens") };
    let mut session = Session {
        model: &prepared.model,
        recording,
        phase: Phase::Prompt,
        bar,
        streamed: prepared.generate.prompts.len() == 1,
        output: Output::Open,
    };
    let generated = generate(&prepared.model, &mut context, &prepared.generate, &mut session);
    session.bar.finish_and_clear();
    let streamed = session.streamed;
    // The log is closed whatever happened: what was computed is recorded.
    let status = session.recording.finish();
    let generated = generated?;
    if streamed {
        println_quietly("");
    } else {
        for (sequence, tokens) in generated.tokens.iter().enumerate() {
            let text: Vec<u8> = tokens.iter().flat_map(|&t| prepared.model.token_text(t)).collect();
            println_quietly(&format!("[{sequence}] {}", String::from_utf8_lossy(&text)));
        }
    }
    let (failure, lost_evaluations, lost_accesses) = match status {
        Ok(status) => {
            let failure = match status.state {
                State::Failed(errno) => Some(std::io::Error::from_raw_os_error(errno).to_string()),
                _ => None,
            };
            (failure, status.evals_lost, status.accesses_lost)
        }
        Err(error) => (Some(error.to_string()), 0, 0),
    };
    Ok(Outcome { generated, failure, lost_evaluations, lost_accesses })
}

/// Sums the trace up, writes the final metadata and says where everything is.
fn finish(args: &Args, directory: RunDirectory, outcome: Outcome) -> anyhow::Result<ExitCode> {
    let path = directory.path().to_owned();
    let log_directory = directory.log_directory();
    let summary = summarise(&log_directory, &mut |_| {})
        .with_context(|| format!("{}: the trace cannot be read back", path.display()))?;
    let rate = |phase: Phase| {
        let sum = summary.by_phase.get(phase.name())?;
        (sum.nanos > 0).then(|| sum.tokens as f64 * 1e9 / sum.nanos as f64)
    };
    let statistics = Statistics {
        prompt_tokens: outcome.generated.prompt_tokens as u64,
        generated_tokens: outcome.generated.count() as u64,
        evaluations: summary.evaluations,
        steps: summary.steps,
        accesses: summary.accesses,
        templates: summary.templates,
        lost_evaluations: outcome.lost_evaluations,
        lost_accesses: outcome.lost_accesses,
        tick_mismatches: summary.flagged,
        unknown_ops: summary.unknown_ops(),
        duration_nanos: summary.last_nanos.saturating_sub(summary.first_nanos),
        tokens_per_second_prompt: rate(Phase::Prompt),
        tokens_per_second_generate: rate(Phase::Generate),
        ..Statistics::default()
    };
    let log_bytes = directory.log_bytes();
    let ending = match (&outcome.failure, outcome.generated.interrupted) {
        (Some(reason), _) => Ending::StoppedEarly(reason.clone()),
        (None, true) => Ending::StoppedEarly("interrupted".into()),
        (None, false) => Ending::Complete,
    };
    directory.finish(ending, statistics)?;
    if !args.quiet {
        let interrupted = if outcome.generated.interrupted { "interrupted; " } else { "" };
        eprintln!(
            "tensorscope: {interrupted}{} prompt and {} generated tokens, {} accesses, {} lost, {} of log, in {}",
            grouped(outcome.generated.prompt_tokens as u64),
            grouped(outcome.generated.count() as u64),
            grouped(summary.accesses),
            grouped(outcome.lost_accesses),
            HumanBytes(log_bytes),
            path.display()
        );
        for (op, steps) in &summary.unknown_ops() {
            eprintln!("tensorscope: op {op} is unknown to the op table; {steps} executions are recorded as whole views");
        }
    }
    let complete = outcome.failure.is_none() && outcome.lost_evaluations == 0 && summary.flagged == 0;
    if !complete {
        eprintln!(
            "tensorscope: {}: the trace is incomplete: {} evaluations lost, {} flagged{}",
            path.display(),
            outcome.lost_evaluations,
            summary.flagged,
            outcome.failure.map_or(String::new(), |reason| format!(": {reason}"))
        );
    }
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::from(1) })
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
        Sampling::Random { temperature, top_k, top_p, seed } => RunSampling::Random {
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

/// Whether somebody still reads our output.
enum Output {
    Open,
    Closed,
}

struct Session<'a> {
    model: &'a Model,
    recording: Recording,
    phase: Phase,
    bar: ProgressBar,
    streamed: bool,
    output: Output,
}

impl Observer for Session<'_> {
    fn before(&mut self, phase: Phase, _: &[BatchToken]) -> ControlFlow<()> {
        self.phase = phase;
        if signals::stop_asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        self.recording.decode(self.model, context, self.phase, batch, wants_logits, None)
    }

    fn token(&mut self, _: usize, token: i32) {
        if self.streamed && matches!(self.output, Output::Open) {
            let text = self.model.token_text(token);
            // The bar and the text share a terminal.
            let written = self.bar.suspend(|| {
                let mut out = std::io::stdout().lock();
                out.write_all(&text).and_then(|()| out.flush())
            });
            if written.is_err() {
                // `| head` has seen enough; recording goes on.
                self.output = Output::Closed;
            }
        }
        self.bar.inc(1);
        let counts = self.recording.counts();
        self.bar.set_message(format!(
            "{} accesses, {} of log",
            grouped(counts.accesses),
            HumanBytes(self.recording.log_bytes())
        ));
    }
}

fn println_quietly(line: &str) {
    // A closed pipe is no reason to fail.
    let _ = writeln!(std::io::stdout(), "{line}");
}
