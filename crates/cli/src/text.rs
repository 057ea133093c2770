//! Numbers as people read them.

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_set_off() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0".to_owned(), "999".into(), "1,000".into(), "1,234,567".into()]
        );
    }
}
