//! Sums and products that refuse instead of wrapping, and demands on numbers that people type.

use crate::error::{Error, Result};

/// Larger than any count of a model or machine; what is above is a typing error.
pub(crate) const MAX_COUNT: u64 = 1 << 48;

pub(crate) fn product(what: &'static str, factors: &[u64]) -> Result<u64> {
    factors
        .iter()
        .try_fold(1u64, |all, &factor| all.checked_mul(factor))
        .ok_or(Error::TooLarge(what))
}

pub(crate) fn sum(what: &'static str, terms: impl IntoIterator<Item = u64>) -> Result<u64> {
    terms
        .into_iter()
        .try_fold(0u64, |all, term| all.checked_add(term))
        .ok_or(Error::TooLarge(what))
}

/// A whole number from one on.
pub(crate) fn count(what: &'static str, value: u64) -> Result<u64> {
    if (1..=MAX_COUNT).contains(&value) {
        Ok(value)
    } else {
        Err(Error::Absurd {
            what,
            value: value.to_string(),
            wanted: "it must be at least 1 and at most 2^48",
        })
    }
}

/// Zero or a count.
pub(crate) fn count_or_zero(what: &'static str, value: u64) -> Result<u64> {
    if value == 0 {
        Ok(0)
    } else {
        count(what, value)
    }
}

/// A number above zero that is no infinity.
pub(crate) fn positive(what: &'static str, value: f64) -> Result<f64> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(Error::Absurd {
            what,
            value: value.to_string(),
            wanted: "it must be a number above 0",
        })
    }
}

/// A number of zero or more that is no infinity.
pub(crate) fn not_negative(what: &'static str, value: f64) -> Result<f64> {
    if value == 0.0 {
        Ok(0.0)
    } else {
        positive(what, value)
    }
}

/// A share above zero, at most one.
pub(crate) fn share(what: &'static str, value: f64) -> Result<f64> {
    if value > 0.0 && value <= 1.0 {
        Ok(value)
    } else {
        Err(Error::Absurd {
            what,
            value: value.to_string(),
            wanted: "it must be above 0 and at most 1",
        })
    }
}

/// The nearest whole number of bytes, or an error where 64 bits are too few.
pub(crate) fn bytes(what: &'static str, value: f64) -> Result<u64> {
    const LIMIT: f64 = 18_446_744_073_709_551_615.0;
    if (0.0..LIMIT).contains(&value) {
        Ok(value.round() as u64)
    } else {
        Err(Error::TooLarge(what))
    }
}
