//! The `tensorscope` program: arguments, messages, exit codes; no logic.
//!
//! `main` maps errors to exit codes; everything else returns.
//! Exit codes: 0 fine, 1 a check said no, 2 bad usage or input.

use std::{io::Write, process::ExitCode};

use clap::{Parser, Subcommand};

mod analyse;
mod animate;
mod attach;
mod audit;
mod bench;
mod compare;
mod doctor;
mod engine_args;
mod export;
mod ingest;
mod inspect;
mod plan;
mod planning;
mod progress;
mod record;
mod report;
mod report_files;
mod run;
mod signals;
mod sql;
mod synth;
mod text;
mod underneath;
mod view;

/// See, explain and fix what large language models do to memory.
#[derive(Parser)]
#[command(name = "tensorscope", version, about, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Inspect(inspect::Args),
    Synth(synth::Args),
    Record(record::Args),
    Report(report::Args),
    Export(export::Args),
    Compare(compare::Args),
    View(view::Args),
    Sql(sql::Args),
    Ingest(ingest::Args),
    Audit(audit::Args),
    Bench(bench::Args),
    Plan(plan::Args),
    Run(run::Args),
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.command {
        Command::Inspect(args) => inspect::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Record(args) => record::run(args),
        Command::Report(args) => report::run(args),
        Command::Export(args) => export::run(args),
        Command::Compare(args) => compare::run(args),
        Command::View(args) => view::run(args),
        Command::Sql(args) => sql::run(args),
        Command::Ingest(args) => ingest::run(args),
        Command::Audit(args) => audit::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Run(args) => run::run(args),
        Command::Doctor(args) => doctor::run(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tensorscope: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Prints results; a reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
