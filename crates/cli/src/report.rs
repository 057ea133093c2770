//! `tensorscope report`: what a trace says, on a page.

use std::{path::PathBuf, process::ExitCode};

use anyhow::bail;
use comfy_table::{CellAlignment, Table, presets};
use reader::summary::{Summary, Traffic, summarise};
use rundir::{Condition, Run};
use serde_json::{Value, json};
use terminal::{
    progress,
    runs::{open_run, says_what_is_missing},
};

use crate::{
    analyse::{AnalyseProps, analyse, read_ceilings, results},
    diagnose,
    report_files::{self, Kind},
    report_text::{Queries, phases, text},
};

/// Say what to do about a run, what it shows, and bytes and time by kind, component and op
///
/// First what to do, with the flags to type; then findings, each a sentence with its numbers;
/// what less memory would give; then tables. As text, as JSON, as one HTML page that needs no network, as Markdown, or every plot as a
/// picture.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope report RUN
  tensorscope report RUN --queries                   # and the SQL that shows each finding
  tensorscope report RUN --memory 2G,4G              # what these budgets would give
  tensorscope report RUN --html -o report.html
  tensorscope report RUN --png -o plots              # a folder
  tensorscope report RUN --json | jq .actions
  tensorscope bench ceilings -m model.gguf -o ceilings.json
  tensorscope report RUN --memory 2G,4G --ceilings ceilings.json")]
pub struct Args {
    /// Run directory
    run: PathBuf,

    /// Budgets of memory for the whole program to judge, e.g. 2G,4G, as in `plan` [default:
    /// sixteen even steps of memory for weights]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = terminal::text::size)]
    memory: Vec<u64>,

    /// Say below each finding where its numbers are in --json, and the query that shows them
    #[arg(long, conflicts_with_all = ["json", "html", "md", "svg", "png"])]
    queries: bool,

    /// Speeds of this machine for predictions and the roofline: what `bench ceilings -o FILE` wrote
    #[arg(long, value_name = "FILE")]
    ceilings: Option<PathBuf>,

    /// Share of the weights that counts as hot, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    hot: u8,

    /// Share of the weights that counts as cold, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=100))]
    cold: u8,

    /// Largest gap between accesses that still count as sequential, e.g. 128K
    #[arg(long, value_name = "BYTES", default_value = "128K", value_parser = terminal::text::size)]
    gap: u64,

    /// Print everything as JSON
    #[arg(long)]
    json: bool,

    /// One self-contained page with all plots
    #[arg(long, conflicts_with = "json")]
    html: bool,

    /// Markdown, with its plots in a folder beside the file
    #[arg(long, conflicts_with_all = ["json", "html"])]
    md: bool,

    /// Every plot as an SVG file
    #[arg(long, conflicts_with_all = ["json", "html", "md"])]
    svg: bool,

    /// Every plot as a PNG file of 300 dots an inch
    #[arg(long, conflicts_with_all = ["json", "html", "md", "svg"])]
    png: bool,

    /// File (--html, --md) or folder (--svg, --png) to write; it must not exist
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let run = open_run(&args.run)?;
    let files = args.files()?;
    let ceilings = args.ceilings.as_deref().map(read_ceilings).transpose()?;
    let bar = progress::bar(run.log_bytes(), "reading", "bytes");
    let summary = summarise(&run.log_directory(), &mut |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    for damage in &summary.corrupt {
        eprintln!("tensorscope: {damage}");
    }
    let mut facts = analysis::facts::Options {
        gap_bytes: args.gap,
        ..Default::default()
    };
    facts.thresholds.hot = f64::from(args.hot) / 100.0;
    facts.thresholds.cold = f64::from(args.cold) / 100.0;
    let props = AnalyseProps {
        facts,
        budgets_bytes: args.memory.clone(),
        ceilings,
    };
    let results = match props.is_default() {
        true => results(&run)?,
        false => analyse(&run, &props)?,
    };
    let is_missing = says_what_is_missing(&run, summary.evaluations);
    // Lost data is an error, never a warning.
    let code = if summary.corrupt.is_empty() && !is_missing {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    };
    if let Some(files) = files {
        files.write(&run, &results)?;
        return Ok(code);
    }
    let out = if args.json {
        let mut object = as_json(&run, &summary);
        for (key, value) in serde_json::to_value(&results)?
            .as_object()
            .into_iter()
            .flatten()
        {
            object[key] = value.clone();
        }
        object["diagnosis"] = serde_json::to_value(diagnose::of_run(&run, &results)?)?;
        serde_json::to_string_pretty(&object)?
    } else {
        let queries = match args.queries {
            true => Queries::Shown,
            false => Queries::Hidden,
        };
        text(&run, &summary, &results, queries)
    };
    terminal::print(&out)?;
    Ok(code)
}

impl Args {
    /// The files to write, if it is not text or JSON that is wanted.
    fn files(&self) -> anyhow::Result<Option<report_files::Target>> {
        let kinds = [
            (self.html, Kind::Html),
            (self.md, Kind::Markdown),
            (self.svg, Kind::Svg),
            (self.png, Kind::Png),
        ];
        match kinds.into_iter().find(|(is_wanted, _)| *is_wanted) {
            Some((_, kind)) => report_files::Target::create(kind, self.output.clone()).map(Some),
            None if self.output.is_some() => {
                bail!("-o goes with --html, --md, --svg or --png; redirect text and JSON with `>`")
            }
            None => Ok(None),
        }
    }
}

/// A table whose columns from `first_number` on hold numbers.
pub fn new_table(header: &[&str], first_number: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(first_number) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Bytes of the log. What the recorder had prepared and not used yet when it was killed is
/// none of them.
pub fn log_bytes(run: &Run, summary: &Summary) -> u64 {
    match run.condition() {
        Condition::Killed { .. } | Condition::Recording { .. } => summary.record_bytes,
        _ => run.log_bytes(),
    }
}

fn as_json(run: &Run, summary: &Summary) -> Value {
    let traffic = |t: &Traffic| json!({"accesses": t.accesses, "bytes": t.bytes});
    let lost = run.lost();
    json!({
        "run": run.path().to_string_lossy(),
        "warning": run.warning(),
        "evaluations": summary.evaluations,
        "partial_evaluations": summary.partial,
        "corrupt_records": summary.corrupt,
        "flagged_evaluations": summary.flagged,
        "lost_evaluations": lost.evaluations,
        "lost_accesses": lost.accesses,
        "steps": summary.steps,
        "accesses": summary.accesses,
        "templates": summary.templates,
        "routes": summary.routes,
        "drafted_tokens": summary.drafted_tokens,
        "log_bytes": log_bytes(run, summary),
        "duration_nanos": summary.last_nanos.saturating_sub(summary.first_nanos),
        "by_phase": phases(summary).into_iter().map(|(phase, p)| json!({
            "phase": phase, "evaluations": p.evaluations, "tokens": p.tokens, "nanos": p.nanos,
            "untimed_evaluations": p.untimed_evaluations, "weight_bytes": p.weight_bytes,
        })).collect::<Vec<_>>(),
        "by_device": summary.by_device,
        "by_kind": summary.by_kind.iter().map(|((kind, direction), t)| json!({
            "kind": kind.name(), "direction": direction, "accesses": t.accesses, "bytes": t.bytes,
        })).collect::<Vec<_>>(),
        "by_component": summary.by_component.iter().map(|(component, t)| {
            let mut row = traffic(t);
            row["component"] = json!(component);
            row
        }).collect::<Vec<_>>(),
        "by_op": summary.by_op.iter().map(|(op, o)| json!({
            "op": op, "executions": o.steps, "nanos": o.nanos, "read_bytes": o.read.bytes,
            "written_bytes": o.written.bytes, "known": !o.is_unknown,
        })).collect::<Vec<_>>(),
        "by_layer": summary.by_layer.iter().map(|(layer, t)| {
            let mut row = traffic(t);
            row["layer"] = json!(layer);
            row
        }).collect::<Vec<_>>(),
        "by_tensor": summary.by_tensor.iter().map(|(name, t)| {
            let mut row = traffic(t);
            row["tensor"] = json!(name);
            row
        }).collect::<Vec<_>>(),
        "buffer_types_of_weights": summary.by_buffer_type,
        "experts": summary.experts.iter().flat_map(|(layer, experts)| {
            experts.iter().map(move |(expert, choices)| json!({
                "layer": layer, "expert": expert, "choices": choices,
            }))
        }).collect::<Vec<_>>(),
    })
}
