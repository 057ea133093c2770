//! `cargo build` with progress that a newcomer can believe: what is compiled,
//! how far it is, and about how long it still takes.
//!
//! Cargo says when something is finished, but not how much there is. So the
//! parts are listed first, each with the seconds that it is known to take
//! (compile_seconds.txt); cargo's messages then take parts off that list.
//!
//! This file runs the programs and draws. What their output means is in
//! [`parts`], numbers and words are in [`progress`]. However wrong an estimate
//! is, how the build ends is cargo's word alone.

mod parts;
mod progress;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::house::House;
use crate::step::{Outcome, say};
use parts::Part;
use progress::{LLAMA, Progress};

const REDRAW: Duration = Duration::from_millis(500);
/// Where nobody watches (CI, a log file) a line now and then is enough.
const PLAIN_LINE: Duration = Duration::from_secs(30);
const INDENT: &str = "    ";
/// What a compiler prints meanwhile begins where our line ends.
const GAP: &str = "  ";
/// A narrow terminal less one, because a full line wraps in some.
const COLUMNS: usize = 79 - INDENT.len() - GAP.len();

/// Runs `cargo build --release --workspace SELECTION… [--all-targets]`, where
/// the selection is what `cargo tree` understands too: `--exclude NAME`.
pub fn workspace(house: &House, selection: &[&str], with: With) -> Outcome {
    let edges = match with {
        With::Programs => "--edges=normal,build",
        With::Tests => "--edges=normal,build,dev",
    };
    let mut tree = house.bare_cargo(&["tree", "--workspace"]);
    tree.args(selection)
        .args([edges, "--prefix=none", "--format={p}"]);
    // It may also download the packages, and says so itself.
    let mut parts = parts::packages(&house.read(tree)?);
    let mut build = house.cargo_command(&["build"], selection);
    if with == With::Tests {
        build.arg("--all-targets");
        let metadata = ["metadata", "--no-deps", "--format-version=1"];
        let metadata = house.read(house.bare_cargo(&metadata))?;
        let programs = parts::programs(&metadata).into_iter();
        parts.extend(programs.filter(|part| {
            !matches!(part, Part::Program { package, .. } if selection.contains(&package.as_str()))
        }));
    }
    compile(house, build, parts)
}

/// What is compiled besides libraries.
#[derive(Clone, Copy, PartialEq)]
pub enum With {
    Programs,
    /// And examples.
    Tests,
}

/// Runs a command that compiles the parts and does nothing else. It must take
/// cargo's own `--message-format` (nextest's means something else) and have no
/// `--`, because options are put at its end.
fn compile(house: &House, mut command: Command, parts: Vec<Part>) -> Outcome {
    // As a person would type it: our options are for us.
    let line = house.line(&command);
    say(&format!("{INDENT}$ {line}"));
    let llama = Llama::new(house.target().join("release/build"));
    let mut child = command
        .args(["--quiet", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`{line}` did not start: {error}"))?;
    let messages = child.stdout.take().map(lines);
    let closing = messages.map(|messages| follow(parts, &messages, &llama));
    let status = child
        .wait()
        .map_err(|error| format!("`{line}` cannot be waited for: {error}"))?;
    if !status.success() {
        return Err(format!("`{line}` ended with {status}"));
    }
    if let Some(closing) = closing {
        say(&format!("{INDENT}{closing}"));
    }
    Ok(())
}

/// Shows progress until the build has ended; returns what to say if it ended well.
fn follow(parts: Vec<Part>, messages: &Receiver<String>, llama: &Llama) -> String {
    let start = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut progress = Progress::new(parts, cores);
    let is_live =
        std::io::stderr().is_terminal() && std::env::var_os("TERM") != Some("dumb".into());
    let mut is_open = false;
    let mut next_draw = Duration::ZERO;
    let mut next_line = PLAIN_LINE;
    loop {
        let now = start.elapsed();
        if now >= next_draw {
            next_draw = now + REDRAW;
            if progress.waits_for_llama() {
                progress.see_llama_files(llama.new_files(), now);
            }
            if !is_open && let Some(opening) = progress.opening(now) {
                is_open = true;
                clear(is_live);
                say(&format!("{INDENT}{opening}"));
            }
            if is_live {
                redraw(&format!("{INDENT}{}{GAP}", progress.line(now, COLUMNS)));
            } else if now >= next_line {
                next_line = now + PLAIN_LINE;
                say(&format!("{INDENT}{}", progress.line(now, usize::MAX)));
            }
        }
        match messages.recv_timeout(next_draw.saturating_sub(start.elapsed())) {
            // The pipe may stay open for longer: a server that a build script
            // started, such as a compiler cache, inherits it.
            Ok(line) if parts::is_end_of_build(&line) => break,
            Ok(line) => progress.hear(&line, start.elapsed()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    clear(is_live);
    progress.closing(start.elapsed())
}

fn clear(is_live: bool) {
    if is_live {
        redraw("");
    }
}

fn redraw(line: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "\r{line}\x1b[K");
    let _ = stderr.flush();
}

/// A thread, because a pipe cannot be waited for with a limit.
fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            // Nobody listens after the end of the build, but a full pipe would
            // stop whoever still writes into it.
            let _ = sender.send(line);
        }
    });
    receiver
}

/// The object files of llama.cpp, in every folder in which it was ever built.
struct Llama {
    builds: PathBuf,
    before: BTreeMap<PathBuf, usize>,
}

impl Llama {
    fn new(builds: PathBuf) -> Self {
        let before = Self::folders(&builds);
        Self { builds, before }
    }

    /// How many lie in the folder that has more of them than before.
    fn new_files(&self) -> usize {
        let grown =
            |(folder, files): &(PathBuf, usize)| *files > *self.before.get(folder).unwrap_or(&0);
        let folders = Self::folders(&self.builds).into_iter().filter(grown);
        folders.map(|(_, files)| files).max().unwrap_or(0)
    }

    fn folders(builds: &Path) -> BTreeMap<PathBuf, usize> {
        let is_llama = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.rsplit_once('-').is_some_and(|(name, _)| name == LLAMA)
        };
        entries(builds)
            .filter(is_llama)
            .map(|path| path.join("out/build"))
            .map(|path| (path.clone(), object_files(&path)))
            .collect()
    }
}

fn object_files(folder: &Path) -> usize {
    entries(folder)
        .map(|path| match path.extension() {
            Some(extension) if extension == "o" => 1,
            _ if path.is_dir() && !path.is_symlink() => object_files(&path),
            _ => 0,
        })
        .sum()
}

/// Nothing, if the folder is not there or goes away.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell takes the options that we put at the end as its own `$0` and `$1`.
    fn shell(house: &House, script: &str) -> Command {
        let mut command = house.command("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_build_that_fails_is_the_same_error_as_everywhere() {
        let house = House::new();
        let error = compile(&house, shell(&house, "exit 101"), vec![]).unwrap_err();
        assert_eq!(error, "`sh -c 'exit 101'` ended with exit status: 101");
        let error = compile(&house, house.command("no-such-program"), vec![]).unwrap_err();
        assert!(error.starts_with("`no-such-program` did not start: "));
    }

    #[test]
    fn output_that_is_not_text_does_not_end_a_build() {
        let house = House::new();
        let script = r"printf '\377\n{\n\n'; exit 0";
        compile(&house, shell(&house, script), vec![]).unwrap();
    }

    #[test]
    fn the_end_of_a_build_is_not_waited_for_when_it_was_reported() {
        let (sender, receiver) = channel();
        let end = r#"{"reason":"build-finished","success":true}"#;
        sender.send(end.to_owned()).unwrap();
        let llama = Llama::new(PathBuf::from("/no/such/folder"));
        let closing = follow(vec![], &receiver, &llama);
        assert_eq!(closing, "nothing to compile: everything is up to date");
        drop(sender);
    }

    #[test]
    fn only_folders_that_grow_tell_of_llama() {
        let folder = std::env::temp_dir().join(format!("xtask-llama-{}", std::process::id()));
        let write = |path: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        write("llama-cpp-sys-2-aa/out/build/a.o");
        write("llama-cpp-sys-2-aa/out/build/deep/er/b.o");
        let llama = Llama::new(folder.clone());
        assert_eq!(llama.new_files(), 0);
        write("llama-cpp-sys-2-bb/out/build/a.o");
        write("llama-cpp-sys-2-bb/out/build/a.cpp");
        write("llama-cpp-sys-2-bb/out/other/a.o");
        write("llama-cpp-sys-2-more-cc/out/build/a.o");
        assert_eq!(llama.new_files(), 1);
        write("llama-cpp-sys-2-aa/out/build/c.o");
        assert_eq!(llama.new_files(), 3);
        fs::remove_dir_all(folder).unwrap();
    }
}
