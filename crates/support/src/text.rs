//! Numbers as people read them.

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 evaluation`, `1,234 evaluations`, `2 accesses`.
pub fn count(number: u64, noun: &str) -> String {
    let plural = match number {
        1 => "",
        _ if noun.ends_with(['s', 'x', 'z']) || noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", grouped(number))
}

/// `2.5 MiB`, `512 B`: in powers of 1024, with so many decimals.
pub fn bytes(bytes: u64, decimals: usize) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // What would be rounded up to 1024 of a unit is one of the next.
    let next = 1024.0 - 0.5 * 0.1f64.powi(decimals as i32);
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= next && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.decimals$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_off() {
        let check = |number, expect: &str| assert_eq!(grouped(number), expect);
        check(0, "0");
        check(999, "999");
        check(1000, "1,000");
        check(1_234_567, "1,234,567");
        check(u64::MAX, "18,446,744,073,709,551,615");
    }

    #[test]
    fn one_is_singular() {
        let check = |number, noun, expect: &str| assert_eq!(count(number, noun), expect);
        check(1, "evaluation", "1 evaluation");
        check(0, "evaluation", "0 evaluations");
        check(1234, "token", "1,234 tokens");
        check(1, "access", "1 access");
        check(2, "access", "2 accesses");
        check(2, "batch", "2 batches");
        check(u64::MAX, "access", "18,446,744,073,709,551,615 accesses");
    }

    #[test]
    fn bytes_have_the_largest_unit_that_leaves_one_of_it() {
        let check = |number, decimals, expect: &str| assert_eq!(bytes(number, decimals), expect);
        check(0, 1, "0 B");
        check(1023, 1, "1023 B");
        check(1024, 1, "1.0 KiB");
        check(1024 * 1024 - 1, 1, "1.0 MiB");
        check(1024 * 1024 - 1, 2, "1.00 MiB");
        check(1_048_063, 2, "1023.50 KiB");
        check(5 << 29, 1, "2.5 GiB");
        check(u64::MAX, 2, "16.00 EiB");
    }
}
