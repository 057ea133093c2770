//! Developer commands, run as `cargo xtask COMMAND`.
//!
//! This program runs before anything else is installed, so it uses `std` only:
//! it compiles in seconds and needs nothing but a linker.
//!
//! `main` maps results to exit codes: 0 fine, 1 a step failed, 2 bad usage.

mod aarch64;
mod browser;
mod compile;
mod demo;
mod examples;
mod house;
mod install;
mod licences;
mod lint;
mod package;
mod posts;
mod rustdoc;
mod skips;
mod source;
mod step;
mod test;
mod tidy;

use std::process::ExitCode;

use house::House;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo            install what is missing, build, and do the main job on the built-in models
  test            install what tests need and run all checks; what CI runs
  test --quick    formatting, tidy, clippy and unit tests; for every few minutes
  tidy            the house rules alone (seconds, builds nothing)
  bless           write today's output into the examples of README.md and docs/guide.md
  licences        the licence check alone (seconds, builds nothing)
  aarch64         the preload library and the reader for AArch64 alone, with the program as it was built last
  wheel           the programs as a wheel for pip, in target/package
  deb             the programs as a package for Debian and Ubuntu, in target/package
  packages        both, made from the programs as they were built last, installed and tried
  posts [NAME…]   what the posts of docs/posts measured, run here beside what is published; all, or those named
  posts --check   every number of the posts and chapters is in its data file (--bless draws their figures)
  browser         the viewer's page and the facts about it alone, with the program as it was built last
";

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os(lint::VARIABLE) {
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        return lint::compile(&words, &folder);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let steps = match args.as_slice() {
        ["demo"] => demo::steps(),
        ["test"] => test::all(),
        ["test", "--quick"] => test::quick(),
        ["tidy"] => vec![test::tidy()],
        ["bless"] => test::bless(),
        ["licences"] => vec![test::licences()],
        ["aarch64"] => vec![aarch64::step()],
        ["wheel"] => package::wheel(),
        ["deb"] => package::deb(),
        ["packages"] => vec![package::check()],
        ["posts", words @ ..] => posts::steps(words),
        ["browser"] => vec![browser::viewer_page(), browser::browser()],
        ["help" | "--help" | "-h"] => {
            step::say(USAGE.trim_end());
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!(
                "xtask: unknown arguments: `{}`\n\n{}",
                args.join(" "),
                USAGE.trim_end()
            );
            return ExitCode::from(2);
        }
    };
    let house = match args[0] {
        "test" => House::new().linting(),
        _ => Ok(House::new()),
    };
    let house = match house {
        Ok(house) => house,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::FAILURE;
        }
    };
    if step::run_all(&house, args[0], &steps) {
        if args[0] == "demo" {
            step::say(demo::WHERE_TO_LOOK_NEXT);
        }
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
