//! `tensorscope bench feed`: ways of running a model larger than memory, compared.
//!
//! 1. Calibration: one run with everything in memory gives the output that all others
//!    must have, the speed of computing, and what a run needs besides weights.
//! 2. A sweep finds the settings with which stock llama.cpp is fastest.
//! 3. Repeats: every budget in every mode, in rotating order, each a process of its own
//!    (`child.rs`); the disk is measured before and after each (`disk.rs`), and what the run
//!    should have given follows from that.
//! 4. Medians over the repeats (`measure.rs`), as table, picture and JSON.

mod child;
mod disk;
mod measure;
mod modes;
pub(crate) mod readahead;
mod routing;
mod session;
mod sweep;
mod table;

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use engine::context::MAX_THREADS;
use kernelio::pressure;
use render::{
    plot::png,
    plots::feed::{FeedSpeeds, ModeSpeeds, Speed, plot},
};
use serde::Serialize;

use self::{
    measure::{Predictions, Row},
    modes::{Budget, Mode, budget, mode},
    session::Session,
    sweep::Setting,
};
use terminal::{create_new, signals};

/// Pixels per unit of a plot: 300 dots an inch at the width of a page.
const PNG_SCALE: f32 = 3.0;

/// Ways of running a model larger than memory, compared: stock llama.cpp and each strategy
///
/// Every run is a process of its own in a memory cgroup of its own, with a cold page cache;
/// modes and budgets take turns, and the disk is measured between the runs (after one that was
/// fed, for as long as that read). `stock` is
/// llama.cpp as it is; `stock-best` has the read-ahead and the advice to the kernel that a
/// short sweep finds best (the disk's read_ahead_kb is put back, also after `kill -9`, unless
/// somebody else changed it meanwhile); the others are strategies
/// of `tensorscope run`, carried out with a plan that is made for the budget. The output of
/// every run is compared, by tokens and by the bits of all logits.
///
/// Models with experts are run with experts that are drawn, in every mode alike, because
/// those of random weights would all choose the same; `--routing router` asks the router.
///
/// Exit code 1: an output differed, a limit was exceeded, or a run failed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope bench feed big.gguf --memory 75%,50%,25%,12.5%
  tensorscope bench feed big.gguf --memory 4G,2G --modes stock,stock-best,all --json
  tensorscope bench feed big.gguf --memory 50%,25% --repeats 7 -n 20 -o speed.svg
  tensorscope bench feed big.gguf --memory 50% --modes all,recorded   # what recording costs there
  tensorscope bench feed moe.gguf --memory 25% --routing zipf:1.1 --modes stock,pin+stream,all")]
pub struct Args {
    /// Model file; of a split set, any of its files
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// Budgets: 50% of the weights (what a run needs besides comes on top), or 4G for all
    #[arg(long, value_name = "LIST", required = true, value_delimiter = ',', value_parser = budget)]
    memory: Vec<Budget>,

    /// Modes: stock, stock-best, pin, stream, experts, all, or several with +; recorded (all,
    /// and recorded meanwhile) [default: all that can help the model]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = mode)]
    modes: Vec<Mode>,

    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,

    /// Rest before each run, of every mode: lets a disk recover that is fast for a while only
    /// (burst credits of virtual machines): 6s
    #[arg(long, value_name = "TIME", value_parser = terminal::text::duration)]
    rest: Option<std::time::Duration>,

    /// Tokens that every run generates [default: 10, with experts 16]
    #[arg(short = 'n', long = "tokens", value_name = "N", value_parser = clap::value_parser!(u32).range(3..=100_000))]
    tokens: Option<u32>,

    /// Threads [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS))]
    threads: Option<u16>,

    /// How experts are chosen: uniform, zipf:EXPONENT, sticky:SHARE, or router [default:
    /// uniform]
    #[arg(long, value_name = "DISTRIBUTION", value_parser = routing_choice)]
    routing: Option<String>,

    /// Seconds that computing a token takes, where the machine cannot hold the model to
    /// measure it
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    compute_seconds: Option<f64>,

    /// Draw the speeds, to a .svg or .png that must not exist
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print as JSON
    #[arg(long)]
    json: bool,

    /// No line for each run
    #[arg(short, long)]
    quiet: bool,
}

/// `--routing router`.
const ROUTER: &str = "router";

fn routing_choice(text: &str) -> Result<String, String> {
    if text != ROUTER {
        text.parse::<feed::Distribution>()
            .map_err(|error| format!("{error}, or router"))?;
    }
    Ok(text.to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds.is_finite() => Ok(seconds),
        _ => Err(format!("`{text}` is not a number of seconds")),
    }
}

/// Everything that was found out.
#[derive(Serialize)]
struct Outcome {
    model: String,
    weight_bytes: u64,
    /// What a run needs besides weights.
    other_bytes: u64,
    tokens: u32,
    repeats: u32,
    /// Whether we were asked to stop before all was measured.
    interrupted: bool,
    has_experts: bool,
    routing: Option<String>,
    /// What is meant by it.
    ceiling: &'static str,
    compute_seconds_per_token: Option<f64>,
    disk_bytes_per_second: Option<f64>,
    /// All that were tried, the best first.
    stock_best: Vec<Setting>,
    notes: Vec<String>,
    /// How good the predictions were.
    predictions: Option<Predictions>,
    results: Vec<Row>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let model = gguf::Model::open(&args.model)?;
    let has_experts = model.hyper().expert_used_count_max() > 0;
    let modes = modes(args, has_experts)?;
    let picture = args.output.as_deref().map(Picture::create).transpose()?;
    let result = measure(args, model, modes);
    match (result, picture) {
        (Ok(outcome), picture) => finish(args, &outcome, picture),
        (Err(error), picture) => {
            // An empty file would be in the way of the next try.
            if let Some(picture) = picture {
                picture.remove();
            }
            Err(error)
        }
    }
}

fn measure(args: &Args, model: gguf::Model, modes: Vec<Mode>) -> anyhow::Result<Option<Outcome>> {
    // Without one, modes would be compared that have all the memory of the machine.
    pressure::probe()?;
    signals::catch();
    let Some(mut session) = Session::begin(args, model, modes)? else {
        return Ok(None);
    };
    session.repeats()?;
    Ok(Some(session.outcome()))
}

fn modes(args: &Args, has_experts: bool) -> anyhow::Result<Vec<Mode>> {
    if args.modes.is_empty() {
        return Ok(Mode::defaults(has_experts));
    }
    let mut modes: Vec<Mode> = Vec::new();
    for &mode in &args.modes {
        let strategies = mode.strategies();
        if strategies.experts && !strategies.pin && !strategies.stream && !has_experts {
            bail!("--modes {mode}: {} has no experts", args.model.display());
        }
        if mode == Mode::Recorded && has_experts && args.routing.as_deref() != Some(ROUTER) {
            bail!("--modes recorded: a record tells what the router chose; give --routing router");
        }
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    Ok(modes)
}

fn finish(
    args: &Args,
    outcome: &Option<Outcome>,
    picture: Option<Picture>,
) -> anyhow::Result<ExitCode> {
    let measured = outcome
        .as_ref()
        .filter(|outcome| !outcome.results.is_empty());
    match (measured, picture) {
        (Some(outcome), Some(picture)) => picture.write(outcome)?,
        (None, Some(picture)) => picture.remove(),
        (_, None) => {}
    }
    if let Some(outcome) = measured {
        match args.json {
            true => terminal::print(&serde_json::to_string_pretty(outcome)?)?,
            false => terminal::print(&table::text(outcome))?,
        }
    }
    if let Some(signal) = signals::asked() {
        eprintln!("tensorscope: stopped before everything was measured");
        return Ok(ExitCode::from(signals::exit_code(signal)));
    }
    let is_good = measured.is_some_and(|outcome| outcome.results.iter().all(Row::is_good));
    Ok(match is_good {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    })
}

/// The file of `-o`.
struct Picture {
    path: PathBuf,
    file: File,
    is_png: bool,
}

impl Picture {
    /// Before anything is measured: a bad path must not cost an hour.
    fn create(path: &Path) -> anyhow::Result<Picture> {
        let is_png = match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => false,
            Some("png") => true,
            _ => bail!("{}: the name must end in .svg or .png", path.display()),
        };
        Ok(Picture {
            path: path.to_owned(),
            file: create_new(path)?,
            is_png,
        })
    }

    fn write(mut self, outcome: &Outcome) -> anyhow::Result<()> {
        let Some(svg) = plot(&speeds(outcome)) else {
            self.remove();
            return Ok(());
        };
        let svg = svg.standalone();
        let bytes = match self.is_png {
            true => png(&svg, PNG_SCALE)?,
            false => svg.into_bytes(),
        };
        self.file
            .write_all(&bytes)
            .with_context(|| format!("{}: cannot write", self.path.display()))
    }

    fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What is drawn. The ceiling is that of the last mode, which is the best one: of a
/// mixture each has its own.
fn speeds(outcome: &Outcome) -> FeedSpeeds {
    let mut speeds = FeedSpeeds {
        model: Path::new(&outcome.model)
            .file_name()
            .map_or(String::new(), |name| name.display().to_string()),
        ..FeedSpeeds::default()
    };
    for row in &outcome.results {
        let bytes = row.weights_memory_bytes;
        if !speeds.budgets.iter().any(|budget| budget.0 == bytes) {
            speeds.budgets.push((bytes, row.memory.clone()));
        }
        if let Some(ceiling) = row.ceiling_tokens_per_second {
            speeds.ceilings.retain(|known| known.0 != bytes);
            speeds.ceilings.push((bytes, ceiling));
        }
        let (Some(median), Some(least), Some(most)) = (
            row.tokens_per_second,
            row.tokens_per_second_least,
            row.tokens_per_second_most,
        ) else {
            continue;
        };
        let point = Speed {
            weights_memory_bytes: bytes,
            median,
            least,
            most,
        };
        match speeds.modes.iter_mut().find(|mode| mode.name == row.mode) {
            Some(mode) => mode.points.push(point),
            None => speeds.modes.push(ModeSpeeds {
                name: row.mode.clone(),
                points: vec![point],
            }),
        }
    }
    speeds
}
