//! Tokens that are guessed and checked together are those that come one by one, to the bit.

use std::ops::ControlFlow;

use capture::BatchToken;
use engine::{
    EngineError,
    context::{Context, ContextProps, FlashAttention, Windows},
    draft::{Counts, Drafting, Source, model::DraftModel},
    generate::{
        EndOfText, GenerateProps, Generated, Observer, Sampling, generate, generate_drafted,
    },
    model::Model,
    one_by_one,
};
use gguf::{GgmlType, write::Split};
use synth::{PRESETS, Recipe};
use trace::format::Phase;

use crate::fixtures::{alone, greedy, load, prompt, shipped, tiny, write};

fn context_props(flash_attention: FlashAttention) -> ContextProps {
    ContextProps {
        threads: 2,
        context: 1024,
        micro_batch: 64,
        flash_attention,
        windows: Windows::Whole,
        ..ContextProps::default()
    }
}

fn batch(tokens: &[i32], position: usize) -> Vec<BatchToken> {
    (position..)
        .zip(tokens)
        .map(|(position, &token)| BatchToken {
            token,
            position: position as i32,
            sequence: 0,
        })
        .collect()
}

/// Bits of the logits behind each token after the first `prompt` ones, which come as `sizes` say.
fn logits(
    model: &Model,
    props: &ContextProps,
    tokens: &[i32],
    prompt: usize,
    sizes: &[usize],
    decode: impl Fn(&mut Context<'_>, &[BatchToken]) -> Result<(), EngineError>,
) -> Vec<Vec<u32>> {
    let mut context = Context::new(model, props.clone()).unwrap();
    let mut found = Vec::new();
    context
        .decode(&batch(&tokens[..prompt], 0), |_| false)
        .unwrap();
    let (mut at, mut sizes) = (prompt, sizes.iter().cycle());
    while at < tokens.len() {
        let size = (*sizes.next().unwrap()).min(tokens.len() - at);
        // No batch crosses a step of the cache (`generate::CACHE_STEP_TOKENS`).
        let size = size.min(256 - at % 256);
        decode(&mut context, &batch(&tokens[at..at + size], at)).unwrap();
        for index in 0..size {
            let logits = context.logits(index);
            found.push(logits.iter().map(|value| value.to_bits()).collect());
        }
        at += size;
    }
    found
}

/// Whether batches give other bits than single tokens: computed one by one, and as llama.cpp does.
fn differs(model: &Model, props: &ContextProps, prompt_tokens: usize) -> (bool, bool) {
    let tokens = prompt(model, prompt_tokens + 24);
    let plainly = |context: &mut Context<'_>, batch: &[BatchToken]| context.decode(batch, |_| true);
    let checked = |context: &mut Context<'_>, batch: &[BatchToken]| {
        one_by_one::with(|| context.decode(batch, |_| true))
    };
    let sizes = [2, 9, 1, 5, 17];
    let single = logits(model, props, &tokens, prompt_tokens, &[1], plainly);
    let one_by_one = logits(model, props, &tokens, prompt_tokens, &sizes, checked);
    let batched = logits(model, props, &tokens, prompt_tokens, &sizes, plainly);
    assert_eq!(single.len(), 24);
    (single != one_by_one, single != batched)
}

/// Says so where batches cannot be computed one by one.
fn is_possible_here() -> bool {
    if !one_by_one::IS_POSSIBLE {
        println!("skipped: on this processor batches are not computed one by one");
    }
    one_by_one::IS_POSSIBLE
}

#[test]
fn a_batch_computed_one_by_one_has_the_bits_of_its_tokens() {
    if !is_possible_here() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let types = [
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::BF16,
        GgmlType::Q8_0,
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q4_K,
        GgmlType::Q6_K,
    ];
    let mut is_needed = false;
    for ty in types {
        let recipe = Recipe {
            ggml_type: Some(ty),
            ..tiny("llama-3.2-1b")
        };
        let model = load(&write(&recipe, folder.path(), Split::Whole));
        for flash_attention in [FlashAttention::On, FlashAttention::Off] {
            // Below and above the length from which on attention is split among threads, and
            // across a step of the cache.
            for prompt_tokens in [245, 520] {
                let props = context_props(flash_attention);
                let (one_by_one, batched) = differs(&model, &props, prompt_tokens);
                assert!(!one_by_one, "{ty:?} {flash_attention:?} {prompt_tokens}");
                is_needed |= batched;
            }
        }
    }
    // Otherwise nothing was tested.
    assert!(is_needed);
}

#[test]
fn so_it_is_with_every_architecture() {
    if !is_possible_here() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for preset in PRESETS {
        let model = load(&write(&tiny(preset.name), folder.path(), Split::Whole));
        if !model.takes_back() {
            continue;
        }
        let (one_by_one, _) = differs(&model, &context_props(FlashAttention::Auto), 300);
        assert!(!one_by_one, "{}", preset.name);
    }
}

/// Computes, counts passes, and notes all logits.
#[derive(Default)]
struct Noting {
    passes: u64,
    bits: Vec<u32>,
}

impl Observer for Noting {
    fn before(&mut self, _: Phase, _: &[BatchToken]) -> ControlFlow<()> {
        self.passes += 1;
        ControlFlow::Continue(())
    }
    fn logits(&mut self, _: usize, logits: &[f32]) {
        self.bits.extend(logits.iter().map(|value| value.to_bits()));
    }
    fn token(&mut self, _: usize, _: i32) {}
}

fn drafted(model: &Model, what: &GenerateProps, source: Source<'_>) -> (Generated, Noting, Counts) {
    let mut context = Context::new(model, sequences(what)).unwrap();
    let mut drafting = Drafting::new(source, None, 16);
    let mut observer = Noting::default();
    let generated = generate_drafted(
        model,
        &mut context,
        what,
        Some(&mut drafting),
        &mut observer,
    )
    .unwrap();
    (generated, observer, drafting.counts)
}

fn undrafted(model: &Model, what: &GenerateProps) -> (Generated, Noting) {
    let mut context = Context::new(model, sequences(what)).unwrap();
    let mut observer = Noting::default();
    let generated = generate(model, &mut context, what, &mut observer).unwrap();
    (generated, observer)
}

fn sequences(what: &GenerateProps) -> ContextProps {
    ContextProps {
        sequences: what.sequences(),
        ..context_props(FlashAttention::Auto)
    }
}

fn said(model: &Model, text: &str) -> Vec<i32> {
    model.tokenize(text).unwrap()
}

const VERSE: &str = "ROMEO: But soft, what light through yonder window breaks? It is the east, and \
                     Juliet is the sun. ROMEO: But soft, what light";

#[test]
fn guessing_changes_no_token_and_no_bit() {
    if !is_possible_here() {
        return;
    }
    let _alone = alone();
    for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
        let model = load(&shipped(name));
        for sampling in [
            Sampling::Greedy,
            Sampling::Random {
                temperature: 0.8,
                top_k: 40,
                top_p: 0.95,
                seed: 5,
            },
        ] {
            let what = GenerateProps {
                sampling,
                ..greedy(vec![said(&model, VERSE)], 300)
            };
            let (expected, plainly) = undrafted(&model, &what);
            let (got, observer, counts) = drafted(&model, &what, Source::Lookup);
            assert_eq!(expected, got, "{name} {:?}", what.sampling);
            assert!(plainly.bits == observer.bits, "{name}: other logits");
            assert!(counts.accepted_tokens > 0, "{counts:?}");
            assert!(counts.drafted_tokens > counts.accepted_tokens, "{counts:?}");
            let tokens = counts.passes + counts.accepted_tokens;
            // The first token comes from the prompt.
            assert_eq!(tokens, 299, "{counts:?}");
            assert_eq!(observer.passes, counts.passes + 1);
        }
    }
}

#[test]
fn a_small_model_guesses_and_one_of_another_vocabulary_is_refused() {
    if !is_possible_here() {
        return;
    }
    let _alone = alone();
    let model = load(&shipped("shakespeare-moe.gguf"));
    let small = Model::load_into_memory(&shipped("shakespeare-dense.gguf")).unwrap();
    let what = greedy(vec![said(&model, VERSE)], 120);
    let (expected, plainly) = undrafted(&model, &what);
    let guesser = DraftModel::new(&small, &model, &context_props(FlashAttention::Auto)).unwrap();
    let (got, observer, counts) = drafted(&model, &what, Source::Model(Box::new(guesser)));
    assert_eq!(expected, got);
    assert!(plainly.bits == observer.bits, "other logits");
    assert!(counts.accepted_tokens > 0, "{counts:?}");

    let folder = tempfile::tempdir().unwrap();
    let other = load(&write(&tiny("llama-2-7b"), folder.path(), Split::Whole));
    let refused = DraftModel::new(&other, &model, &context_props(FlashAttention::Auto));
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("vocabulary"), "{error}");
}

#[test]
fn prompts_that_take_turns_are_as_if_they_were_alone() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-dense.gguf"));
    let texts = [
        "MACBETH: Is this a dagger",
        "O Romeo, Romeo",
        "To be, or not to be",
    ];
    let prompts: Vec<Vec<i32>> = texts.map(|text| said(&model, text)).into();
    let of = |prompts: &[Vec<i32>], parallel: usize| GenerateProps {
        parallel,
        end_of_text: EndOfText::Ignored,
        ..greedy(prompts.to_vec(), 20)
    };
    let (turns, _) = undrafted(&model, &of(&prompts, 1));
    for (number, prompt) in prompts.iter().enumerate() {
        let (single, _) = undrafted(&model, &of(std::slice::from_ref(prompt), 1));
        assert_eq!(turns.tokens[number], single.tokens[0]);
        assert!(turns.final_logits[number] == single.final_logits[0]);
    }
    // Two at a time: the third begins when one of them has ended, in a pass of both.
    let (pairs, observer) = undrafted(&model, &of(&prompts, 2));
    assert!(pairs.tokens.iter().all(|tokens| tokens.len() == 20));
    assert_eq!(observer.passes, 40);
    // Guesses for several at once.
    let (guessed, _, counts) = drafted(&model, &of(&prompts, 3), Source::Lookup);
    assert!(guessed.tokens.iter().all(|tokens| tokens.len() == 20));
    assert!(counts.passes < 20, "{counts:?}");
}
