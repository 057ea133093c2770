//! `calls`: what a token costs the kernel. System calls by kind, context switches and page
//! faults of programs that generate text, on the processor or on a card, side by side.
//!
//! Each program is run with few and with more tokens; the difference is what the tokens cost,
//! without the loading. Calls are counted by the kernel's tracepoints (`perf trace`), which stop
//! nothing; what that and `strace` cost is measured beside. Where tracepoints are not allowed,
//! `strace` counts, and switches and faults are those that the kernel notes of every program.

mod kinds;

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, bail, ensure};

use self::kinds::kind_of;
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
const MORE: u32 = 272;

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

    /// Switches and faults of a run by itself, as the kernel notes them of every program.
    fn usage(&self, tokens: u32) -> anyhow::Result<Counts> {
        let before = ended_children();
        self.seconds(&[], tokens)?;
        let after = ended_children();
        let more = |of: fn(&libc::rusage) -> i64| (of(&after) - of(&before)) as f64;
        Ok(Counts::from([
            (
                "context-switches".to_owned(),
                more(|usage| usage.ru_nvcsw + usage.ru_nivcsw),
            ),
            ("minor-faults".to_owned(), more(|usage| usage.ru_minflt)),
            ("major-faults".to_owned(), more(|usage| usage.ru_majflt)),
        ]))
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

/// What programs used that this one started and that have ended.
fn ended_children() -> libc::rusage {
    // SAFETY: numbers only, of which all may be 0; the kernel fills them.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
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

/// The words in front of a command, `{out}` being a file.
type Words = &'static [&'static str];

const TRACE: Words = &["perf", "trace", "-s", "-o", "{out}", "--"];
const STRACE: Words = &["strace", "-f", "-c", "-o", "{out}"];
/// Switches and faults.
const STAT: Words = &[
    "perf",
    "stat",
    "-x,",
    "-o",
    "{out}",
    "-e",
    "cs,migrations,minor-faults,major-faults",
    "--",
];
/// All calls as one number: what a tracepoint costs by itself.
const COUNT: Words = &[
    "perf",
    "stat",
    "-x,",
    "-o",
    "{out}",
    "-e",
    "raw_syscalls:sys_enter",
    "--",
];

fn with_file(words: Words, out: &Path) -> Vec<String> {
    let out = out.to_string_lossy();
    words
        .iter()
        .map(|word| word.replace("{out}", &out))
        .collect()
}

impl Counter {
    /// The best that works here, and why it is not tracepoints.
    fn find(folder: &Path) -> anyhow::Result<(Counter, Option<String>)> {
        let Err(refusal) = Counter::Tracepoints.try_out(folder) else {
            return Ok((Counter::Tracepoints, None));
        };
        match Counter::Strace.try_out(folder) {
            Ok(()) => Ok((Counter::Strace, Some(refusal))),
            Err(_) => bail!(
                "calls cannot be counted: `perf trace` needs root and linux-perf ({refusal}), and there is no strace either (apt install linux-perf strace)"
            ),
        }
    }

    /// Counts the calls of a program that does nothing; an error is what who counts said.
    fn try_out(self, folder: &Path) -> Result<(), String> {
        let path = folder.join("counts");
        let words = with_file(self.words(), &path);
        let output = Command::new(&words[0])
            .args(&words[1..])
            .arg("true")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", words[0]))?;
        let counts = self.read(&std::fs::read_to_string(&path).unwrap_or_default());
        match output.status.success() && counts.contains_key("mmap") {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                let first = said.lines().map(str::trim).find(|line| !line.is_empty());
                Err(first.unwrap_or("it counts no calls").to_owned())
            }
        }
    }

    fn words(self) -> Words {
        match self {
            Counter::Tracepoints => TRACE,
            Counter::Strace => STRACE,
        }
    }

    fn read(self, text: &str) -> Counts {
        match self {
            Counter::Tracepoints => of_trace(text),
            Counter::Strace => of_strace(text),
        }
    }

    fn count(self, generator: &Generator, tokens: u32, folder: &Path) -> anyhow::Result<Counts> {
        let path = folder.join("counts");
        let counted = |words: Words| -> anyhow::Result<String> {
            generator.seconds(&with_file(words, &path), tokens)?;
            Ok(std::fs::read_to_string(&path)?)
        };
        let mut counts = self.read(&counted(self.words())?);
        counts.extend(match self {
            Counter::Tracepoints => of_stat(&counted(STAT)?),
            Counter::Strace => generator.usage(tokens)?,
        });
        Ok(counts)
    }
}

/// `6,,context-switches,…`.
fn of_stat(text: &str) -> Counts {
    let rows = text.lines().filter_map(|line| {
        let mut fields = line.split(',');
        let count: f64 = fields.next()?.parse().ok()?;
        let name = fields.nth(1)?;
        let known = EVENTS
            .iter()
            .find(|(short, name_of)| [*short, *name_of].contains(&name))?;
        Some((known.1.to_owned(), count))
    });
    rows.collect()
}

/// `   futex              11050      0   145.596     0.010     0.013     1.194      0.88%`, in a
/// table for each thread.
fn of_trace(text: &str) -> Counts {
    let mut counts = Counts::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, calls, .., share] = words[..]
            && words.len() == 8
            && share.ends_with('%')
            && let Ok(calls) = calls.parse::<f64>()
        {
            *counts.entry(name.to_owned()).or_default() += calls;
        }
    }
    counts
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

/// Not calls: what the kernel did by itself, as `perf` takes and names it.
const EVENTS: &[(&str, &str)] = &[
    ("cs", "context-switches"),
    ("migrations", "cpu-migrations"),
    ("minor-faults", "minor-faults"),
    ("major-faults", "major-faults"),
];

/// Events of a token, by name.
fn of_token(few: &Counts, more: &Counts) -> Counts {
    let names: std::collections::BTreeSet<&String> = few.keys().chain(more.keys()).collect();
    let of_name = |name: &String| {
        let count = |counts: &Counts| counts.get(name).copied().unwrap_or(0.0);
        (count(more) - count(few)) / f64::from(MORE - FEW)
    };
    let rows = names.into_iter().map(|name| (name.clone(), of_name(name)));
    rows.collect()
}

/// The same by kind.
fn by_kind(of_token: &Counts) -> BTreeMap<&'static str, f64> {
    let mut kinds: BTreeMap<&'static str, f64> = BTreeMap::new();
    for (name, count) in of_token {
        let event = EVENTS.iter().find(|(_, event)| event == name);
        let kind = event.map_or_else(|| kind_of(name), |(_, event)| event);
        *kinds.entry(kind).or_default() += count;
    }
    kinds
}

/// The calls that a token makes most often, where there are any to speak of.
fn most_often(of_token: &Counts) -> String {
    let is_call = |name: &String| !EVENTS.iter().any(|(_, event)| event == name);
    let mut calls: Vec<(&String, f64)> = of_token
        .iter()
        .filter(|(name, count)| is_call(name) && **count >= 0.05)
        .map(|(name, count)| (name, *count))
        .collect();
    calls.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words = calls.iter().take(5);
    let words: Vec<String> = words
        .map(|(name, count)| format!("{name} {count:.1}"))
        .collect();
    match words.is_empty() {
        true => "none in twenty tokens".to_owned(),
        false => words.join(", "),
    }
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
    let (counter, refusal) = Counter::find(folder.path())?;
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
        // Alone first: what is wrong with it is said by itself, not by who counts.
        generator.seconds(&[], FEW)?;
        let mut rows: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        let mut last = Counts::new();
        for _ in 0..rounds {
            let few = counter.count(generator, FEW, folder.path())?;
            let more = counter.count(generator, MORE, folder.path())?;
            last = of_token(&few, &more);
            by_kind(&last)
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
        outcome.notes.push(format!(
            "{}: calls of a token: {}.",
            generator.name,
            most_often(&last)
        ));
        outcome.notes.push(cost_note(
            generator,
            counter,
            rounds,
            &folder.path().join("out"),
        )?);
    }
    if let Some(refusal) = refusal {
        outcome.notes.push(format!(
            "Tracepoints cannot be used here ({refusal}): calls were counted by strace; switches and faults are the kernel's own counts of a run without it."
        ));
    }
    outcome.notes.push(format!(
        "Of a token: the difference between runs of {MORE} and of {FEW} tokens, over {}. {}.",
        MORE - FEW,
        commands(&generators)
    ));
    Ok(outcome)
}

/// Names of programs, and what is run.
fn commands(generators: &[Generator]) -> String {
    let one =
        |generator: &Generator| format!("{}: `{}`", generator.name, generator.words.join(" "));
    generators.iter().map(one).collect::<Vec<_>>().join("; ")
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
    let mut ways: Vec<(&str, Words)> = vec![("alone", &[])];
    if counter == Counter::Tracepoints {
        ways.extend([("a tracepoint that counts", COUNT), ("perf trace", TRACE)]);
    }
    if has_strace {
        ways.push(("strace", STRACE));
    }
    // What the tokens take, without the start of the program and of who counts.
    let times = in_turns(ways.len(), rounds, |i| {
        let before = with_file(ways[i].1, out);
        let seconds = generator.seconds(&before, MORE)? - generator.seconds(&before, FEW)?;
        Ok(seconds / f64::from(MORE - FEW) * 1e6)
    })?;
    let microseconds = |times: &[f64]| Spread::of(times).median;
    let costs = ways
        .iter()
        .zip(&times)
        .map(|((name, _), times)| format!("{name} {:.0}", microseconds(times)));
    let costs: Vec<String> = costs.collect();
    Ok(format!(
        "{}: µs a token: {}.",
        generator.name,
        costs.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_program_are_counted_without_tracepoints() {
        let generator = Generator::parse("x=echo {tokens}").unwrap();
        let usage = generator.usage(3).unwrap();
        assert!(usage["minor-faults"] > 10.0, "{usage:?}");
        assert!(
            usage
                .keys()
                .all(|name| EVENTS.iter().any(|(_, e)| e == name))
        );
    }

    #[test]
    fn what_loading_costs_is_taken_away() {
        let few = Counts::from([("mmap".into(), 100.0), ("futex".into(), 16.0)]);
        let mut more = of_trace(
            "\n Summary of events:\n\n x (1), 288 events, 60.0%\n\n   syscall            calls  errors  total       min       avg       max       stddev\n   --------------- --------  ------ -------- --------- --------- ---------     ------\n   mmap                 100      0     1.603     0.018     0.053     0.839     50.76%\n   futex                140      0   145.596     0.010     0.013     1.194      0.88%\n\n y (2), 8 events, 1.0%\n\n   futex                  4      0     0.596     0.010     0.013     1.194      0.88%\n",
        );
        let stat = of_stat("# started on Mon\n\n32,,minor-faults,9,100.00,,\n6,,cs,9,100.00,,\n");
        assert_eq!(stat["context-switches"], 6.0);
        more.extend(stat);
        let tokens = f64::from(MORE - FEW);
        let of_token = of_token(&few, &more);
        let kinds = by_kind(&of_token);
        assert_eq!(kinds["memory"], 0.0);
        assert_eq!(kinds["waiting for threads"], 128.0 / tokens);
        assert_eq!(kinds["minor-faults"], 32.0 / tokens);
        assert_eq!(most_often(&of_token), "futex 0.5");
        assert_eq!(most_often(&few), "mmap 100.0, futex 16.0");
        assert_eq!(most_often(&Counts::new()), "none in twenty tokens");
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
