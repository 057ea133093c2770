//! What the kernel does for the built-in engine while it generates.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kernelio::{counters::Counters, files::Files, session::Session};
use rundir::RunDirectory;
use trace::clock::now_nanos;

use crate::underneath::{self, UnderneathArgs};

/// Begins to record what the kernel does for this process, when that is wished.
pub fn watch(
    args: &UnderneathArgs,
    files: &[PathBuf],
    directory: &RunDirectory,
    tokens: &Arc<AtomicU64>,
) -> anyhow::Result<Option<Session>> {
    let Some(wish) = args.wish() else {
        return Ok(None);
    };
    let files = Files::register(files)?;
    let tokens = Arc::clone(tokens);
    let count = Arc::new(move || tokens.load(Ordering::Relaxed));
    let session = Session::of_this_process(&wish, files, &directory.log_directory(), count);
    underneath::say_missing(&session);
    Ok(Some(session))
}

/// Major faults of this process until a moment.
#[derive(Clone, Copy)]
pub struct FaultsSoFar {
    pub nanos: u64,
    pub major: u64,
}

/// Asks until no fault falls between the count and the time: asking may fault.
pub fn faults_so_far() -> Option<FaultsSoFar> {
    let count = || Some(Counters::of_this_process().ok()?.major_faults);
    (0..100).find_map(|_| {
        let before = count()?;
        let nanos = now_nanos();
        let major = count()?;
        (before == major).then_some(FaultsSoFar { nanos, major })
    })
}
