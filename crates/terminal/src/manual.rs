//! Man pages, written from the definition of the arguments: one for each command, as
//! `tensorscope-record.1`.
//!
//! Two programs share the name `tensorscope`. The one that users type writes the pages of
//! all commands; the one that it starts then writes those of its own again, of which the first
//! knows only the names.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Command;
use clap_mangen::Man;

#[derive(clap::Args)]
pub struct Args {
    /// Folder for the pages, made if it is missing
    folder: PathBuf,

    /// Only the pages of commands, not the one that lists them
    #[arg(long)]
    commands_only: bool,
}

pub fn run(args: Args, program: Command) -> anyhow::Result<ExitCode> {
    // The command `help` says what the pages say.
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let folder = &args.folder;
    fs::create_dir_all(folder).with_context(|| format!("{}: cannot create", folder.display()))?;
    match args.commands_only {
        true => commands(&program, folder),
        false => page(&program, folder),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The page of a command and those of what is below it.
fn page(command: &Command, folder: &Path) -> anyhow::Result<()> {
    let mut text = Vec::new();
    let version = command.get_version().unwrap_or_default();
    let man = Man::new(command.clone()).source(format!("tensorscope {version}"));
    man.render(&mut text)?;
    let path = folder.join(man.get_filename());
    fs::write(&path, text).with_context(|| format!("{}: cannot write", path.display()))?;
    commands(command, folder)
}

fn commands(command: &Command, folder: &Path) -> anyhow::Result<()> {
    let mut shown = command.get_subcommands().filter(|c| !c.is_hide_set());
    shown.try_for_each(|c| page(c, folder))
}
