//! Rules about crates: who may use whom, and what their manifests say.

use std::collections::BTreeMap;

use super::{crate_of, numbered, text};
use crate::source::Source;

/// The code map of ARCHITECTURE.md lists the crates in the order that data
/// flows; a crate uses only crates above it. Dev-dependencies are free: a test
/// may generate its input with a crate further down.
pub fn crates_depend_downwards(tree: &[Source]) -> Vec<String> {
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
pub fn manifests_follow_the_workspace(tree: &[Source]) -> Vec<String> {
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

pub fn heavy_crates_stay_apart(tree: &[Source]) -> Vec<String> {
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

/// What has no place in other people's programs, into which the agent is loaded: formats for
/// people and the web, runtimes, query engines.
const NOT_IN_THE_AGENT: &[&str] = &["serde_json", "csv", "clap", "tokio", "datafusion"];

/// Follows the dependencies of `agent` from manifest to manifest.
pub fn the_agent_stays_small(tree: &[Source]) -> Vec<String> {
    let manifests: BTreeMap<&str, (&str, Manifest)> = tree
        .iter()
        .filter(|source| source.path.ends_with("/Cargo.toml"))
        .map(|source| (&*source.path, manifest(&source.text)))
        .map(|(path, manifest)| (manifest.name, (path, manifest)))
        .collect();
    let mut violations = Vec::new();
    let mut reached = vec!["agent"];
    let mut at = 0;
    while let Some(&name) = reached.get(at) {
        at += 1;
        let Some((path, manifest)) = manifests.get(name) else {
            continue;
        };
        for (line, dependency) in &manifest.dependencies {
            if NOT_IN_THE_AGENT.contains(&&**dependency) {
                violations.push(format!(
                    "{path}:{line}: `{dependency}` would be linked into programs that are recorded: `agent` uses `{name}`"
                ));
            }
            if !reached.contains(&&**dependency) {
                reached.push(dependency);
            }
        }
    }
    violations
}

/// What only tests use is a dev-dependency, so that no program has it.
pub fn fixtures_are_for_tests(tree: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in tree.iter().filter(|s| s.path.ends_with("/Cargo.toml")) {
        for (line, dependency) in manifest(&source.text).dependencies {
            if dependency == "testing" {
                violations.push(format!(
                    "{}:{line}: `testing` is for tests: a dev-dependency",
                    source.path
                ));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::source;

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
    fn what_the_agent_reaches_has_no_json() {
        let crates = |feed: &str| {
            let manifest = |name: &str, rest: &str| {
                let text = format!("[package]\nname = \"{name}\"\n{rest}");
                source(&format!("crates/{name}/Cargo.toml"), &text)
            };
            vec![
                manifest("agent", "[dependencies]\nfeed.workspace = true\n"),
                manifest("feed", feed),
                manifest("cli", "[dependencies]\nserde_json.workspace = true\n"),
            ]
        };
        let check = |feed: &str| the_agent_stays_small(&crates(feed));
        assert!(check("[dependencies]\nlibc.workspace = true\n").is_empty());
        assert!(check("[dev-dependencies]\nserde_json.workspace = true\n").is_empty());
        assert_eq!(
            check("[dependencies]\nserde_json = { workspace = true }\n"),
            [
                "crates/feed/Cargo.toml:4: `serde_json` would be linked into programs that are recorded: `agent` uses `feed`"
            ]
        );
    }

    #[test]
    fn fixtures_are_dev_dependencies() {
        let check = |section: &str| {
            let text = format!("[{section}]\ntesting.workspace = true\n");
            fixtures_are_for_tests(&[source("crates/a/Cargo.toml", &text)])
        };
        assert!(check("dev-dependencies").is_empty());
        assert_eq!(
            check("dependencies"),
            ["crates/a/Cargo.toml:2: `testing` is for tests: a dev-dependency"]
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
}
