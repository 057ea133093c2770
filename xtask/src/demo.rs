//! `cargo xtask demo`: the main job on the built-in models, start to end.

use crate::compile::{self, With};
use crate::house::{House, WITHOUT_OTHER_PROGRAMS};
use crate::install::{For, install};
use crate::step::{Outcome, Step};

const DENSE: &str = "models/shakespeare-dense.gguf";
const MOE: &str = "models/shakespeare-moe.gguf";
const FOLDER: &str = "target/demo";
const RUN: &str = "target/demo/run";
const PAGE: &str = "target/demo/report.html";
const PROMPT: &str = "ROMEO:\n";

pub const WHERE_TO_LOOK_NEXT: &str = "
where to look next:
  docs/guide.md                                    a tour of every command, with its output
  target/demo/report.html                          what that run did to memory, in plots
  target/release/tensorscope view target/demo/run  the same to explore, in the browser
  target/release/tensorscope --help                the commands
  cargo build --release --workspace                adds SQL (DataFusion: some minutes more); then
  target/release/tensorscope sql target/demo/run \"SELECT * FROM expert_use ORDER BY tokens DESC LIMIT 5\"
  target/release/tensorscope inspect MODEL.gguf    the same for a model of yours";

/// One line a step: name, what the reader will see, arguments.
pub fn steps() -> Vec<Step> {
    vec![
        Step::new(
            "install",
            "what the build needs",
            "install the packages named above, then run `cargo xtask demo` again",
            |house| install(house, For::Build),
        ),
        Step::new(
            "build",
            "tensorscope and llama.cpp (minutes the first time, on two cores)",
            "read the first error above; if it is CMake's or bindgen's, the lines before it name the missing package",
            |house| compile::workspace(house, WITHOUT_OTHER_PROGRAMS, With::Programs),
        ),
        show(
            "dense model",
            "what is in a small dense model, byte by byte",
            &["inspect", DENSE],
        ),
        show(
            "moe model",
            "the same with experts: bytes read per token are fewer than bytes stored",
            &["inspect", MOE],
        ),
        show(
            "lookup",
            "which tensor, layer and expert owns one byte of the file",
            &["inspect", MOE, "--lookup", "1000000"],
        ),
        Step::new(
            "record",
            "every access of an inference, byte by byte",
            "run the command above by hand; `git checkout models` brings damaged models back",
            record,
        ),
        show("report", "what that run touched", &["report", RUN]),
        show(
            "page",
            "the report as one file to look at and to share",
            &["report", RUN, "--html", "-o", PAGE],
        ),
        show(
            "audit",
            "the same record, held against the MMU page by page",
            &["audit", "-m", MOE, "-p", PROMPT, "-n", "8"],
        ),
    ]
}

/// A new folder each time: nothing overwrites what is there.
fn record(house: &House) -> Outcome {
    let folder = house.root().join(FOLDER);
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(failed)?;
    }
    std::fs::create_dir_all(&folder).map_err(failed)?;
    tensorscope(
        house,
        &[
            "record",
            "-m",
            MOE,
            "-p",
            PROMPT,
            "-n",
            "48",
            "--no-tables",
            "-o",
            RUN,
        ],
    )
}

fn show(name: &'static str, title: &'static str, args: &'static [&'static str]) -> Step {
    Step::new(
        name,
        title,
        "run the command above by hand; if models/ is damaged, `git checkout models` brings it back",
        move |house| tensorscope(house, args),
    )
}

fn tensorscope(house: &House, args: &[&str]) -> Outcome {
    let mut command = house.command(house.tensorscope());
    command.args(args);
    house.run(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_models_are_in_the_checkout() {
        let house = House::new();
        for model in [DENSE, MOE] {
            assert!(house.root().join(model).is_file(), "{model}");
        }
    }
}
