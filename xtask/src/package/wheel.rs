//! A wheel: a zip archive whose `.data/scripts` pip puts into `bin`, whose `.data/data` below
//! the prefix, and whose `.dist-info` says what was installed, so that it can be removed.
//!
//! There is nothing of Python in it, so one wheel is for every Python 3.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::needs::platform_tag;
use super::tree::{Tree, VERSION};
use super::zip::{Content, Entry, archive, filter};

/// Writes the wheel into the tree's folder.
pub fn write(tree: &Tree) -> Result<PathBuf, String> {
    let tag = format!("py3-none-{}", platform_tag(&tree.needs)?);
    let name = format!("tensorscope-{VERSION}");
    let mut entries: Vec<Entry> = tree
        .files
        .iter()
        .map(|path| Entry {
            name: match path.strip_prefix("bin/") {
                Some(program) => format!("{name}.data/scripts/{program}"),
                None => format!("{name}.data/data/{path}"),
            },
            content: Content::File(tree.root.join(path)),
            is_executable: path.starts_with("bin/"),
        })
        .collect();
    let about = format!("{name}.dist-info");
    let text = |file: &str, content: Content| Entry {
        name: format!("{about}/{file}"),
        content,
        is_executable: false,
    };
    entries.push(text("METADATA", Content::Bytes(metadata().into_bytes())));
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: xtask {VERSION}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    entries.push(text("WHEEL", Content::Bytes(wheel.into_bytes())));
    for licence in LICENCES {
        let file = Content::File(tree.sources.join(licence));
        entries.push(text(&format!("licenses/{licence}"), file));
    }
    let record = record(&entries, &format!("{about}/RECORD"))?;
    entries.push(text("RECORD", Content::Bytes(record.into_bytes())));
    let path = tree.folder.join(format!("{name}-{tag}.whl"));
    remove_others(&tree.folder, "whl")?;
    super::tree::write(&path, &archive(&entries)?)?;
    Ok(path)
}

const LICENCES: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT"];

/// Whoever installs `*.whl` must not meet the one of yesterday.
pub fn remove_others(folder: &Path, extension: &str) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|e| e == extension) {
            fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(())
}

fn metadata() -> String {
    format!(
        "Metadata-Version: 2.4
Name: tensorscope
Version: {VERSION}
Summary: See, explain and fix what large language models do to memory
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Keywords: llama.cpp,gguf,memory,trace,profiler
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Software Development :: Debuggers
Project-URL: Repository, {repository}
Requires-Python: >=3.8
Description-Content-Type: text/markdown

tensorscope records, byte by byte, which parts of a language model llama.cpp touches, when,
and for which token, on llama.cpp that nobody modified: built in, or inside Python, Node or
llama-server.

    tensorscope demo                                    # a small model comes with it
    tensorscope record -m MODEL.gguf -p 'Once upon a time' -n 64 -o RUN
    tensorscope view RUN
    tensorscope record -- python3 chat.py               # any program with llama.cpp
    tensorscope --help

Linux on x86-64 with AVX2.
",
        repository = env!("CARGO_PKG_REPOSITORY"),
    )
}

/// A line for each file: name, SHA-256, size. It cannot have its own hash.
fn record(entries: &[Entry], own_name: &str) -> Result<String, String> {
    let mut lines = String::new();
    for entry in entries {
        let bytes = entry.content.bytes()?;
        let size = bytes.len();
        let hash = url_safe_base64(&sha256(bytes)?);
        lines += &format!("{},sha256={hash},{size}\n", entry.name);
    }
    Ok(lines + &format!("{own_name},,\n"))
}

fn sha256(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    let said = filter(&mut Command::new("sha256sum"), bytes)?;
    let digits = said.get(..64).and_then(|d| std::str::from_utf8(d).ok());
    let bytes = digits.and_then(|digits| {
        let pairs = (0..64).step_by(2).map(|at| digits.get(at..at + 2));
        pairs
            .map(|pair| u8::from_str_radix(pair?, 16).ok())
            .collect()
    });
    bytes.ok_or_else(|| "`sha256sum` printed no hash".into())
}

/// Without padding, as RECORD wants it.
fn url_safe_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=three.len() {
            let index = bits >> (18 - 6 * digit) & 63;
            text.push(char::from(DIGITS[index as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_the_hashes_that_pip_computes() {
        let entry = Entry {
            name: "a/b".into(),
            content: Content::Bytes(b"abc".to_vec()),
            is_executable: false,
        };
        // python3 -c 'import base64, hashlib; print(base64.urlsafe_b64encode(hashlib.sha256(b"abc").digest()))'
        assert_eq!(
            record(&[entry], "x.dist-info/RECORD").unwrap(),
            "a/b,sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0,3\nx.dist-info/RECORD,,\n"
        );
    }

    #[test]
    fn base64_of_every_length() {
        let of = |text: &str| url_safe_base64(text.as_bytes());
        assert_eq!(
            [of(""), of("f"), of("fo"), of("foo")],
            ["", "Zg", "Zm8", "Zm9v"]
        );
        assert_eq!(url_safe_base64(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn headers_of_the_metadata_are_lines_of_their_own() {
        let metadata = metadata();
        let (headers, text) = metadata.split_once("\n\n").unwrap();
        assert!(headers.lines().all(|line| line.contains(": ")), "{headers}");
        assert!(headers.contains(&format!("\nVersion: {VERSION}\n")));
        assert!(text.contains("tensorscope demo"));
    }
}
