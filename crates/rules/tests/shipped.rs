//! The rules that come with us: complete, and right for the cases of `shipped_cases.txt`.

use std::collections::{BTreeMap, BTreeSet};

use rules::expression::NAME;
use rules::names::{self, names};
use rules::{Metrics, Rule, RuleSet, Subject, Unit, Verdicts, evaluate};

const CASES: &str = include_str!("shipped_cases.txt");

type Words<'a> = BTreeMap<&'a str, &'a str>;

struct Case<'a> {
    rule: &'a str,
    first: Subject,
    not: Subject,
}

#[derive(Default)]
struct Cases<'a> {
    healthy: Vec<Subject>,
    all: Vec<Case<'a>>,
}

fn subject(kind: &str, words: &Words) -> Subject {
    let mut metrics = Metrics::default();
    for (name, value) in words {
        match *value {
            "" => {}
            "true" => metrics.flag(name, true, None),
            "false" => metrics.flag(name, false, None),
            _ if *name == NAME => {}
            number => {
                let known = |list: &[names::Name]| list.iter().any(|(known, _)| known == name);
                assert!(
                    known(names(kind)) || known(names::ANY),
                    "{kind} has no {name}"
                );
                metrics.number(name, Unit::Count, number.parse().unwrap(), None);
            }
        }
    }
    Subject {
        kind: kind.to_owned(),
        name: words.get(NAME).copied().unwrap_or("it").to_owned(),
        metrics,
    }
}

/// `base` with what the line says in place of it.
fn changed<'a>(base: &Words<'a>, line: &'a str, lets: &BTreeMap<&'a str, Words<'a>>) -> Words<'a> {
    let mut words = base.clone();
    for word in line.split_whitespace() {
        match word.strip_prefix('@') {
            Some(name) => words.extend(&lets[name]),
            None => {
                let (name, value) = word.split_once('=').unwrap();
                words.insert(name, value);
            }
        }
    }
    words
}

fn cases() -> Cases<'static> {
    let mut cases = Cases::default();
    let mut lets: BTreeMap<&str, Words> = BTreeMap::new();
    let (mut kind, mut base, mut rule, mut first) = ("", Words::new(), "", None);
    for line in CASES.lines().filter(|line| !line.starts_with('#')) {
        let (head, rest) = line.split_once(' ').unwrap_or((line, ""));
        match head {
            "" => {}
            "healthy" => {
                let (of, rest) = rest.split_once(' ').unwrap();
                if !rest.starts_with('@') {
                    (kind, base) = (of, changed(&Words::new(), rest, &lets));
                    lets.insert(kind, base.clone());
                }
                let words = changed(&Words::new(), rest, &lets);
                cases.healthy.push(subject(kind, &words));
            }
            "let" => {
                let (name, rest) = rest.split_once(' ').unwrap();
                lets.insert(name, changed(&Words::new(), rest, &lets));
            }
            "+" => first = Some(subject(kind, &changed(&base, rest, &lets))),
            "-" => cases.all.push(Case {
                rule,
                first: first.take().unwrap(),
                not: subject(kind, &changed(&base, rest, &lets)),
            }),
            id => rule = id,
        }
    }
    cases
}

fn said(verdicts: &Verdicts) -> String {
    let line = |cause: &rules::Cause| format!("{:.3} {}: {}", cause.share, cause.id, cause.why);
    verdicts
        .causes
        .iter()
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn every_rule_comes_first_for_its_case_and_is_silent_for_its_counter_example() {
    let rules = RuleSet::shipped();
    let mut wrong = Vec::new();
    for case in cases().all {
        let found = evaluate(rules, &[case.first]);
        if found
            .causes
            .first()
            .is_none_or(|cause| cause.id != case.rule)
        {
            wrong.push(format!("{} is not first, but\n{}", case.rule, said(&found)));
        }
        let found = evaluate(rules, &[case.not]);
        if found.causes.iter().any(|cause| cause.id == case.rule) {
            wrong.push(format!("{} is a false alarm\n{}", case.rule, said(&found)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn healthy_subjects_have_no_cause_that_is_not_healthy() {
    for subject in cases().healthy {
        let found = evaluate(RuleSet::shipped(), std::slice::from_ref(&subject));
        let healthy = found.causes.iter().all(|cause| cause.healthy);
        assert!(healthy, "{}\n{}", subject.name, said(&found));
        let missing: Vec<_> = found.not_evaluated.iter().map(|one| &one.missing).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", subject.name);
    }
}

#[test]
fn every_rule_that_says_something_has_a_case() {
    let cases = cases();
    let cases: BTreeSet<&str> = cases.all.iter().map(|case| case.rule).collect();
    let expected = RuleSet::shipped().rules();
    let expected = expected.filter(|rule| rule.about != "phase" && rule.why.is_some());
    let expected: BTreeSet<&str> = expected.map(|rule| &*rule.id).collect();
    assert_eq!(cases, expected);
}

#[test]
fn a_subject_of_which_nothing_is_known_has_no_cause() {
    for (kind, _) in rules::file::KINDS {
        let empty = subject(kind, &Words::new());
        let found = evaluate(RuleSet::shipped(), &[empty]);
        assert!(found.causes.is_empty(), "{kind}: {}", said(&found));
        assert!(!found.not_evaluated.is_empty(), "{kind}");
        for one in &found.not_evaluated {
            assert!(!one.missing.is_empty(), "{}", one.rule);
        }
    }
}

#[test]
fn shipped_rules_are_complete() {
    let complaints: Vec<String> = RuleSet::shipped().rules().flat_map(check_shipped).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// What a rule of ours lacks that one of a user may lack.
fn check_shipped(rule: &Rule) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |what: String| complaints.push(format!("{}: {what}", rule.place()));
    let is_silent_group = rule.action.is_none() && rule.why.is_none();
    if is_silent_group {
        return complaints;
    }
    if rule.refute.is_none() {
        complain("nothing would refute it".into());
    }
    if rule.reference.is_none() {
        complain("it has no reference".into());
    }
    let texts = [&rule.why, &rule.action, &rule.apply, &rule.refute];
    let in_texts = texts.into_iter().flatten().flat_map(|text| text.names());
    let gain = rule
        .gain
        .iter()
        .flat_map(|gain| [&gain.low, &gain.middle, &gain.high]);
    let expressions: Vec<_> = rule.when.iter().chain(&rule.share).chain(gain).collect();
    let in_expressions = expressions.iter().flat_map(|expression| expression.names());
    let evidence = rule.evidence.iter().map(String::as_str);
    let own = names(&rule.about);
    let builtin = ["share", NAME];
    for name in in_texts.chain(in_expressions).chain(evidence) {
        let known = own.iter().any(|(known, _)| *known == name) || builtin.contains(&name);
        if !own.is_empty() && !known {
            complain(format!("nobody measures `{name}`, see src/names.rs"));
        }
    }
    let decisive = rule.when.iter().flat_map(|when| when.names());
    for name in decisive.filter(|name| *name != NAME) {
        if !rule.evidence.iter().any(|shown| shown == name) {
            complain(format!("`{name}` decides, but is not shown as evidence"));
        }
    }
    if rule.explains.contains(&rule.id) {
        complain("it explains itself".into());
    }
    complaints
}
