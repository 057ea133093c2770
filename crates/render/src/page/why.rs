//! Why it is as fast as it is, as HTML and as Markdown: the time of a token in parts, then
//! causes, each with what to do, what that gives, and what would show that it is wrong.

use std::fmt::Write as _;

use diagnose::{Diagnosis, PhaseStack, Ranked};
use rules::Evidence;

use super::{
    findings::{broken, capitalised, emphasised, escape_lines},
    markdown::{code, fenced, plain},
    with_code,
};
use crate::{
    diagnosis::{gain, no_cause, shown_parts, system_calls},
    palette::Category,
    plot::{
        Canvas, Unit,
        svg::Anchor,
        text::{escape, width_px},
        theme::{FONT_PX, WIDTH_PX},
        units::short,
    },
    plots::plural,
};

/// Height of a stack.
const STACK_PX: f64 = 30.0;

pub(super) fn html(diagnosis: &Diagnosis) -> String {
    let mut out = String::from("<section id=\"why\">\n<h2>Why</h2>\n");
    for phase in &diagnosis.phases {
        out.push_str(&phase_html(phase));
    }
    match diagnosis.causes.is_empty() {
        true => {
            let _ = writeln!(out, "<p>{}</p>", escape(no_cause()));
        }
        false => {
            out.push_str("<h3>Causes, the one that costs most first</h3>\n<ol class=\"causes\">\n");
            for ranked in &diagnosis.causes {
                out.push_str(&cause_html(ranked));
            }
            out.push_str("</ol>\n");
        }
    }
    out.push_str(&list_html(
        "What the hardware can do",
        diagnosis.healthy.iter().map(healthy),
    ));
    out.push_str(&list_html("Not known", diagnosis.missing.iter().cloned()));
    let lacking = diagnosis.not_evaluated.len();
    if lacking > 0 {
        let rules = plural(lacking as u64, "rule");
        let lacks = if lacking == 1 { "lacks" } else { "lack" };
        let _ = write!(
            out,
            "<details><summary>{rules} {lacks} an input</summary>\n<ul>\n"
        );
        for rule in &diagnosis.not_evaluated {
            let (title, subject) = (escape(&rule.title), escape(&rule.subject));
            let inputs = escape(&rule.missing.join(", "));
            let _ = writeln!(out, "<li>{title} ({subject}): {inputs}</li>");
        }
        out.push_str("</ul>\n</details>\n");
    }
    out.push_str("</section>\n");
    out
}

/// How fast a phase is.
fn speed(phase: &PhaseStack) -> String {
    format!(
        "{}, {} a token, {} tokens/s",
        plural(phase.tokens, "token"),
        Unit::Nanos.amount(phase.token_nanos),
        short(phase.tokens_per_second)
    )
}

fn phase_html(phase: &PhaseStack) -> String {
    let mut out = format!(
        "<h3>{}</h3>\n<p class=\"note\">{}</p>\n<div class=\"stack\">\n{}</div>\n<table class=\"parts\">\n<tbody>\n",
        escape(&capitalised(&phase.name)),
        emphasised(&speed(phase)),
        picture(phase),
    );
    for part in shown_parts(phase) {
        let _ = writeln!(
            out,
            "<tr><td><svg class=\"picture swatch\" viewBox=\"0 0 1 1\" aria-hidden=\"true\"><rect class=\"{}\" width=\"1\" height=\"1\"/></svg>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            Category::of_time_part(&part.name).fill(),
            escape(&part.title),
            percent(part.share),
            Unit::Nanos.amount(part.nanos),
        );
    }
    out.push_str("</tbody>\n</table>\n");
    if let Some(calls) = system_calls(phase) {
        let _ = writeln!(
            out,
            "<p class=\"note\">{}</p>",
            escape(&capitalised(&calls))
        );
    }
    if !phase.verdict.is_empty() {
        let verdict = emphasised(&capitalised(&phase.verdict));
        let _ = writeln!(out, "<p>{verdict}.</p>");
    }
    out
}

/// Of a part: so many decimals that parts can be seen to add up.
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The parts beside each other, each as wide as its share.
fn picture(phase: &PhaseStack) -> String {
    let mut canvas = Canvas::new(STACK_PX);
    let mut left = 0.0;
    let mut words = Vec::new();
    for part in &phase.stack {
        let width = part.share.clamp(0.0, 1.0) * WIDTH_PX;
        if width <= 0.0 {
            continue;
        }
        let category = Category::of_time_part(&part.name);
        let text = percent(part.share);
        let tip = format!("{}: {text}", part.title);
        let class = format!("{} gap", category.fill());
        canvas.rect(&class, (left, 0.0), (width, STACK_PX), &tip);
        if width_px(&text, FONT_PX) + 8.0 <= width {
            let at = (left + width / 2.0, STACK_PX / 2.0 + FONT_PX * 0.36);
            canvas.text(category.text(), at, Anchor::Middle, &text);
        }
        words.push(tip);
        left += width;
    }
    let title = format!("Where the time of a token goes: {}", phase.name);
    canvas.finish(&title, &words.join("; ")).inline()
}

fn cause_html(ranked: &Ranked) -> String {
    let cause = &ranked.cause;
    let mut out = format!(
        "<li>\n<p class=\"cause\">{} <span>{}</span></p>\n<p>{}.</p>\n",
        escape(&capitalised(&cause.title)),
        escape(&place(ranked)),
        sentence(&cause.why),
    );
    let mut note = |name: &str, text: String| {
        let _ = writeln!(out, "<p class=\"note\">{name}: {text}</p>");
    };
    if let Some(action) = &cause.action {
        note("do", action_html(action));
    }
    if let Some(gain) = gain(ranked) {
        note("gain", emphasised(&gain));
    }
    if let Some(refute) = &cause.refute {
        note("refuted if", with_code(refute));
    }
    out.push_str("<details><summary>Where this comes from</summary>\n<dl class=\"evidence\">\n");
    for evidence in &cause.evidence {
        let (name, value) = (escape(&evidence.name), escape(&evidence.text));
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{value}{}</dd></div>", {
            source_html(evidence)
        });
    }
    let rule = escape(&cause.id);
    let reference = cause
        .reference
        .as_deref()
        .map_or_else(String::new, |text| format!("; {}", with_code(text)));
    let _ = write!(
        out,
        "<div><dt>rule</dt><dd><code>{rule}</code>{reference}</dd></div>\n</dl>\n</details>\n</li>\n"
    );
    out
}

/// Of which phase, and how much of it.
fn place(ranked: &Ranked) -> String {
    let share = ranked.cause.share * 100.0;
    format!("{}, {share:.0} % of its time", ranked.phase)
}

/// Numbers bold, and what is to be typed as code.
fn sentence(text: &str) -> String {
    match text.contains('`') {
        true => with_code(&capitalised(text)),
        false => emphasised(&capitalised(text)),
    }
}

/// A command, or a sentence with commands in it.
fn action_html(action: &str) -> String {
    match action.contains('`') {
        true => with_code(action),
        false => format!("<code>{}</code>", escape(action)),
    }
}

fn source_html(evidence: &Evidence) -> String {
    match &evidence.source {
        Some(sql) if is_query(sql) => {
            format!("<pre><code>{}</code></pre>", escape_lines(&broken(sql)))
        }
        Some(place) => format!(" <span>{}</span>", escape(place)),
        None => String::new(),
    }
}

/// Whether `tensorscope sql` can be asked; else it is a place in a file.
fn is_query(source: &str) -> bool {
    source.starts_with("SELECT ") || source.starts_with("WITH ")
}

fn healthy(ranked: &Ranked) -> String {
    let cause = &ranked.cause;
    format!("{} ({}): {}", cause.title, ranked.phase, cause.why)
}

fn list_html(title: &str, lines: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = lines
        .map(|line| format!("<li>{}</li>\n", with_code(&line)))
        .collect();
    match items.is_empty() {
        true => String::new(),
        false => format!(
            "<h3>{title}</h3>\n<ul class=\"actions\">\n{}</ul>\n",
            items.concat()
        ),
    }
}

pub(super) fn markdown(diagnosis: &Diagnosis) -> String {
    let mut out = String::from("\n## Why\n");
    for phase in &diagnosis.phases {
        let _ = write!(
            out,
            "\n### {}\n\n{}\n\n| part | share | a token |\n|---|---:|---:|\n",
            plain(&capitalised(&phase.name)),
            plain(&speed(phase))
        );
        for part in shown_parts(phase) {
            let _ = writeln!(
                out,
                "| {} | {} | {} |",
                plain(&part.title),
                percent(part.share),
                Unit::Nanos.amount(part.nanos)
            );
        }
        if let Some(calls) = system_calls(phase) {
            let _ = writeln!(out, "\n{}.", plain(&capitalised(&calls)));
        }
        if !phase.verdict.is_empty() {
            let _ = writeln!(out, "\n{}.", plain(&capitalised(&phase.verdict)));
        }
    }
    match diagnosis.causes.is_empty() {
        true => {
            let _ = writeln!(out, "\n{}", no_cause());
        }
        false => out.push_str("\n### Causes, the one that costs most first\n\n"),
    }
    for (number, ranked) in (1..).zip(&diagnosis.causes) {
        cause_markdown(&mut out, number, ranked);
    }
    list_markdown(
        &mut out,
        "What the hardware can do",
        diagnosis.healthy.iter().map(healthy),
    );
    list_markdown(&mut out, "Not known", diagnosis.missing.iter().cloned());
    out
}

fn cause_markdown(out: &mut String, number: usize, ranked: &Ranked) {
    let cause = &ranked.cause;
    let _ = writeln!(
        out,
        "{number}. **{}** ({}): {}.",
        plain(&capitalised(&cause.title)),
        plain(&place(ranked)),
        prose(&cause.why)
    );
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "   - {name}: {text}");
    };
    match &cause.action {
        Some(action) if action.contains('`') => line("do", &prose(action)),
        Some(action) => line("do", &code(action)),
        None => {}
    }
    if let Some(gain) = gain(ranked) {
        line("gain", &gain);
    }
    if let Some(refute) = &cause.refute {
        line("refuted if", &prose(refute));
    }
    let mut queries: Vec<&str> = Vec::new();
    let numbers = cause.evidence.iter().map(|evidence| {
        let number = format!("{} {}", plain(&evidence.name), plain(&evidence.text));
        match &evidence.source {
            Some(sql) if is_query(sql) => {
                if !queries.contains(&sql.as_str()) {
                    queries.push(sql);
                }
                number
            }
            Some(place) => format!("{number} ({})", plain(place)),
            None => number,
        }
    });
    let numbers: Vec<String> = numbers.collect();
    if !numbers.is_empty() {
        line("numbers", &numbers.join(", "));
    }
    for sql in queries {
        let _ = writeln!(out, "\n{}\n", fenced(&broken(sql)));
    }
}

fn list_markdown(out: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    for (number, line) in lines.enumerate() {
        if number == 0 {
            let _ = writeln!(out, "\n### {title}\n");
        }
        let _ = writeln!(out, "- {}", prose(&line));
    }
}

/// Harmless text, with what stands in backticks as code.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(number, part)| match number % 2 {
        0 => plain(part),
        _ => code(part),
    });
    parts.collect()
}
