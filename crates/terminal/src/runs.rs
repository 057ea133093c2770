//! Runs opened for a command; what they lack is said, never passed over.

use std::path::Path;

use rundir::Run;

/// Opens a run for any command, and says what it lacks.
pub fn open_run(path: &Path) -> anyhow::Result<Run> {
    let run = Run::open(path)?;
    if let Some(warning) = run.warning() {
        eprintln!("tensorscope: {}: {warning}", path.display());
    }
    Ok(run)
}

/// Says so when the log holds fewer evaluations than were recorded.
pub fn says_what_is_missing(run: &Run, evaluations: u64) -> bool {
    let missing = run.missing_from_log(evaluations);
    if let Some(missing) = &missing {
        eprintln!("tensorscope: {}: {missing}", run.path().display());
    }
    missing.is_some()
}
