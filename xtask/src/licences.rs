//! Every crate that we build, run or test with has a licence on our list.
//!
//! `cargo tree` prints crate and licence, and an expression is accepted when it
//! can be satisfied from the list. `cargo deny` does the same and more, but
//! takes ten minutes to compile. Not covered: `fuzz/`, which is a workspace of
//! its own and is never shipped.

use crate::house::House;
use crate::step::{Outcome, say};

/// Licences that let a binary be given away under MIT OR Apache-2.0 with
/// nothing but notices. A new line here is a decision: write down why.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

pub fn check(house: &House) -> Outcome {
    let tree = house.read(house.bare_cargo(&[
        "tree",
        "--workspace",
        "--target=all",
        "--edges=normal,build,dev",
        "--prefix=none",
        "--format={p}|{l}",
    ]))?;
    let (count, refused) = refused(&tree);
    if count == 0 {
        return Err("`cargo tree` named no crate".into());
    }
    for line in &refused {
        say(&format!("    {line}"));
    }
    if refused.is_empty() {
        say(&format!(
            "    {count} crates, all with a licence on the list"
        ));
        Ok(())
    } else {
        Err(format!(
            "{} of {count} crates have no licence on the list",
            refused.len()
        ))
    }
}

/// The number of distinct crates in the output, and a line for each refused.
fn refused(tree: &str) -> (usize, Vec<String>) {
    let mut crates: Vec<&str> = tree
        .lines()
        .map(|line| line.trim_end().trim_end_matches("(*)").trim_end())
        .filter(|line| !line.is_empty())
        .collect();
    crates.sort_unstable();
    crates.dedup();
    let refused = crates
        .iter()
        .filter_map(|line| {
            let (name, licence) = line.split_once('|').unwrap_or((line, ""));
            match is_allowed(licence) {
                Ok(true) => None,
                Ok(false) => Some(format!("{name}: `{licence}` is not on the list")),
                Err(reason) => Some(format!("{name}: `{licence}`: {reason}")),
            }
        })
        .collect();
    (crates.len(), refused)
}

/// Whether the SPDX expression can be satisfied by licences on the list.
fn is_allowed(expression: &str) -> Result<bool, String> {
    // The old crates.io spelling of OR.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = tokens.as_slice();
    let allowed = any_of(&mut rest)?;
    match rest.first() {
        None => Ok(allowed),
        Some(token) => Err(format!("unexpected `{token}`")),
    }
}

fn any_of(rest: &mut &[&str]) -> Result<bool, String> {
    let mut allowed = all_of(rest)?;
    while take(rest, "OR") {
        allowed |= all_of(rest)?;
    }
    Ok(allowed)
}

fn all_of(rest: &mut &[&str]) -> Result<bool, String> {
    let mut allowed = licence(rest)?;
    while take(rest, "AND") {
        allowed &= licence(rest)?;
    }
    Ok(allowed)
}

fn licence(rest: &mut &[&str]) -> Result<bool, String> {
    if take(rest, "(") {
        let allowed = any_of(rest)?;
        return if take(rest, ")") {
            Ok(allowed)
        } else {
            Err("a parenthesis is not closed".into())
        };
    }
    let name = next(rest).ok_or("no licence is named")?;
    if matches!(name, "OR" | "AND" | "WITH" | ")") {
        return Err(format!("unexpected `{name}`"));
    }
    if take(rest, "WITH") {
        let exception = next(rest).ok_or("no exception is named after WITH")?;
        return Ok(ALLOWED.contains(&format!("{name} WITH {exception}").as_str()));
    }
    Ok(ALLOWED.contains(&name))
}

fn next<'a>(rest: &mut &[&'a str]) -> Option<&'a str> {
    let (first, tail) = rest.split_first()?;
    *rest = tail;
    Some(first)
}

fn take(rest: &mut &[&str], token: &str) -> bool {
    let found = rest.first() == Some(&token);
    if found {
        *rest = &rest[1..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expression: &str, expect: Result<bool, &str>) {
        assert_eq!(
            is_allowed(expression),
            expect.map_err(str::to_owned),
            "{expression}"
        );
    }

    #[test]
    fn expressions_are_satisfied_from_the_list() {
        check("MIT", Ok(true));
        check("GPL-3.0-only", Ok(false));
        check("MIT OR GPL-3.0-only", Ok(true));
        check("MIT AND GPL-3.0-only", Ok(false));
        check("Unlicense/MIT", Ok(true));
        check("MIT/GPL-2.0", Ok(true));
        check("(MIT OR Apache-2.0) AND Unicode-3.0", Ok(true));
        check("(MIT OR Apache-2.0) AND NCSA", Ok(false));
        check("MIT OR Apache-2.0 OR LGPL-2.1-or-later", Ok(true));
        check("Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", Ok(true));
        check("GPL-2.0-only WITH Classpath-exception-2.0", Ok(false));
        // AND binds tighter than OR.
        check("MIT OR GPL-2.0-only AND GPL-3.0-only", Ok(true));
        check("GPL-2.0-only AND MIT OR GPL-3.0-only", Ok(false));
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        check("", Err("no licence is named"));
        check("MIT OR", Err("no licence is named"));
        check("(MIT", Err("a parenthesis is not closed"));
        check("MIT Apache-2.0", Err("unexpected `Apache-2.0`"));
        check("Apache-2.0 WITH", Err("no exception is named after WITH"));
    }

    #[test]
    fn repeated_lines_of_cargo_tree_count_once() {
        let tree =
            "a v1.0.0|MIT\n\nb v1.0.0 (proc-macro)|MIT (*)\nb v1.0.0 (proc-macro)|MIT\nc v2.0.0|\n";
        let (count, refused) = refused(tree);
        assert_eq!(count, 3);
        assert_eq!(refused, ["c v2.0.0: ``: no licence is named"]);
    }
}
