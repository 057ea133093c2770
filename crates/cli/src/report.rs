//! `tensorscope report`: what a trace says, on a page.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use anyhow::bail;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanBytes;
use reader::summary::{Summary, Traffic, summarise};
use rundir::{Condition, Run};
use serde_json::{Value, json};
use terminal::{
    progress,
    runs::{open_run, says_what_is_missing},
    text::grouped,
};
use trace::template::TensorKind;

use crate::{
    analyse::{AnalyseProps, Results, analyse, read_ceilings, results},
    report_files::{self, Kind},
};

/// Say what a trace shows: findings with their evidence, bytes and time by kind, component, op
///
/// As text, as JSON, as one HTML page that needs no network, as Markdown, or every plot as a
/// picture.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope report RUN
  tensorscope report RUN --html -o report.html
  tensorscope report RUN --png -o plots              # a folder
  tensorscope report RUN --json | jq .findings
  tensorscope bench ceilings -m model.gguf -o ceilings.json
  tensorscope report RUN --memory 2G,4G --ceilings ceilings.json")]
pub struct Args {
    /// Run directory
    run: PathBuf,

    /// Budgets of memory for the whole program to judge, e.g. 2G,4G, as in `plan` [default:
    /// sixteen even steps of memory for weights]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = terminal::text::size)]
    memory: Vec<u64>,

    /// Disk and memory speeds for predictions: what `bench ceilings -o FILE` wrote
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
        serde_json::to_string_pretty(&object)?
    } else {
        page(&run, &summary, &results)
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

fn page(run: &Run, summary: &Summary, results: &Results) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    if let Some(model) = run.metadata().and_then(|m| m.model.as_ref()) {
        line(format!(
            "{} ({}, {} parameters, {})",
            model.name.as_deref().unwrap_or("unnamed model"),
            model.architecture,
            grouped(model.parameters),
            HumanBytes(model.size_bytes)
        ));
    }
    line(format!(
        "{} evaluations, {} executed nodes, {} accesses, {} lost; {} of log",
        grouped(summary.evaluations),
        grouped(summary.steps),
        grouped(summary.accesses),
        grouped(run.lost().accesses),
        HumanBytes(log_bytes(run, summary))
    ));
    for (phase, sum) in &summary.by_phase {
        line(format!(
            "{phase}: {} tokens in {} evaluations, {:.3} s, {:.1} tokens/s, {} of weights read per evaluation",
            grouped(sum.tokens),
            grouped(sum.evaluations),
            sum.nanos as f64 / 1e9,
            sum.timed_tokens as f64 * 1e9 / sum.nanos.max(1) as f64,
            HumanBytes(sum.weight_bytes / sum.evaluations.max(1))
        ));
    }
    if summary.drafted_tokens > 0 {
        line(format!(
            "draft: {} tokens were guessed and checked beside generated ones",
            grouped(summary.drafted_tokens)
        ));
    }
    let _ = writeln!(out, "\nFindings");
    for finding in &results.findings {
        let _ = writeln!(out, "- {}", finding.text);
        let _ = writeln!(out, "    evidence: {}", finding.evidence);
        if let Some(sql) = &finding.sql {
            let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ");
            let _ = writeln!(out, "    query: {sql}");
        }
    }
    if let Some(underneath) = &results.underneath {
        let _ = write!(out, "\n{}", render::underneath::text(underneath));
    }
    let total: u64 = summary.by_kind.values().map(|t| t.bytes).sum();
    let share = |bytes: u64| format!("{:.1}", bytes as f64 * 100.0 / total.max(1) as f64);
    let _ = writeln!(out, "\nBytes by kind");
    let mut table = new_table(&["kind", "direction", "accesses", "bytes", "share %"], 2);
    for ((kind, direction), traffic) in &summary.by_kind {
        table.add_row([
            kind.name().to_owned(),
            (*direction).to_owned(),
            grouped(traffic.accesses),
            HumanBytes(traffic.bytes).to_string(),
            share(traffic.bytes),
        ]);
    }
    let _ = writeln!(out, "{table}\n\nWeights by component");
    let weights: u64 = summary
        .by_kind
        .get(&(TensorKind::Weight, "read"))
        .map_or(0, |traffic| traffic.bytes)
        .max(1);
    let mut table = new_table(&["component", "accesses", "bytes", "share of weights %"], 1);
    for (component, traffic) in &summary.by_component {
        table.add_row([
            (*component).to_owned(),
            grouped(traffic.accesses),
            HumanBytes(traffic.bytes).to_string(),
            format!("{:.1}", traffic.bytes as f64 * 100.0 / weights as f64),
        ]);
    }
    let _ = writeln!(out, "{table}");
    if !results.facts.sources.is_empty() {
        let _ = writeln!(out, "\nWeights by where they were");
        let header = ["phase", "source", "accesses", "bytes", "waited ms"];
        let mut table = new_table(&header, 2);
        for row in &results.facts.sources {
            table.add_row([
                row.phase.clone(),
                row.source.clone(),
                grouped(row.accesses),
                HumanBytes(row.bytes).to_string(),
                format!("{:.2}", row.waited_nanos as f64 / 1e6),
            ]);
        }
        let _ = writeln!(out, "{table}");
    }
    let _ = writeln!(out, "\nOps by time");
    let nanos: u64 = summary.by_op.values().map(|op| op.nanos).sum();
    let mut table = new_table(&["op", "executions", "ms", "time %", "read", "written"], 1);
    let mut ops: Vec<_> = summary.by_op.iter().collect();
    ops.sort_by_key(|(_, op)| std::cmp::Reverse(op.nanos));
    for (name, op) in ops {
        let unknown = if op.is_unknown {
            " (unknown: whole views)"
        } else {
            ""
        };
        table.add_row([
            format!("{name}{unknown}"),
            grouped(op.steps),
            format!("{:.2}", op.nanos as f64 / 1e6),
            format!("{:.1}", op.nanos as f64 * 100.0 / nanos.max(1) as f64),
            HumanBytes(op.read.bytes).to_string(),
            HumanBytes(op.written.bytes).to_string(),
        ]);
    }
    let _ = writeln!(out, "{table}");
    if !summary.experts.is_empty() {
        let _ = writeln!(out, "\nExperts by layer");
        let mut table = new_table(
            &["layer", "choices", "experts used", "hottest", "its share %"],
            0,
        );
        for (layer, experts) in &summary.experts {
            let choices: u64 = experts.values().sum();
            let hottest = experts.iter().max_by_key(|(_, n)| **n);
            table.add_row([
                layer.to_string(),
                grouped(choices),
                experts.len().to_string(),
                hottest.map_or(String::new(), |(e, _)| e.to_string()),
                hottest.map_or(String::new(), |(_, n)| {
                    format!("{:.1}", *n as f64 * 100.0 / choices as f64)
                }),
            ]);
        }
        let _ = writeln!(out, "{table}");
    }
    out
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
fn log_bytes(run: &Run, summary: &Summary) -> u64 {
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
        "by_phase": summary.by_phase.iter().map(|(phase, p)| json!({
            "phase": phase, "evaluations": p.evaluations, "tokens": p.tokens, "nanos": p.nanos,
            "weight_bytes": p.weight_bytes,
        })).collect::<Vec<_>>(),
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
