//! Tables and SQL, by the program beside this one that knows them (crates/sql).
//!
//! `sql` and `ingest` are handed over as they were typed. Where a command of this program
//! needs tables it starts the other one and passes its exit code on.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rundir::Run;
use serde_json::{Value, json};
use terminal::progress;

use crate::{analyse, handed_over::SQL};

/// Tables and results, so that no later command has to wait for them. Results need no
/// tables: they are kept whatever becomes of those.
pub fn prepare(run: &Run) -> anyhow::Result<()> {
    analyse::results(run)?;
    make(run)
}

fn make(run: &Run) -> anyhow::Result<()> {
    let mut make = SQL.command()?;
    make.arg("prepare").arg(run.path());
    if progress::is_quiet() {
        make.arg("--quiet");
    }
    // It has said why.
    if !status(make)?.success() {
        bail!("`tensorscope ingest {}` tries again", run.path().display());
    }
    Ok(())
}

/// What came of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    Whole,
    /// The log lacks something, which was said.
    Part,
    /// Why was said, too.
    Nothing,
}

impl Exported {
    pub fn code(self) -> ExitCode {
        match self {
            Exported::Whole => ExitCode::SUCCESS,
            Exported::Part => ExitCode::from(1),
            Exported::Nothing => ExitCode::from(2),
        }
    }
}

/// A table, or the evaluations `evals` of it, as Parquet into `out`.
pub fn export(
    run: &Run,
    table: &str,
    evals: Option<&std::ops::Range<u64>>,
    out: Stdio,
) -> anyhow::Result<Exported> {
    let mut export = SQL.command()?;
    export.arg("export-table").arg(run.path()).arg(table);
    if let Some(evals) = evals {
        export.args(["--from", &evals.start.to_string()]);
        export.args(["--to", &evals.end.to_string()]);
    }
    export.stdout(out);
    Ok(match status(export)?.code() {
        Some(0) => Exported::Whole,
        Some(1) => Exported::Part,
        _ => Exported::Nothing,
    })
}

fn status(mut command: Command) -> anyhow::Result<ExitStatus> {
    command.stdin(Stdio::null());
    command.status().context("tensorscope-sql: cannot start")
}

/// How long the viewer's page waits; who asks on the command line waits for as long as it takes.
const QUERY_LIMIT: Duration = Duration::from_secs(60);
/// How often a query that is being worked on is asked whether anybody still wants it.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Processes that wait for the next query. More are started while they are needed: a page
/// with a slow query must not keep another one waiting.
const MAX_IDLE: usize = 2;

/// Queries about one run, each answered by a process that has nothing else to do.
pub struct Queries {
    run: PathBuf,
    idle: Mutex<Vec<Answering>>,
}

struct Answering {
    process: Child,
    requests: ChildStdin,
    /// Its lines, by a thread that ends with it.
    answers: Receiver<String>,
}

impl Queries {
    pub fn new(run: &Path) -> Queries {
        Queries {
            run: run.to_owned(),
            idle: Mutex::new(Vec::new()),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Answering>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first `most` rows of the answer, as crates/sql/src/answer.rs describes it. Ends
    /// without one when nobody wants it any more, or after [`QUERY_LIMIT`].
    pub fn ask(&self, query: &str, most: usize, is_unwanted: &AtomicBool) -> anyhow::Result<Value> {
        let idle = self.idle().pop();
        let mut answering = match idle {
            Some(answering) => answering,
            None => Answering::start(&self.run)?,
        };
        // Whatever fails here ends it: it is not put back.
        let answer = answering.ask(&json!({"query": query, "rows": most}), is_unwanted)?;
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE {
            idle.push(answering);
        }
        drop(idle);
        match answer["error"].as_str() {
            None => Ok(answer),
            Some(error) => bail!("{error}"),
        }
    }
}

impl Answering {
    fn start(run: &Path) -> anyhow::Result<Answering> {
        let mut process = SQL
            .command()?
            .arg("answer")
            .arg(run)
            .args(["--asker", &std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("tensorscope-sql: cannot start")?;
        let requests = process.stdin.take().expect("it is piped");
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Answering {
            process,
            requests,
            answers,
        })
    }

    fn ask(&mut self, request: &Value, is_unwanted: &AtomicBool) -> anyhow::Result<Value> {
        let begin = Instant::now();
        // If it has died, there will be no answer.
        let _ = writeln!(self.requests, "{request}").and_then(|()| self.requests.flush());
        loop {
            match self.answers.recv_timeout(LOOK_UP) {
                Ok(line) => return Ok(serde_json::from_str(&line)?),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.wait()?;
                    bail!(
                        "tensorscope-sql ended while it worked on the query: {status}; ask again"
                    );
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if is_unwanted.load(Ordering::Relaxed) {
                bail!("nobody waits for the answer any more");
            }
            if begin.elapsed() > QUERY_LIMIT {
                bail!(
                    "the query was ended after {} s; ask for less, or on the command line, where `tensorscope sql` takes as long as it needs",
                    QUERY_LIMIT.as_secs()
                );
            }
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
