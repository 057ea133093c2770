//! The documentation of one crate, from what a build has left.
//!
//! `cargo doc` first checks every dependency of a crate, which for DataFusion takes minutes
//! and gives what the build gave already. rustdoc itself is content with the libraries.

use std::path::PathBuf;

use crate::house::House;
use crate::step::Outcome;

/// Runs rustdoc over `crates/NAME`, with `flags`, against the libraries of the last build.
pub fn document(house: &House, name: &str, flags: &str) -> Outcome {
    let mut tree = house.bare_cargo(&["tree", "--package", name, "--depth", "1"]);
    tree.args(["--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let tree = house.read(tree)?;
    let dependencies: Vec<(&str, &str)> = tree.lines().skip(1).filter_map(package).collect();
    // Everything is built: this only says where.
    let built =
        house.read(house.cargo_command(&["build"], &["--quiet", "--message-format=json"]))?;
    let artifacts: Vec<Artifact> = built.lines().filter_map(artifact).collect();
    let mut rustdoc = house.command("rustdoc");
    rustdoc.args([
        "--edition",
        "2024",
        "--crate-type",
        "lib",
        "--crate-name",
        name,
    ]);
    rustdoc
        .arg("--document-private-items")
        .args(flags.split(' '));
    rustdoc.arg("--out-dir").arg(house.target().join("doc"));
    rustdoc.arg("-L").arg(house.target().join("release/deps"));
    for (dependency, version) in dependencies {
        let library = artifacts
            .iter()
            .find(|a| a.name == dependency && a.version == version)
            .ok_or_else(|| format!("the build has left no library of {dependency} {version}"))?;
        let name = dependency.replace('-', "_");
        rustdoc.arg("--extern");
        rustdoc.arg(format!("{name}={}", library.path.display()));
    }
    // `env!` in the sources.
    rustdoc.env("CARGO_PKG_VERSION", env!("CARGO_PKG_VERSION"));
    rustdoc.arg(house.root().join("crates").join(name).join("src/lib.rs"));
    house.run(rustdoc)
}

#[derive(Debug, PartialEq)]
struct Artifact {
    name: String,
    version: String,
    path: PathBuf,
}

/// `bytes v1.12.1 (/path)`.
fn package(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    let name = words.next()?;
    let version = words.next()?.strip_prefix('v')?;
    Some((name, version))
}

/// A library of which cargo says where it is; as much of JSON as its lines need.
fn artifact(line: &str) -> Option<Artifact> {
    let field = |name: &str| {
        let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
        rest.split('"').next()
    };
    if field("reason")? != "compiler-artifact" {
        return None;
    }
    // `…#bytes@1.12.1`, or `…/crates/gguf#0.1.0` where folder and package have one name.
    let (source, about) = field("package_id")?.rsplit_once('#')?;
    let (name, version) = about
        .split_once('@')
        .unwrap_or((source.rsplit('/').next()?, about));
    let (_, files) = line.split_once("\"filenames\":[\"")?;
    let path = files
        .split(']')
        .next()?
        .split('"')
        .find(|file| file.ends_with(".rlib") || file.ends_with(".so"))?;
    Some(Artifact {
        name: name.to_owned(),
        version: version.to_owned(),
        path: path.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_cargo_says() {
        let line = |id: &str, files: &str| {
            let rest = r#""target":{"kind":["lib"],"name":"x"},"fresh":true"#;
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}",{rest},"filenames":[{files}]}}"#
            )
        };
        let registry = line(
            "registry+https://x#bytes@1.12.1",
            r#""/t/libbytes-1.rlib","/t/libbytes-1.rmeta""#,
        );
        let bytes = artifact(&registry).unwrap();
        assert_eq!(
            (bytes.name.as_str(), bytes.version.as_str()),
            ("bytes", "1.12.1")
        );
        assert_eq!(bytes.path, PathBuf::from("/t/libbytes-1.rlib"));
        let ours = line("path+file:///w/crates/gguf#0.1.0", r#""/t/libgguf.rlib""#);
        assert_eq!(artifact(&ours).unwrap().name, "gguf");
        assert_eq!(artifact(&line("x#y@1", r#""/t/program""#)), None);
        assert_eq!(artifact("{\"reason\":\"build-finished\"}"), None);
        assert_eq!(artifact("not JSON"), None);
    }

    #[test]
    fn packages_are_named_with_their_versions() {
        assert_eq!(package("bytes v1.12.1"), Some(("bytes", "1.12.1")));
        assert_eq!(
            package("gguf v0.1.0 (/w/crates/gguf)"),
            Some(("gguf", "0.1.0"))
        );
        assert_eq!(package(""), None);
    }
}
