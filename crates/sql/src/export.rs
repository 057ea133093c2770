//! A table, or the part of it that was asked for, as Parquet on stdout: what
//! `tensorscope export --to parquet` starts.

use std::{
    fs::File,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context as _, anyhow};
use rundir::error::reason;

use crate::{
    code_of,
    ingest::{ensure_tables, says_what_tables_lack},
};

/// Write a table of a run to standard output
#[derive(clap::Args)]
pub struct Args {
    /// Run directory
    run: PathBuf,

    /// Table to write
    table: String,

    /// First evaluation
    #[arg(long, requires = "to")]
    from: Option<u64>,

    /// The evaluation behind the last
    #[arg(long, requires = "from")]
    to: Option<u64>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // `tensorscope export` has said what the run lacks when it opened it.
    let tables = ensure_tables(rundir::Run::open(&args.run)?)?;
    let run = &tables.run;
    let table = &args.table;
    let mut out = io::stdout();
    if let (Some(from), Some(to)) = (args.from, args.to) {
        let part = format!("WHERE eval >= {from} AND eval < {to}");
        let session = store::Session::open(&[run.path()])?;
        let sql = format!("SELECT * FROM {table} {part}");
        store::write_query(&session, &sql, store::Format::Parquet, &mut out)?;
        let evals = store::query_rows(&session, &format!("SELECT eval FROM evals {part}"), 1)?;
        if evals.rows.is_empty() {
            let run = args.run.display();
            eprintln!("tensorscope: {run}: no evaluation is in {from}..{to}");
            return Ok(code_of(true));
        }
    } else {
        let path = store::table_path(run.path(), table);
        let mut file = File::open(&path)
            .map_err(|e| anyhow!("{}: cannot open: {}", path.display(), reason(&e)))?;
        io::copy(&mut file, &mut out).map_err(|e| anyhow!("{}: {}", path.display(), reason(&e)))?;
    }
    out.flush().context("cannot write the table")?;
    Ok(code_of(says_what_tables_lack(run)?))
}
