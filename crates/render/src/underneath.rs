//! What the kernel did underneath a run, as text for a terminal.

use std::fmt::Write as _;

use analysis::underneath::{
    OwnerSum, UnderneathResults, faults::FaultResults, requests::DiskResults,
    reread::RereadResults, residency::ResidencyResults, stall::StallResults, verdict::PhaseVerdict,
};

use crate::{
    plot::{
        Unit,
        units::{grouped, short},
    },
    plots::{layer_name, plural},
};

/// Rows of each table; `report --json` and `tensorscope sql` have the rest.
const MAX_ROWS: usize = 10;

/// The section of the report, from its heading to its last table.
pub fn text(results: &UnderneathResults) -> String {
    let mut out = String::from("Underneath\n");
    for verdict in &results.verdicts {
        out.push_str(&verdict_line(verdict));
    }
    for missing in &results.missing {
        let _ = writeln!(out, "- missing: {}", plain(missing));
    }
    if let Some(counters) = &results.counters {
        let mut parts = Vec::new();
        let mut say = |value: Option<u64>, text: &dyn Fn(u64) -> String| {
            parts.extend(value.map(text));
        };
        say(counters.major_faults, &|n| plural(n, "major fault"));
        say(counters.minor_faults, &|n| plural(n, "minor fault"));
        say(counters.read_bytes, &|n| format!("{} read", amount(n)));
        say(counters.memory_limit_bytes, &|n| {
            format!("memory limited to {}", amount(n))
        });
        if !parts.is_empty() {
            let _ = writeln!(out, "- the whole process: {}", parts.join(", "));
        }
    }
    if let Some(reread) = &results.reread {
        out.push_str(&reread_line(reread, results.model_bytes));
    }
    if let Some(disk) = results.disk.as_ref().filter(|disk| disk.requests > 0) {
        out.push_str(&disk_line(disk));
    }
    if let Some(faults) = &results.faults {
        out.push_str(&fault_lines(faults));
    }
    if let Some(residency) = results.residency.as_ref().filter(|r| r.samples > 0) {
        out.push_str(&residency_line(residency));
    }
    times(&mut out, results);
    let has_reads = results.reread.is_some();
    let most = results.most_read();
    let most: Vec<&OwnerSum> = most.into_iter().filter(|sum| is_worth(sum)).collect();
    owners(&mut out, "Most read tensors", &most, has_reads);
    let components: Vec<&OwnerSum> = results
        .by_component
        .iter()
        .filter(|s| is_worth(s))
        .collect();
    owners(&mut out, "Read by component", &components, has_reads);
    let mut layers: Vec<&OwnerSum> = results.by_layer.iter().filter(|s| is_worth(s)).collect();
    layers.sort_by(|a, b| b.reread_factor.total_cmp(&a.reread_factor));
    owners(
        &mut out,
        "Layers by bytes read for their size",
        &layers,
        has_reads,
    );
    if let Some(stall) = &results.stall {
        nodes(&mut out, stall);
    }
    out
}

/// The time of a token in parts that add up.
fn times(out: &mut String, results: &UnderneathResults) {
    for time in &results.time {
        let tokens = time.tokens.max(1) as f64;
        let row = |(name, nanos): (&str, u64)| {
            let a_token = Unit::Nanos.amount(nanos as f64 / tokens);
            vec![name.to_owned(), a_token, percent(nanos, time.nanos)]
        };
        let rows: Vec<Vec<String>> = time.parts().into_iter().map(row).collect();
        let title = format!("Where the time of a token went: {}", time.phase);
        table(out, &title, &["", "a token", "share"], &rows, rows.len());
    }
}

fn is_worth(sum: &OwnerSum) -> bool {
    sum.read_bytes > 0 || sum.major_faults > 0
}

fn verdict_line(verdict: &PhaseVerdict) -> String {
    let bound = match (verdict.verdict, verdict.or) {
        (Some(bound), Some(or)) => format!("{} or {}", bound.name(), or.name()),
        (Some(bound), None) => bound.name().to_owned(),
        (None, _) => "not known".to_owned(),
    };
    format!("- {}: {bound}: {}\n", verdict.phase, plain(&verdict.why))
}

fn reread_line(reread: &RereadResults, model_bytes: u64) -> String {
    let mut line = format!(
        "- re-read factor {}: {} read from a model of {}, {} of it read before",
        short(reread.factor),
        amount(reread.read_bytes),
        amount(model_bytes),
        percent(reread.read_again_bytes, reread.read_bytes)
    );
    for row in &reread.by_phase {
        let _ = match row.bytes_per_token {
            Some(per_token) => write!(
                line,
                "; {}: {} ({} a token)",
                row.phase,
                amount(row.read_bytes),
                Unit::Bytes.amount(per_token)
            ),
            None => write!(line, "; outside of evaluations: {}", amount(row.read_bytes)),
        };
    }
    line.push('\n');
    line
}

fn disk_line(disk: &DiskResults) -> String {
    format!(
        "- disk: {}, median {}; sequential {:.1} %, within {} {:.1} %; read-ahead {:.1} %; depth {} while busy, {}/s; \
         half within {}, 99 % within {}\n",
        plural(disk.requests, "read"),
        amount(disk.median_bytes),
        disk.sequential_share * 100.0,
        amount(disk.gap_bytes),
        disk.near_share * 100.0,
        disk.read_ahead_share * 100.0,
        short(disk.mean_depth),
        amount(disk.bytes_per_second),
        nanos(disk.median_nanos),
        nanos(disk.p99_nanos),
    )
}

fn fault_lines(faults: &FaultResults) -> String {
    let mut out = format!(
        "- faults in the model: {} major, {} minor; {} have a tensor",
        grouped(faults.model.major),
        grouped(faults.model.minor),
        percent(faults.with_tensor.sum(), faults.model.sum())
    );
    for other in &faults.without_tensor {
        let _ = write!(
            out,
            ", {} in {} of file {}",
            grouped(other.major + other.minor),
            match other.what.as_str() {
                "header" => "the header",
                "padding" => "padding",
                "end" => "the end",
                _ => "an unknown part",
            },
            other.file
        );
    }
    for row in faults.by_phase.iter().filter(|row| row.phase == "none") {
        let sum = row.major + row.minor;
        let _ = write!(out, "; {} outside of evaluations", grouped(sum));
    }
    out.push('\n');
    if let Some(waits) = faults.waits.as_ref().filter(|waits| waits.threads > 0) {
        let _ = writeln!(
            out,
            "- faults that read or waited for a read: {} major and {} minor, {} of {} ({} on average); {} with at least one thread in one",
            grouped(waits.major),
            grouped(waits.minor),
            nanos(waits.thread_nanos),
            plural(waits.threads, "thread"),
            nanos(waits.mean_nanos),
            nanos(waits.nanos)
        );
    }
    out
}

fn residency_line(residency: &ResidencyResults) -> String {
    let mut line = format!(
        "- in memory: {:.1} % of the model on average, {} to {} in {}",
        residency.mean_share * 100.0,
        amount(residency.least_bytes),
        amount(residency.most_bytes),
        plural(residency.samples, "sample")
    );
    let _ = match residency.evicted_bytes {
        Some(evicted) => write!(line, "; {} dropped", amount(evicted)),
        None => write!(
            line,
            "; {} lost between samples",
            amount(residency.lost_bytes)
        ),
    };
    if let Some(again) = residency.read_after_resident_bytes {
        let _ = write!(
            line,
            ", at least {} read that had been there",
            amount(again)
        );
    }
    line.push('\n');
    line
}

fn owners(out: &mut String, title: &str, sums: &[&OwnerSum], has_reads: bool) {
    if sums.is_empty() {
        return;
    }
    let has_samples = sums.iter().any(|sum| sum.mean_resident_share.is_some());
    let mut heads = vec!["", "size"];
    if has_reads {
        heads.extend(["read", "times", "whole", "again"]);
    }
    heads.extend(["major faults", "minor"]);
    if has_samples {
        let has_evicted = sums.iter().any(|sum| sum.evicted_bytes.is_some());
        heads.extend(["in memory %", if has_evicted { "dropped" } else { "lost" }]);
    }
    let rows: Vec<Vec<String>> = sums
        .iter()
        .take(MAX_ROWS)
        .map(|sum| {
            let mut row = vec![plain(&sum.name), amount(sum.size_bytes)];
            if has_reads {
                row.extend([
                    amount(sum.read_bytes),
                    short(sum.reread_factor),
                    grouped(sum.whole_reads),
                    amount(sum.read_again_bytes),
                ]);
            }
            row.extend([grouped(sum.major_faults), grouped(sum.minor_faults)]);
            if has_samples {
                let share = sum.mean_resident_share.unwrap_or(0.0);
                row.push(format!("{:.1}", share * 100.0));
                row.push(amount(sum.evicted_bytes.or(sum.lost_bytes).unwrap_or(0)));
            }
            row
        })
        .collect();
    table(out, title, &heads, &rows, sums.len());
}

fn nodes(out: &mut String, stall: &StallResults) {
    let worth: Vec<_> = stall
        .by_node
        .iter()
        .filter(|node| node.sum.io_nanos > 0 || node.sum.major_faults > 0)
        .collect();
    if worth.is_empty() {
        return;
    }
    let heads = [
        "",
        "op",
        "layer",
        "time",
        "I/O outstanding",
        "share %",
        "reads",
        "read",
        "major faults",
        "threads waiting",
    ];
    let mut rows: Vec<Vec<String>> = worth
        .iter()
        .take(MAX_ROWS)
        .map(|node| {
            let mut row = vec![node.phase.clone(), plain(&node.op), layer_name(node.layer)];
            row.extend(stall_cells(&node.sum));
            row
        })
        .collect();
    let mut total = vec!["all".to_owned(), String::new(), String::new()];
    total.extend(stall_cells(&stall.total));
    rows.push(total);
    table(
        out,
        "Nodes that ran while the disk was reading",
        &heads,
        &rows,
        worth.len(),
    );
}

fn stall_cells(sum: &analysis::underneath::stall::StallSum) -> Vec<String> {
    vec![
        nanos(sum.nanos),
        nanos(sum.io_nanos),
        format!("{:.1}", sum.io_share * 100.0),
        grouped(sum.requests),
        amount(sum.read_bytes),
        grouped(sum.major_faults),
        format!("{:.2}", sum.mean_waiting),
    ]
}

/// Columns of text on the left, of numbers on the right.
fn table(out: &mut String, title: &str, heads: &[&str], rows: &[Vec<String>], all: usize) {
    let _ = match all > MAX_ROWS {
        true => writeln!(
            out,
            "\n{title} (the first {MAX_ROWS} of {})",
            grouped(all as u64)
        ),
        false => writeln!(out, "\n{title}"),
    };
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells
            .chain([heads[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    // Names are on the left, as is the op of a node.
    let is_word = |column: usize| column == 0 || heads[column] == "op";
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, cell) in cells.enumerate() {
            let width = widths[column];
            let _ = match is_word(column) {
                true => write!(text, " {cell:<width$} "),
                false => write!(text, " {cell:>width$} "),
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(&mut heads.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}

fn amount(bytes: u64) -> String {
    Unit::Bytes.amount(bytes as f64)
}

fn nanos(nanos: u64) -> String {
    Unit::Nanos.amount(nanos as f64)
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "none".to_owned(),
        whole => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

/// Names come from a model and must not steer a terminal.
fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}
