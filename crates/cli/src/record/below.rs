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

use launch::underneath::{self, UnderneathArgs};

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

/// Major faults of this process until a moment, but for those of our own threads.
pub struct FaultsSoFar {
    pub nanos: u64,
    pub major: u64,
    pub own_threads: Vec<u32>,
}

/// Asks until no fault falls between the count and the time: asking may fault.
pub fn faults_so_far() -> Option<FaultsSoFar> {
    let count = || {
        let all = Counters::of_this_process().ok()?.major_faults;
        let own = own_threads();
        let ours: u64 = own.iter().map(|(_, major)| major).sum();
        Some((all.saturating_sub(ours), own))
    };
    (0..100).find_map(|_| {
        let before = count()?;
        let nanos = now_nanos();
        let after = count()?;
        (before == after).then(|| FaultsSoFar {
            nanos,
            major: after.0,
            own_threads: after.1.iter().map(|(tid, _)| *tid).collect(),
        })
    })
}

/// Our own threads: those that read the events and do not record themselves, one that looks
/// at the machine, and one that prepares the log, whose pages the kernel fills in (MADV_POPULATE_WRITE), which it
/// counts as faults without an event.
const OWN_THREADS: [&str; 4] = [
    kernelio::faults::READER,
    kernelio::cpu::READER,
    kernelio::cpu::MACHINE_READER,
    "tensorscope-log",
];

/// Numbers of our own threads, and their major faults.
fn own_threads() -> Vec<(u32, u64)> {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let of_task = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        if !OWN_THREADS.contains(&name.trim_end()) {
            return None;
        }
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        // Behind the name, which may hold anything: state, and `majflt` nine later.
        let (_, fields) = stat.rsplit_once(')')?;
        let major = fields.split_ascii_whitespace().nth(9)?.parse().ok()?;
        Some((task.file_name().to_str()?.parse().ok()?, major))
    };
    tasks.filter_map(of_task).collect()
}
