//! What programs read: all that was asked for, in one object.
//!
//! Scripts hold on to `steps` (each with a `name`, a rate, its share of a reference and its
//! error) and to `skipped`; the rest is what [`Outcome`] has.

use serde::Serialize;

use crate::{
    experiments::Experiment,
    outcome::{Machine, Outcome, Row},
};

/// One call of `tensorscope lab --json`.
#[derive(Default, Serialize)]
pub struct Report {
    /// As they were typed.
    pub names: Vec<String>,
    pub steps: Vec<Step>,
    pub experiments: Vec<About>,
    pub skipped: Vec<Skipped>,
}

/// An experiment that was run.
#[derive(Serialize)]
pub struct About {
    experiment: String,
    question: String,
    machine: Machine,
    command: String,
    unix_seconds: u64,
    seed: u32,
    notes: Vec<String>,
}

/// An experiment that was not, and why: what is missing, or what went wrong.
#[derive(Serialize)]
pub struct Skipped {
    experiment: &'static str,
    reason: String,
}

/// A step (or a reference, without a source) in one case.
#[derive(Debug, Serialize)]
pub struct Step {
    experiment: String,
    name: String,
    case: String,
    /// The median of what was measured, in this unit, and the middle half around it.
    value: f64,
    lower_quartile: f64,
    upper_quartile: f64,
    unit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tflops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_second: Option<f64>,
    /// Speed against somebody else's program: 1 is as fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_vendor: Option<f64>,
    /// Share of what the machine can do, measured in the same rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_ceiling: Option<f64>,
    /// Ratio to anything else: another step, a prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_reference: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    relative_error: Option<f64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    source: String,
}

impl Step {
    fn new(outcome: &Outcome, row: &Row) -> Step {
        let value = row.value.median;
        // Microseconds become rates where it is known what was done in them.
        let per_second = |amount: Option<f64>| match outcome.quantity.as_str() {
            "µs" => amount.map(|amount| amount / value * 1e6),
            _ => None,
        };
        let work = row.work.unwrap_or_default();
        let (tflops, bytes_per_second) = match outcome.quantity.as_str() {
            "TFLOP/s" => (Some(value), None),
            "GFLOP/s" => (Some(value / 1e3), None),
            "GB/s" => (None, Some(value * 1e9)),
            _ => (
                per_second(work.flops).map(|flops| flops / 1e12),
                per_second(work.bytes),
            ),
        };
        let ratio = row.against.as_ref().map(|against| against.ratio.median);
        let reference = row
            .against
            .as_ref()
            .map(|against| against.reference.clone());
        let is = |known: &[&str]| {
            let is_known = |name: &String| known.iter().any(|known| name.contains(known));
            reference.as_ref().is_some_and(is_known)
        };
        let (is_vendor, is_ceiling) = (is(&["BLAS", "crate"]), is(&["copy"]));
        Step {
            experiment: outcome.experiment.clone(),
            name: row.step.clone(),
            case: row.case.clone(),
            value,
            lower_quartile: row.value.lower_quartile,
            upper_quartile: row.value.upper_quartile,
            unit: outcome.quantity.clone(),
            tflops,
            bytes_per_second,
            of_vendor: ratio.filter(|_| is_vendor),
            of_ceiling: ratio.filter(|_| is_ceiling),
            of_reference: ratio.filter(|_| !is_vendor && !is_ceiling),
            reference,
            relative_error: row.error,
            source: row.source.clone(),
        }
    }
}

impl Report {
    pub fn add(&mut self, outcome: &Outcome) {
        let steps = outcome.rows.iter().map(|row| Step::new(outcome, row));
        self.steps.extend(steps);
        self.experiments.push(About {
            experiment: outcome.experiment.clone(),
            question: outcome.question.clone(),
            machine: outcome.machine.clone(),
            command: outcome.command.clone(),
            unix_seconds: outcome.unix_seconds,
            seed: outcome.seed,
            notes: outcome.notes.clone(),
        });
    }

    /// Notes it, and says it in a line.
    pub fn skip(&mut self, experiment: &Experiment, reason: &str) {
        eprintln!("tensorscope: {} is skipped: {reason}", experiment.name);
        self.skipped.push(Skipped {
            experiment: experiment.name,
            reason: reason.to_owned(),
        });
    }

    pub fn text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{measure::Spread, outcome::Work};

    fn step_of(quantity: &str, reference: &str, work: Option<Work>) -> Step {
        let spread = Spread::of(&[8.0]);
        let mut row = Row::reference("tuned", "4096", 4096.0, spread)
            .against(reference, Spread::of(&[0.5]))
            .with_error(1e-6);
        row.work = work;
        let outcome = Outcome::new("gemm", "How fast?", "size", quantity, None, 1);
        Step::new(&outcome, &row)
    }

    #[test]
    fn a_rate_has_its_unit_and_a_share_says_of_what() {
        let step = step_of("GFLOP/s", "OpenBLAS", None);
        assert_eq!((step.tflops, step.of_vendor), (Some(8e-3), Some(0.5)));
        assert_eq!(step.relative_error, Some(1e-6));
        let step = step_of("GB/s", "copy", None);
        assert_eq!(
            (step.bytes_per_second, step.of_ceiling, step.of_vendor),
            (Some(8e9), Some(0.5), None)
        );
        let step = step_of("ns/access", "4 KiB pages", None);
        assert_eq!((step.tflops, step.of_reference), (None, Some(0.5)));
    }

    #[test]
    fn microseconds_become_rates_of_the_work_that_was_done() {
        let work = Work {
            flops: Some(16e6),
            bytes: Some(8e6),
        };
        let step = step_of("µs", "cuBLAS bf16", Some(work));
        assert_eq!(
            (step.tflops, step.bytes_per_second),
            (Some(2.0), Some(1e12))
        );
    }
}
