//! `kill -9` of any command, at any moment, leaves the system as it was.
//!
//! The bar is 20 kills: `TENSORSCOPE_TEST_KILLS=20 cargo test --release -p tensorscope --test
//! settings` kills as many (7 without the variable, one of each kind).
//!
//! Whatever a command starts has a mark in its environment, so that other tests, and other
//! people on the machine, are told apart from what it left.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use support::random::Random;
use testing::models::shipped;

const MARK: &str = "TENSORSCOPE_TEST_RUN";
/// Larger than the memory that its runs get, and quick to read.
const BIG: &str = "synth --like qwen3-0.6b --layers 9 --vocab 1000 -q -o big.gguf";
const BENCH: &str = "bench feed big.gguf --memory 45% --repeats 1 -n 3 -t 1 --modes stock-best";
const LONG: &str = "-p To -n 8000 -c 8192 --ignore-eos -t 1";
const ENDLESS: &str =
    "SELECT sum(a.bytes * b.bytes + c.bytes) FROM accesses a, accesses b, accesses c";

/// One test at a time: a disk's setting is one command's at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy, Debug)]
enum Kind {
    Record,
    RecordInMemory,
    RecordUnderneath,
    Run,
    Bench,
    View,
    Audit,
}

const KINDS: [Kind; 7] = [
    Kind::Record,
    Kind::RecordInMemory,
    Kind::RecordUnderneath,
    Kind::Run,
    Kind::Bench,
    Kind::View,
    Kind::Audit,
];

#[test]
fn after_a_kill_of_anything_the_system_is_as_before() {
    let kills = std::env::var("TENSORSCOPE_TEST_KILLS").map_or(KINDS.len(), |n| n.parse().unwrap());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new();
    let mut random = Random(0x5e771);
    let mut killed: BTreeMap<String, u32> = BTreeMap::new();
    for number in 0..kills {
        let kind = KINDS[number % KINDS.len()];
        let before = System::now(&folder.mark);
        let Some(mut child) = folder.started(kind, number, &mut random) else {
            continue;
        };
        let now = Instant::now();
        let spread = Duration::from_micros(random.below(3_000));
        while now.elapsed() < spread {
            std::hint::spin_loop();
        }
        // Alone, or with all that were started with it: a terminal that is closed by force.
        let whom = child.id() as i32;
        let whom = if random.below(2) == 0 { whom } else { -whom };
        // SAFETY: a child that was not waited for, which leads its process group.
        assert_eq!(unsafe { libc::kill(whom, libc::SIGKILL) }, 0);
        child.wait().unwrap();
        eventually(&format!("kill {number}, {kind:?}: all as before"), || {
            before.differences(&System::now(&folder.mark))
        });
        assert_eq!(folder.temporary_files(), Vec::<PathBuf>::new(), "{kind:?}");
        *killed.entry(format!("{kind:?}")).or_default() += 1;
    }
    println!("killed, and all as before: {killed:?}");
}

/// Where even the guardians are killed, the next command that depends on it puts it back.
#[test]
fn what_nobody_could_put_back_is_put_back_by_the_next_command() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new();
    let before = System::now(&folder.mark);
    let is_changed = || {
        let now = before.differences(&System::now(&folder.mark));
        now.iter().any(|line| line.contains("read_ahead_kb"))
    };
    let mut child = loop {
        let Some(mut child) = folder.started(Kind::Bench, 0, &mut Random(1)) else {
            return;
        };
        // It stands still while its guardians are killed.
        // SAFETY: a child that was not waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGSTOP) }, 0);
        if is_changed() {
            break child;
        }
        // It was between two settings.
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let program = child.id() as i32;
    // Not by their name, which one that has just been forked does not have yet.
    for pid in marked(&folder.mark)
        .into_iter()
        .filter(|&pid| pid != program)
    {
        // SAFETY: a process that the child has started.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("all are gone", || {
        marked(&folder.mark).iter().map(i32::to_string).collect()
    });
    assert!(is_changed());
    // Folders go with the next command that makes one of their kind.
    let args = "record -m MODEL -p To -n 4 -t 1 --memory 500M -q -o after";
    let output = folder.command(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("put back to "), "{said}");
    let left = before.differences(&System::now(&folder.mark));
    assert_eq!(left, Vec::<String>::new());
    let output = folder
        .command("audit -m MODEL -p To -n 1 -t 1")
        .output()
        .unwrap();
    assert!(output.status.success());
    assert_eq!(folder.temporary_files(), Vec::<PathBuf>::new());
}

/// Where commands run, with a folder for temporary files of its own.
struct Folder {
    folder: tempfile::TempDir,
    mark: String,
}

impl Folder {
    /// On the disk: what lies in memory is not read ahead.
    fn new() -> Folder {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        let mark = folder.path().display().to_string();
        let folder = Folder { folder, mark };
        assert!(folder.command(BIG).output().unwrap().status.success());
        folder
    }

    /// Leads a process group. `MODEL` stands for a small model.
    fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
        let model = shipped("shakespeare-dense.gguf").display().to_string();
        command
            .current_dir(self.folder.path())
            .args(args.split(' ').map(|arg| match arg {
                "MODEL" => &model,
                other => other,
            }))
            .env("TMPDIR", self.folder.path().join("tmp"))
            .env(MARK, &self.mark)
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// A command that is in the middle of what it does; None where this machine does not
    /// let it.
    fn started(&self, kind: Kind, number: usize, random: &mut Random) -> Option<Child> {
        let run = format!("run-{number}");
        let start = |args: &str| {
            let mut command = self.command(args);
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn().unwrap()
        };
        let mut printing = |args: &str| {
            let mut child = start(args);
            let mut text = vec![0; 1 + random.below(200) as usize];
            let stdout = child.stdout.as_mut().unwrap();
            stdout.read_exact(&mut text).expect("it prints text");
            child
        };
        Some(match kind {
            Kind::Record => printing(&format!("record -m MODEL {LONG} -o {run}")),
            Kind::RecordInMemory => {
                let child = printing(&format!("record -m MODEL {LONG} --memory 300M -o {run}"));
                assert!(!ours("/sys/fs/cgroup/memory", child.id()).is_empty() || is_version_two());
                child
            }
            Kind::RecordUnderneath => printing(&format!(
                "record -m MODEL {LONG} --cold --faults=all --io --residency=4 -o {run}"
            )),
            Kind::Run => printing(&format!("run -m MODEL {LONG} --memory 300M --always")),
            Kind::Bench => {
                let file = read_ahead_of(self.folder.path());
                let Some(file) = file.filter(|file| {
                    let now = fs::read_to_string(file).unwrap_or_default();
                    fs::write(file, now.trim()).is_ok()
                }) else {
                    println!("skipped: how far the disk is read ahead cannot be changed here");
                    return None;
                };
                let found = fs::read_to_string(&file).unwrap();
                let mut child = start(BENCH);
                eventually("the sweep changes the disk's read-ahead", || {
                    assert_eq!(child.try_wait().unwrap(), None, "it must not have ended");
                    let now = fs::read_to_string(&file).unwrap();
                    Vec::from_iter((now == found).then_some(now))
                });
                child
            }
            Kind::View => {
                let record = "record -m MODEL -p To -n 8 -t 1 -q -o viewed";
                if !self.folder.path().join("viewed").exists() {
                    assert!(self.command(record).output().unwrap().status.success());
                }
                let mut child = start("view viewed --no-open");
                let mut address = String::new();
                let mut stdout = BufReader::new(child.stdout.take().unwrap());
                stdout.read_line(&mut address).unwrap();
                ask(address.trim_end());
                eventually("a query is worked on", || match marked(&self.mark).len() {
                    0 | 1 => vec!["nobody".to_owned()],
                    _ => Vec::new(),
                });
                child
            }
            Kind::Audit => {
                let mut child = start("audit -m MODEL -p To -n 400 -c 512 --ignore-eos -t 1");
                eventually("it has begun its log", || {
                    assert_eq!(child.try_wait().unwrap(), None, "it must not have ended");
                    let has_log = self.temporary_files().iter().any(|path| {
                        let entries = fs::read_dir(path).into_iter().flatten().count();
                        path.is_dir() && entries > 0
                    });
                    Vec::from_iter((!has_log).then(|| "no log".to_owned()))
                });
                child
            }
        })
    }

    fn temporary_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("tmp")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

/// Sends a query that takes hours, and does not wait for it.
fn ask(address: &str) {
    let rest = address.strip_prefix("http://").unwrap();
    let (host, token) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let length = ENDLESS.len();
    let request = format!(
        "POST /{token}api/0/sql HTTP/1.1\r\nHost: {host}\r\nx-tensorscope: 1\r\nContent-Length: {length}\r\n\r\n{ENDLESS}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    // Open for as long as the viewer lives: who goes is not answered.
    std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
}

/// Waits until nothing is left of what `missing` names; not how soon, but that it happens.
fn eventually(what: &str, mut missing: impl FnMut() -> Vec<String>) {
    let begin = Instant::now();
    loop {
        let left = missing();
        if left.is_empty() {
            return;
        }
        let is_late = begin.elapsed() > Duration::from_secs(120);
        assert!(!is_late, "never: {what}: {left:?}");
        std::thread::yield_now();
    }
}

/// What a command could have changed, by name.
struct System(BTreeMap<String, String>);

impl System {
    fn now(mark: &str) -> System {
        let mut all = BTreeMap::new();
        let mut note = |path: &Path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            all.insert(path.display().to_string(), text.trim().to_owned());
        };
        for disk in entries(Path::new("/sys/block")) {
            note(&disk.join("queue/read_ahead_kb"));
            note(&disk.join("queue/scheduler"));
        }
        for file in [
            "/proc/sys/kernel/perf_event_paranoid",
            "/proc/sys/kernel/kptr_restrict",
            "/proc/sys/kernel/perf_event_mlock_kb",
            "/proc/sys/vm/unprivileged_userfaultfd",
            "/proc/sys/vm/swappiness",
            "/proc/sys/vm/overcommit_memory",
            "/proc/sys/vm/nr_hugepages",
            "/proc/sys/vm/max_map_count",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/sys/kernel/tracing/uprobe_events",
            "/sys/kernel/tracing/kprobe_events",
            "/sys/kernel/tracing/set_event",
            "/sys/kernel/tracing/current_tracer",
            "/sys/kernel/tracing/tracing_on",
            "/proc/self/limits",
        ] {
            note(Path::new(file));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let ours = |line: &&str| line.contains("tracefs") || line.contains("tensorscope");
        let mounts: Vec<&str> = mounts.lines().filter(ours).collect();
        all.insert("mounts".to_owned(), mounts.join("\n"));
        // Those of the living may be of another test.
        let groups = entries(Path::new("/sys/fs/cgroup"));
        let kernel = ["/sys/kernel/tracing/instances", "/sys/fs/cgroup"].map(PathBuf::from);
        for parent in groups.iter().chain(&kernel) {
            for path in below(parent, 2).into_iter().filter(|path| is_of_dead(path)) {
                all.insert(path.display().to_string(), "left".to_owned());
            }
        }
        for parent in ["/run", "/dev/shm"].map(Path::new) {
            for path in entries(parent).iter().filter(|path| is_named(path)) {
                // Notes that somebody holds are another test's.
                for note in entries(path).iter().filter(|note| is_free(note)) {
                    all.insert(note.display().to_string(), "left".to_owned());
                }
            }
        }
        for pid in marked(mark) {
            all.insert(format!("process {pid}"), "runs".to_owned());
        }
        System(all)
    }

    /// But for what others had left before, and a command of ours has removed: it should.
    fn differences(&self, after: &System) -> Vec<String> {
        let names: std::collections::BTreeSet<&String> =
            self.0.keys().chain(after.0.keys()).collect();
        let differs = |name: &&String| match (self.0.get(*name), after.0.get(*name)) {
            (Some(before), None) => before != "left",
            (before, after) => before != after,
        };
        let line = |name: &String| {
            format!(
                "{name}: {:?}, now {:?}",
                self.0.get(name),
                after.0.get(name)
            )
        };
        names.into_iter().filter(differs).map(line).collect()
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Folders of folders, not files.
fn below(folder: &Path, depth: u32) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for path in entries(folder) {
        if path.is_dir() && !path.is_symlink() {
            if depth > 0 && !is_named(&path) {
                all.extend(below(&path, depth - 1));
            }
            all.push(path);
        }
    }
    all
}

fn is_named(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("tensorscope"))
}

fn is_of_dead(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let pid = name.and_then(|name| name.strip_prefix("tensorscope-")?.split('-').next());
    pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
}

fn is_free(note: &Path) -> bool {
    use std::os::fd::AsRawFd as _;
    let Ok(file) = fs::File::open(note) else {
        return false;
    };
    // SAFETY: a descriptor of ours; the lock goes with it.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Folders named after the process.
fn ours(parent: &str, pid: u32) -> Vec<PathBuf> {
    let name = format!("tensorscope-{pid}");
    let mut found = below(Path::new(parent), 3);
    found.retain(|path| path.file_name().is_some_and(|n| *n == *name));
    found
}

fn is_version_two() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Processes that have the mark in their environment; the dead have none.
fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for entry in entries(Path::new("/proc")) {
        let name = entry.file_name().and_then(|name| name.to_str());
        let Some(pid) = name.and_then(|name| name.parse().ok()) else {
            continue;
        };
        let environment = fs::read(entry.join("environ")).unwrap_or_default();
        if environment
            .split(|&b| b == 0)
            .any(|variable| variable == wanted.as_bytes())
        {
            found.push(pid);
        }
    }
    found
}

/// The setting of the disk that the folder lies on.
fn read_ahead_of(folder: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let device = fs::metadata(folder).unwrap().dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    ["queue/read_ahead_kb", "../queue/read_ahead_kb"]
        .into_iter()
        .map(|name| block.join(name))
        .find(|file| file.exists())
}
