//! The house rules that a program can check: the invariants of ARCHITECTURE.md
//! and the parts of CONTRIBUTING.md that no lint covers.
//!
//! Rules are functions from the tree to violations, `path:line: what`, all
//! reported at once. Nothing is compiled, so this runs in well under a second.

use std::collections::BTreeMap;
use std::path::Path;

use crate::house::House;
use crate::source::{Source, code_only, read_tree};
use crate::step::{Outcome, say};

/// Folders and files whose job needs `unsafe`, and which job that is.
const MAY_BE_UNSAFE: &[(&str, &str)] = &[
    (
        "crates/trace/",
        "appends to a log that other processes read",
    ),
    ("crates/ggml/", "reads the structs of a running ggml"),
    ("crates/capture/", "runs inside ggml's callbacks"),
    ("crates/engine/", "calls llama.cpp"),
    ("crates/agent/", "is preloaded into other programs"),
    ("crates/kernelio/", "makes system calls"),
    ("crates/feed/", "repoints weights under a running model"),
    ("crates/audit/", "takes pages away and catches the faults"),
    ("crates/terminal/src/signals.rs", "catches Ctrl-C"),
    (
        "crates/launch/",
        "starts programs with their signals as they were",
    ),
    ("crates/cli/src/doctor.rs", "tries system calls"),
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
const MAY_BE_LONG: &[(&str, &str)] = &[];

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
    all.extend(crates_depend_downwards(&tree));
    all.extend(manifests_follow_the_workspace(&tree));
    all.extend(heavy_crates_stay_apart(&tree));
    for source in &tree {
        all.extend(text_is_clean(source));
        if source.path.ends_with(".rs") {
            all.extend(modules_say_what_they_are_for(source));
            all.extend(files_are_short(source, MAY_BE_LONG));
            all.extend(code_is_house_trained(source));
        }
        if source.path.ends_with(".md") {
            all.extend(links_resolve(source, &exists));
        }
    }
    all.extend(exceptions_are_used(&tree));
    all.extend(variables_are_documented(&tree));
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

// ---- crates ----------------------------------------------------------------

/// The code map of ARCHITECTURE.md lists the crates in the order that data
/// flows; a crate uses only crates above it. Dev-dependencies are free: a test
/// may generate its input with a crate further down.
fn crates_depend_downwards(tree: &[Source]) -> Vec<String> {
    let Some(architecture) = text(tree, "ARCHITECTURE.md") else {
        return vec!["ARCHITECTURE.md: missing, so the order of crates is unknown".into()];
    };
    let order = code_map(architecture);
    let manifests: Vec<(&str, Manifest)> = tree
        .iter()
        .filter_map(|s| {
            let folder = crate_of(&s.path)?;
            (s.path == format!("crates/{folder}/Cargo.toml")).then(|| (folder, manifest(&s.text)))
        })
        .collect();
    let folder_of: BTreeMap<&str, &str> = manifests
        .iter()
        .map(|(folder, m)| (m.name, *folder))
        .collect();
    let rank = |folder: &str| order.iter().position(|&name| name == folder);
    let mut violations = Vec::new();
    for name in &order {
        if !manifests.iter().any(|(folder, _)| folder == name) {
            violations.push(format!(
                "ARCHITECTURE.md: the code map lists `{name}`, but crates/{name} does not exist"
            ));
        }
    }
    for (folder, manifest) in &manifests {
        let Some(own) = rank(folder) else {
            violations.push(format!(
                "ARCHITECTURE.md: the code map does not list crates/{folder}"
            ));
            continue;
        };
        for (line, dependency) in &manifest.dependencies {
            let Some(below) = folder_of.get(dependency.as_str()) else {
                continue;
            };
            if rank(below).is_some_and(|below| below >= own) {
                violations.push(format!(
                    "crates/{folder}/Cargo.toml:{line}: `{folder}` may not use `{dependency}`, which comes later in ARCHITECTURE.md's code map"
                ));
            }
        }
    }
    violations
}

/// First cells of the table below the heading "Code map".
fn code_map(architecture: &str) -> Vec<&str> {
    architecture
        .lines()
        .skip_while(|line| !line.starts_with("## Code map"))
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| `crates/")?.split('`').next())
        .collect()
}

struct Manifest<'a> {
    name: &'a str,
    /// Normal and build dependencies with their line numbers.
    dependencies: Vec<(usize, String)>,
}

/// As much of TOML as our manifests use.
fn manifest(text: &str) -> Manifest<'_> {
    let mut name = "";
    let mut dependencies = Vec::new();
    let mut section = "";
    for (number, line) in numbered(text) {
        if line.starts_with('[') {
            section = line.trim();
        } else if let Some((key, value)) = line.split_once('=') {
            if section == "[package]" && key.trim() == "name" {
                name = value.trim().trim_matches('"');
            }
            if is_dependency_section(section) && !section.contains("dev-dependencies") {
                let key = key.trim().split('.').next().unwrap_or_default();
                dependencies.push((number, key.to_owned()));
            }
        }
    }
    Manifest { name, dependencies }
}

fn is_dependency_section(section: &str) -> bool {
    section.trim_end_matches(']').ends_with("dependencies")
}

/// A crate that forgets `[lints] workspace = true` escapes every lint, and one
/// that names a version of its own can bring a second copy of a dependency.
fn manifests_follow_the_workspace(tree: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in tree {
        let is_member = source.path == "xtask/Cargo.toml"
            || (source.path.starts_with("crates/") && source.path.ends_with("/Cargo.toml"));
        if !is_member {
            continue;
        }
        if !source.text.contains("[lints]\nworkspace = true") {
            violations.push(format!(
                "{}: `[lints] workspace = true` is missing",
                source.path
            ));
        }
        let mut section = "";
        for (number, line) in numbered(&source.text) {
            if line.starts_with('[') {
                section = line.trim();
            } else if is_dependency_section(section)
                && line.contains('=')
                && !line.starts_with('#')
                && !line.replace(' ', "").contains("workspace=true")
            {
                violations.push(format!(
                    "{}:{number}: a version belongs into [workspace.dependencies] of the root Cargo.toml, with a line why",
                    source.path
                ));
            }
        }
    }
    violations
}

/// What takes long to compile, and the only crate that may use it; first results do without.
const HEAVY: &[(&str, &str)] = &[("datafusion", "store"), ("store", "sql")];

fn heavy_crates_stay_apart(tree: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in tree.iter().filter(|s| s.path.ends_with("/Cargo.toml")) {
        for (line, dependency) in manifest(&source.text).dependencies {
            let user = HEAVY.iter().find(|(heavy, _)| *heavy == dependency);
            if let Some((_, user)) = user.filter(|(_, user)| crate_of(&source.path) != Some(user)) {
                violations.push(format!(
                    "{}:{line}: only crates/{user} may use `{dependency}`",
                    source.path
                ));
            }
        }
    }
    violations
}

// ---- Rust ------------------------------------------------------------------

fn modules_say_what_they_are_for(source: &Source) -> Option<String> {
    let first = source.text.lines().find(|line| !line.trim().is_empty());
    let says = first.is_some_and(|line| line.starts_with("//!"));
    (!says).then(|| {
        format!(
            "{}:1: a file begins with `//!`: what it is for",
            source.path
        )
    })
}

fn files_are_short(source: &Source, exceptions: &[(&str, &str)]) -> Option<String> {
    let lines = source.text.lines().count();
    let is_exception = exceptions.iter().any(|(path, _)| *path == source.path);
    (lines > MAX_LINES && !is_exception).then(|| {
        format!(
            "{}: {lines} lines, more than {MAX_LINES}: split it by noun, or give a reason in xtask/src/tidy.rs",
            source.path
        )
    })
}

fn exceptions_are_used(tree: &[Source]) -> Vec<String> {
    MAY_BE_LONG
        .iter()
        .filter(|(path, _)| text(tree, path).is_none_or(|t| t.lines().count() <= MAX_LINES))
        .map(|(path, _)| format!("xtask/src/tidy.rs: {path} is short enough to need no exception"))
        .collect()
}

fn code_is_house_trained(source: &Source) -> Vec<String> {
    let may_be_unsafe = MAY_BE_UNSAFE
        .iter()
        .any(|(allowed, _)| source.path.starts_with(allowed));
    let is_test_file = source.path.contains("/tests/");
    let is_main = source.path.ends_with("/main.rs");
    let mut violations = Vec::new();
    for (number, line) in numbered(&code_only(&source.text)) {
        let mut report = |what: &str| violations.push(format!("{}:{number}: {what}", source.path));
        if !may_be_unsafe && !is_test_file && has_word(line, "unsafe") {
            report("`unsafe` where the job does not need it (see xtask/src/tidy.rs)");
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

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|found| found == word)
}

/// A variable that users can set is one that they can read about in the guide,
/// one that tests take is in CONTRIBUTING.md.
fn variables_are_documented(tree: &[Source]) -> Vec<String> {
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

// ---- text ------------------------------------------------------------------

fn text_is_clean(source: &Source) -> Vec<String> {
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
fn links_resolve(source: &Source, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
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

    fn source(path: &str, text: &str) -> Source {
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

    #[test]
    fn a_crate_may_not_use_a_later_one() {
        let manifest = |name: &str, rest: &str| format!("[package]\nname = \"{name}\"\n{rest}");
        let tree = |map: &str, gguf: &str| {
            vec![
                source("ARCHITECTURE.md", &format!("## Code map\n{map}\n## Next\n")),
                source("crates/gguf/Cargo.toml", &manifest("gguf", gguf)),
                source(
                    "crates/cli/Cargo.toml",
                    &manifest(
                        "tensorscope",
                        "[dependencies]\ngguf = { workspace = true }\n",
                    ),
                ),
            ]
        };
        let map = "| `crates/gguf` | a |\n| `crates/cli` | b |";
        assert!(crates_depend_downwards(&tree(map, "")).is_empty());
        let upward = "[dependencies]\ntensorscope.workspace = true\n";
        assert_eq!(
            crates_depend_downwards(&tree(map, upward)),
            [
                "crates/gguf/Cargo.toml:4: `gguf` may not use `tensorscope`, which comes later in ARCHITECTURE.md's code map"
            ]
        );
        let for_tests = "[dev-dependencies]\ntensorscope.workspace = true\n";
        assert!(crates_depend_downwards(&tree(map, for_tests)).is_empty());
        assert_eq!(
            crates_depend_downwards(&tree("| `crates/gguf` | a |", "")),
            ["ARCHITECTURE.md: the code map does not list crates/cli"]
        );
        assert_eq!(
            crates_depend_downwards(&tree(&format!("{map}\n| `crates/new` | c |"), "")),
            ["ARCHITECTURE.md: the code map lists `new`, but crates/new does not exist"]
        );
    }

    #[test]
    fn only_one_crate_knows_what_takes_long_to_compile() {
        let check = |path: &str| {
            let text = "[dependencies]\nstore.workspace = true\n";
            heavy_crates_stay_apart(&[source(path, text)])
        };
        assert!(check("crates/sql/Cargo.toml").is_empty());
        assert_eq!(
            check("crates/cli/Cargo.toml"),
            ["crates/cli/Cargo.toml:2: only crates/sql may use `store`"]
        );
    }

    #[test]
    fn members_take_lints_and_versions_from_the_workspace() {
        let check = |text: &str| {
            manifests_follow_the_workspace(&[source("crates/a/Cargo.toml", text)]).len()
        };
        assert_eq!(
            check("[lints]\nworkspace = true\n[dependencies]\n# why\nb = { workspace = true }\n"),
            0
        );
        assert_eq!(
            check("[lints]\nworkspace = true\n[dev-dependencies]\nb = \"1\"\n"),
            1
        );
        assert_eq!(check("[dependencies]\nb.workspace = true\n"), 1);
    }

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
