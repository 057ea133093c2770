//! Queries of the viewer: a line of JSON in, a line of JSON out, until stdin ends.
//!
//! Asked `{"query": "SELECT …", "rows": 100}`, it answers `{"columns": [{"name": …,
//! "type": …}, …], "rows": [[…], …], "is_cut": false}` or `{"error": "…"}`. A run that still grows gets new
//! tables when a query finds them older than the log.

use std::{
    io::{self, BufRead as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use rundir::Run;
use serde_json::{Value, json};
use store::Session;

use crate::ingest::{Ready, ensure_tables};

/// Answer queries from standard input
#[derive(clap::Args)]
pub struct Args {
    /// Run directory
    run: PathBuf,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut session = None;
    for line in io::stdin().lock().lines() {
        let answer = answer(&args.run, &mut session, &line?)
            .unwrap_or_else(|error| json!({"error": format!("{error:#}")}));
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `session`: with the bytes of the log that its tables were made from.
fn answer(
    path: &Path,
    session: &mut Option<(u64, Session, Ready)>,
    request: &str,
) -> anyhow::Result<Value> {
    let request: Value = serde_json::from_str(request)?;
    let query = request["query"].as_str().unwrap_or_default();
    let most = request["rows"].as_u64().unwrap_or(0) as usize;
    let run = Run::open(path)?;
    let log_bytes = run.log_bytes();
    if session.as_ref().is_none_or(|(of, ..)| *of != log_bytes) {
        let tables = ensure_tables(run)?;
        *session = Some((log_bytes, Session::open(&[tables.run.path()])?, tables));
    }
    let (_, session, _) = session.as_ref().expect("opened above");
    let rows = store::query_rows(session, query, most)?;
    let columns = rows.columns.iter();
    let columns: Vec<Value> = columns
        .map(|(name, ty)| json!({"name": name, "type": ty}))
        .collect();
    Ok(json!({"columns": columns, "rows": rows.rows, "is_cut": rows.is_cut}))
}
