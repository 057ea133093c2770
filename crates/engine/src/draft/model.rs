//! Guessing with a small model of the same vocabulary, which is in memory.

use capture::BatchToken;

use crate::{
    EngineError,
    context::{Context, ContextProps, Windows},
    model::Model,
};

/// A guess that the small model itself thinks less likely than this ends a draft.
const MIN_PROBABILITY: f32 = 0.4;

pub struct DraftModel<'m> {
    context: Context<'m>,
    /// By sequence: the tokens that the context has computed.
    known: Vec<Vec<i32>>,
    /// Tokens that mean the same in both models.
    of_both: usize,
}

impl<'m> DraftModel<'m> {
    /// `props` are those of the large model's context.
    pub fn new(
        model: &'m Model,
        of: &Model,
        props: &ContextProps,
    ) -> Result<DraftModel<'m>, EngineError> {
        let of_both = check_vocabulary(of, model)?;
        if !model.takes_back() {
            return Err(EngineError::Draft {
                reason: "its memory cannot take back tokens".to_owned(),
            });
        }
        let props = ContextProps {
            batch: props.micro_batch,
            windows: Windows::Whole,
            ..props.clone()
        };
        Ok(DraftModel {
            known: vec![Vec::new(); props.sequences],
            of_both,
            context: Context::new(model, props)?,
        })
    }

    /// Whether it knows all tokens of a text: those at the end of a larger vocabulary it does not.
    pub fn knows(&self, tokens: &[i32]) -> bool {
        tokens.iter().all(|&token| (token as usize) < self.of_both)
    }

    /// Computes a text but for its last token, so that a guess takes no longer than its tokens;
    /// how many of them it lacked.
    pub fn catch_up(&mut self, sequence: u32, tokens: &[i32]) -> Result<usize, EngineError> {
        let known = &mut self.known[sequence as usize];
        let same = known.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The logits behind the last token are needed in any case.
        let all_but_last = tokens.len().saturating_sub(1);
        let same = same.min(all_but_last);
        self.context.forget(sequence, same);
        known.truncate(same);
        self.compute(sequence, &tokens[same..all_but_last])?;
        Ok(all_but_last - same)
    }

    /// What the small model would say after `tokens`: at most `max` tokens, each the likeliest.
    pub fn draft(
        &mut self,
        sequence: u32,
        tokens: &[i32],
        max: usize,
    ) -> Result<Vec<i32>, EngineError> {
        self.catch_up(sequence, tokens)?;
        let mut draft: Vec<i32> = Vec::new();
        let mut next = tokens.last().copied();
        while let Some(token) = next.filter(|_| draft.len() < max) {
            let last = self.compute(sequence, &[token])?;
            let (token, probability) = likeliest(self.context.logits(last));
            if probability < MIN_PROBABILITY || token as usize >= self.of_both {
                break;
            }
            draft.push(token);
            next = Some(token);
        }
        Ok(draft)
    }

    /// Computes what follows the tokens that are known; where the logits of the last one are.
    fn compute(&mut self, sequence: u32, tokens: &[i32]) -> Result<usize, EngineError> {
        let known = &mut self.known[sequence as usize];
        let batch: Vec<BatchToken> = (known.len()..)
            .zip(tokens)
            .map(|(position, &token)| BatchToken {
                token,
                position: position as i32,
                sequence,
            })
            .collect();
        let mut last = 0;
        for chunk in batch.chunks(self.context.props().batch.max(1)) {
            last = chunk.len() - 1;
            self.context.decode(chunk, |index| index == last)?;
        }
        known.extend(tokens);
        Ok(last)
    }
}

/// The likeliest token, and how likely it is.
fn likeliest(logits: &[f32]) -> (i32, f32) {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    let (token, &most) = best.expect("a vocabulary has tokens");
    let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
    (token as i32, sum.recip())
}

/// Vocabularies of one family are padded to different sizes; llama.cpp's own drafting allows as
/// many.
const MAX_PADDING_TOKENS: usize = 128;

/// Numbers of tokens must mean the same in both; how many do.
fn check_vocabulary(of: &Model, model: &Model) -> Result<usize, EngineError> {
    let sizes = (of.vocabulary_size(), model.vocabulary_size());
    if sizes.0.abs_diff(sizes.1) > MAX_PADDING_TOKENS {
        return Err(EngineError::Draft {
            reason: format!(
                "its vocabulary has {} tokens, and that of the model {}",
                sizes.1, sizes.0
            ),
        });
    }
    let of_both = sizes.0.min(sizes.1);
    let differs = (0..of_both as i32).find(|&t| of.token_text(t) != model.token_text(t));
    match differs {
        None => Ok(of_both),
        Some(token) => Err(EngineError::Draft {
            reason: format!("token {token} is another one in its vocabulary"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::likeliest;

    #[test]
    fn the_likeliest_token_has_its_share() {
        let (token, probability) = likeliest(&[0.0, 3f32.ln(), 0.0]);
        assert_eq!(token, 1);
        assert!((probability - 0.6).abs() < 1e-6, "{probability}");
    }
}
