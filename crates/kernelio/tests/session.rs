//! A whole recording, of a program and of this process: counts are the kernel's,
//! files have the numbers of the run, and what is forbidden is said.
//!
//! The program is this test binary, run again with `TENSORSCOPE_TEST_CHILD`: it maps
//! files, says where, and touches them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernelio::faults::MinorFaults;
use kernelio::files::Files;
use kernelio::kernel_log::Reader;
use kernelio::kernel_log::faults::{Fault, FaultKind};
use kernelio::kernel_log::io::{Io, Operation};
use kernelio::kernel_log::residency::{ResidencyReader, Sample};
use kernelio::pressure::{self, MemoryLimit};
use kernelio::session::{Session, TokenCount, Wish};
use kernelio::{KernelError, block, faults};

const CHILD: &str = "TENSORSCOPE_TEST_CHILD";
const LIMIT_BYTES: u64 = 64 << 20;
const PAGE: u64 = 4096;

const EVERYTHING: Wish = Wish {
    faults: Some(MinorFaults::LeftOut),
    io: true,
    residency_every: Some(0),
};

/// Tests here compare totals, so one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program that is recorded; without the variable a test of nothing. It touches
/// every page of each file, and before it says so and waits.
#[test]
fn child() {
    let Ok(paths) = std::env::var(CHILD) else {
        return;
    };
    for path in paths.split(':') {
        let bytes = fs::metadata(path).unwrap().len();
        let start = mapped(Path::new(path), bytes);
        println!("mapped {start} {path}");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        // Without read-ahead, where every touch is a major fault, and then with.
        advise(start, bytes, libc::MADV_RANDOM);
        touch_every(8, start, bytes);
        advise(start, bytes, libc::MADV_NORMAL);
        touch_every(1, start, bytes);
        touch_every(1, start, bytes);
    }
}

/// The address of a mapping that stays.
fn mapped(path: &Path, bytes: u64) -> u64 {
    let file = File::open(path).unwrap();
    // SAFETY: a new mapping of a file that nobody shortens, read only.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    start as u64
}

fn advise(start: u64, bytes: u64, advice: libc::c_int) {
    // SAFETY: advice about a mapping of `mapped`.
    let result = unsafe { libc::madvise(start as *mut _, bytes as usize, advice) };
    assert_eq!(result, 0);
}

fn touch_every(pages: usize, start: u64, bytes: u64) {
    for offset in (0..bytes).step_by(pages * PAGE as usize) {
        // SAFETY: inside of a mapping of `mapped`.
        std::hint::black_box(unsafe { ((start + offset) as *const u8).read_volatile() });
    }
}

/// Writes a file in full, on the disk and not in memory.
fn scratch_file(path: &Path, bytes: u64) {
    let mut file = File::create(path).unwrap();
    for number in 0..bytes >> 20 {
        file.write_all(&vec![number as u8; 1 << 20]).unwrap();
    }
    drop(file);
    assert_eq!(pressure::drop_cache(path).unwrap().left_bytes, 0);
}

fn this_binary(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn no_tokens() -> TokenCount {
    Arc::new(|| 0)
}

fn is_forbidden() -> bool {
    let missing: Vec<_> = [faults::probe(), block::probe()]
        .into_iter()
        .flatten()
        .collect();
    missing.iter().for_each(|one| eprintln!("skipped: {one}"));
    !missing.is_empty()
}

fn limited() -> Option<MemoryLimit> {
    match MemoryLimit::new(LIMIT_BYTES) {
        Ok(limit) => Some(limit),
        Err(KernelError::Missing(missing)) => {
            eprintln!("skipped: {missing}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn all<R: kernelio::kernel_log::Record>(log: &Path) -> Vec<R> {
    let records = Reader::open(log).unwrap();
    records.collect::<Result<_, _>>().unwrap()
}

fn all_samples(log: &Path) -> Vec<Sample> {
    let samples = ResidencyReader::open(log).unwrap();
    samples.collect::<Result<_, _>>().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn assert_close(ours: u64, theirs: u64, what: &str) {
    eprintln!("{what}: {ours} recorded, {theirs} counted");
    assert!(ours.abs_diff(theirs) * 100 <= theirs, "{what}");
}

#[test]
fn files_of_a_child_get_the_numbers_of_the_run() {
    let _alone = alone();
    if is_forbidden() {
        return;
    }
    let Some(limit) = limited() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Loaded in this order: a small one known by its name, a large one that is no
    // model of the run, and one without a name.
    let loaded = [path("first.gguf"), path("data"), path("blob")];
    let bytes = [8 << 20, 40 << 20, 120 << 20];
    for (path, bytes) in loaded.iter().zip(bytes) {
        scratch_file(path, bytes);
    }
    let log = path("log");
    fs::create_dir(&log).unwrap();
    let words: Vec<&str> = loaded.iter().map(|path| path.to_str().unwrap()).collect();
    let mut command = this_binary("child");
    command.env(CHILD, words.join(":"));
    limit.confine(&mut command).unwrap();
    let (mut child, mut session) =
        Session::of_child(&EVERYTHING, &mut command, &log, no_tokens()).unwrap();
    assert_eq!(session.missing(), []);
    let pid = child.id();
    let mut starts = Vec::new();
    let mut stdin = child.stdin.take().unwrap();
    let stdout = child.stdout.take().unwrap();
    for line in BufReader::new(stdout).lines() {
        if let Some((_, rest)) = line.unwrap().split_once("mapped ") {
            let (start, _) = rest.split_once(' ').unwrap();
            starts.push(start.parse::<u64>().unwrap());
            writeln!(stdin, "go").unwrap();
        }
    }
    assert!(session.wait(&mut child).unwrap().success());
    // The run counts them in another order, and one more that was never mapped.
    scratch_file(&path("unused.gguf"), 1 << 20);
    let order = [path("blob"), path("unused.gguf"), path("first.gguf")];
    let summary = session.finish(&Files::register(&order).unwrap()).unwrap();
    eprintln!("{summary:?}");
    assert_eq!(summary.missing, []);
    assert_eq!(names(&log), ["faults", "io", "residency"]);

    let faults = summary.faults.unwrap();
    assert_eq!(faults.lost, 0);
    assert_eq!(faults.major, summary.counters.major_faults);
    assert_eq!(faults.kernel_major, faults.major);
    assert!(faults.major > 1000, "too few to prove anything");
    let mut by_file: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    let list: Vec<Fault> = all(&log.join("faults"));
    for fault in &list {
        assert_eq!((fault.pid, fault.kind), (pid, FaultKind::Major));
        *by_file.entry(fault.place.map(|p| p.file)).or_default() += 1;
        // The first of them is number 2, the last number 0.
        let mapping = |of: usize| starts[of]..starts[of] + bytes[of];
        let expect = [(0, 2), (2, 0)].into_iter().find_map(|(of, file)| {
            let offset = fault.address.checked_sub(starts[of])?;
            mapping(of)
                .contains(&fault.address)
                .then_some((file, offset))
        });
        assert_eq!(fault.place.map(|p| (p.file, p.file_offset)), expect);
    }
    eprintln!("{by_file:?}");
    let count = |file: Option<u32>| by_file.get(&file).copied().unwrap_or(0);
    assert!(count(Some(0)) > 100 && count(Some(2)) > 10 && count(None) > 100);
    assert_eq!(count(Some(1)), 0);
    assert_eq!(count(Some(0)) + count(Some(2)), faults.in_files);
    assert_eq!(count(None), faults.elsewhere);

    let io = summary.io.unwrap();
    let list: Vec<Io> = all(&log.join("io"));
    let mut read_bytes: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for io in list
        .iter()
        .filter(|io| io.rwbs.operation() == Operation::Read)
    {
        *read_bytes.entry(io.place.map(|p| p.file)).or_default() += u64::from(io.piece_bytes);
    }
    let read = |file: u32| read_bytes.get(&Some(file)).copied().unwrap_or(0);
    // The large one does not fit, so it was read more than once.
    assert_close(read(2), bytes[0], "bytes of the small file");
    assert!(read(0) > bytes[2] * 3 / 2, "{read_bytes:?}");
    assert_eq!(io.file_read_bytes, read(0) + read(1) + read(2));
    assert_close(
        io.read_bytes,
        summary.counters.read_bytes.unwrap(),
        "bytes of the process",
    );

    // Each when it was discovered and at the end, the unused one only then.
    let samples = all_samples(&log.join("residency"));
    assert_eq!(samples.len() as u64, summary.samples);
    let mut of_file = BTreeMap::new();
    for sample in &samples {
        *of_file.entry(sample.file).or_insert(0) += 1;
    }
    assert_eq!(of_file, BTreeMap::from([(0, 2), (1, 1), (2, 2)]));
    let last = samples.iter().rfind(|sample| sample.file == 0).unwrap();
    let resident = last.residency.resident_bytes(0..u64::MAX);
    assert!(resident > LIMIT_BYTES / 2 && resident <= LIMIT_BYTES);
}
