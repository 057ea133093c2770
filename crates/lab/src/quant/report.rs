//! What follows from the rows: how far the advantage reaches, and what ends it.

use super::{
    REFERENCE,
    steps::{Rung, step_of},
    weights::Format,
};
use crate::outcome::{Outcome, Row};

/// Adds notes, computed from the rows.
pub fn notes(outcome: &mut Outcome, shapes: &[(usize, usize)], batches: &[usize]) {
    let mut notes = vec![
        "Products follow each other, each with another copy of the weights (more than 400 MB of them in all, for cuBLAS too), so L2 has none of them. INT4 has one bf16 scale for 128 weights along k and no zero point.".to_owned(),
        "cuBLAS gets the INT4 weights, rounded to bf16; its error is against the weights before that rounding.".to_owned(),
    ];
    for format in Format::ALL {
        for &(n, k) in shapes {
            notes.extend(of_shape(outcome, format, (n, k), batches));
        }
    }
    outcome.notes.append(&mut notes);
}

fn of_shape(
    outcome: &Outcome,
    format: Format,
    (n, k): (usize, usize),
    batches: &[usize],
) -> Option<String> {
    let best = step_of(format, Rung::Best)?.name;
    let find = |step: &str, batch: usize| -> Option<&Row> {
        let case = format!("{n} × {k}, batch {batch}");
        outcome
            .rows
            .iter()
            .find(|row| row.step == step && row.case == case)
    };
    let ratio = |batch: usize| {
        let against = find(best, batch)?.against.as_ref()?;
        Some(against.ratio.median)
    };
    let (&first, &last) = (batches.first()?, batches.last()?);
    let up_to = |least: f64| {
        let good = batches
            .iter()
            .take_while(|&&batch| ratio(batch).is_some_and(|ratio| ratio >= least));
        good.last()
            .map_or("no batch".to_owned(), |batch| format!("batch {batch}"))
    };
    let weights = (n * k) as f64;
    // Bytes over microseconds are MB/s; a million of them TB/s.
    let rate = |bits: f64, row: &Row| weights * bits / 8.0 / row.value.median / 1e6;
    let flops = |batch: usize, row: &Row| 2.0 * weights * batch as f64 / row.value.median / 1e6;
    let (small, large) = (find(best, first)?, find(best, last)?);
    let (vendor_small, vendor_large) = (find(REFERENCE, first)?, find(REFERENCE, last)?);
    Some(format!(
        "{} at {n} × {k}: {:.2} times cuBLAS bf16 at batch {first} ({:.2} fewer bytes; weights come at {:.2} TB/s, cuBLAS's at {:.2}), at least 3.3 times up to {}, 2 times up to {}, as fast up to {}. At batch {last} it is {:.2} times as fast: {:.0} TFLOP/s against {:.0}; there bytes no longer count ({:.2} TB/s of weights), and unpacking is work that bf16 does not have.",
        format.name(),
        ratio(first)?,
        16.0 / format.bits(),
        rate(format.bits(), small),
        rate(16.0, vendor_small),
        up_to(3.3),
        up_to(2.0),
        up_to(1.0),
        ratio(last)?,
        flops(last, large),
        flops(last, vendor_large),
        rate(format.bits(), large),
    ))
}
