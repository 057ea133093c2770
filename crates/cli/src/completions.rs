//! `tensorscope completions`: what a shell needs to complete our commands.

use std::process::ExitCode;

use clap::CommandFactory as _;

/// Print what a shell needs to complete commands and options with Tab
///
/// Packages bring it with them; this is for a program that was built from source or is in a
/// virtual environment.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope completions bash > ~/.local/share/bash-completion/completions/tensorscope
  tensorscope completions zsh > ~/.zfunc/_tensorscope      # in a folder of your fpath
  tensorscope completions fish > ~/.config/fish/completions/tensorscope.fish
  source <(tensorscope completions bash)                   # for this shell alone")]
pub struct Args {
    shell: Shell,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(
        shell,
        &mut crate::Args::command(),
        "tensorscope",
        &mut script,
    );
    terminal::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
