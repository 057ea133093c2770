//! Rules as data: from numbers that were measured to causes, actions and gains.
//!
//! Whoever measured something (a recorded run, another tool's file) hands over [`Subject`]s:
//! things that may be slow, each with the numbers that are known of it. What follows from the
//! numbers is written in rule files, not here. In the order that data flows:
//!
//! - [`metric`]: what is known of a subject, and [`names`]: what its numbers are called;
//! - [`mod@file`]: rule files (TOML), read and checked: every error has file, line and column;
//! - [`expression`]: the small language in them, where what was not measured is unknown;
//! - [`template`]: texts with placeholders, and [`text`]: how numbers are shown in them;
//! - [`set`]: files joined into one tree, and [`shipped`]: the ones that come with us;
//! - [`mod@evaluate`]: rules and subjects in, ranked causes out;
//! - [`docs`]: `docs/rules.md`, which describes the format and lists every shipped rule.
//!
//! ```
//! use rules::{Metrics, RuleSet, Subject, Unit, evaluate};
//!
//! let rules = RuleSet::parse(
//!     r#"
//!     [[rule]]
//!     id = "threads.too_many"
//!     title = "more threads than processors"
//!     about = "phase"
//!     when = "threads > processors and waiting > 0.1"
//!     share = "waiting"
//!     why = "{threads} threads share {processors} processors and wait {waiting} of the time"
//!     action = "-t {processors}"
//!     refute = "with -t {processors} it is not faster"
//!     "#,
//!     "my.toml",
//! )?;
//! let mut metrics = Metrics::default();
//! metrics.number("threads", Unit::Count, 8.0, None);
//! metrics.number("processors", Unit::Count, 2.0, None);
//! metrics.number("waiting", Unit::Share, 0.4, None);
//! let generate = Subject { kind: "phase".into(), name: "generate".into(), metrics };
//! let verdicts = evaluate(&rules, &[generate]);
//! assert_eq!(verdicts.causes[0].action.as_deref(), Some("-t 2"));
//! # Ok::<(), rules::Error>(())
//! ```
//!
//! Nothing here reads files or clocks: the same rules and numbers give the same answer.

pub mod docs;
mod error;
pub mod evaluate;
pub mod expression;
pub mod file;
pub mod metric;
pub mod names;
pub mod set;
pub mod shipped;
pub mod template;
pub mod text;

pub use error::{Error, Place};
pub use evaluate::{Cause, Evidence, NotEvaluated, Verdicts, evaluate};
pub use file::{Rule, RuleFile};
pub use metric::{Metric, Metrics, Subject, Unit, Value};
pub use set::RuleSet;

#[cfg(test)]
#[path = "../../index/tests/generated/mod.rs"]
mod generated;

#[cfg(test)]
mod tests {
    use super::{generated::declaration as of, *};

    /// The page's types are these: `TENSORSCOPE_BLESS=1 cargo test -p rules --lib` writes them.
    #[test]
    fn the_page_knows_causes() {
        let types = [
            of::<Cause>(),
            of::<Evidence>(),
            of::<NotEvaluated>(),
            of::<Subject>(),
            of::<Metrics>(),
            of::<Metric>(),
            of::<Value>(),
            of::<Unit>(),
        ];
        let text = format!(
            "// Written by a test of crates/rules/src/lib.rs; change that.\n{}",
            types.concat()
        );
        generated::check("src/generated/rules.ts", &text);
    }
}
