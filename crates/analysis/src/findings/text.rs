//! Numbers as people read them.

pub(crate) use support::text::count;

/// `2.5 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    support::text::bytes(bytes, 1)
}

/// `63.5 %`. What is not nothing does not read as nothing, nor what is not all as all.
pub(crate) fn percent(share: f64) -> String {
    match share {
        s if s > 0.0 && s < 0.0005 => "less than 0.1 %".to_owned(),
        s if (0.9995..1.0).contains(&s) => "more than 99.9 %".to_owned(),
        s => format!("{:.1} %", s * 100.0),
    }
}

pub(crate) fn time(nanos: f64) -> String {
    if nanos < 1e6 {
        format!("{:.0} µs", nanos / 1e3)
    } else if nanos < 1e9 {
        format!("{:.1} ms", nanos / 1e6)
    } else {
        format!("{:.1} s", nanos / 1e9)
    }
}

pub(crate) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let check = |found: String, expected: &str| assert_eq!(found, expected);
        check(bytes(0), "0 B");
        check(bytes(1023), "1023 B");
        check(bytes(1024), "1.0 KiB");
        check(bytes(1024 * 1024 - 1), "1.0 MiB");
        check(bytes(5 << 30), "5.0 GiB");
        check(percent(0.0), "0.0 %");
        check(percent(0.0001), "less than 0.1 %");
        check(percent(0.635), "63.5 %");
        check(percent(0.99999), "more than 99.9 %");
        check(percent(1.0), "100.0 %");
        check(time(1500.0), "2 µs");
        check(time(2_500_000.0), "2.5 ms");
        check(time(14e9), "14.0 s");
    }
}
