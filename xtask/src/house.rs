//! Where things are in this checkout, and how programs are run in it.
//!
//! Every cargo command goes through [`House::cargo`], which adds `--release`
//! and `--workspace`. Both matter: another profile, or another selection of
//! packages (whose unified features may differ), gives the build script of
//! llama-cpp-sys-2 another hash and compiles llama.cpp a second time. See
//! docs/decisions/0001-one-build-profile.md. The one other selection is
//! [`WITHOUT_OTHER_PROGRAMS`], for whoever waits for a first result.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lint;
use crate::step::{Outcome, say};

/// Everything but the program that knows DataFusion, which takes longer to compile
/// than all the rest (docs/decisions/0008-two-programs.md).
pub const WITHOUT_SQL: &[&str] = &["--exclude", "tensorscope-sql", "--exclude", "store"];

/// What somebody who waits for a first result does without: SQL, and the experiments.
pub const WITHOUT_OTHER_PROGRAMS: &[&str] = &[
    "--exclude",
    "tensorscope-sql",
    "--exclude",
    "store",
    "--exclude",
    "tensorscope-lab",
];

/// What compiles our own crates; what others wrote is compiled the same either way.
enum Compiler {
    Plain,
    /// rustc and clippy, by the wrapper at this path.
    Linting(PathBuf),
}

pub struct House {
    root: PathBuf,
    target: PathBuf,
    cargo: OsString,
    compiler: Compiler,
}

impl House {
    pub fn new() -> Self {
        // Asked at run time first: a checkout that was moved or copied together
        // with its target folder is not compiled again.
        let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_dir.parent().unwrap_or(&manifest_dir).to_path_buf();
        // A relative CARGO_TARGET_DIR is relative to where the user stands;
        // our children stand in `root`.
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(dir) => std::path::absolute(&dir).unwrap_or_else(|_| PathBuf::from(dir)),
            None => root.join("target"),
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Self {
            root,
            target,
            cargo,
            compiler: Compiler::Plain,
        }
    }

    /// From now on our crates are linted while they are compiled.
    pub fn linting(self) -> Result<Self, String> {
        let compiler = Compiler::Linting(lint::wrapper(&self.target)?);
        Ok(Self { compiler, ..self })
    }

    /// The same checkout without lints.
    pub fn plain(&self) -> Self {
        Self {
            root: self.root.clone(),
            target: self.target.clone(),
            cargo: self.cargo.clone(),
            compiler: Compiler::Plain,
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The program that all of this is about.
    pub fn tensorscope(&self) -> PathBuf {
        self.target.join("release").join("tensorscope")
    }

    /// Runs `cargo SUBCOMMAND --release --workspace ARGS…`.
    pub fn cargo(&self, subcommand: &[&str], args: &[&str]) -> Outcome {
        self.run(self.cargo_command(subcommand, args))
    }

    /// The same, for a caller that wants to set something before running it.
    pub fn cargo_command(&self, subcommand: &[&str], args: &[&str]) -> Command {
        let mut command = self.bare_cargo(subcommand);
        command.args(["--release", "--workspace"]).args(args);
        if let Compiler::Linting(wrapper) = &self.compiler {
            command.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
            command.env(lint::VARIABLE, lint::folder(&self.target));
        }
        command
    }

    /// Cargo without a profile, for what compiles nothing (`fmt`, `tree`).
    pub fn bare_cargo(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.cargo);
        command.args(args).env("CARGO_TARGET_DIR", &self.target);
        command
    }

    /// A command that runs in the root of the checkout, without what `cargo
    /// run` put into our own environment: build scripts must see the same
    /// environment as in a plain `cargo build`, or they may run again.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            if name == "CARGO_MANIFEST_DIR"
                || name == "CARGO_MANIFEST_PATH"
                || name.starts_with("CARGO_PKG_")
            {
                command.env_remove(&key);
            }
        }
        command
    }

    /// Prints the command, runs it, and turns a bad exit into an error.
    pub fn run(&self, mut command: Command) -> Outcome {
        let line = self.line(&command);
        say(&format!("    $ {line}"));
        let status = command
            .status()
            .map_err(|error| format!("`{line}` did not start: {error}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("`{line}` ended with {status}"))
        }
    }

    /// Runs the command silently and returns its stdout.
    pub fn read(&self, mut command: Command) -> Result<String, String> {
        let line = self.line(&command);
        let output = command
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("`{line}` did not start: {error}"))?;
        if !output.status.success() {
            return Err(format!("`{line}` ended with {}", output.status));
        }
        String::from_utf8(output.stdout).map_err(|_| format!("`{line}` printed no UTF-8"))
    }

    /// True when the command can be run and succeeds; prints nothing.
    pub fn succeeds(&self, mut command: Command) -> bool {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// The command as a person would type it in the root of the checkout.
    pub(crate) fn line(&self, command: &Command) -> String {
        let root = format!("{}/", self.root.display());
        let program = if command.get_program() == self.cargo {
            "cargo".into()
        } else {
            command.get_program().to_string_lossy()
        };
        let words = std::iter::once(program).chain(command.get_args().map(OsStr::to_string_lossy));
        // The target folder is where a plain cargo would put it anyway.
        let variables = command
            .get_envs()
            .filter(|(name, _)| *name != "CARGO_TARGET_DIR")
            .filter_map(|(name, value)| Some((name.to_string_lossy(), value?.to_string_lossy())))
            .map(|(name, value)| format!("{name}={}", quoted(&value)));
        variables
            .chain(words.map(|word| quoted(word.strip_prefix(&root).unwrap_or(&word))))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn quoted(word: &str) -> String {
    if word.is_empty() || word.contains(|c: char| " '\"|{}".contains(c)) {
        format!("'{}'", word.replace('\'', r"'\''"))
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_commands_can_be_pasted() {
        let house = House::new();
        let mut command = house.cargo_command(&["tree"], &["--format", "{p}|{l}"]);
        command.arg(house.root().join("models/a.gguf"));
        command.env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(
            house.line(&command),
            "RUSTDOCFLAGS='-D warnings' cargo tree --release --workspace --format '{p}|{l}' models/a.gguf"
        );
    }

    #[test]
    fn a_bad_exit_is_an_error_that_names_the_command() {
        let house = House::new();
        let error = house.run(house.command("false")).unwrap_err();
        assert_eq!(error, "`false` ended with exit status: 1");
        let error = house.run(house.command("no-such-program")).unwrap_err();
        assert!(error.starts_with("`no-such-program` did not start: "));
    }
}
