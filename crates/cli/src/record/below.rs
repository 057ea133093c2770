//! What the kernel does for the built-in engine while it generates.

use std::{
    fs,
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
    let count = || {
        let all = Counters::of_this_process().ok()?.major_faults;
        Some(all.saturating_sub(faults_of_reader()))
    };
    (0..100).find_map(|_| {
        let before = count()?;
        let nanos = now_nanos();
        let major = count()?;
        (before == major).then_some(FaultsSoFar { nanos, major })
    })
}

/// Of the thread that reads the events, which does not record itself.
fn faults_of_reader() -> u64 {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let of_task = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        if name.trim_end() != kernelio::faults::READER {
            return None;
        }
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        // Behind the name, which may hold anything: state, and `majflt` nine later.
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_ascii_whitespace().nth(9)?.parse::<u64>().ok()
    };
    tasks.filter_map(of_task).sum()
}
