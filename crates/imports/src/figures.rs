//! Numbers as tools print them: with separators of thousands, a comma as the point, units and
//! their prefixes.

/// `1,234.5`, `1.234,5`, `1'234.5`, `1 234,5`, `12`, `-3e4`, `0,5`. One comma with three digits
/// behind it is taken as a separator, as English output has it: `1,234` is above a thousand.
pub fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    if text.is_empty() || text.len() > 64 {
        return None;
    }
    // A plain number, which nearly all are.
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.matches('.').count() <= 1 {
        return text.parse().ok();
    }
    let known = |c: char| {
        c.is_ascii_digit()
            || matches!(
                c,
                '.' | ',' | '\'' | '\u{a0}' | '\u{202f}' | '\u{2019}' | ' ' | '+' | '-' | 'e' | 'E'
            )
    };
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | ','))
        || !text.chars().all(known)
    {
        return None;
    }
    let spaces = ['\'', '\u{a0}', '\u{202f}', '\u{2019}', ' '];
    let text: String = text.chars().filter(|c| !spaces.contains(c)).collect();
    let (comma, point) = (text.rfind(','), text.rfind('.'));
    let plain = match (comma, point) {
        (Some(comma), Some(point)) if comma > point => text.replace('.', "").replace(',', "."),
        (Some(_), Some(_)) => text.replace(',', ""),
        (Some(at), None) => {
            let grouped = text.len() - at - 1 == 3 && !text.starts_with("0,");
            if grouped || text.matches(',').count() > 1 {
                text.replace(',', "")
            } else {
                text.replace(',', ".")
            }
        }
        (None, Some(_)) if text.matches('.').count() > 1 => text.replace('.', ""),
        _ => text,
    };
    plain.parse().ok().filter(|number: &f64| number.is_finite())
}

/// What a unit counts, once prefixes are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Time,
    Bytes,
    BytesPerTime,
    PerTime,
    Percent,
    Other,
}

/// What a number in this unit is multiplied with for nanoseconds, bytes, bytes a second, times a
/// second or a share of 1.
pub fn unit(text: &str) -> (f64, Kind) {
    let text = text.trim();
    if text == "%" || text.eq_ignore_ascii_case("percent") {
        return (0.01, Kind::Percent);
    }
    let (top, below) = match text.split_once('/') {
        Some((top, below)) => (top.trim(), Some(below.trim())),
        None => (text, None),
    };
    let (factor, kind) = one(top);
    match (kind, below.map(one)) {
        (Kind::Bytes, Some((per, Kind::Time))) => (factor / per * 1e9, Kind::BytesPerTime),
        (Kind::Other, Some((per, Kind::Time))) => (factor / per * 1e9, Kind::PerTime),
        // Bytes a block, cycles an instruction: the number stays what it is.
        (kind, _) => (factor, kind),
    }
}

/// A unit without a slash: `usecond`, `Kbyte`, `KiB`, `Ghz`, `cycle`.
fn one(text: &str) -> (f64, Kind) {
    const NAMES: &[(&str, Kind)] = &[
        ("seconds", Kind::Time),
        ("second", Kind::Time),
        ("secs", Kind::Time),
        ("sec", Kind::Time),
        ("s", Kind::Time),
        ("bytes", Kind::Bytes),
        ("byte", Kind::Bytes),
        ("B", Kind::Bytes),
        ("hz", Kind::PerTime),
        ("Hz", Kind::PerTime),
        ("cycles", Kind::Other),
        ("cycle", Kind::Other),
        ("inst", Kind::Other),
    ];
    for (name, kind) in NAMES {
        let Some(prefix) = text.strip_suffix(name) else {
            continue;
        };
        let factor = match prefix {
            "" => 1.0,
            "n" => 1e-9,
            "u" | "µ" | "μ" => 1e-6,
            "m" => 1e-3,
            "K" | "k" => 1e3,
            "M" => 1e6,
            "G" => 1e9,
            "T" => 1e12,
            "P" => 1e15,
            "Ki" => 1024.0,
            "Mi" => 1024.0 * 1024.0,
            "Gi" => 1024.0 * 1024.0 * 1024.0,
            "Ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => continue,
        };
        return match kind {
            Kind::Time => (factor * 1e9, Kind::Time),
            kind => (factor, *kind),
        };
    }
    (1.0, Kind::Other)
}

/// `1794881275.400460` in nanoseconds, exact; what a u64 cannot hold is none.
pub fn seconds_as_nanos(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 9 {
        return None;
    }
    let mut nanos: u64 = if part.is_empty() {
        0
    } else {
        part.parse().ok()?
    };
    for _ in part.len()..9 {
        nanos *= 10;
    }
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_read_as_every_locale_writes_them() {
        for (text, expect) in [
            ("12", Some(12.0)),
            ("1,234.5", Some(1234.5)),
            ("1.234,5", Some(1234.5)),
            ("1,234", Some(1234.0)),
            ("1,234,567", Some(1_234_567.0)),
            ("1.234.567", Some(1_234_567.0)),
            ("0,123", Some(0.123)),
            ("12,5", Some(12.5)),
            ("1\u{202f}234,5", Some(1234.5)),
            ("1'234.5", Some(1234.5)),
            ("-3", Some(-3.0)),
            ("1e3", Some(1000.0)),
            ("", None),
            ("n/a", None),
            ("inf", None),
            ("nan", None),
            ("1e999", None),
            ("(256, 1, 1)", None),
            ("--", None),
        ] {
            assert_eq!(number(text), expect, "{text}");
        }
    }

    #[test]
    fn units_are_brought_to_nanoseconds_bytes_and_shares() {
        for (text, factor, kind) in [
            ("nsecond", 1.0, Kind::Time),
            ("usecond", 1e3, Kind::Time),
            ("msecond", 1e6, Kind::Time),
            ("second", 1e9, Kind::Time),
            ("ns", 1.0, Kind::Time),
            ("us", 1e3, Kind::Time),
            ("µs", 1e3, Kind::Time),
            ("ms", 1e6, Kind::Time),
            ("s", 1e9, Kind::Time),
            ("msec", 1e6, Kind::Time),
            ("byte", 1.0, Kind::Bytes),
            ("Kbyte", 1e3, Kind::Bytes),
            ("KiB", 1024.0, Kind::Bytes),
            ("Kbyte/block", 1e3, Kind::Bytes),
            ("byte/second", 1.0, Kind::BytesPerTime),
            ("Gbyte/second", 1e9, Kind::BytesPerTime),
            ("Tbyte/s", 1e12, Kind::BytesPerTime),
            ("byte/nsecond", 1e9, Kind::BytesPerTime),
            ("Ghz", 1e9, Kind::PerTime),
            ("cycle/nsecond", 1e9, Kind::PerTime),
            ("cycle/usecond", 1e6, Kind::PerTime),
            ("%", 0.01, Kind::Percent),
            ("cycle", 1.0, Kind::Other),
            ("inst/cycle", 1.0, Kind::Other),
            ("register/thread", 1.0, Kind::Other),
            ("Kcycle", 1e3, Kind::Other),
            ("", 1.0, Kind::Other),
        ] {
            let (found, found_kind) = unit(text);
            assert!((found / factor - 1.0).abs() < 1e-12, "{text}: {found}");
            assert_eq!(found_kind, kind, "{text}");
        }
    }

    #[test]
    fn seconds_become_nanoseconds_without_rounding() {
        assert_eq!(
            seconds_as_nanos("1794881275.400460"),
            Some(1_794_881_275_400_460_000)
        );
        assert_eq!(seconds_as_nanos("0.000000001"), Some(1));
        assert_eq!(seconds_as_nanos("5"), Some(5_000_000_000));
        assert_eq!(seconds_as_nanos("99999999999999999999.0"), None);
        assert_eq!(seconds_as_nanos("1.0000000001"), None);
        assert_eq!(seconds_as_nanos("-1.0"), None);
        assert_eq!(seconds_as_nanos(""), None);
    }

    proptest! {
        #[test]
        fn a_number_with_separators_is_the_same_number(whole in 0u64..1_000_000_000_000, cents in 0u64..100) {
            let digits = whole.to_string();
            let mut grouped = String::new();
            for (i, digit) in digits.chars().enumerate() {
                if i > 0 && (digits.len() - i).is_multiple_of(3) {
                    grouped.push(',');
                }
                grouped.push(digit);
            }
            let plain: f64 = format!("{whole}.{cents:02}").parse().unwrap();
            prop_assert_eq!(number(&format!("{grouped}.{cents:02}")), Some(plain));
            let german = grouped.replace(',', ".");
            prop_assert_eq!(number(&format!("{german},{cents:02}")), Some(plain));
        }

        #[test]
        fn no_text_breaks_numbers_or_units(text in ".{0,40}") {
            let _ = number(&text);
            let _ = seconds_as_nanos(&text);
            let (factor, _) = unit(&text);
            prop_assert!(factor.is_finite() && factor > 0.0);
        }
    }
}
