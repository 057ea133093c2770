//! Which expert makes room for another.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::UnknownName;

/// Which expert makes room for another; the least recently used among equals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The one not used for longest.
    #[default]
    Lru,
    /// The one used least often since it came.
    Lfu,
    /// LFU-DA: the one with the least uses + age, where the age is the highest such sum of
    /// those that went, so that old uses count less and less.
    LfuAged,
}

impl Policy {
    pub const ALL: [Policy; 3] = [Policy::Lru, Policy::Lfu, Policy::LfuAged];

    pub fn name(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::Lfu => "lfu",
            Policy::LfuAged => "lfu_aged",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Policy, UnknownName> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownName::Policy(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_by_their_names() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
        }
        let error = "mru".parse::<Policy>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "policy \"mru\" is not known: lru, lfu or lfu_aged"
        );
    }
}
