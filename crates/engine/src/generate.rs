//! Prompt in, tokens out: several sequences at once, greedy or sampled.

use std::ops::ControlFlow;

use capture::BatchToken;
use llama_cpp_sys_2 as sys;
use trace::format::Phase;

use crate::{EngineError, context::Context, model::Model};

#[derive(Clone, Debug, PartialEq)]
pub enum Sampling {
    Greedy,
    Random {
        temperature: f32,
        top_k: i32,
        top_p: f32,
        seed: u32,
    },
}

/// Whether the model may end a text before the number of tokens asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfText {
    Stops,
    Ignored,
}

#[derive(Clone, Debug)]
pub struct GenerateProps {
    /// One token list per sequence.
    pub prompts: Vec<Vec<i32>>,
    /// Tokens to generate per sequence.
    pub tokens: usize,
    pub sampling: Sampling,
    pub end_of_text: EndOfText,
}

/// What happens while generating; answering `Break` ends it.
pub trait Observer {
    /// A batch is about to be computed.
    fn before(&mut self, phase: Phase, batch: &[BatchToken]) -> ControlFlow<()>;
    /// Computes it: the place to switch hooks on.
    fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        context.decode(batch, wants_logits)
    }
    /// A sequence got a new token.
    fn token(&mut self, sequence: usize, token: i32);
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    /// By sequence.
    pub tokens: Vec<Vec<i32>>,
    pub prompt_tokens: usize,
    /// Logits after the last token computed, by sequence.
    pub final_logits: Vec<Vec<f32>>,
    /// The observer ended it.
    pub interrupted: bool,
}

impl Generated {
    pub fn count(&self) -> usize {
        self.tokens.iter().map(Vec::len).sum()
    }
}

/// Checks that a prompt can be computed before anything long starts.
pub fn check_prompts(props: &GenerateProps, context: usize) -> Result<(), EngineError> {
    if props.prompts.is_empty() || props.prompts.iter().any(Vec::is_empty) {
        return Err(EngineError::EmptyPrompt);
    }
    // All sequences share one cache.
    let prompt: usize = props.prompts.iter().map(Vec::len).sum();
    let wanted = props.tokens * props.prompts.len();
    if prompt + wanted > context {
        return Err(EngineError::PromptTooLong {
            prompt,
            wanted,
            context,
        });
    }
    Ok(())
}

pub fn generate(
    model: &Model,
    context: &mut Context<'_>,
    props: &GenerateProps,
    observer: &mut impl Observer,
) -> Result<Generated, EngineError> {
    check_prompts(props, context.size())?;
    let sequences = props.prompts.len();
    let mut samplers: Vec<Sampler> = (0..sequences)
        .map(|sequence| Sampler::new(&props.sampling, sequence as u32))
        .collect();
    let mut result = Generated {
        tokens: vec![Vec::new(); sequences],
        prompt_tokens: props.prompts.iter().map(Vec::len).sum(),
        final_logits: vec![Vec::new(); sequences],
        interrupted: false,
    };
    let mut batch: Vec<BatchToken> = props
        .prompts
        .iter()
        .enumerate()
        .flat_map(|(sequence, tokens)| {
            tokens
                .iter()
                .enumerate()
                .map(move |(position, &token)| BatchToken {
                    token,
                    position: position as i32,
                    sequence: sequence as u32,
                })
        })
        .collect();
    let mut phase = Phase::Prompt;
    let mut next_position: Vec<i32> = props.prompts.iter().map(|p| p.len() as i32).collect();
    let mut open = vec![props.tokens > 0; sequences];
    loop {
        // Which sequence continues from which token of the batch: its last one.
        let last_of: Vec<Option<usize>> = (0..sequences)
            .map(|s| batch.iter().rposition(|t| t.sequence as usize == s))
            .collect();
        let mut next = Vec::with_capacity(sequences);
        let limit = context.props().batch.max(1);
        for (chunk_number, chunk) in batch.chunks(limit).enumerate() {
            let first = chunk_number * limit;
            if observer.before(phase, chunk).is_break() {
                result.interrupted = true;
                return Ok(result);
            }
            let wants_logits = |i: usize| last_of.contains(&Some(first + i));
            observer.decode(context, chunk, &wants_logits)?;
            for sequence in 0..sequences {
                let Some(index) = last_of[sequence].and_then(|at| at.checked_sub(first)) else {
                    continue;
                };
                if index >= chunk.len() {
                    continue;
                }
                if !open[sequence] {
                    result.final_logits[sequence] = context.logits(index).to_vec();
                    continue;
                }
                let token = samplers[sequence].sample(context, index);
                let ends =
                    props.end_of_text == EndOfText::Stops && model.is_end_of_generation(token);
                if ends || result.tokens[sequence].len() + 1 == props.tokens {
                    open[sequence] = false;
                    result.final_logits[sequence] = context.logits(index).to_vec();
                }
                if ends {
                    continue;
                }
                result.tokens[sequence].push(token);
                observer.token(sequence, token);
                if !open[sequence] {
                    continue;
                }
                next.push(BatchToken {
                    token,
                    position: next_position[sequence],
                    sequence: sequence as u32,
                });
                next_position[sequence] += 1;
            }
        }
        if next.is_empty() {
            return Ok(result);
        }
        batch = next;
        phase = Phase::Generate;
    }
}

/// A chain of llama.cpp's samplers.
struct Sampler(*mut sys::llama_sampler);

impl Sampler {
    /// Sequences draw from different streams of the same seed.
    fn new(sampling: &Sampling, sequence: u32) -> Sampler {
        // SAFETY: the chain takes ownership of the samplers added to it.
        unsafe {
            let chain = sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params());
            match *sampling {
                Sampling::Greedy => {
                    sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_greedy())
                }
                Sampling::Random {
                    temperature,
                    top_k,
                    top_p,
                    seed,
                } => {
                    sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_top_k(top_k));
                    sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_top_p(top_p, 1));
                    sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_temp(temperature));
                    let seed = seed.wrapping_add(sequence);
                    sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_dist(seed));
                }
            }
            Sampler(chain)
        }
    }

    fn sample(&mut self, context: &Context<'_>, index: usize) -> i32 {
        // SAFETY: a live chain and context; logits at `index` were asked for.
        unsafe { sys::llama_sampler_sample(self.0, context.raw(), index as i32) }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // SAFETY: made by `new`.
        unsafe { sys::llama_sampler_free(self.0) };
    }
}
