//! Why a run is slow: the time of a token as a stack that adds up, and ranked causes.
//!
//! Pure: results of `analysis` and what is known of the run in, [`Diagnosis`] out.
//!
//! - [`stack`]: the parts of each phase's time;
//! - [`metrics`]: what is known of each phase, as named numbers;
//! - crate `rules`: from these to causes, actions and gains; the rules themselves are data
//!   (`crates/rules/src/shipped`, and what a user adds).
//!
//! What it leaves to others: measuring (`kernelio`), other tools' files (`imports`), trying
//! its advice out (`bench::verify`).

pub mod metrics;
pub mod stack;

use rules::{Cause, NotEvaluated, RuleSet, Subject};
use serde::Serialize;

pub use metrics::{Ceilings, Inputs};
pub use stack::{CallShare, Part, PhaseStack};

/// Everything that `diagnose --json` prints about a run, or about other tools' files.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Diagnosis {
    /// Empty without a run.
    pub phases: Vec<PhaseStack>,
    /// The one that costs most time first.
    pub causes: Vec<Ranked>,
    /// Rules that hold and name nothing that is wrong: what the hardware can do.
    pub healthy: Vec<Ranked>,
    /// Rules that could not be evaluated, and the inputs that they miss.
    #[cfg_attr(test, ts(type = "Array<NotEvaluated>"))]
    pub not_evaluated: Vec<NotEvaluated>,
    /// What was not recorded or measured, and how to.
    pub missing: Vec<String>,
    /// What the rules were asked about.
    #[cfg_attr(test, ts(type = "Array<Subject>"))]
    pub subjects: Vec<Subject>,
}

/// A cause with its place in the whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
// Written out: crate `rules` has types for the page in its own tests only.
#[cfg_attr(test, derive(ts_rs::TS))]
#[cfg_attr(test, ts(type = "{ phase: string, time_share: number, } & Cause"))]
pub struct Ranked {
    /// Of a run: which phase. Of another tool's file: which kernel, say.
    pub phase: String,
    /// Of all the time that was looked at.
    pub time_share: f64,
    #[serde(flatten)]
    pub cause: Cause,
}

/// Share of memory's ceiling from which a phase is at the wall; measured ceilings are those
/// of a plain sum, which no kernel of llama.cpp reaches.
const AT_WALL: f64 = 0.6;

/// Of a run's time: what explains less is worth nobody's time, and may be chance.
const MIN_TIME_SHARE: f64 = 0.02;

/// Of a run, and of what other tools have recorded beside it.
pub fn diagnose(inputs: &Inputs, rules: &RuleSet, imported: &[Subject]) -> Diagnosis {
    let ceiling = inputs.ceilings.memory;
    let stacks = inputs
        .times
        .iter()
        .map(|time| PhaseStack::of_devices(time, ceiling, &inputs.facts.devices));
    let mut phases: Vec<PhaseStack> = stacks.collect();
    let mut subjects = metrics::subjects(inputs, &phases);
    subjects.extend_from_slice(imported);
    let mut diagnosis = judge(subjects, rules, &phases);
    for phase in &mut phases {
        phase.verdict = verdict(phase, &diagnosis);
    }
    diagnosis.phases = phases;
    diagnosis
}

/// Of other tools' files, without a run.
pub fn diagnose_imported(subjects: Vec<Subject>, rules: &RuleSet) -> Diagnosis {
    judge(subjects, rules, &[])
}

fn judge(subjects: Vec<Subject>, rules: &RuleSet, phases: &[PhaseStack]) -> Diagnosis {
    let verdicts = rules::evaluate(rules, &subjects);
    let all: f64 = phases.iter().map(|phase| phase.nanos as f64).sum();
    let weight = |cause: &Cause| -> f64 {
        let phase = phases.iter().find(|phase| phase.name == cause.subject);
        if let Some(phase) = phase.filter(|_| cause.about == "phase") {
            return phase.nanos as f64 / all.max(1.0);
        }
        // Of all kernels of a file, say.
        let subject = subjects.iter().find(|s| s.name == cause.subject);
        let share = subject.and_then(|s| s.metrics.get("total_share")?.as_number());
        share.unwrap_or(1.0)
    };
    let rank = |cause: Cause| Ranked {
        phase: cause.subject.clone(),
        time_share: cause.share * weight(&cause),
        cause,
    };
    let counts =
        |ranked: &Ranked| ranked.cause.about != "phase" || ranked.time_share >= MIN_TIME_SHARE;
    let causes = verdicts.causes.into_iter().map(rank).filter(counts);
    let mut causes: Vec<Ranked> = causes.collect();
    causes.sort_by(|a, b| b.time_share.total_cmp(&a.time_share));
    let (healthy, causes) = causes.into_iter().partition(|ranked| ranked.cause.healthy);
    Diagnosis {
        phases: Vec::new(),
        causes,
        healthy,
        not_evaluated: verdicts.not_evaluated,
        missing: Vec::new(),
        subjects,
    }
}

/// The wall, or headroom, in a sentence.
fn verdict(phase: &PhaseStack, diagnosis: &Diagnosis) -> String {
    let cause = diagnosis.causes.iter().find(|c| c.phase == phase.name);
    let subject = diagnosis.subjects.iter().find(|s| s.name == phase.name);
    let number = |name: &str| subject.and_then(|s| s.metrics.get(name)?.as_number());
    let rate = match (number("memory.bytes_per_second"), number("memory.share")) {
        // More than memory gives: threads took turns, and the mean of them says nothing.
        (Some(rate), Some(share)) if share <= 1.05 => {
            let threads = number("threads").map_or_else(String::new, |n| {
                format!("{n:.0} thread{} can read", if n == 1.0 { "" } else { "s" })
            });
            Some((
                share,
                format!(
                    "while it computed, weights and KV cache were read at {:.1} GB/s, {:.0} % of what {threads}",
                    rate / 1e9,
                    share * 100.0
                ),
            ))
        }
        _ => None,
    };
    let lead = match (cause, &rate) {
        (Some(cause), _) => format!("headroom: {}", cause.cause.title),
        (None, Some((share, _))) if *share >= AT_WALL => {
            "at the wall of memory: only fewer bytes or more tokens a pass make it faster"
                .to_owned()
        }
        (None, Some(_)) => "no rule found a cause; it computes below memory's speed".to_owned(),
        (None, None) => match number("stack.device") {
            Some(share) => format!(
                "no rule found a cause; the device was at work {:.0} % of the time",
                share * 100.0
            ),
            None => "no rule found a cause".to_owned(),
        },
    };
    match rate {
        Some((_, sentence)) => format!("{lead}; {sentence}"),
        None => lead,
    }
}

#[cfg(test)]
#[path = "../../index/tests/generated/mod.rs"]
mod generated;

#[cfg(test)]
mod tests {
    use super::{generated::declaration as of, *};

    /// The page's types are these: `TENSORSCOPE_BLESS=1 cargo test -p diagnose --lib` writes them.
    #[test]
    fn the_page_knows_a_diagnosis() {
        let types = [
            of::<Diagnosis>(),
            of::<Ranked>(),
            of::<PhaseStack>(),
            of::<Part>(),
            of::<CallShare>(),
        ];
        let text = format!(
            "// Written by a test of crates/diagnose/src/lib.rs; change that.\n\
             import type {{ Cause, NotEvaluated, Subject }} from './rules';\n{}",
            types.concat()
        );
        generated::check("src/generated/diagnose.ts", &text);
    }

    /// As its type on the page says, which is written by hand.
    #[test]
    fn a_ranked_cause_is_a_cause_with_its_place() {
        let rules = RuleSet::parse(
            "[[rule]]\nid = \"a.b\"\ntitle = \"t\"\nabout = \"phase\"\nwhen = \"x > 0\"\nshare = \"0.5\"\nwhy = \"w\"",
            "test.toml",
        )
        .unwrap();
        let mut metrics = rules::Metrics::default();
        metrics.number("x", rules::Unit::Count, 1.0, None);
        let subject = Subject {
            kind: "phase".to_owned(),
            name: "generate".to_owned(),
            metrics,
        };
        let diagnosis = diagnose_imported(vec![subject], &rules);
        let ranked = serde_json::to_value(&diagnosis.causes[0]).unwrap();
        let mut cause = serde_json::to_value(&diagnosis.causes[0].cause).unwrap();
        cause["phase"] = "generate".into();
        cause["time_share"] = 0.5.into();
        assert_eq!(ranked, cause);
    }
}
