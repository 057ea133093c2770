//! `tensorscope record`: generate with the built-in engine, every access recorded;
//! with a program behind `--` see [`launch::attach`].

mod below;
mod bounds;
pub(crate) mod directory;
pub(crate) mod screen;

use std::{
    ffi::OsString,
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use capture::BatchToken;
use engine::{
    EngineError,
    context::Context,
    feeding::Feeding,
    generate::{Observer, generate},
    loading::Loading,
    model::{Model, Repack},
    recording::Recording,
};
use feed::Props;
use indicatif::HumanBytes;
use kernelio::pressure::MemoryLimit;
use launch::{
    attach::{self, AttachProps, Purpose, Repacking, Verbosity},
    budget::Memory,
    feeding::{FeedProps, described, sentence},
    gpu::{GpuTimes, gpu_times},
    underneath::{self, UnderneathArgs},
};
use plan::Strategies;
use rundir::{RunDirectory, metadata::Underneath};
use trace::format::Phase;

use self::{
    below::{faults_so_far, watch},
    bounds::Bounds,
    directory::{Outcome, Started, Tables, close_log, describe, finish, make_tables, start_log},
    screen::{Bar, Screen},
};
use terminal::{progress, signals, text::grouped};

use crate::{
    engine_args::{EngineArgs, MemoryCounts, OF_ENGINE, Prompts},
    run::{Asked, Wish, decide},
    truncated,
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
/// Nothing has to be rebuilt: its llama.cpp (2024 or later) may be a shared library or
/// linked into it. Its input, output, signals and exit code are its own.
///
/// Ctrl-C (or SIGTERM) ends the run after the evaluation that is going on; the trace is
/// complete up to there. A second Ctrl-C kills, which loses at most that evaluation. A full
/// disk or a removed directory ends the recording, not the generation; a model that is
/// truncated meanwhile ends both, with exit code 1.
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
  tensorscope record -m big.gguf -p Hi -n 32 --memory 4G --feed    # fed, as by `run`
  tensorscope record -- llama-server -m model.gguf --port 8080    # until Ctrl-C
  tensorscope record -o my-run --tokens 500 -- python3 chat.py
  tensorscope record --duration 60s --no-repack -- node app.mjs
  tensorscope record --gpu-times all -- llama-cli -m model.gguf -ngl 99 -p Hi -n 32")]
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

    /// Of a PROGRAM that computes on an NVIDIA card: what the times of single kernels may
    /// cost. They are measured in some evaluations, so that it stays within this share of the
    /// time; `all` measures every evaluation, `off` none. Which kernels run, and when the card
    /// begins and ends an evaluation, is recorded in any case
    #[arg(long, value_name = "SHARE", value_parser = gpu_times, requires = "program")]
    gpu_times: Option<GpuTimes>,

    /// Record no longer than this from the first evaluation on: 90s, 5m, 1h. A PROGRAM
    /// runs on without being recorded; the built-in engine ends
    #[arg(long, value_name = "TIME", value_parser = terminal::text::duration)]
    duration: Option<Duration>,

    /// Record no more than this much log: 500M, 2G; then as with --duration
    #[arg(long, value_name = "SIZE", value_parser = terminal::text::size)]
    max_size: Option<u64>,

    /// Feed the weights while recording (see `tensorscope run`), within --memory: pin, stream,
    /// experts, or all [default: all]
    #[arg(long, value_name = "LIST", num_args = 0..=1, require_equals = true,
          default_missing_value = "all", requires = "memory")]
    feed: Option<Strategies>,

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

    #[command(flatten)]
    underneath: UnderneathArgs,

    /// Program to run and record, with its arguments
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = OF_ENGINE)]
    program: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !args.program.is_empty() {
        return program(args);
    }
    args.engine.check_model("record")?;
    let prompts = args.engine.prompts()?;
    if args.quiet {
        progress::be_quiet();
    }
    // The directory first: a bad path must not wait for a model to load.
    let path = args
        .output
        .clone()
        .unwrap_or_else(RunDirectory::default_path);
    let model_file = gguf::Model::open(args.engine.model())?;
    let feed = feed(&args, &prompts, &model_file)?;
    let mut limit = args.underneath.limit()?;
    let mut started = Started::create(&path, &model_file)?;
    let dropped_bytes = underneath::make_cold(&args.underneath.cold_files(&model_file))?;
    limit.as_mut().map(MemoryLimit::enter).transpose()?;
    truncated::guard(&model_file, Some((path.clone(), args.quiet)));
    let files: Vec<PathBuf> = model_file.files().iter().map(|f| f.path.clone()).collect();
    drop(model_file);
    signals::catch();
    let live = args
        .live
        .then(|| Live::start(&path, args.port))
        .transpose()?;
    let tokens = Arc::new(AtomicU64::new(0));
    let session = watch(&args.underneath, &files, started.directory(), &tokens)?;
    let outcome = record(&args, prompts, started.directory(), &tokens, feed)?;
    let mut directory = started.keep();
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
    let finished = finish(args.quiet, tables(args.no_tables), directory, outcome);
    live.into_iter().for_each(Live::finish);
    finished
}

fn tables(are_left_out: bool) -> Tables {
    match are_left_out {
        true => Tables::Later,
        false => Tables::Made,
    }
}

/// How the weights are to be fed; `None` if that is not asked for, or they fit.
fn feed(args: &Args, prompts: &Prompts, model: &gguf::Model) -> anyhow::Result<Option<Box<Props>>> {
    let (Some(strategies), Some(budget_bytes)) = (args.feed, args.underneath.memory()) else {
        return Ok(None);
    };
    let wish = Wish::new(strategies);
    let asked = Asked::new(&args.engine, prompts);
    Ok(decide(&asked, &wish, model, None, budget_bytes).said(model, args.quiet))
}

/// The program's exit code stands whatever becomes of the tables.
fn program(args: Args) -> anyhow::Result<ExitCode> {
    if args.quiet {
        progress::be_quiet();
    }
    let feed = args.feed.map(|strategies| FeedProps {
        program: args.program.clone(),
        memory: args.underneath.memory().map(Memory::Bytes),
        plan: None,
        strategies,
        policy: None,
        method: None,
        faults: None,
        always: false,
        cold: false,
        no_limit: false,
        quiet: args.quiet,
    });
    let tables = tables(args.no_tables);
    let attached = attach::run(&AttachProps {
        program: args.program,
        output: args.output,
        feed,
        duration: args.duration,
        max_log_bytes: args.max_size,
        max_tokens: args.engine.tokens.map(u64::from),
        repacking: match args.no_repack {
            true => Repacking::Prevented,
            false => Repacking::AsTheProgramSays,
        },
        purpose: Purpose::Record,
        underneath: args.underneath,
        gpu_times: args.gpu_times.unwrap_or_default(),
        verbosity: match args.quiet {
            true => Verbosity::Quiet,
            false => Verbosity::Normal,
        },
    })?;
    if let Some(run) = attached.run {
        make_tables(&run, tables);
    }
    Ok(ExitCode::from(attached.exit_code))
}

/// Fails only before the first evaluation; what goes wrong later is in the outcome.
fn record(
    args: &Args,
    prompts: Prompts,
    directory: &mut RunDirectory,
    tokens: &AtomicU64,
    feed: Option<Box<Props>>,
) -> anyhow::Result<Outcome> {
    let repack = if args.repack { Repack::On } else { Repack::Off };
    let (loading, counts) = match feed {
        Some(_) => (Loading::Lazy, MemoryCounts::Yes),
        None => (Loading::AsFound, MemoryCounts::No),
    };
    let prepared = args.engine.prepare(prompts, repack, loading, counts)?;
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
    let recording = start_log(directory, &prepared.model, &screen)?;
    let mut generation = Generation {
        model: &prepared.model,
        recording,
        feeding: feed.map(|props| Feeding::new(*props)),
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
        feeding,
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
    let mut fed = None;
    if let Some(feeding) = &feeding {
        let (shares, stats) = (feeding.shares(), feeding.stats().snapshot());
        fed = Some(described(shares.unwrap_or_default(), &stats));
        if !args.quiet {
            eprintln!("tensorscope: {}", sentence(shares.as_ref(), &stats));
        }
    }
    // The memory of weights goes before the model that points into it.
    drop(feeding);
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
        fed,
        closed: close_log(recording),
    })
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
    feeding: Option<Feeding>,
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
        let (recording, phase) = (&mut self.recording, self.phase);
        let Some(feeding) = &mut self.feeding else {
            return recording.decode(self.model, context, phase, batch, wants_logits, &mut []);
        };
        let decoded =
            feeding.decode_recorded(recording, self.model, context, phase, batch, wants_logits);
        let print = self.screen.line_printer();
        for note in feeding.take_notes() {
            print(&format!("tensorscope: {note}"));
        }
        decoded
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
