//! `tensorscope report` as text: what to do, what the run shows, tables.

use std::fmt::Write as _;

use analysis::{actions::Action, findings::Finding};
use indicatif::HumanBytes;
use reader::summary::{PhaseSum, Summary};
use render::{devices, less_memory, roofline};
use rundir::Run;
use terminal::text::{count, grouped};
use trace::{format::Phase, template::TensorKind};

use crate::{
    analyse::Results,
    report::{log_bytes, new_table},
};

/// Whether findings name their place in the JSON, and the query that shows them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Queries {
    Hidden,
    Shown,
}

pub fn text(run: &Run, summary: &Summary, results: &Results, queries: Queries) -> String {
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
        "{}, {}, {}, {} lost; {} of log",
        evaluations(summary),
        count(summary.steps, "executed node"),
        count(summary.accesses, "access"),
        grouped(run.lost().accesses),
        HumanBytes(log_bytes(run, summary))
    ));
    for (phase, sum) in phases(summary) {
        line(format!(
            "{phase}: {} in {}, {}, {}",
            count(sum.tokens, "token"),
            count(sum.evaluations, "evaluation"),
            speed(sum),
            weights_read(sum, results),
        ));
    }
    if summary.drafted_tokens > 0 {
        line(format!(
            "draft: {} guessed and checked beside generated ones",
            count(summary.drafted_tokens, "token")
        ));
    }
    out.push_str(&actions(&results.actions));
    out.push_str(&findings(&results.findings, queries));
    out.push_str(&devices(results));
    out.push_str(&with_less_memory(results));
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
            component_name(component, results),
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
    let of_devices = match results.facts.devices.is_empty() {
        true => "",
        false => " (of devices only what was measured; bytes are of all evaluations)",
    };
    let _ = writeln!(out, "\nOps by time{of_devices}");
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
    out.push_str(&roofline_table(results));
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

/// In the order of a run: the prompt, then what was generated.
fn evaluations(summary: &Summary) -> String {
    let all = count(summary.evaluations, "evaluation");
    match summary.devices() {
        Some(devices) => format!("{all} ({devices})"),
        None => all,
    }
}

/// Of a run with devices per token: an evaluation is only a part of a pass there.
fn weights_read(sum: &PhaseSum, results: &Results) -> String {
    let devices = &results.facts.devices;
    if devices.is_empty() {
        let each = sum.weight_bytes / sum.evaluations.max(1);
        return format!("{} of weights read per evaluation", HumanBytes(each));
    }
    let at_least = match devices.experts.are_all() {
        true => "",
        false => "at least ",
    };
    let each = HumanBytes(sum.weight_bytes / sum.tokens.max(1));
    format!("{at_least}{each} of weights read per token")
}

/// Time and tokens per second; no speed where a device did not say how long it took.
fn speed(sum: &PhaseSum) -> String {
    let seconds = sum.nanos as f64 / 1e9;
    match sum.untimed_evaluations {
        0 => {
            let speed = sum.tokens_per_second().unwrap_or(0.0);
            format!("{seconds:.3} s, {speed:.1} tokens/s")
        }
        untimed => format!(
            "{seconds:.3} s without {} of devices that were not timed",
            count(untimed, "evaluation")
        ),
    }
}

/// In the order of a run: the prompt, then what was generated.
pub fn phases(summary: &Summary) -> Vec<(&'static str, &PhaseSum)> {
    let phases = [Phase::Prompt, Phase::Generate, Phase::Unknown].map(Phase::name);
    let sums = phases.into_iter();
    sums.filter_map(|phase| Some((phase, summary.by_phase.get(phase)?)))
        .collect()
}

fn actions(actions: &[Action]) -> String {
    let mut out = String::new();
    if !actions.is_empty() {
        out.push_str("\nWhat to do\n");
    }
    for action in actions {
        let _ = writeln!(out, "- {}", action.text);
        if let Some(flags) = &action.llama_cpp {
            let _ = writeln!(out, "    llama.cpp: {flags}");
        }
        if let Some(command) = &action.tensorscope {
            let _ = writeln!(out, "    tensorscope: {command}");
        }
    }
    out
}

fn findings(findings: &[Finding], queries: Queries) -> String {
    let mut out = String::from("\nFindings\n");
    for finding in findings {
        let _ = writeln!(out, "- {}", finding.text);
        if queries == Queries::Hidden {
            continue;
        }
        let _ = writeln!(out, "    evidence: {}", finding.evidence);
        if let Some(sql) = &finding.sql {
            let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ");
            let _ = writeln!(out, "    query: {sql}");
        }
    }
    out
}

/// The tables of what devices did; their sentences are the first findings.
fn devices(results: &Results) -> String {
    let mut out = String::new();
    for part in devices::parts(&results.facts.devices, &results.cards) {
        let mut table = new_table(&part.heads, part.words);
        let rows = part.rows.into_iter();
        table.add_rows(rows.map(|row| row.into_iter().map(|(text, _)| text)));
        let note = match part.note {
            "" => String::new(),
            note => format!(" ({note})"),
        };
        let _ = writeln!(out, "\n{}{note}\n{table}", part.title);
    }
    out
}

fn roofline_table(results: &Results) -> String {
    let rows = results.roofline.as_ref().map(roofline::rows);
    let Some(rows) = rows.filter(|rows| !rows.is_empty()) else {
        return String::new();
    };
    let mut table = new_table(&roofline::HEADS, roofline::WORDS);
    table.add_rows(rows.into_iter().map(|row| row.map(|(text, _)| text)));
    format!("\n{} ({})\n{table}\n", roofline::TITLE, roofline::NOTE)
}

fn with_less_memory(results: &Results) -> String {
    let opportunities = results.caches.as_ref();
    let opportunities = opportunities.and_then(|caches| caches.opportunities.as_ref());
    let Some(memory) = opportunities.and_then(less_memory::rows) else {
        return String::new();
    };
    let mut table = new_table(&memory.heads, 0);
    table.add_rows(memory.rows);
    let (title, note) = (less_memory::TITLE, less_memory::NOTE);
    format!("\n{title} ({note})\n{table}\n")
}

/// `output (tied to the embedding)`: one tensor, which is both.
fn component_name(component: &str, results: &Results) -> String {
    let mut groups = results.facts.hot.by_component.iter();
    let group = groups.find(|group| group.name == component);
    match group.and_then(|group| group.tied_to.as_deref()) {
        Some(other) => format!("{component} (tied to the {other})"),
        None => component.to_owned(),
    }
}
