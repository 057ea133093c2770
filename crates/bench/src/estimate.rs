//! `bench estimate`: what `estimate` predicts, held against what llama.cpp then does.

use std::{ops::ControlFlow, path::PathBuf, process::ExitCode, time::Instant};

use anyhow::Context as _;
use capture::BatchToken;
use comfy_table::{Table, presets};
use engine::{
    context::{Context, ContextProps},
    model::{Model, Repack},
};
use estimate::{
    Efficiency, Machine, NumberType, Shape,
    roofline::{self, Pass, Seconds, Types},
};
use gguf::write::{Existing, Split};
use kernelio::leftover::Leftover;
use serde::Serialize;
use synth::SynthError;
use terminal::{progress, signals};

use crate::machine::{Measure, Wanted, this};

/// Predicted times of passes through models, and measured ones
///
/// Models of several published shapes and types are made with random weights, a few layers
/// each, and llama.cpp computes with them: a token behind a short and a long context, several
/// sequences at once, a prompt. Kernels are measured before (they are what predictions are
/// made of, no pass through a model is). Nothing is fitted. Takes some minutes.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope bench estimate
  tensorscope bench estimate -m model.gguf --json")]
pub struct Args {
    /// A model file instead of those that are made
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,

    /// Threads [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    /// Folder for the models, at most 1 GB at a time [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Shape, type, layers: small enough to be made in seconds, too large for caches.
const MODELS: [(&str, &str, u64); 7] = [
    ("llama-3.2-1b", "q8_0", 8),
    ("llama-3-8b", "q4_K", 3),
    ("llama-2-7b", "q4_0", 4),
    ("llama-3.2-1b", "f16", 5),
    ("gemma-3-1b", "q6_K", 12),
    ("qwen3-0.6b", "q8_0", 28),
    ("qwen3-30b-a3b", "q4_K", 3),
];

/// Sequences, context of each before the pass, new tokens of each.
const PASSES: [(usize, usize, usize); 5] = [
    (1, 16, 1),
    (1, 1900, 1),
    (4, 64, 1),
    (16, 64, 1),
    (1, 0, 512),
];

/// Times each pass is measured, after one that is not.
const ROUNDS: usize = 5;
const PROMPT_ROUNDS: usize = 1;
/// How often kernels and passes are measured, one after the other.
const TURNS: usize = 2;

#[derive(Serialize)]
struct Row {
    model: String,
    #[serde(rename = "type")]
    ty: String,
    sequences: usize,
    context_tokens: usize,
    new_tokens: usize,
    predicted_seconds: f64,
    predicted_best_seconds: f64,
    predicted_worst_seconds: f64,
    measured_seconds: f64,
    /// Predicted tokens per second over measured, less one.
    error: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    signals::catch();
    let mut rows = Vec::new();
    match &args.model {
        Some(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            rows.extend(of_model(path, &name, "", args.threads)?.unwrap_or_default());
        }
        None => {
            let scratch = Leftover::scratch(args.folder.as_deref())
                .context("cannot make a folder for the models")?;
            let bar = progress::bar(MODELS.len() as u64, "measuring", "models");
            for (preset, ty, layers) in MODELS {
                let path = scratch.path().join("model.gguf");
                let mut recipe = synth::Recipe::new(preset)?;
                recipe.ggml_type = Some(synth::type_by_name(ty)?);
                recipe.layers = Some(layers);
                let made = recipe.model()?;
                let layout = made.layout(&path, Split::Whole)?;
                match made.write(&layout, Existing::Refuse, |_| stopped()) {
                    Err(SynthError::Interrupted) => break,
                    written => {
                        written.context("cannot make a model; --folder names another disk")?
                    }
                }
                let Some(more) = of_model(&path, preset, ty, args.threads)? else {
                    break;
                };
                rows.extend(more);
                std::fs::remove_file(&path)?;
                bar.inc(1);
            }
            bar.finish_and_clear();
        }
    }
    if let Some(signal) = signals::asked() {
        eprintln!("tensorscope: stopped before everything was measured");
        return Ok(ExitCode::from(signals::exit_code(signal)));
    }
    let mut errors: Vec<f64> = rows.iter().map(|row| row.error.abs()).collect();
    errors.sort_by(f64::total_cmp);
    let within = errors.iter().filter(|error| **error <= 0.1).count();
    if args.json {
        terminal::print(&serde_json::to_string_pretty(&rows)?)?;
    } else {
        terminal::print(&format!(
            "{}\n{within} of {} within 10 %; median error {:.1} %, largest {:.1} %",
            table(&rows),
            rows.len(),
            errors.get(errors.len() / 2).unwrap_or(&0.0) * 100.0,
            errors.last().unwrap_or(&0.0) * 100.0
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Ctrl-C ends the making of a model.
fn stopped() -> ControlFlow<()> {
    match signals::stop_asked() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "model",
        "type",
        "sequences",
        "context",
        "new tokens",
        "predicted ms",
        "from",
        "to",
        "measured ms",
        "tokens/s off by %",
    ]);
    let ms = |seconds: f64| format!("{:.2}", seconds * 1e3);
    for row in rows {
        table.add_row([
            row.model.clone(),
            row.ty.clone(),
            row.sequences.to_string(),
            row.context_tokens.to_string(),
            row.new_tokens.to_string(),
            ms(row.predicted_seconds),
            ms(row.predicted_best_seconds),
            ms(row.predicted_worst_seconds),
            ms(row.measured_seconds),
            format!("{:+.1}", row.error * 100.0),
        ]);
    }
    table
}

/// `None` when we were asked to stop.
fn of_model(
    path: &std::path::Path,
    name: &str,
    ty: &str,
    threads: Option<u16>,
) -> anyhow::Result<Option<Vec<Row>>> {
    let model = Model::load(path, Repack::Off)?;
    let shape = Shape::from_model(&model.gguf)?;
    let types = Types::stored(NumberType::F16);
    let mut wanted = Wanted::default();
    wanted.add(&shape, types)?;
    let mut predictions = vec![Vec::new(); PASSES.len()];
    let mut times = vec![Vec::new(); PASSES.len()];
    // Kernels and passes take turns: what disturbs the machine for a minute disturbs both.
    for _ in 0..TURNS {
        let machine = this(threads, &wanted, Measure::Again)?;
        for (at, &pass) in PASSES.iter().enumerate() {
            if signals::stop_asked() {
                return Ok(None);
            }
            predictions[at].push(predict(&shape, pass, types, &machine)?);
            times[at].extend(measured(&model, threads, pass)?);
        }
    }
    let rows = PASSES.iter().enumerate().map(|(at, &pass)| {
        let (sequences, context_tokens, new_tokens) = pass;
        let middle = |of: fn(&Seconds) -> f64| median(predictions[at].iter().map(of).collect());
        let predicted_seconds = middle(|seconds| seconds.likely);
        let measured_seconds = median(times[at].clone());
        Row {
            model: name.to_owned(),
            ty: ty.to_owned(),
            sequences,
            context_tokens,
            new_tokens,
            predicted_seconds,
            predicted_best_seconds: middle(|seconds| seconds.best),
            predicted_worst_seconds: middle(|seconds| seconds.worst),
            measured_seconds,
            error: measured_seconds / predicted_seconds - 1.0,
        }
    });
    Ok(Some(rows.collect()))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn predict(
    shape: &Shape,
    (sequences, context_tokens, new_tokens): (usize, usize, usize),
    types: Types,
    machine: &Machine,
) -> anyhow::Result<Seconds> {
    let pass = Pass {
        batch: sequences as u64,
        new_tokens: new_tokens as u64,
        context_tokens: context_tokens as u64,
        output_tokens: 1,
    };
    let time = roofline::time(shape, pass, types, machine, Efficiency::default())?;
    Ok(time.seconds)
}

/// Several times of a pass.
fn measured(
    model: &Model,
    threads: Option<u16>,
    (sequences, context_tokens, new_tokens): (usize, usize, usize),
) -> anyhow::Result<Vec<f64>> {
    let defaults = ContextProps::default();
    let all = sequences * (context_tokens + new_tokens * (ROUNDS + 1));
    let props = ContextProps {
        threads: threads.map_or(defaults.threads, usize::from),
        context: all.next_multiple_of(256),
        sequences,
        ..defaults
    };
    let mut context = Context::new(model, props)?;
    let vocabulary = model.vocabulary_size() as i32;
    let batch = |from: usize, tokens: usize| -> Vec<BatchToken> {
        let all = (0..sequences).flat_map(|sequence| (0..tokens).map(move |at| (sequence, at)));
        all.map(|(sequence, at)| BatchToken {
            token: (7 + (from + at) as i32 * 7919 + sequence as i32 * 104_729)
                .rem_euclid(vocabulary),
            position: (from + at) as i32,
            sequence: sequence as u32,
        })
        .collect()
    };
    let mut at = 0;
    while at < context_tokens {
        let tokens = (context_tokens - at).min((512 / sequences).max(1));
        context.decode(&batch(at, tokens), |_| false)?;
        at += tokens;
    }
    let mut times = Vec::new();
    let rounds = match new_tokens {
        1 => ROUNDS,
        _ => PROMPT_ROUNDS,
    };
    for round in 0..=rounds {
        let tokens = batch(at, new_tokens);
        let start = Instant::now();
        context.decode(&tokens, |index| (index + 1) % new_tokens == 0)?;
        // Waits for the computation.
        context.logits(new_tokens - 1);
        if round > 0 {
            times.push(start.elapsed().as_secs_f64());
        }
        match new_tokens {
            1 => at += 1,
            // A prompt of its own each time.
            _ => context.clear(),
        }
    }
    Ok(times)
}
