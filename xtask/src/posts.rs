//! `cargo xtask posts`: the posts and chapters, held against their data, and run again.
//!
//! The scripts are in tests/posts, the contract in docs/posts/data/README.md.

use crate::compile::{self, With};
use crate::house::House;
use crate::install::{For, install, venv_python};
use crate::step::{Outcome, Step};

/// `cargo xtask posts [--check | --bless | NAME…]`.
pub fn steps(words: &[&str]) -> Vec<Step> {
    let first = Step::new(
        "install",
        "what the posts use",
        "install what is named above, then run it again",
        |house| install(house, For::Tests),
    );
    let build = Step::new(
        "build",
        "the programs (minutes the first time)",
        "read the first error above; if it is CMake's or bindgen's, the lines before it name the missing package",
        |house| compile::workspace(house, &[], With::Programs),
    );
    let mut steps = vec![first, build];
    match words {
        ["--check"] => steps.push(check()),
        ["--bless"] => steps.push(Step::new(
            "bless",
            "figures are drawn from the data of their pages",
            "the lines above name page and line; then look at every figure",
            |house| held_against_data(house, &["--bless"]),
        )),
        _ => {
            let names: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            steps.push(Step::new(
                "posts",
                "what posts and chapters say, run here; what needs a card, only where there is one",
                FAILED,
                move |house| reproduced(house, &names),
            ));
        }
    }
    steps
}

const FAILED: &str = "the lines above name page and command, which can be run alone";

/// What CI runs: first that the check can fail, then the check.
pub fn check() -> Step {
    Step::new(
        "posts",
        "every number of the posts is in its data; figures are what is drawn from it",
        "the lines above name page and line; docs/posts/data/README.md says what is wanted",
        |house| {
            house.run(script(house, "test_check.py"))?;
            house.run(script(house, "test_reproduce.py"))?;
            held_against_data(house, &[])
        },
    )
}

/// What of the posts runs on a processor.
pub fn reproduce() -> Step {
    Step::new(
        "posts again",
        "what the posts ran on a processor, run again: counts are equal",
        FAILED,
        |house| reproduced(house, &[]),
    )
}

fn held_against_data(house: &House, words: &[&str]) -> Outcome {
    let mut command = script(house, "check.py");
    command.arg("--tensorscope").arg(house.tensorscope());
    command.args(words);
    house.run(command)
}

fn reproduced(house: &House, names: &[String]) -> Outcome {
    let mut command = script(house, "reproduce.py");
    command.arg("--tensorscope").arg(house.tensorscope());
    command.args(names);
    // Where the lab finds OpenBLAS, and on a card the compiler for kernels.
    command.env("VIRTUAL_ENV", house.target().join("venv"));
    house.run(command)
}

fn script(house: &House, name: &str) -> std::process::Command {
    let mut command = house.command(venv_python(house));
    command.arg(house.root().join("tests/posts").join(name));
    command
}
