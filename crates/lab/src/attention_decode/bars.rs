//! What was asked of the last steps, and how near they come to missing it.

use crate::outcome::{Outcome, Row};

/// Adds, of each that was asked, the case that comes nearest to missing it.
pub fn note(outcome: &mut Outcome) {
    let case_of = |row: &Row| -> Option<(usize, usize)> {
        let (batch, context) = row.case.strip_prefix("batch ")?.split_once(", context ")?;
        Some((batch.parse().ok()?, context.parse().ok()?))
    };
    let mut notes = Vec::new();
    for step in ["tensor", "q8"] {
        for (words, share, is_in) in [
            (
                "batch ≥ 32, context ≥ 4096",
                0.9,
                (|batch, context| batch >= 32 && context >= 4096) as fn(usize, usize) -> bool,
            ),
            ("batch 1, context ≥ 65536", 0.8, |batch, context| {
                batch == 1 && context >= 65536
            }),
        ] {
            let lowest = outcome
                .rows
                .iter()
                .filter(|row| row.step == step)
                .filter(|row| case_of(row).is_some_and(|(batch, context)| is_in(batch, context)))
                .filter_map(|row| Some((row.against.as_ref()?.ratio.median, &row.case)))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((ratio, case)) = lowest {
                notes.push(format!(
                    "{step}, {words}: at least {:.1} % of copy ({case}); asked: {:.0} %.",
                    100.0 * ratio,
                    100.0 * share
                ));
            }
        }
    }
    outcome.notes.extend(notes);
}
