//! What a model's tokens stand for, as far as the file says.
//!
//! The list of tokens holds them in the writing of their tokenizer: byte-level
//! BPE writes bytes as printable characters, SentencePiece writes spaces as `▁`
//! and single bytes as `<0x0A>`.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use crate::{Model, metadata::ValueType};

/// A longer token is damage.
const MAX_TOKEN_BYTES: u64 = 1 << 20;

pub struct Vocabulary {
    writing: Writing,
    tokens: Vec<Box<[u8]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    /// `gpt2`: each byte is a character.
    Bytes,
    /// `llama`, `t5`, `bert` and others.
    Pieces,
}

impl Vocabulary {
    /// `None` when the model has no list of tokens.
    pub fn of(model: &Model) -> io::Result<Option<Vocabulary>> {
        let metadata = model.metadata();
        let list = metadata
            .get("tokenizer.ggml.tokens")
            .and_then(|value| value.as_array())
            .filter(|array| array.element == ValueType::String);
        let (Some(list), Some(file)) = (list, model.files().first()) else {
            return Ok(None);
        };
        let writing = match metadata.str("tokenizer.ggml.model") {
            Some("gpt2") => Writing::Bytes,
            _ => Writing::Pieces,
        };
        let tokens = read_strings(&file.path, list.file_offset, list.size_bytes, list.count)?;
        Ok(Some(Vocabulary { writing, tokens }))
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The bytes that a token stands for; `None` for a number that there is not.
    pub fn text(&self, token: u32) -> Option<Vec<u8>> {
        let written = self.tokens.get(token as usize)?;
        Some(match self.writing {
            Writing::Bytes => from_characters(written),
            Writing::Pieces => from_piece(written),
        })
    }
}

fn read_strings(path: &Path, offset: u64, bytes: u64, count: u64) -> io::Result<Vec<Box<[u8]>>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut source = io::BufReader::new(file.take(bytes));
    let mut strings = Vec::new();
    for _ in 0..count {
        let mut length = [0; 8];
        source.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_TOKEN_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut string = vec![0; length as usize];
        source.read_exact(&mut string)?;
        strings.push(string.into_boxed_slice());
    }
    Ok(strings)
}

/// Undoes GPT-2's writing: printable bytes stand for themselves, the others for
/// the characters from 256 on, in order.
fn from_characters(written: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(written) else {
        return written.to_vec();
    };
    let byte_of = |character: char| {
        let code = u32::from(character);
        match u8::try_from(code) {
            Ok(byte) if is_printable(byte) => Some(byte),
            Ok(_) => None,
            Err(_) => (0..=u8::MAX)
                .filter(|&byte| !is_printable(byte))
                .nth((code - 256) as usize),
        }
    };
    let bytes: Option<Vec<u8>> = text.chars().map(byte_of).collect();
    // A special token is written as it is read.
    bytes.unwrap_or_else(|| written.to_vec())
}

/// As GPT-2 sees it.
fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

fn from_piece(written: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(written) else {
        return written.to_vec();
    };
    let byte = text
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|digits| digits.len() == 2)
        .and_then(|digits| u8::from_str_radix(digits, 16).ok());
    match byte {
        Some(byte) => vec![byte],
        None => text.replace('▁', " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_level_writing_is_undone() {
        assert_eq!(from_characters("Ġthe".as_bytes()), b" the");
        assert_eq!(from_characters("Ċ".as_bytes()), b"\n");
        assert_eq!(from_characters("Ã©".as_bytes()), "é".as_bytes());
        assert_eq!(from_characters("<|im_end|>".as_bytes()), b"<|im_end|>");
        // A space is never written as such: this is a special token.
        assert_eq!(from_characters(b"a b"), b"a b");
    }

    #[test]
    fn pieces_are_undone() {
        assert_eq!(from_piece("▁the▁cat".as_bytes()), b" the cat");
        assert_eq!(from_piece(b"<0x0A>"), b"\n");
        assert_eq!(from_piece(b"<0x0>"), b"<0x0>");
    }
}
