//! `tensorscope compare`: what moved between two runs.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use analysis::compare::{Change, Comparison, compare};
use indicatif::HumanBytes;
use terminal::{
    runs::{open_run, says_what_is_missing},
    text::count,
};

use crate::{
    analyse::{facts_of, models_of},
    report::new_table,
};

/// Compare two runs: what moved, by component, op and layer, in bytes and in time per token
///
/// For the same model at two precisions, two prompts or two settings. Runs of different
/// models are compared by kind, component and op only.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope compare RUN-F16 RUN-Q4
  tensorscope compare BEFORE AFTER --json | jq '.phases[].by_component'")]
pub struct Args {
    /// First run directory
    a: PathBuf,

    /// Second run directory
    b: PathBuf,

    /// Rows per table
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,

    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (a, b) = (open_run(&args.a)?, open_run(&args.b)?);
    let ((facts_a, read_a), (facts_b, read_b)) = (facts_of(&a)?, facts_of(&b)?);
    let comparison = compare(&facts_a, &facts_b, models_of(&a, &b));
    let out = if args.json {
        serde_json::to_string_pretty(&comparison)?
    } else {
        page(&args, &comparison)
    };
    terminal::print(&out)?;
    // Both, so that both are named.
    let missing = [
        says_what_is_missing(&a, read_a),
        says_what_is_missing(&b, read_b),
    ];
    Ok(if missing == [false, false] {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

fn page(args: &Args, comparison: &Comparison) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "A  {}\nB  {}", args.a.display(), args.b.display());
    if comparison.phases.is_empty() {
        let _ = writeln!(
            out,
            "\nthe runs have no phase in common: nothing to compare"
        );
    }
    for phase in &comparison.phases {
        let _ = writeln!(
            out,
            "\n{} ({} in A, {} in B)",
            phase.phase,
            count(phase.a_tokens, "token"),
            phase.b_tokens
        );
        let total = std::slice::from_ref(&phase.total);
        let tables = [
            ("", total),
            ("component", &phase.by_component[..]),
            ("op", &phase.by_op[..]),
            ("layer", phase.by_layer.as_deref().unwrap_or(&[])),
            ("weights from, waited", &phase.by_source[..]),
        ];
        for (title, changes) in tables {
            if !changes.is_empty() {
                let _ = writeln!(out, "{}\n", table(title, changes, args.top));
            }
        }
    }
    if !comparison.experts.is_empty() {
        let shared: f64 = comparison.experts.iter().map(|layer| layer.jaccard).sum();
        let _ = writeln!(
            out,
            "hot experts: {:.0} % of A's and B's hottest are the same, on average over {}",
            shared * 100.0 / comparison.experts.len() as f64,
            count(comparison.experts.len() as u64, "layer")
        );
    }
    out
}

fn table(title: &str, changes: &[Change], top: usize) -> comfy_table::Table {
    let mut table = new_table(
        &[
            title, "A bytes", "B bytes", "change", "B/A", "A µs", "B µs", "change", "B/A",
        ],
        1,
    );
    let ratio = |value: Option<f64>| value.map_or("-".to_owned(), |r| format!("{r:.2}"));
    let bytes = |value: f64| HumanBytes(value.abs() as u64).to_string();
    for change in changes.iter().take(top) {
        table.add_row([
            if title.is_empty() {
                "per token".to_owned()
            } else {
                change.name.clone()
            },
            bytes(change.a_bytes_per_token),
            bytes(change.b_bytes_per_token),
            format!(
                "{}{}",
                if change.bytes_change < 0.0 { "-" } else { "+" },
                bytes(change.bytes_change)
            ),
            ratio(change.bytes_ratio),
            format!("{:.1}", change.a_nanos_per_token / 1e3),
            format!("{:.1}", change.b_nanos_per_token / 1e3),
            format!("{:+.1}", change.nanos_change / 1e3),
            ratio(change.nanos_ratio),
        ]);
    }
    table
}
