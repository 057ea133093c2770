//! `perf sched latency` and `perf sched timehist`: who waited for a processor.
//!
//! One subject for each command that had a share of the processors worth speaking of; its
//! threads together. `tasks_competing` is how many threads had such a share.

use std::collections::{BTreeMap, HashMap};

use rules::{Metrics, Subject, Unit};

use crate::detect::Format;
use crate::error::Error;
use crate::figures::{number, seconds_as_nanos};
use crate::lines::{lines, shown};
use crate::{Event, Import};

/// Of all time on processors; below it a task is in nobody's way.
const MIN_SHARE: f64 = 0.05;

pub fn parse(file: &str, bytes: &[u8]) -> Result<Import, Error> {
    for (at, line) in lines(bytes) {
        if is_latency_header(&line) {
            return latency(file, bytes, at);
        }
        if is_timehist_header(&line) {
            return timehist(file, bytes, at, line.contains("state"));
        }
    }
    Err(Error::content(
        file,
        "no table of `perf sched latency` or `perf sched timehist`",
    ))
}

pub fn is_latency_header(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("Task ")
        && line.contains('|')
        && line.contains("Runtime ms")
        && line.contains("delay")
}

pub fn is_timehist_header(line: &str) -> bool {
    line.trim_start().starts_with("time ")
        && line.contains("task name")
        && line.contains("sch delay")
}

/// The threads of one command.
#[derive(Clone, Debug, Default)]
struct Task {
    threads: u64,
    run_nanos: f64,
    wait_nanos: f64,
    max_wait_nanos: f64,
    switches: f64,
    line: u64,
}

/// `sh:(4) | 103.251 ms | 34 | avg:  12.678 ms | max:  28.030 ms | …`
fn latency(file: &str, bytes: &[u8], header: u64) -> Result<Import, Error> {
    let mut tasks: BTreeMap<String, Task> = BTreeMap::new();
    let mut whole = false;
    for (at, line) in lines(bytes).skip_while(|(at, _)| *at <= header) {
        let text = line.trim();
        if text.is_empty() || text.starts_with("---") {
            continue;
        }
        if text.starts_with("TOTAL:") {
            whole = true;
            break;
        }
        let wrong = |what: &str| {
            Error::line(
                file,
                at,
                format!("no row of perf sched latency: {what}: `{}`", shown(text)),
            )
        };
        let cells: Vec<&str> = text.split('|').map(str::trim).collect();
        let [name, run, switches, average, greatest, ..] = cells[..] else {
            return Err(wrong("there are 5 columns or more"));
        };
        let millis = |cell: &str, label: &str| {
            let cell = cell.strip_prefix(label)?.trim();
            number(cell.strip_suffix("ms")?).filter(|value| *value >= 0.0)
        };
        let run = millis(run, "").ok_or_else(|| wrong("no run time"))?;
        let switches = number(switches).filter(|value| *value >= 0.0);
        let switches = switches.ok_or_else(|| wrong("no number of switches"))?;
        let average = millis(average, "avg:").ok_or_else(|| wrong("no average delay"))?;
        let greatest = millis(greatest, "max:").ok_or_else(|| wrong("no greatest delay"))?;
        // `name:123` of one thread, `name:(4)` of four of one name.
        let (command, of) = name.rsplit_once(':').ok_or_else(|| wrong("no task"))?;
        let threads = of.strip_prefix('(').and_then(|of| of.strip_suffix(')'));
        let threads = threads
            .and_then(|threads| threads.parse().ok())
            .unwrap_or(1u64);
        let task = tasks.entry(command.to_owned()).or_default();
        task.threads = task.threads.saturating_add(threads);
        task.run_nanos += run * 1e6;
        task.wait_nanos += average * switches * 1e6;
        task.max_wait_nanos = task.max_wait_nanos.max(greatest * 1e6);
        task.switches += switches;
        task.line = if task.line == 0 { at } else { task.line };
    }
    if !whole {
        return Err(Error::line(
            file,
            header,
            "a table of perf sched latency that is cut: its total is missing",
        ));
    }
    let mut import = Import::new(Format::PerfSched, file);
    import.subjects = subjects(file, &tasks, None);
    Ok(import)
}

/// A row of the history, at the end of a time on a processor.
struct Slice<'a> {
    end_nanos: u64,
    command: &'a str,
    tid: u32,
    pid: u32,
    wait_millis: f64,
    delay_millis: f64,
    run_millis: f64,
    state: Option<&'a str>,
}

/// `1652.148979 [0001]  lto cgu.00[32548/32361]  0.000  0.000  1.557`
fn slice(line: &str) -> Option<Slice<'_>> {
    let (time, rest) = line.trim_start().split_once(' ')?;
    let end_nanos = seconds_as_nanos(time)?;
    let rest = rest.trim_start().strip_prefix('[')?;
    let (_, rest) = rest.split_once(']')?;
    let rest = rest.trim_start();
    // A name may hold brackets and spaces: the right one is before three numbers.
    for (at, _) in rest.match_indices(']') {
        let (name, after) = rest.split_at(at);
        let mut words = after[1..].split_whitespace();
        let mut millis = || words.next().and_then(number).filter(|value| *value >= 0.0);
        let (Some(wait), Some(delay), Some(run)) = (millis(), millis(), millis()) else {
            continue;
        };
        let (command, ids) = name.rsplit_once('[')?;
        let (tid, pid) = ids.split_once('/').unwrap_or((ids, ids));
        return Some(Slice {
            end_nanos,
            command: command.trim(),
            // perf writes -1 where it does not know.
            tid: tid.parse().unwrap_or(0),
            pid: pid.parse().unwrap_or(0),
            wait_millis: wait,
            delay_millis: delay,
            run_millis: run,
            state: words.next(),
        });
    }
    None
}

fn timehist(file: &str, bytes: &[u8], header: u64, has_state: bool) -> Result<Import, Error> {
    let mut import = Import::new(Format::PerfSched, file);
    let mut tasks: BTreeMap<String, Task> = BTreeMap::new();
    let mut runnable: HashMap<(u32, String), bool> = HashMap::new();
    let (mut first, mut last) = (u64::MAX, 0);
    let mut foreign: Option<(u64, String)> = None;
    for (at, line) in lines(bytes).skip_while(|(at, _)| *at <= header) {
        let Some(slice) = slice(&line) else {
            let text = line.trim();
            // The rest of the header, and what options add: summaries, wake-ups, call chains.
            if text.starts_with(|c: char| c.is_ascii_digit())
                && !line.contains("awakened")
                && !line.contains("migrated")
            {
                foreign.get_or_insert((at, shown(text)));
            }
            continue;
        };
        if slice.command == "<idle>" {
            continue;
        }
        // Times above an hour in one piece are no times of a scheduler.
        let nanos = |millis: f64| (millis * 1e6).min(3.6e12);
        let (run, mut wait) = (nanos(slice.run_millis), nanos(slice.delay_millis));
        let key = (slice.tid, slice.command.to_owned());
        let before = runnable.get(&key).copied();
        // Put aside although it could run: until it runs again it waits for a processor. Without
        // its state this is seen by a delay of zero: nobody had to wake it.
        let preempted = match has_state {
            true => before == Some(true),
            false => before.is_some() && slice.delay_millis == 0.0,
        };
        if preempted {
            wait += nanos(slice.wait_millis);
        }
        let task = tasks.entry(slice.command.to_owned()).or_default();
        task.threads += u64::from(before.is_none());
        task.run_nanos += run;
        task.wait_nanos += wait;
        task.max_wait_nanos = task.max_wait_nanos.max(wait);
        task.switches += 1.0;
        task.line = if task.line == 0 { at } else { task.line };
        let state = slice.state.filter(|_| has_state).unwrap_or("");
        runnable.insert(key, state.starts_with('R'));
        let begin = slice.end_nanos.saturating_sub(run as u64);
        first = first.min(begin);
        last = last.max(slice.end_nanos);
        let mut event = |category: &str, begin: u64, duration: f64| {
            if duration > 0.0 {
                import.events.push(Event {
                    begin_nanos: begin,
                    duration_nanos: duration as u64,
                    pid: slice.pid,
                    tid: slice.tid,
                    category: category.to_owned(),
                    name: slice.command.to_owned(),
                });
            }
        };
        event("wait", begin.saturating_sub(wait as u64), wait);
        event("run", begin, run);
    }
    if tasks.is_empty() {
        let (at, text) = foreign.unwrap_or((header, "the header is the last line".to_owned()));
        return Err(Error::line(
            file,
            at,
            format!("no row of perf sched timehist: `{text}`"),
        ));
    }
    if let Some((at, text)) = foreign {
        import.notes.push(format!(
            "line {at} and perhaps others could not be read: `{text}`"
        ));
    }
    if !has_state {
        import.notes.push(
            "which threads were preempted is inferred; `perf sched timehist --state` says it"
                .into(),
        );
    }
    import.notes.push(
        "times are of perf's own clock; record with `-k CLOCK_MONOTONIC` to join them to a run"
            .into(),
    );
    let wall = last.saturating_sub(first);
    import.subjects = subjects(file, &tasks, Some(wall).filter(|wall| *wall > 0));
    Ok(import)
}

fn subjects(file: &str, tasks: &BTreeMap<String, Task>, wall_nanos: Option<u64>) -> Vec<Subject> {
    let all: f64 = tasks.values().map(|task| task.run_nanos).sum();
    let mut large: Vec<(&String, &Task)> = tasks
        .iter()
        .filter(|(_, task)| task.run_nanos >= all * MIN_SHARE && task.run_nanos > 0.0)
        .collect();
    large.sort_by(|(_, a), (_, b)| b.run_nanos.total_cmp(&a.run_nanos));
    let competing = large
        .iter()
        .fold(0u64, |sum, (_, task)| sum.saturating_add(task.threads));
    large
        .iter()
        .map(|(name, task)| {
            let mut metrics = Metrics::default();
            let source = format!("{file}:{}", task.line);
            let mut put =
                |name: &str, unit, value: f64| metrics.number(name, unit, value, Some(&source));
            put("wait.max_nanos", Unit::Nanos, task.max_wait_nanos);
            if task.switches > 0.0 {
                put(
                    "wait.mean_nanos",
                    Unit::Nanos,
                    task.wait_nanos / task.switches,
                );
            }
            let both = task.wait_nanos + task.run_nanos;
            put("wait.share", Unit::Share, task.wait_nanos / both);
            put("run.share", Unit::Share, task.run_nanos / both);
            put("total_share", Unit::Share, task.run_nanos / all);
            put("threads", Unit::Count, task.threads as f64);
            put("tasks_competing", Unit::Count, competing as f64);
            if let Some(wall) = wall_nanos {
                put(
                    "switches_per_second",
                    Unit::Count,
                    task.switches / wall as f64 * 1e9,
                );
            }
            Subject {
                kind: "schedule".to_owned(),
                name: (*name).clone(),
                metrics,
            }
        })
        .collect()
}
