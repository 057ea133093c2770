//! Arguments of `run`.

use std::path::PathBuf;

use anyhow::bail;
use feed::{Distribution, Faults, Method};
use plan::{Policy, Strategies};
use terminal::text::size;

use crate::engine_args::{EngineArgs, OF_ENGINE};

pub const NONE: Strategies = Strategies {
    pin: false,
    stream: false,
    experts: false,
};
pub const ALL: Strategies = Strategies {
    pin: true,
    stream: true,
    experts: true,
};

/// Run a model larger than memory at the speed of the disk
///
/// Generates text with the built-in llama.cpp, unmodified, while its weights are fed:
/// what fits the budget is kept in memory, the rest is read ahead of the computation in
/// the order of its use, past the page cache; of a mixture's experts only the chosen
/// ones are read, and the likely ones kept. The output is bit for bit that of llama.cpp
/// alone. When the model fits, llama.cpp runs as it is.
///
/// With a program behind `--` the llama.cpp in that program is fed: llama-server,
/// llama-cli, Python, Node. Its llama.cpp must be a shared library (2025 or later), and
/// must map the model (the default).
///
/// A read that fails is asked for again; one that stays bad ends the generation with a
/// line, never with wrong numbers.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope run -m big.gguf -p 'Once upon a time' --memory 4G
  tensorscope run -m big.gguf -f prompt.txt -n 200 --memory 50%
  tensorscope plan RUN --memory 4G -o my.plan && tensorscope run --plan my.plan -m big.gguf -p Hi
  tensorscope run -m moe.gguf -p Hi --memory 6G --strategy experts   # one strategy alone
  tensorscope run --memory 4G -- llama-server -m big.gguf --port 8080
  tensorscope run --memory 4G -- python3 chat.py")]
pub struct Args {
    #[command(flatten)]
    pub engine: EngineArgs,

    /// Memory for the whole program: 4G, 1500M, or 50% of the model [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = memory, allow_hyphen_values = true)]
    pub memory: Option<Memory>,

    /// Do what a plan says (see `tensorscope plan`)
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,

    /// What to do, alone or combined: pin, stream, experts; or all, or none (llama.cpp as
    /// it is)
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = super::strategies)]
    pub strategy: Strategies,

    /// Which expert makes room for another: lru, lfu, lfu_aged [default: the plan's, or lru]
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub policy: Option<Policy>,

    /// Do not make a memory group of the budget's size
    #[arg(long)]
    pub no_limit: bool,

    /// Feed also a model that fits
    #[arg(long)]
    pub always: bool,

    /// Drop the model's cached pages first
    #[arg(long)]
    pub cold: bool,

    /// How to read: uring, pread (threads, past the page cache), cached (threads, through it)
    /// [default: the best that works]
    #[arg(long, value_name = "HOW", value_parser = method)]
    pub read_with: Option<Method>,

    /// Draw experts instead of asking the router, for models of random weights: uniform,
    /// zipf:EXPONENT, sticky:SHARE
    #[arg(long, value_name = "DISTRIBUTION", conflicts_with = "program")]
    pub routing: Option<Distribution>,

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

/// A budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    Bytes(u64),
    /// Of the model's files.
    Percent(f64),
}

/// With less nothing runs.
const MIN_BYTES: u64 = 64 << 20;

impl Memory {
    pub fn of(self, model_bytes: u64) -> anyhow::Result<u64> {
        let bytes = match self {
            Memory::Bytes(bytes) => bytes,
            Memory::Percent(percent) => (model_bytes as f64 * percent / 100.0) as u64,
        };
        if bytes < MIN_BYTES {
            bail!(
                "--memory: {bytes} bytes are less than the program itself needs; give at least 64M"
            );
        }
        Ok(bytes)
    }
}

pub fn memory(text: &str) -> Result<Memory, String> {
    match text.strip_suffix('%') {
        None => size(text).map(Memory::Bytes),
        Some(percent) => match percent.parse() {
            Ok(percent) if (0.1..=1000.0).contains(&percent) => Ok(Memory::Percent(percent)),
            _ => Err(format!("`{text}` is no share; write for instance 50%")),
        },
    }
}

pub fn policy(text: &str) -> Result<Policy, String> {
    text.parse::<Policy>().map_err(|error| error.to_string())
}

fn method(text: &str) -> Result<Method, String> {
    match text {
        "uring" => Ok(Method::IoUringDirect),
        "pread" => Ok(Method::PreadDirect),
        "cached" => Ok(Method::PreadBuffered),
        other => Err(format!("`{other}` is no way to read: uring, pread, cached")),
    }
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
