//! Files of the checkout as [`crate::tidy`] sees them, and Rust text without
//! comments and literals, so that a word in a comment is not taken for code.
//!
//! The splitter knows as much of Rust's lexing as that takes, and no more.

use std::fs;
use std::path::{Path, PathBuf};

pub struct Source {
    /// Relative to the root of the checkout, with `/`.
    pub path: String,
    pub text: String,
}

/// Folders that hold nothing a person wrote by hand.
const SKIPPED: &[&str] = &[
    "target",
    "corpus",
    "artifacts",
    "coverage",
    "node_modules",
    "shared",
];

/// All text files that the house rules speak about, in a fixed order.
pub fn read_tree(root: &Path) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    read_dir(root, root, &mut sources)?;
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

fn read_dir(root: &Path, dir: &Path, sources: &mut Vec<Source>) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    for entry in fs::read_dir(dir).map_err(|error| failed(dir, error))? {
        let entry = entry.map_err(|error| failed(dir, error))?;
        let path: PathBuf = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().map_err(|error| failed(&path, error))?;
        if kind.is_dir() {
            if !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                read_dir(root, &path, sources)?;
            }
        } else if kind.is_file() && is_ours(&name) {
            let text = fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
            let relative = path.strip_prefix(root).unwrap_or(&path);
            sources.push(Source {
                path: relative.to_string_lossy().into_owned(),
                text,
            });
        }
    }
    Ok(())
}

fn is_ours(name: &str) -> bool {
    [".rs", ".md", ".toml", ".py"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// The text with comments, strings and character literals blanked out. Lines
/// keep their numbers.
pub fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut previous = ' ';
    while let Some(c) = rest.chars().next() {
        let word_before = previous.is_alphanumeric() || previous == '_';
        let skipped = if word_before { None } else { literal_len(rest) };
        let skipped = skipped.or_else(|| comment_len(rest)).or_else(|| match c {
            '"' => Some(string_len(rest)),
            '\'' => char_len(rest),
            _ => None,
        });
        match skipped {
            Some(len) => {
                let (gone, tail) = rest.split_at(len);
                code.push(' ');
                code.extend(gone.chars().filter(|&c| c == '\n'));
                rest = tail;
                previous = ' ';
            }
            None => {
                code.push(c);
                rest = &rest[c.len_utf8()..];
                previous = c;
            }
        }
    }
    code
}

fn comment_len(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    // Block comments nest.
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(at)
}

/// Prefixed literals: `b"…"`, `c"…"`, `r#"…"#`, `br"…"`, `b'…'`.
fn literal_len(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c"].into_iter().find(|prefix| {
        text.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(['"', '#', '\'']))
    })?;
    let rest = &text[prefix.len()..];
    if !prefix.ends_with('r') {
        return match rest.chars().next()? {
            '"' => Some(prefix.len() + string_len(rest)),
            '\'' => Some(prefix.len() + char_len(rest)?),
            _ => None,
        };
    }
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    // A raw identifier such as `r#type` is code.
    let body = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let len = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(prefix.len() + hashes + 1 + len)
}

fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// None for a lifetime.
fn char_len(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next()?;
        return chars.find(|&(_, c)| c == '\'').map(|(at, _)| at + 1);
    }
    match chars.next()? {
        (at, '\'') => Some(at + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        assert_eq!(code_only(text), expect, "{text}");
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        check("a // unsafe\nb", "a  \nb");
        check("a /* x /* y */ unsafe\n */ b", "a  \n b");
        check(r#"f("unsafe \" {", 1)"#, "f( , 1)");
        check("f(\"two\nlines\")", "f( \n)");
        check(r##"f(r#"un"safe"#) + br"x""##, "f( ) +  ");
        check(
            r#"match c { '"' => 1, '\'' => 2, b'\\' => 3, '\u{1F600}' => 4 }"#,
            "match c {   => 1,   => 2,   => 3,   => 4 }",
        );
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        check("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
        check("r#type.b", "r#type.b");
        check("number\"s\"", "number ");
    }
}
