//! The files of a package as they lie below a prefix: `/usr`, or a virtual environment.
//!
//! `crates/launch/src/companion.rs` is who looks for them there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::elf::{self, Needs};
use super::notices;
use super::zip::gzip;
use crate::house::House;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What `tensorscope demo` records.
pub const MODEL: &str = "shakespeare-moe.gguf";

/// The first is what users type; it starts the others.
const PROGRAMS: &[&str] = &["tensorscope", "tensorscope-sql", "tensorscope-lab"];
const LIBRARY: &str = "libtensorscope_agent.so";
/// Shell, and where its completions lie.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/tensorscope"),
    ("zsh", "share/zsh/vendor-completions/_tensorscope"),
    ("fish", "share/fish/vendor_completions.d/tensorscope.fish"),
];

/// The files, made anew; stripped copies of the binaries, which stay as they are.
pub struct Tree {
    /// Where packages are made.
    pub folder: PathBuf,
    /// The prefix.
    pub root: PathBuf,
    /// Relative to `root`, sorted.
    pub files: Vec<String>,
    pub needs: Needs,
    /// When this version was released, `2026-11-16`, as CHANGELOG.md says.
    pub released: String,
    /// The licence texts and CHANGELOG.md.
    pub sources: PathBuf,
}

impl Tree {
    pub fn make(house: &House) -> Result<Tree, String> {
        let folder = house.target().join("package");
        let root = folder.join("tree");
        clear(&root)?;
        let mut tree = Tree {
            released: released(&read_text(&house.root().join("CHANGELOG.md"))?)?,
            sources: house.root().to_owned(),
            needs: Needs::default(),
            files: Vec::new(),
            folder,
            root,
        };
        tree.check_version(house)?;
        for name in PROGRAMS {
            tree.binary(house, name, &format!("bin/{name}"))?;
        }
        tree.binary(house, LIBRARY, &format!("lib/tensorscope/{LIBRARY}"))?;
        let model = house.root().join("models").join(MODEL);
        let model = fs::read(&model).map_err(|e| format!("{}: {e}", model.display()))?;
        tree.file(&format!("share/tensorscope/{MODEL}"), &model)?;
        for (shell, path) in COMPLETIONS {
            let mut command = house.command(house.tensorscope());
            command.args(["completions", shell]);
            tree.file(path, house.read(command)?.as_bytes())?;
        }
        let notices = gzip(notices::text(house)?.into_bytes(), "-9")?;
        tree.file(
            "share/doc/tensorscope/third-party-licences.txt.gz",
            &notices,
        )?;
        tree.manual(house)?;
        tree.files.sort();
        Ok(tree)
    }

    /// A binary of last month would make a package that lies about itself.
    fn check_version(&self, house: &House) -> Result<(), String> {
        let mut command = house.command(house.tensorscope());
        command.arg("-V");
        let said = house.read(command)?;
        match said.trim() == format!("tensorscope {VERSION}") {
            true => Ok(()),
            false => Err(format!(
                "target/release has {}, the sources are {VERSION}; run `cargo build --release --workspace`",
                said.trim()
            )),
        }
    }

    fn binary(&mut self, house: &House, name: &str, path: &str) -> Result<(), String> {
        let built = house.target().join("release").join(name);
        if !built.is_file() {
            return Err(format!(
                "{} is missing; run `cargo build --release --workspace`",
                built.display()
            ));
        }
        let copy = self.place(path)?;
        let mut strip = house.command("strip");
        // Of the program that computes, names of functions stay: `record --cpu` tells by them whether
        // a thread computes or waits. Those of all programs make the wheel too large.
        let what = match name {
            "tensorscope" => "--strip-debug",
            _ => "--strip-unneeded",
        };
        strip.args([what, "-o"]).arg(&copy);
        strip.arg(&built);
        house.read(strip)?;
        let file = fs::read(&copy).map_err(|error| format!("{}: {error}", copy.display()))?;
        self.needs
            .add(elf::read(&file).map_err(|e| format!("{name}: {e}"))?);
        // Libraries are not executed, they are loaded.
        permit(
            &copy,
            if path.starts_with("bin/") {
                0o755
            } else {
                0o644
            },
        )?;
        self.files.push(path.to_owned());
        Ok(())
    }

    /// The other programs know more about their own commands.
    fn manual(&mut self, house: &House) -> Result<(), String> {
        let pages = self.folder.join("manual");
        clear(&pages)?;
        for (number, program) in PROGRAMS.iter().enumerate() {
            let arg = (number > 0).then_some("--commands-only");
            let mut command = house.command(house.target().join("release").join(program));
            command.arg("manual").arg(&pages).args(arg);
            house.read(command)?;
        }
        let entries = fs::read_dir(&pages).map_err(|e| format!("{}: {e}", pages.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let page = gzip(read_text(&path)?.into_bytes(), "-9")?;
            self.file(&format!("share/man/man1/{name}.gz"), &page)?;
        }
        Ok(())
    }

    fn file(&mut self, path: &str, bytes: &[u8]) -> Result<(), String> {
        write(&self.place(path)?, bytes)?;
        self.files.push(path.to_owned());
        Ok(())
    }

    fn place(&self, path: &str) -> Result<PathBuf, String> {
        let path = self.root.join(path);
        make_folder(path.parent().unwrap_or(&self.root))?;
        Ok(path)
    }
}

/// Readable for everybody, whatever the umask is.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    permit(path, 0o644)
}

pub fn permit(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}

pub fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes it an empty folder.
pub fn clear(path: &Path) -> Result<(), String> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    make_folder(path)
}

pub fn read_text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The date of this version: `## 0.2.0 - 2026-11-16`.
fn released(changelog: &str) -> Result<String, String> {
    let heading = format!("## {VERSION} - ");
    let mut dates = changelog.lines().filter_map(|l| l.strip_prefix(&heading));
    let date = dates.next().map(|date| date.trim().to_owned());
    date.ok_or_else(|| format!("CHANGELOG.md has no heading `{heading}DATE`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changelog_says_when_this_version_was_released() {
        let changelog =
            format!("# Changelog\n\n## 9.9.9 - 2030-01-01\n\n## {VERSION} - 2026-11-16\n");
        assert_eq!(released(&changelog).as_deref(), Ok("2026-11-16"));
        assert!(released("## Unreleased\n").is_err());
        let ours = read_text(&House::new().root().join("CHANGELOG.md")).unwrap();
        assert!(released(&ours).is_ok());
    }
}
