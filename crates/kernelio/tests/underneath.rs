//! What is recorded equals what the kernel counts, for a program that reads a file
//! larger than its memory.
//!
//! The program is this test binary, run again with `TENSORSCOPE_TEST_CHILD`: it maps
//! the file, says where, and touches bytes in an order that can be computed again.

mod mapping;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use kernelio::block::{self, BlockRecorder};
use kernelio::counters::Counters;
use kernelio::extents::Extents;
use kernelio::faults::{self, FaultRecorder, MinorFaults, Target};
use kernelio::files::Files;
use kernelio::kernel_log::Reader;
use kernelio::kernel_log::faults::{Fault, FaultKind};
use kernelio::kernel_log::io::{Io, Operation};
use kernelio::launch::spawn_held;
use kernelio::pressure::{self, MemoryLimit};
use kernelio::{KernelError, Missing};
use mapping::{advise, mapped};

const CHILD: &str = "TENSORSCOPE_TEST_CHILD";
const FILE_BYTES: u64 = 200 << 20;
const LIMIT_BYTES: u64 = 64 << 20;
const PAGE: u64 = 4096;
const TOUCHES: u64 = 3000;

/// Tests here compare totals of the disk, so one runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// The program that is recorded; without the variable a test of nothing.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let bytes = fs::metadata(&path).unwrap().len();
    let start = mapped(Path::new(&path), bytes);
    println!("mapped {} {start}", std::process::id());
    let touch_all = |offsets: &[u64]| offsets.iter().for_each(|offset| touch(start, *offset));
    let [first, second, all] = touched(bytes);
    // Without read-ahead, from two threads, then from front to back with it.
    advise(start, bytes, libc::MADV_RANDOM);
    std::thread::scope(|scope| {
        scope.spawn(|| touch_all(&first));
        scope.spawn(|| touch_all(&second));
    });
    advise(start, bytes, libc::MADV_NORMAL);
    touch_all(&all);
}

fn touch(start: u64, offset: u64) {
    // SAFETY: inside of a mapping of `mapped`.
    std::hint::black_box(unsafe { ((start + offset) as *const u8).read_volatile() });
}

/// Offsets that the child touches: two random lists, and one byte of every page.
fn touched(file_bytes: u64) -> [Vec<u64>; 3] {
    let random = |seed: u64| {
        let mut state = seed;
        (0..TOUCHES)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 20) % file_bytes
            })
            .collect()
    };
    let all = (0..file_bytes / PAGE)
        .map(|page| page * PAGE + 17)
        .collect();
    [random(1), random(2), all]
}

/// A file written in full, on the disk and not in memory.
fn scratch_file(bytes: u64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let mut file = File::create(&path).unwrap();
    let mut block = vec![0u8; 1 << 20];
    for number in 0..bytes >> 20 {
        for (at, word) in block.chunks_mut(8).enumerate() {
            word.copy_from_slice(&(number << 32 | at as u64).to_le_bytes());
        }
        file.write_all(&block).unwrap();
    }
    drop(file);
    let dropped = pressure::drop_cache(&path).unwrap();
    assert_eq!(dropped.left_bytes, 0, "{dropped:?}");
    (folder, path)
}

/// This binary as the child, or as the argument of another program.
fn child_command(model: &Path, before: &[&str]) -> Command {
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().unwrap();
    let words = [before, &[this, "--exact", "child", "--nocapture"]].concat();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .env(CHILD, model)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// Process and address that the child says.
fn mapping_of(child: &mut Child) -> (u32, u64) {
    let stdout = child.stdout.take().unwrap();
    let mut found = None;
    for line in BufReader::new(stdout).lines() {
        let line = line.unwrap();
        if let Some((_, numbers)) = line.split_once("mapped ") {
            let (pid, start) = numbers.split_once(' ').unwrap();
            found = Some((pid.parse().unwrap(), start.trim().parse().unwrap()));
        }
    }
    found.expect("the child says where it has mapped the file")
}

/// A reason of the kernel, or a bug.
fn allowed<T>(result: Result<T, KernelError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(KernelError::Missing(missing)) => {
            skip(&missing);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn skip(missing: &Missing) {
    eprintln!("skipped: {missing}");
}

fn is_forbidden(probes: &[fn() -> Option<Missing>]) -> bool {
    let missing: Vec<Missing> = probes.iter().filter_map(|probe| probe()).collect();
    missing.iter().for_each(skip);
    !missing.is_empty()
}

/// Bytes that the disk has read, as it counts itself.
fn disk_read_bytes(disk: &str) -> u64 {
    let text = fs::read_to_string(format!("/sys/block/{disk}/stat")).unwrap();
    text.split_ascii_whitespace()
        .nth(2)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 512
}

fn assert_close(ours: u64, theirs: u64, what: &str) {
    eprintln!("{what}: {ours} recorded, {theirs} counted");
    let apart = ours.abs_diff(theirs);
    assert!(apart * 100 <= theirs, "{what}: {ours} and {theirs}");
}

fn all_faults(log: &Path) -> Vec<Fault> {
    Reader::open(log)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn faults_and_reads_equal_what_the_kernel_counts() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if is_forbidden(&[faults::probe, block::probe]) {
        return;
    }
    let Some(limit) = allowed(MemoryLimit::new(LIMIT_BYTES)) else {
        return;
    };
    let (folder, model) = scratch_file(FILE_BYTES);
    let files = Files::register([&model]).unwrap();
    let extents = match Extents::of(&model) {
        Ok(extents) => extents,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let (fault_log, io_log) = (folder.path().join("faults"), folder.path().join("io"));

    let disk_before = disk_read_bytes(&extents.below.disk_name);
    let requests = BlockRecorder::start(&files, &io_log).unwrap();
    let mut command = child_command(&model, &[]);
    limit.confine(&mut command).unwrap();
    let (mut child, (recorder, before)) = spawn_held(&mut command, |pid| {
        let target = Target::Child(pid);
        let recorder = FaultRecorder::start(target, &files, &fault_log, MinorFaults::Recorded)?;
        Ok((recorder, Counters::of(pid)?))
    })
    .unwrap();
    let (pid, start) = mapping_of(&mut child);
    assert_eq!(pid, child.id());
    let counted = Counters::at_end_of(pid).unwrap().since(&before);
    assert!(child.wait().unwrap().success());
    let faults = recorder.finish().unwrap();
    let io = requests.finish().unwrap();
    let disk_after = disk_read_bytes(&extents.below.disk_name);
    let usage = limit.usage().unwrap();
    eprintln!("{faults:?}\n{io:?}\n{counted:?}\n{usage:?}");

    // The limit was felt.
    assert!(usage.times_at_limit > 0 && usage.oom_kills == 0);
    assert!(
        usage
            .peak_bytes
            .is_some_and(|peak| peak <= usage.limit_bytes)
    );

    // Every fault, and each once.
    assert_eq!(faults.lost, 0);
    assert_eq!(faults.major, counted.major_faults);
    assert_eq!(faults.kernel_major, counted.major_faults);
    assert_eq!(faults.minor, faults.kernel_minor);
    let log = all_faults(&fault_log);
    assert_eq!(log.len() as u64, faults.major + faults.minor);
    assert!(faults.major > TOUCHES, "too few to prove anything");

    // At the address that was touched, which is the byte of the file that was.
    let touched: HashSet<u64> = touched(FILE_BYTES).into_iter().flatten().collect();
    let mapping = start..start + FILE_BYTES;
    let mut in_mapping = 0;
    for fault in &log {
        assert_eq!(
            mapping.contains(&fault.address),
            fault.place.is_some(),
            "{fault:?}"
        );
        if let Some(place) = fault.place {
            in_mapping += 1;
            assert_eq!((place.file, place.file_offset), (0, fault.address - start));
            assert!(touched.contains(&place.file_offset), "{fault:?}");
        }
    }
    assert_eq!(in_mapping, faults.in_files);
    assert!(log.is_sorted_by_key(|fault| fault.nanos));

    // The bytes that came for them.
    assert_eq!(io.lost, 0);
    assert_close(
        io.file_read_bytes,
        counted.read_bytes.unwrap(),
        "bytes of the process",
    );
    assert_close(io.read_bytes, disk_after - disk_before, "bytes of the disk");
    check_requests(&io_log, &log, pid);
}

/// Pieces sum up to requests, times are in order, and a request lies before the
/// faults that it has ended.
fn check_requests(log: &Path, faults: &[Fault], pid: u32) {
    let all: Vec<Io> = Reader::open(log)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let mut sums: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    let mut read_pages = HashSet::new();
    let (mut by_child, mut reads) = (0, 0);
    for io in &all {
        let sum = sums.entry(io.request).or_insert((0, io.request_bytes));
        sum.0 += io.piece_bytes;
        assert!(
            io.completed_nanos
                .is_none_or(|done| done >= io.issued_nanos)
        );
        if let Some(place) = io.place.filter(|_| io.rwbs.operation() == Operation::Read) {
            // When the disk is busy a thread of the kernel issues it later.
            by_child += u64::from(io.pid == pid);
            reads += 1;
            let end = place.file_offset + u64::from(io.piece_bytes);
            read_pages.extend(place.file_offset / PAGE..end.div_ceil(PAGE));
        }
    }
    assert!(by_child * 2 > reads, "{by_child} of {reads}");
    assert!(sums.values().all(|(sum, whole)| sum == whole));
    let major = faults.iter().filter(|fault| fault.kind == FaultKind::Major);
    for place in major.filter_map(|fault| fault.place) {
        assert!(
            read_pages.contains(&(place.file_offset / PAGE)),
            "{place:?}"
        );
    }
}

/// `perf` starts the child and we watch `perf` with all that it starts, so that both
/// see the same faults.
#[test]
fn perf_sees_the_same_addresses() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if is_forbidden(&[faults::probe]) {
        return;
    }
    if Command::new("perf").arg("--version").output().is_err() {
        return eprintln!("skipped: perf is not installed (apt-get install linux-perf)");
    }
    let Some(limit) = allowed(MemoryLimit::new(LIMIT_BYTES)) else {
        return;
    };
    let (folder, model) = scratch_file(FILE_BYTES);
    let files = Files::register([&model]).unwrap();
    let fault_log = folder.path().join("faults");
    let data = folder.path().join("perf.data");
    let data = data.to_str().unwrap();
    let record = "perf record -q -e major-faults -c 1 -d -m 1024 -o";
    let mut words: Vec<&str> = record.split(' ').collect();
    words.extend([data, "--"]);
    let mut command = child_command(&model, &words);
    limit.confine(&mut command).unwrap();
    let (mut perf, recorder) = spawn_held(&mut command, |pid| {
        FaultRecorder::start(Target::Child(pid), &files, &fault_log, MinorFaults::LeftOut)
    })
    .unwrap();
    let (pid, start) = mapping_of(&mut perf);
    assert!(perf.wait().unwrap().success());
    let summary = recorder.finish().unwrap();
    assert_eq!((summary.lost, summary.minor), (0, 0));

    let script = Command::new("perf")
        .args(["script", "-i", data, "-F", "pid,addr"])
        .output()
        .unwrap();
    assert!(script.status.success());
    let mut theirs = Vec::new();
    for line in String::from_utf8_lossy(&script.stdout).lines() {
        let mut words = line.split_ascii_whitespace();
        let their_pid: u32 = words.next().unwrap().parse().unwrap();
        assert_eq!(their_pid, pid);
        theirs.push(u64::from_str_radix(words.next().unwrap(), 16).unwrap());
    }
    let faults = all_faults(&fault_log);
    let mut ours: Vec<u64> = faults
        .iter()
        .filter(|fault| fault.pid == pid)
        .map(|fault| fault.address)
        .collect();
    let in_mapping = |addresses: &[u64]| {
        let mapping = start..start + FILE_BYTES;
        addresses
            .iter()
            .filter(|address| mapping.contains(address))
            .count()
    };
    eprintln!(
        "{} faults in the mapping by us, {} by perf",
        in_mapping(&ours),
        in_mapping(&theirs)
    );
    assert!(in_mapping(&ours) as u64 > TOUCHES);
    theirs.sort_unstable();
    ours.sort_unstable();
    assert_eq!(ours, theirs);
}

#[test]
fn this_process_with_the_threads_that_it_has_is_recorded() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if is_forbidden(&[faults::probe]) {
        return;
    }
    let (folder, model) = scratch_file(8 << 20);
    let files = Files::register([&model]).unwrap();
    let log = folder.path().join("faults");
    let map = || {
        let start = mapped(&model, 8 << 20);
        advise(start, 8 << 20, libc::MADV_RANDOM);
        start
    };
    // A mapping and a thread from before, a mapping and a thread from after.
    let before = map();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (recorder, after) = std::thread::scope(|scope| {
        scope.spawn(move || {
            wait.recv().unwrap();
            touch(before, 100 * PAGE);
        });
        let recorder =
            FaultRecorder::start(Target::ThisProcess, &files, &log, MinorFaults::LeftOut).unwrap();
        let after = map();
        touch(before, 200 * PAGE);
        go.send(()).unwrap();
        scope.spawn(move || touch(after, 300 * PAGE));
        (recorder, after)
    });
    let summary = recorder.finish().unwrap();
    let mut found: Vec<(u64, u64)> = all_faults(&log)
        .iter()
        .filter_map(|fault| Some((fault.place?.file_offset / PAGE, fault.address)))
        .collect();
    found.sort_unstable();
    let at = |start: u64, page: u64| (page, start + page * PAGE);
    assert_eq!(found, [at(before, 100), at(before, 200), at(after, 300)]);
    assert_eq!((summary.in_files, summary.lost), (3, 0));
    assert_eq!(summary.major, summary.kernel_major);
}

#[test]
fn extents_are_where_the_bytes_are() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let (_folder, path) = scratch_file(4 << 20);
    let extents = match Extents::of(&path) {
        Ok(extents) => extents,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let total: u64 = extents.list.iter().map(|extent| extent.bytes).sum();
    assert_eq!(total, 4 << 20);
    let device = extents.below.device;
    let link = format!("/dev/block/{device}");
    let node = [
        PathBuf::from(link),
        PathBuf::from("/dev").join(&extents.below.disk_name),
    ]
    .into_iter()
    .find(|node| File::open(node).is_ok());
    let Some(node) = node else {
        return eprintln!("skipped: the block device {device} cannot be read; run as root");
    };
    let (disk, file) = (File::open(node).unwrap(), File::open(&path).unwrap());
    let (mut on_disk, mut in_file) = (vec![0u8; 4096], vec![0u8; 4096]);
    let mut checked = 0;
    for extent in &extents.list {
        for at in (0..extent.bytes).step_by(256 << 10) {
            use std::os::unix::fs::FileExt as _;
            disk.read_exact_at(&mut on_disk, extent.device_offset + at)
                .unwrap();
            file.read_exact_at(&mut in_file, extent.file_offset + at)
                .unwrap();
            assert!(on_disk == in_file, "{extent:?} + {at}");
            checked += 1;
        }
    }
    assert!(checked >= 16);
    let error = Extents::of(Path::new("/proc/self/stat")).unwrap_err();
    assert!(error.to_string().contains("has no block device"), "{error}");
}
