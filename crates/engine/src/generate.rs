//! Prompt in, tokens out: several sequences at once, greedy or sampled, drafted or not.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use capture::BatchToken;
use llama_cpp_sys_2 as sys;
use trace::format::Phase;

use crate::{
    EngineError,
    context::Context,
    draft::{Draft, Drafting, Pass},
    model::Model,
    one_by_one,
};

/// Cells by which the part of the cache grows that llama.cpp looks at (`llama_kv_cache::get_n_kv`).
const CACHE_STEP_TOKENS: usize = 256;

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
    /// One token list per text that is wanted.
    pub prompts: Vec<Vec<i32>>,
    /// Texts that are computed side by side, each a sequence of the context; the others wait.
    pub parallel: usize,
    /// Tokens to generate per text.
    pub tokens: usize,
    pub sampling: Sampling,
    pub end_of_text: EndOfText,
}

impl GenerateProps {
    /// Sequences that the context must have.
    pub fn sequences(&self) -> usize {
        self.parallel.clamp(1, self.prompts.len().max(1))
    }

    /// Tokens that the context must hold, whoever runs beside whom: all sequences share one
    /// cache.
    pub fn max_tokens_at_once(&self) -> usize {
        let mut lengths: Vec<usize> = self.prompts.iter().map(Vec::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let longest = lengths.iter().take(self.sequences());
        longest.map(|length| length + self.tokens).sum()
    }
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
    /// From these logits a text gets its next token, if it may have one.
    fn logits(&mut self, _text: usize, _logits: &[f32]) {}
    /// A text got a new token.
    fn token(&mut self, text: usize, token: i32);
    /// How long computations have waited for weights so far.
    fn waited(&self) -> Waited {
        Waited::default()
    }
    /// Tokens of the next pass were guessed, which took so long.
    fn guessed(&mut self, _took: Duration) {}
    /// Passes of more tokens than this read far more than theirs: no guess is worth that.
    fn max_pass_tokens(&self) -> usize {
        usize::MAX
    }
}

/// Time that was not spent on computing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// For weights that every pass reads.
    pub streamed: Duration,
    /// For the experts that a router had chosen.
    pub experts: Duration,
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    /// By text.
    pub tokens: Vec<Vec<i32>>,
    pub prompt_tokens: usize,
    /// Logits after the last token computed, by text.
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
    let needed = props.max_tokens_at_once();
    if needed > context {
        let wanted = props.tokens * props.sequences();
        return Err(EngineError::PromptTooLong {
            prompt: needed - wanted,
            wanted,
            context,
        });
    }
    Ok(())
}

/// Generates one token of each sequence a pass.
pub fn generate(
    model: &Model,
    context: &mut Context<'_>,
    props: &GenerateProps,
    observer: &mut impl Observer,
) -> Result<Generated, EngineError> {
    generate_drafted(model, context, props, None, observer)
}

/// The same, and tokens that `drafting` guesses are checked in the same pass. The context has
/// [`crate::context::Windows::Whole`] then. With one sequence
/// the tokens, and the bits of the logits that they come from, are those of [`generate`]: a token is always drawn from
/// logits that the tokens before it gave, and a guess only says which of these can be
/// computed already.
pub fn generate_drafted(
    model: &Model,
    context: &mut Context<'_>,
    props: &GenerateProps,
    drafting: Option<&mut Drafting<'_>>,
    observer: &mut impl Observer,
) -> Result<Generated, EngineError> {
    check_prompts(props, context.size())?;
    let texts = props.prompts.len();
    let mut generation = Generation {
        model,
        props,
        slots: Vec::new(),
        next_text: 0,
        drafting,
        result: Generated {
            tokens: vec![Vec::new(); texts],
            prompt_tokens: props.prompts.iter().map(Vec::len).sum(),
            final_logits: vec![Vec::new(); texts],
            interrupted: false,
        },
    };
    generation
        .slots
        .resize_with(props.sequences(), || None::<Slot>);
    while generation.fill_slots(context) {
        generation.draft(context, observer)?;
        if generation.pass(context, observer)?.is_break() {
            generation.result.interrupted = true;
            break;
        }
    }
    Ok(generation.result)
}

/// A generation that is going on.
struct Generation<'a, 'd> {
    model: &'a Model,
    props: &'a GenerateProps,
    /// By sequence of the context.
    slots: Vec<Option<Slot>>,
    /// The next prompt that has had no sequence yet.
    next_text: usize,
    drafting: Option<&'a mut Drafting<'d>>,
    result: Generated,
}

/// A text that is being generated.
struct Slot {
    text: usize,
    /// Prompt and what was generated.
    tokens: Vec<i32>,
    /// Of these, how many the context has computed.
    computed: usize,
    draft: Draft,
    sampler: Sampler,
    is_open: bool,
}

impl Slot {
    fn is_prompt(&self) -> bool {
        self.computed == 0
    }
}

impl Generation<'_, '_> {
    /// Gives free sequences to the prompts that wait. Whether there is anything to compute.
    fn fill_slots(&mut self, context: &mut Context<'_>) -> bool {
        for (sequence, slot) in self.slots.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|slot| slot.is_open)
                || self.next_text >= self.props.prompts.len()
            {
                continue;
            }
            if slot.is_some() {
                context.forget(sequence as u32, 0);
            }
            let text = self.next_text;
            self.next_text += 1;
            *slot = Some(Slot {
                text,
                tokens: self.props.prompts[text].clone(),
                computed: 0,
                draft: Draft::default(),
                sampler: Sampler::new(&self.props.sampling, text as u32),
                is_open: true,
            });
        }
        self.slots.iter().flatten().any(|slot| slot.is_open)
    }

    /// Asks for guesses, where all sequences generate.
    fn draft(
        &mut self,
        context: &Context<'_>,
        observer: &mut impl Observer,
    ) -> Result<(), EngineError> {
        let Some(drafting) = &mut self.drafting else {
            return Ok(());
        };
        let mut open = self.slots.iter().flatten().filter(|slot| slot.is_open);
        if open.any(Slot::is_prompt) {
            return Ok(());
        }
        let sequences = self.slots.iter().flatten().filter(|slot| slot.is_open);
        // A second graph would read the weights a second time.
        let room = context.props().micro_batch.min(context.props().batch);
        let room = room.min(observer.max_pass_tokens());
        let begin = Instant::now();
        let mut room = room.saturating_sub(sequences.count());
        for (sequence, slot) in self.slots.iter_mut().enumerate() {
            let Some(slot) = slot.as_mut().filter(|slot| slot.is_open) else {
                continue;
            };
            let left = self.props.tokens - self.result.tokens[slot.text].len();
            // llama.cpp computes attention over whole steps of its cache; a token whose
            // pass would have had one step less would be summed up in other parts.
            let to_step = CACHE_STEP_TOKENS - 1 - slot.computed % CACHE_STEP_TOKENS;
            let max = room.min(left.saturating_sub(1)).min(to_step);
            slot.draft = drafting.draft(sequence, &slot.tokens, max)?;
            room -= slot.draft.tokens.len();
        }
        observer.guessed(begin.elapsed());
        Ok(())
    }

    /// Computes what is new of every sequence, and draws the tokens that follow.
    fn pass(
        &mut self,
        context: &mut Context<'_>,
        observer: &mut impl Observer,
    ) -> Result<ControlFlow<()>, EngineError> {
        let mut batch: Vec<BatchToken> = Vec::new();
        // Of each sequence: where in the batch the last token of its text is.
        let mut last_of: Vec<Option<usize>> = vec![None; self.slots.len()];
        let mut wanted: Vec<bool> = Vec::new();
        let mut phase = Phase::Generate;
        for (sequence, slot) in self.slots.iter().enumerate() {
            let Some(slot) = slot.as_ref().filter(|slot| slot.is_open) else {
                continue;
            };
            if slot.is_prompt() {
                phase = Phase::Prompt;
            }
            let tokens = slot.tokens[slot.computed..].iter();
            for (position, &token) in (slot.computed..).zip(tokens.chain(&slot.draft.tokens)) {
                batch.push(BatchToken {
                    token,
                    position: position as i32,
                    sequence: sequence as u32,
                });
                wanted.push(position + 1 >= slot.tokens.len());
            }
            last_of[sequence] = Some(batch.len() - 1 - slot.draft.tokens.len());
        }
        let is_drafted = self
            .slots
            .iter()
            .flatten()
            .any(|s| !s.draft.tokens.is_empty());
        let is_alone = self.slots.len() == 1;
        let limit = context.props().batch.max(1);
        let (begin, waited) = (Instant::now(), observer.waited());
        for (number, chunk) in batch.chunks(limit).enumerate() {
            let first = number * limit;
            if observer.before(phase, chunk).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let wants_logits = |i: usize| wanted[first + i];
            match is_drafted && is_alone {
                true => one_by_one::with(|| observer.decode(context, chunk, &wants_logits))?,
                false => observer.decode(context, chunk, &wants_logits)?,
            }
            for (sequence, last) in last_of.iter().enumerate() {
                let index = last.and_then(|last| last.checked_sub(first));
                if let Some(index) = index.filter(|&index| index < chunk.len()) {
                    self.draw(context, sequence, index, observer)?;
                }
            }
        }
        if let Some(drafting) = &mut self.drafting {
            let after = observer.waited();
            drafting.passed(Pass {
                phase,
                tokens: batch.len(),
                sequences: last_of.iter().flatten().count(),
                time: begin.elapsed(),
                waited: Waited {
                    streamed: after.streamed.saturating_sub(waited.streamed),
                    experts: after.experts.saturating_sub(waited.experts),
                },
            });
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Draws the tokens of a sequence whose last token is at `index` of the batch: one, and one
    /// more for each guess that was right.
    fn draw(
        &mut self,
        context: &mut Context<'_>,
        sequence: usize,
        index: usize,
        observer: &mut impl Observer,
    ) -> Result<(), EngineError> {
        let slot = self.slots[sequence].as_mut().expect("it is in the batch");
        let draft = std::mem::take(&mut slot.draft);
        slot.computed = slot.tokens.len();
        let tokens = &mut self.result.tokens[slot.text];
        let mut right = 0;
        loop {
            let logits = context.logits(index + right);
            observer.logits(slot.text, logits);
            if tokens.len() >= self.props.tokens {
                // Nothing was asked for but the prompt's logits.
                slot.is_open = false;
                self.result.final_logits[slot.text] = logits.to_vec();
                break;
            }
            let token = slot.sampler.sample(context, index + right);
            let ends = self.props.end_of_text == EndOfText::Stops
                && self.model.is_end_of_generation(token);
            if ends || tokens.len() + 1 == self.props.tokens {
                slot.is_open = false;
                self.result.final_logits[slot.text] = context.logits(index + right).to_vec();
            }
            if ends {
                break;
            }
            tokens.push(token);
            slot.tokens.push(token);
            observer.token(slot.text, token);
            if !slot.is_open || draft.tokens.get(right) != Some(&token) {
                break;
            }
            right += 1;
            slot.computed += 1;
        }
        if !draft.tokens.is_empty() {
            if let Some(drafting) = &mut self.drafting {
                drafting.judged(&draft, right);
            }
            if slot.is_open && !context.forget(sequence as u32, slot.computed) {
                return Err(EngineError::CannotTakeBack);
            }
        }
        Ok(())
    }
}

/// A chain of llama.cpp's samplers.
struct Sampler(*mut sys::llama_sampler);

impl Sampler {
    /// Texts draw from different streams of the same seed.
    fn new(sampling: &Sampling, text: u32) -> Sampler {
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
                    let seed = seed.wrapping_add(text);
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
