//! Numbers as people read them, by their unit, and texts that a terminal can be trusted with.

use crate::metric::{Unit, Value};

/// Who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A sentence: `4,096`, `34 %`, `1.3 ms`.
    Sentence,
    /// A command that people type: as in a sentence, but counts have no commas.
    Command,
    /// A program: digits only, in the unit of the metric.
    Raw,
}

/// `34 %`, `1.2 GiB`, `1.3 ms`, `12.3 GB/s`, `2.5 times`.
pub fn number(value: f64, unit: Unit, style: Style) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    if style == Style::Raw {
        return if value == 0.0 {
            "0".to_owned()
        } else {
            value.to_string()
        };
    }
    let sign = if value < 0.0 { "-" } else { "" };
    let value = value.abs();
    let text = match unit {
        Unit::Count => count(value, style),
        Unit::Share => share(value),
        Unit::Bytes => support::text::bytes(value.round() as u64, 1),
        Unit::Nanos => scaled(value, &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")]),
        Unit::BytesPerSecond => scaled(
            value,
            &[
                (1.0, "B/s"),
                (1e3, "kB/s"),
                (1e6, "MB/s"),
                (1e9, "GB/s"),
                (1e12, "TB/s"),
            ],
        ),
        Unit::FlopsPerSecond => scaled(
            value,
            &[
                (1.0, "FLOP/s"),
                (1e3, "kFLOP/s"),
                (1e6, "MFLOP/s"),
                (1e9, "GFLOP/s"),
                (1e12, "TFLOP/s"),
                (1e15, "PFLOP/s"),
            ],
        ),
        Unit::Times => format!("{} times", digits(value)),
    };
    format!("{sign}{text}")
}

/// A value as [`number`] shows it; texts without what would move a terminal's cursor.
pub fn value(value: &Value, unit: Unit, style: Style) -> String {
    match value {
        Value::Number(number) => self::number(*number, unit, style),
        Value::Text(text) => harmless(text),
        Value::Flag(true) => "yes".to_owned(),
        Value::Flag(false) => "no".to_owned(),
    }
}

/// Names come out of other people's files: what is no visible character becomes a space.
pub fn harmless(text: &str) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(visible).collect()
}

fn count(value: f64, style: Style) -> String {
    let is_whole = value.fract() == 0.0 && value < 1e15;
    if !is_whole && value < 1000.0 {
        return digits(value);
    }
    match style {
        Style::Sentence => support::text::grouped(value.round() as u64),
        Style::Command | Style::Raw => format!("{value:.0}"),
    }
}

/// What is not nothing does not read as nothing, nor what is not all as all.
fn share(share: f64) -> String {
    match share {
        s if s > 0.0 && s < 0.0005 => "less than 0.1 %".to_owned(),
        s if (0.9995..1.0).contains(&s) => "more than 99.9 %".to_owned(),
        s if s > 0.0 && s < 0.0995 || s > 0.99 && s < 1.0 => format!("{:.1} %", s * 100.0),
        s => format!("{:.0} %", s * 100.0),
    }
}

/// In the largest unit that leaves one of it.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // What would be rounded up to 1000 of a unit is one of the next.
    let fits = |scale: f64| value / scale >= 0.9995 || scale == 1.0;
    let found = units.iter().rev().find(|(scale, _)| fits(*scale));
    let (scale, unit) = found.copied().unwrap_or((1.0, ""));
    format!("{} {unit}", digits(value / scale))
}

/// Three digits that matter, or all those before the point.
fn digits(value: f64) -> String {
    let decimals = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.0995 => 2,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_by_their_unit() {
        let check = |value, unit, expect: &str| {
            assert_eq!(number(value, unit, Style::Sentence), expect, "{value}");
        };
        check(8.0, Unit::Count, "8");
        check(4096.0, Unit::Count, "4,096");
        check(-4096.0, Unit::Count, "-4,096");
        check(1.5, Unit::Count, "1.5");
        check(12.34, Unit::Count, "12.3");
        check(0.0, Unit::Count, "0");
        check(0.034, Unit::Count, "0.034");
        check(0.344, Unit::Share, "34 %");
        check(0.034, Unit::Share, "3.4 %");
        check(0.0, Unit::Share, "0 %");
        check(1.0, Unit::Share, "100 %");
        check(0.0001, Unit::Share, "less than 0.1 %");
        check(0.99999, Unit::Share, "more than 99.9 %");
        check(1.25 * 1_073_741_824.0, Unit::Bytes, "1.2 GiB");
        check(850.0, Unit::Nanos, "850 ns");
        check(1_300_000.0, Unit::Nanos, "1.3 ms");
        check(999_999.0, Unit::Nanos, "1 ms");
        check(95e9, Unit::Nanos, "95 s");
        check(12.34e9, Unit::BytesPerSecond, "12.3 GB/s");
        check(1.2e12, Unit::FlopsPerSecond, "1.2 TFLOP/s");
        check(2.5, Unit::Times, "2.5 times");
        check(f64::NAN, Unit::Share, "?");
        check(1e300, Unit::Count, "18,446,744,073,709,551,615");
    }

    #[test]
    fn commands_and_programs_get_numbers_that_they_can_read() {
        let check = |value, unit, style, expect: &str| {
            assert_eq!(number(value, unit, style), expect, "{value}");
        };
        check(4096.0, Unit::Count, Style::Command, "4096");
        check(4096.0, Unit::Count, Style::Raw, "4096");
        check(0.34, Unit::Share, Style::Raw, "0.34");
        check(-0.0, Unit::Share, Style::Raw, "0");
        check(1_073_741_824.0, Unit::Bytes, Style::Raw, "1073741824");
    }

    #[test]
    fn texts_cannot_move_the_cursor() {
        let name = Value::Text("gemm\x1b[2J\n".into());
        assert_eq!(value(&name, Unit::Count, Style::Sentence), "gemm [2J ");
    }
}
