//! `log/tokens`: what the tokens of a program that was watched stand for.
//!
//! The program's recorder sees numbers only; whoever started it knows the model,
//! and writes the texts of the tokens that occurred when the program has ended.
//! For each token: its number and the length of its text, 32 bits little-endian
//! each, and the text.

use std::{collections::BTreeMap, fs, io, path::Path};

const TOKENS: &str = "tokens";

pub fn write(
    log_directory: &Path,
    tokens: impl IntoIterator<Item = (u32, Vec<u8>)>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    for (id, text) in tokens {
        let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        bytes.extend(id.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(text);
    }
    fs::write(log_directory.join(TOKENS), bytes)
}

/// Empty where there is no such file; a damaged one is read as far as it goes:
/// texts are for people, and nothing depends on them.
pub(crate) fn read(log_directory: &Path) -> BTreeMap<u32, Vec<u8>> {
    let bytes = fs::read(log_directory.join(TOKENS)).unwrap_or_default();
    let mut rest = bytes.as_slice();
    let mut tokens = BTreeMap::new();
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let Some((text, behind)) = behind.split_at_checked(number(4) as usize) else {
            break;
        };
        tokens.insert(number(0), text.to_vec());
        rest = behind;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_far_as_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).is_empty());
        let tokens = BTreeMap::from([(7, b" the".to_vec()), (9, Vec::new()), (8, vec![0xff])]);
        write(folder.path(), tokens.clone()).unwrap();
        assert_eq!(read(folder.path()), tokens);
        let path = folder.path().join(TOKENS);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        assert_eq!(read(folder.path()).len(), 2);
    }
}
