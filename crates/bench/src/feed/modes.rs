//! What is compared: budgets of memory, and ways of running a model in them.

use std::fmt;

use plan::Strategies;
use terminal::text::size;

/// A way of running the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// llama.cpp as it is.
    Stock,
    /// The same with the read-ahead and advice that a sweep found best.
    StockBest,
    Fed(Strategies),
    /// Fed with all strategies, and recorded meanwhile.
    Recorded,
}

impl Mode {
    pub fn strategies(self) -> Strategies {
        match self {
            Mode::Stock | Mode::StockBest => Strategies::NONE,
            Mode::Fed(strategies) => strategies,
            Mode::Recorded => Strategies::ALL,
        }
    }

    pub fn is_stock(self) -> bool {
        matches!(self, Mode::Stock | Mode::StockBest)
    }

    /// Everything that can help a model of this kind.
    pub fn defaults(has_experts: bool) -> Vec<Mode> {
        let fed = |pin, stream, experts| {
            Mode::Fed(Strategies {
                pin,
                stream,
                experts,
            })
        };
        let mut modes = vec![
            Mode::Stock,
            Mode::StockBest,
            fed(true, false, false),
            fed(false, true, false),
        ];
        if has_experts {
            modes.push(fed(false, false, true));
            modes.push(fed(true, true, false));
        }
        modes.push(Mode::Fed(Strategies::ALL));
        modes
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Stock => f.pad("stock"),
            Mode::StockBest => f.pad("stock-best"),
            Mode::Fed(Strategies::ALL) => f.pad("all"),
            Mode::Recorded => f.pad("recorded"),
            Mode::Fed(strategies) => f.pad(&strategies.to_string().replace(',', "+")),
        }
    }
}

/// One mode, as a value of `--modes`.
pub fn mode(text: &str) -> Result<Mode, String> {
    let wrong = || {
        format!(
            "`{text}` is no mode: stock, stock-best, recorded, pin, stream, experts, all, or several \
             with +"
        )
    };
    match text.trim() {
        "stock" => Ok(Mode::Stock),
        "stock-best" => Ok(Mode::StockBest),
        "recorded" => Ok(Mode::Recorded),
        names => match names.replace('+', ",").parse() {
            Ok(Strategies::NONE) | Err(_) => Err(wrong()),
            Ok(strategies) => Ok(Mode::Fed(strategies)),
        },
    }
}

/// Memory that runs are given, as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Of the weights; what a run needs besides comes on top.
    Share(f64),
    /// For everything.
    Bytes(u64),
}

impl Budget {
    /// The limit of the memory cgroup, for weights of so many bytes and `other_bytes`
    /// besides.
    pub fn limit_bytes(self, weight_bytes: u64, other_bytes: u64) -> u64 {
        match self {
            Budget::Share(share) => (weight_bytes as f64 * share) as u64 + other_bytes,
            Budget::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Share(share) => write!(f, "{} %", (share * 1e5).round() / 1e3),
            Budget::Bytes(bytes) => write!(f, "{}", indicatif::HumanBytes(*bytes)),
        }
    }
}

/// One budget, as a value of `--memory`.
pub fn budget(text: &str) -> Result<Budget, String> {
    let text = text.trim();
    let Some(percent) = text.strip_suffix('%') else {
        return size(text).map(Budget::Bytes);
    };
    match percent.trim().parse::<f64>() {
        Ok(percent) if (0.1..=100.0).contains(&percent) => Ok(Budget::Share(percent / 100.0)),
        _ => Err(format!(
            "`{text}` is not a valid share of the weights: write 0.1% to 100%, or a size like 4G"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for has_experts in [false, true] {
            for known in Mode::defaults(has_experts) {
                assert_eq!(mode(&known.to_string()), Ok(known));
            }
        }
        let check = |text: &str, name: Option<&str>| {
            let found = mode(text).ok().map(|mode| mode.to_string());
            assert_eq!(found.as_deref(), name, "{text}");
        };
        check("pin+stream", Some("pin+stream"));
        check("stream+pin", Some("pin+stream"));
        check("pin+stream+experts", Some("all"));
        check("recorded", Some("recorded"));
        check("none", None);
        check("", None);
        check("turbo", None);
        check("pin+turbo", None);
    }

    #[test]
    fn budgets_are_shares_of_weights_or_sizes_of_everything() {
        let check = |text: &str, limit: Option<u64>| {
            let found = budget(text).ok().map(|b| b.limit_bytes(1000, 50));
            assert_eq!(found, limit, "{text}");
        };
        check("50%", Some(550));
        check("12.5 %", Some(175));
        check("100%", Some(1050));
        check("4K", Some(4096));
        check("5000%", None);
        check("0%", None);
        check("-5%", None);
        check("nan%", None);
        check("much", None);
    }

    #[test]
    fn budgets_are_named_as_people_say_them() {
        assert_eq!(Budget::Share(0.125).to_string(), "12.5 %");
        assert_eq!(Budget::Share(0.5).to_string(), "50 %");
        assert_eq!(Budget::Bytes(4 << 30).to_string(), "4.00 GiB");
    }
}
