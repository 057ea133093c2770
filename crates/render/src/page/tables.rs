//! Tables of the report: by layer, by op, by tensor.

use std::fmt::Write as _;

use analysis::{opportunities::Opportunities, roofline::Roofline, underneath::UnderneathResults};
use index::{Info, Summary};

use crate::{
    devices, less_memory,
    plot::{
        Unit,
        text::escape,
        units::{grouped, short},
    },
    plots::{ReportInput, layer_name},
    roofline,
};

/// Rows of the longest table; who wants more wants `tensorscope sql`.
const MAX_ROWS: usize = 400;

pub(super) struct Table {
    pub id: &'static str,
    pub title: &'static str,
    /// Names of the columns; the first ones hold words.
    pub heads: Vec<&'static str>,
    pub words: usize,
    pub rows: Vec<Vec<Cell>>,
    /// Said below the table.
    pub note: String,
}

/// What is shown, and what a sort goes by.
pub(super) struct Cell {
    pub text: String,
    pub key: f64,
}

impl Cell {
    fn word(text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            key: 0.0,
        }
    }

    fn count(value: u64) -> Cell {
        Cell {
            text: grouped(value),
            key: value as f64,
        }
    }

    fn of(unit: Unit, value: f64) -> Cell {
        Cell {
            text: unit.amount(value),
            key: value,
        }
    }
}

pub(super) fn all(summary: &Summary, input: &ReportInput) -> Vec<Table> {
    let underneath = input.underneath;
    let opportunities = input.caches.and_then(|c| c.opportunities.as_ref());
    let mut tables: Vec<Table> = opportunities
        .and_then(with_less_memory)
        .into_iter()
        .collect();
    tables.extend([phases(&input.index.info()), layers(summary), ops(summary)]);
    tables.extend(input.roofline.map(roofline_table));
    let devices = devices::parts(&input.facts.devices, input.cards);
    tables.extend(devices.into_iter().map(device_table));
    tables.push(tensors(summary));
    tables.extend(underneath.map(verdicts));
    tables.extend(underneath.map(times));
    tables.extend(underneath.map(reads));
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn with_less_memory(opportunities: &Opportunities) -> Option<Table> {
    let memory = less_memory::rows(opportunities)?;
    let cell = |text: String| Cell::word(text);
    let rows = memory.rows.into_iter();
    Some(Table {
        id: "memory",
        title: less_memory::TITLE,
        words: memory.heads.len(),
        heads: memory.heads,
        rows: rows
            .map(|row| row.into_iter().map(cell).collect())
            .collect(),
        note: format!("In the columns of ways: {}.", less_memory::NOTE),
    })
}

fn roofline_table(of: &Roofline) -> Table {
    let cell = |(text, key): roofline::Cell| Cell { text, key };
    let rows = roofline::rows(of).into_iter();
    Table {
        id: "roofline",
        title: roofline::TITLE,
        heads: roofline::HEADS.to_vec(),
        words: roofline::WORDS,
        rows: rows
            .map(|row| row.into_iter().map(cell).collect())
            .collect(),
        note: format!("In the last column, {}.", roofline::NOTE),
    }
}

fn device_table(part: devices::Part) -> Table {
    let cell = |(text, key): devices::Cell| Cell { text, key };
    let rows = part.rows.into_iter();
    Table {
        id: part.id,
        title: part.title,
        heads: part.heads,
        words: part.words,
        rows: rows
            .map(|row| row.into_iter().map(cell).collect())
            .collect(),
        note: part.note.to_owned(),
    }
}

fn phases(info: &Info) -> Table {
    let rows = info.phases.iter().map(|phase| {
        vec![
            Cell::word(phase.phase),
            Cell::count(phase.evals),
            Cell::count(phase.tokens),
            Cell::of(Unit::Nanos, phase.nanos as f64),
            Cell {
                text: short(phase.tokens as f64 * 1e9 / phase.nanos.max(1) as f64),
                key: phase.tokens as f64 / phase.nanos.max(1) as f64,
            },
        ]
    });
    Table {
        id: "phases",
        title: "Phases",
        heads: vec!["phase", "evaluations", "tokens", "time", "tokens/s"],
        words: 1,
        rows: rows.collect(),
        note: String::new(),
    }
}

fn share(part: u64, all: u64) -> Cell {
    Cell::of(Unit::Share, part as f64 / all.max(1) as f64)
}

fn layers(summary: &Summary) -> Table {
    let totals = &summary.totals;
    let rows = summary.by_layer.iter().map(|layer| {
        vec![
            Cell {
                text: layer_name(layer.layer),
                key: layer.layer.map_or(f64::from(u32::MAX), f64::from),
            },
            Cell::count(layer.nodes),
            Cell::of(Unit::Nanos, layer.nanos as f64),
            share(layer.nanos, totals.nanos),
            Cell::count(layer.accesses),
            Cell::of(Unit::Bytes, layer.bytes as f64),
            share(layer.bytes, totals.bytes),
        ]
    });
    Table {
        id: "layers",
        title: "Layers",
        heads: vec![
            "layer", "nodes", "time", "of time", "accesses", "bytes", "of bytes",
        ],
        words: 0,
        rows: rows.collect(),
        note: "“none” is what belongs to no layer: the embedding and the output.".to_owned(),
    }
}

fn ops(summary: &Summary) -> Table {
    let totals = &summary.totals;
    let mut ops: Vec<_> = summary.by_op.iter().collect();
    ops.sort_by_key(|op| std::cmp::Reverse(op.nanos));
    let rows = ops.iter().map(|op| {
        vec![
            Cell::word(op.op.as_str()),
            Cell::count(op.nodes),
            Cell::of(Unit::Nanos, op.nanos as f64),
            share(op.nanos, totals.nanos),
            Cell::of(Unit::Nanos, op.nanos as f64 / op.nodes.max(1) as f64),
            Cell::count(op.accesses),
            Cell::of(Unit::Bytes, op.bytes as f64),
        ]
    });
    Table {
        id: "ops",
        title: "Ops",
        heads: vec![
            "op", "nodes", "time", "of time", "mean", "accesses", "bytes",
        ],
        words: 1,
        rows: rows.collect(),
        note: String::new(),
    }
}

fn tensors(summary: &Summary) -> Table {
    let mut tensors: Vec<_> = summary.by_tensor.iter().collect();
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.bytes));
    let all = tensors.len();
    let rows = tensors.iter().take(MAX_ROWS).map(|tensor| {
        vec![
            Cell::word(tensor.name.as_str()),
            Cell::word(tensor.component),
            Cell::of(Unit::Bytes, tensor.size_bytes as f64),
            Cell::count(tensor.accesses),
            Cell::of(Unit::Bytes, tensor.bytes as f64),
            Cell {
                text: format!(
                    "{} ×",
                    short(tensor.bytes as f64 / tensor.size_bytes.max(1) as f64)
                ),
                key: tensor.bytes as f64 / tensor.size_bytes.max(1) as f64,
            },
        ]
    });
    let mut note = "“each byte”: bytes read over the tensor’s size.".to_owned();
    if all > MAX_ROWS {
        let _ = write!(
            note,
            " The {MAX_ROWS} with most bytes of {}; `tensorscope sql` has all of them.",
            grouped(all as u64)
        );
    }
    Table {
        id: "tensors",
        title: "Tensors",
        heads: vec![
            "tensor",
            "component",
            "size",
            "accesses",
            "bytes",
            "each byte",
        ],
        words: 2,
        rows: rows.collect(),
        note,
    }
}

fn verdicts(results: &UnderneathResults) -> Table {
    let rows = results.verdicts.iter().map(|verdict| {
        let bound = verdict.verdict.map_or("not known", |bound| bound.name());
        let or = verdict.or.map(|or| format!(" or {}", or.name()));
        let part = |share: Option<f64>| Cell::of(Unit::Share, share.unwrap_or(0.0));
        vec![
            Cell::word(verdict.phase.as_str()),
            Cell::word(format!("{bound}{}", or.unwrap_or_default())),
            Cell::of(Unit::Nanos, verdict.nanos as f64),
            part(verdict.io_share),
            Cell::of(Unit::Bytes, verdict.disk_bytes.unwrap_or(0) as f64),
            Cell::of(
                Unit::Bytes,
                verdict.disk_bytes_per_second.unwrap_or(0) as f64,
            ),
            Cell::of(Unit::Bytes, verdict.touched_bytes_per_second as f64),
            Cell::count(verdict.major_faults.unwrap_or(0)),
            part(verdict.fault_share),
        ]
    });
    Table {
        id: "verdicts",
        title: "What bounds each phase",
        heads: vec![
            "phase",
            "bound by",
            "time",
            "I/O outstanding",
            "read",
            "disk, per second",
            "memory, per second",
            "major faults",
            "in faults",
        ],
        words: 2,
        rows: rows.collect(),
        note: results.missing.join("; "),
    }
}

/// The time of a token in parts that add up.
fn times(results: &UnderneathResults) -> Table {
    let rows = results.time.iter().flat_map(|time| {
        time.parts().into_iter().map(|(name, nanos)| {
            let share = nanos as f64 / time.nanos.max(1) as f64;
            vec![
                Cell::word(time.phase.as_str()),
                Cell::word(name),
                Cell::of(Unit::Nanos, nanos as f64 / time.tokens.max(1) as f64),
                Cell::of(Unit::Share, share),
            ]
        })
    });
    Table {
        id: "time",
        title: "Where the time of a token went",
        heads: vec!["phase", "part", "a token", "share"],
        words: 2,
        rows: rows.collect(),
        note: "By samples of all threads that compute (`record --cpu`): who waits for a thread \
               that does not run, or for the disk, is counted there."
            .to_owned(),
    }
}

fn reads(results: &UnderneathResults) -> Table {
    let most = results.most_read();
    let touched = most
        .iter()
        .filter(|sum| sum.read_bytes > 0 || sum.major_faults + sum.minor_faults > 0);
    let rows = touched.take(MAX_ROWS).map(|sum| {
        vec![
            Cell::word(sum.name.as_str()),
            Cell::of(Unit::Bytes, sum.size_bytes as f64),
            Cell::of(Unit::Bytes, sum.read_bytes as f64),
            Cell {
                text: format!("{} ×", short(sum.reread_factor)),
                key: sum.reread_factor,
            },
            Cell::count(sum.whole_reads),
            Cell::count(sum.major_faults),
            Cell::count(sum.minor_faults),
            Cell::of(Unit::Share, sum.mean_resident_share.unwrap_or(0.0)),
        ]
    });
    Table {
        id: "reads",
        title: "Read from the disk",
        heads: vec![
            "tensor",
            "size",
            "read",
            "times",
            "whole",
            "major faults",
            "minor faults",
            "in memory",
        ],
        words: 1,
        rows: rows.collect(),
        note: "“whole”: how often every byte was read.".to_owned(),
    }
}

impl Table {
    pub fn html(&self) -> String {
        let mut out = format!(
            "<h3 id=\"table-{}\">{}</h3>\n<div class=\"table\">\n<table>\n<thead><tr>",
            self.id, self.title
        );
        for (column, head) in self.heads.iter().enumerate() {
            let class = if column < self.words {
                ""
            } else {
                " class=\"n\""
            };
            let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escape(head));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let _ = match column < self.words {
                    true => write!(out, "<td>{}</td>", escape(&cell.text)),
                    false => write!(
                        out,
                        "<td class=\"n\" data-key=\"{}\">{}</td>",
                        cell.key,
                        escape(&cell.text)
                    ),
                };
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody>\n</table>\n</div>\n");
        if !self.note.is_empty() {
            let _ = writeln!(
                out,
                "<p class=\"note\">{}</p>",
                super::with_code(&self.note)
            );
        }
        out
    }
}
