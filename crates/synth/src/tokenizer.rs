//! The smallest vocabulary that llama.cpp tokenizes any text with.
//!
//! SentencePiece style (`tokenizer.ggml.model = llama`), which llama.cpp takes
//! with every architecture: three special tokens, one token a byte so that
//! nothing is unknown, the printable characters, and as many numbered words as
//! the model's vocabulary needs.

use gguf::write::MetadataBuilder;

const SPECIAL: [&str; 3] = ["<unk>", "<s>", "</s>"];
const BYTES: u64 = 256;
/// The word separator and the printable ASCII characters without the space.
const CHARACTERS: u64 = 95;

/// Vocabularies below this lose bytes or characters.
pub const MIN_VOCAB: u64 = SPECIAL.len() as u64 + BYTES + CHARACTERS;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

pub fn write(metadata: &mut MetadataBuilder, vocab: u64) {
    metadata.set("tokenizer.ggml.model", "llama");
    metadata.set("tokenizer.ggml.pre", "default");
    metadata.set_array("tokenizer.ggml.tokens", (0..vocab).map(token));
    metadata.set_array("tokenizer.ggml.scores", (0..vocab).map(score));
    metadata.set_array("tokenizer.ggml.token_type", (0..vocab).map(kind));
    metadata.set("tokenizer.ggml.bos_token_id", 1u32);
    metadata.set("tokenizer.ggml.eos_token_id", 2u32);
    metadata.set("tokenizer.ggml.unknown_token_id", 0u32);
    metadata.set("tokenizer.ggml.add_bos_token", true);
}

fn token(id: u64) -> String {
    let Some(byte) = id.checked_sub(SPECIAL.len() as u64) else {
        return SPECIAL[id as usize].to_owned();
    };
    let Some(character) = byte.checked_sub(BYTES) else {
        return format!("<0x{byte:02X}>");
    };
    match character {
        0 => "\u{2581}".to_owned(),
        1..CHARACTERS => char::from(b' ' + character as u8).to_string(),
        word => format!("\u{2581}tok{}", word - CHARACTERS),
    }
}

/// Higher merges first: characters before words, words in order.
fn score(id: u64) -> f32 {
    match id.checked_sub(SPECIAL.len() as u64 + BYTES) {
        None => 0.0,
        Some(0..CHARACTERS) => -1000.0,
        Some(word) => -2000.0 - (word - CHARACTERS) as f32,
    }
}

fn kind(id: u64) -> i32 {
    match id {
        0 => UNKNOWN,
        1 | 2 => CONTROL,
        3..259 => BYTE,
        _ => NORMAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_distinct_and_cover_bytes_and_characters() {
        let tokens: Vec<String> = (0..MIN_VOCAB + 50).map(token).collect();
        let mut distinct = tokens.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), tokens.len());
        assert_eq!(tokens[3], "<0x00>");
        assert_eq!(tokens[258], "<0xFF>");
        assert_eq!(tokens[259], "\u{2581}");
        assert_eq!(tokens[260], "!");
        assert_eq!(tokens[353], "~");
        assert_eq!(tokens[354], "\u{2581}tok0");
    }
}
