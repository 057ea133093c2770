//! `tensorscope export`: a trace in the formats of other tools.

use std::{
    io::{self, BufWriter, IsTerminal as _, Write},
    ops::Range,
    path::PathBuf,
    process::{ExitCode, Stdio},
};

use anyhow::bail;
use reader::kernel::{Cpu, Underneath};
use render::{Log, Measure, RenderError, Stats, flamegraph, folded, perfetto, rows};
use rundir::{Run, error::reason};
use terminal::{
    create_new,
    runs::{open_run, says_what_is_missing},
};

use crate::tables;

/// Write a trace for other tools: CSV, JSON lines, Parquet, Perfetto, flame graphs
///
/// Rows (csv, json, parquet) are those of one table: tensors, evals, tokens, nodes, accesses,
/// routing, or of devices, kernels and copies, what GPUs did. An access with several byte ranges has its first one in tensor_offset, the sum
/// in bytes, and how they repeat in runs, run_bytes and strides. docs/exports.md describes
/// every format.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope export RUN --table accesses > accesses.csv
  tensorscope export RUN --table routing --to json -o routing.jsonl
  tensorscope export RUN --table nodes --to parquet -o nodes.parquet
  tensorscope export RUN --to perfetto -o trace.json           # open in ui.perfetto.dev
  tensorscope export RUN --to flamegraph --by bytes -o bytes.svg
  tensorscope export RUN --to folded --by time | inferno-flamegraph > time.svg
  tensorscope export RUN --to flamegraph --by cpu -o cpu.svg   # of `record --cpu`
  tensorscope export RUN --to animation -o run.gif             # or .mp4")]
pub struct Args {
    /// Run directory
    run: PathBuf,

    /// Format
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    to: Format,

    /// Which rows (csv, json and parquet)
    #[arg(long, value_enum, default_value_t = Table::Accesses)]
    table: Table,

    /// What widths and weights are (folded and flamegraph); cpu: time of threads on processors,
    /// below the functions that they were in (needs `record --cpu`)
    #[arg(long, value_enum, default_value_t = By::Bytes)]
    by: By,

    /// Only evaluations A to B, B not included, e.g. 10..20
    #[arg(long, value_name = "A..B", value_parser = eval_range)]
    evals: Option<std::ops::Range<u64>>,

    /// Only tokens A to B, both included, e.g. 3-20 (animation)
    #[arg(long, value_name = "A-B", value_parser = token_range)]
    tokens: Option<(u64, u64)>,

    /// Frames per second (animation)
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=50))]
    fps: u32,

    /// Width in pixels (animation)
    #[arg(long, value_name = "N", default_value_t = 800, value_parser = clap::value_parser!(u32).range(320..=3840))]
    width: u32,

    /// File to write; it must not exist [default: standard output]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Csv,
    /// One object a line
    Json,
    Parquet,
    /// Chrome's JSON trace events, for ui.perfetto.dev
    Perfetto,
    /// phase;layer;component;op;tensor COUNT
    Folded,
    /// The report's flame graph as an SVG
    Flamegraph,
    /// Playback as GIF or, with ffmpeg, MP4: by the file's name
    Animation,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Table {
    Tensors,
    Evals,
    Tokens,
    Nodes,
    Accesses,
    Routing,
    Devices,
    Kernels,
    Copies,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum By {
    Bytes,
    Time,
    Cpu,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let run = open_run(&args.run)?;
    match args.to {
        Format::Parquet => return parquet(&args, &run),
        Format::Animation => return animate(&args, &run),
        _ => {}
    }
    let mut log = Log::new(&run.log_directory());
    if let Some(evals) = args.evals.clone() {
        log = log.with_evals(evals);
    }
    // Before a file is made.
    let weight = Weight::of(args.by, &run)?;
    let out: Box<dyn Write> = match &args.output {
        None => Box::new(io::stdout().lock()),
        Some(path) => Box::new(create_new(path)?),
    };
    let streamed = stream(&args, &run, &log, &weight, out);
    if let (Err(_), Some(path)) = (&streamed, &args.output) {
        // Half an export is none, and the same command can be given again.
        let _ = std::fs::remove_file(path);
    }
    match streamed {
        Ok(stats) => {
            for damage in &stats.damaged {
                eprintln!("tensorscope: {damage}");
            }
            // Asked for a part, a run may well have more.
            let is_missing = match &args.evals {
                None => says_what_is_missing(&run, stats.evaluations),
                Some(evals) => stats.evaluations == 0 && says_that_none_is_in(&run, evals),
            };
            // Lost data is an error, never a warning.
            Ok(if stats.damaged.is_empty() && !is_missing {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(1)
            })
        }
        // `| head` has seen enough.
        Err(error) if error.is_closed_pipe() => Ok(ExitCode::SUCCESS),
        Err(RenderError::Write(error)) => {
            let place = args.output.as_ref().map(|path| path.display().to_string());
            let place = place.unwrap_or_else(|| "standard output".to_owned());
            bail!("{place}: cannot write: {}", reason(&error))
        }
        Err(error) => Err(error.into()),
    }
}

/// Always `true`.
fn says_that_none_is_in(run: &Run, evals: &Range<u64>) -> bool {
    let recorded = run.status().map_or(0, |status| status.evals_committed);
    eprintln!(
        "tensorscope: {}: no evaluation is in {}..{}; the run has {recorded}, counted from 0",
        run.path().display(),
        evals.start,
        evals.end
    );
    true
}

/// What flame graphs show.
enum Weight {
    Model(Measure),
    Cpu(Box<Cpu>),
}

impl Weight {
    fn of(by: By, run: &Run) -> anyhow::Result<Weight> {
        match by {
            By::Bytes => Ok(Weight::Model(Measure::Bytes)),
            By::Time => Ok(Weight::Model(Measure::Time)),
            By::Cpu => {
                let underneath = Underneath::open(run)?;
                let cpu = underneath.map(|underneath| underneath.cpu()).transpose()?;
                match cpu.flatten() {
                    Some(cpu) => Ok(Weight::Cpu(Box::new(cpu))),
                    None => bail!(
                        "{}: nobody looked at the processors; record with `record --cpu`",
                        run.path().display()
                    ),
                }
            }
        }
    }
}

fn stream(
    args: &Args,
    run: &Run,
    log: &Log,
    weight: &Weight,
    out: Box<dyn Write>,
) -> Result<Stats, RenderError> {
    let mut out = BufWriter::new(out);
    let title = title(run);
    let is_whole = args.evals.is_none();
    let table = match args.table {
        Table::Tensors => rows::Table::Tensors,
        Table::Evals => rows::Table::Evals,
        Table::Tokens => rows::Table::Tokens,
        Table::Nodes => rows::Table::Nodes,
        Table::Accesses => rows::Table::Accesses,
        Table::Routing => rows::Table::Routing,
        Table::Devices => rows::Table::Devices,
        Table::Kernels => rows::Table::Kernels,
        Table::Copies => rows::Table::Copies,
    };
    let stats = match args.to {
        Format::Csv => rows::write_rows(log, table, rows::Format::Csv, &mut out),
        Format::Json => rows::write_rows(log, table, rows::Format::Json, &mut out),
        Format::Perfetto => perfetto::write(log, &perfetto::Options { title }, &mut out),
        Format::Folded => match weight {
            Weight::Model(measure) => folded::write(log, *measure, &mut out),
            Weight::Cpu(cpu) => render::cpu::write_folded(log, cpu, is_whole, &mut out),
        },
        Format::Flamegraph => match weight {
            Weight::Model(measure) => flamegraph::write(log, *measure, &title, &mut out),
            Weight::Cpu(cpu) => render::cpu::write_flamegraph(log, cpu, is_whole, &title, &mut out),
        },
        Format::Parquet | Format::Animation => {
            unreachable!("written by a function of its own")
        }
    }?;
    out.flush()?;
    Ok(stats)
}

/// The table as it is, or the part of it that was asked for.
fn parquet(args: &Args, run: &Run) -> anyhow::Result<ExitCode> {
    match args.table {
        Table::Tensors if args.evals.is_some() => {
            bail!("--evals does not go with --table tensors: tensors belong to no evaluation")
        }
        Table::Devices if args.evals.is_some() => {
            bail!("--evals does not go with --table devices: devices belong to no evaluation")
        }
        _ => {}
    }
    let table = match args.table {
        Table::Tensors => "tensors",
        Table::Evals => "evals",
        Table::Tokens => "tokens",
        Table::Nodes => "nodes",
        Table::Accesses => "accesses",
        Table::Routing => "routing",
        Table::Devices => "devices",
        Table::Kernels => "kernels",
        Table::Copies => "copies",
    };
    let out = match &args.output {
        Some(path) => create_new(path)?.into(),
        None if io::stdout().is_terminal() => {
            bail!("Parquet is not for a terminal; give a file with `-o FILE`")
        }
        None => Stdio::inherit(),
    };
    let written = tables::export(run, table, args.evals.as_ref(), out);
    if let (Err(_) | Ok(tables::Exported::Nothing), Some(path)) = (&written, &args.output) {
        // Half a table is none, and the same command can be given again.
        let _ = std::fs::remove_file(path);
        if written.is_ok() {
            eprintln!("tensorscope: {}: not written", path.display());
        }
    }
    Ok(written?.code())
}

/// Lost data is an error, never a warning.
fn code_of(is_missing: bool) -> ExitCode {
    match is_missing {
        true => ExitCode::from(1),
        false => ExitCode::SUCCESS,
    }
}

fn animate(args: &Args, run: &Run) -> anyhow::Result<ExitCode> {
    let Some(path) = &args.output else {
        bail!("--to animation needs a file: -o FILE.gif or FILE.mp4");
    };
    let is_missing = crate::animate::write(
        run,
        path,
        &crate::animate::AnimateProps {
            frames_per_second: args.fps,
            width_px: args.width,
            tokens: args.tokens,
        },
    )?;
    Ok(code_of(is_missing))
}

fn token_range(text: &str) -> Result<(u64, u64), String> {
    let wrong = || format!("`{text}` is not a valid range; write for instance 3-20");
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) if from <= to => Ok((from, to)),
        _ => Err(wrong()),
    }
}

fn title(run: &Run) -> String {
    let model = run.metadata().and_then(|m| m.model.as_ref());
    let name = model.and_then(|m| m.name.clone());
    name.unwrap_or_else(|| run.path().display().to_string())
}

fn eval_range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("`{text}` is not a valid range; write for instance 10..20");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let (from, to) = (
        from.parse().map_err(|_| wrong())?,
        to.parse().map_err(|_| wrong())?,
    );
    if from < to {
        Ok(from..to)
    } else {
        Err(wrong())
    }
}
