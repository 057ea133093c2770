//! Commands that another program of ours carries out, which lies beside this one: help and
//! errors come from there.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use anyhow::anyhow;
use launch::companion;

/// Words for the other program, help and errors included.
#[derive(clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

/// A program, and what it is for.
pub struct Program {
    name: &'static str,
    what_for: &'static str,
}

/// crates/sql.
pub const SQL: Program = Program {
    name: "tensorscope-sql",
    what_for: "makes tables and answers SQL",
};

/// crates/lab.
pub const LAB: Program = Program {
    name: "tensorscope-lab",
    what_for: "has the experiments",
};

impl Program {
    pub fn command(&self) -> anyhow::Result<Command> {
        Ok(Command::new(companion::path(self.name, self.what_for)?))
    }

    /// This process becomes it.
    pub fn become_it(&self, command: &str, args: Words) -> anyhow::Result<ExitCode> {
        let error = self.command()?.arg(command).args(args.words).exec();
        Err(anyhow!("{}: cannot start: {error}", self.name))
    }
}
