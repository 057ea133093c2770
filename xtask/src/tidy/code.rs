//! Rules about Rust: `unsafe` where the job needs it, short files that say what they are for.

use super::{numbered, text};
use crate::source::{Source, code_only};

/// Folders and files whose job needs `unsafe`, and which job that is.
const MAY_BE_UNSAFE: &[(&str, &str)] = &[
    ("crates/support/src/direct.rs", "makes system calls"),
    (
        "crates/trace/",
        "appends to a log that other processes read",
    ),
    ("crates/ggml/", "reads the structs of a running ggml"),
    (
        "crates/cuda/",
        "calls the driver of a card, which is loaded at run time",
    ),
    ("crates/capture/", "runs inside ggml's callbacks"),
    ("crates/engine/", "calls llama.cpp"),
    ("crates/agent/", "is preloaded into other programs"),
    ("crates/kernelio/", "makes system calls"),
    ("crates/feed/", "repoints weights under a running model"),
    ("crates/audit/", "takes pages away and catches the faults"),
    (
        "crates/bench/src/ceilings/card.rs",
        "launches kernels on a card",
    ),
    ("crates/terminal/src/signals.rs", "catches Ctrl-C"),
    (
        "crates/lab/",
        "launches kernels, calls the vendor's libraries, and instructions that only some processors have",
    ),
    (
        "crates/launch/",
        "starts programs with their signals as they were",
    ),
    ("crates/cli/src/doctor.rs", "tries system calls"),
    (
        "crates/cli/src/doctor/vulkan.rs",
        "asks Vulkan's loader, which is loaded at run time",
    ),
    (
        "crates/cli/src/older_glibc.rs",
        "stands in for a function of the C library",
    ),
    (
        "crates/sql/src/older_glibc.rs",
        "asks for an old version of a function of the C library",
    ),
    ("crates/cli/src/synth.rs", "asks for free disk space"),
    (
        "crates/analysis/examples/curves_rate.rs",
        "asks the kernel what this process used",
    ),
    (
        "crates/gguf/examples/inspect_bar.rs",
        "asks the kernel what a child process used",
    ),
];

const MAX_LINES: usize = 600;

/// Files that may be longer, and why that is better than splitting them.
pub const MAY_BE_LONG: &[(&str, &str)] = &[];

pub fn modules_say_what_they_are_for(source: &Source) -> Option<String> {
    let first = source.text.lines().find(|line| !line.trim().is_empty());
    let says = first.is_some_and(|line| line.starts_with("//!"));
    (!says).then(|| {
        format!(
            "{}:1: a file begins with `//!`: what it is for",
            source.path
        )
    })
}

pub fn files_are_short(source: &Source, exceptions: &[(&str, &str)]) -> Option<String> {
    let lines = source.text.lines().count();
    let is_exception = exceptions.iter().any(|(path, _)| *path == source.path);
    (lines > MAX_LINES && !is_exception).then(|| {
        format!(
            "{}: {lines} lines, more than {MAX_LINES}: split it by noun, or give a reason in xtask/src/tidy/code.rs",
            source.path
        )
    })
}

pub fn exceptions_are_used(tree: &[Source]) -> Vec<String> {
    MAY_BE_LONG
        .iter()
        .filter(|(path, _)| text(tree, path).is_none_or(|t| t.lines().count() <= MAX_LINES))
        .map(|(path, _)| {
            format!("xtask/src/tidy/code.rs: {path} is short enough to need no exception")
        })
        .collect()
}

pub fn code_is_house_trained(source: &Source) -> Vec<String> {
    let may_be_unsafe = MAY_BE_UNSAFE
        .iter()
        .any(|(allowed, _)| source.path.starts_with(allowed));
    let is_test_file = source.path.contains("/tests/");
    let is_main = source.path.ends_with("/main.rs");
    let mut violations = Vec::new();
    for (number, line) in numbered(&code_only(&source.text)) {
        let mut report = |what: &str| violations.push(format!("{}:{number}: {what}", source.path));
        if !may_be_unsafe && !is_test_file && has_word(line, "unsafe") {
            report("`unsafe` where the job does not need it (see xtask/src/tidy/code.rs)");
        }
        if line.contains("todo!(") || line.contains("dbg!(") || line.contains("unimplemented!(") {
            report("`todo!`, `dbg!` and `unimplemented!` are for before the commit");
        }
        if !is_main && line.contains("process::exit") {
            report("`process::exit` outside main.rs: return an error instead");
        }
        if line.contains("#[ignore") {
            report("an ignored test checks nothing: make it run or remove it");
        }
        if is_test_file && line.contains("sleep(") {
            report("a test that sleeps is slow or flaky: wait for the event itself");
        }
    }
    violations
}

pub fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|found| found == word)
}

/// A variable that users can set is one that they can read about in the guide,
/// one that tests take is in CONTRIBUTING.md.
pub fn variables_are_documented(tree: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in tree
        .iter()
        .filter(|s| s.path.starts_with("crates/") && s.path.ends_with(".rs"))
    {
        let is_test = source.path.contains("/tests/");
        let document = if is_test {
            "CONTRIBUTING.md"
        } else {
            "docs/guide.md"
        };
        let documented = text(tree, document).unwrap_or_default();
        for (number, line) in numbered(&source.text) {
            for variable in variables(line).filter(|v| !has_word(documented, v)) {
                violations.push(format!(
                    "{}:{number}: `{variable}` is not in {document}",
                    source.path
                ));
            }
        }
    }
    violations
}

/// Names in string literals that start with our prefix.
fn variables(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').filter(|part| {
        part.strip_prefix("TENSORSCOPE_").is_some_and(|rest| {
            !rest.is_empty()
                && rest
                    .bytes()
                    .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::source;

    #[track_caller]
    fn check_code(path: &str, code: &str, expect: usize) {
        let found = code_is_house_trained(&source(path, code));
        assert_eq!(found.len(), expect, "{path}: {code}: {found:?}");
    }

    #[test]
    fn code_rules_look_at_code_only() {
        check_code("crates/gguf/src/lib.rs", "unsafe { f() }", 1);
        check_code(
            "crates/gguf/src/lib.rs",
            "// unsafe\nlet s = \"unsafe\";",
            0,
        );
        check_code(
            "crates/gguf/src/lib.rs",
            "#![deny(unsafe_op_in_unsafe_fn)]",
            0,
        );
        check_code("crates/trace/src/lib.rs", "unsafe { f() }", 0);
        check_code("xtask/src/main.rs", "unsafe { f() }", 1);
        check_code("crates/gguf/src/lib.rs", "todo!()", 1);
        check_code("crates/gguf/src/lib.rs", "dbg!(x)", 1);
        check_code("crates/cli/src/record.rs", "std::process::exit(1)", 1);
        check_code("crates/cli/src/main.rs", "std::process::exit(1)", 0);
        check_code("crates/gguf/tests/a.rs", "#[ignore]\nsleep(x)", 2);
    }

    #[test]
    fn long_files_need_a_reason() {
        let long = source("crates/a/src/lib.rs", &"x\n".repeat(MAX_LINES + 1));
        assert!(files_are_short(&long, &[]).is_some());
        assert!(files_are_short(&long, &[("crates/a/src/lib.rs", "a table")]).is_none());
        let short = source("crates/a/src/lib.rs", &"x\n".repeat(MAX_LINES));
        assert!(files_are_short(&short, &[]).is_none());
    }

    #[test]
    fn modules_begin_with_their_purpose() {
        let check = |text| modules_say_what_they_are_for(&source("a.rs", text)).is_none();
        assert!(check("\n//! What for.\nuse x;\n"));
        assert!(!check("use x;\n//! late\n"));
        assert!(!check(""));
    }

    #[test]
    fn variables_are_found_in_literals() {
        assert_eq!(
            variables(r#"var("TENSORSCOPE_LOG") and "TENSORSCOPE_" or TENSORSCOPE_X"#)
                .collect::<Vec<_>>(),
            ["TENSORSCOPE_LOG"]
        );
        let tree = |guide| {
            [
                source("docs/guide.md", guide),
                source("crates/a/src/l.rs", "f(\"TENSORSCOPE_LOG\")"),
            ]
        };
        assert_eq!(
            variables_are_documented(&tree("`TENSORSCOPE_LOGS`")).len(),
            1
        );
        assert_eq!(
            variables_are_documented(&tree("`TENSORSCOPE_LOG`")).len(),
            0
        );
        let test = source("crates/a/tests/t.rs", "f(\"TENSORSCOPE_LOG\")");
        let contributing = source("CONTRIBUTING.md", "`TENSORSCOPE_LOG`");
        assert_eq!(variables_are_documented(&[test, contributing]).len(), 0);
    }
}
