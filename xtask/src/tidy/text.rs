//! Rules about every text file: clean lines, links that lead somewhere.

use super::numbered;
use crate::source::Source;

pub fn text_is_clean(source: &Source) -> Vec<String> {
    let mut violations = Vec::new();
    for (number, line) in numbered(&source.text) {
        if line.ends_with([' ', '\t', '\r']) {
            violations.push(format!(
                "{}:{number}: white space at the end of the line",
                source.path
            ));
        }
        if line.contains('\t') {
            violations.push(format!(
                "{}:{number}: a tab; indent with spaces",
                source.path
            ));
        }
    }
    if !source.text.is_empty() && !source.text.ends_with('\n') {
        violations.push(format!("{}: the last line has no end", source.path));
    }
    violations
}

/// Relative links in Markdown point at files that exist.
pub fn links_resolve(source: &Source, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let folder = source
        .path
        .rsplit_once('/')
        .map_or("", |(folder, _)| folder);
    let mut violations = Vec::new();
    let mut in_code_block = false;
    for (number, line) in numbered(&source.text) {
        if line.trim_start().starts_with("```") {
            in_code_block = !in_code_block;
        }
        if in_code_block {
            continue;
        }
        for link in links(line) {
            let path = link.split('#').next().unwrap_or_default();
            let is_elsewhere = path.contains("://") || path.starts_with("mailto:");
            if path.is_empty() || is_elsewhere {
                continue;
            }
            let target = match path.strip_prefix('/') {
                Some(from_root) => from_root.to_owned(),
                None => format!("{folder}/{path}")
                    .trim_start_matches('/')
                    .to_owned(),
            };
            if !exists(&target) {
                violations.push(format!("{}:{number}: dead link `{link}`", source.path));
            }
        }
    }
    violations
}

/// Targets of `[text](target)` outside inline code.
fn links(line: &str) -> Vec<&str> {
    line.split('`')
        .step_by(2)
        .flat_map(|part| part.split("](").skip(1))
        .filter_map(|rest| rest.split([')', ' ']).next())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::source;

    #[test]
    fn relative_links_resolve_from_their_file() {
        let exists = |path: &str| path == "docs/guide.md" || path == "README.md";
        let check = |path, text| links_resolve(&source(path, text), &exists).len();
        assert_eq!(
            check(
                "README.md",
                "[a](docs/guide.md#b) [c](https://x.y/z) [d](#e)"
            ),
            0
        );
        assert_eq!(check("docs/other.md", "[a](guide.md) ![b](/README.md)"), 0);
        assert_eq!(check("README.md", "[a](guide.md) and [b](gone.md)"), 2);
        assert_eq!(
            check("README.md", "`[a](gone.md)`\n```\n[a](gone.md)\n```\n"),
            0
        );
    }

    #[test]
    fn text_has_no_loose_ends() {
        let check = |text| text_is_clean(&source("a.md", text)).len();
        assert_eq!(check("a\nb\n"), 0);
        assert_eq!(check("a \nb"), 2);
        assert_eq!(check("\ta\n"), 1);
        assert_eq!(check(""), 0);
    }
}
