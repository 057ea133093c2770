//! A recorded run is read in one place: what an evaluation of a template touches is
//! worked out by crate `reader`, and nobody else reads templates.

use super::{code::has_word, numbered};
use crate::source::{Source, code_only};

/// Folders and files that read templates, and why.
const MAY_READ_TEMPLATES: &[(&str, &str)] = &[
    ("crates/trace/", "defines them"),
    ("crates/reader/", "reads them, for everybody"),
    ("crates/capture/", "writes them"),
    ("crates/testing/", "makes logs for tests"),
    (
        "crates/analysis/examples/",
        "make runs in memory, to measure",
    ),
];

pub fn templates_are_read_by_reader(source: &Source) -> Vec<String> {
    let is_test = source.path.contains("/tests/") || source.path.contains("/benches/");
    let may_read = |(allowed, _): &(&str, &str)| source.path.starts_with(allowed);
    if !source.path.starts_with("crates/") || is_test || MAY_READ_TEMPLATES.iter().any(may_read) {
        return Vec::new();
    }
    let code = code_only(&source.text);
    let mut lines = Vec::new();
    for (number, line) in numbered(&code) {
        let is_reading = line.contains("definitions.templates")
            || has_word(line, "StreamReader")
            || has_word(line, "check_region");
        if is_reading {
            lines.push(number);
        }
    }
    for (at, _) in code.match_indices("trace::") {
        let path = path_at(&code[at..]);
        if has_word(path, "expand") || has_word(path, "Template") {
            lines.push(code[..at].lines().count());
        }
    }
    lines.sort_unstable();
    lines.dedup();
    let report = |line| {
        let path = &source.path;
        format!("{path}:{line}: a run is read by crate `reader` only: see its `Log` and `Seen`")
    };
    lines.into_iter().map(report).collect()
}

/// The path that `code` begins with, and all in its braces if it is imported.
fn path_at(code: &str) -> &str {
    let mut depth = 0u32;
    let end = code.find(|c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => return depth == 0 && !(c.is_alphanumeric() || c == '_' || c == ':'),
        }
        false
    });
    &code[..end.unwrap_or(code.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expect: &[usize]) {
        let (path, text) = (path.to_owned(), text.to_owned());
        let found = templates_are_read_by_reader(&Source { path, text });
        let line = |violation: &String| violation.split(':').nth(1).unwrap().parse().unwrap();
        assert_eq!(found.iter().map(line).collect::<Vec<usize>>(), expect);
    }

    #[test]
    fn only_reader_reads_templates() {
        let imported = "//! A\nuse trace::{\n    expand::for_each_route,\n    format::Phase,\n};\n";
        check("crates/index/src/a.rs", imported, &[2]);
        check("crates/reader/src/a.rs", imported, &[]);
        check("crates/index/tests/a.rs", imported, &[]);
        let path = "fn f(t: &trace::template::Template, d: &Definitions) {\n d.templates\n}";
        check("crates/index/src/a.rs", path, &[1]);
        let fields = "let t = &reader.definitions.templates[0];\nStreamReader::open(p, 0)";
        check("crates/cli/examples/a.rs", fields, &[1, 2]);
    }

    #[test]
    fn other_words_of_a_log_are_free() {
        let free = "use trace::{template::Direction, format::Phase};\nuse crate::expand::Expander;\n\
                    fn f(a: trace::template::Operand, template: u32) {} // trace::expand";
        check("crates/store/src/a.rs", free, &[]);
    }
}
