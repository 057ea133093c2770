//! Names of strategies, as people type them: `pin,stream,experts`, `all`, `none`.

use std::{fmt, str::FromStr};

use crate::{Strategies, UnknownName};

impl Strategies {
    pub const NONE: Strategies = Strategies {
        pin: false,
        stream: false,
        experts: false,
    };
    pub const ALL: Strategies = Strategies {
        pin: true,
        stream: true,
        experts: true,
    };
}

impl FromStr for Strategies {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Strategies, UnknownName> {
        let mut strategies = Strategies::NONE;
        for name in text.split(',') {
            match name.trim() {
                "pin" => strategies.pin = true,
                "stream" => strategies.stream = true,
                "experts" => strategies.experts = true,
                "all" => strategies = Strategies::ALL,
                "none" => {}
                other => {
                    return Err(UnknownName::Strategy(other.to_owned()));
                }
            }
        }
        Ok(strategies)
    }
}

impl fmt::Display for Strategies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.pin, "pin"),
            (self.stream, "stream"),
            (self.experts, "experts"),
        ];
        let names: Vec<&str> = names.iter().filter(|n| n.0).map(|n| n.1).collect();
        match names.as_slice() {
            [] => f.write_str("none"),
            names => f.write_str(&names.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_typed() {
        for text in [
            "none",
            "pin",
            "pin,stream",
            "stream,experts",
            "pin,stream,experts",
        ] {
            assert_eq!(text.parse::<Strategies>().unwrap().to_string(), text);
        }
        assert_eq!("all".parse::<Strategies>().unwrap(), Strategies::ALL);
        assert_eq!(
            "pin,all-of-it"
                .parse::<Strategies>()
                .unwrap_err()
                .to_string(),
            "`all-of-it` is not a strategy: pin, stream, experts, all or none"
        );
    }
}
