//! `calls`: what a token costs the kernel. System calls by kind, context switches and page
//! faults of programs that generate text, on the processor or on a card, side by side.
//!
//! Each program is run with few and with more tokens; the difference is what the tokens cost,
//! without the loading. Calls are counted by the kernel's tracepoints (`perf stat`), which
//! stop nothing; what `strace` would have cost is measured beside.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, bail, ensure};

use crate::{
    experiments::Request,
    measure::{Spread, in_turns},
    outcome::{Outcome, Row},
    program,
};

/// The word that stands for the number of tokens in a command.
const TOKENS: &str = "{tokens}";
/// Tokens of the shorter and of the longer run.
const FEW: u32 = 16;
const MORE: u32 = 80;

/// Kinds of calls, and the beginnings of their names. The first that fits counts.
const KINDS: &[(&str, &[&str])] = &[
    (
        "waiting for threads",
        &["futex", "sched_yield", "set_robust_list", "rseq"],
    ),
    (
        "memory",
        &[
            "mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "mlock", "munlock",
            "mincore", "msync",
        ],
    ),
    ("devices", &["ioctl"]),
    (
        "waiting for events",
        &[
            "poll", "ppoll", "select", "pselect", "epoll", "eventfd", "io_uring", "io_",
        ],
    ),
    (
        "time",
        &["nanosleep", "clock_", "timer", "gettimeofday", "time"],
    ),
    (
        "files",
        &[
            "open",
            "close",
            "read",
            "pread",
            "write",
            "pwrite",
            "lseek",
            "fstat",
            "newfstat",
            "stat",
            "lstat",
            "access",
            "faccess",
            "getdents",
            "fcntl",
            "dup",
            "unlink",
            "rename",
            "mkdir",
            "ftruncate",
            "fallocate",
            "fadvise",
            "flock",
            "statx",
            "fsync",
            "pipe",
            "copy_file",
            "sendfile",
        ],
    ),
    (
        "network",
        &[
            "socket", "connect", "accept", "bind", "listen", "send", "recv", "getsock", "setsock",
            "shutdown",
        ],
    ),
    (
        "processes and threads",
        &[
            "clone",
            "fork",
            "vfork",
            "exec",
            "exit",
            "wait",
            "kill",
            "tgkill",
            "set_tid",
            "prctl",
            "arch_prctl",
            "prlimit",
            "getr",
            "setr",
            "sched_",
            "get",
            "set",
            "uname",
            "sysinfo",
        ],
    ),
    ("signals", &["rt_sig", "sigaltstack", "pause"]),
];

fn kind_of(call: &str) -> &'static str {
    let kind = KINDS
        .iter()
        .find(|(_, names)| names.iter().any(|name| call.starts_with(name)));
    kind.map_or("other", |(kind, _)| kind)
}

/// A program that generates text.
#[derive(Clone, Debug)]
pub struct Generator {
    name: String,
    /// Words of the command, with [`TOKENS`] in one of them.
    words: Vec<String>,
}

impl Generator {
    /// `NAME=COMMAND with {tokens}`.
    pub fn parse(text: &str) -> anyhow::Result<Generator> {
        let (name, command) = text
            .split_once('=')
            .with_context(|| format!("{text:?} is not NAME=COMMAND"))?;
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        ensure!(!words.is_empty(), "{text:?} has no command behind the name");
        let has_place = words.iter().any(|word| word.contains(TOKENS));
        ensure!(
            has_place,
            "{text:?}: the command must say {TOKENS} where its number of tokens stands"
        );
        Ok(Generator {
            name: name.to_owned(),
            words,
        })
    }

    /// The built-in engine with the model of the demo.
    fn built_in() -> anyhow::Result<Generator> {
        let options = ["-p", "To be", "-n", TOKENS, "-q"].map(str::to_owned);
        let words = program::generation()?.into_iter().chain(options).collect();
        Ok(Generator {
            name: "processor".to_owned(),
            words,
        })
    }

    fn command(&self, before: &[String], tokens: u32) -> Command {
        let words = self
            .words
            .iter()
            .map(|word| word.replace(TOKENS, &tokens.to_string()));
        let words: Vec<String> = before.iter().cloned().chain(words).collect();
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn seconds(&self, before: &[String], tokens: u32) -> anyhow::Result<f64> {
        let begin = Instant::now();
        let status = self
            .command(before, tokens)
            .status()
            .with_context(|| self.words[0].clone())?;
        ensure!(
            status.success(),
            "{}: `{}` ended with {status}",
            self.name,
            self.words.join(" ")
        );
        Ok(begin.elapsed().as_secs_f64())
    }
}

/// Events of one run, by name.
type Counts = BTreeMap<String, f64>;

/// Who counts calls here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counter {
    Tracepoints,
    /// Where tracepoints are not allowed; it stops the program at each call.
    Strace,
}

impl Counter {
    fn find(folder: &Path) -> anyhow::Result<Counter> {
        let generator = Generator {
            name: "true".into(),
            words: vec!["true".into()],
        };
        let tracepoints = Counter::Tracepoints.count(&generator, 1, folder);
        if tracepoints.is_ok_and(|counts| counts.keys().any(|name| kind_of(name) != "other")) {
            return Ok(Counter::Tracepoints);
        }
        if Counter::Strace.count(&generator, 1, folder).is_ok() {
            return Ok(Counter::Strace);
        }
        bail!(
            "calls cannot be counted: `perf stat -e 'syscalls:*'` needs root and linux-perf, and there is no strace either (apt install linux-perf strace)"
        )
    }

    /// What stands in front of a command that is counted; the counts go to `out`.
    fn words(self, out: &Path) -> Vec<String> {
        let out = out.to_string_lossy();
        let events = EVENTS.join(",");
        let words: &[&str] = match self {
            Counter::Tracepoints => {
                let calls = "syscalls:sys_enter_*";
                &[
                    "perf", "stat", "-x,", "-o", &out, "-e", calls, "-e", &events, "--",
                ]
            }
            Counter::Strace => &["strace", "-f", "-c", "-o", &out],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn count(self, generator: &Generator, tokens: u32, folder: &Path) -> anyhow::Result<Counts> {
        let path = folder.join("counts");
        generator.seconds(&self.words(&path), tokens)?;
        let text = std::fs::read_to_string(&path)?;
        Ok(match self {
            Counter::Tracepoints => of_perf(&text),
            Counter::Strace => of_strace(&text),
        })
    }
}

/// `30,,syscalls:sys_enter_mmap,…`.
fn of_perf(text: &str) -> Counts {
    let rows = text.lines().filter_map(|line| {
        let mut fields = line.split(',');
        let count: f64 = fields.next()?.parse().ok()?;
        let name = fields.nth(1)?;
        let name = name.trim_start_matches("syscalls:sys_enter_");
        Some((name.to_owned(), count)).filter(|_| count > 0.0)
    });
    rows.collect()
}

/// `  0.00    0.000000           0         4         1 openat`.
fn of_strace(text: &str) -> Counts {
    let rows = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let _share: f64 = words.first()?.parse().ok()?;
        let count = words.get(3)?.parse().ok()?;
        let name = words.last()?;
        Some(((*name).to_owned(), count)).filter(|_| *name != "total")
    });
    rows.collect()
}

/// Not calls: what the kernel did by itself.
const EVENTS: &[&str] = &[
    "context-switches",
    "cpu-migrations",
    "minor-faults",
    "major-faults",
];

/// Events of a token, by kind.
fn by_kind(few: &Counts, more: &Counts) -> BTreeMap<&'static str, f64> {
    let mut kinds: BTreeMap<&'static str, f64> = BTreeMap::new();
    let names: std::collections::BTreeSet<&String> = few.keys().chain(more.keys()).collect();
    for name in names {
        let count = |counts: &Counts| counts.get(name).copied().unwrap_or(0.0);
        let kind = EVENTS
            .iter()
            .find(|event| *event == name)
            .copied()
            .unwrap_or_else(|| kind_of(name));
        *kinds.entry(kind).or_default() += (count(more) - count(few)) / f64::from(MORE - FEW);
    }
    kinds
}

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let given: Vec<Generator> = request
        .programs
        .iter()
        .map(|text| Generator::parse(text))
        .collect::<Result<_, _>>()?;
    let generators = match given.is_empty() {
        true => vec![Generator::built_in()?],
        false => given,
    };
    let folder = tempfile::tempdir()?;
    let counter = Counter::find(folder.path())?;
    let question = "What does a token cost the kernel: calls, switches, faults?";
    let mut outcome = Outcome::new(
        "calls",
        question,
        "program",
        "per token",
        None,
        request.seed,
    );
    let rounds = request.rounds.min(if request.is_quick { 1 } else { 5 });
    for (number, generator) in generators.iter().enumerate() {
        let mut rows: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for _ in 0..rounds {
            let few = counter.count(generator, FEW, folder.path())?;
            let more = counter.count(generator, MORE, folder.path())?;
            by_kind(&few, &more)
                .into_iter()
                .for_each(|(kind, count)| rows.entry(kind).or_default().push(count));
        }
        for (kind, counts) in rows {
            // What appears in some rounds only was 0 in the others.
            let counts: Vec<f64> = (0..rounds)
                .map(|i| counts.get(i).copied().unwrap_or(0.0))
                .collect();
            outcome.rows.push(Row::reference(
                kind,
                &generator.name,
                number as f64,
                Spread::of(&counts),
            ));
        }
        outcome.notes.push(cost_note(
            generator,
            counter,
            rounds,
            &folder.path().join("out"),
        )?);
    }
    if counter == Counter::Strace {
        outcome.notes.push("Tracepoints are not allowed here (or linux-perf is missing): calls were counted by strace, switches and faults not at all.".to_owned());
    }
    Ok(outcome)
}

/// What counting costs, against the program alone, in turns.
fn cost_note(
    generator: &Generator,
    counter: Counter,
    rounds: usize,
    out: &Path,
) -> anyhow::Result<String> {
    let has_strace = Counter::Strace == counter
        || Command::new("strace")
            .arg("-V")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok();
    let mut ways = vec![("alone", Vec::new())];
    if counter == Counter::Tracepoints {
        ways.push(("tracepoints", counter.words(out)));
    }
    if has_strace {
        ways.push(("strace", Counter::Strace.words(out)));
    }
    let times = in_turns(ways.len(), rounds, |i| generator.seconds(&ways[i].1, MORE))?;
    let alone = Spread::of(&times[0]).median;
    let costs = ways.iter().zip(&times).skip(1).map(|((name, _), times)| {
        format!(
            "{name} {:+.1} %",
            100.0 * (Spread::of(times).median / alone - 1.0)
        )
    });
    let costs: Vec<String> = costs.collect();
    Ok(format!(
        "{}: {alone:.2} s for {MORE} tokens with loading; counted by {}.",
        generator.name,
        costs.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_sorted_into_kinds() {
        for (call, kind) in [
            ("futex", "waiting for threads"),
            ("ioctl", "devices"),
            ("newfstatat", "files"),
            ("sched_yield", "waiting for threads"),
            ("sched_getaffinity", "processes and threads"),
            ("clock_nanosleep", "time"),
            ("quotactl", "other"),
        ] {
            assert_eq!(kind_of(call), kind, "{call}");
        }
    }

    #[test]
    fn what_loading_costs_is_taken_away() {
        let few = of_perf(
            "# started\n\n100,,syscalls:sys_enter_mmap,1,100.00,,\n16,,syscalls:sys_enter_futex,1,100.00,,\n5,,minor-faults,1,100.00,,\n0,,syscalls:sys_enter_read,1,,\n",
        );
        let more = of_perf(
            "100,,syscalls:sys_enter_mmap,1,100.00,,\n144,,syscalls:sys_enter_futex,1,100.00,,\n37,,minor-faults,1,100.00,,\n",
        );
        let kinds = by_kind(&few, &more);
        assert_eq!(kinds["memory"], 0.0);
        assert_eq!(kinds["waiting for threads"], 2.0);
        assert_eq!(kinds["minor-faults"], 0.5);
    }

    #[test]
    fn a_summary_of_strace_is_read() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n------ ----------- ----------- --------- --------- ----------------\n 60.00    0.000123          10        12           mmap\n 40.00    0.000023          10         4         2 openat\n------ ----------- ----------- --------- --------- ----------------\n100.00    0.000146          10        16         2 total\n";
        let counts = of_strace(text);
        assert_eq!(counts.len(), 2);
        assert_eq!((counts["mmap"], counts["openat"]), (12.0, 4.0));
    }

    #[test]
    fn a_program_says_where_its_tokens_stand() {
        assert!(Generator::parse("gpu=./x -n {tokens}").is_ok());
        for bad in ["./x -n {tokens}", "gpu=", "gpu=./x -n 4"] {
            assert!(Generator::parse(bad).is_err(), "{bad}");
        }
    }
}
