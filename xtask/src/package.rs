//! `cargo xtask wheel` and `cargo xtask deb`: the release binaries as packages that install in
//! seconds, and the CI step that installs and tries both.
//!
//! - [`tree`]: the files of a package, as they lie below a prefix: the same in both;
//! - [`notices`]: the licences of what is compiled in;
//! - [`needs`]: what the binaries ask of a system, read from them by [`elf`];
//! - [`mod@wheel`], [`mod@deb`]: the two formats; [`zip`] is the one that a wheel is in;
//! - [`mod@check`]: installed, tried, removed.
//!
//! Nothing is compiled for a package, and nothing but Debian's own programs is needed: `strip`,
//! `gzip`, `sha256sum` and `dpkg-deb`. Why: docs/decisions/0016-packages.md.

mod check;
mod deb;
mod elf;
mod needs;
mod notices;
mod tree;
mod wheel;
mod zip;

use std::path::Path;

use crate::compile::{self, With};
use crate::install::{For, install};
use crate::step::{Step, say};

use tree::Tree;

pub use check::step as check;

const MEGABYTE: f64 = 1e6;

pub fn wheel() -> Vec<Step> {
    steps("wheel", "a wheel for pip, in target/package", |house| {
        let tree = Tree::make(house)?;
        say_size(&wheel::write(&tree)?);
        Ok(())
    })
}

pub fn deb() -> Vec<Step> {
    steps(
        "deb",
        "a package for Debian and Ubuntu, in target/package",
        |house| {
            let tree = Tree::make(house)?;
            say_size(&deb::write(&tree)?);
            Ok(())
        },
    )
}

fn steps(
    name: &'static str,
    title: &'static str,
    make: fn(&crate::house::House) -> crate::step::Outcome,
) -> Vec<Step> {
    vec![
        Step::new(
            "install",
            "what the build needs",
            "install the packages named above, then run the command again",
            |house| install(house, For::Build),
        ),
        Step::new(
            "build",
            "both programs and the library (minutes the first time)",
            "read the first error above",
            |house| compile::workspace(house, &[], With::Programs),
        ),
        Step::new(
            name,
            title,
            "the line above says what is missing or not allowed; docs/installing.md says what a package needs",
            make,
        ),
    ]
}

fn megabytes(path: &Path) -> f64 {
    std::fs::metadata(path).map_or(0.0, |about| about.len() as f64 / MEGABYTE)
}

fn say_size(path: &Path) {
    say(&format!(
        "    {}: {:.1} MB",
        path.display(),
        megabytes(path)
    ));
}
