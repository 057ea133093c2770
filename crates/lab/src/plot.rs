//! What an experiment found, as pictures: the ladder as bars, and steps against cases as lines.

use render::{
    palette::{Category, SERIES},
    plot::{
        Axis, Svg, Ticks, Unit,
        marks::{Bar, Line, bars, lines},
    },
};

use crate::outcome::{Outcome, Row};

const HEIGHT_PX: f64 = 380.0;
/// More names than this do not fit below a plot.
const MAX_CASES: usize = 10;

/// File names without their ending, and pictures; none of an experiment without rows.
pub fn plots(outcome: &Outcome) -> Vec<(String, Svg)> {
    let ladder = ladder(outcome).map(|svg| (outcome.experiment.clone(), svg));
    let cases = cases(outcome).map(|svg| (format!("{}-cases", outcome.experiment), svg));
    ladder.into_iter().chain(cases).collect()
}

/// Cases in the order of the table.
fn cases_of(outcome: &Outcome) -> Vec<&str> {
    let mut cases: Vec<&str> = Vec::new();
    for row in &outcome.rows {
        if !cases.contains(&row.case.as_str()) {
            cases.push(&row.case);
        }
    }
    cases
}

/// Every step in the last of the cases that have most steps.
fn ladder(outcome: &Outcome) -> Option<Svg> {
    let rows_of = |case: &str| outcome.rows.iter().filter(|row| row.case == case).count();
    let case = cases_of(outcome)
        .into_iter()
        .max_by_key(|case| rows_of(case))?;
    let rows = outcome.rows.iter().filter(|row| row.case == case);
    let drawn: Vec<Bar> = rows.map(bar).collect();
    let title = format!("{}: {} {case}", outcome.experiment, outcome.x_name);
    let caption = format!(
        "{} The median of each step; behind it, its share of the reference that was measured in the same rounds.",
        outcome.question
    );
    Some(bars(&outcome.quantity, Unit::Plain, &drawn, &[]).finish(&title, &caption))
}

fn bar(row: &Row) -> Bar {
    let is_ours = !row.source.is_empty();
    let amount = Unit::Plain.amount(row.value.median);
    let note = match &row.against {
        Some(against) => format!(
            "{amount} ({:.0} % of {})",
            100.0 * against.ratio.median,
            against.reference
        ),
        None => amount,
    };
    Bar {
        name: row.step.clone(),
        parts: vec![(
            row.value.median,
            Category::of(if is_ours { "attention" } else { "norm" }),
        )],
        note,
    }
}

/// Steps against cases, where there are few enough to be told apart.
fn cases(outcome: &Outcome) -> Option<Svg> {
    let cases = cases_of(outcome);
    let mut steps: Vec<&str> = Vec::new();
    for row in &outcome.rows {
        if !steps.contains(&row.step.as_str()) {
            steps.push(&row.step);
        }
    }
    if !(3..=MAX_CASES).contains(&cases.len()) || steps.len() > SERIES.len() {
        return None;
    }
    let place = |row: &Row| cases.iter().position(|case| *case == row.case).unwrap_or(0) as f64;
    let drawn: Vec<Line> = steps
        .iter()
        .zip(SERIES)
        .map(|(step, colour)| {
            let rows: Vec<&Row> = outcome
                .rows
                .iter()
                .filter(|row| row.step == *step)
                .collect();
            let medians = rows.iter().map(|row| (place(row), row.value.median));
            Line {
                spreads: rows
                    .iter()
                    .map(|row| (row.value.lower_quartile, row.value.upper_quartile))
                    .collect(),
                ..Line::new(step, Category::of(colour), medians)
            }
        })
        .collect();
    let most = outcome
        .rows
        .iter()
        .map(|row| row.value.upper_quartile)
        .fold(0.0, f64::max);
    let names = cases
        .iter()
        .enumerate()
        .map(|(at, case)| (at as f64, (*case).to_owned()));
    let x = Axis::new(&outcome.x_name, Unit::Plain, 0.0, cases.len() as f64 - 0.8)
        .with_ticks(Ticks::Named(names.collect()));
    let y = Axis::new(&outcome.quantity, Unit::Plain, 0.0, most * 1.05);
    let title = format!("{} against {}", outcome.experiment, outcome.x_name);
    let caption = format!(
        "{} Medians, and the middle half of what was measured.",
        outcome.question
    );
    Some(lines(HEIGHT_PX, &x, &y, &drawn).finish(&title, &caption))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;

    #[test]
    fn a_ladder_and_its_cases_are_drawn() {
        let mut outcome = Outcome::new("gemm", "How fast?", "size", "TFLOP/s", None, 1);
        assert!(plots(&outcome).is_empty());
        let value = |median| Spread {
            median,
            lower_quartile: median * 0.9,
            upper_quartile: median * 1.1,
        };
        for size in [1024, 2048, 4096] {
            for (step, speed) in [("naive", 1.0), ("tiles", 10.0), ("cuBLAS", 20.0)] {
                let row = Row::reference(step, size.to_string(), f64::from(size), value(speed));
                outcome
                    .rows
                    .push(row.against("cuBLAS", value(speed / 20.0)));
            }
        }
        let pictures = plots(&outcome);
        let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["gemm", "gemm-cases"]);
        let ladder = pictures[0].1.standalone();
        assert!(
            ladder.contains("10 (50 % of cuBLAS)") && ladder.contains(">tiles<"),
            "{ladder}"
        );
        let cases = pictures[1].1.standalone();
        assert!(
            cases.contains(">2048<") && !cases.contains("NaN"),
            "{cases}"
        );
    }
}
