//! The licences of what is compiled in. All of them let a binary be given away, with nothing
//! but their texts beside it ([`crate::licences`]); here are the texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::house::House;

/// Packages whose binaries are given away.
const PACKAGES: &[&str] = &["tensorscope", "tensorscope-sql", "tensorscope-lab", "agent"];
/// What the names of files with such texts begin with.
const NAMES: &[&str] = &[
    "LICENSE",
    "LICENCE",
    "COPYING",
    "COPYRIGHT",
    "NOTICE",
    "UNLICENSE",
];
/// Where a crate may have them, besides its own folder: code of others that it brings.
const FOLDERS: &[&str] = &["", "llama.cpp", "llama.cpp/licenses", "zstd"];

/// Each crate with its licence, then each text once with the crates that have it.
pub fn text(house: &House) -> Result<String, String> {
    let mut tree = house.bare_cargo(&["tree", "--edges=normal", "--prefix=none"]);
    tree.arg("--format={p}|{l}|{r}");
    for package in PACKAGES {
        tree.args(["--package", package]);
    }
    let crates = crates(&house.read(tree)?);
    let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut out = String::from("What is compiled into tensorscope, and its licences.\n\n");
    for (name, about) in &crates {
        out += &format!("{name}: {about}\n");
        let folder = source(name).ok_or_else(|| format!("the source of {name} is not here"))?;
        for text in texts_in(&folder) {
            let users = texts.entry(text).or_default();
            if users.last() != Some(&name.as_str()) {
                users.push(name);
            }
        }
    }
    for (text, users) in texts {
        let line = "-".repeat(80);
        out += &format!(
            "\n{line}\n{}\n{line}\n\n{}\n",
            users.join(", "),
            text.trim()
        );
    }
    Ok(out)
}

/// `name-version` with licence and address; ours are not among them.
fn crates(tree: &str) -> BTreeMap<String, String> {
    let mut crates = BTreeMap::new();
    for line in tree.lines() {
        let mut parts = line.trim_end().trim_end_matches(" (*)").split('|');
        let (Some(package), Some(licence)) = (parts.next(), parts.next()) else {
            continue;
        };
        let mut words = package.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            continue;
        };
        // A path: ours. A macro is no part of the program.
        if words.next().is_some() {
            continue;
        }
        let version = version.trim_start_matches('v');
        let address = parts.next().unwrap_or_default();
        let about = format!("{licence} {address}").trim().to_owned();
        crates.insert(format!("{name}-{version}"), about);
    }
    crates
}

/// Where cargo has unpacked it.
fn source(name: &str) -> Option<PathBuf> {
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cargo"),
    };
    let registries = fs::read_dir(home.join("registry/src")).ok()?.flatten();
    let mut folders = registries.map(|registry| registry.path().join(name));
    folders.find(|folder| folder.is_dir())
}

fn texts_in(folder: &Path) -> Vec<String> {
    let mut files: Vec<PathBuf> = FOLDERS
        .iter()
        .flat_map(|part| {
            fs::read_dir(folder.join(part))
                .into_iter()
                .flatten()
                .flatten()
        })
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.to_uppercase();
            NAMES.iter().any(|begin| name.starts_with(begin))
        })
        .collect();
    files.sort();
    let texts = files
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok());
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_and_is_linked_is_listed_once() {
        let tree = "tensorscope v0.2.0 (/x/crates/cli)|MIT|\n\
                    b v1.0.0|MIT OR Apache-2.0|https://b\n\
                    a v2.0.0+x|Zlib|\n\
                    m v1.0.0 (proc-macro)|MIT|\n\
                    b v1.0.0|MIT OR Apache-2.0|https://b (*)\n";
        let crates: Vec<_> = crates(tree).into_iter().collect();
        let expected = [
            ("a-2.0.0+x", "Zlib"),
            ("b-1.0.0", "MIT OR Apache-2.0 https://b"),
        ];
        let expected = expected.map(|(name, about)| (name.to_owned(), about.to_owned()));
        assert_eq!(crates, expected);
    }

    #[test]
    fn a_text_is_known_by_the_name_of_its_file() {
        let folder = House::new().root().to_owned();
        assert_eq!(texts_in(&folder).len(), 2);
    }
}
