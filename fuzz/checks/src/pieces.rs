//! Inputs that are several things at once: pieces, each with a letter that says what it is.
//!
//! A mark between them, and not lengths before them, because what a fuzzer inserts and
//! removes would make every length behind it wrong.

use std::fs;
use std::path::Path;

/// Stands before each piece, followed by its letter.
pub const MARK: [u8; 4] = *b"@PC:";

/// Files of a run directory; the letter of the first is `a`.
pub const FILES: [&str; 16] = [
    "metadata.json",
    "tensor_names.txt",
    "model.gguf",
    "log/status",
    "log/control",
    "log/tokens",
    "log/0000-000000.tslog",
    "log/0000-000001.tslog",
    "log/0001-000000.tslog",
    "log/faults",
    "log/io",
    "log/residency",
    "log/touched-00000",
    "log/cpu",
    "log/stacks",
    "log/machine",
];

/// Letters and contents; what stands before the first mark is left out.
pub fn pieces(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    data = split(data).1;
    std::iter::from_fn(move || {
        let (&letter, rest) = data.split_first()?;
        let (piece, behind) = split(rest);
        data = behind;
        Some((letter, piece))
    })
}

/// What stands before the next mark, and what behind it.
fn split(data: &[u8]) -> (&[u8], &[u8]) {
    let mark = data.windows(MARK.len()).position(|bytes| bytes == MARK);
    match mark {
        Some(at) => (&data[..at], &data[at + MARK.len()..]),
        None => (data, &[]),
    }
}

/// Writes the pieces to the files that they stand for, into a new folder.
pub fn folder(data: &[u8]) -> tempfile::TempDir {
    let folder = scratch();
    for (letter, contents) in pieces(data) {
        let number = usize::from(letter.wrapping_sub(b'a'));
        if let Some(name) = FILES.get(number) {
            fs::write(folder.path().join(name), contents).expect("scratch space");
        }
    }
    folder
}

/// A folder with a `log` in it, in memory where that can be.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let folder = folder.expect("scratch space");
    fs::create_dir(folder.path().join("log")).expect("scratch space");
    folder
}
