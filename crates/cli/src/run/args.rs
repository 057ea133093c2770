//! Arguments of `run`.

use std::path::PathBuf;

use feed::{Distribution, Faults, Method, ReadAhead};
use launch::budget::Memory;
use plan::{Policy, Strategies};

use super::Wish;
use crate::engine_args::{EngineArgs, OF_ENGINE};

/// Run a model larger than memory at the speed of the disk
///
/// Generates text with the built-in llama.cpp, unmodified, while its weights are fed:
/// what fits the budget is kept in memory, the rest is read ahead of the computation in
/// the order of its use, past the page cache; of a mixture's experts only the chosen
/// ones are read, and the likely ones kept. The output is bit for bit that of llama.cpp
/// alone. When the model fits, llama.cpp runs as it is.
///
/// With a program behind `--` the llama.cpp in that program is fed: llama-server,
/// llama-cli, Python, Node. Its llama.cpp must be of 2025 or later, and must map the model
/// (the default).
///
/// A read that fails is asked for again; one that stays bad ends the generation with a
/// message, never with wrong numbers.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope run -m big.gguf -p 'Once upon a time' --memory 4G
  tensorscope run -m big.gguf -f prompt.txt -n 200 --memory 50%
  tensorscope plan RUN --memory 4G -o my.plan && tensorscope run --plan my.plan -m big.gguf -p Hi
  tensorscope run -m moe.gguf -p Hi --memory 6G --strategy experts   # one strategy alone
  tensorscope run -m big.gguf --prompts questions.txt --parallel 8 --memory 4G
  tensorscope run -m big.gguf -f code.txt -n 400 --memory 25% --draft-model small.gguf
  tensorscope run -m big.gguf -p Hi --memory 4G --record my-run && tensorscope report my-run
  tensorscope run --memory 4G -- llama-server -m big.gguf --port 8080
  tensorscope run --memory 4G -- python3 chat.py")]
pub struct Args {
    #[command(flatten)]
    pub engine: EngineArgs,

    /// A file of prompts, one a line (or JSON lines, if its name ends in .jsonl): --parallel of them
    /// are computed in one pass, so that one read of the weights serves all
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "file", "program", "routing"])]
    pub prompts: Option<PathBuf>,

    /// Guess tokens and check several in one pass over the weights. The text stays what it is
    /// without (of a model that fits, what it is with --strategy none: repacked weights round
    /// otherwise); where guessing does not pay it stops
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        conflicts_with = "program"
    )]
    pub draft: Draft,

    /// Guess with this model instead: a small one of the same vocabulary, which is kept in memory
    #[arg(long, value_name = "FILE", conflicts_with_all = ["program", "draft"])]
    pub draft_model: Option<PathBuf>,

    /// Max tokens of one guess
    #[arg(long, value_name = "N", default_value_t = engine::draft::MAX_TOKENS as u16, conflicts_with = "program",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub draft_max: u16,

    /// Memory for the whole program: 4G, 1500M, or 50% of the model [default: what is free]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Memory>,

    /// Do what a plan says (see `tensorscope plan`)
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,

    /// What to do, alone or combined: pin, stream, experts; or all, or none (llama.cpp as
    /// it is)
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub strategy: Strategies,

    /// Which expert makes room for another: lru, lfu, lfu_aged [default: the plan's, or lru]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<Policy>,

    /// Do not make a memory cgroup of the budget's size
    #[arg(long)]
    pub no_limit: bool,

    /// Feed also a model that fits
    #[arg(long)]
    pub always: bool,

    /// Record every tensor access meanwhile, into this run directory: for each weight access
    /// where it came from, and how long it was waited for
    #[arg(long, value_name = "DIR", conflicts_with_all = ["routing", "madvise"])]
    pub record: Option<PathBuf>,

    /// Drop the model's cached pages first
    #[arg(long)]
    pub cold: bool,

    /// How to read: uring, pread (threads, past the page cache), cached (threads, through it)
    /// [default: the best that works]
    #[arg(long, value_name = "HOW")]
    pub read_with: Option<Method>,

    /// Draw experts instead of asking the router, for models of random weights: uniform,
    /// zipf:EXPONENT, sticky:SHARE, foretold:SHARE (uniform, and reading ahead is told each expert,
    /// rightly with this probability)
    #[arg(long, value_name = "DISTRIBUTION", conflicts_with = "program")]
    pub routing: Option<Distribution>,

    /// What to read before it is known to be needed: nothing, or experts that a router is likely to
    /// choose
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "nothing",
        conflicts_with = "program"
    )]
    pub read_ahead: ReadAhead,

    /// Write which experts were chosen, as CSV
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    pub routing_file: Option<PathBuf>,

    /// Make reads fail, fall short or take time, to try what a bad disk does:
    /// fail=0.001,short=0.001,slow=0.001:50ms
    #[arg(long, value_name = "FAULTS")]
    pub inject: Option<Faults>,

    /// What to tell the kernel about the mapped file (for comparisons)
    #[arg(long, value_name = "ADVICE", conflicts_with = "program")]
    pub madvise: Option<Advice>,

    /// Print the figures as JSON instead of the text
    #[arg(long, conflicts_with = "program")]
    pub json: bool,

    /// Only the text
    #[arg(short, long)]
    pub quiet: bool,

    /// Program to run, with its arguments
    #[arg(last = true, value_name = "PROGRAM", conflicts_with = "tokens",
          conflicts_with_all = OF_ENGINE)]
    pub program: Vec<std::ffi::OsString>,
}

/// Who guesses tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Draft {
    /// As ngram, where weights are waited for and one text is generated
    Auto,
    /// What followed the last time that the text had these words
    Ngram,
    /// Nobody
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Advice {
    Normal,
    Random,
    Sequential,
}

impl Advice {
    pub fn number(self) -> i32 {
        match self {
            Advice::Normal => 0,
            Advice::Random => 1,
            Advice::Sequential => 2,
        }
    }
}

impl Args {
    pub fn wish(&self) -> Wish {
        Wish {
            strategies: self.strategy,
            policy: self.policy,
            method: self.read_with,
            faults: self.inject.clone(),
            always: self.always,
            routing: self.routing,
            keeps_routing: self.routing_file.is_some(),
            read_ahead: self.read_ahead,
        }
    }
}
