//! `tensorscope demo`: for who has no model. Records the one that comes with the program,
//! writes the report and shows the run.
//!
//! It does so by commands that anybody could type, says each, and executes it as if it had
//! been typed: the demo can do nothing that the commands cannot.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    thread::available_parallelism,
};

use clap::Parser as _;
use launch::companion;

use crate::report_files::create_folder;

/// A mixture of experts that was trained on Shakespeare's plays (models/ in the sources).
const MODEL: &str = "shakespeare-moe.gguf";
const PROMPT: &str = "ROMEO:";
const TOKENS: &str = "48";
/// More would wait for each other: a token of so small a model takes a fraction of a millisecond.
const MAX_THREADS: usize = 2;
const FOLDER: &str = "tensorscope-demo";

/// Try it without a model: record one that comes with the program, report, view
///
/// A small mixture of experts writes 48 tokens in the manner of Shakespeare while every byte
/// range that llama.cpp touches is recorded. Then the report is written, as a page to
/// look at and to share, and the viewer shows the run until Ctrl-C; on a desktop the browser
/// opens by itself.
///
/// Each command is printed before it is executed: the same with your model is your first run.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope demo
  tensorscope demo --no-view                         # the run and its report, no viewer
  tensorscope demo -p 'JULIET:' -o juliet
  ssh -L 8080:127.0.0.1:8080 HOST tensorscope demo --port 8080")]
pub struct Args {
    /// Text that the model goes on from
    #[arg(short, long, value_name = "TEXT", default_value = PROMPT)]
    prompt: String,

    /// Folder to create, for the run and report.html [default: tensorscope-demo, or with a number
    /// if that exists]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Port of the viewer on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "N", conflicts_with = "no_view")]
    port: Option<u16>,

    /// Print the viewer's address and leave the browser alone
    #[arg(long, conflicts_with = "no_view")]
    no_open: bool,

    /// End with the report, without the viewer
    #[arg(long)]
    no_view: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let model = companion::model(MODEL)?;
    let folder = args.output.unwrap_or_else(free_folder);
    create_folder(&folder)?;
    let (run, page) = (folder.join("run"), folder.join("report.html"));
    let threads = available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_THREADS);
    let record = command("record")
        .option("-m", &model)
        .option("-p", &args.prompt)
        .option("-n", TOKENS)
        .option("-t", threads.to_string())
        .option("-o", &run);
    let recorded = record.execute();
    if !matches!(recorded, Ok(ExitCode::SUCCESS)) {
        // Unless there is something in it.
        let _ = fs::remove_dir(&folder);
        return recorded;
    }
    let report = command("report").word(&run).word("--html");
    let reported = report.option("-o", &page).execute()?;
    if reported != ExitCode::SUCCESS {
        return Ok(reported);
    }
    eprintln!(
        "\nThe report is {}, to open in a browser. More of this run, and the first of yours:
  tensorscope report {run}
  tensorscope sql {run} \"SELECT * FROM expert_use ORDER BY tokens DESC LIMIT 5\"
  tensorscope record -m MODEL.gguf -p 'Once upon a time' -n 64",
        page.display(),
        run = run.display(),
    );
    let mut view = command("view").word(&run);
    if args.no_view {
        eprintln!("  {view}");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(port) = args.port {
        view = view.option("--port", port.to_string());
    }
    if args.no_open {
        view = view.word("--no-open");
    }
    eprintln!("\nThe viewer is at the address below until Ctrl-C.");
    view.execute()
}

/// Nothing is overwritten.
fn free_folder() -> PathBuf {
    let numbered = (2u32..).map(|number| format!("{FOLDER}-{number}"));
    let mut names = std::iter::once(FOLDER.to_owned()).chain(numbered);
    let free = names.find(|name| Path::new(name).symlink_metadata().is_err());
    free.unwrap_or_else(|| FOLDER.to_owned()).into()
}

/// A command of this program, word by word.
struct Words(Vec<OsString>);

fn command(name: &str) -> Words {
    Words(vec!["tensorscope".into(), name.into()])
}

impl Words {
    fn word(mut self, word: impl Into<OsString>) -> Words {
        self.0.push(word.into());
        self
    }

    fn option(self, name: &str, value: impl Into<OsString>) -> Words {
        self.word(name).word(value)
    }

    fn execute(self) -> anyhow::Result<ExitCode> {
        eprintln!("\n$ {self}");
        crate::execute(crate::Args::try_parse_from(self.0)?.command)
    }
}

/// As a shell takes it.
impl std::fmt::Display for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, word) in self.0.iter().enumerate() {
            let word = word.to_string_lossy();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=".contains(c);
            let space = if index == 0 { "" } else { " " };
            match !word.is_empty() && word.chars().all(is_plain) {
                true => write!(f, "{space}{word}")?,
                false => write!(f, "{space}'{}'", word.replace('\'', r"'\''"))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted_into_a_shell() {
        let words = command("record")
            .option("-p", "It's")
            .option("-m", "a/b-c.gguf");
        assert_eq!(
            words.to_string(),
            r"tensorscope record -p 'It'\''s' -m a/b-c.gguf"
        );
        assert_eq!(command("view").word("").to_string(), "tensorscope view ''");
    }
}
