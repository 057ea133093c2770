//! The roofline as rows of text for a terminal and a page: what each class of nodes reached.

use analysis::roofline::{Bound, Point, Roofline};

use crate::plot::{Unit, units::short};

pub const TITLE: &str = "Roofline";

/// Said below or above the table.
pub const NOTE: &str = "share: of what memory or arithmetic, whichever is the bound, allow to as many threads; more than \
     100 % came from a cache";

pub const HEADS: [&str; 10] = [
    "nodes",
    "phase",
    "bound",
    "tokens",
    "time %",
    "time",
    "GFLOP/s",
    "GB/s",
    "FLOP/byte",
    "share %",
];

/// The first of them hold words.
pub const WORDS: usize = 3;

/// Classes of less of a phase's time say nothing.
const MIN_SHARE: f64 = 0.005;
const MAX_ROWS: usize = 24;

/// What is shown, and what a sort goes by.
pub type Cell = (String, f64);

/// Those that took longest, first.
pub fn rows(roofline: &Roofline) -> Vec<[Cell; HEADS.len()]> {
    let points = roofline.points.iter();
    let points = points.filter(|point| point.share_of_phase >= MIN_SHARE);
    points.take(MAX_ROWS).map(row).collect()
}

fn row(point: &Point) -> [Cell; HEADS.len()] {
    let row = &point.row;
    // What is not known comes before all.
    let amount = |amount: Option<f64>| match amount {
        Some(amount) => (short(amount), amount),
        None => ("-".to_owned(), -1.0),
    };
    let percent = |share: f64| (format!("{:.1}", share * 100.0), share);
    let batch = match row.batch_from == row.batch_to {
        true => row.batch_to.to_string(),
        false => format!("{} to {}", row.batch_from, row.batch_to),
    };
    let bound = match point.bound {
        Bound::Memory => "memory",
        Bound::Compute => "compute",
    };
    let nanos = row.nanos as f64;
    [
        (point.name(), 0.0),
        (row.phase.clone(), 0.0),
        (bound.to_owned(), 0.0),
        (batch, row.batch_to as f64),
        percent(point.share_of_phase),
        (Unit::Nanos.amount(nanos), nanos),
        amount(point.flops_per_second.map(|flops| flops / 1e9)),
        amount(Some(point.bytes_per_second / 1e9)),
        amount(point.intensity),
        percent(point.share_of_ceiling),
    ]
}

#[cfg(test)]
mod tests {
    use analysis::roofline::classes::ClassRow;

    use super::*;

    #[test]
    fn a_row_says_what_was_reached_and_small_classes_are_left_out() {
        let point = |share_of_phase| Point {
            row: ClassRow {
                phase: "prompt".to_owned(),
                op: "MUL_MAT".to_owned(),
                weight_type: Some("q4_0".to_owned()),
                component: "ffn".to_owned(),
                batch_from: 5,
                batch_to: 8,
                nanos: 2_000_000,
                ..ClassRow::default()
            },
            share_of_phase,
            flops_per_second: None,
            bytes_per_second: 8.126e9,
            intensity: None,
            bound: Bound::Memory,
            share_of_ceiling: 0.34,
            compute_roof: None,
        };
        let roofline = Roofline {
            points: vec![point(0.61), point(0.001)],
            ..Roofline::default()
        };
        let expect = [
            "MUL_MAT q4_0 ffn",
            "prompt",
            "memory",
            "5 to 8",
            "61.0",
            "2 ms",
            "-",
            "8.13",
            "-",
            "34.0",
        ];
        let rows = rows(&roofline);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].each_ref().map(|(text, _)| text.as_str()), expect);
    }
}
