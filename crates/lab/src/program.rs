//! `tensorscope` itself, which lies beside this program: some experiments record and ask.

use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use launch::companion;

const NAME: &str = "tensorscope";

/// Whether it is there.
pub fn find() -> anyhow::Result<()> {
    companion::path(NAME, "records what this experiment asks about").map(drop)
}

/// Runs it with these words; what it printed.
pub fn output(words: &[&str]) -> anyhow::Result<String> {
    let path = companion::path(NAME, "records what this experiment asks about")?;
    let output = Command::new(path).args(words).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{NAME}: cannot start"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`tensorscope {}`: {}",
        words.join(" "),
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The words by which a run of it with the model of the demo begins.
pub fn generation() -> anyhow::Result<[String; 4]> {
    let path = companion::path(NAME, "generates the text that is looked at")?;
    let model = companion::model("shakespeare-moe.gguf")?;
    let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    Ok([text(path), "run".to_owned(), "-m".to_owned(), text(model)])
}
