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

/// A place in a rule file; lines and columns (in characters) count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub origin: Arc<str>,
    pub line: usize,
    pub column: usize,
}

impl Place {
    pub(crate) fn of(origin: &Arc<str>, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            origin: Arc::clone(origin),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.origin, self.line, self.column)
    }
}
