//! Texts with placeholders: `{threads}` is a metric, shown by its unit, and
//! `{= threads - processors}` is computed; `{= 1 - dram.share : share}` says how it is shown.
//!
//! What is unknown reads `?`. Braces themselves are doubled: `{{`, `}}`.

use crate::expression::{Expression, Scope, Type, Val, Wrong};
use crate::metric::{Unit, Value};
use crate::text::{self, Style};

/// In bytes; a placeholder's expression has its own, lower limit.
pub const MAX_LENGTH: usize = 4000;

/// A parsed text.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
    text: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Literal(String),
    /// The unit of a name is that of its metric.
    Placeholder(Expression, Option<Unit>),
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = |offset, reason: &str| Wrong {
            offset,
            reason: reason.to_owned(),
        };
        if text.len() > MAX_LENGTH {
            let reason = format!("a text has at most {MAX_LENGTH} bytes");
            return Err(wrong(MAX_LENGTH, &reason));
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut at = 0;
        while let Some(found) = text[at..].find(['{', '}']) {
            let brace = at + found;
            literal.push_str(&text[at..brace]);
            let rest = &text[brace..];
            if rest.starts_with("{{") || rest.starts_with("}}") {
                literal.push_str(&rest[..1]);
                at = brace + 2;
                continue;
            }
            if rest.starts_with('}') {
                return Err(wrong(brace, "`}` closes nothing; a brace itself is `}}`"));
            }
            let Some(len) = placeholder_len(&rest[1..]) else {
                return Err(wrong(
                    brace,
                    "the placeholder is not closed; a brace itself is `{{`",
                ));
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(placeholder(&rest[1..=len]).map_err(|inner| Wrong {
                offset: brace + 1 + inner.offset,
                ..inner
            })?);
            at = brace + len + 2;
        }
        literal.push_str(&text[at..]);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        let text = text.to_owned();
        Ok(Self { parts, text })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Every name in its placeholders.
    pub fn names(&self) -> Vec<&str> {
        let names = self.parts.iter().map(|part| match part {
            Part::Literal(_) => Vec::new(),
            Part::Placeholder(expression, _) => expression.names(),
        });
        names.flatten().collect()
    }

    /// With `?` for what is unknown.
    pub fn fill(&self, scope: &Scope<'_>, style: Style) -> String {
        let filled = self.parts.iter().map(|part| match part {
            Part::Literal(text) => text.clone(),
            Part::Placeholder(expression, unit) => {
                shown(expression, *unit, scope, style).unwrap_or_else(|| "?".to_owned())
            }
        });
        filled.collect()
    }

    /// Nothing where something in it is unknown: a program cannot use a part of it.
    pub fn fill_whole(&self, scope: &Scope<'_>, style: Style) -> Option<String> {
        let filled = self.parts.iter().map(|part| match part {
            Part::Literal(text) => Some(text.clone()),
            Part::Placeholder(expression, unit) => shown(expression, *unit, scope, style),
        });
        filled.collect()
    }
}

/// Up to the closing brace, which may stand in quotes before.
fn placeholder_len(text: &str) -> Option<usize> {
    let mut quoted = false;
    text.bytes().position(|byte| {
        quoted ^= byte == b'\'';
        byte == b'}' && !quoted
    })
}

fn placeholder(inside: &str) -> Result<Part, Wrong> {
    let Some(computed) = inside.strip_prefix('=') else {
        let expression = Expression::parse(inside, Type::Any)?;
        return match expression.as_name() {
            Some(_) => Ok(Part::Placeholder(expression, None)),
            None => Err(Wrong {
                offset: 0,
                reason: format!("`{inside}` is no name; what is computed begins with `=`"),
            }),
        };
    };
    // No operator has a colon, but a quoted text may.
    let colon = computed.rfind(':');
    let colon = colon.filter(|&colon| !computed[colon..].contains('\''));
    let (formula, unit) = match colon {
        None => (computed, None),
        Some(colon) => {
            let name = computed[colon + 1..].trim();
            let unit = unit_named(name).ok_or_else(|| Wrong {
                offset: colon + 2,
                reason: format!(
                    "`{name}` is no unit; there are count, share, bytes, nanos, bytes_per_second, flops_per_second, times"
                ),
            })?;
            (&computed[..colon], Some(unit))
        }
    };
    let expression = Expression::parse(formula, Type::Any).map_err(|inner| Wrong {
        offset: inner.offset + 1,
        ..inner
    })?;
    Ok(Part::Placeholder(
        expression,
        Some(unit.unwrap_or_default()),
    ))
}

fn unit_named(name: &str) -> Option<Unit> {
    Some(match name {
        "count" => Unit::Count,
        "share" => Unit::Share,
        "bytes" => Unit::Bytes,
        "nanos" => Unit::Nanos,
        "bytes_per_second" => Unit::BytesPerSecond,
        "flops_per_second" => Unit::FlopsPerSecond,
        "times" => Unit::Times,
        _ => return None,
    })
}

fn shown(
    expression: &Expression,
    unit: Option<Unit>,
    scope: &Scope<'_>,
    style: Style,
) -> Option<String> {
    let own = || Some(scope.get(expression.as_name()?)?.1);
    let unit = unit.or_else(own).unwrap_or_default();
    let value = match expression.eval(scope).ok()? {
        Val::Number(number) => Value::Number(number),
        Val::Text(text) => Value::Text(text.to_owned()),
        Val::Flag(flag) => Value::Flag(flag),
    };
    Some(text::value(&value, unit, style))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::{Metrics, Subject};

    fn subject() -> Subject {
        let mut metrics = Metrics::default();
        metrics.number("threads", Unit::Count, 4096.0, None);
        metrics.number("disk", Unit::Share, 0.34, None);
        metrics.text("path", "a: b", None);
        Subject {
            kind: "phase".into(),
            name: "generate".into(),
            metrics,
        }
    }

    #[test]
    fn placeholders_are_shown_by_their_unit() {
        let subject = subject();
        let scope = Scope {
            subject: &subject,
            share: Some(0.5),
        };
        let check = |text: &str, style, expect: &str| {
            assert_eq!(Template::parse(text).unwrap().fill(&scope, style), expect);
        };
        check("{threads} in {name}", Style::Sentence, "4,096 in generate");
        check("-t {threads}", Style::Command, "-t 4096");
        check("{disk}, {share}", Style::Sentence, "34 %, 50 %");
        check("{disk}", Style::Raw, "0.34");
        check("{= 1 - disk : share}", Style::Sentence, "66 %");
        check("{= threads / 2}", Style::Sentence, "2,048");
        check("{= contains(path, ': }')}", Style::Sentence, "no");
        check("{absent} and {= absent + 1}", Style::Sentence, "? and ?");
        check("{{threads}} é", Style::Sentence, "{threads} é");
        let apply = Template::parse("threads={absent}").unwrap();
        assert_eq!(apply.fill_whole(&scope, Style::Raw), None);
    }

    #[test]
    fn mistakes_are_placed() {
        let check = |text: &str, offset| {
            assert_eq!(Template::parse(text).unwrap_err().offset, offset, "{text}");
        };
        check("a {threads", 2);
        check("a } b", 2);
        check("a {threads + 1}", 3);
        check("a {= threads + }", 15);
        check("a {= threads : feet}", 14);
        check("{}", 1);
    }
}
