//! The report as Markdown, with links to files of plots.

use std::fmt::Write as _;

use super::{actions, figures, findings, tables, why};
use crate::plots::{Plot, ReportInput, Section};

/// Rows of a table in text: who reads it here wants the top.
const MAX_ROWS: usize = 40;

/// The report; `link` gives the path of a plot's file, as seen from the text.
pub fn markdown(input: &ReportInput, plots: &[Plot], link: &dyn Fn(&Plot) -> String) -> String {
    let info = input.index.info();
    let mut out = format!("# {}\n\n", plain(input.title));
    for figure in figures::figures(&info) {
        let _ = writeln!(
            out,
            "- **{}**: {} ({})",
            plain(&figure.name),
            plain(&figure.value),
            plain(&figure.note)
        );
    }
    for (name, value) in input.about {
        let _ = writeln!(out, "- **{}**: {}", plain(name), plain(value));
    }
    for sentence in &info.missing {
        let _ = writeln!(out, "\n> **Not complete:** {}", plain(sentence));
    }
    if !input.actions.is_empty() {
        out.push_str("\n## What to do\n\n");
    }
    for action in input.actions {
        let _ = writeln!(out, "- {}.", plain(&findings::capitalised(&action.text)));
        for (whose, command) in actions::commands(action) {
            let _ = writeln!(out, "  - {whose}: {}", code(command));
        }
    }
    out.push_str(&input.diagnosis.map(why::markdown).unwrap_or_default());
    if !input.findings.is_empty() {
        out.push_str("\n## Findings\n\n");
    }
    for (number, finding) in input.findings.iter().enumerate() {
        let text = findings::capitalised(&finding.text);
        let _ = writeln!(out, "{}. {}.", number + 1, plain(&text));
        if let Some(sql) = &finding.sql {
            let _ = writeln!(out, "\n{}\n", fenced(&findings::broken(sql)));
        }
    }
    for section in Section::ALL {
        let mut of_section = plots
            .iter()
            .filter(|plot| plot.section == section)
            .peekable();
        if of_section.peek().is_some() {
            let _ = writeln!(out, "\n## {}", section.title());
        }
        for plot in of_section {
            let _ = writeln!(
                out,
                "\n### {}\n\n![{}](<{}>)\n\n{}",
                plain(&plot.title),
                plain(&plot.title),
                link(plot).replace(['<', '>', '\n'], "_"),
                plot.caption
            );
        }
    }
    out.push_str("\n## Tables\n");
    let summary = input.index.summary(&index::Filter::default());
    for table in tables::all(&summary, input) {
        let _ = writeln!(
            out,
            "\n### {}\n\n| {} |",
            table.title,
            table.heads.join(" | ")
        );
        let rules: Vec<&str> = (0..table.heads.len())
            .map(|column| if column < table.words { "---" } else { "---:" })
            .collect();
        let _ = writeln!(out, "|{}|", rules.join("|"));
        for row in table.rows.iter().take(MAX_ROWS) {
            let cells: Vec<String> = row.iter().map(|cell| plain(&cell.text)).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        if table.rows.len() > MAX_ROWS {
            let _ = writeln!(out, "\nThe first {MAX_ROWS} of {}.", table.rows.len());
        }
    }
    out
}

/// Text whose characters mean nothing to Markdown or HTML.
pub(super) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' | '!' | '&' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Code in a line; what would end it, or be markup to somebody, is no part of a command.
pub(super) fn code(text: &str) -> String {
    let is_text = |c: char| c.is_alphanumeric() || (c.is_ascii_graphic() && !"`<>".contains(c));
    let clean = |c: char| match c {
        ' ' => ' ',
        c if is_text(c) => c,
        _ => '\u{fffd}',
    };
    format!("`{}`", text.chars().map(clean).collect::<String>())
}

/// A block of code that its own text cannot end.
pub(super) fn fenced(code: &str) -> String {
    let longest = code.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let lines: Vec<String> = code.lines().map(|line| format!("   {line}")).collect();
    format!("   {fence}sql\n{}\n   {fence}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_markup() {
        assert_eq!(
            plain("a_b|<img>\n[x](y)"),
            "a\\_b\\|\\<img\\>\u{fffd}\\[x\\](y)"
        );
    }

    #[test]
    fn code_cannot_end_its_own_block() {
        assert_eq!(fenced("a ```` b"), "   `````sql\n   a ```` b\n   `````");
    }
}
