//! Numbers as people read them.

use std::time::Duration;

pub use support::text::{count, grouped};

/// `4096`, `128K`, `1.5G`: bytes, in powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a valid size; write for instance 4096, 128K, 512M or 1.5G");
    let (number, unit) = match text.trim_end_matches(['B', 'i', 'b']) {
        rest if rest.ends_with(|c: char| c.is_ascii_alphabetic()) => rest.split_at(rest.len() - 1),
        rest => (rest, ""),
    };
    let scale = match unit.to_ascii_uppercase().as_str() {
        "" => 1u64,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return Err(wrong()),
    };
    let value = number.parse::<f64>().map_err(|_| wrong())? * scale as f64;
    if value.is_finite() && (0.0..9e18).contains(&value) {
        Ok(value as u64)
    } else {
        Err(wrong())
    }
}

/// `90`, `90s`, `1.5m`, `200ms`, `1h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a valid time; write for instance 90s, 5m, 1h or 200ms");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = digits.parse::<f64>().map_err(|_| wrong())? * scale;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::{duration, size};
    use std::time::Duration;

    #[test]
    fn times_are_read_as_people_write_them() {
        let check = |text: &str, seconds: Option<f64>| {
            let wanted = seconds.map(Duration::from_secs_f64);
            assert_eq!(duration(text).ok(), wanted, "{text}");
        };
        check("90", Some(90.0));
        check("1.5m", Some(90.0));
        check("200ms", Some(0.2));
        check("1h", Some(3600.0));
        check("", None);
        check("-1s", None);
        check("infs", None);
        check("5 s", None);
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let check = |text: &str, bytes| assert_eq!(size(text).ok(), bytes, "{text}");
        check("4096", Some(4096));
        check("128K", Some(128 << 10));
        check("1.5GiB", Some(3 << 29));
        check("2g", Some(2 << 30));
        check("", None);
        check("-1", None);
        check("nanG", None);
        check("4X", None);
    }
}
