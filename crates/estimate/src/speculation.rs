//! Speculative decoding: what drafted tokens give, and what they cost.
//!
//! Each drafted token is accepted with the same probability, independently: Leviathan, Kalman
//! and Matias, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192).
//! A pass that verifies `k` drafts evaluates `k + 1` tokens a sequence: weights are read once,
//! but of a mixture's experts those that all these tokens use together, which is what makes
//! drafts dear there.

use serde::Serialize;

use crate::checked;
use crate::error::{Error, Result};
use crate::machines::Machine;
use crate::roofline::{self, Efficiency, Pass, Types};
use crate::shape::Shape;

/// No draft is longer; a search ends here.
pub const MAX_DRAFT_TOKENS: u64 = 64;

/// Tokens that one pass is expected to give: `(1 - a^(k+1)) / (1 - a)`.
pub fn expected_tokens(acceptance: f64, draft_tokens: u64) -> Result<f64> {
    if !(0.0..=1.0).contains(&acceptance) {
        return Err(Error::Absurd {
            what: "the acceptance",
            value: acceptance.to_string(),
            wanted: "it must be from 0 to 1",
        });
    }
    let draft_tokens = checked::count_or_zero("the length of a draft", draft_tokens)?;
    let tokens = draft_tokens as f64 + 1.0;
    let missing = 1.0 - acceptance;
    // So near to one that the quotient would be noise.
    if missing < 1e-12 {
        return Ok(tokens);
    }
    Ok((1.0 - acceptance.powf(tokens)) / missing)
}

/// Operations for each token, over those without drafts, with a draft model that costs the
/// share `draft_operations` of the target: the paper's theorem 3.11.
pub fn operations_ratio(acceptance: f64, draft_tokens: u64, draft_operations: f64) -> Result<f64> {
    let draft = checked::not_negative("the draft's share of operations", draft_operations)?;
    let tokens = draft_tokens as f64;
    Ok((tokens * draft + tokens + 1.0) / expected_tokens(acceptance, draft_tokens)?)
}

/// Seconds that passes take, modelled or measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Costs {
    /// A pass of the target with one token a sequence.
    pub plain_seconds: f64,
    /// A pass of the target that verifies the drafts.
    pub verify_seconds: f64,
    /// A pass of the draft model with one token a sequence.
    pub draft_seconds: f64,
}

/// What drafts of one length give.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speculation {
    pub draft_tokens: u64,
    pub acceptance: f64,
    pub tokens_per_pass: f64,
    pub costs: Costs,
    /// A pass with all its drafts.
    pub pass_seconds: f64,
    pub seconds_per_token: f64,
    /// Over decoding without drafts; below 1 they slow it down.
    pub speed_up: f64,
    /// Bytes that verifying reads over those of a plain pass.
    pub bytes_ratio: Option<f64>,
}

/// From times that are known.
pub fn from_costs(acceptance: f64, draft_tokens: u64, costs: Costs) -> Result<Speculation> {
    checked::count("the length of a draft", draft_tokens)?;
    let tokens_per_pass = expected_tokens(acceptance, draft_tokens)?;
    checked::positive("the time of a plain pass", costs.plain_seconds)?;
    checked::positive("the time of a verifying pass", costs.verify_seconds)?;
    checked::not_negative("the time of a draft", costs.draft_seconds)?;
    let pass_seconds = costs.verify_seconds + costs.draft_seconds * draft_tokens as f64;
    let seconds_per_token = pass_seconds / tokens_per_pass;
    Ok(Speculation {
        draft_tokens,
        acceptance,
        tokens_per_pass,
        costs,
        pass_seconds,
        seconds_per_token,
        speed_up: costs.plain_seconds / seconds_per_token,
        bytes_ratio: None,
    })
}

/// Who drafts.
#[derive(Debug, Clone, Copy)]
pub enum Draft<'a> {
    /// A model of its own.
    Model(&'a Shape, Types),
    /// N-grams, a look-up: so many seconds a token.
    Seconds(f64),
}

/// A target, its draft, and where they run.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub target: &'a Shape,
    pub types: Types,
    pub draft: Draft<'a>,
    pub acceptance: f64,
    pub batch: u64,
    pub context_tokens: u64,
    pub machine: &'a Machine,
    pub efficiency: Efficiency,
}

impl Question<'_> {
    /// Drafts of one length, by the roofline.
    pub fn at(&self, draft_tokens: u64) -> Result<Speculation> {
        checked::count("the length of a draft", draft_tokens)?;
        let time = |shape: &Shape, types, pass| {
            roofline::time(shape, pass, types, self.machine, self.efficiency)
        };
        let plain = Pass::decode(self.batch, self.context_tokens);
        let verify = Pass::verify(
            self.batch,
            self.context_tokens,
            draft_tokens.saturating_add(1),
        );
        let plain_time = time(self.target, self.types, plain)?;
        let verify_time = time(self.target, self.types, verify)?;
        let draft_seconds = match self.draft {
            Draft::Model(shape, types) => time(shape, types, plain)?.seconds.likely,
            Draft::Seconds(seconds) => seconds,
        };
        let costs = Costs {
            plain_seconds: plain_time.seconds.likely,
            verify_seconds: verify_time.seconds.likely,
            draft_seconds,
        };
        let mut answer = from_costs(self.acceptance, draft_tokens, costs)?;
        answer.bytes_ratio = Some(verify_time.bytes / plain_time.bytes);
        Ok(answer)
    }

    /// Every length up to [`MAX_DRAFT_TOKENS`], and the best; `None` if all slow it down.
    pub fn best(&self) -> Result<(Option<Speculation>, Vec<Speculation>)> {
        let lengths = 1..=MAX_DRAFT_TOKENS;
        let all: Vec<Speculation> = lengths.map(|k| self.at(k)).collect::<Result<_>>()?;
        let best = all.iter().max_by(|a, b| a.speed_up.total_cmp(&b.speed_up));
        let best = best.filter(|best| best.speed_up > 1.0).cloned();
        Ok((best, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leviathan et al., table 1: operations and speed for a draft that costs nothing. Typed
    /// from memory of the paper; each cell follows from its theorems.
    #[test]
    fn the_papers_table_comes_out_to_its_last_digit() {
        let rounded = |value: f64| (value * 100.0).round() / 100.0;
        for (acceptance, draft_tokens, operations, speed) in [
            (0.6, 2, 1.53, 1.96),
            (0.7, 3, 1.58, 2.53),
            (0.8, 2, 1.23, 2.44),
            (0.8, 5, 1.63, 3.69),
            (0.9, 2, 1.11, 2.71),
            (0.9, 10, 1.60, 6.86),
        ] {
            let found = operations_ratio(acceptance, draft_tokens, 0.0).unwrap();
            assert_eq!(rounded(found), operations, "{acceptance} {draft_tokens}");
            let found = expected_tokens(acceptance, draft_tokens).unwrap();
            assert_eq!(rounded(found), speed, "{acceptance} {draft_tokens}");
        }
    }

    #[test]
    fn the_ends_are_what_they_must_be() {
        assert_eq!(expected_tokens(0.0, 7), Ok(1.0));
        assert_eq!(expected_tokens(1.0, 7), Ok(8.0));
        assert!(expected_tokens(f64::NAN, 7).is_err());
        assert!(expected_tokens(1.1, 7).is_err());
        let costs = Costs {
            plain_seconds: 1.0,
            verify_seconds: 1.0,
            draft_seconds: 0.1,
        };
        let answer = from_costs(0.8, 5, costs).unwrap();
        // The paper's theorem 3.8 with c = 0.1.
        assert!((answer.speed_up - 3.68928 / 1.5).abs() < 1e-9);
    }
}
