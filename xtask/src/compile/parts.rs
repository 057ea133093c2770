//! The parts of a build, and how cargo's output names them.
//!
//! Three formats are read: a line of `cargo tree`, `cargo metadata`, and the
//! messages of `--message-format=json`. What is not understood is left out,
//! never an error: it only makes the progress less exact.
//!
//! The JSON is searched, not parsed, and that is enough: a quote inside of a
//! JSON string is escaped, so a key with its quotes and its colon is never found
//! in a path or in a name.

/// NAME SECONDS and PACKAGE/TARGET SECONDS, a line each.
const SECONDS: &str = include_str!("../compile_seconds.txt");
/// What packages took on the average that have no line there.
const PACKAGE_SECONDS: f64 = 0.6;
/// The same for tests and examples, where it is mostly linking.
const PROGRAM_SECONDS: f64 = 2.5;

/// What cargo reports as finished.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Two versions of one package are two parts.
    Package { name: String, version: String },
    /// A test or an example, of which one package may have many.
    Program {
        package: String,
        kind: String,
        name: String,
    },
}

impl Part {
    pub fn name(&self) -> String {
        match self {
            Self::Package { name, .. } => name.clone(),
            Self::Program { package, name, .. } => format!("{package}/{name}"),
        }
    }

    pub fn is_package(&self) -> bool {
        matches!(self, Self::Package { .. })
    }

    /// About how long one core works on it.
    pub fn seconds(&self) -> f64 {
        let name = self.name();
        let default = if self.is_package() {
            PACKAGE_SECONDS
        } else {
            PROGRAM_SECONDS
        };
        let mut lines = SECONDS.lines().filter_map(known_seconds);
        lines
            .find(|(known, _)| *known == name)
            .map_or(default, |(_, seconds)| seconds)
    }
}

fn known_seconds(line: &str) -> Option<(&str, f64)> {
    let (name, seconds) = line.split_once(' ')?;
    Some((name, seconds.parse().ok()?))
}

/// `tree` is what `cargo tree --prefix=none --format={p}` prints.
pub fn packages(tree: &str) -> Vec<Part> {
    tree.lines().filter_map(package).collect()
}

/// `syn v3.0.9`, `gguf v0.1.0 (/a path/gguf) (*)`.
fn package(line: &str) -> Option<Part> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    let version = words.next()?.strip_prefix('v')?.to_owned();
    let is_version = version.starts_with(|c: char| c.is_ascii_digit());
    is_version.then_some(Part::Package { name, version })
}

/// Tests and examples. `metadata` is what `cargo metadata --no-deps` prints.
pub fn programs(metadata: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    // A package's identity comes before its targets, and nothing else has one.
    for package in metadata.split(r#""id":"#).skip(1) {
        let Some((package_name, _)) = text(package).as_deref().and_then(identity) else {
            continue;
        };
        for target in package.split(r#"{"kind":["#).skip(1) {
            let (Some(kind), Some(name)) = (text(target), text_after(target, r#""name":"#)) else {
                continue;
            };
            if is_program(&kind, is_true(target, r#""test":"#)) {
                parts.push(Part::Program {
                    package: package_name.clone(),
                    kind,
                    name,
                });
            }
        }
    }
    parts
}

/// Libraries and binaries are compiled a second time as their own unit tests.
fn is_program(kind: &str, is_tested: bool) -> bool {
    matches!(kind, "test" | "bench" | "example") || is_tested
}

/// Something that cargo has finished.
#[derive(Debug, PartialEq)]
pub struct Artifact {
    pub part: Part,
    /// It was there from an earlier build.
    pub is_fresh: bool,
}

/// Reads a message of cargo; `None` if it tells of nothing finished.
pub fn artifact(line: &str) -> Option<Artifact> {
    if !line.starts_with('{') || !line.contains(r#""reason":"compiler-artifact""#) {
        return None;
    }
    let (package, version) = identity(&text_after(line, r#""package_id":"#)?)?;
    let target = after(line, r#""target":{"#)?;
    let kind = text_after(target, r#""kind":["#)?;
    let name = text_after(target, r#""name":"#)?;
    if kind == "custom-build" {
        // The script is only the beginning of its package.
        return None;
    }
    // The target has a `test` too, which says whether it could be one.
    let is_tested = is_true(after(line, r#""profile":{"#)?, r#""test":"#);
    let part = if is_program(&kind, is_tested) {
        Part::Program {
            package,
            kind,
            name,
        }
    } else {
        Part::Package {
            name: package,
            version,
        }
    };
    let is_fresh = is_true(line, r#""fresh":"#);
    Some(Artifact { part, is_fresh })
}

pub fn is_end_of_build(line: &str) -> bool {
    line.starts_with('{') && line.contains(r#""reason":"build-finished""#)
}

/// Name and version out of a package's identity. Cargo leaves the name away
/// where the path ends with it: `registry+https://…#syn@3.0.9`,
/// `path+file:///…/crates/cli#tensorscope@0.1.0`, `path+file:///…/gguf#0.1.0`.
fn identity(id: &str) -> Option<(String, String)> {
    let (place, rest) = id.rsplit_once('#')?;
    let (name, version) = rest.rsplit_once('@').unwrap_or_else(|| {
        let path = place.split('?').next().unwrap_or(place);
        (path.rsplit('/').next().unwrap_or(path), rest)
    });
    (!name.is_empty() && !version.is_empty()).then(|| (name.to_owned(), version.to_owned()))
}

fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split_once(key).map(|(_, rest)| rest)
}

fn is_true(json: &str, key: &str) -> bool {
    after(json, key).is_some_and(|rest| rest.starts_with("true"))
}

fn text_after(json: &str, key: &str) -> Option<String> {
    text(after(json, key)?)
}

/// The JSON string at the beginning, fit for a terminal.
fn text(json: &str) -> Option<String> {
    let mut chars = json.strip_prefix('"')?.chars();
    let mut text = String::new();
    loop {
        let c = match chars.next()? {
            '"' => return Some(text),
            '\\' => match chars.next()? {
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&digits, 16).ok()?;
                    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
                }
                'b' | 'f' | 'n' | 'r' | 't' => ' ',
                c => c,
            },
            c => c,
        };
        text.push(if c.is_control() { '?' } else { c });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Part {
        Part::Package {
            name: name.into(),
            version: version.into(),
        }
    }

    fn program(package: &str, kind: &str, name: &str) -> Part {
        Part::Program {
            package: package.into(),
            kind: kind.into(),
            name: name.into(),
        }
    }

    /// A message as cargo 1.95 writes it.
    fn message(id: &str, kind: &str, name: &str, is_test: bool, is_fresh: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/w/Cargo.toml","target":{{"kind":["{kind}"],"crate_types":["lib"],"name":"{name}","src_path":"/w/src/lib.rs","edition":"2024","doc":true,"doctest":true,"test":true}},"profile":{{"opt_level":"3","debuginfo":0,"debug_assertions":true,"overflow_checks":true,"test":{is_test}}},"features":["default"],"filenames":["/w/lib.rlib"],"executable":null,"fresh":{is_fresh}}}"#
        )
    }

    const SYN: &str = "registry+https://github.com/rust-lang/crates.io-index#syn@3.0.9";
    const GGUF: &str = "path+file:///w/crates/gguf#0.1.0";

    #[test]
    fn a_finished_library_is_its_package() {
        let read = artifact(&message(SYN, "lib", "syn", false, false)).unwrap();
        assert_eq!(read.part, package("syn", "3.0.9"));
        assert!(!read.is_fresh);
        let read = artifact(&message(GGUF, "proc-macro", "x", false, true)).unwrap();
        assert_eq!(read.part, package("gguf", "0.1.0"));
        assert!(read.is_fresh);
    }

    #[test]
    fn a_build_script_finishes_nothing() {
        let script = message(SYN, "custom-build", "build-script-build", false, false);
        assert_eq!(artifact(&script), None);
        let executed =
            format!(r#"{{"reason":"build-script-executed","package_id":"{SYN}","env":[]}}"#);
        assert_eq!(artifact(&executed), None);
    }

    #[test]
    fn tests_and_examples_are_parts_of_their_own() {
        for (kind, name, is_test) in [
            ("lib", "gguf", true),
            ("test", "gguf", true),
            ("example", "bar", false),
        ] {
            let read = artifact(&message(GGUF, kind, name, is_test, false)).unwrap();
            assert_eq!(read.part, program("gguf", kind, name), "{kind}");
        }
    }

    #[test]
    fn identities_name_packages_with_and_without_a_name_of_their_own() {
        for (id, name, version) in [
            (SYN, "syn", "3.0.9"),
            (GGUF, "gguf", "0.1.0"),
            (
                "path+file:///w/crates/cli#tensorscope@0.1.0",
                "tensorscope",
                "0.1.0",
            ),
            (
                "git+https://h/o/name?branch=a/b#1.0.0-rc.1+x",
                "name",
                "1.0.0-rc.1+x",
            ),
            ("path+file:///w/a%20b@c/d#0.1.0", "d", "0.1.0"),
        ] {
            assert_eq!(identity(id), Some((name.into(), version.into())), "{id}");
        }
        for id in [
            "",
            "#",
            "syn",
            "syn 3.0.9 (registry)",
            "path+file:///w/#1",
            "w#@1",
            "w#a@",
        ] {
            assert_eq!(identity(id), None, "{id}");
        }
    }

    #[test]
    fn lines_that_are_no_messages_are_passed_over() {
        let whole = message(SYN, "lib", "syn", false, true);
        for line in [
            "",
            "{",
            "null",
            "running 3 tests",
            r#"{"reason":"compiler-artifact"}"#,
            r#"say "reason":"compiler-artifact""#,
            &whole.replace(r#""reason""#, r#""season""#),
            &whole.replace(r#""package_id""#, r#""package""#),
            &whole.replace(r#""kind":["lib"]"#, r#""kind":[]"#),
            &whole.replace(r#""name":"syn""#, r#""name":17"#),
            &whole.replace(r#""name":"syn""#, r#""name":"\u12"#),
        ] {
            assert_eq!(artifact(line), None, "{line}");
        }
        // Cut anywhere, it is either passed over or read right.
        for (end, _) in whole.char_indices() {
            if let Some(read) = artifact(&whole[..end]) {
                assert_eq!(read.part, package("syn", "3.0.9"));
            }
        }
    }

    #[test]
    fn a_path_or_name_that_looks_like_json_changes_nothing() {
        let hostile = r#"a\",\"fresh\":true,\"test\":true,\"name\":\"b"#;
        let line = message(GGUF, "lib", hostile, false, false)
            .replace("/w/lib.rlib", hostile)
            .replace("/w/Cargo.toml", hostile);
        let read = artifact(&line).unwrap();
        assert_eq!(read.part, package("gguf", "0.1.0"));
        assert!(!read.is_fresh);
        assert!(!is_end_of_build(&message(
            GGUF,
            "lib",
            r#"\"reason\":\"build-finished\""#,
            false,
            false
        )));
        assert!(is_end_of_build(
            r#"{"reason":"build-finished","success":true}"#
        ));
    }

    #[test]
    fn escapes_are_read_and_nothing_reaches_the_terminal_as_a_command() {
        assert_eq!(
            text(r#""a\"b\\c\/d\u00e9" x"#).as_deref(),
            Some("a\"b\\c/dé")
        );
        assert_eq!(
            text(r#""\u001b[2J\n\ud83d""#).as_deref(),
            Some("?[2J \u{fffd}")
        );
        assert_eq!(text("\"\u{1b}[2J\u{7f}\"").as_deref(), Some("?[2J?"));
        for bad in ["", "a", "\"", r#""a"#, r#""\"#, r#""\u12"#, r#""\uzzzz""#] {
            assert_eq!(text(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_tree_names_packages_with_versions() {
        let tree = "gguf v0.1.0 (/a path/gguf)\nsyn v2.0.1\nsyn v3.0.9 (*)\n\n\
                    serde_derive v1.0.229 (proc-macro) (*)\n[dev-dependencies]\nno version\n";
        assert_eq!(
            packages(tree),
            [
                package("gguf", "0.1.0"),
                package("syn", "2.0.1"),
                package("syn", "3.0.9"),
                package("serde_derive", "1.0.229"),
            ]
        );
    }

    #[test]
    fn metadata_names_tests_and_examples() {
        let metadata = concat!(
            r#"{"packages":[{"name":"tensorscope","version":"0.1.0","id":"path+file:///w/cli#tensorscope@0.1.0","#,
            r#""dependencies":[{"name":"libc","kind":null,"features":[]},{"name":"synth","kind":"dev"}],"#,
            r#""targets":[{"kind":["lib"],"crate_types":["lib"],"name":"tensorscope","doctest":true,"test":true},"#,
            r#"{"kind":["test"],"crate_types":["bin"],"name":"record","doctest":false,"test":true},"#,
            r#"{"kind":["custom-build"],"crate_types":["bin"],"name":"build-script-build","doctest":false,"test":false}],"#,
            r#""features":{"id":[]}},{"name":"gguf","version":"0.1.0","id":"path+file:///w/gguf#0.1.0","dependencies":[],"#,
            r#""targets":[{"kind":["cdylib"],"crate_types":["cdylib"],"name":"gguf","doctest":false,"test":false},"#,
            r#"{"kind":["example"],"crate_types":["bin"],"name":"bar","doctest":false,"test":false}]}],"#,
            r#""workspace_members":["path+file:///w/gguf#0.1.0"],"resolve":null}"#
        );
        assert_eq!(
            programs(metadata),
            [
                program("tensorscope", "lib", "tensorscope"),
                program("tensorscope", "test", "record"),
                program("gguf", "example", "bar"),
            ]
        );
        assert_eq!(programs(""), []);
        assert_eq!(programs(r#""id":7,"id":"x","id":"#), []);
    }

    #[test]
    fn every_line_of_the_list_of_seconds_is_understood() {
        let mut names = Vec::new();
        for line in SECONDS.lines().filter(|line| !line.starts_with('#')) {
            let (name, seconds) = known_seconds(line).expect(line);
            assert!(seconds.is_finite() && seconds > 0.0, "{line}");
            assert!(!names.contains(&name), "{line}: twice");
            names.push(name);
        }
        assert_eq!(
            package("no-such-package", "1.0.0").seconds(),
            PACKAGE_SECONDS
        );
        assert_eq!(
            program("gguf", "test", "no-such-test").seconds(),
            PROGRAM_SECONDS
        );
        assert!(package("llama-cpp-sys-2", "0.1.0").seconds() > PACKAGE_SECONDS);
    }
}
