//! Drafting: tokens are guessed, and checked together in one pass over the weights.
//!
//! Where a pass waits for the disk, a second token in it costs next to nothing, and nothing but more
//! tokens a pass is faster than the disk. What comes out does not depend on it
//! ([`crate::generate::generate_drafted`]); how fast it comes does, so that
//! [`governor`] weighs each draft by what was measured so far, and drafts nothing where that does not pay.
//!
//! - [`lookup`]: what followed the last time that the text had these words;
//! - [`model`]: what a small model of the same vocabulary would say.

pub mod governor;
pub mod lookup;
pub mod model;

use std::time::{Duration, Instant};

use trace::format::Phase;

use self::{governor::Governor, lookup::Match, model::DraftModel};
use crate::{EngineError, generate::Waited};

/// Tokens of one draft, unless somebody says otherwise.
pub const MAX_TOKENS: usize = 16;

/// Guessed tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    pub tokens: Vec<i32>,
    /// How sure the guess is: one of [`governor::CLASSES`], the surest last.
    pub class: usize,
}

/// A pass over the weights, as it was.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub phase: Phase,
    /// Of all sequences, drafts included.
    pub tokens: usize,
    pub sequences: usize,
    pub time: Duration,
    pub waited: Waited,
}

/// Who guesses.
pub enum Source<'m> {
    Lookup,
    Model(Box<DraftModel<'m>>),
}

/// What became of drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passes that generated tokens.
    pub passes: u64,
    /// Of these, passes that checked a draft.
    pub drafted_passes: u64,
    pub drafted_tokens: u64,
    pub accepted_tokens: u64,
}

pub struct Drafting<'m> {
    source: Source<'m>,
    /// Without one every guess is checked, whatever that costs.
    governor: Option<Governor>,
    max_tokens: usize,
    /// By sequence: a guess that was not asked to be checked, and where it would have begun.
    set_aside: Vec<Option<(usize, Match)>>,
    /// Tokens of drafts in the pass that is being put together.
    in_pass: usize,
    pub counts: Counts,
}

impl<'m> Drafting<'m> {
    pub fn new(source: Source<'m>, governor: Option<Governor>, max_tokens: usize) -> Drafting<'m> {
        Drafting {
            source,
            governor,
            max_tokens,
            set_aside: Vec::new(),
            in_pass: 0,
            counts: Counts::default(),
        }
    }

    /// Guesses what follows `tokens`, the text of a sequence so far; at most `max` tokens, and
    /// none where that does not pay.
    pub(crate) fn draft(
        &mut self,
        sequence: usize,
        tokens: &[i32],
        max: usize,
    ) -> Result<Draft, EngineError> {
        let max = max.min(self.max_tokens);
        let draft = match &mut self.source {
            Source::Lookup => {
                if self.set_aside.len() <= sequence {
                    self.set_aside.resize(sequence + 1, None);
                }
                // A guess that nobody checked can be judged now for nothing.
                if let Some((at, guess)) = self.set_aside[sequence].take()
                    && let (Some(guess_token), Some(token)) = (guess.tokens.first(), tokens.get(at))
                {
                    let right = usize::from(guess_token == token);
                    if let Some(governor) = &mut self.governor {
                        governor.judged(guess.class(), 1, right);
                    }
                }
                let Some(found) = lookup::find(tokens, max) else {
                    return Ok(Draft::default());
                };
                let class = found.class();
                let worth = worth(&self.governor, class, found.tokens.len(), self.in_pass);
                if worth == 0 {
                    self.set_aside[sequence] = Some((tokens.len(), found));
                    return Ok(Draft::default());
                }
                let mut tokens = found.tokens;
                tokens.truncate(worth);
                Draft { tokens, class }
            }
            Source::Model(model) => {
                let class = governor::CLASSES - 1;
                let worth = worth(&self.governor, class, max, self.in_pass);
                if worth == 0 {
                    return Ok(Draft::default());
                }
                if !model.knows(tokens) {
                    return Ok(Draft::default());
                }
                let begin = Instant::now();
                let behind = model.catch_up(sequence as u32, tokens)?;
                // A prompt is computed once, and what came while the model rested; the last of
                // the tokens that it guessed belongs to each guess.
                let begin = match behind > 1 {
                    true => Instant::now(),
                    false => begin,
                };
                let tokens = model.draft(sequence as u32, tokens, worth)?;
                if let Some(governor) = &mut self.governor {
                    governor.guessed(tokens.len(), begin.elapsed());
                }
                Draft { tokens, class }
            }
        };
        self.in_pass += draft.tokens.len();
        Ok(draft)
    }

    /// Of a draft that was checked, `right` tokens were what came out.
    pub(crate) fn judged(&mut self, draft: &Draft, right: usize) {
        self.counts.drafted_tokens += draft.tokens.len() as u64;
        self.counts.accepted_tokens += right as u64;
        if let Some(governor) = &mut self.governor {
            governor.judged(draft.class, draft.tokens.len(), right);
        }
    }

    pub(crate) fn passed(&mut self, pass: Pass) {
        self.in_pass = 0;
        if pass.phase != Phase::Generate {
            return;
        }
        self.counts.passes += 1;
        self.counts.drafted_passes += u64::from(pass.tokens > pass.sequences);
        if let Some(governor) = &mut self.governor {
            governor.passed(&pass);
        }
    }
}

/// How many of the guessed tokens are to be checked.
fn worth(governor: &Option<Governor>, class: usize, available: usize, drafted: usize) -> usize {
    let governor = governor.as_ref();
    governor.map_or(available, |governor| {
        governor.worth(class, available, drafted)
    })
}
