//! Queries of the viewer: a line of JSON in, a line of JSON out, until stdin ends.
//!
//! Asked `{"query": "SELECT …", "rows": 100}`, it answers `{"columns": [{"name": …,
//! "type": …}, …], "rows": [[…], …], "is_cut": false}` or `{"error": "…"}`. A run that still grows gets new
//! tables when a query finds them older than the log.
//!
//! A query is worked on by a thread of its own, so that the program ends with the one that
//! has started it, also in the middle of a query that would take hours.

use std::{
    io::{self, BufRead as _, Write as _},
    os::unix::process::parent_id,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
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

    /// Process that asks, without which nobody wants the answers [default: our parent]
    #[arg(long, value_name = "PID")]
    asker: Option<u32>,
}

/// How often we look, once stdin has ended, whether anybody is left to answer to.
const LOOK_UP: Duration = Duration::from_millis(50);

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Told rather than asked for: it may have been killed before we came to ask, with its
    // query already sent.
    let asker = args.asker.unwrap_or_else(parent_id);
    let (requests, lines) = channel();
    let path = args.run.clone();
    let worker = thread::spawn(move || work(&path, &lines));
    for line in io::stdin().lock().lines() {
        // It has ended if nobody reads its answers.
        if requests.send(line?).is_err() {
            break;
        }
    }
    drop(requests);
    while !worker.is_finished() {
        if parent_id() != asker {
            return Ok(ExitCode::from(1));
        }
        thread::sleep(LOOK_UP);
    }
    match worker.join() {
        Ok(worked) => worked?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    Ok(ExitCode::SUCCESS)
}

fn work(run: &Path, lines: &Receiver<String>) -> io::Result<()> {
    let mut session = None;
    for line in lines {
        let answer = answer(run, &mut session, &line)
            .unwrap_or_else(|error| json!({"error": format!("{error:#}")}));
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
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
