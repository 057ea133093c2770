//! `tensorscope report` as files: one HTML page, Markdown, or every plot as a picture.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use index::RunIndex;
use render::{
    page,
    plot::png,
    plots::{self, Plot, ReportInput},
};
use rundir::Run;
use terminal::{create_new, progress};

use crate::{analyse::Results, diagnose};

/// Pixels per unit of a plot: 300 dots an inch at the width of a page.
const PNG_SCALE: f32 = 3.0;

/// What the report is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Html,
    Markdown,
    Svg,
    Png,
}

/// Where it goes; made before the log is read, so that a bad path fails at once.
pub struct Target {
    kind: Kind,
    /// HTML may go to standard output.
    path: Option<PathBuf>,
    /// Of HTML and Markdown.
    file: Option<fs::File>,
}

impl Target {
    pub fn create(kind: Kind, output: Option<PathBuf>) -> anyhow::Result<Target> {
        let file = match (kind, &output) {
            (Kind::Html, None) => None,
            (Kind::Html, Some(path)) => Some(create_new(path)?),
            (Kind::Markdown, Some(path)) => {
                create_folder(&plots_folder(path))?;
                Some(create_new(path)?)
            }
            (Kind::Svg | Kind::Png, Some(path)) => {
                create_folder(path)?;
                None
            }
            (Kind::Markdown, None) => {
                bail!("--md writes a file and its plots; name it with -o FILE")
            }
            (Kind::Svg, None) => {
                bail!("--svg writes a file for each plot; name a folder with -o DIR")
            }
            (Kind::Png, None) => {
                bail!("--png writes a file for each plot; name a folder with -o DIR")
            }
        };
        Ok(Target {
            kind,
            path: output,
            file,
        })
    }

    /// Half a report is none: what cannot be written whole is removed, and the same
    /// command can be given again.
    pub fn write(mut self, run: &Run, results: &Results) -> anyhow::Result<()> {
        let written = self.write_all(run, results);
        if let (Err(_), Some(path)) = (&written, &self.path) {
            let _ = match self.kind {
                Kind::Html => fs::remove_file(path),
                Kind::Svg | Kind::Png => fs::remove_dir_all(path),
                Kind::Markdown => {
                    let _ = fs::remove_dir_all(plots_folder(path));
                    fs::remove_file(path)
                }
            };
        }
        written
    }

    fn write_all(&mut self, run: &Run, results: &Results) -> anyhow::Result<()> {
        let bar = progress::bar(run.log_bytes(), "reading", "bytes");
        let index = RunIndex::open(run, &mut |bytes| bar.set_position(bytes));
        bar.finish_and_clear();
        let index = index?;
        let info = index.info();
        let about = about(run);
        let diagnosis = diagnose::of_run(run, results)?;
        let input = ReportInput {
            title: info.model.name.as_deref().unwrap_or(&info.name),
            about: &about,
            index: &index,
            actions: &results.actions,
            findings: &results.findings,
            facts: &results.facts,
            caches: results.caches.as_ref(),
            underneath: results.underneath.as_ref(),
            roofline: results.roofline.as_ref(),
            cards: &results.cards,
            diagnosis: Some(&diagnosis),
        };
        let plots = plots::all(&input);
        match (self.kind, &self.path) {
            (Kind::Html, _) => self.text(&page::html(&input, &plots)),
            (Kind::Markdown, Some(path)) => {
                let folder = plots_folder(path);
                write_pictures(&plots, &folder, Kind::Svg)?;
                let name = folder.file_name().unwrap_or_default().display().to_string();
                let link = |plot: &Plot| format!("{name}/{}.svg", plot.id);
                let text = page::markdown(&input, &plots, &link);
                self.text(&text)
            }
            (kind, Some(folder)) => write_pictures(&plots, folder, kind),
            (_, None) => unreachable!("`create` asks for a path"),
        }
    }

    fn text(&mut self, text: &str) -> anyhow::Result<()> {
        match &mut self.file {
            None => Ok(terminal::print(text)?),
            Some(file) => file.write_all(text.as_bytes()).with_context(|| {
                let path = self.path.as_deref().unwrap_or(Path::new(""));
                format!("{}: cannot write", path.display())
            }),
        }
    }
}

fn write_pictures(plots: &[Plot], folder: &Path, kind: Kind) -> anyhow::Result<()> {
    for plot in plots {
        let svg = plot.svg.standalone();
        let (name, bytes) = match kind {
            Kind::Png => (format!("{}.png", plot.id), png(&svg, PNG_SCALE)?),
            _ => (format!("{}.svg", plot.id), svg.into_bytes()),
        };
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("{}: cannot write", path.display()))?;
    }
    Ok(())
}

/// `report.md` has its plots in `report-plots`.
fn plots_folder(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().display().to_string();
    path.with_file_name(format!("{stem}-plots"))
}

pub fn create_folder(path: &Path) -> anyhow::Result<()> {
    fs::create_dir(path).map_err(|error| {
        let reason = rundir::error::reason(&error);
        anyhow::anyhow!("{}: cannot create the folder: {reason}", path.display())
    })
}

/// How the run was made.
fn about(run: &Run) -> Vec<(String, String)> {
    let mut about = Vec::new();
    let mut say = |name: &str, value: Option<String>| {
        about.extend(value.map(|value| (name.to_owned(), value)));
    };
    let metadata = run.metadata();
    say("run", Some(run.path().display().to_string()));
    say("recorded", metadata.map(|m| m.started_utc.clone()));
    say("machine", metadata.and_then(|m| m.machine.hostname.clone()));
    let settings = metadata.and_then(|m| m.settings.as_ref());
    say("threads", settings.map(|s| s.threads.to_string()));
    let model = metadata.and_then(|m| m.model.as_ref());
    let file = model.and_then(|m| m.files.first());
    say("model file", file.map(|f| f.path.clone()));
    say(
        "tensorscope",
        metadata.map(|m| m.tensorscope_version.clone()),
    );
    about
}
