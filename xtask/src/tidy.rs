//! The house rules that a program can check: the invariants of ARCHITECTURE.md
//! and the parts of CONTRIBUTING.md that no lint covers.
//!
//! Rules are functions from the tree to violations, `path:line: what`, all
//! reported at once. Nothing is compiled, so this runs in well under a second.

mod code;
mod crates;
mod reading;
mod text;

use std::path::Path;

use crate::house::House;
use crate::source::{Source, read_tree};
use crate::step::{Outcome, say};

pub fn check(house: &House) -> Outcome {
    let violations = violations(house.root())?;
    for violation in &violations {
        say(&format!("    {violation}"));
    }
    match violations.len() {
        0 => Ok(()),
        n => Err(format!("{n} house rules broken, listed above")),
    }
}

fn violations(root: &Path) -> Result<Vec<String>, String> {
    let tree = read_tree(root)?;
    let exists = |path: &str| root.join(path).exists();
    let mut all = Vec::new();
    all.extend(crates::crates_depend_downwards(&tree));
    all.extend(crates::manifests_follow_the_workspace(&tree));
    all.extend(crates::heavy_crates_stay_apart(&tree));
    all.extend(crates::the_agent_stays_small(&tree));
    all.extend(crates::fixtures_are_for_tests(&tree));
    for source in &tree {
        all.extend(text::text_is_clean(source));
        if source.path.ends_with(".rs") {
            all.extend(code::modules_say_what_they_are_for(source));
            all.extend(code::files_are_short(source, code::MAY_BE_LONG));
            all.extend(code::code_is_house_trained(source));
            all.extend(reading::templates_are_read_by_reader(source));
        }
        if source.path.ends_with(".md") {
            all.extend(text::links_resolve(source, &exists));
        }
    }
    all.extend(code::exceptions_are_used(&tree));
    all.extend(code::variables_are_documented(&tree));
    Ok(all)
}

fn text<'a>(tree: &'a [Source], path: &str) -> Option<&'a str> {
    tree.iter()
        .find(|s| s.path == path)
        .map(|s| s.text.as_str())
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// The folder under `crates/` that a path lies in.
fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

#[cfg(test)]
mod testing {
    use super::*;

    pub fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.into(),
        }
    }

    #[test]
    fn this_checkout_is_tidy() {
        let violations = violations(House::new().root()).unwrap();
        assert!(violations.is_empty(), "{}", violations.join("\n"));
    }
}
