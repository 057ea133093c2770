//! `tensorscope bench`: measurements that compare things within one run.

pub mod ceilings;
mod estimate;
mod feed;
pub mod machine;
mod program;
pub mod verify;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use comfy_table::{Table, presets};
use engine::{
    context::{ContextProps, MAX_THREADS},
    model::{Model, Repack},
    overhead::{Mode, Overhead, measure},
};
use kernelio::leftover::Leftover;
use launch::planning::check_cache;
use serde_json::{Map, Value, json};
use terminal::progress;

/// Measure, as ratios within one run
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Overhead(OverheadArgs),
    Ceilings(ceilings::Args),
    Feed(feed::Args),
    Estimate(estimate::Args),
}

/// What recording costs: no hooks, no hooks again (the noise), recording, and a plain ggml
/// eval callback
///
/// Token-interleaved within one process: each round computes one token in every mode, in
/// rotating order. A slow-down is the median over rounds of a mode's time over that
/// without hooks in the same round, with its 95 % confidence interval; the direct cost is
/// the time spent inside our callbacks over the token's time.
///
/// With a program behind `--`: evaluations of the llama.cpp in that program take turns,
/// passed on, passed on again, recorded.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope bench overhead -m model.gguf
  tensorscope bench overhead -- python3 chat.py
  tensorscope bench overhead -m model.gguf -t 8 -n 400 --json")]
struct OverheadArgs {
    /// Model file
    #[arg(short, long, value_name = "FILE", required_unless_present = "program")]
    model: Option<PathBuf>,

    /// Tokens measured per mode
    #[arg(short = 'n', long = "tokens", value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,

    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,

    /// Threads [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS))]
    threads: Option<u16>,

    /// Folder for the log that the recording mode writes [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,

    /// Print as JSON
    #[arg(long)]
    json: bool,

    /// Program to run and measure, with its arguments
    #[arg(last = true, value_name = "PROGRAM",
          conflicts_with_all = ["model", "tokens", "prompt_tokens", "threads", "log_dir"])]
    program: Vec<OsString>,
}

impl OverheadArgs {
    /// Checked by clap, unless a program is given that brings its own.
    fn model(&self) -> &Path {
        self.model.as_deref().unwrap_or(Path::new(""))
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Overhead(args) if !args.program.is_empty() => program::overhead(&args),
        What::Overhead(args) => overhead(&args),
        What::Ceilings(args) => ceilings::run(&args),
        What::Feed(args) => feed::run(&args),
        What::Estimate(args) => estimate::run(&args),
    }
}

fn overhead(args: &OverheadArgs) -> anyhow::Result<ExitCode> {
    let model = Model::load(args.model(), Repack::Off)?;
    let (tokens, prompt_tokens) = (args.tokens as usize, args.prompt_tokens as usize);
    let defaults = ContextProps::default();
    let props = ContextProps {
        threads: args.threads.map_or(defaults.threads, usize::from),
        context: (tokens + prompt_tokens + 1).next_multiple_of(256),
        ..defaults
    };
    check_cache(&model.gguf, props.key_type, props.context)?;
    // Ids spread over the vocabulary: routing and embedding rows vary.
    let size = model.vocabulary_size() as i32;
    let prompt: Vec<i32> = (0..prompt_tokens as i32)
        .map(|i| 3 + i * 7919 % (size - 3).max(1))
        .collect();
    let scratch =
        Leftover::scratch(args.log_dir.as_deref()).with_context(|| match &args.log_dir {
            Some(folder) => format!("{}: cannot make a folder there", folder.display()),
            None => "cannot make a temporary directory for the log".to_owned(),
        })?;
    let bar = progress::bar(tokens as u64, "measuring", "rounds");
    let result = measure(
        &model,
        &props,
        &prompt,
        tokens,
        scratch.path(),
        &mut |round| {
            bar.set_position(round as u64);
        },
    )?;
    bar.finish_and_clear();
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&as_json(args, &props, &result))?
        );
    } else {
        print(args, &props, &result);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(args: &OverheadArgs, props: &ContextProps, result: &Overhead) {
    println!(
        "{}: {} tokens per mode, {} threads, {:.0} nodes per token, {:.1} KB of log per token",
        args.model().display(),
        result.rounds,
        props.threads,
        result.steps_per_token,
        result.log_bytes_per_token / 1e3
    );
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "mode",
        "ms/token",
        "slow-down %",
        "95 % interval",
        "direct %",
        "µs inside tensorscope",
    ]);
    for mode in &result.modes {
        let slowdown = mode.slowdown;
        table.add_row([
            mode.mode.name().to_owned(),
            format!("{:.3}", mode.median_nanos as f64 / 1e6),
            format!("{:+.2}", slowdown.median * 100.0),
            format!(
                "{:+.2} … {:+.2}",
                slowdown.low * 100.0,
                slowdown.high * 100.0
            ),
            mode.direct
                .map_or(String::new(), |d| format!("{:.3}", d * 100.0)),
            mode.direct_nanos_per_token
                .map_or(String::new(), |n| format!("{:.1}", n / 1e3)),
        ]);
    }
    println!("{table}");
    println!(
        "output {}; {} evaluations with unexpected ticks",
        if result.identical {
            "identical in all modes"
        } else {
            "DIFFERS between modes"
        },
        result.tick_mismatches
    );
    if let Some(cost) = cost_per_node(result) {
        println!(
            "recording costs {:.2} µs a node: under 1 % where a node takes more than {:.0} µs on \
             average; here it takes {:.1} µs",
            cost / 1e3,
            cost / 10.0,
            nanos_per_node(result).map_or(0.0, |nanos| nanos / 1e3)
        );
    }
}

/// Nanoseconds that recording takes for each node.
fn cost_per_node(result: &Overhead) -> Option<f64> {
    let recorded = result.modes.iter().find(|mode| mode.mode == Mode::Record)?;
    Some(recorded.direct_nanos_per_token? / result.steps_per_token)
}

/// Nanoseconds that a node takes without us.
fn nanos_per_node(result: &Overhead) -> Option<f64> {
    let plain = result
        .modes
        .iter()
        .find(|mode| mode.mode == Mode::NoHooks)?;
    Some(plain.median_nanos as f64 / result.steps_per_token)
}

fn as_json(args: &OverheadArgs, props: &ContextProps, result: &Overhead) -> Value {
    let mut modes = Map::new();
    for mode in &result.modes {
        let mut object = json!({
            "median_nanos_per_token": mode.median_nanos,
            "slowdown_percent": mode.slowdown.median * 100.0,
            "slowdown_percent_low": mode.slowdown.low * 100.0,
            "slowdown_percent_high": mode.slowdown.high * 100.0,
        });
        if mode.mode == Mode::Record {
            object["direct_percent"] = json!(mode.direct.map(|d| d * 100.0));
            object["direct_nanos_per_token"] = json!(mode.direct_nanos_per_token);
        }
        modes.insert(mode.mode.name().into(), object);
    }
    json!({
        "model": args.model().to_string_lossy(),
        "threads": props.threads,
        "tokens_per_mode": result.rounds,
        "nodes_per_token": result.steps_per_token,
        "nanos_per_node": nanos_per_node(result),
        "recording_nanos_per_node": cost_per_node(result),
        "log_bytes_per_token": result.log_bytes_per_token,
        "log_bytes_per_node": result.log_bytes_per_token / result.steps_per_token,
        "identical": result.identical,
        "tick_mismatches": result.tick_mismatches,
        "modes": modes,
    })
}
