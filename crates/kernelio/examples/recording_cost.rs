//! What recording page faults and block requests costs a program under memory
//! pressure.
//!
//! ```text
//! cargo run --release -p kernelio --example recording_cost -- [MIB] [LIMIT_MIB] [PAIRS] [random] [minor] [only-faults | only-io]
//! ```
//!
//! This process enters a memory cgroup of LIMIT_MIB, maps a file of MIB, and two
//! threads read it in stretches of the same work, with and without recording in turn,
//! so that each pair has the same disk and neighbours. The work is every page
//! from front to back, as decoding a dense model reads it, or with `random` pages in
//! random order without read-ahead, where every touch is a fault and a request: more
//! than any model does.
//!
//! Three figures: the time of a stretch, the cpu time of the process in it, reader
//! threads included, and the cpu time of the reader threads alone for each record. On a
//! machine that does other things, too, each is steadier than the one before.

use std::error::Error;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Instant;

use kernelio::block::BlockRecorder;
use kernelio::faults::{FaultRecorder, MinorFaults, Target};
use kernelio::files::Files;
use kernelio::pressure::{self, MemoryLimit};

type Failed = Box<dyn Error>;

const PAGE: u64 = 4096;
const THREADS: u64 = 2;

/// How pages are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    FrontToBack,
    Random,
}

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parts {
    Both,
    Faults,
    Io,
}

/// What a stretch took.
#[derive(Clone, Copy, Default)]
struct Cost {
    nanos: u64,
    cpu_nanos: u64,
}

fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| words.iter().any(|word| word == name);
    let order = match has("random") {
        true => Order::Random,
        false => Order::FrontToBack,
    };
    let minor = match has("minor") {
        true => MinorFaults::Recorded,
        false => MinorFaults::LeftOut,
    };
    let parts = match (has("only-faults"), has("only-io")) {
        (true, _) => Parts::Faults,
        (_, true) => Parts::Io,
        _ => Parts::Both,
    };
    let mut numbers = words.iter().filter_map(|word| word.parse::<u64>().ok());
    let mib = numbers.next().unwrap_or(600);
    let limit_mib = numbers.next().unwrap_or(mib / 2);
    let pairs = numbers.next().unwrap_or(15);
    let folder = std::env::temp_dir().join(format!("recording-cost-{}", std::process::id()));
    fs::create_dir(&folder)?;
    println!("{mib} MiB in {limit_mib} MiB of memory, {order:?}, minor faults {minor:?}");
    let result = measure(
        &folder,
        mib << 20,
        limit_mib << 20,
        pairs,
        minor,
        order,
        parts,
    );
    fs::remove_dir_all(&folder)?;
    result
}

fn measure(
    folder: &Path,
    bytes: u64,
    limit_bytes: u64,
    pairs: u64,
    minor: MinorFaults,
    order: Order,
    parts: Parts,
) -> Result<(), Failed> {
    let model = folder.join("model");
    let mut file = File::create(&model)?;
    for number in 0..bytes >> 20 {
        file.write_all(&vec![number as u8; 1 << 20])?;
    }
    drop(file);
    pressure::drop_cache(&model)?;
    let mut limit = MemoryLimit::new(limit_bytes)?;
    limit.enter()?;
    let start = mapped(&model, bytes, order)?;
    let files = Files::register([&model])?;
    let (mut times, mut cpu_times) = (Vec::new(), Vec::new());
    let mut per_record = Vec::new();
    // The first pair only warms up.
    for pair in 0..=pairs {
        let mut costs = [Cost::default(); 2];
        for turn in 0..2 {
            let (number, is_recorded) = (pair * 2 + turn, (pair + turn) % 2 == 0);
            if !is_recorded {
                costs[0] = stretch(start, bytes, number, order);
                continue;
            }
            let logs = [folder.join("faults"), folder.join("io")];
            let requests = match parts {
                Parts::Faults => None,
                _ => Some(BlockRecorder::start(&files, &logs[1])?),
            };
            let faults = match parts {
                Parts::Io => None,
                _ => Some(FaultRecorder::start(
                    Target::ThisProcess,
                    &files,
                    &logs[0],
                    minor,
                )?),
            };
            let readers_before = reader_nanos();
            costs[1] = stretch(start, bytes, number, order);
            // The last records are read within a pause of the readers.
            std::thread::sleep(std::time::Duration::from_millis(150));
            let reader_nanos = reader_nanos() - readers_before;
            let faults = faults.map(FaultRecorder::finish).transpose()?;
            let requests = requests.map(BlockRecorder::finish).transpose()?;
            let records = faults.map_or(0, |all| all.major + all.minor)
                + requests.map_or(0, |all| all.requests);
            per_record.push(reader_nanos / records.max(1));
            if pair == 0 {
                println!("{faults:?}\n{requests:?}");
            }
            for log in logs.iter().filter(|log| log.exists()) {
                fs::remove_file(log)?;
            }
        }
        let percent = |plain: u64, recorded: u64| (recorded as f64 / plain as f64 - 1.0) * 100.0;
        let [plain, recorded] = costs;
        let time = percent(plain.nanos, recorded.nanos);
        let cpu_time = percent(plain.cpu_nanos, recorded.cpu_nanos);
        println!(
            "pair {pair}: {:7.1} ms without, {:7.1} ms with, {time:+6.2} %; cpu {:7.1} ms, {:7.1} ms, {cpu_time:+6.2} %",
            plain.nanos as f64 / 1e6,
            recorded.nanos as f64 / 1e6,
            plain.cpu_nanos as f64 / 1e6,
            recorded.cpu_nanos as f64 / 1e6,
        );
        if pair > 0 {
            times.push(time);
            cpu_times.push(cpu_time);
        }
    }
    per_record.sort_unstable();
    println!(
        "readers: median {} ns of cpu time for each record",
        per_record[per_record.len() / 2]
    );
    for (what, mut percents) in [("time", times), ("cpu time", cpu_times)] {
        percents.sort_by(f64::total_cmp);
        let count = percents.len();
        println!(
            "{what}: median {:+.2} %, middle half {:+.2} % to {:+.2} %, {count} pairs",
            (percents[count / 2] + percents[(count - 1) / 2]) / 2.0,
            percents[count / 4],
            percents[count - 1 - count / 4],
        );
    }
    Ok(())
}

/// As many pages each time; random ones depend on the number of the stretch, for the
/// second of a pair would find those of the first in memory.
fn stretch(start: u64, bytes: u64, number: u64, order: Order) -> Cost {
    let pages = bytes / PAGE;
    let before = (Instant::now(), cpu_nanos());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut state = (number * THREADS + thread) << 40 | 1;
                let steps = match order {
                    Order::FrontToBack => 2 * pages / THREADS,
                    Order::Random => pages / 4,
                };
                for step in 0..steps {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let page = match order {
                        Order::FrontToBack => (step * THREADS + thread) % pages,
                        Order::Random => (state >> 20) % pages,
                    };
                    // SAFETY: a whole page inside of a mapping that stays.
                    let words = unsafe {
                        std::slice::from_raw_parts((start + page * PAGE) as *const u64, 512)
                    };
                    black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
                }
            });
        }
    });
    Cost {
        nanos: before.0.elapsed().as_nanos() as u64,
        cpu_nanos: cpu_nanos() - before.1,
    }
}

/// The address of a mapping that stays.
fn mapped(path: &Path, bytes: u64, order: Order) -> Result<u64, Failed> {
    let file = File::open(path)?;
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
    if start == libc::MAP_FAILED {
        return Err("cannot map the file".into());
    }
    if order == Order::Random {
        // SAFETY: advice about the mapping just made.
        unsafe { libc::madvise(start, bytes as usize, libc::MADV_RANDOM) };
    }
    Ok(start as u64)
}

/// Cpu time of the threads that empty the rings.
fn reader_nanos() -> u64 {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if ["faults", "block"].contains(&read("comm").trim()) {
            let schedstat = read("schedstat");
            let on_cpu = schedstat
                .split(' ')
                .next()
                .and_then(|text| text.parse().ok());
            nanos += on_cpu.unwrap_or(0u64);
        }
    }
    nanos
}

fn cpu_nanos() -> u64 {
    // SAFETY: `rusage` is made of integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let nanos =
        |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    nanos(usage.ru_utime) + nanos(usage.ru_stime)
}
