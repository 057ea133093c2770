//! Memory groups and traces are gone afterwards, whatever happens.
//!
//! The program that is killed is this test binary, run again with
//! `TENSORSCOPE_TEST_CHILD`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kernelio::KernelError;
use kernelio::block::{self, BlockRecorder};
use kernelio::files::Files;
use kernelio::kernel_log::Reader;
use kernelio::kernel_log::io::Io;
use kernelio::pressure::{self, MemoryLimit};

const CHILD: &str = "TENSORSCOPE_TEST_CHILD";
const LIMIT_BYTES: u64 = 256 << 20;

/// One at a time: a process that one test starts would begin in the group that another
/// has entered.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Without the variable a test of nothing.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let say = |text: &str| println!("\nready {text}");
    match what.split_once(' ') {
        // Enters a group itself, and waits to be killed.
        Some(("enter", _)) => {
            let mut limit = MemoryLimit::new(LIMIT_BYTES).unwrap();
            limit.enter().unwrap();
            say(limit.group().to_str().unwrap());
            wait_for_end();
        }
        // Leaves a program in the group, which ends with our standard input.
        Some(("confine", _)) => {
            let limit = MemoryLimit::new(LIMIT_BYTES).unwrap();
            let mut command = Command::new("cat");
            command.stdin(Stdio::inherit()).stdout(Stdio::null());
            limit.confine(&mut command).unwrap();
            let mut cat = command.spawn().unwrap();
            say(limit.group().to_str().unwrap());
            cat.wait().unwrap();
            wait_for_end();
        }
        Some(("trace", folder)) => {
            let folder = Path::new(folder);
            let files = Files::register([folder.join("model")]).unwrap();
            let _recorder = BlockRecorder::start(&files, &folder.join("io")).unwrap();
            say(&std::process::id().to_string());
            wait_for_end();
        }
        _ => panic!("{what}"),
    }
}

/// Until we are killed.
fn wait_for_end() {
    loop {
        std::thread::park();
    }
}

/// Starts a child, and returns it with what it says when it is ready.
fn started(what: &str) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let said = stdout
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("ready ").map(str::to_owned));
    (child, said.expect("the child gets ready"))
}

/// Waits for something that happens soon; not how soon, but that it happens.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::yield_now();
    }
}

/// `doctor` asks the probe, `run` and `bench feed` make limits.
#[test]
fn the_probe_says_what_a_limit_does_and_leaves_nothing() {
    let _alone = alone();
    match (pressure::probe(), MemoryLimit::new(LIMIT_BYTES)) {
        (Ok(place), Ok(limit)) => {
            assert_eq!(limit.group().parent(), Some(place.parent.as_path()));
            let group = limit.group().to_owned();
            drop(limit);
            assert!(!group.exists());
        }
        (Err(_), Err(error)) => eprintln!("skipped: {error}"),
        (probe, limit) => panic!("{probe:?}, but {limit:?}"),
    }
}

fn is_allowed() -> bool {
    match MemoryLimit::new(LIMIT_BYTES) {
        Ok(_) => true,
        Err(KernelError::Missing(missing)) => {
            eprintln!("skipped: {missing}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_killed_process_leaves_no_group() {
    let _alone = alone();
    if !is_allowed() {
        return;
    }
    let (mut child, group) = started("enter x");
    let group = PathBuf::from(group);
    let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert_eq!(inside.trim(), child.id().to_string());
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the group is gone", || !group.exists());
}

#[test]
fn a_group_stays_while_a_program_of_a_killed_process_runs() {
    let _alone = alone();
    if !is_allowed() {
        return;
    }
    let (mut child, group) = started("confine x");
    let group = PathBuf::from(group);
    child.kill().unwrap();
    let stdin = child.stdin.take();
    child.wait().unwrap();
    let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert_eq!(inside.lines().count(), 1, "{inside}");
    // The program ends, and with it the group.
    drop(stdin);
    eventually("the group is gone", || !group.exists());
}

#[test]
fn dropping_moves_us_back_and_removes_the_group() {
    let _alone = alone();
    if !is_allowed() {
        return;
    }
    let own = || fs::read_to_string("/proc/self/cgroup").unwrap();
    let before = own();
    let mut limit = MemoryLimit::new(LIMIT_BYTES).unwrap();
    limit.enter().unwrap();
    let group = limit.group().to_owned();
    assert_ne!(own(), before);
    let usage = limit.usage().unwrap();
    assert_eq!((usage.limit_bytes, usage.oom_kills), (LIMIT_BYTES, 0));
    drop(limit);
    assert_eq!(own(), before);
    assert!(!group.exists());
}

#[test]
fn a_killed_recorder_leaves_a_log_and_no_trace() {
    let _alone = alone();
    if let Some(missing) = block::probe() {
        return eprintln!("skipped: {missing}");
    }
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::write(&model, vec![7; 1 << 20]).unwrap();
    if let Err(error) = kernelio::extents::Extents::of(&model) {
        return eprintln!("skipped: {error}");
    }
    let (mut child, pid) = started(&format!("trace {}", folder.path().display()));
    let places = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let instances: Vec<PathBuf> = places
        .iter()
        .map(|place| Path::new(place).join(format!("instances/tensorscope-{pid}")))
        .collect();
    assert!(instances.iter().any(|instance| instance.exists()));
    // Reads that are in the log although nobody has finished it.
    pressure::drop_cache(&model).unwrap();
    fs::read(&model).unwrap();
    let log = folder.path().join("io");
    let read_bytes = || {
        let all = Reader::<Io>::open(&log).unwrap().map(Result::unwrap);
        let ours = all.filter(|io| io.place.is_some());
        ours.map(|io| u64::from(io.piece_bytes)).sum::<u64>()
    };
    eventually("the reads are in the log", || read_bytes() >= 1 << 20);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the trace is gone", || {
        instances.iter().all(|instance| !instance.exists())
    });
    assert!(read_bytes() >= 1 << 20);
}
