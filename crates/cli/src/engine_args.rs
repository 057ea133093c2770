//! Flags of every command that runs the built-in engine, under llama.cpp's names.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{anyhow, bail};
use engine::{
    context::{ContextProps, FlashAttention, MAX_THREADS},
    generate::{EndOfText, GenerateProps, Sampling},
    loading::Loading,
    model::{Model, Repack},
};
use gguf::GgmlType;
use launch::planning::check_cache;
use rundir::error::reason;

use crate::{prompts, truncated};

/// Tokens generated per sequence, when nobody says.
pub const DEFAULT_TOKENS: u32 = 32;
/// `LLAMA_MAX_SEQ`.
const MAX_SEQUENCES: i64 = 256;
/// Prompts of a file that are computed side by side, when nobody says.
const USUAL_PARALLEL: usize = 8;
/// Tokens of one graph, when nobody says.
const DEFAULT_MICRO_BATCH: u32 = 512;

/// Options that say nothing about a program that brings its own llama.cpp.
pub const OF_ENGINE: [&str; 16] = [
    "model",
    "prompt",
    "file",
    "threads",
    "context",
    "batch",
    "micro_batch",
    "key_type",
    "value_type",
    "flash_attention",
    "parallel",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "ignore_eos",
];

#[derive(clap::Args)]
pub struct EngineArgs {
    /// Model file; of a split set, any of its files
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,

    /// Prompt; give it several times for several sequences
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Vec<String>,

    /// Read the prompt from a file, or from standard input with `-`
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,

    /// Tokens to generate per sequence [default: 32]; of a PROGRAM: to record, prompts
    /// included [default: all]
    #[arg(short = 'n', long = "tokens", alias = "n-predict", value_name = "N", allow_negative_numbers = true,
          value_parser = token_count)]
    pub tokens: Option<u32>,

    /// Threads [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS))]
    pub threads: Option<u16>,

    /// Context size in tokens [default: what prompt and generation need]
    #[arg(short, long = "ctx-size", alias = "ctx", value_name = "N")]
    pub context: Option<u32>,

    /// Max tokens of one batch
    #[arg(short, long = "batch-size", alias = "batch", value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,

    /// Max tokens of one graph evaluation [default: 512; fed, no more than the prompt has]
    #[arg(long = "ubatch-size", alias = "ubatch", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub micro_batch: Option<u32>,

    /// Type of the K cache
    #[arg(long = "cache-type-k", value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub key_type: GgmlType,

    /// Type of the V cache (other than f16 and f32 it needs flash attention)
    #[arg(long = "cache-type-v", value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub value_type: GgmlType,

    /// Flash attention: one op instead of three for the attention of a layer
    #[arg(long = "flash-attn", value_name = "WHEN", default_value = "auto")]
    pub flash_attention: When,

    /// Sequences computed side by side in one batch; the prompts are repeated [default: 1; of a
    /// file of prompts up to 8]
    #[arg(long, alias = "np", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=MAX_SEQUENCES))]
    pub parallel: Option<u16>,

    /// Temperature; 0 takes the likeliest token
    #[arg(long = "temp", value_name = "T", default_value_t = 0.0, allow_negative_numbers = true,
          value_parser = temperature)]
    pub temperature: f32,

    /// Sample among the K likeliest tokens (with --temp)
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: i32,

    /// Sample among the likeliest tokens that make up this share (with --temp)
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true, value_parser = share)]
    pub top_p: f32,

    /// Seed of the sampling (with --temp)
    #[arg(short, long, value_name = "SEED", default_value_t = 1)]
    pub seed: u32,

    /// Go on when the model ends its text
    #[arg(long)]
    pub ignore_eos: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum When {
    Auto,
    On,
    Off,
}

/// Whether buffers compete with weights for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCounts {
    Yes,
    No,
}

/// What is generated from.
pub struct Prompts {
    pub texts: Vec<String>,
    /// How many of them are computed side by side.
    pub parallel: usize,
}

impl Prompts {
    /// Tokens that a pass has at most, and that the context holds at once: no token is shorter
    /// than a byte, but for those that begin and end a text.
    pub fn max_tokens(&self) -> usize {
        let mut lengths: Vec<usize> = self.texts.iter().map(|text| text.len() + 2).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.iter().take(self.parallel).sum()
    }
}

/// What a run needs, with the model loaded and everything checked.
pub struct Prepared {
    pub model: Model,
    pub texts: Vec<String>,
    pub context: ContextProps,
    pub generate: GenerateProps,
}

impl EngineArgs {
    /// Checked by clap, unless a program is given that brings its own.
    pub fn model(&self) -> &Path {
        self.model.as_deref().unwrap_or(Path::new(""))
    }

    /// Without a program to run, a model is needed.
    pub fn check_model(&self, command: &str) -> anyhow::Result<()> {
        if self.model.is_none() {
            bail!(
                "{command} needs a model (--model FILE, with a prompt) or a program (-- PROGRAM, \
                 at the end); `tensorscope {command} --help` has examples"
            );
        }
        Ok(())
    }

    /// The prompts, each a sequence of its own.
    pub fn prompts(&self) -> anyhow::Result<Prompts> {
        let texts = match &self.file {
            Some(path) => vec![read_prompt(path)?],
            None => self.prompt.clone(),
        };
        if texts.is_empty() || texts.iter().any(String::is_empty) {
            return Err(engine::EngineError::EmptyPrompt.into());
        }
        let parallel = self.parallel.map_or(1, usize::from).max(texts.len());
        if parallel > MAX_SEQUENCES as usize {
            bail!(
                "{parallel} prompts were given; llama.cpp computes at most {MAX_SEQUENCES} sequences side by side"
            );
        }
        let texts = (0..parallel).map(|i| texts[i % texts.len()].clone());
        Ok(Prompts {
            texts: texts.collect(),
            parallel,
        })
    }

    /// The prompts of a file, which take turns.
    pub fn prompts_of(&self, path: &Path) -> anyhow::Result<Prompts> {
        let texts = prompts::read(path)?;
        let parallel = self.parallel.map_or(USUAL_PARALLEL, usize::from);
        Ok(Prompts {
            parallel: parallel.min(texts.len()),
            texts,
        })
    }

    /// Tokens of one graph at most, of prompts of `prompt_tokens`. Buffers are made for as
    /// many, and of a large vocabulary they take the memory that weights could have: where
    /// that counts, no more are allowed than there are. What is computed is the same.
    pub fn micro_batch(&self, prompt_tokens: usize, counts: MemoryCounts) -> u32 {
        const STEP_TOKENS: u32 = 32;
        let most = match (self.micro_batch, counts) {
            (Some(wanted), _) => wanted,
            (None, MemoryCounts::No) => DEFAULT_MICRO_BATCH,
            (None, MemoryCounts::Yes) => {
                let needed = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
                let sequences = self.parallel.map_or(1, u32::from);
                let steps = needed.max(sequences).div_ceil(STEP_TOKENS);
                steps.saturating_mul(STEP_TOKENS).min(DEFAULT_MICRO_BATCH)
            }
        };
        most.min(self.batch)
    }

    /// Loads the model and checks the prompts against the context.
    pub fn prepare(
        &self,
        prompts: Prompts,
        repack: Repack,
        loading: Loading,
        counts: MemoryCounts,
    ) -> anyhow::Result<Prepared> {
        let Prompts { texts, parallel } = prompts;
        let model = Model::load_as(self.model(), repack, loading)?;
        // Unless the command has said what becomes of its run then.
        truncated::guard(&model.gguf, None);
        let prompts = texts
            .iter()
            .map(|text| model.tokenize(text))
            .collect::<Result<Vec<_>, _>>()?;
        let tokens = self.tokens.unwrap_or(DEFAULT_TOKENS) as usize;
        let generate = GenerateProps {
            prompts,
            parallel,
            tokens,
            sampling: if self.temperature > 0.0 {
                Sampling::Random {
                    temperature: self.temperature,
                    top_k: self.top_k,
                    top_p: self.top_p,
                    seed: self.seed,
                }
            } else {
                Sampling::Greedy
            },
            end_of_text: if self.ignore_eos {
                EndOfText::Ignored
            } else {
                EndOfText::Stops
            },
        };
        let needed = generate.max_tokens_at_once();
        let prompt_tokens = needed - tokens * generate.sequences();
        // Without a wish: what is needed, but not more than the model was made for.
        let trained = model.trained_context() * generate.sequences();
        let context = match self.context {
            Some(context) => context as usize,
            None => needed.next_multiple_of(256).min(trained.max(256)),
        };
        if needed > context && needed > trained {
            bail!(
                "prompt and generation need {needed} tokens, and the model was trained for \
                 {trained}; use a shorter prompt or fewer tokens"
            );
        }
        engine::generate::check_prompts(&generate, context)?;
        check_cache(&model.gguf, self.key_type, context)?;
        let defaults = ContextProps::default();
        let context = ContextProps {
            threads: self.threads.map_or(defaults.threads, usize::from),
            context,
            batch: self.batch as usize,
            micro_batch: self.micro_batch(prompt_tokens, counts) as usize,
            sequences: generate.sequences(),
            key_type: self.key_type,
            value_type: self.value_type,
            flash_attention: match self.flash_attention {
                When::Auto => FlashAttention::Auto,
                When::On => FlashAttention::On,
                When::Off => FlashAttention::Off,
            },
            windows: defaults.windows,
        };
        Ok(Prepared {
            model,
            texts,
            context,
            generate,
        })
    }
}

fn token_count(text: &str) -> Result<u32, String> {
    let wrong = |_| {
        format!(
            "`{text}` is not a number of tokens; give one from 0 to {}",
            u32::MAX
        )
    };
    text.parse().map_err(wrong)
}

pub fn read_prompt(path: &Path) -> anyhow::Result<String> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .map_err(|error| {
                anyhow!(
                    "cannot read the prompt from standard input: {}",
                    reason(&error)
                )
            })?;
        bytes
    } else {
        std::fs::read(path).map_err(|error| {
            anyhow!(
                "{}: cannot read the prompt: {}",
                path.display(),
                reason(&error)
            )
        })?
    };
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow!(
            "{}: byte {at}: the prompt is not UTF-8 text",
            path.display()
        )
    })?;
    // Editors of Windows put a mark before the text that is no part of it.
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

fn temperature(text: &str) -> Result<f32, String> {
    let wanted = || "a temperature is 0 or a positive number".to_owned();
    text.parse()
        .ok()
        .filter(|t: &f32| t.is_finite() && *t >= 0.0)
        .ok_or_else(wanted)
}

fn share(text: &str) -> Result<f32, String> {
    text.parse()
        .ok()
        .filter(|p| (0.0..=1.0).contains(p))
        .ok_or_else(|| "a share lies between 0 and 1".to_owned())
}

/// Types that llama.cpp takes for its caches.
pub fn cache_type(name: &str) -> Result<GgmlType, String> {
    const TYPES: [GgmlType; 9] = [
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::BF16,
        GgmlType::Q8_0,
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::IQ4_NL,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
    ];
    TYPES
        .into_iter()
        .find(|ty| ty.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| {
            let names: Vec<&str> = TYPES.iter().map(|ty| ty.name()).collect();
            format!("a cache can be of type {}", names.join(", "))
        })
}
