//! `tensorscope audit`: proves the record against the MMU.

use std::{ffi::OsString, fmt::Write as _, path::Path, process::ExitCode};

use anyhow::{Context as _, bail};
use audit::touched;
use comfy_table::{Table, presets};
use engine::{
    audit::{Grain, touch},
    loading::Loading,
    model::Repack,
};
use indicatif::ProgressBar;
use kernelio::leftover::Leftover;
use launch::{
    attach::{self, AttachProps, Purpose, Repacking, Verbosity},
    gpu::GpuTimes,
    underneath::UnderneathArgs,
};
use reader::audit::{Files, Findings, Tally, TouchedByStream, compare};
use rundir::Run;
use serde_json::json;
use terminal::{progress, text::count};
use trace::read::streams;

use crate::engine_args::{EngineArgs, MemoryCounts, OF_ENGINE};

/// Prove the record complete: hold it against the pages that the MMU saw touched
///
/// All pages of the weights are made inaccessible before each graph evaluation (with
/// --per-node before each node); a fault handler marks each page on its first touch.
/// The trace of the same run is then read back and compared, page by page.
///
/// With a program behind `--` the llama.cpp in that program is audited (as `record --
/// PROGRAM` records it); weights stay mapped (as with --no-repack).
///
/// Exit code 0 when recall is 100 % and precision at least 99.9 %, 1 otherwise.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope audit -m model.gguf -p 'Once upon a time' -n 8
  tensorscope audit -m moe.gguf -p 'To be' -n 4 --per-node      # node by node, one thread
  tensorscope audit -m model.gguf -f prompt.txt -n 2 --flash-attn off --json
  tensorscope audit -- python3 chat.py")]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// Compare node by node instead of evaluation by evaluation (uses one thread)
    #[arg(long, conflicts_with = "program")]
    per_node: bool,

    /// Print every discrepancy, not only the first 20
    #[arg(long)]
    all: bool,

    /// Print the findings as JSON
    #[arg(long)]
    json: bool,

    /// Program to run and audit, with its arguments; its standard output goes to ours
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = OF_ENGINE)]
    program: Vec<OsString>,
}

const PRECISION_BAR: f64 = 0.999;

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let scratch = Leftover::scratch(None)?;
    let findings = if args.program.is_empty() {
        args.engine.check_model("audit")?;
        of_engine(&args, scratch.path())?
    } else {
        of_program(&args, scratch.path())?
    };
    let passed = findings.total.recall() == 1.0
        && findings.total.precision() >= PRECISION_BAR
        && findings.flawed_evaluations == 0
        && findings.total.touched > 0;
    if args.json {
        terminal::print(&serde_json::to_string_pretty(&as_json(&findings, passed))?)?;
    } else {
        let found = text(&findings, args.all);
        terminal::print(&format!("{found}{}", verdict(&findings, passed)))?;
    }
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

fn of_engine(args: &Args, log_directory: &Path) -> anyhow::Result<Findings> {
    let prompts = args.engine.prompts()?;
    let mut prepared =
        args.engine
            .prepare(prompts, Repack::Off, Loading::AsFound, MemoryCounts::No)?;
    let grain = if args.per_node {
        Grain::Node
    } else {
        Grain::Evaluation
    };
    if args.per_node {
        prepared.context.threads = 1;
    }
    let bar = progress::bar(prepared.generate.tokens as u64, "auditing", "tokens");
    let touched = touch(
        &prepared.model,
        prepared.context,
        &prepared.generate,
        grain,
        log_directory,
        &mut |tokens| bar.set_position(tokens as u64),
    )?;
    bar.finish_and_clear();
    let spinner = ProgressBar::new_spinner().with_message("comparing");
    let files = Files::of_model(&prepared.model.gguf);
    let findings = compare(&files, log_directory, &[(0, touched)].into())?;
    spinner.finish_and_clear();
    Ok(findings)
}

fn of_program(args: &Args, scratch: &Path) -> anyhow::Result<Findings> {
    let output = scratch.join("run");
    attach::run(&AttachProps {
        program: args.program.clone(),
        output: Some(output.clone()),
        duration: None,
        max_log_bytes: None,
        max_tokens: args.engine.tokens.map(u64::from),
        repacking: Repacking::Prevented,
        purpose: Purpose::Audit,
        underneath: UnderneathArgs::default(),
        feed: None,
        gpu_times: GpuTimes::Off,
        verbosity: Verbosity::Quiet,
    })?;
    if !output.exists() {
        bail!("there is nothing to audit");
    }
    let log_directory = Run::open(&output)?.log_directory();
    let files = Files::open(&attach::model_files(&log_directory))?;
    let mut touched = TouchedByStream::new();
    for stream in streams(&log_directory)? {
        let of_stream = touched::read(&log_directory, stream, &files.first)
            .with_context(|| format!("the pages that stream {stream} touched"))?;
        touched.insert(stream, of_stream);
    }
    Ok(compare(&files, &log_directory, &touched)?)
}

/// Ends with a newline, or is empty.
fn text(findings: &Findings, all: bool) -> String {
    let mut text = String::new();
    for (title, rows) in [("op", &findings.by_op), ("tensor", &findings.by_tensor)] {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            title,
            "pages claimed",
            "pages touched",
            "recall %",
            "precision %",
        ]);
        // Tensors that agree fully are many and say nothing.
        let listed = rows
            .iter()
            .filter(|(_, t)| title == "op" || t.both != t.claimed || t.both != t.touched);
        let mut any = false;
        for (name, tally) in listed {
            any = true;
            table.add_row([
                name.clone(),
                tally.claimed.to_string(),
                tally.touched.to_string(),
                percent(tally.recall()),
                percent(tally.precision()),
            ]);
        }
        if any {
            let _ = writeln!(text, "{table}\n");
        }
    }
    let shown = if all {
        findings.discrepancies.len()
    } else {
        20
    };
    for d in findings.discrepancies.iter().take(shown) {
        let step = d.step.map_or(String::new(), |s| format!(" step {s}"));
        let what = if d.claimed_by.is_empty() {
            "touched, not claimed"
        } else {
            "claimed, not touched"
        };
        let _ = writeln!(
            text,
            "evaluation {}{step}: file {} offset {}: {what}: {} {}",
            d.evaluation,
            d.file,
            d.file_offset,
            d.tensors.join(", "),
            d.claimed_by.join(", ")
        );
    }
    if findings.discrepancies.len() > shown {
        let _ = writeln!(
            text,
            "… and {} more (--all prints them)",
            findings.discrepancies.len() - shown
        );
    }
    text
}

/// Never rounds up to 100: a single missed page must show.
fn percent(share: f64) -> String {
    let text = format!("{:.3}", share * 100.0);
    if share < 1.0 && text == "100.000" {
        "99.999".into()
    } else {
        text
    }
}

fn verdict(findings: &Findings, passed: bool) -> String {
    format!(
        "audit {}: recall {} %, precision {} % of {} in {}{}",
        if passed { "passed" } else { "FAILED" },
        percent(findings.total.recall()),
        percent(findings.total.precision()),
        count(findings.total.touched, "page"),
        count(findings.evaluations, "evaluation"),
        match findings.flawed_evaluations {
            0 => String::new(),
            n => format!("; {} lost or flawed", count(n, "evaluation")),
        }
    )
}

fn as_json(findings: &Findings, passed: bool) -> serde_json::Value {
    let tallies = |rows: &std::collections::BTreeMap<String, Tally>| {
        rows.iter()
            .map(|(name, t)| {
                json!({"name": name, "claimed_pages": t.claimed, "touched_pages": t.touched,
                       "recall": t.recall(), "precision": t.precision()})
            })
            .collect::<Vec<_>>()
    };
    json!({
        "passed": passed,
        "recall": findings.total.recall(),
        "precision": findings.total.precision(),
        "claimed_pages": findings.total.claimed,
        "touched_pages": findings.total.touched,
        "evaluations": findings.evaluations,
        "flawed_evaluations": findings.flawed_evaluations,
        "by_op": tallies(&findings.by_op),
        "by_tensor": tallies(&findings.by_tensor),
        "discrepancies": findings.discrepancies.iter().map(|d| json!({
            "evaluation": d.evaluation, "step": d.step, "file": d.file, "file_offset": d.file_offset,
            "tensors": d.tensors, "claimed_by": d.claimed_by,
        })).collect::<Vec<_>>(),
    })
}
