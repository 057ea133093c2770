//! What is loaded into other people's programs, and what reads their runs, on AArch64.
//!
//! Few machines that run this have such a processor, so qemu-user stands in for it: unit
//! tests of the crates that record and read; the preload library in a real llama.cpp; the
//! reader on what that recorded (tests/attach/aarch64.py, which compares with this machine).
//!
//! In a target folder of its own, and without `engine`: llama.cpp comes from npm and is not
//! compiled. What comes from a registry that does not answer is a reason to skip.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::house::House;
use crate::install::venv_python;
use crate::skips;
use crate::step::{Outcome, Step, say};
use crate::test::install_node_llama_cpp;

pub const TARGET: &str = "aarch64-unknown-linux-gnu";
pub const COMPILER: &str = "aarch64-linux-gnu-gcc";
pub const QEMU: &str = "qemu-aarch64";
/// Where Debian has the C library of AArch64.
pub const SYSTEM_ROOT: &str = "/usr/aarch64-linux-gnu";

const NAME: &str = "aarch64";
/// What is in the preload library, and what reads a run. None of them needs llama.cpp.
const TESTED: &[&str] = &[
    "agent", "audit", "capture", "feed", "ggml", "gguf", "reader", "rundir", "support", "trace",
];
/// They start themselves as another program, which only a kernel with binfmt_misc can.
const START_THEMSELVES: &[&str] = &[
    "killed_writer_loses_no_committed_evaluation",
    "a_killed_process_is_noticed_even_before_it_is_reaped",
];
/// Reasons of tests to be skipped that lie in qemu.
const QEMU_LACKS: &[&str] = &["no io_uring"];

pub fn step() -> Step {
    Step::new(
        NAME,
        "the preload library in npm's llama.cpp for AArch64, and the reader, under qemu-user",
        "the lines above name the test or the case; `cargo xtask aarch64` runs this step alone, docs/attaching.md says what qemu cannot do",
        check,
    )
}

pub fn is_this_machine() -> bool {
    cfg!(target_arch = "aarch64")
}

fn check(house: &House) -> Outcome {
    if is_this_machine() {
        return skips::step(NAME, "this machine is one itself");
    }
    let downloaded = install_target(house).and_then(|()| install_node_llama_cpp(house));
    if let Err(reason) = downloaded {
        return skips::step(NAME, &reason);
    }
    // In one go, so that what tests need besides does not compile everything again.
    let mut build = cargo(house, &["build"]);
    build.args(["--lib", "--tests", "--example", "run_rows"]);
    house.run(build)?;
    run_tests(house)?;
    house.run(comparison(house))
}

/// Tests of the crates; what they print is shown when one fails.
fn run_tests(house: &House) -> Outcome {
    let mut test = cargo(house, &["test", "--quiet"]);
    test.args(["--lib", "--tests", "--", "--show-output"]);
    test.args(START_THEMSELVES.iter().flat_map(|name| ["--skip", name]));
    // Every instruction costs ten; on this machine itself they try more.
    test.env("PROPTEST_CASES", "16");
    let line = house.line(&test);
    say(&format!("    $ {line}"));
    let output = test
        .output()
        .map_err(|error| format!("`{line}` did not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        say(&text);
        say(&String::from_utf8_lossy(&output.stderr));
        return Err(format!("`{line}` ended with {}", output.status));
    }
    let (passed, skipped) = results(&text);
    for name in START_THEMSELVES {
        say(&format!(
            "    skipped: {name}: qemu starts no second program"
        ));
    }
    for reason in &skipped {
        say(&format!("    skipped: {reason}"));
    }
    let count = skipped.len() + START_THEMSELVES.len();
    say(&format!("    {passed} tests passed, {count} were skipped"));
    match skipped.iter().find(|reason| !QEMU_LACKS.contains(reason)) {
        Some(reason) => skips::step(NAME, reason),
        None if passed == 0 => Err("no test was run".into()),
        None => Ok(()),
    }
}

/// How many tests passed, and why some of them did nothing.
fn results(text: &str) -> (u64, Vec<&str>) {
    let passed = text
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let skipped = text
        .lines()
        .filter_map(|line| line.strip_prefix("skipped: "));
    (passed.sum(), skipped.collect())
}

/// Records the same generations on both processors, and reads them on both.
fn comparison(house: &House) -> Command {
    let mut python = house.command(venv_python(house));
    python.arg(house.root().join("tests/attach/aarch64.py"));
    python.arg("--tensorscope").arg(house.tensorscope());
    python.arg("--built");
    python.arg(target(house).join(TARGET).join("release"));
    python.arg("--rows");
    python.arg(house.target().join("release/examples/run_rows"));
    python.arg("--models").arg(house.root().join("models"));
    python.arg("--scratch").arg(target(house).join("attach"));
    python
}

fn target(house: &House) -> PathBuf {
    house.target().join("aarch64")
}

/// Cargo for AArch64, in a target folder of its own. Always the same packages, or what they
/// share may be compiled again.
fn cargo(house: &House, subcommand: &[&str]) -> Command {
    let mut cargo = house.bare_cargo(subcommand);
    cargo.args(["--release", "--target", TARGET, "--target-dir"]);
    cargo.arg(target(house));
    cargo.args(TESTED.iter().flat_map(|name| ["--package", name]));
    let variable = |what: &str| {
        let target = TARGET.to_uppercase().replace('-', "_");
        format!("CARGO_TARGET_{target}_{what}")
    };
    cargo.env(variable("LINKER"), COMPILER);
    cargo.env(variable("RUNNER"), format!("{QEMU} -L {SYSTEM_ROOT}"));
    cargo
}

/// Rust's own library for AArch64.
fn install_target(house: &House) -> Outcome {
    let is_there = || {
        let mut rustc = house.command("rustc");
        rustc.args(["--print", "target-libdir", "--target", TARGET]);
        house
            .read(rustc)
            .is_ok_and(|folder| Path::new(folder.trim()).is_dir())
    };
    if is_there() {
        return Ok(());
    }
    say(&format!("    missing: Rust's library for {TARGET}"));
    let mut rustup = house.command("rustup");
    rustup.args(["target", "add", TARGET]);
    house.run(rustup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_told_how_to_link_and_run_in_a_folder_of_its_own() {
        let house = House::new();
        let command = cargo(&house, &["build"]);
        let line = house.line(&command);
        for part in [
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc",
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L ",
            "cargo build --release --target aarch64-unknown-linux-gnu --target-dir ",
        ] {
            assert!(line.contains(part), "{line}");
        }
        let folder = house.target().join("aarch64");
        assert!(command.get_args().any(|word| word == folder), "{line}");
    }

    #[test]
    fn tests_that_passed_and_those_that_did_nothing_are_counted() {
        let text = "running 3 tests\n\
            skipped: no io_uring\n\
            test result: ok. 3 passed; 0 failed; 0 ignored\n\
            2 rows were skipped: damaged\n\
            test result: ok. 11 passed; 0 failed; 0 ignored\n";
        assert_eq!(results(text), (14, vec!["no io_uring"]));
    }

    #[test]
    fn nothing_that_is_tested_here_compiles_llama() {
        let house = House::new();
        for name in TESTED {
            let path = house.root().join(format!("crates/{name}/Cargo.toml"));
            let manifest = std::fs::read_to_string(path).unwrap();
            assert!(!manifest.contains("engine"), "{name}");
        }
    }
}
