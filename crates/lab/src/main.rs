//! `tensorscope-lab`: experiments with kernels, on processors and graphics cards.
//!
//! `tensorscope lab` becomes this program. Each experiment is a ladder: a naive kernel first,
//! then one change a step, up to the vendor's library, which is measured in the same rounds.
//! Before a step is timed its result is checked against float64.
//!
//! Names and messages are those of `tensorscope`: users type nothing else.
//! Exit codes: 0 fine, 2 bad usage, or something that is needed and missing.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

mod attention;
mod attention_decode;
mod attention_prefill;
mod cache;
mod calls;
mod command;
mod evidence;
mod experiments;
mod false_sharing;
mod figure;
mod gemm_bf16;
mod gemm_cpu;
mod gemm_f32;
mod inputs;
mod json;
mod measure;
mod outcome;
mod plot;
mod profiler;
mod program;
mod quant;
mod quant_llama;
mod replicas;
mod step;
mod tlb;
mod toolkit;

/// Experiments for tensorscope.
#[derive(Parser)]
#[command(
    name = "tensorscope",
    bin_name = "tensorscope",
    version,
    about,
    propagate_version = true
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Lab(Box<command::Args>),
    #[command(hide = true)]
    Manual(terminal::manual::Args),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Lab(args) => command::run(&args),
        Command::Manual(args) => terminal::manual::run(args, Args::command()),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tensorscope: {error:#}");
            ExitCode::from(2)
        }
    }
}
