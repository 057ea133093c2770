//! Run directories, damaged at random: no command that reads one panics, hangs or is killed,
//! and none says something else than before without a word about the damage.
//!
//! The same damages every time; `TENSORSCOPE_TEST_ATTACKS` says how many.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU64, Ordering},
};

use kernelio::{
    devices::Device,
    files::Place,
    kernel_log::{
        Record, Writer,
        cpu::{CpuEvent, What},
        faults::{Fault, FaultKind},
        io::{Io, Rwbs},
        machine::MachineSample,
    },
};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/shakespeare-moe.gguf"
);

const KERNEL_LOGS: [&str; 5] = [
    "log/faults",
    "log/io",
    "log/cpu",
    "log/stacks",
    "log/machine",
];

/// What a command writes besides its output has this name.
const FILE: &str = "out.parquet";

/// Every command that reads a run, in its forms. `other` is never damaged.
const COMMANDS: &[&[&str]] = &[
    &["report", "run"],
    &["report", "run", "--json"],
    &["report", "run", "--html"],
    &["report", "run", "--memory", "4M,90M"],
    &["compare", "other", "run"],
    &["export", "run", "--to", "folded", "--by", "cpu"],
    &["export", "run", "--table", "evals"],
    &["export", "run", "--table", "accesses", "--to", "json"],
    &["export", "run", "--to", "perfetto"],
    &["export", "run", "--to", "folded"],
    &[
        "export", "run", "--to", "parquet", "--table", "evals", "-o", FILE,
    ],
    &[
        "sql",
        "run",
        "SELECT count(*), sum(bytes), max(token) FROM accesses",
    ],
    &["sql", "run", "SELECT * FROM run"],
    &[
        "sql",
        "other",
        "run",
        "SELECT run, count(*) FROM nodes GROUP BY run ORDER BY run",
    ],
    &["ingest", "run"],
    &[
        "plan",
        "run",
        "--memory",
        "90M",
        "--disk",
        "1G",
        "--compute",
        "0.1",
    ],
];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}

/// Ends by itself after a minute, with a code that no command of ours has.
fn tensorscope(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]);
    command.arg(env!("CARGO_BIN_EXE_tensorscope"));
    command.current_dir(folder).args(args).output().unwrap()
}

/// What people see; without the size of the log, which damage may change.
#[derive(PartialEq, Eq)]
struct Seen {
    code: Option<i32>,
    output: Vec<u8>,
    said: String,
}

fn see(folder: &Path, args: &[&str]) -> Seen {
    let output = tensorscope(folder, args);
    let lines = output.stdout.split_inclusive(|&byte| byte == b'\n');
    let is_size = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        line.contains("\"log_bytes\"") || line.ends_with(" of log\n")
    };
    let mut seen = lines
        .filter(|line| !is_size(line))
        .collect::<Vec<_>>()
        .concat();
    if args.contains(&FILE) {
        seen.extend(fs::read(folder.join(FILE)).unwrap_or_default());
    }
    Seen {
        code: output.status.code(),
        output: seen,
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn makes_tables(args: &[&str]) -> bool {
    args.contains(&FILE) || args[0] == "ingest"
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = (
            entry.as_ref().unwrap().path(),
            to.join(entry.unwrap().file_name()),
        );
        match path.is_dir() {
            true => copy(&path, &to),
            false => drop(fs::copy(path, to).unwrap()),
        }
    }
}

fn files(folder: &Path, below: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder.join(below)).unwrap() {
        let path = below.join(entry.unwrap().file_name());
        match folder.join(&path).is_dir() {
            true => files(folder, &path, found),
            false => found.push(path),
        }
    }
}

/// Does something to a file; what it was.
fn damage(path: &Path, random: &mut Random) -> String {
    let mut bytes = fs::read(path).unwrap();
    let at = random.below(bytes.len());
    let count = [1, 8, 64, 4096, bytes.len()][random.below(5)].min(bytes.len() - at);
    let what = match random.below(7) {
        0 | 1 if !bytes.is_empty() => {
            bytes[at] ^= 1 << random.below(8);
            format!("a bit of byte {at} flipped")
        }
        2 => {
            bytes.truncate(at);
            format!("cut off at byte {at}")
        }
        3 => {
            bytes[at..at + count].fill(0);
            format!("{count} bytes zero from {at} on")
        }
        4 => {
            let again = bytes[at..at + count].to_vec();
            bytes.splice(at..at, again);
            format!("{count} bytes from {at} on again")
        }
        5 => {
            // Wherever a length stands, it is absurd now.
            let at = at / 4 * 4;
            let end = bytes.len().min(at + 8);
            bytes[at..end].fill(0xff);
            format!("bytes {at} to {end} all ones")
        }
        _ => {
            fs::remove_file(path).unwrap();
            return "removed".to_owned();
        }
    };
    fs::write(path, bytes).unwrap();
    what
}

/// What the kernel did during the run, which not every machine lets us record.
fn add_kernel_logs(run: &Path) {
    fn write<R: Record>(path: PathBuf, records: impl Iterator<Item = R>) {
        let mut writer = Writer::create(&path).unwrap();
        records.for_each(|record| writer.push(&record).unwrap());
        writer.flush().unwrap();
    }
    let metadata = fs::read_to_string(run.join("metadata.json")).unwrap();
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let begin = metadata["started_monotonic_nanos"].as_u64().unwrap();
    let place = |n: u64| {
        let file_offset = n * 65_536;
        (!n.is_multiple_of(5)).then_some(Place {
            file: 0,
            file_offset,
        })
    };
    let fault = |n: u64| Fault {
        nanos: begin + n * 1_000_000,
        address: 0x7f00_0000_0000 + n * 4096,
        instruction: 0x40_0000,
        pid: 1,
        tid: 1,
        cpu: 0,
        kind: [FaultKind::Minor, FaultKind::Major][(n % 2) as usize],
        place: place(n),
    };
    let io = |n: u64| Io {
        issued_nanos: begin + n * 900_000,
        completed_nanos: (!n.is_multiple_of(7)).then_some(begin + n * 900_000 + 80_000),
        device: Device { major: 8, minor: 0 },
        sector: n * 128,
        request: n,
        request_bytes: 65_536,
        piece_at_bytes: 0,
        piece_bytes: 65_536,
        rwbs: Rwbs::from_text(b"RA"),
        pid: 1,
        tid: 1,
        place: place(n),
    };
    write(run.join("log/faults"), (0..100).map(fault));
    write(run.join("log/io"), (0..100).map(io));
    let event = |n: u64| CpuEvent {
        nanos: begin + n * 500_000,
        pid: 1,
        tid: 1 + (n % 2) as u32,
        cpu: 0,
        what: match n % 4 {
            0 => What::Preempted,
            1 => What::On,
            _ => What::Sample {
                stack: (n % 3) as u32,
                nanos: 500_000,
                is_in_kernel: false,
            },
        },
    };
    write(run.join("log/cpu"), (0..400).map(event));
    let machine = |n: u64| MachineSample {
        nanos: begin + n * 250_000_000,
        busy_nanos: Some(n * 200_000_000),
        ..MachineSample::default()
    };
    write(run.join("log/machine"), (0..4).map(machine));
    let stacks =
        "tensorscope stacks 1\nf main\tprogram\nf ggml_barrier\tlibggml.so\ns 0 0\ns 1 1\n";
    fs::write(run.join("log/stacks"), stacks).unwrap();
}

#[test]
fn damage_is_never_a_panic_and_never_silent() {
    let attacks = std::env::var("TENSORSCOPE_TEST_ATTACKS");
    let attacks: u64 = attacks.map_or(60, |count| count.parse().expect("a number of attacks"));
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    fs::create_dir(&whole).unwrap();
    for run in ["run", "other"] {
        let args = [
            "record",
            "-m",
            MODEL,
            "-p",
            "ROMEO:",
            "-n",
            "4",
            "-t",
            "1",
            "-q",
            "--no-tables",
            "-o",
            run,
        ];
        assert!(tensorscope(&whole, &args).status.success());
        add_kernel_logs(&whole.join(run));
        assert!(tensorscope(&whole, &["ingest", run]).status.success());
        // Keeps what it finds for the next one.
        assert!(tensorscope(&whole, &["report", run]).status.success());
    }
    let scratch = folder.path().join("scratch");
    let mut expected = BTreeMap::new();
    for &args in COMMANDS {
        copy(&whole, &scratch);
        let seen = see(&scratch, args);
        assert_eq!(seen.code, Some(0), "{args:?}: {}", seen.said);
        expected.insert(args, seen);
    }
    let mut found = Vec::new();
    files(&whole.join("run"), Path::new(""), &mut found);
    found.sort();
    let next = AtomicU64::new(0);
    let attack = |worker: usize| {
        let mut wrong = Vec::new();
        let (damaged, scratch) = (format!("damaged-{worker}"), format!("scratch-{worker}"));
        let (damaged, scratch) = (folder.path().join(damaged), folder.path().join(scratch));
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= attacks {
                return wrong;
            }
            let file = &found[number as usize % found.len()];
            copy(&whole, &damaged);
            let what = damage(&damaged.join("run").join(file), &mut Random(number));
            for (args, expected) in &expected {
                copy(&damaged, &scratch);
                let seen = see(&scratch, args);
                let problem = match seen.code {
                    _ if seen.said.contains("panicked at") => "panics",
                    Some(0) if seen.said != expected.said => continue,
                    // Tables say which size of log they were made from.
                    Some(0) if makes_tables(args) && file.starts_with("log") => continue,
                    // Records of the kernel have no checksums: what is damaged may pass for
                    // another record, and a file that ends early for one of a killed run.
                    Some(0) if KERNEL_LOGS.iter().any(|name| file.ends_with(name)) => continue,
                    Some(0) if seen.output != expected.output => "says something else",
                    Some(0..=2) => continue,
                    _ => "ends in another way",
                };
                let (file, said) = (file.display(), seen.said);
                wrong.push(format!(
                    "{number}: {file}, {what}: {args:?} {problem}: {said}"
                ));
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let attack = &attack;
        let workers: Vec<_> = (0..workers)
            .map(|n| scope.spawn(move || attack(n)))
            .collect();
        let wrong = workers.into_iter().map(|worker| worker.join().unwrap());
        wrong.collect::<Vec<_>>().concat()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
