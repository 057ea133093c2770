//! Rules and subjects in, ranked causes out.
//!
//! For each subject, with the rules about its kind, parents first:
//! 1. a rule holds where its parent holds and its `when` is true; where one of them is
//!    unknown and none is false, it was not evaluated;
//! 2. one that holds is a cause, unless a child of it holds as well (that says more) or it
//!    is a symptom of another one that holds.
//!
//! Over all subjects, causes are ranked by the share of time that they explain: of the
//! subject's time, times the subject's share of the whole, where the metric [`TOTAL_SHARE`]
//! says so.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::expression::{Expression, Scope, Unknown, Val};
use crate::file::{Gain, Rule};
use crate::metric::{Subject, Unit, Value};
use crate::set::RuleSet;
use crate::text::{self, Style};

/// The metric that says which share of everything that was measured the subject is.
pub const TOTAL_SHARE: &str = "total_share";

/// What the rules say of all subjects.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdicts {
    /// Those that explain most first.
    pub causes: Vec<Cause>,
    pub not_evaluated: Vec<NotEvaluated>,
}

/// A rule that holds for a subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Cause {
    pub id: String,
    pub title: String,
    pub about: String,
    /// The subject's name.
    pub subject: String,
    pub parent: Option<String>,
    /// Of the subject's time, from 0 to 1.
    pub share: f64,
    /// Nothing is wrong: this is what the hardware can do.
    pub healthy: bool,
    pub why: String,
    pub action: Option<String>,
    pub apply: Option<String>,
    /// More speed, in per cent, at least and at most; all three or none.
    pub gain_percent: Option<f64>,
    pub gain_percent_low: Option<f64>,
    pub gain_percent_high: Option<f64>,
    pub refute: Option<String>,
    pub reference: Option<String>,
    pub evidence: Vec<Evidence>,
}

/// A number that speaks for a cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Evidence {
    pub name: String,
    pub value: Value,
    pub unit: Unit,
    /// The value as people read it.
    pub text: String,
    pub source: Option<String>,
}

/// A rule that may hold: what would decide it was not measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct NotEvaluated {
    pub rule: String,
    pub title: String,
    pub subject: String,
    /// Names of metrics that are absent, of another type than is needed, or zero below a
    /// division.
    pub missing: Vec<String>,
}

enum Verdict<'a> {
    No,
    Unknown(Unknown<'a>),
    /// With its share, where it has one.
    Holds(Option<f64>),
}

/// See the top of this file.
pub fn evaluate(rules: &RuleSet, subjects: &[Subject]) -> Verdicts {
    let mut ranked: Vec<(f64, usize, Cause)> = Vec::new();
    let mut not_evaluated = Vec::new();
    for subject in subjects {
        let verdicts = verdicts(rules, subject);
        let weight = weight(subject);
        let hidden = hidden(rules, &verdicts);
        for (index, (rule, verdict)) in rules.rules().zip(&verdicts).enumerate() {
            match verdict {
                Verdict::Holds(Some(share)) if !hidden.contains(&index) => {
                    let cause = cause(rule, subject, *share);
                    ranked.extend(cause.map(|cause| (share * weight, index, cause)));
                }
                Verdict::Holds(_) | Verdict::No => {}
                Verdict::Unknown(unknown) => not_evaluated.push(NotEvaluated {
                    rule: rule.id.clone(),
                    title: rule.title.clone(),
                    subject: subject.name.clone(),
                    missing: unknown.0.iter().map(|&name| name.to_owned()).collect(),
                }),
            }
        }
    }
    // Stable: of equals, the order of the subjects is kept.
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    Verdicts {
        causes: ranked.into_iter().map(|(.., cause)| cause).collect(),
        not_evaluated,
    }
}

fn weight(subject: &Subject) -> f64 {
    match subject.metrics.get(TOTAL_SHARE).map(|metric| &metric.value) {
        Some(Value::Number(share)) if share.is_finite() => share.clamp(0.0, 1.0),
        _ => 1.0,
    }
}

/// Of every rule, by its index.
fn verdicts<'a>(rules: &'a RuleSet, subject: &'a Subject) -> Vec<Verdict<'a>> {
    let all = rules.as_slice();
    let mut verdicts: Vec<Verdict> = all.iter().map(|_| Verdict::No).collect();
    for &index in &rules.links.parents_first {
        let rule = &all[index];
        if rule.about != subject.kind {
            continue;
        }
        let doubt = match rules.links.parents[index].map(|parent| &verdicts[parent]) {
            Some(Verdict::No) => continue,
            Some(Verdict::Unknown(unknown)) => Some(unknown.clone()),
            Some(Verdict::Holds(_)) | None => None,
        };
        verdicts[index] = match (doubt, verdict(rule, subject)) {
            (Some(_), Verdict::No) | (None, Verdict::No) => Verdict::No,
            (Some(doubt), Verdict::Unknown(unknown)) => Verdict::Unknown(doubt.and(unknown)),
            (Some(doubt), Verdict::Holds(_)) => Verdict::Unknown(doubt),
            (None, verdict) => verdict,
        };
    }
    verdicts
}

fn verdict<'a>(rule: &'a Rule, subject: &'a Subject) -> Verdict<'a> {
    let scope = Scope {
        subject,
        share: None,
    };
    match rule.when.as_ref().map(|when| when.eval(&scope)) {
        None | Some(Ok(Val::Flag(true))) => {}
        Some(Ok(Val::Flag(false))) => return Verdict::No,
        Some(Ok(Val::Number(_) | Val::Text(_))) => {
            let names = rule.when.iter().flat_map(Expression::names);
            return Verdict::Unknown(Unknown(names.collect()));
        }
        Some(Err(unknown)) => return Verdict::Unknown(unknown),
    }
    match rule.share.as_ref().map(|share| (share, share.eval(&scope))) {
        None => Verdict::Holds(None),
        Some((_, Ok(Val::Number(share)))) => Verdict::Holds(Some(share.clamp(0.0, 1.0))),
        Some((share, Ok(_))) => Verdict::Unknown(Unknown(share.names().into_iter().collect())),
        Some((_, Err(unknown))) => Verdict::Unknown(unknown),
    }
}

/// Rules that hold and are not listed: symptoms, and parents of what says more.
fn hidden(rules: &RuleSet, verdicts: &[Verdict]) -> BTreeSet<usize> {
    let all = rules.as_slice();
    let holding = |index: &usize| matches!(verdicts[*index], Verdict::Holds(_));
    let mut hidden = BTreeSet::new();
    for index in (0..all.len()).filter(holding) {
        hidden.extend(rules.links.explained[index].iter().copied());
    }
    // Children first: a group that says nothing itself passes on what is below it.
    let mut says_something: Vec<bool> = all.iter().map(|rule| rule.why.is_some()).collect();
    for &index in rules
        .links
        .parents_first
        .iter()
        .rev()
        .filter(|at| holding(at))
    {
        if let Some(parent) = rules.links.parents[index]
            && says_something[index]
        {
            says_something[parent] = true;
            hidden.insert(parent);
        }
    }
    hidden
}

/// None of a group that has nothing to say.
fn cause(rule: &Rule, subject: &Subject, share: f64) -> Option<Cause> {
    let why = rule.why.as_ref()?;
    let scope = Scope {
        subject,
        share: Some(share),
    };
    let gain = rule.gain.as_ref().and_then(|gain| gained(gain, &scope));
    Some(Cause {
        id: rule.id.clone(),
        title: rule.title.clone(),
        about: rule.about.clone(),
        subject: subject.name.clone(),
        parent: rule.parent.clone(),
        share,
        healthy: rule.healthy,
        why: why.fill(&scope, Style::Sentence),
        action: (rule.action.as_ref()).map(|action| action.fill(&scope, Style::Command)),
        apply: (rule.apply.as_ref()).and_then(|apply| apply.fill_whole(&scope, Style::Raw)),
        gain_percent: gain.map(|(_, middle, _)| middle),
        gain_percent_low: gain.map(|(low, ..)| low),
        gain_percent_high: gain.map(|(.., high)| high),
        refute: (rule.refute.as_ref()).map(|refute| refute.fill(&scope, Style::Sentence)),
        reference: rule.reference.clone(),
        evidence: (rule.evidence.iter())
            .filter_map(|name| evidence(name, &scope))
            .collect(),
    })
}

/// Low, middle and high, in this order whatever the formulas say; nothing if one is unknown.
fn gained(gain: &Gain, scope: &Scope<'_>) -> Option<(f64, f64, f64)> {
    let number = |expression: &Expression| match expression.eval(scope) {
        Ok(Val::Number(number)) => Some(number),
        _ => None,
    };
    let middle = number(&gain.middle)?;
    let low = number(&gain.low)?.min(middle);
    let high = number(&gain.high)?.max(middle);
    Some((low, middle, high))
}

fn evidence(name: &str, scope: &Scope<'_>) -> Option<Evidence> {
    let (value, unit) = scope.get(name)?;
    let value = match value {
        Val::Number(number) => Value::Number(number),
        Val::Text(text) => Value::Text(text.to_owned()),
        Val::Flag(flag) => Value::Flag(flag),
    };
    let metric = scope.subject.metrics.get(name);
    Some(Evidence {
        name: name.to_owned(),
        text: text::value(&value, unit, Style::Sentence),
        value,
        unit,
        source: metric.and_then(|metric| metric.source.clone()),
    })
}
