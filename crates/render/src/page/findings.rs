//! Findings as HTML: sentences first, what they rest on behind a fold.

use std::fmt::Write as _;

use analysis::findings::{Answer, Finding};

use crate::plot::text::escape;

/// Words that belong to the number before them.
const UNITS: &[&str] = &[
    "%", "B", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "ns", "µs", "ms", "s", "tokens/s", "×",
];

pub(super) fn html(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let mut out =
        String::from("<section id=\"findings\">\n<h2>Findings</h2>\n<ol class=\"findings\">\n");
    let mut topic_before = "";
    for finding in findings {
        // Said once for all findings of a topic that follow each other.
        let topic = match finding.topic == topic_before {
            true => String::new(),
            false => format!("<span class=\"topic\">{}</span>", escape(&finding.topic)),
        };
        topic_before = &finding.topic;
        let _ = write!(
            out,
            "<li>\n<p>{topic}{}.</p>\n<details><summary>Where this comes from</summary>\n<p>In <code>report --json</code>: <code>{}</code>.{}</p>\n",
            emphasised(&capitalised(&finding.text)),
            escape(&finding.evidence),
            match finding.sql_answer {
                Answer::Exact => " This query gives the same numbers:",
                Answer::Close =>
                    " This query comes close; tables do not keep the order of accesses within a node:",
                Answer::None => " No query over the tables shows it.",
            },
        );
        if let Some(sql) = &finding.sql {
            let _ = writeln!(
                out,
                "<pre><code>{}</code></pre>",
                escape_lines(&broken(sql))
            );
        }
        out.push_str("</details>\n</li>\n");
    }
    out.push_str("</ol>\n</section>\n");
    out
}

/// A sentence begins with a capital, unless it begins with a name.
pub(super) fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// Numbers with their units in bold, everything escaped. Text in double quotes is
/// the model's and stays as it is.
pub(super) fn emphasised(text: &str) -> String {
    let mut out = String::new();
    for (number, part) in text.split_inclusive('"').enumerate() {
        match number % 2 {
            0 => out.push_str(&with_bold_numbers(part)),
            _ => out.push_str(&escape(part)),
        }
    }
    out
}

fn with_bold_numbers(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let mut out = String::new();
    let mut at = 0;
    while at < words.len() {
        if at > 0 {
            out.push(' ');
        }
        let (before, number, after) = around_number(words[at]);
        if number.is_empty() {
            out.push_str(&escape(words[at]));
            at += 1;
            continue;
        }
        let _ = write!(out, "{}<b>{}", escape(before), escape(number));
        let next = words.get(at + 1).copied().unwrap_or("");
        let unit = next.trim_end_matches([',', ';', ')', ':', '.']);
        if after.is_empty() && UNITS.contains(&unit) {
            // They must not be torn apart at the end of a line.
            let _ = write!(
                out,
                "\u{a0}{}</b>{}",
                escape(unit),
                escape(&next[unit.len()..])
            );
            at += 2;
        } else {
            let _ = write!(out, "</b>{}", escape(after));
            at += 1;
        }
    }
    out
}

/// `(12,345;` is `(`, `12,345` and `;`; a name with digits in it is no number.
fn around_number(word: &str) -> (&str, &str, &str) {
    let start = word.find(|c: char| c != '(').unwrap_or(word.len());
    let (before, rest) = word.split_at(start);
    let end = rest
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','))
        .unwrap_or(rest.len());
    let number = rest[..end].trim_end_matches(['.', ',']);
    let after = &rest[number.len()..];
    let is_number = number.starts_with(|c: char| c.is_ascii_digit())
        && after
            .chars()
            .all(|c| matches!(c, ',' | ';' | ')' | ':' | '.'));
    match is_number {
        true => (before, number, after),
        false => (word, "", ""),
    }
}

/// Escaped, with the ends of its lines, which are ours.
pub(super) fn escape_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(escape).collect();
    lines.join("\n")
}

/// One clause a line. Only outside of quotes: a name may hold any word.
pub(super) fn broken(sql: &str) -> String {
    const CLAUSES: [&str; 6] = [
        "FROM ",
        "WHERE ",
        "GROUP BY ",
        "ORDER BY ",
        "LIMIT ",
        "JOIN ",
    ];
    let mut out = String::new();
    let (mut is_quoted, mut depth) = (false, 0i32);
    for (at, c) in sql.char_indices() {
        match c {
            '\'' => is_quoted = !is_quoted,
            '(' if !is_quoted => depth += 1,
            ')' if !is_quoted => depth -= 1,
            _ => {}
        }
        let rest = &sql[at + c.len_utf8()..];
        let begins = CLAUSES.iter().any(|clause| rest.starts_with(clause));
        match c {
            ' ' if !is_quoted && depth == 0 && begins => out.push('\n'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_out_with_their_units() {
        let check = |text: &str, expect: &str| {
            assert_eq!(emphasised(text).replace('\u{a0}', "_"), expect);
        };
        check("63.6 % of bytes", "<b>63.6_%</b> of bytes");
        check(
            "(3 tokens in 1 evaluation, at 1.8 tokens/s)",
            "(<b>3</b> tokens in <b>1</b> evaluation, at <b>1.8_tokens/s</b>)",
        );
        check(
            "Q is 18.1 %, K 9.1 %;",
            "Q is <b>18.1_%</b>, K <b>9.1_%</b>;",
        );
        check(
            "the token \"12 <b>\" 8 of",
            "the token \"12 &lt;b&gt;&quot; <b>8</b> of"
                .replacen('"', "&quot;", 1)
                .as_str(),
        );
        check("1,234 nodes", "<b>1,234</b> nodes");
        check("blk.3 3x", "blk.3 3x");
    }

    #[test]
    fn queries_are_broken_before_their_clauses() {
        assert_eq!(
            broken("SELECT a, (SELECT b FROM c) FROM d WHERE e = 'x FROM y' ORDER BY a"),
            "SELECT a, (SELECT b FROM c)\nFROM d\nWHERE e = 'x FROM y'\nORDER BY a"
        );
    }
}
