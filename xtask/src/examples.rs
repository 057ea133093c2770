//! Example outputs in the documents are what the program prints today.
//!
//! In a block fenced as `console`, a line `$ tensorscope …` is a command for
//! `sh`, and the lines below it are its stdout. A line `…` stands for any number
//! of lines. The commands of a document run in order, in an empty folder that has
//! only `models/` in it. Outputs with times in them belong into a `text` block,
//! which is not run.
//!
//! `cargo xtask bless` writes what the program prints into the documents.

use std::fs;
use std::path::{Path, PathBuf};

use crate::house::House;
use crate::step::{Outcome, say};

const DOCUMENTS: &[&str] = &["README.md", "docs/guide.md"];
const ANY_LINES: &str = "…";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Check,
    Bless,
}

pub fn run(house: &House, mode: Mode) -> Outcome {
    let mut stale = 0;
    let mut count = 0;
    for document in DOCUMENTS {
        let path = house.root().join(document);
        let text = fs::read_to_string(&path).map_err(|error| format!("{document}: {error}"))?;
        let folder = empty_folder(house)?;
        let mut fresh = String::new();
        for part in split(&text) {
            let Part::Example { command, expected } = part else {
                fresh.push_str(part.text());
                continue;
            };
            count += 1;
            fresh.push_str(command);
            let printed = output(house, &folder, command)?;
            if matches(expected, &printed) {
                fresh.push_str(expected);
                continue;
            }
            stale += 1;
            fresh.push_str(&printed);
            say(&format!("    {document}: {}", command.trim_end()));
            if mode == Mode::Check {
                say(&first_difference(expected, &printed));
            }
        }
        if mode == Mode::Bless && fresh != text {
            fs::write(&path, fresh).map_err(|error| format!("{document}: {error}"))?;
        }
    }
    match (mode, stale) {
        (_, 0) => say(&format!("    {count} examples, all as printed today")),
        (Mode::Bless, n) => say(&format!(
            "    {n} of {count} examples rewritten; read the diff"
        )),
        (Mode::Check, n) => return Err(format!("{n} of {count} examples are out of date")),
    }
    Ok(())
}

fn empty_folder(house: &House) -> Result<PathBuf, String> {
    let folder = house.target().join("examples");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    std::os::unix::fs::symlink(house.root().join("models"), folder.join("models"))
        .map_err(failed)?;
    Ok(folder)
}

fn output(house: &House, folder: &Path, command: &str) -> Result<String, String> {
    let mut path = house.target().join("release").into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let line = command.trim_start_matches("$ ").trim_end();
    let mut shell = house.command("sh");
    shell.args(["-c", line]).current_dir(folder);
    shell.env("PATH", path).env("NO_COLOR", "1");
    // The same numbers on every machine; the documents were written with these kernels.
    if cfg!(target_arch = "x86_64") {
        shell.env("TENSORSCOPE_CPU", "avx2");
    }
    // The exit code is not ours to judge: an example may show a refusal.
    let done = shell
        .output()
        .map_err(|error| format!("`{line}` did not start: {error}"))?;
    let printed = String::from_utf8_lossy(&done.stdout);
    // Documents have no white space at the ends of lines; see tidy.rs.
    Ok(printed
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect())
}

#[derive(Debug, PartialEq)]
enum Part<'a> {
    Text(&'a str),
    Example { command: &'a str, expected: &'a str },
}

impl<'a> Part<'a> {
    fn text(&self) -> &'a str {
        match self {
            Part::Text(text) => text,
            Part::Example { command, .. } => command,
        }
    }
}

/// The document in order; every byte of it is in exactly one part.
fn split(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut in_console = false;
    let mut lines = Lines { text, at: 0 };
    while let Some(line) = lines.next_line() {
        if line.starts_with("```") {
            in_console = line.trim_end() == "```console";
        } else if in_console && line.starts_with("$ tensorscope ") {
            let start = lines.at;
            while let Some(next) = lines.peek() {
                if next.starts_with("```") || next.starts_with("$ ") {
                    break;
                }
                lines.next_line();
            }
            parts.push(Part::Example {
                command: line,
                expected: &text[start..lines.at],
            });
            continue;
        }
        parts.push(Part::Text(line));
    }
    parts
}

struct Lines<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lines<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.text[self.at..].split_inclusive('\n').next()
    }

    fn next_line(&mut self) -> Option<&'a str> {
        let line = self.peek()?;
        self.at += line.len();
        Some(line)
    }
}

fn matches(expected: &str, printed: &str) -> bool {
    let expected: Vec<&str> = expected.lines().collect();
    let printed: Vec<&str> = printed.lines().collect();
    lines_match(&expected, &printed)
}

fn lines_match(expected: &[&str], printed: &[&str]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((&ANY_LINES, rest)) => {
            (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, tail)| first == line && lines_match(rest, tail)),
    }
}

/// Good enough to find the place; `cargo xtask bless` shows the rest as a diff.
fn first_difference(expected: &str, printed: &str) -> String {
    let missing = expected
        .lines()
        .find(|line| *line != ANY_LINES && !printed.lines().any(|other| other == *line));
    match missing {
        Some(line) => format!("      no longer printed: {line}"),
        None if printed.is_empty() => "      prints nothing".into(),
        None => "      prints more lines, or in another order".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_found_in_console_blocks_only() {
        let text =
            "a\n```console\n$ tensorscope x\nb\n$ ls\nc\n```\n```text\n$ tensorscope y\n```\n";
        let parts = split(text);
        let examples: Vec<_> = parts
            .iter()
            .filter(|part| matches!(part, Part::Example { .. }))
            .collect();
        let expect = Part::Example {
            command: "$ tensorscope x\n",
            expected: "b\n",
        };
        assert_eq!(examples, [&expect]);
        let whole: String = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => (*text).to_owned(),
                Part::Example { command, expected } => format!("{command}{expected}"),
            })
            .collect();
        assert_eq!(whole, text);
    }

    #[test]
    fn dots_stand_for_any_lines() {
        assert!(matches("a\nb\n", "a\nb\n"));
        assert!(!matches("a\n", "a\nb\n"));
        assert!(!matches("a\nb\n", "a\n"));
        assert!(matches("a\n…\nd\n", "a\nb\nc\nd\n"));
        assert!(matches("…\n", ""));
        assert!(matches("a\n…\n", "a\n"));
        assert!(!matches("a\n…\nd\n", "a\nb\n"));
    }
}
