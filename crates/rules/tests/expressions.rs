//! The language of rules: what expressions are worth, which are refused, and that none panics.

use proptest::prelude::*;
use rules::expression::{Expression, Scope, Type, Val};
use rules::template::Template;
use rules::text::Style;
use rules::{Metric, Metrics, Subject, Unit, Value};

fn subject() -> Subject {
    let mut metrics = Metrics::default();
    metrics.number("two", Unit::Count, 2.0, None);
    metrics.number("zero", Unit::Count, 0.0, None);
    metrics.number("stack.disk", Unit::Share, 0.25, None);
    metrics.text("word", "GEMM", None);
    metrics.flag("on", true, None);
    Subject {
        kind: "phase".into(),
        name: "my_gemm<float>".into(),
        metrics,
    }
}

/// `? a b`: unknown, for the lack of a and b.
fn shown(text: &str) -> String {
    let subject = subject();
    let scope = Scope {
        subject: &subject,
        share: Some(0.5),
    };
    let expression = match Expression::parse(text, Type::Any) {
        Ok(expression) => expression,
        Err(wrong) => return format!("{}: {}", wrong.offset, wrong.reason),
    };
    match expression.eval(&scope) {
        Ok(Val::Number(number)) => number.to_string(),
        Ok(Val::Text(text)) => text.to_owned(),
        Ok(Val::Flag(flag)) => flag.to_string(),
        Err(unknown) => {
            let names: Vec<&str> = unknown.0.into_iter().collect();
            format!("? {}", names.join(" ")).trim_end().to_owned()
        }
    }
}

#[track_caller]
fn check(text: &str, expect: &str) {
    assert_eq!(shown(text), expect, "{text}");
}

#[test]
fn operators_bind_as_in_school() {
    check("1 + 2 * 3 - 4 / 2", "5");
    check("(1 + 2) * 3", "9");
    check("10 - 2 - 3", "5");
    check("-two * 3", "-6");
    check("2 - -2", "4");
    check("1 + 1 == 2 and not 1 > 2", "true");
    check("true or false and false", "true");
    check("not false and false", "false");
    check("1e3 + 1.5e-1", "1000.15");
    check("stack.disk * 4", "1");
    check("word == 'GEMM'", "true");
    check("word != 'gemm'", "true");
    check("on", "true");
    check("share", "0.5");
    check("name", "my_gemm<float>");
}

#[test]
fn functions_do_what_they_say() {
    check("min(3, two, 9)", "2");
    check("max(3, two, 9)", "9");
    check("abs(0 - 3)", "3");
    check("clamp(7, 0, 1)", "1");
    check("clamp(7, 2, 1)", "1");
    check("if(on, 1, 2)", "1");
    check("if(on, 1, absent)", "1");
    check("floor(2.7) + ceil(2.1) + round(2.5)", "8");
    check("contains(name, 'GEMM')", "true");
    check("contains(word, 'mm')", "true");
    check("contains(name, 'attn')", "false");
    check("has(two) and not has(absent)", "true");
}

#[test]
fn what_was_not_measured_is_unknown_unless_the_rest_decides() {
    check("absent", "? absent");
    check("absent + 1 > gone", "? absent gone");
    check("false and absent > 1", "false");
    check("absent > 1 and false", "false");
    check("true or absent", "true");
    check("absent or true", "true");
    check("absent and true", "? absent");
    check("absent or gone", "? absent gone");
    check("not absent", "? absent");
    check("if(absent, 1, 1)", "? absent");
    check("max(1, absent, gone)", "? absent gone");
    check("has(absent) and absent > 1", "false");
}

#[test]
fn what_is_no_finite_number_is_unknown() {
    check("1 / zero", "? zero");
    check("zero / zero", "? zero");
    check("two / 0", "?");
    check("1e308 * 10 * two", "?");
    check("two * 1e308 * 10", "? two");
}

#[test]
fn a_metric_of_another_type_is_named_as_missing() {
    check("word > 1", "? word");
    check("two and true", "? two");
    check("on + 1", "? on");
    check("word == two", "? two word");
    check("contains(two, 'a')", "? two");
}

#[test]
fn mistakes_are_refused_with_their_place() {
    check("", "0: a value is missing before the end");
    check("1 +", "3: a value is missing before the end");
    check("1 2", "2: `2` is not expected here");
    check("(1", "2: `)` is missing before the end");
    check(
        "1 < 2 < 3",
        "6: comparisons do not chain: write `a < b and b < c`",
    );
    check("'a' + 1", "0: a text, where a number is needed");
    check("1 and true", "0: a number, where a condition is needed");
    check(
        "true and (1 + 2)",
        "9: a number, where a condition is needed",
    );
    check("'a' == 1", "4: a text is never a number");
    check("two = 2", "4: `=` compares as `==`");
    check("two & 2", "4: `&` has no meaning here");
    check("'a", "0: the text has no closing quote");
    check(
        "Two",
        "0: `Two` is no name: lower-case words joined by dots",
    );
    check(
        "a..b",
        "0: `a..b` is no name: lower-case words joined by dots",
    );
    check("1e999", "0: `1e999` is no number");
    check("if(on, 1, 'a')", "10: a text, where a number is needed");
    check("abs(1, 2)", "0: `abs` takes one value");
    check("has('a')", "4: `has` takes the name of a metric");
    check(
        "sqrt(2)",
        "0: no function is named `sqrt`; there are min, max, abs, clamp, if, floor, ceil, round, contains, has",
    );
    let wrong = Expression::parse("two > 1", Type::Number).unwrap_err();
    assert_eq!(wrong.reason, "a condition, where a number is needed");
}

#[test]
fn hostile_expressions_do_not_overflow_the_stack() {
    let deep = |open: &str, close: &str, times| {
        let text = format!("{}1{}", open.repeat(times), close.repeat(times));
        Expression::parse(&text, Type::Any).unwrap_err().reason
    };
    for (open, close) in [
        ("(", ")"),
        ("-", ""),
        ("abs(", ")"),
        ("1+", ""),
        ("1+(", ")"),
    ] {
        let reason = deep(open, close, 200);
        assert!(reason.contains("more than 64"), "{open}: {reason}");
        let reason = deep(open, close, 100_000);
        assert!(reason.contains("at most 2000 bytes"), "{open}: {reason}");
    }
}

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<f64>().prop_map(Value::Number),
        any::<String>().prop_map(Value::Text),
        any::<bool>().prop_map(Value::Flag),
    ]
}

fn units() -> impl Strategy<Value = Unit> {
    prop_oneof![
        Just(Unit::Count),
        Just(Unit::Share),
        Just(Unit::Bytes),
        Just(Unit::Nanos),
        Just(Unit::BytesPerSecond),
        Just(Unit::FlopsPerSecond),
        Just(Unit::Times),
    ]
}

/// What looks like an expression more often than not.
fn texts() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        Just("a".to_owned()),
        Just("b.c".to_owned()),
        Just("share".to_owned()),
        Just("name".to_owned()),
        Just("'x'".to_owned()),
        "[0-9]{1,3}(\\.[0-9])?(e[0-9]{1,3})?",
        prop::sample::select(vec![
            "+",
            "-",
            "*",
            "/",
            "<",
            "<=",
            "==",
            "!=",
            "and",
            "or",
            "not",
            "(",
            ")",
            ",",
            "min(",
            "max(",
            "clamp(",
            "if(",
            "has(a)",
            "contains(",
            "abs(",
            "{",
            "}",
            "=",
            ":",
            "é",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(token, 0..24).prop_map(|tokens| tokens.join(" "))
}

/// Expressions that are right, so that evaluation is reached.
fn numbers() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("a".to_owned()),
        Just("b.c".to_owned()),
        Just("gone".to_owned()),
        Just("1e308".to_owned()),
        Just("0".to_owned()),
        Just("0.5".to_owned()),
    ];
    leaf.prop_recursive(5, 60, 3, |inner| {
        (inner.clone(), inner.clone(), inner, 0usize..8).prop_map(|(x, y, z, form)| match form {
            0 => format!("({x} + {y})"),
            1 => format!("({x} - {y})"),
            2 => format!("({x} * {y})"),
            3 => format!("({x} / {y})"),
            4 => format!("min({x}, {y}, {z})"),
            5 => format!("clamp({x}, {y}, {z})"),
            6 => format!("if({x} > {y} or not has(gone), {z}, -{x})"),
            _ => format!("round(abs({x}))"),
        })
    })
}

proptest! {
    #[test]
    fn no_expression_panics_or_yields_what_is_not_finite(
        text in prop_oneof![texts(), numbers(), any::<String>()],
        metrics in prop::collection::vec((values(), units()), 2),
        share in prop::option::of(0.0..=1.0),
    ) {
        let mut subject = Subject {
            kind: "phase".into(),
            name: "x".into(),
            metrics: Metrics::default(),
        };
        for (name, (value, unit)) in ["a", "b.c"].into_iter().zip(metrics) {
            let metric = Metric { value, unit, source: None };
            subject.metrics.0.insert(name.into(), metric);
        }
        let scope = Scope { subject: &subject, share };
        if let Ok(expression) = Expression::parse(&text, Type::Any) {
            if let Ok(Val::Number(number)) = expression.eval(&scope) {
                prop_assert!(number.is_finite(), "{text} = {number}");
            }
            let again = Expression::parse(expression.text(), Type::Any);
            prop_assert_eq!(again, Ok(expression));
        }
        for text in [text.clone(), format!("x {{= {text} : share}} {{a}}")] {
            if let Ok(template) = Template::parse(&text) {
                for style in [Style::Sentence, Style::Command, Style::Raw] {
                    let filled = template.fill(&scope, style);
                    prop_assert!(!filled.contains("NaN"));
                }
            }
        }
    }
}
