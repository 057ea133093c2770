//! `quant-llama`: what quantised weights give llama.cpp's own kernels on this processor, asked
//! of the recorder.
//!
//! For each type a model of the same shape is written, generates with several sequences side by
//! side, and is recorded; the time of its matrix products is in the run's tables. Nothing of
//! llama.cpp is timed by hand.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::{
    experiments::Request,
    measure::{Spread, in_turns, speed_against},
    outcome::{Outcome, Row},
    program,
};

/// The first is what others are compared with.
const TYPES: &[&str] = &["bf16", "f16", "q8_0", "q4_0", "q4_K"];
const SHAPE: &str = "llama-3.2-1b";
/// Passes that are recorded.
const TOKENS: &str = "8";
const QUERY: &str = "SELECT sum(n.duration_nanos) AS nanos FROM nodes n JOIN evals e ON e.eval = n.eval \
    WHERE n.op = 'MUL_MAT' AND e.phase = 'generate' GROUP BY e.eval";

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let batches = request.sizes_or(&[1, 2, 4, 8, 16, 32, 64], &[1, 4]);
    let rounds = request.rounds.min(if request.is_quick { 1 } else { 3 });
    let question = "What do quantised weights give llama.cpp's own kernels, and up to which batch?";
    let quantity = "ms of matrix products";
    let mut outcome = Outcome::new(
        "quant-llama",
        question,
        "batch",
        quantity,
        None,
        request.seed,
    );
    let folder = tempfile::tempdir()?;
    let models: Vec<PathBuf> = TYPES
        .iter()
        .map(|ty| folder.path().join(format!("{ty}.gguf")))
        .collect();
    for (ty, path) in TYPES.iter().zip(&models) {
        let path = path.to_string_lossy();
        let mut words = vec![
            "synth", "--like", SHAPE, "--layers", "4", "--vocab", "4096", "--type", ty, "-q", "-o",
            &path,
        ];
        words.extend(request.is_quick.then_some("--tiny"));
        program::output(&words)?;
    }
    for batch in batches {
        let times = in_turns(TYPES.len(), rounds, |i| {
            products_ms(folder.path(), &models[i], batch)
        })?;
        for (ty, own) in TYPES.iter().zip(&times) {
            let row = Row::reference(ty, batch.to_string(), batch as f64, Spread::of(own));
            outcome
                .rows
                .push(row.against(TYPES[0], speed_against(own, &times[0])));
        }
    }
    outcome.notes.push(format!(
        "Recorded runs of {SHAPE} with 4 layers; the time of all MUL_MAT nodes of a pass with so many sequences side by side, median of {TOKENS} passes."
    ));
    outcome.notes.extend(advantage(&outcome, "q4_K"));
    Ok(outcome)
}

/// At which batches a type is faster than the reference, and at which not.
fn advantage(outcome: &Outcome, ty: &str) -> Option<String> {
    let rows = outcome.rows.iter().filter(|row| row.step == ty);
    let ratios: Vec<(f64, f64)> = rows
        .filter_map(|row| Some((row.x, row.against.as_ref()?.ratio.median)))
        .collect();
    let &(first, best) = ratios.first()?;
    let slower = ratios.iter().filter(|(_, ratio)| *ratio < 1.0);
    let slower: Vec<String> = slower.map(|(batch, _)| format!("{batch:.0}")).collect();
    let reference = TYPES[0];
    Some(format!(
        "{ty} is {best:.1} times as fast as {reference} at batch {first:.0}{}.",
        match slower.is_empty() {
            true => ", and not slower at any batch that was tried".to_owned(),
            false => format!(
                ", and slower at {}: there unpacking costs more than the bytes that it saves",
                slower.join(", ")
            ),
        }
    ))
}

/// Milliseconds of matrix products of a pass: the median over a recorded run.
fn products_ms(folder: &Path, model: &Path, batch: usize) -> anyhow::Result<f64> {
    let run = folder.join("run");
    if run.exists() {
        std::fs::remove_dir_all(&run)?;
    }
    let (run, model, batch) = (
        run.to_string_lossy(),
        model.to_string_lossy(),
        batch.to_string(),
    );
    program::output(&[
        "record",
        "-m",
        &model,
        "-p",
        "a b",
        "-n",
        TOKENS,
        "--parallel",
        &batch,
        "-q",
        "-o",
        &run,
    ])?;
    let answer = program::output(&["sql", &run, QUERY, "--format", "csv"])?;
    let nanos: Vec<f64> = answer
        .lines()
        .skip(1)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| answer.clone())?;
    ensure!(!nanos.is_empty(), "the recorded run has no matrix products");
    Ok(Spread::of(&nanos).median / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_advantage_ends_is_said() {
        let mut outcome = Outcome::new("x", "?", "batch", "ms", None, 1);
        let spread = |median| Spread {
            median,
            lower_quartile: median,
            upper_quartile: median,
        };
        for (batch, ratio) in [(1.0, 3.0), (8.0, 1.2), (32.0, 0.9)] {
            outcome.rows.push(
                Row::reference("q4_K", batch.to_string(), batch, spread(1.0))
                    .against("bf16", spread(ratio)),
            );
        }
        let said = advantage(&outcome, "q4_K").unwrap();
        assert!(
            said.contains("3.0 times") && said.contains("slower at 32"),
            "{said}"
        );
        assert!(advantage(&outcome, "q8_0").is_none());
    }
}
