//! `tensorscope view`: the viewer on a local address, until Ctrl-C; of runs, or of a model
//! without one.

mod model;

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use analysis::compare::compare;
use anyhow::bail;
use index::RunIndex;
use rundir::{Condition, Run};
use serde_json::Value;
use server::{
    Answers, Comparisons, MAX_SQL_ROWS, Options, Server, Shutdown, SqlAnswer, ViewedRun, Viewer,
};
use terminal::{progress, runs::open_run, signals};

use self::model::{OfModel, is_model};
use crate::{
    analyse::{AnalyseProps, analyse, facts_of, models_of, read_ceilings, results},
    diagnose,
    tables::Queries,
};

/// Look at runs, or at a model, in the browser: file map, timeline, experts, memory, estimates
///
/// Of runs: what was read, when and by whom. Of a model file that nobody has run: its
/// structure, and `tensorscope estimate` as a page, with its numbers under sliders.
///
/// Serves a page on this machine only, under an address with a random token, until Ctrl-C.
/// On a desktop the browser opens by itself. The address bar holds the state of the page: a
/// link reproduces a view.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope view RUN
  tensorscope view RUN-A RUN-B                       # and compare them
  tensorscope view model.gguf                        # before any run
  tensorscope view RUN --ceilings ceilings.json      # predicts tokens/s, too
  ssh -L 8080:127.0.0.1:8080 HOST tensorscope view RUN --port 8080")]
pub struct Args {
    /// Run directories, or one model file (of a split model its first)
    #[arg(required = true, value_name = "RUN|MODEL")]
    shown: Vec<PathBuf>,

    /// Port on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "N")]
    port: Option<u16>,

    /// Disk and memory speeds for predictions: what `bench ceilings -o FILE` wrote
    #[arg(long, value_name = "FILE")]
    ceilings: Option<PathBuf>,

    /// Print the address and leave the browser alone
    #[arg(long)]
    no_open: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let ceilings = args.ceilings.as_deref().map(read_ceilings).transpose()?;
    let model = args.shown.iter().find(|path| is_model(path));
    if let Some(model) = model {
        if args.shown.len() > 1 {
            bail!(
                "{}: is a model, and a page shows one model or runs; leave out the others",
                model.display()
            );
        }
        if ceilings.is_some() {
            bail!("--ceilings: predictions need a run; a model is estimated for a machine instead");
        }
    }
    let server = Server::bind(options(args.port))?;
    let viewer = match model {
        Some(path) => Viewer::of_model(Arc::new(OfModel::open(path)?)),
        None => viewer_of_runs(args.shown, ceilings)?,
    };
    signals::catch();
    terminal::print(&server.address())?;
    if !args.no_open {
        open_browser(&server.address());
    }
    let shutdown = Shutdown::new();
    let stop = shutdown.clone();
    std::thread::spawn(move || {
        while !signals::stop_asked() {
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.stop();
    });
    server.run(viewer, &shutdown)?;
    Ok(ExitCode::SUCCESS)
}

fn viewer_of_runs(
    paths: Vec<PathBuf>,
    ceilings: Option<kernelio::Ceilings>,
) -> anyhow::Result<Viewer> {
    let mut runs = Vec::new();
    for path in &paths {
        runs.push(viewed(open_run(path)?, ceilings.clone())?);
    }
    for run in &runs {
        // The page says so too; whoever reads only the terminal must not miss it.
        for sentence in run.index.info().missing {
            eprintln!("tensorscope: {}: {sentence}", run.run.path().display());
        }
    }
    Ok(Viewer::of_runs(runs, Arc::new(Pairs(paths))))
}

fn options(port: Option<u16>) -> Options {
    Options {
        port,
        ..Options::default()
    }
}

fn viewed(run: Run, ceilings: Option<kernelio::Ceilings>) -> anyhow::Result<ViewedRun> {
    let bar = progress::bar(run.log_bytes(), "reading", "bytes");
    let index = RunIndex::open(&run, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    Ok(ViewedRun {
        index: index?,
        answers: Arc::new(OfRun {
            path: run.path().to_owned(),
            ceilings,
            queries: Queries::new(run.path()),
        }),
        run,
    })
}

/// A viewer beside a recording.
pub struct Live {
    address: String,
    shutdown: Shutdown,
    thread: std::thread::JoinHandle<anyhow::Result<()>>,
}

impl Live {
    /// Takes the port now; shows the run as soon as its log has begun.
    pub fn start(run: &Path, port: Option<u16>) -> anyhow::Result<Live> {
        let server = Server::bind(options(port))?;
        let (address, shutdown) = (server.address(), Shutdown::new());
        let (path, stop) = (run.to_owned(), shutdown.clone());
        let thread = std::thread::spawn(move || {
            let run = loop {
                // That it still records is no news here.
                let opened = Run::open(&path).map_err(Into::into);
                match opened.and_then(|run| viewed(run, None)) {
                    Ok(run) => break run,
                    // The model is still being loaded.
                    Err(_) if !stop.is_asked() => std::thread::sleep(Duration::from_millis(100)),
                    Err(error) => return Err(error),
                }
            };
            let viewer = Viewer::of_runs(vec![run], Arc::new(Pairs(vec![path])));
            Ok(server.run(viewer, &stop)?)
        });
        eprintln!("tensorscope: live at {address}");
        open_browser(&address);
        Ok(Live {
            address,
            shutdown,
            thread,
        })
    }

    /// The recording is over: goes on until the user has seen enough.
    pub fn finish(self) {
        if !signals::stop_asked() && !self.thread.is_finished() {
            eprintln!(
                "tensorscope: the recording is complete; {} stays until Ctrl-C",
                self.address
            );
            signals::catch();
            while !signals::stop_asked() && !self.thread.is_finished() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        self.shutdown.stop();
        if let Ok(Err(error)) = self.thread.join() {
            eprintln!("tensorscope: the viewer ended: {error:#}");
        }
    }
}

/// On a desktop only; a browser that does not start is no reason to fail.
fn open_browser(address: &str) {
    let has_desktop = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    if has_desktop && std::io::stderr().is_terminal() {
        let mut open = Command::new("xdg-open");
        open.arg(address)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _ = open.spawn();
    }
}

/// What the program knows about one run and the server does not.
struct OfRun {
    path: PathBuf,
    ceilings: Option<kernelio::Ceilings>,
    queries: Queries,
}

impl OfRun {
    fn results(&self) -> anyhow::Result<Value> {
        let run = Run::open(&self.path)?;
        // Results of a log that still grows are not worth keeping.
        let results =
            if self.ceilings.is_none() && !matches!(run.condition(), Condition::Recording { .. }) {
                results(&run)?
            } else {
                let props = AnalyseProps {
                    ceilings: self.ceilings.clone(),
                    ..AnalyseProps::default()
                };
                analyse(&run, &props)?
            };
        let mut object = serde_json::to_value(&results)?;
        object["diagnosis"] = serde_json::to_value(diagnose::of_run(&run, &results)?)?;
        Ok(object)
    }
}

impl Answers for OfRun {
    fn results(&self) -> Result<Arc<Value>, String> {
        self.results().map(Arc::new).map_err(|e| format!("{e:#}"))
    }

    fn sql(&self, query: &str, is_unwanted: &AtomicBool) -> Result<SqlAnswer, String> {
        let answer = self.queries.ask(query, MAX_SQL_ROWS, is_unwanted);
        let answer = answer.and_then(|answer| Ok(serde_json::from_value(answer)?));
        answer.map_err(|e| format!("{e:#}"))
    }
}

/// Folders of the runs, in the order of their numbers.
struct Pairs(Vec<PathBuf>);

impl Pairs {
    fn compare(&self, a: usize, b: usize) -> anyhow::Result<Value> {
        let (a, b) = (Run::open(&self.0[a])?, Run::open(&self.0[b])?);
        let ((facts_a, _), (facts_b, _)) = (facts_of(&a)?, facts_of(&b)?);
        let comparison = compare(&facts_a, &facts_b, models_of(&a, &b));
        Ok(serde_json::to_value(comparison)?)
    }
}

impl Comparisons for Pairs {
    fn compare(&self, a: usize, b: usize) -> Result<Value, String> {
        self.compare(a, b).map_err(|e| format!("{e:#}"))
    }
}
