//! The report as one file that needs nothing else: HTML, or Markdown beside its
//! plots.
//!
//! The HTML page loads nothing: pictures are inside it, fonts are the reader's, and
//! its content-security policy forbids everything but the one style sheet and the
//! one script that it carries, by their hashes. Without the script only the
//! sorting of tables is missing. Texts that come from a model (names, tokens) are
//! escaped wherever they stand, and the policy is there should that ever fail.

mod actions;
mod figures;
mod findings;
mod markdown;
mod tables;
mod why;

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};

use crate::{
    palette::{Scheme, hex, surface, surfaces},
    plot::{text::escape, theme},
    plots::{Plot, ReportInput, Section},
};
pub use markdown::markdown;

const STYLE: &str = include_str!("page/style.css");
/// Sorts tables by the column whose head is clicked.
const SCRIPT: &str = include_str!("page/sort.js");

/// The report, with its plots as [`crate::plots::all`] gives them.
pub fn html(input: &ReportInput, plots: &[Plot]) -> String {
    let info = input.index.info();
    let summary = input.index.summary(&index::Filter::default());
    let tables = tables::all(&summary, input);
    let style = style();
    let mut out = String::with_capacity(1 << 20);
    let title = escape(input.title);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"generator\" content=\"tensorscope {}\">\n\
         <title>{title} · tensorscope report</title>\n<style>{style}</style>\n</head>\n<body>\n",
        policy(&style),
        env!("CARGO_PKG_VERSION"),
    );
    out.push_str(&contents(input, plots, &tables));
    let _ = write!(
        out,
        "<main>\n<header>\n<p class=\"kicker\">tensorscope report</p>\n<h1>{title}</h1>\n"
    );
    out.push_str(&figures::key_figures(&info));
    out.push_str(&about(input.about));
    out.push_str("</header>\n");
    out.push_str(&missing(&info.missing));
    out.push_str(&actions::html(input.actions));
    out.push_str(&input.diagnosis.map(why::html).unwrap_or_default());
    out.push_str(&findings::html(input.findings));
    for section in Section::ALL {
        let mut of_section = plots
            .iter()
            .filter(|plot| plot.section == section)
            .peekable();
        if of_section.peek().is_none() {
            continue;
        }
        let _ = writeln!(
            out,
            "<section id=\"{}\">\n<h2>{}</h2>",
            section.id(),
            section.title()
        );
        for plot in of_section {
            let _ = write!(
                out,
                "<figure id=\"plot-{}\">\n<h3>{}</h3>\n<div class=\"frame\">\n{}</div>\n<figcaption>{}</figcaption>\n</figure>\n",
                escape(&plot.id),
                escape(&plot.title),
                plot.svg.inline(),
                with_code(&plot.caption),
            );
        }
        out.push_str("</section>\n");
    }
    out.push_str("<section id=\"tables\">\n<h2>Tables</h2>\n");
    for table in &tables {
        out.push_str(&table.html());
    }
    let _ = write!(
        out,
        "</section>\n<footer><p>Made by tensorscope {}. <code>docs/analysis.md</code> defines every number; the queries run with <code>tensorscope sql RUN</code>.</p></footer>\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
    );
    out
}

/// All style sheets in one: the page's, and that of pictures in both schemes.
fn style() -> String {
    let of = |scheme| {
        let variable = |name| format!("--{name}:{};", hex(surface(name, scheme)));
        let variables: String = surfaces().map(variable).collect();
        format!(":root{{{variables}}}{}", theme::style(scheme, ".picture "))
    };
    format!(
        "{}@media screen and (prefers-color-scheme:dark){{{}}}{STYLE}",
        of(Scheme::Light),
        of(Scheme::Dark),
    )
}

/// Nothing from anywhere but these two texts and pictures inside the page.
fn policy(style: &str) -> String {
    format!(
        "default-src 'none'; img-src data:; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(style),
        hash(SCRIPT)
    )
}

fn hash(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}

fn contents(input: &ReportInput, plots: &[Plot], tables: &[tables::Table]) -> String {
    let mut out =
        String::from("<nav aria-label=\"Contents\">\n<p class=\"kicker\">Contents</p>\n<ul>\n");
    if !input.actions.is_empty() {
        out.push_str("<li><a href=\"#actions\">What to do</a></li>\n");
    }
    if input.diagnosis.is_some() {
        out.push_str("<li><a href=\"#why\">Why</a></li>\n");
    }
    if !input.findings.is_empty() {
        out.push_str("<li><a href=\"#findings\">Findings</a></li>\n");
    }
    for section in Section::ALL {
        let of_section: Vec<&Plot> = plots
            .iter()
            .filter(|plot| plot.section == section)
            .collect();
        if of_section.is_empty() {
            continue;
        }
        let _ = write!(
            out,
            "<li><a href=\"#{}\">{}</a>\n<ul>",
            section.id(),
            section.title()
        );
        for plot in of_section {
            let (id, title) = (escape(&plot.id), escape(&plot.title));
            let _ = write!(out, "<li><a href=\"#plot-{id}\">{title}</a></li>");
        }
        out.push_str("</ul></li>\n");
    }
    out.push_str("<li><a href=\"#tables\">Tables</a>\n<ul>");
    for table in tables {
        let _ = write!(
            out,
            "<li><a href=\"#table-{}\">{}</a></li>",
            table.id, table.title
        );
    }
    out.push_str("</ul></li>\n</ul>\n</nav>\n");
    out
}

fn about(about: &[(String, String)]) -> String {
    if about.is_empty() {
        return String::new();
    }
    let mut out = String::from("<dl class=\"about\">\n");
    for (name, value) in about {
        let _ = writeln!(
            out,
            "<div><dt>{}</dt><dd>{}</dd></div>",
            escape(name),
            escape(value)
        );
    }
    out.push_str("</dl>\n");
    out
}

/// Lost data stands before everything that rests on what is left.
fn missing(sentences: &[String]) -> String {
    if sentences.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<aside class=\"missing\" role=\"note\">\n<h2>This run is not complete</h2>\n<ul>\n",
    );
    for sentence in sentences {
        let _ = writeln!(out, "<li>{}</li>", escape(sentence));
    }
    out.push_str("</ul>\n</aside>\n");
    out
}

/// Escaped, with what stands in backticks as code.
fn with_code(text: &str) -> String {
    let mut out = String::new();
    for (number, part) in text.split('`').enumerate() {
        let part = escape(part);
        let _ = match number % 2 {
            0 => write!(out, "{part}"),
            _ => write!(out, "<code>{part}</code>"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_knows_the_style_and_the_script() {
        let policy = policy(&style());
        assert!(policy.starts_with("default-src 'none';"));
        assert!(policy.contains(&hash(SCRIPT)) && policy.contains(&hash(&style())));
        assert!(!policy.contains("unsafe"));
        // An attribute holds it.
        assert!(!policy.contains('"'));
    }

    #[test]
    fn hashes_are_those_of_browsers() {
        // `printf '' | openssl dgst -sha256 -binary | base64`
        assert_eq!(hash(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }
}
