//! Both packages, made from the binaries that were built, installed, tried and removed.
//!
//! What is tried is what an installed program has to find: its model, the second program, the
//! preload library. Home, path and folder are fresh ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::tree::{MODEL, Tree, clear};
use super::{deb, megabytes, say_size, wheel};
use crate::house::House;
use crate::install::venv_python;
use crate::step::{Outcome, Step, say};

/// 60.5 since GPUs are recorded: the log, its tables and the report know devices.
const MAX_WHEEL_MEGABYTES: f64 = 61.0;
/// From the wheel to the result of the demo: some 20 on two cores, on a disk and processors
/// that others use, too, some times as many.
const MAX_SECONDS: f64 = 180.0;

pub fn step() -> Step {
    Step::new(
        "packages",
        "the wheel and the .deb: made, installed, tried, removed",
        "the last command above is what failed; packages are in target/package, the installed programs in target/package/tried",
        check,
    )
}

fn check(house: &House) -> Outcome {
    let tree = Tree::make(house)?;
    let (wheel, deb) = (wheel::write(&tree)?, deb::write(&tree)?);
    say_size(&wheel);
    say_size(&deb);
    if megabytes(&wheel) > MAX_WHEEL_MEGABYTES {
        return Err(format!("the wheel is larger than {MAX_WHEEL_MEGABYTES} MB"));
    }
    let folder = tree.folder.join("tried");
    clear(&folder)?;
    try_wheel(house, &folder.join("wheel"), &wheel)?;
    try_deb(house, &folder.join("deb"), &deb)
}

fn try_wheel(house: &House, folder: &Path, wheel: &Path) -> Outcome {
    clear(folder)?;
    let venv = folder.join("venv");
    let python = venv.join("bin/python");
    let mut create = house.command(venv_python(house));
    create.args(["-m", "venv"]).arg(&venv);
    house.run(create)?;
    let mut read = house.command(&python);
    read.arg(house.root().join("tests/python/check_wheel.py"));
    house.run(read_of(read, wheel))?;
    let begin = Instant::now();
    let pip = |words: &[&str]| {
        let mut pip = house.command(&python);
        pip.args(["-m", "pip", "--disable-pip-version-check"]);
        pip.args(words);
        pip
    };
    house.run(read_of(pip(&["install", "--quiet", "--no-index"]), wheel))?;
    let installed = Installed::new(house, folder, &venv);
    installed.demo()?;
    let seconds = begin.elapsed().as_secs_f64();
    say(&format!("    wheel to result: {seconds:.1} s"));
    if seconds > MAX_SECONDS {
        return Err(format!("that is more than {MAX_SECONDS} s"));
    }
    installed.sql("demo/run")?;
    installed.other_program()?;
    house.run(pip(&["uninstall", "--quiet", "--yes", "tensorscope"]))?;
    match left(&venv, "tensorscope") {
        None => Ok(()),
        Some(path) => Err(format!("pip uninstall leaves {}", path.display())),
    }
}

/// Unpacked only: a test must not change the system.
fn try_deb(house: &House, folder: &Path, deb: &Path) -> Outcome {
    clear(folder)?;
    let root = folder.join("root");
    let mut unpack = house.command("dpkg-deb");
    unpack.arg("--extract").arg(deb).arg(&root);
    house.run(unpack)?;
    let installed = Installed::new(house, folder, &root.join("usr"));
    installed.demo()?;
    installed.sql("demo/run")?;
    installed.other_program()
}

fn read_of(mut command: Command, file: &Path) -> Command {
    command.arg(file);
    command
}

/// A program below a prefix, and a folder to work in.
struct Installed<'a> {
    house: &'a House,
    folder: &'a Path,
    prefix: PathBuf,
}

impl<'a> Installed<'a> {
    fn new(house: &'a House, folder: &'a Path, prefix: &Path) -> Self {
        let prefix = prefix.to_owned();
        Self {
            house,
            folder,
            prefix,
        }
    }

    fn tensorscope(&self, words: &[&str]) -> Command {
        let mut command = self.house.command(self.prefix.join("bin/tensorscope"));
        command.args(words).current_dir(self.folder);
        command
            .env("HOME", self.folder)
            .env("PATH", "/usr/bin:/bin");
        command.env_remove("XDG_CACHE_HOME");
        command
    }

    fn demo(&self) -> Outcome {
        let words = ["demo", "--no-view", "-o", "demo"];
        self.house.run(self.tensorscope(&words))?;
        match self.folder.join("demo/report.html").is_file() {
            true => Ok(()),
            false => Err("the demo wrote no report".into()),
        }
    }

    fn sql(&self, run: &str) -> Outcome {
        let query = "SELECT count(*) FROM accesses WHERE expert IS NOT NULL";
        let words = ["sql", run, query, "--format", "csv"];
        let answer = self.house.read(self.tensorscope(&words))?;
        let count = answer.lines().nth(1).and_then(|n| n.parse::<u64>().ok());
        match count {
            Some(1..) => Ok(()),
            _ => Err(format!(
                "{run}: experts were accessed, but `{query}` says {answer}"
            )),
        }
    }

    /// By the preload library: Python with a llama.cpp of its own, if the step "attach" has
    /// made one.
    fn other_program(&self) -> Outcome {
        let environments = fs::read_dir(self.house.target().join("attach"));
        let mut pythons = environments.into_iter().flatten().flatten();
        let python = pythons.find_map(|entry| {
            let python = entry.path().join("bin/python");
            python.is_file().then_some(python)
        });
        let Some(python) = python else {
            say("    the step \"attach\" has made no Python with llama.cpp: not tried");
            return Ok(());
        };
        let mut record = self.tensorscope(&["record", "--quiet", "-o", "python", "--"]);
        record.arg(python);
        record.arg(self.house.root().join("tests/attach/python.py"));
        record.arg(self.prefix.join("share/tensorscope").join(MODEL));
        record.arg("4");
        self.house.run(record)?;
        self.sql("python")
    }
}

/// A file below a folder with this in its name.
fn left(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find_map(|path| {
        let last = path.file_name().unwrap_or_default().to_string_lossy();
        match path.is_dir() && !path.is_symlink() {
            // pip leaves folders that it did not make; what is in them counts.
            true => left(&path, name),
            false => last.contains(name).then_some(path.clone()),
        }
    })
}
