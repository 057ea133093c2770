//! The viewer without the rest of the program, for work on the page:
//! `view [--port N] [--page web/dist] RUN…`.
//!
//! What needs the rest is prepared: `tensorscope report A --json > A/report.json`,
//! `tensorscope compare A B --json > A/compare-B.json`. There is no SQL.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use index::RunIndex;
use rundir::Run;
use serde_json::Value;
use server::{Answers, Comparisons, Options, Page, Server, Shutdown, SqlAnswer, ViewedRun, Viewer};

struct Prepared(PathBuf);

impl Answers for Prepared {
    fn results(&self) -> Result<Arc<Value>, String> {
        read_json(&self.0.join("report.json")).map(Arc::new)
    }

    fn sql(&self, _: &str, _: &std::sync::atomic::AtomicBool) -> Result<SqlAnswer, String> {
        Err("this example has no SQL; use `tensorscope view`".to_owned())
    }
}

/// Of each run its folder.
struct PreparedPairs(Vec<PathBuf>);

impl Comparisons for PreparedPairs {
    fn compare(&self, a: usize, b: usize) -> Result<Value, String> {
        let other = self.0[b].file_name().unwrap_or_default();
        read_json(&self.0[a].join(format!("compare-{}.json", other.display())))
    }
}

fn read_json(path: &Path) -> Result<Value, String> {
    let said = |error: &dyn std::fmt::Display| {
        format!("{}: {error}; see the head of this example", path.display())
    };
    let text = fs::read(path).map_err(|error| said(&error))?;
    serde_json::from_slice(&text).map_err(|error| said(&error))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = Options::default();
    let mut runs = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--port" => options.port = Some(arguments.next().ok_or("--port N")?.parse()?),
            "--page" => options.page = page(Path::new(&arguments.next().ok_or("--page FOLDER")?))?,
            path => runs.push(PathBuf::from(path)),
        }
    }
    let server = Server::bind(options)?;
    let mut viewed = Vec::new();
    for path in runs.clone() {
        let run = Run::open(&path)?;
        viewed.push(ViewedRun {
            index: RunIndex::open(&run, &mut |_| {})?,
            answers: Arc::new(Prepared(path)),
            run,
        });
    }
    println!("{}", server.address());
    let viewer = Viewer::of_runs(viewed, Arc::new(PreparedPairs(runs)));
    server.run(viewer, &Shutdown::new())?;
    Ok(())
}

fn page(folder: &Path) -> io::Result<Page> {
    let read = |name: &str| fs::read(folder.join(name));
    Ok(Page {
        html: read("index.html")?.into(),
        script: read("app.js")?.into(),
        style: read("app.css")?.into(),
    })
}
