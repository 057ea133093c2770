//! `tensorscope-sql`: everything that needs Parquet and SQL, as a program of its own.
//!
//! `tensorscope sql` and `tensorscope ingest` become this program; `record`, `export` and
//! `view` start it for the tables. It is apart because DataFusion takes longer to compile
//! than everything else together, and nobody should wait for it who asked for a first
//! result ([decision 8](../../../docs/decisions/0008-two-programs.md)).
//!
//! Names and messages are those of `tensorscope`: users type nothing else.
//! Exit codes: 0 fine, 1 a check said no, 2 bad usage or input.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

mod answer;
mod export;
mod imported;
mod ingest;
#[cfg(target_arch = "x86_64")]
mod older_glibc;
mod sql;

/// Tables and SQL for tensorscope.
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
    Sql(sql::Args),
    Ingest(ingest::Args),
    #[command(hide = true)]
    Prepare(ingest::PrepareArgs),
    #[command(hide = true)]
    ExportTable(export::Args),
    #[command(hide = true)]
    Answer(answer::Args),
    #[command(hide = true)]
    Manual(terminal::manual::Args),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Sql(args) => sql::run(args),
        Command::Ingest(args) => ingest::run(args),
        Command::Prepare(args) => ingest::prepare(&args),
        Command::ExportTable(args) => export::run(&args),
        Command::Answer(args) => answer::run(&args),
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

/// Lost data is an error, never a warning.
fn code_of(is_missing: bool) -> ExitCode {
    match is_missing {
        true => ExitCode::from(1),
        false => ExitCode::SUCCESS,
    }
}
