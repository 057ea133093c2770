//! What was measured, for people: a table for each budget.

use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanBytes;

use super::{Outcome, measure::Row};

pub fn text(outcome: &Outcome) -> String {
    let mut text = head(outcome);
    let mut rows = outcome.results.as_slice();
    while let Some(first) = rows.first() {
        let end = rows
            .iter()
            .position(|row| row.memory != first.memory)
            .unwrap_or(rows.len());
        let (budget, rest) = rows.split_at(end);
        text.push_str(&format!(
            "\n\n{}: limit {}, {} of it for weights\n{}",
            first.memory,
            HumanBytes(first.limit_bytes),
            HumanBytes(first.weights_memory_bytes),
            table(budget, outcome.has_experts)
        ));
        rows = rest;
    }
    for row in &outcome.results {
        for failure in &row.failures {
            text.push_str(&format!("\n{}, {}: {failure}", row.memory, row.mode));
        }
    }
    if let Some(predictions) = &outcome.predictions {
        text.push_str(&format!("\n\n{}", predictions.sentence()));
    }
    for note in &outcome.notes {
        text.push_str(&format!("\nnote: {note}"));
    }
    text
}

fn head(outcome: &Outcome) -> String {
    let mut text = format!(
        "{}: {} of weights, {} besides; {} tokens, {}, cold cache, each run in its own memory cgroup\n\
         a share of memory is of the weights; what a run needs besides comes on top, and the limit is the same for all modes\n",
        outcome.model,
        HumanBytes(outcome.weight_bytes),
        HumanBytes(outcome.other_bytes),
        outcome.tokens,
        match outcome.repeats {
            1 => "measured once".to_owned(),
            repeats => format!("{repeats} repeats"),
        }
    );
    text.push_str(&format!("the ceiling is {}", outcome.ceiling));
    if let Some(routing) = &outcome.routing {
        text.push_str(&format!(
            "\nexperts are drawn ({routing}), in every mode alike"
        ));
    }
    if let Some(seconds) = outcome.compute_seconds_per_token {
        text.push_str(&format!(
            "\nwith everything in memory: {:.2} tokens/s",
            seconds.recip()
        ));
    }
    if let Some(rate) = outcome.disk_bytes_per_second {
        text.push_str(&format!("\ndisk: {:.2} GB/s between the runs", rate / 1e9));
    }
    if let Some(best) = outcome.stock_best.first() {
        text.push_str(&format!("\nstock-best: {}", best.describe()));
    }
    text
}

fn table(rows: &[Row], has_experts: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut head = vec![
        "mode",
        "tokens/s",
        "spread",
        "speed-up",
        "over best",
        "of ceiling",
        "MB/token",
        "disk GB/s",
        "peak",
        "first token",
        "predicted",
        "interval",
        "error",
        "same",
    ];
    if has_experts {
        head.extend(["hits", "LRU", "LFU", "aged", "Belady"]);
    }
    table.set_header(head);
    for row in rows {
        table.add_row(cells(row, has_experts));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn cells(row: &Row, has_experts: bool) -> Vec<String> {
    let show = |value: Option<f64>, how: fn(f64) -> String| value.map_or(String::new(), how);
    let percent = |value: f64| format!("{:.1} %", value * 100.0);
    let spread = row.tokens_per_second_least.zip(row.tokens_per_second_most);
    let mut cells = vec![
        row.mode.clone(),
        show(row.tokens_per_second, |v| format!("{v:.2}")),
        spread.map_or(String::new(), |(least, most)| {
            format!("{least:.2} … {most:.2}")
        }),
        show(row.speedup, |v| format!("{v:.2}×")),
        show(row.speedup_over_best, |v| format!("{v:.2}×")),
        show(row.ceiling_share, |v| format!("{:.0} %", v * 100.0)),
        show(row.bytes_read_per_token, |v| format!("{:.0}", v / 1e6)),
        show(row.disk_bytes_per_second, |v| format!("{:.2}", v / 1e9)),
        row.peak_bytes
            .map_or(String::new(), |bytes| HumanBytes(bytes).to_string()),
        show(row.first_token_seconds, |v| format!("{v:.2} s")),
        show(row.predicted_tokens_per_second, |v| format!("{v:.2}")),
        row.predicted_low
            .zip(row.predicted_high)
            .map_or(String::new(), |(low, high)| format!("{low:.2} … {high:.2}")),
        show(row.prediction_error, |v| format!("{:+.0} %", v * 100.0)),
        match row.identical {
            true => "yes".to_owned(),
            false => "NO".to_owned(),
        },
    ];
    if has_experts {
        let simulated = row.simulated;
        cells.push(row.hit_rate.map_or(String::new(), percent));
        cells.push(simulated.map_or(String::new(), |s| percent(s.lru)));
        cells.push(simulated.map_or(String::new(), |s| percent(s.lfu)));
        cells.push(simulated.map_or(String::new(), |s| percent(s.lfu_aged)));
        cells.push(simulated.map_or(String::new(), |s| percent(s.belady)));
    }
    cells
}
