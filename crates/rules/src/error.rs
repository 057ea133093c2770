//! What may be wrong with a rule file, and where.

use std::fmt;
use std::sync::Arc;

/// Why a rule file was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No TOML, or a field that is unknown, missing or of another type.
    #[error("{place}: {reason}")]
    File { place: Place, reason: String },
    /// An expression or a placeholder that cannot be understood.
    #[error("{place}: in `{field}` of rule `{rule}`: {reason}")]
    Expression {
        place: Place,
        rule: String,
        field: &'static str,
        reason: String,
    },
    /// A rule that does not fit with itself or with the others.
    #[error("{place}: rule `{rule}`: {reason}")]
    Rule {
        place: Place,
        rule: String,
        reason: String,
    },
}

/// A rule file's text, kept so that places in it can be named when something is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub origin: Arc<str>,
    pub text: String,
}

/// A byte of a rule file; its line is only looked for when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub source: Arc<Source>,
    pub offset: usize,
}

/// A place in a rule file; lines and columns (in characters) count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub origin: Arc<str>,
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.origin, self.line, self.column)
    }
}

impl Spot {
    pub fn place(&self) -> Place {
        let text = &self.source.text;
        let before = text.get(..self.offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Place {
            origin: Arc::clone(&self.source.origin),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    /// Something is wrong with this rule here.
    pub fn wrong(&self, rule: &str, reason: impl Into<String>) -> Error {
        Error::Rule {
            place: self.place(),
            rule: one_line(rule),
            reason: one_line(&reason.into()),
        }
    }
}

/// Messages quote what people wrote, which may be anything.
pub(crate) fn one_line(text: &str) -> String {
    const MAX_CHARS: usize = 800;
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.chars().take(MAX_CHARS).map(visible).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        line.push('…');
    }
    line
}
