//! Numbers with units: for axes, where all ticks share one unit, and alone.

use serde::Serialize;
pub use support::text::grouped;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Bytes,
    Nanos,
    /// Anything countable; the label says what.
    Count,
    /// A share of one, shown in per cent.
    Share,
    /// A number whose unit stands in the label: token number, layer, ×.
    Plain,
}

/// The unit that suits a whole axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaled {
    pub divisor: f64,
    /// As written behind a number; empty where there is none.
    pub symbol: &'static str,
}

impl Unit {
    /// Steps of this unit, smallest first.
    fn steps(self) -> &'static [(f64, &'static str)] {
        match self {
            Unit::Bytes => &[
                (1.0, "B"),
                (1024.0, "KiB"),
                (1_048_576.0, "MiB"),
                (1_073_741_824.0, "GiB"),
                (1_099_511_627_776.0, "TiB"),
            ],
            Unit::Nanos => &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")],
            Unit::Count => &[
                (1.0, ""),
                (1e3, "thousand"),
                (1e6, "million"),
                (1e9, "billion"),
            ],
            Unit::Share => &[(0.01, "%")],
            Unit::Plain => &[(1.0, "")],
        }
    }

    /// The largest step that leaves `max` above one; counts stay whole up to ten
    /// thousand.
    pub fn scaled(self, max: f64) -> Scaled {
        let reach = if self == Unit::Count { 10.0 } else { 1.0 };
        let steps = self.steps();
        let fitting = steps.iter().rev().find(|(step, _)| max >= step * reach);
        let &(divisor, symbol) = fitting.unwrap_or(&steps[0]);
        Scaled { divisor, symbol }
    }

    /// One number, on its own.
    pub fn amount(self, value: f64) -> String {
        match self {
            Unit::Count | Unit::Plain if value.fract() == 0.0 => grouped(value as u64),
            Unit::Plain => short(value),
            Unit::Count => format!("{value:.1}"),
            Unit::Share => match value * 100.0 {
                percent if percent == 0.0 || percent == 100.0 => format!("{percent:.0} %"),
                // Little is not nothing: two figures that matter.
                percent if percent.abs() < 10.0 => {
                    let decimals = (1.0 - percent.abs().log10().floor()).max(0.0) as usize;
                    format!("{percent:.decimals$} %")
                }
                percent => format!("{percent:.1} %"),
            },
            Unit::Bytes | Unit::Nanos => {
                let Scaled { divisor, symbol } = self.scaled(value);
                match divisor {
                    1.0 => format!("{value:.0} {symbol}"),
                    _ => format!("{} {symbol}", short(value / divisor)),
                }
            }
        }
    }
}

/// Three figures that matter, without an exponent: `0.125`, `1.25`, `12.5`, `1250`.
pub fn short(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        s if s >= 99.95 || s == 0.0 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s if s >= 0.0095 => 3,
        _ => 5,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Round numbers from `min` to `max`, about `wanted` of them, with enough decimals
/// to tell them apart.
pub fn nice_ticks(min: f64, max: f64, wanted: usize, least_step: f64) -> Vec<(f64, String)> {
    let span = max - min;
    if !span.is_finite() || span <= 0.0 || wanted == 0 {
        return vec![(min, short(min))];
    }
    let rough = (span / wanted as f64).max(least_step);
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|m| m * magnitude)
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * magnitude);
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let first = (min / step - 1e-9).ceil() as i64;
    let last = (max / step + 1e-9).floor() as i64;
    (first..=last)
        .map(|at| {
            let value = at as f64 * step;
            let text = match decimals {
                0 if value >= 10_000.0 => grouped(value.round() as u64),
                _ => format!("{value:.decimals$}"),
            };
            (value, text)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_choose_one_unit_for_all_ticks() {
        let check = |unit: Unit, max: f64, expect: &str| {
            assert_eq!(unit.scaled(max).symbol, expect, "{unit:?} up to {max}");
        };
        check(Unit::Bytes, 0.0, "B");
        check(Unit::Bytes, 1023.0, "B");
        check(Unit::Bytes, 1024.0, "KiB");
        check(Unit::Bytes, 5e12, "TiB");
        check(Unit::Nanos, 2.5e6, "ms");
        check(Unit::Count, 9_999.0, "");
        check(Unit::Count, 10_000.0, "thousand");
        check(Unit::Share, 0.5, "%");
    }

    #[test]
    fn amounts_have_three_figures_and_a_unit() {
        let check = |unit: Unit, value: f64, expect: &str| assert_eq!(unit.amount(value), expect);
        check(Unit::Bytes, 100.0, "100 B");
        check(Unit::Bytes, 1536.0, "1.5 KiB");
        check(Unit::Bytes, 7.42 * 1_048_576.0, "7.42 MiB");
        check(Unit::Nanos, 1_657_000_000.0, "1.66 s");
        check(Unit::Count, 24548.0, "24,548");
        check(Unit::Share, 0.636, "63.6 %");
        check(Unit::Share, 0.00012, "0.012 %");
        check(Unit::Share, 1.0, "100 %");
        check(Unit::Plain, 2.4, "2.4");
    }

    #[test]
    fn ticks_are_round_within_the_range_and_distinct() {
        for (min, max) in [
            (0.0, 1.0),
            (0.0, 7.3),
            (3.0, 50.0),
            (0.0, 0.004),
            (0.0, 123456.0),
        ] {
            let ticks = nice_ticks(min, max, 5, 0.0);
            assert!((3..=8).contains(&ticks.len()), "{ticks:?}");
            assert!(
                ticks
                    .iter()
                    .all(|(v, _)| *v >= min - 1e-9 && *v <= max + 1e-9)
            );
            assert!(ticks.windows(2).all(|w| w[0].1 != w[1].1), "{ticks:?}");
        }
        let texts: Vec<String> = nice_ticks(0.0, 3.0, 6, 1.0)
            .into_iter()
            .map(|t| t.1)
            .collect();
        assert_eq!(texts, ["0", "1", "2", "3"]);
        assert_eq!(nice_ticks(2.0, 2.0, 5, 0.0).len(), 1);
    }
}
