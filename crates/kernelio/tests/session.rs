//! A whole recording, of a program and of this process: counts are the kernel's,
//! files have the numbers of the run, and what is forbidden is said.
//!
//! The program is this test binary, run again with `TENSORSCOPE_TEST_CHILD`: it maps
//! files, says where, and touches them.

mod mapping;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernelio::faults::MinorFaults;
use kernelio::files::Files;
use kernelio::kernel_log::Reader;
use kernelio::kernel_log::faults::{Fault, FaultKind};
use kernelio::kernel_log::io::{Io, Operation};
use kernelio::kernel_log::residency::{ResidencyReader, Sample};
use kernelio::pressure::{self, MemoryLimit};
use kernelio::session::{Session, SessionSummary, TokenCount, Wish};
use kernelio::{KernelError, block, faults};
use mapping::{advise, mapped};

const CHILD: &str = "TENSORSCOPE_TEST_CHILD";
const RECORDER: &str = "TENSORSCOPE_TEST_RECORDER";
const LIMIT_BYTES: u64 = 64 << 20;
const PAGE: u64 = 4096;

const EVERYTHING: Wish = Wish {
    faults: Some(MinorFaults::LeftOut),
    io: true,
    residency_every: Some(0),
    cpu: false,
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
    // It fits, so it was read once.
    assert_close(
        io.file_read_bytes + bytes[1],
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

/// Records itself while its tokens grow.
#[test]
fn this_process_is_sampled_every_so_many_tokens() {
    let _alone = alone();
    if is_forbidden() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    let bytes = 32 << 20;
    scratch_file(&model, bytes);
    let log = folder.path().join("log");
    fs::create_dir(&log).unwrap();
    let files = Files::register([&model]).unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let asked = Arc::clone(&count);
    let tokens: TokenCount = Arc::new(move || asked.load(Ordering::Relaxed));
    let wish = Wish {
        residency_every: Some(4),
        ..EVERYTHING
    };
    let session = Session::of_this_process(&wish, files.clone(), &log, tokens);
    assert_eq!(session.missing(), []);
    let start = mapped(&model, bytes);
    advise(start, bytes, libc::MADV_RANDOM);
    let part = bytes / 4;
    let residency = log.join("residency");
    for number in 0..3 {
        touch_every(1, start + number * part, part);
        // 5, 10, 15: each crosses a multiple of 4.
        count.fetch_add(5, Ordering::Relaxed);
        // Readers see a sample as soon as it was taken.
        while all_samples(&residency).len() as u64 != number + 2 {
            std::thread::yield_now();
        }
    }
    let summary = session.finish(&files).unwrap();
    eprintln!("{summary:?}");
    assert_eq!(summary.missing, []);
    assert_eq!(names(&log), ["faults", "io", "residency"]);
    let samples = all_samples(&residency);
    let found: Vec<(u64, u64)> = samples
        .iter()
        .map(|sample| (sample.token, sample.residency.resident_bytes(0..u64::MAX)))
        .collect();
    let expect = [
        (0, 0),
        (5, part),
        (10, 2 * part),
        (15, 3 * part),
        (15, 3 * part),
    ];
    assert_eq!(found, expect);
    assert_eq!(summary.samples, 5);
    let faults = summary.faults.unwrap();
    assert_eq!(faults.major, summary.counters.major_faults);
    assert_eq!(faults.in_files, 3 * part / PAGE);
    let io = summary.io.unwrap();
    assert_eq!(io.file_read_bytes, 3 * part);
    let places: Vec<Io> = all(&log.join("io"));
    assert!(
        places
            .iter()
            .any(|io| io.place.is_some_and(|p| p.file == 0))
    );

    // The same process, counted in another order at the end.
    let other = folder.path().join("other.gguf");
    scratch_file(&other, bytes);
    let log = folder.path().join("log2");
    fs::create_dir(&log).unwrap();
    let session = Session::of_this_process(
        &EVERYTHING,
        Files::register([&other, &model]).unwrap(),
        &log,
        no_tokens(),
    );
    let start = mapped(&other, bytes);
    advise(start, bytes, libc::MADV_RANDOM);
    touch_every(1, start, part);
    let order = Files::register([&model, &other]).unwrap();
    let summary = session.finish(&order).unwrap();
    assert_eq!(names(&log), ["faults", "io", "residency"]);
    let faults: Vec<Fault> = all(&log.join("faults"));
    let in_other = |fault: &&Fault| fault.place.is_some_and(|place| place.file == 1);
    assert_eq!(faults.iter().filter(in_other).count() as u64, part / PAGE);
    assert_eq!(summary.faults.unwrap().in_files, part / PAGE);
    assert_eq!(summary.io.unwrap().file_read_bytes, part);
    let pieces: Vec<Io> = all(&log.join("io"));
    let of_other = pieces
        .iter()
        .filter(|io| io.place.is_some_and(|p| p.file == 1));
    assert_eq!(
        of_other.map(|io| u64::from(io.piece_bytes)).sum::<u64>(),
        part
    );
    let last = all_samples(&log.join("residency"));
    let resident = |sample: &Sample| (sample.file, sample.residency.resident_bytes(0..u64::MAX));
    let expect = [(1, 0), (0, 3 * part), (0, 3 * part), (1, part)];
    assert_eq!(last.iter().map(resident).collect::<Vec<_>>(), expect);
}

/// The program of the next test: a recorder that may not do much. Without the
/// variable a test of nothing.
#[test]
fn recorder() {
    let Ok(folder) = std::env::var(RECORDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let (model, log) = (folder.join("model.gguf"), folder.join("log"));
    scratch_file(&model, 8 << 20);
    fs::create_dir(&log).unwrap();
    let mut command = this_binary("child");
    command.env(CHILD, &model).env_remove(RECORDER);
    let (mut child, mut session) =
        Session::of_child(&EVERYTHING, &mut command, &log, no_tokens()).unwrap();
    let missing = session.missing().to_vec();
    assert!(session.wait(&mut child).unwrap().success());
    let summary = session.finish(&Files::register([&model]).unwrap()).unwrap();
    assert_eq!(missing, summary.missing);
    assert_eq!(summary.io, None);
    assert!(!log.join("io").exists() && log.join("residency").exists());
    assert_eq!(log.join("faults").exists(), summary.faults.is_some());
    assert!(summary.counters.major_faults > 0 && summary.counters.minor_faults > 0);
    let read_bytes = summary.counters.read_bytes;
    assert!(
        read_bytes.is_some_and(|bytes| bytes >= 8 << 20),
        "{read_bytes:?}"
    );
    println!("summary {}", serde_json::to_string(&summary).unwrap());
}

/// Whoever is nobody may not trace block requests, and sees what to do about it.
#[test]
fn what_is_forbidden_is_named_and_the_rest_is_recorded() {
    let _alone = alone();
    // SAFETY: only asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: only root can become nobody");
    }
    let nobody = 65534;
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(nobody), Some(nobody)).unwrap();
    let mut command = this_binary("recorder");
    command.env(RECORDER, folder.path()).uid(nobody).gid(nobody);
    let output = match command.stdin(Stdio::null()).stderr(Stdio::piped()).output() {
        Ok(output) => output,
        Err(error) => return eprintln!("skipped: nobody may not run this test: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let summary = text
        .split_once("summary ")
        .unwrap()
        .1
        .lines()
        .next()
        .unwrap();
    let summary: SessionSummary = serde_json::from_str(summary).unwrap();
    eprintln!("{summary:#?}");
    let requests = summary
        .missing
        .iter()
        .find(|one| one.what == "block requests");
    assert!(requests.unwrap().fix.contains("sudo"), "{requests:?}");
    // Its first sample comes when the file is discovered, whoever discovers it.
    assert!(summary.samples >= 1);
    if let Some(faults) = summary.faults {
        assert_eq!(faults.in_files + faults.elsewhere, faults.major);
        assert!(faults.in_files > 0);
    }
}

#[test]
fn a_program_that_cannot_be_run_leaves_nothing() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("/no/such/program");
    let result = Session::of_child(&EVERYTHING, &mut command, folder.path(), no_tokens());
    let text = result.unwrap_err().to_string();
    assert!(
        text.starts_with("/no/such/program: cannot be run: "),
        "{text}"
    );
    assert_eq!(names(folder.path()), [""; 0]);
}

/// Who collects the child without us still has its counters.
#[test]
fn counters_are_there_without_anything_else() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("true");
    let (mut child, session) =
        Session::of_child(&Wish::default(), &mut command, folder.path(), no_tokens()).unwrap();
    assert!(child.wait().unwrap().success());
    let summary = session.finish(&Files::default()).unwrap();
    assert!(summary.counters.minor_faults > 0 && summary.counters.read_bytes.is_some());
    assert_eq!(
        (summary.faults, summary.io, summary.samples),
        (None, None, 0)
    );
    assert_eq!(names(folder.path()), [""; 0]);
}
