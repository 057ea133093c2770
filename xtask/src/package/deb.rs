//! A package for Debian and Ubuntu: the tree below `/usr`, with what Debian's policy wants
//! beside it. `dpkg-deb` writes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::needs::debian_depends;
use super::tree::{Tree, VERSION, clear, make_folder, permit, read_text, write as write_file};
use super::wheel::remove_others;
use super::zip::{filter, gzip};

const MAINTAINER: &str = "tensorscope developers <tensorscope@users.noreply.github.com>";
/// Level 6 takes six times as long for a sixth of the size.
const COMPRESSION: &[&str] = &["-Zxz", "-z1"];

/// Writes the package into the tree's folder.
pub fn write(tree: &Tree) -> Result<PathBuf, String> {
    let folder = tree.folder.join("deb");
    clear(&folder)?;
    let mut files: Vec<String> = Vec::new();
    for path in &tree.files {
        let path_here = format!("usr/{path}");
        link(&tree.root.join(path), &folder.join(&path_here))?;
        files.push(path_here);
    }
    for (name, bytes) in documents(tree)? {
        let path = format!("usr/share/doc/tensorscope/{name}");
        make_folder(&folder.join("usr/share/doc/tensorscope"))?;
        write_file(&folder.join(&path), &bytes)?;
        files.push(path);
    }
    files.sort();
    let control = folder.join("DEBIAN");
    make_folder(&control)?;
    let bytes: u64 = files.iter().map(|path| size(&folder.join(path))).sum();
    let text = control_file(&debian_depends(&tree.needs)?, bytes.div_ceil(1024));
    write_file(&control.join("control"), text.as_bytes())?;
    let mut md5sum = Command::new("md5sum");
    let sums = filter(md5sum.current_dir(&folder).args(&files), Vec::new())?;
    write_file(&control.join("md5sums"), &sums)?;
    // The same files give the same bytes.
    let released = seconds(&tree.released)?;
    settle(
        &folder,
        SystemTime::UNIX_EPOCH + Duration::from_secs(released),
    )?;
    let path = tree
        .folder
        .join(format!("tensorscope_{VERSION}_{}.deb", arch()));
    remove_others(&tree.folder, "deb")?;
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", released.to_string());
    build
        .args(COMPRESSION)
        .args(["--root-owner-group", "--build"]);
    filter(build.arg(&folder).arg(&path), Vec::new())?;
    Ok(path)
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn control_file(depends: &str, kibibytes: u64) -> String {
    format!(
        "Package: tensorscope
Version: {VERSION}
Architecture: {arch}
Maintainer: {MAINTAINER}
Installed-Size: {kibibytes}
Depends: {depends}
Section: utils
Priority: optional
Homepage: {homepage}
Description: see what large language models do to memory
 tensorscope records, byte by byte, which parts of a language model llama.cpp
 touches, when, and for which token: with the llama.cpp that is built in, or
 inside another program (llama-server, Python, Node) that nobody rebuilt.
 .
 It reports what the run shows and what to do about it, shows it in the
 browser, answers SQL, and runs models that are larger than memory.
 .
 A small model comes with it: try \"tensorscope demo\".
",
        arch = arch(),
        homepage = env!("CARGO_PKG_REPOSITORY"),
    )
}

/// What belongs into /usr/share/doc.
fn documents(tree: &Tree) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", "--date", &tree.released]);
    let date = filter(date.env("LC_ALL", "C"), Vec::new())?;
    let date = String::from_utf8_lossy(&date).trim().to_owned();
    let changelog = format!(
        "tensorscope ({VERSION}) stable; urgency=medium

  * What is new is in NEWS.md.gz.

 -- {MAINTAINER}  {date}
"
    );
    let news = read_text(&tree.sources.join("CHANGELOG.md"))?;
    let licence = read_text(&tree.sources.join("LICENSE-MIT"))?;
    Ok(vec![
        ("changelog.gz", gzip(changelog.into_bytes(), "-9")?),
        ("NEWS.md.gz", gzip(news.into_bytes(), "-9")?),
        ("copyright", copyright(&licence).into_bytes()),
    ])
}

fn copyright(mit: &str) -> String {
    // In a field every further line begins with a space, an empty one is a dot.
    let terms: Vec<String> = mit
        .lines()
        .map(|line| format!(" {}", if line.is_empty() { "." } else { line }))
        .collect();
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Source: {source}

Files: *
Copyright: 2026 the tensorscope contributors
License: Expat or Apache-2.0
Comment: what others wrote and is compiled in, llama.cpp and Rust crates, is
 listed with the texts of its licences in third-party-licences.txt.gz.

License: Expat
{terms}

License: Apache-2.0
 On Debian systems the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
",
        source = env!("CARGO_PKG_REPOSITORY"),
        terms = terms.join("\n"),
    )
}

/// A day as seconds since 1970.
fn seconds(date: &str) -> Result<u64, String> {
    let mut command = Command::new("date");
    command.args(["--utc", "+%s", "--date", date]);
    let said = filter(&mut command, Vec::new())?;
    let said = String::from_utf8_lossy(&said);
    said.trim()
        .parse()
        .map_err(|_| format!("`{date}` in CHANGELOG.md is no date"))
}

/// The same file at a second place: nobody changes it.
fn link(from: &Path, to: &Path) -> Result<(), String> {
    make_folder(to.parent().unwrap_or(to))?;
    fs::hard_link(from, to).map_err(|error| format!("{}: {error}", to.display()))
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |about| about.len())
}

/// Gives everything below a folder the same time, and folders the usual permissions.
fn settle(path: &Path, time: SystemTime) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if path.is_dir() {
        for entry in fs::read_dir(path).map_err(failed)? {
            settle(&entry.map_err(failed)?.path(), time)?;
        }
        permit(path, 0o755)?;
    }
    let file = fs::File::open(path).map_err(failed)?;
    file.set_modified(time).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_file_has_a_field_or_a_continuation_in_every_line() {
        let text = control_file("libc6 (>= 2.35)", 7);
        for line in text.lines() {
            assert!(line.starts_with(' ') || line.contains(": "), "{line}");
        }
        assert!(text.contains("\nDepends: libc6 (>= 2.35)\n"));
        assert!(text.ends_with(".\n"));
    }

    #[test]
    fn the_licence_is_a_field_without_empty_lines() {
        let text = copyright("Permission is\n\nAS IS\n");
        assert!(
            text.contains("\nLicense: Expat\n Permission is\n .\n AS IS\n\nLicense"),
            "{text}"
        );
    }

    #[test]
    fn dates_of_the_changelog_are_days() {
        assert_eq!(seconds("1970-01-02"), Ok(86_400));
        assert!(seconds("soon").is_err());
    }
}
