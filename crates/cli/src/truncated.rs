//! The model's file was cut short under the built-in engine: a sentence, exit code 1, and
//! what was recorded kept.

use std::path::{Path, PathBuf};

use engine::truncation::{Opened, watch};
use rundir::RunDirectory;

use crate::record::directory::{Outcome, Tables, finish};

/// Watches over the model's files, from before they are mapped. `run`: the directory of what
/// is recorded.
pub fn guard(model: &gguf::Model, run: Option<(PathBuf, bool)>) {
    let end = |why: String| {
        let is_told = run.is_some_and(|(path, is_quiet)| keep(&path, is_quiet, &why));
        if !is_told {
            eprintln!("tensorscope: {why}");
        }
        crate::end_now(1);
    };
    // Without it the program dies of the signal, as it would have without us.
    let _ = watch(Opened::all_of(model), end);
}

/// Ends the run as far as it got; the thread that records stands still for good. Whether
/// the user was told.
fn keep(path: &Path, is_quiet: bool, why: &str) -> bool {
    let Ok(directory) = RunDirectory::again(path) else {
        return false;
    };
    match Outcome::cut_off(&directory.log_directory(), why) {
        None => {
            directory.discard();
            false
        }
        Some(outcome) => finish(is_quiet, Tables::Later, directory, outcome).is_ok(),
    }
}
