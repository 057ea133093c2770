//! `tensorscope lab`: which experiments, and where their results go.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use cuda::Card;

use crate::{
    cache, evidence,
    experiments::{self, EXPERIMENTS, Experiment, GROUPS, Needs, Request},
    figure,
    json::Report,
    outcome::Outcome,
    plot, program, replicas,
};

/// Experiments with kernels, from naive to the vendor's speed, every step measured
///
/// Each experiment is a ladder of kernels that compute the same. Results are checked against
/// float64 before anything is timed; the vendor's library (cuBLAS, OpenBLAS) and the card's
/// ceilings are measured in the same rounds. Without names the experiments are listed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope lab                              what there is, and what it needs
  tensorscope lab gemm-cpu                     matrix products on this processor
  tensorscope lab gemm-bf16 --sizes 4096,8192  on a card, at these sizes
  tensorscope lab gemm --json                  all matrix products, for a program to read
  tensorscope lab all -o results               everything that this machine can do,
                                               with JSON and plots in a folder
  tensorscope lab calls --program 'gpu=llama-cli -m m.gguf -ngl 99 -p Hi -n {tokens}'
  tensorscope lab --evidence evidence.json     machine code behind the steps

Kernels for cards are compiled when they are needed, by NVRTC, which comes with CUDA or with
`pip install nvidia-cuda-nvrtc nvidia-cublas`.")]
pub struct Args {
    /// Experiments, or `gemm`, `attention` (all of a kind), or `all`
    names: Vec<String>,
    /// Small sizes and few rounds: whether it works here, not how fast
    #[arg(long)]
    quick: bool,
    /// As --quick, and kernels for cards are only checked, at the smallest sizes, not timed:
    /// for compute-sanitizer
    #[arg(long)]
    check: bool,
    /// Sizes instead of the experiment's own
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    sizes: Vec<usize>,
    /// Only these steps, by their names in the table
    #[arg(long, value_delimiter = ',', value_name = "STEP,…")]
    steps: Vec<String>,
    /// How often each step is measured [default: 20, of `all` 5]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Where random inputs begin; another one each time unless given
    #[arg(long)]
    seed: Option<u32>,
    /// For `calls`: a program that generates text, with {tokens} where their number stands
    #[arg(long = "program", value_name = "NAME=COMMAND")]
    programs: Vec<String>,
    /// One object of JSON instead of tables: steps with their rates, and what was skipped
    #[arg(long, requires = "names")]
    json: bool,
    /// Writes what was found as NAME.json, NAME.txt and plots into a folder
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Counts the instructions behind the steps' claims, and registers and spills, into a file
    #[arg(long, value_name = "FILE", conflicts_with = "names")]
    evidence: Option<PathBuf>,
    /// Draws the plots of saved results again, beside each file or into the folder of --output
    #[arg(long, value_name = "NAME.json", conflicts_with_all = ["names", "evidence"], num_args = 1..)]
    draw: Vec<PathBuf>,
    /// A figure of docs/posts, as NAME.svg beside the file that describes it
    #[arg(long, hide = true, value_name = "NAME.json")]
    figure: Option<PathBuf>,
    /// One loop of experiment `cache` on real memory, for cachegrind to watch
    #[arg(long, hide = true)]
    bare_loop: Option<String>,
    /// One replica of experiment `replicas`, which does what its standard input says
    #[arg(long, hide = true)]
    replica: Option<String>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(words) = &args.bare_loop {
        cache::run_bare(words)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(words) = &args.replica {
        replicas::serve(words)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.figure {
        let name = || path.display().to_string();
        let figure = figure::read(&fs::read(path).with_context(name)?).with_context(name)?;
        let svg = figure.draw().with_context(name)?;
        fs::write(path.with_extension("svg"), svg.standalone()).with_context(name)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.evidence {
        let before = match fs::read(path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?
            }
            Err(_) => Vec::new(),
        };
        evidence::collect(&before, |found| {
            fs::write(path, evidence::text(found)?).with_context(|| path.display().to_string())
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    for path in &args.draw {
        let folder = args
            .output
            .as_deref()
            .or(path.parent())
            .unwrap_or(Path::new("."));
        draw(folder, &read(path)?)?;
    }
    if !args.draw.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if args.names.is_empty() {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    }
    let request = Request {
        sizes: args.sizes.clone(),
        rounds: match args.rounds {
            _ if args.quick || args.check => 3,
            Some(rounds) => usize::from(rounds),
            // All of them shall not take longer than a quarter of an hour.
            None if args.names == ["all"] => 5,
            None => 20,
        },
        is_quick: args.quick || args.check,
        is_check: args.check,
        steps: args.steps.clone(),
        programs: args.programs.clone(),
        seed: args
            .seed
            .unwrap_or_else(|| std::process::id().wrapping_mul(2_654_435_761)),
    };
    if let Some(size) = request
        .sizes
        .iter()
        .find(|size| !(1..=65_536).contains(*size))
    {
        bail!("--sizes {size}: from 1 to 65536");
    }
    let chosen = chosen(&args.names)?;
    check_steps(&chosen.experiments, &request.steps)?;
    run_all(args, &chosen, &request)
}

/// Of a group, what cannot run here is skipped with a line; one that was named must run.
fn run_all(args: &Args, chosen: &Chosen, request: &Request) -> anyhow::Result<ExitCode> {
    let mut report = Report {
        names: args.names.clone(),
        ..Report::default()
    };
    let mut is_wrong = false;
    for experiment in &chosen.experiments {
        if chosen.is_group
            && let Some(reason) = missing(experiment)
        {
            report.skip(experiment, &reason);
            continue;
        }
        eprintln!("tensorscope: {}: {}", experiment.name, experiment.about);
        let outcome = match (experiment.run)(request) {
            Ok(outcome) => outcome,
            // The others are not kept waiting, but the exit code tells.
            Err(error) if chosen.is_group && chosen.experiments.len() > 1 => {
                report.skip(experiment, &format!("{error:#}"));
                is_wrong = true;
                continue;
            }
            Err(error) => return Err(error.context(experiment.name)),
        };
        report.add(&outcome);
        if !args.json {
            println!("{}", outcome.text());
        }
        if let Some(folder) = &args.output {
            write(folder, &outcome)?;
        }
    }
    if args.json {
        println!("{}", report.text()?);
    }
    Ok(match is_wrong || report.experiments.is_empty() {
        true => ExitCode::from(2),
        false => ExitCode::SUCCESS,
    })
}

/// Why an experiment cannot run here, if it is known before.
fn missing(experiment: &Experiment) -> Option<String> {
    let missing = match experiment.needs {
        Needs::Processor => return None,
        Needs::Card => Card::open().err().map(anyhow::Error::from),
        Needs::Program => program::find().err(),
    };
    missing.map(|missing| format!("{missing:#}"))
}

/// Experiments with what they need, and whether that is here.
fn list() -> String {
    let card = Card::open();
    let missing = card.as_ref().err().map(|error| format!("{error:#}"));
    let mut text = String::new();
    for experiment in EXPERIMENTS {
        let needs = match (experiment.needs, &missing) {
            (Needs::Card, Some(_)) => " (needs a card)",
            _ => "",
        };
        text += &format!("{:<18} {}{needs}\n", experiment.name, experiment.about);
    }
    match (&card, missing) {
        (Ok(card), _) => text += &format!("card: {}\n", card.about().name),
        (_, Some(missing)) => text += &format!("no card: {missing}\n"),
        _ => {}
    }
    text
}

/// What is to be run.
struct Chosen {
    experiments: Vec<&'static Experiment>,
    /// By the name of a group: not everything of it must be possible here.
    is_group: bool,
}

fn chosen(names: &[String]) -> anyhow::Result<Chosen> {
    if names == ["all"] {
        return Ok(Chosen {
            experiments: EXPERIMENTS.iter().collect(),
            is_group: true,
        });
    }
    let mut chosen = Chosen {
        experiments: Vec::new(),
        is_group: false,
    };
    for name in names {
        let group = GROUPS.iter().find(|(group, _)| group == name);
        chosen.is_group |= group.is_some();
        let members = group.map_or(vec![name.as_str()], |(_, members)| members.to_vec());
        for member in members {
            match experiments::find(member) {
                Some(experiment) => chosen.experiments.push(experiment),
                None => bail!("there is no experiment {name:?}; `tensorscope lab` lists them"),
            }
        }
    }
    Ok(chosen)
}

fn check_steps(chosen: &[&Experiment], wanted: &[String]) -> anyhow::Result<()> {
    let known: Vec<&str> = chosen
        .iter()
        .flat_map(|experiment| experiment.steps)
        .map(|step| step.name)
        .collect();
    match wanted.iter().find(|step| !known.contains(&step.as_str())) {
        Some(step) => bail!("there is no step {step:?}; there are: {}", known.join(", ")),
        None => Ok(()),
    }
}

/// Results that were saved by `--output`.
fn read(path: &Path) -> anyhow::Result<Outcome> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{}: no results of the lab", path.display()))
}

fn put(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

fn draw(folder: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    for (name, svg) in plot::plots(outcome) {
        put(folder, &format!("{name}.svg"), &svg.standalone())?;
    }
    Ok(())
}

fn write(folder: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let name = &outcome.experiment;
    put(folder, &format!("{name}.json"), &outcome.json()?)?;
    put(folder, &format!("{name}.txt"), &outcome.text())?;
    draw(folder, outcome)
}
