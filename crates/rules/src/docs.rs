//! `docs/rules.md`, from the shipped rules and the names of metrics.

use std::fmt::Write as _;

use crate::file::{KINDS, Rule};
use crate::names::{self, names};
use crate::set::RuleSet;

const HEAD: &str = include_str!("docs/head.md");

/// The whole page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## Metrics\n\nWhat was not measured is absent. Shares are from 0 to 1.\n");
    table(&mut page, "any subject", names::ANY);
    for (kind, what) in KINDS {
        table(&mut page, &format!("`{kind}`: {what}"), names(kind));
    }
    page.push_str(
        "\n## Shipped rules\n\nThe files are in crates/rules/src/shipped. A rule under another one (↳) is looked at where that one holds.\n",
    );
    for (kind, what) in KINDS {
        let _ = writeln!(page, "\n### {kind}\n\nAbout {what}.\n");
        page.push_str("| rule | holds when | what to do | source |\n|---|---|---|---|\n");
        for rule in RuleSet::shipped().rules().filter(|rule| rule.about == kind) {
            page.push_str(&row(rule));
        }
    }
    page
}

fn table(page: &mut String, title: &str, names: &[names::Name]) {
    if names.is_empty() {
        return;
    }
    let _ = writeln!(page, "\n### Of {title}\n\n| name | meaning |\n|---|---|");
    for (name, meaning) in names.iter().filter(|(_, meaning)| !meaning.is_empty()) {
        let _ = writeln!(page, "| `{name}` | {meaning} |");
    }
}

fn row(rule: &Rule) -> String {
    let parent = (rule.parent.as_ref()).map(|parent| format!("<br>↳ `{parent}`"));
    let when = rule
        .when
        .as_ref()
        .map(|when| format!("`{}`", cell(when.text())));
    let action = match (&rule.action, &rule.why) {
        (Some(action), _) => cell(action.text()),
        (None, Some(_)) => "listed if nothing below it holds".to_owned(),
        (None, None) => "only groups others".to_owned(),
    };
    let healthy = if rule.healthy { " (healthy)" } else { "" };
    format!(
        "| `{}`{healthy}<br>{}{} | {} | {action} | {} |\n",
        rule.id,
        cell(&rule.title),
        parent.unwrap_or_default(),
        when.unwrap_or_else(|| "always".to_owned()),
        cell(rule.reference.as_deref().unwrap_or_default()),
    )
}

/// One line, without what would end the cell.
fn cell(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|")
}
