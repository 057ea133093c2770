//! A diagnosis as text: stacks of time, then causes with what to do about them.

use std::fmt::Write as _;

use diagnose::{Diagnosis, Part, PhaseStack, Ranked};

use crate::plot::units::Unit;

/// Whether numbers are followed by the query or the place that shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    Hidden,
    Shown,
}

/// Letters of the longest bar.
const BAR: f64 = 24.0;
/// Parts below this are not worth a line.
const MIN_SHARE: f64 = 0.0005;

pub fn text(diagnosis: &Diagnosis, sources: Sources) -> String {
    let mut out = String::new();
    for phase in &diagnosis.phases {
        stack(&mut out, phase);
    }
    match diagnosis.causes.is_empty() {
        true => {
            let _ = writeln!(out, "{}", no_cause());
        }
        false => out.push_str("Causes, the one that costs most first\n"),
    }
    for (number, ranked) in (1..).zip(&diagnosis.causes) {
        cause(&mut out, number, ranked, sources);
    }
    if !diagnosis.missing.is_empty() {
        out.push_str("\nNot known\n");
        for line in &diagnosis.missing {
            let _ = writeln!(out, "- {}", plain(line));
        }
    }
    let lacking = diagnosis.not_evaluated.len();
    if lacking > 0 && sources == Sources::Shown {
        out.push_str("\nRules that lack an input\n");
        for rule in &diagnosis.not_evaluated {
            let inputs = rule.missing.join(", ");
            let _ = writeln!(out, "- {} ({}): {inputs}", rule.title, rule.subject);
        }
    } else if lacking > 0 {
        let _ = writeln!(
            out,
            "\n{lacking} rules lack an input; --evidence lists them, and the query behind each number."
        );
    }
    out
}

/// Where there is nothing to improve.
pub(crate) fn no_cause() -> &'static str {
    "No cause found: nothing that a rule knows makes this slower than it has to be."
}

/// Parts that are worth a line; what is not explained always is.
pub(crate) fn shown_parts(phase: &PhaseStack) -> impl Iterator<Item = &Part> {
    let parts = phase.stack.iter();
    parts.filter(|part| part.share >= MIN_SHARE || part.name == "unexplained")
}

fn stack(out: &mut String, phase: &PhaseStack) {
    let _ = writeln!(
        out,
        "{}: {} tokens, {} a token, {:.1} tokens/s",
        phase.name,
        phase.tokens,
        Unit::Nanos.amount(phase.token_nanos),
        phase.tokens_per_second
    );
    let parts: Vec<_> = shown_parts(phase).collect();
    let width = parts.iter().map(|part| part.title.chars().count()).max();
    for part in parts {
        let bar = "█".repeat((part.share * BAR).round() as usize);
        let _ = writeln!(
            out,
            "  {:<width$}  {:>5.1} %  {:>9}  {bar}",
            part.title,
            part.share * 100.0,
            Unit::Nanos.amount(part.nanos),
            width = width.unwrap_or(0)
        );
    }
    if let Some(calls) = system_calls(phase) {
        let _ = writeln!(out, "  {calls}");
    }
    let _ = writeln!(out, "  {}\n", plain(&phase.verdict));
}

/// Kinds of system calls that are worth a word.
pub(crate) fn system_calls(phase: &PhaseStack) -> Option<String> {
    let kinds = phase.system_calls.iter();
    let kinds = kinds.filter(|kind| kind.share >= MIN_SHARE).map(|kind| {
        let names = kind.calls.join(", ");
        format!("{} {:.1} % ({names})", kind.category, kind.share * 100.0)
    });
    let kinds: Vec<String> = kinds.collect();
    (!kinds.is_empty()).then(|| {
        format!(
            "in system calls, of the threads' time: {}",
            kinds.join("; ")
        )
    })
}

fn cause(out: &mut String, number: usize, ranked: &Ranked, sources: Sources) {
    let cause = &ranked.cause;
    let _ = writeln!(
        out,
        "\n{number}. {} ({}): {:.0} % of its time",
        plain(&cause.title),
        plain(&ranked.phase),
        cause.share * 100.0
    );
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "   {name:<8} {}", plain(text));
    };
    line("why", &cause.why);
    if let Some(action) = &cause.action {
        line("do", action);
    }
    if let Some(gain) = gain(ranked) {
        line("gain", &gain);
    }
    if let Some(refute) = &cause.refute {
        line("unless", refute);
    }
    let numbers = cause
        .evidence
        .iter()
        .map(|e| format!("{} {}", e.name, e.text));
    let numbers: Vec<String> = numbers.collect();
    if !numbers.is_empty() {
        line("numbers", &numbers.join(", "));
    }
    if sources == Sources::Shown {
        for evidence in &cause.evidence {
            if let Some(source) = &evidence.source {
                line("", &format!("{}: {source}", evidence.name));
            }
        }
        let reference = cause.reference.as_deref().unwrap_or_default();
        line("rule", &format!("{}; {reference}", cause.id));
    }
}

/// More speed, in per cent, with its interval.
pub fn gain(ranked: &Ranked) -> Option<String> {
    let cause = &ranked.cause;
    let gain = cause.gain_percent?;
    let low = cause.gain_percent_low?;
    let high = cause.gain_percent_high?;
    Some(format!(
        "{gain:+.0} % speed expected ({low:+.0} to {high:+.0} %)"
    ))
}

/// Names come from models and files, and must not steer a terminal.
fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}
