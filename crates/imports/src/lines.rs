//! Text as numbered lines, whatever bytes are in it.

use std::borrow::Cow;

/// No tool that we read writes longer ones; what is longer is no text.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Lines with their numbers from 1, without their ends. A line that is no UTF-8 (names of files
/// in it may be anything) is shown with replacements.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = (u64, Cow<'_, str>)> {
    // The part behind the last line's end is a line only if something is in it.
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let body = if bytes.is_empty() { None } else { Some(body) };
    let lines = body
        .into_iter()
        .flat_map(|body| body.split(|b| *b == b'\n'));
    (1..).zip(lines.map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        String::from_utf8_lossy(&line[..line.len().min(MAX_LINE_BYTES)])
    }))
}

/// At most so many characters of what a file says, for a message.
pub fn shown(text: &str) -> String {
    const CHARACTERS: usize = 60;
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { '.' } else { c })
        .take(CHARACTERS)
        .collect();
    if text.chars().nth(CHARACTERS).is_some() {
        format!("{clean}…")
    } else {
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_their_numbers_and_not_their_ends() {
        let all: Vec<_> = lines(b"a\r\n\nb").collect();
        assert_eq!(all, [(1, "a".into()), (2, "".into()), (3, "b".into())]);
        assert_eq!(lines(b"a\n").count(), 1);
        assert_eq!(lines(b"").count(), 0);
        assert_eq!(lines(b"\n").count(), 1);
    }

    #[test]
    fn a_message_shows_a_part_of_a_long_text_and_no_control_characters() {
        assert_eq!(shown("a\x1b[1m"), "a.[1m");
        assert_eq!(shown(&"ä".repeat(61)).chars().count(), 61);
    }
}
