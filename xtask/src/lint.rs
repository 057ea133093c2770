//! rustc with clippy beside it: what cargo calls for our own crates while they are tested.
//!
//! `cargo clippy` checks, and for that it needs every dependency checked as well, which is
//! another form of compiling them: eight minutes for DataFusion and its relatives. Lints
//! need no more than what a build has made anyway. So `cargo xtask test` builds with this
//! program as `RUSTC_WORKSPACE_WRAPPER`: each crate of ours is compiled by rustc as always
//! (the code is that of a plain build) and then read once more by clippy, which writes
//! nothing that is kept. A warning is an error.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

/// Set for cargo, so that this program knows what it is called for.
pub const VARIABLE: &str = "XTASK_LINTS_INTO";

/// A copy of this program that no build replaces while cargo calls it.
pub fn wrapper(target: &Path) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| format!("xtask: {error}"))?;
    let copy = folder(target).join("rustc-and-clippy");
    let failed = |error: std::io::Error| format!("{}: {error}", copy.display());
    let bytes = fs::read(program).map_err(failed)?;
    // Cargo looks at its date.
    if !fs::read(&copy).is_ok_and(|there| there == bytes) {
        fs::create_dir_all(folder(target)).map_err(failed)?;
        let _ = fs::remove_file(&copy);
        fs::write(&copy, bytes).map_err(failed)?;
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    Ok(copy)
}

/// Where clippy's output goes, which nobody reads.
pub fn folder(target: &Path) -> PathBuf {
    target.join("lint")
}

/// Acts as rustc: the first word is its path, the rest its arguments.
pub fn compile(words: &[OsString], into: &OsStr) -> ExitCode {
    let Some((rustc, args)) = words.split_first() else {
        return ExitCode::from(2);
    };
    let compiled = Command::new(rustc).args(args).status();
    match compiled {
        Ok(status) if status.success() => {}
        other => return code(other),
    }
    match lint_args(args, into) {
        // Cargo asks for a version or the target's features.
        None => ExitCode::SUCCESS,
        Some(args) => code(Command::new("clippy-driver").arg(rustc).args(args).status()),
    }
}

fn code(ended: std::io::Result<ExitStatus>) -> ExitCode {
    match ended {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: the compiler does not start: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The arguments for reading the same crate without making anything; none if nothing is
/// compiled.
fn lint_args(args: &[OsString], into: &OsStr) -> Option<Vec<OsString>> {
    let mut lint = Vec::with_capacity(args.len() + 2);
    let mut is_compiling = false;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if text.starts_with("--emit=") {
            is_compiling = true;
            lint.push("--emit=metadata".into());
        } else if text == "--out-dir" {
            args.next();
            lint.extend([arg.clone(), into.into()]);
        } else if let Some(kinds) = text.strip_prefix("--json=") {
            // Cargo would take them for news of the crate itself.
            let kinds: Vec<&str> = kinds.split(',').filter(|k| *k != "artifacts").collect();
            lint.push(format!("--json={}", kinds.join(",")).into());
        } else {
            lint.push(arg.clone());
        }
    }
    lint.push("-Dwarnings".into());
    is_compiling.then_some(lint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lint(args: &[&str]) -> Option<Vec<String>> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let lint = lint_args(&args, OsStr::new("/lint"))?;
        Some(lint.into_iter().map(|a| a.into_string().unwrap()).collect())
    }

    #[test]
    fn clippy_reads_the_same_crate_and_makes_nothing_that_cargo_looks_at() {
        let args = [
            "--crate-name",
            "gguf",
            "src/lib.rs",
            "--json=diagnostic-rendered-ansi,artifacts,future-incompat",
            "--emit=dep-info,metadata,link",
            "--out-dir",
            "target/release/deps",
            "--test",
        ];
        let expected = [
            "--crate-name",
            "gguf",
            "src/lib.rs",
            "--json=diagnostic-rendered-ansi,future-incompat",
            "--emit=metadata",
            "--out-dir",
            "/lint",
            "--test",
            "-Dwarnings",
        ];
        assert_eq!(lint(&args).unwrap(), expected);
    }

    #[test]
    fn questions_of_cargo_are_not_linted() {
        assert_eq!(lint(&["-vV"]), None);
        assert_eq!(
            lint(&["-", "--crate-name", "___", "--print=file-names"]),
            None
        );
    }
}
