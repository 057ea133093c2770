//! Steps that need Node: the viewer's page is what its sources say, and the
//! viewer works in a real browser.
//!
//! Building the program needs no Node, because the bundle in `web/dist` is
//! committed; so somebody must check that it is not stale. The packages that
//! npm installs are pinned by the lock files and are installed again only when
//! those have changed.

use std::fs;
use std::path::Path;

use crate::house::House;
use crate::step::{Outcome, Step, say};

pub fn viewer_page() -> Step {
    Step::new(
        "viewer page",
        "web/dist is what web/src gives; its types hold, its tests pass, it is formatted",
        "run `npm ci && npm run format && npm test && npm run build` in web/ and commit web/dist with the sources",
        page_is_in_order,
    )
}

pub fn browser() -> Step {
    Step::new(
        "browser",
        "the viewer and the HTML report in Debian's Chromium",
        "the lines above name the fact, and a picture of the page; tests/browser/README.md says how to run one alone",
        facts_hold,
    )
}

/// Bundles into a folder of its own, so that a stale bundle stays for the eye.
fn page_is_in_order(house: &House) -> Outcome {
    install_packages(house, "web")?;
    for script in ["format-check", "check", "test"] {
        house.run(npm(house, "web", &["run", "--silent", script]))?;
    }
    let fresh = house.target().join("tests/web-dist");
    empty(&fresh)?;
    let mut build = npm(house, "web", &["run", "--silent", "build"]);
    build.env("TENSORSCOPE_WEB_OUT", &fresh);
    house.run(build)?;
    let committed = house.root().join("web/dist");
    let different = differing_files(&committed, &fresh)?;
    if different.is_empty() {
        Ok(())
    } else {
        Err(format!("stale in web/dist: {}", different.join(", ")))
    }
}

fn facts_hold(house: &House) -> Outcome {
    install_packages(house, "tests/browser")?;
    let folder = house.target().join("tests/browser");
    empty(&folder)?;
    let mut node = house.command("node");
    node.arg(house.root().join("tests/browser/facts.mjs"));
    node.arg(house.tensorscope()).arg(folder);
    house.run(node)
}

/// `npm ci`, unless the folder was filled from the same lock file before.
fn install_packages(house: &House, folder: &str) -> Outcome {
    install_packages_by(house, folder, &["ci"])
}

/// As [`install_packages`], by a command of npm's.
pub fn install_packages_by(house: &House, folder: &str, command: &[&str]) -> Outcome {
    let folder_path = house.root().join(folder);
    let lock = read(&folder_path.join("package-lock.json"))?;
    let stamp = folder_path.join("node_modules/.tensorscope-lock");
    if fs::read(&stamp).is_ok_and(|filled| filled == lock) {
        return Ok(());
    }
    let quietly = ["--no-audit", "--no-fund", "--loglevel=error"];
    house.run(npm(house, folder, &[command, &quietly].concat()))?;
    fs::write(&stamp, lock).map_err(|error| format!("{}: {error}", stamp.display()))
}

fn npm(house: &House, folder: &str, args: &[&str]) -> std::process::Command {
    let mut command = house.command("npm");
    command.args(["--prefix", folder]).args(args);
    command
}

/// Names of files that only one of the folders has, or that differ.
fn differing_files(a: &Path, b: &Path) -> Result<Vec<String>, String> {
    let mut names = file_names(a)?;
    names.extend(file_names(b)?);
    names.sort();
    names.dedup();
    let is_same = |name: &String| matches!((fs::read(a.join(name)), fs::read(b.join(name))), (Ok(x), Ok(y)) if x == y);
    names.retain(|name| !is_same(name));
    if names.is_empty() {
        say(&format!("    {} is as built", a.display()));
    }
    Ok(names)
}

fn file_names(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect())
}

fn empty(folder: &Path) -> Outcome {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed)?;
    }
    fs::create_dir_all(folder).map_err(failed)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_missing_or_additional_file_is_named() {
        let folder = std::env::temp_dir().join(format!("xtask-browser-{}", std::process::id()));
        let (a, b) = (folder.join("a"), folder.join("b"));
        empty(&a).unwrap();
        empty(&b).unwrap();
        for (path, text) in [
            (a.join("same"), "1"),
            (b.join("same"), "1"),
            (a.join("stale"), "1"),
            (b.join("stale"), "2"),
            (a.join("gone"), "1"),
            (b.join("new"), "1"),
        ] {
            fs::write(path, text).unwrap();
        }
        assert_eq!(differing_files(&a, &b).unwrap(), ["gone", "new", "stale"]);
        assert!(differing_files(&a, &a).unwrap().is_empty());
        fs::remove_dir_all(folder).unwrap();
    }
}
