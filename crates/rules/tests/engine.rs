//! Which causes are listed, in which order, and what is said of rules that could not be decided.

use rules::{Metrics, RuleFile, RuleSet, Subject, Unit, Value, Verdicts, evaluate};

/// A rule from its id and the fields that matter.
fn rule(id: &str, fields: &str) -> String {
    let mut text =
        format!("[[rule]]\nid = \"{id}\"\ntitle = \"title of {id}\"\nabout = \"phase\"\n");
    let defaults = [
        ("when", "true"),
        ("share", "0.5"),
        ("why", "because"),
        ("action", "-t 1"),
        ("refute", "not"),
    ];
    for (field, value) in defaults {
        let is_given = |line: &str| line.starts_with(&format!("{field} ="));
        if !fields.lines().any(is_given) {
            text.push_str(&format!("{field} = \"{value}\"\n"));
        }
    }
    format!("{text}{fields}\n")
}

fn set(rules: &[(&str, &str)]) -> RuleSet {
    let text: String = rules.iter().map(|(id, fields)| rule(id, fields)).collect();
    RuleSet::parse(&text, "test.toml").unwrap()
}

fn phase(name: &str, metrics: &[(&str, f64)]) -> Subject {
    let mut known = Metrics::default();
    for (name, value) in metrics {
        known.number(name, Unit::Share, *value, Some("SELECT 1"));
    }
    Subject {
        kind: "phase".into(),
        name: name.into(),
        metrics: known,
    }
}

fn ids(verdicts: &Verdicts) -> Vec<String> {
    let of = |cause: &rules::Cause| format!("{}/{}", cause.subject, cause.id);
    verdicts.causes.iter().map(of).collect()
}

#[track_caller]
fn check(rules: &[(&str, &str)], metrics: &[(&str, f64)], expect: &[&str]) {
    let verdicts = evaluate(&set(rules), &[phase("p", metrics)]);
    let found: Vec<String> = verdicts.causes.iter().map(|c| c.id.clone()).collect();
    assert_eq!(found, expect);
}

#[test]
fn causes_are_ranked_by_share_over_all_subjects_then_by_place() {
    let rules = set(&[
        ("a", "share = \"x\""),
        ("b", "share = \"x\""),
        ("c", "share = \"0.9\""),
    ]);
    let subjects = [phase("p", &[("x", 0.1)]), phase("q", &[("x", 0.2)])];
    let verdicts = evaluate(&rules, &subjects);
    let expect = ["p/c", "q/c", "q/a", "q/b", "p/a", "p/b"];
    assert_eq!(ids(&verdicts), expect);
}

#[test]
fn a_subject_that_is_a_small_part_of_the_whole_comes_later() {
    let rules = set(&[("a", "share = \"x\"")]);
    let small = phase("small", &[("x", 0.9), ("time_share", 0.1)]);
    let large = phase("large", &[("x", 0.5), ("time_share", 0.8)]);
    let verdicts = evaluate(&rules, &[small, large]);
    assert_eq!(ids(&verdicts), ["large/a", "small/a"]);
    assert_eq!(verdicts.causes[1].share, 0.9);
}

#[test]
fn a_parent_is_listed_only_where_no_child_holds() {
    let rules = [
        ("top", "when = \"x > 1\""),
        ("child", "parent = \"top\"\nwhen = \"y > 1\""),
    ];
    check(&rules, &[("x", 2.0), ("y", 2.0)], &["child"]);
    check(&rules, &[("x", 2.0), ("y", 0.0)], &["top"]);
    check(&rules, &[("x", 0.0), ("y", 2.0)], &[]);
}

#[test]
fn a_group_without_words_is_never_listed_and_passes_on_what_is_below_it() {
    let group = "[[rule]]\nid = \"group\"\ntitle = \"g\"\nabout = \"phase\"\nkind = \"group\"\nparent = \"top\"\n";
    let text = [
        rule("top", ""),
        group.to_owned(),
        rule("leaf", "parent = \"group\"\nwhen = \"x > 1\""),
    ];
    let rules = RuleSet::parse(&text.concat(), "test.toml").unwrap();
    let found = |x| ids(&evaluate(&rules, &[phase("p", &[("x", x)])]));
    assert_eq!(found(2.0), ["p/leaf"]);
    assert_eq!(found(0.0), ["p/top"]);
}

#[test]
fn symptoms_are_left_out_where_their_cause_holds() {
    let rules = [
        ("cause", "when = \"x > 1\"\nexplains = [\"symptom\"]"),
        ("symptom", "explains = [\"far\"]"),
        ("far", ""),
    ];
    check(&rules, &[("x", 2.0)], &["cause"]);
    check(&rules, &[("x", 0.0)], &["symptom"]);
}

#[test]
fn what_cannot_be_decided_names_what_is_missing() {
    let rules = set(&[
        ("top", "when = \"x > 1\""),
        ("child", "parent = \"top\"\nwhen = \"y > 1\""),
        ("settled", "parent = \"top\"\nwhen = \"z > 1\""),
        ("unshared", "share = \"w\""),
    ]);
    let missing = |metrics: &[(&str, f64)]| {
        let verdicts = evaluate(&rules, &[phase("p", metrics)]);
        let each = verdicts.not_evaluated.into_iter();
        each.map(|one| format!("{}: {}", one.rule, one.missing.join(" ")))
            .collect::<Vec<_>>()
    };
    assert_eq!(missing(&[("z", 0.0), ("w", 0.1)]), ["top: x", "child: x y"]);
    assert_eq!(missing(&[("x", 0.0)]), ["unshared: w"]);
    assert_eq!(missing(&[("x", 2.0), ("w", 0.1), ("z", 2.0)]), ["child: y"]);
    assert_eq!(
        missing(&[("y", 2.0), ("w", 0.1), ("z", 2.0)]),
        ["top: x", "child: x", "settled: x"]
    );
}

#[test]
fn rules_about_other_kinds_are_not_asked() {
    let rules = set(&[("a", "when = \"x > 1\"")]);
    let mut kernel = phase("k", &[]);
    kernel.kind = "kernel".into();
    assert_eq!(evaluate(&rules, &[kernel]), Verdicts::default());
}

#[test]
fn a_cause_carries_its_numbers_and_words() {
    let rules = set(&[(
        "a",
        r#"
share = "x"
why = "{x} of {name}, {gone}"
action = "-t {threads}"
apply = "threads={threads}"
gain = "100 * share / (1 - share)"
gain_low = "0"
gain_high = "1"
refute = "with {threads} threads"
evidence = ["x", "gone", "threads"]
reference = "a book""#,
    )]);
    let mut subject = phase("generate", &[("x", 0.5)]);
    subject.metrics.number("threads", Unit::Count, 4096.0, None);
    let verdicts = evaluate(&rules, &[subject]);
    let cause = &verdicts.causes[0];
    assert_eq!(cause.why, "50 % of generate, ?");
    assert_eq!(cause.action.as_deref(), Some("-t 4096"));
    assert_eq!(cause.apply.as_deref(), Some("threads=4096"));
    assert_eq!(cause.refute.as_deref(), Some("with 4,096 threads"));
    // The formula for the most is below the middle: the middle is the most.
    let gains = (
        cause.gain_percent_low,
        cause.gain_percent,
        cause.gain_percent_high,
    );
    assert_eq!(gains, (Some(0.0), Some(100.0), Some(100.0)));
    let evidence: Vec<_> = cause
        .evidence
        .iter()
        .map(|e| (&*e.name, &*e.text))
        .collect();
    assert_eq!(evidence, [("x", "50 %"), ("threads", "4,096")]);
    assert_eq!(cause.evidence[0].value, Value::Number(0.5));
    assert_eq!(cause.evidence[0].source.as_deref(), Some("SELECT 1"));
    let json = serde_json::to_value(&verdicts).unwrap();
    assert_eq!(json["causes"][0]["evidence"][0]["unit"], "share");
    assert_eq!(json["causes"][0]["evidence"][0]["value"], 0.5);
}

#[test]
fn unknown_gains_and_settings_are_absent_and_shares_stay_shares() {
    let rules = set(&[(
        "a",
        "share = \"x\"\napply = \"threads={gone}\"\ngain = \"100 * share / (1 - share)\"\ngain_low = \"0\"\ngain_high = \"1\"",
    )]);
    let verdicts = evaluate(&rules, &[phase("p", &[("x", 7.0)])]);
    let cause = &verdicts.causes[0];
    assert_eq!((cause.share, cause.gain_percent), (1.0, None));
    assert_eq!((cause.gain_percent_low, &cause.apply), (None, &None));
}

#[test]
fn a_later_file_adds_and_replaces_in_place() {
    let mut rules = set(&[("a", ""), ("b", "")]);
    let add =
        |rules: &mut RuleSet, text: String| rules.extend(RuleFile::parse(&text, "more.toml")?);
    let text = rule("a", "replace = true\nwhy = \"new\"") + &rule("c", "parent = \"b\"");
    add(&mut rules, text).unwrap();
    let found: Vec<&str> = rules.rules().map(|rule| &*rule.id).collect();
    assert_eq!(found, ["a", "b", "c"]);
    assert_eq!(rules.get("a").unwrap().why.as_ref().unwrap().text(), "new");
    let before = rules.clone();
    assert!(add(&mut rules, rule("a", "")).is_err());
    assert!(add(&mut rules, rule("d", "") + &rule("e", "replace = true")).is_err());
    assert_eq!(rules, before, "a file that is refused leaves nothing");
}

#[test]
fn mistakes_have_file_line_column_and_reason() {
    let check = |text: &str, expect: &str| {
        let error = RuleSet::parse(text, "my.toml").unwrap_err().to_string();
        assert_eq!(error, expect);
    };
    check(
        "[[rule]\n",
        "my.toml:1:8: unclosed array table, expected `]`",
    );
    check(
        "\n[[rule]]\nid = \"a\"\ntitle = \"b\"\nabout = \"phase\"\nwhem = \"x\"\n",
        "my.toml:6:1: unknown field `whem`, expected one of `id`, `title`, `about`, `kind`, `replace`, `healthy`, `parent`, `when`, `share`, `why`, `action`, `apply`, `gain`, `gain_low`, `gain_high`, `refute`, `evidence`, `explains`, `reference`",
    );
    check(
        "rule = 1\n",
        "my.toml:1:8: invalid type: integer `1`, expected a sequence",
    );
    check(
        &rule("a", "when = \"x > > 1\""),
        "my.toml:9:13: in `when` of rule `a`: a value is missing before `>`",
    );
    check(
        &rule("a", "when = '''\nx >\n> 1'''"),
        "my.toml:11:1: in `when` of rule `a`: a value is missing before `>`",
    );
    check(
        &rule("a", "why = \"é {x + 1}\""),
        "my.toml:9:11: in `why` of rule `a`: `x + 1` is no name; what is computed begins with `=`",
    );
    check(
        &rule("a", "share = \"x > 1\""),
        "my.toml:9:10: in `share` of rule `a`: a condition, where a number is needed",
    );
    check(
        &rule("a", "when = \"share > 1\""),
        "my.toml:9:8: rule `a`: `share` is not known yet in `when`",
    );
    check(
        &rule("A", ""),
        "my.toml:2:6: rule `A`: its id is not lower-case words joined by dots",
    );
    check(
        &(rule("a", "") + &rule("a", "")),
        "my.toml:12:6: rule `a`: its id is taken, see my.toml:2:6; `replace = true` replaces a rule of an earlier file",
    );
    check(
        &rule("a", "parent = \"b\""),
        "my.toml:10:10: rule `a`: its parent `b` does not exist",
    );
    check(
        &rule("a", "explains = [\"b\"]"),
        "my.toml:10:13: rule `a`: its symptom `b` does not exist",
    );
    check(
        &(rule("a", "parent = \"b\"") + &rule("b", "parent = \"a\"")),
        "my.toml:10:10: rule `a`: it is its own ancestor",
    );
    check(
        &(rule("a", "explains = [\"b\"]") + &rule("b", "explains = [\"a\"]")),
        "my.toml:10:13: rule `a`: it is its own symptom",
    );
    check(
        &rule("a", "gain = \"1\""),
        "my.toml:2:6: rule `a`: `gain`, `gain_low` and `gain_high` belong together",
    );
    check(
        "[[rule]]\nid = \"a\"\ntitle = \"b\"\nabout = \"phase\"\nwhen = \"true\"\naction = \"c\"\n",
        "my.toml:2:6: rule `a`: it has no `why`",
    );
    check(
        "[[rule]]\nid = \"a\"\ntitle = \"b\"\nabout = \"moon\"\n",
        "my.toml:4:9: rule `a`: nothing is of kind `moon`; there are phase, kernel, trace, calls, counters, schedule, lines",
    );
}
