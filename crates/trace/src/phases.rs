//! Whether a token was part of a prompt, was generated, or was drafted.
//!
//! A batch says nothing about that, and its size says little: a server evaluates the next
//! tokens of several sequences side by side, the rest of one prompt beside them, or a token
//! with guesses of what follows it. But a token is generated only from a result that was
//! asked for. So, in its sequence:
//!
//! - a token is **generated** if it is the first of its sequence in the batch, the result of
//!   the position before it was asked for by an earlier batch, and its own is asked for;
//! - it is **drafted** if it follows a generated or drafted one in the same batch and its
//!   own result is asked for, too: that is how a guess is checked;
//! - anything else is **prompt**.
//!
//! What this gets wrong: a prompt whose rest is one token that continues an answer looks like
//! a generated token.

use std::collections::{BTreeSet, HashMap};

use crate::{
    format::Phase,
    read::Evaluation,
    template::{CaptureKind, Template},
};

/// Of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenPhase {
    /// The log does not say enough (a program that we only watch).
    Unknown,
    Prompt,
    Generate,
    /// Guessed, and evaluated beside the token that it was guessed from.
    Draft,
}

impl TokenPhase {
    pub fn name(self) -> &'static str {
        match self {
            TokenPhase::Unknown => "unknown",
            TokenPhase::Prompt => "prompt",
            TokenPhase::Generate => "generate",
            TokenPhase::Draft => "draft",
        }
    }
}

impl From<Phase> for TokenPhase {
    fn from(phase: Phase) -> TokenPhase {
        match phase {
            Phase::Unknown => TokenPhase::Unknown,
            Phase::Prompt => TokenPhase::Prompt,
            Phase::Generate => TokenPhase::Generate,
        }
    }
}

/// What was asked for so far, in the sequences of each context.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    /// Positions whose results were asked for.
    results: HashMap<(u64, u32), BTreeSet<i64>>,
}

impl Phases {
    /// Fills in the phases of an evaluation's tokens, and its own by them: a batch with any
    /// part of a prompt in it is of the prompt. Without positions, sequences and results
    /// what was recorded with the evaluation stands for all its tokens.
    pub fn fill_in(&mut self, template: &Template, evaluation: &mut Evaluation) {
        let tokens = evaluation.first_of(template, CaptureKind::Tokens).len();
        let Some(phases) = self.of(template, evaluation, tokens) else {
            evaluation.token_phases = vec![evaluation.phase.into(); tokens];
            return;
        };
        evaluation.phase = match phases.contains(&TokenPhase::Prompt) {
            true => Phase::Prompt,
            false => Phase::Generate,
        };
        evaluation.token_phases = phases;
    }

    fn of(
        &mut self,
        template: &Template,
        evaluation: &Evaluation,
        tokens: usize,
    ) -> Option<Vec<TokenPhase>> {
        let asks = template
            .captures
            .iter()
            .position(|c| c.kind == CaptureKind::OutputRows)?;
        // Some models have several positions for each token: the first ones are those.
        let positions = evaluation.first_of(template, CaptureKind::Positions);
        let positions = positions.get(..tokens)?;
        let sequences = evaluation.sequences.get(..tokens)?;
        if tokens == 0 {
            return None;
        }
        let mut is_asked = vec![false; tokens];
        for &row in evaluation.captures.get(asks)? {
            let row = usize::try_from(row).ok()?;
            *is_asked.get_mut(row)? = true;
        }
        // Of each sequence, the token of this batch before.
        let mut before: HashMap<u32, (i64, TokenPhase)> = HashMap::new();
        let mut phases = Vec::with_capacity(tokens);
        for ((&position, &sequence), &is_asked) in positions.iter().zip(sequences).zip(&is_asked) {
            let results = self
                .results
                .entry((evaluation.context, sequence))
                .or_default();
            let phase = match before.get(&sequence) {
                _ if !is_asked => TokenPhase::Prompt,
                None if results.contains(&position.wrapping_sub(1)) => TokenPhase::Generate,
                Some((last, TokenPhase::Generate | TokenPhase::Draft))
                    if position.wrapping_sub(1) == *last =>
                {
                    TokenPhase::Draft
                }
                _ => TokenPhase::Prompt,
            };
            // What came behind was guessed wrong, or belongs to an answer before.
            drop(results.split_off(&position));
            if is_asked {
                results.insert(position);
            }
            before.insert(sequence, (position, phase));
            phases.push(phase);
        }
        Some(phases)
    }
}

#[cfg(test)]
mod tests {
    use super::{TokenPhase::*, *};
    use crate::template::{CaptureDef, CaptureTime};

    /// A batch: sequence and position of each token, and whose results are asked for.
    fn batch(
        phases: &mut Phases,
        tokens: &[(u32, i64)],
        asked: &[i64],
    ) -> (Phase, Vec<TokenPhase>) {
        let capture = |kind| CaptureDef {
            kind,
            time: CaptureTime::Begin,
            count: [tokens.len() as u64, 1, 1],
            width_bytes: 4,
            layer: None,
            pair: None,
        };
        let kinds = [
            CaptureKind::Tokens,
            CaptureKind::Positions,
            CaptureKind::OutputRows,
        ];
        let template = Template {
            captures: kinds.map(capture).into(),
            ..Template::default()
        };
        let mut evaluation = Evaluation {
            captures: vec![
                vec![7; tokens.len()],
                tokens.iter().map(|t| t.1).collect(),
                asked.to_vec(),
            ],
            sequences: tokens.iter().map(|t| t.0).collect(),
            ..Evaluation::default()
        };
        phases.fill_in(&template, &mut evaluation);
        (evaluation.phase, evaluation.token_phases)
    }

    #[test]
    fn a_prompt_in_chunks_and_then_an_answer() {
        let phases = &mut Phases::default();
        let first = batch(phases, &[(0, 0), (0, 1)], &[]);
        assert_eq!(first, (Phase::Prompt, vec![Prompt, Prompt]));
        let second = batch(phases, &[(0, 2), (0, 3)], &[1]);
        assert_eq!(second, (Phase::Prompt, vec![Prompt, Prompt]));
        for position in 4..6 {
            let next = batch(phases, &[(0, position)], &[0]);
            assert_eq!(next, (Phase::Generate, vec![Generate]));
        }
        // The same question again: only its last token is evaluated anew.
        assert_eq!(batch(phases, &[(0, 3)], &[0]).1, [Prompt]);
        assert_eq!(batch(phases, &[(0, 4)], &[0]).1, [Generate]);
    }

    #[test]
    fn a_server_evaluates_answers_and_a_prompt_side_by_side() {
        let phases = &mut Phases::default();
        for sequence in 0..3 {
            batch(phases, &[(sequence, 0), (sequence, 1)], &[1]);
        }
        let answers = batch(phases, &[(0, 2), (1, 2), (2, 2)], &[0, 1, 2]);
        assert_eq!(answers, (Phase::Generate, vec![Generate; 3]));
        let mixed = batch(phases, &[(0, 3), (3, 0), (3, 1), (1, 3)], &[0, 2, 3]);
        assert_eq!(
            mixed,
            (Phase::Prompt, vec![Generate, Prompt, Prompt, Generate])
        );
    }

    #[test]
    fn guesses_are_drafted_and_wrong_ones_are_forgotten() {
        let phases = &mut Phases::default();
        batch(phases, &[(0, 0), (0, 1)], &[1]);
        let drafted = batch(phases, &[(0, 2), (0, 3), (0, 4)], &[0, 1, 2]);
        assert_eq!(drafted, (Phase::Generate, vec![Generate, Draft, Draft]));
        // Only the first guess was right: its successor takes the place of the second.
        assert_eq!(batch(phases, &[(0, 4)], &[0]).1, [Generate]);
    }

    #[test]
    fn a_prompt_whose_every_result_is_asked_for_stays_one() {
        let phases = &mut Phases::default();
        let all = batch(phases, &[(0, 0), (0, 1), (0, 2)], &[0, 1, 2]);
        assert_eq!(all, (Phase::Prompt, vec![Prompt; 3]));
    }

    #[test]
    fn without_results_what_was_recorded_stands() {
        let mut evaluation = Evaluation {
            phase: Phase::Generate,
            captures: vec![vec![7, 8]],
            ..Evaluation::default()
        };
        let template = Template {
            captures: vec![CaptureDef {
                kind: CaptureKind::Tokens,
                time: CaptureTime::Begin,
                count: [2, 1, 1],
                width_bytes: 4,
                layer: None,
                pair: None,
            }],
            ..Template::default()
        };
        Phases::default().fill_in(&template, &mut evaluation);
        assert_eq!(evaluation.token_phases, [Generate, Generate]);
    }
}
