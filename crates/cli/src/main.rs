//! The `tensorscope` program: arguments, messages, exit codes; no logic.
//!
//! `main` maps errors to exit codes; everything else returns.
//! Exit codes: 0 fine, 1 a check said no, 2 bad usage or input.

use std::{process::ExitCode, sync::LazyLock};

use clap::{CommandFactory as _, Parser, Subcommand};

mod analyse;
mod animate;
mod audit;
mod compare;
mod completions;
mod demo;
mod diagnose;
mod doctor;
mod engine_args;
mod estimate;
mod export;
mod handed_over;
mod inspect;
mod older_glibc;
mod plan;
mod prompts;
mod record;
mod report;
mod report_files;
mod report_text;
mod run;
mod setup;
mod synth;
mod tables;
mod truncated;
mod view;

/// See, explain and fix what large language models do to memory.
#[derive(Parser)]
#[command(
    name = "tensorscope",
    version,
    long_version = LONG_VERSION.as_str(),
    about,
    propagate_version = true
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

/// With the llama.cpp that is linked in: what `--version` says, and `-V` leaves out.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let linked = engine::versions();
    format!(
        "{}\nllama.cpp {} (ggml {}, llama-cpp-sys-2 {})",
        env!("CARGO_PKG_VERSION"),
        linked.llama,
        linked.ggml,
        linked.crate_version
    )
});

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Inspect(inspect::Args),
    Synth(synth::Args),
    Record(record::Args),
    Report(report::Args),
    Diagnose(Box<diagnose::Args>),
    Export(export::Args),
    Compare(compare::Args),
    View(view::Args),
    /// Ask a run, or several as one dataset, in SQL (`tensorscope sql --help` says how)
    Sql(handed_over::Words),
    /// Turn a run's log into Parquet tables (`tensorscope ingest --help` says more)
    Ingest(handed_over::Words),
    Audit(audit::Args),
    Bench(bench::Args),
    /// Experiments with kernels, from naive to the vendor's speed (`tensorscope lab --help` says how)
    Lab(handed_over::Words),
    Plan(plan::Args),
    Estimate(Box<estimate::Args>),
    Run(run::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    /// Write the man pages of every command into a folder; for who makes packages
    #[command(hide = true)]
    Manual(terminal::manual::Args),
}

impl Command {
    /// Those that change the system, or measure what its settings decide, begin with
    /// settings as they were.
    fn may_change_settings(&self) -> bool {
        matches!(
            self,
            Command::Demo(_)
                | Command::Record(_)
                | Command::Audit(_)
                | Command::Bench(_)
                | Command::Diagnose(_)
                | Command::Run(_)
                | Command::Doctor(_)
        )
    }
}

/// Where `main` cannot return: a thread that computes stands still.
#[expect(
    clippy::exit,
    reason = "the exit code is decided here, if not in `main`"
)]
fn end_now(code: i32) -> ! {
    std::process::exit(code)
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.command.may_change_settings() {
        for line in kernelio::leftover::repair() {
            eprintln!("tensorscope: {line}");
        }
    }
    match execute(args.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tensorscope: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Record(args) => record::run(args),
        Command::Report(args) => report::run(args),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Export(args) => export::run(args),
        Command::Compare(args) => compare::run(args),
        Command::View(args) => view::run(args),
        Command::Sql(args) => handed_over::SQL.become_it("sql", args),
        Command::Ingest(args) => handed_over::SQL.become_it("ingest", args),
        Command::Audit(args) => audit::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Lab(args) => handed_over::LAB.become_it("lab", args),
        Command::Plan(args) => plan::run(args),
        Command::Estimate(args) => estimate::run(*args),
        Command::Run(args) => run::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Manual(args) => terminal::manual::run(args, Args::command()),
    }
}
