//! Guessing with a small model of the same vocabulary, which is in memory.

use capture::BatchToken;

use crate::{
    EngineError,
    context::{Context, ContextProps},
    model::Model,
};

/// A guess that the small model itself thinks less likely than this ends a draft.
const MIN_PROBABILITY: f32 = 0.4;

pub struct DraftModel<'m> {
    context: Context<'m>,
    /// By sequence: the tokens that the context has computed.
    known: Vec<Vec<i32>>,
}

impl<'m> DraftModel<'m> {
    /// `props` are those of the large model's context.
    pub fn new(
        model: &'m Model,
        of: &Model,
        props: &ContextProps,
    ) -> Result<DraftModel<'m>, EngineError> {
        check_vocabulary(of, model)?;
        if !model.takes_back() {
            return Err(EngineError::Draft {
                reason: "its memory cannot take back tokens".to_owned(),
            });
        }
        let props = ContextProps {
            batch: props.micro_batch,
            ..props.clone()
        };
        Ok(DraftModel {
            known: vec![Vec::new(); props.sequences],
            context: Context::new(model, props)?,
        })
    }

    /// What the small model would say after `tokens`: at most `max` tokens, each the likeliest.
    pub fn draft(
        &mut self,
        sequence: u32,
        tokens: &[i32],
        max: usize,
    ) -> Result<Vec<i32>, EngineError> {
        let known = &mut self.known[sequence as usize];
        let same = known.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The logits behind the last token are needed in any case.
        let same = same.min(tokens.len().saturating_sub(1));
        self.context.forget(sequence, same);
        known.truncate(same);
        let mut draft: Vec<i32> = Vec::new();
        while draft.len() < max {
            let text = tokens.iter().chain(&draft);
            let batch: Vec<BatchToken> = (known.len()..)
                .zip(text.skip(known.len()))
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
            known.extend(batch.iter().map(|token| token.token));
            let (token, probability) = likeliest(self.context.logits(last));
            if probability < MIN_PROBABILITY {
                break;
            }
            draft.push(token);
        }
        Ok(draft)
    }
}

/// The likeliest token, and how likely it is.
fn likeliest(logits: &[f32]) -> (i32, f32) {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    let (token, &most) = best.expect("a vocabulary has tokens");
    let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
    (token as i32, sum.recip())
}

/// Numbers of tokens must mean the same in both.
fn check_vocabulary(of: &Model, model: &Model) -> Result<(), EngineError> {
    let sizes = (of.vocabulary_size(), model.vocabulary_size());
    if sizes.0 != sizes.1 {
        return Err(EngineError::Draft {
            reason: format!(
                "its vocabulary has {} tokens, and that of the model {}",
                sizes.1, sizes.0
            ),
        });
    }
    let differs = (0..sizes.0 as i32).find(|&t| of.token_text(t) != model.token_text(t));
    match differs {
        None => Ok(()),
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
