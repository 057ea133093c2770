//! Words in pictures: made harmless, measured, shortened.

/// For text and attributes of XML and HTML. Control characters are illegal in XML,
/// and those that turn the direction of writing would garble what stands around a
/// hostile name; both become a replacement character.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                escaped.push('\u{fffd}');
            }
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A token as a label: white space is shown, because it is what many tokens are.
pub fn token_label(text: &str) -> String {
    let mut label = String::new();
    for c in text.chars() {
        match c {
            '\n' => label.push_str("\\n"),
            '\r' => label.push_str("\\r"),
            '\t' => label.push_str("\\t"),
            // SentencePiece writes a space so.
            ' ' | '\u{2581}' => label.push('·'),
            c => label.push(c),
        }
    }
    label
}

/// About how wide a text is. A page uses the reader's font, so that a little room
/// is always left; exact metrics would be exact for one font only.
pub fn width_px(text: &str, size_px: f64) -> f64 {
    let em: f64 = text.chars().map(character_em).sum();
    em * size_px
}

fn character_em(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | '(' | ')' | '[' | ']' => 0.3,
        'f' | 'r' | 't' | ' ' | '-' | '·' | '/' | 'I' => 0.38,
        'm' | 'w' | 'M' | 'W' | '%' | '…' | '@' => 0.9,
        'A'..='Z' => 0.66,
        c if c.is_ascii() => 0.57,
        // Wide scripts; too much room is better than too little.
        c if u32::from(c) >= 0x1100 => 1.0,
        _ => 0.6,
    }
}

/// As much of a text as fits, with an ellipsis where it does not.
pub fn shortened(text: &str, size_px: f64, room_px: f64) -> String {
    if width_px(text, size_px) <= room_px {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used_px = width_px("…", size_px);
    for c in text.chars() {
        used_px += character_em(c) * size_px;
        if used_px > room_px {
            break;
        }
        kept.push(c);
    }
    if kept.is_empty() {
        return kept;
    }
    kept + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_of_a_name_is_markup() {
        let hostile = "</svg><script>\"'&\u{0}\u{202e}é";
        assert_eq!(
            escape(hostile),
            "&lt;/svg&gt;&lt;script&gt;&quot;&#39;&amp;\u{fffd}\u{fffd}é"
        );
    }

    #[test]
    fn white_space_of_a_token_is_visible() {
        assert_eq!(token_label(" the\n"), "·the\\n");
        assert_eq!(token_label("\u{2581}I"), "·I");
    }

    #[test]
    fn shortened_texts_fit() {
        for room in [0.0, 10.0, 25.0, 60.0, 500.0] {
            let text = shortened("blk.10.ffn_gate_exps.weight", 12.0, room);
            assert!(width_px(&text, 12.0) <= room, "{text} in {room}");
        }
        assert_eq!(shortened("q", 12.0, 40.0), "q");
    }
}
