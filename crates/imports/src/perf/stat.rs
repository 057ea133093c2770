//! `perf stat`: as text, with `-x,` or with `-j`; with `-I` the intervals are added up.
//!
//! ```text
//!      0.050120772               0.77 msec task-clock     #    0.015 CPUs utilized   (100.00%)
//!      interval (-I)            value unit event            what perf makes of it    counted
//! ```
//!
//! Events of one name on several kinds of cores (`cpu_core/cycles/`, `cpu_atom/cycles/`), of
//! several processors (`-A`) and with modifiers (`cycles:u`) are added up.

use std::collections::BTreeMap;

use rules::{Metrics, Subject, Unit};
use serde_json::Value as Json;

use crate::Import;
use crate::detect::Format;
use crate::error::Error;
use crate::figures::number;
use crate::lines::{lines, said, shown};

pub fn parse(file: &str, bytes: &[u8]) -> Result<Import, Error> {
    let mut stat = Stat::default();
    let mut foreign: Option<(u64, String)> = None;
    for (at, line) in lines(bytes) {
        if !stat.line(file, at, &line)? {
            foreign.get_or_insert((at, shown(&line)));
        }
    }
    if stat.counts.is_empty() && stat.missing.is_empty() && stat.topdown.is_empty() {
        let (at, text) = foreign.unwrap_or((1, String::new()));
        return Err(Error::line(
            file,
            at,
            format!("no counter of perf stat: `{text}`; there is none in this file"),
        ));
    }
    let mut import = Import::new(Format::PerfStat, file);
    let (subject, absurd) = stat.subject(file);
    if subject.metrics.0.is_empty() {
        import.notes.push(
            "no counter was counted; `perf list hw cache` shows what this machine has".into(),
        );
    }
    import.subjects.push(subject);
    import.notes.extend(absurd);
    let missing: Vec<&str> = stat
        .missing
        .keys()
        .map(String::as_str)
        .filter(|event| !stat.counts.contains_key(*event))
        .collect();
    if !missing.is_empty() {
        import.notes.push(format!(
            "not supported or not counted here, and absent: {}",
            said(&missing.join(", "))
        ));
    }
    if stat.multiplexed {
        import.notes.push("some events were counted for a part of the time and scaled by perf; count fewer at once".into());
    }
    Ok(import)
}

/// A part of a whole that is larger than this times the whole is no part of it.
const MAX_SHARE: f64 = 1.25;

#[derive(Clone, Copy, Default)]
struct Count {
    value: f64,
    line: u64,
}

#[derive(Default)]
struct Stat {
    command: Option<String>,
    counts: BTreeMap<String, Count>,
    missing: BTreeMap<String, u64>,
    /// Of the time, by name: `retiring`.
    topdown: BTreeMap<&'static str, Count>,
    elapsed_seconds: Option<Count>,
    /// What perf itself has divided.
    utilized: Option<f64>,
    /// The end of the last interval.
    interval_seconds: Option<Count>,
    multiplexed: bool,
}

/// One line, whatever its form.
#[derive(Default)]
struct Row<'a> {
    interval: Option<f64>,
    /// None where it was not counted.
    value: Option<f64>,
    unit: &'a str,
    event: &'a str,
    /// What perf makes of it: `0.015 CPUs utilized`.
    remark: String,
    counted_percent: Option<f64>,
}

impl Stat {
    /// Whether the line is perf's.
    fn line(&mut self, file: &str, at: u64, line: &str) -> Result<bool, Error> {
        let text = line.trim();
        if text.is_empty() || text.starts_with("# ") && !text.contains('%') || text == "#" {
            return Ok(true);
        }
        if let Some(rest) = text.strip_prefix("Performance counter stats for") {
            let name = rest
                .split(['\'', '‘', '’'])
                .nth(1)
                .unwrap_or(rest.trim_end_matches(':').trim());
            self.command = Some(name.trim().to_owned());
            return Ok(true);
        }
        if let Some(before) = text
            .split_once(" seconds time elapsed")
            .map(|(before, _)| before)
        {
            let value = before.split_whitespace().next().and_then(number);
            let value = value.filter(|value| *value >= 0.0);
            let value = value.ok_or_else(|| wrong(file, at, line, "no elapsed time"))?;
            self.elapsed_seconds = Some(Count { value, line: at });
            return Ok(true);
        }
        if text.ends_with(" seconds user") || text.ends_with(" seconds sys") {
            return Ok(true);
        }
        if text.starts_with('{') {
            let object: Json = serde_json::from_str(text)
                .map_err(|error| wrong(file, at, line, &format!("no JSON ({error})")))?;
            let row = json_row(&object)
                .ok_or_else(|| wrong(file, at, line, "no counter-value and event"))?;
            self.row(file, at, line, &row)?;
            return Ok(true);
        }
        let row = csv_row(line).or_else(|| text_row(line));
        match row {
            Some(row) => {
                self.row(file, at, line, &row)?;
                Ok(true)
            }
            None => Ok(self.remark(at, line)),
        }
    }

    fn row(&mut self, file: &str, at: u64, line: &str, row: &Row<'_>) -> Result<(), Error> {
        if let Some(value) = row.interval {
            self.interval_seconds = Some(Count { value, line: at });
        }
        let event = normal(row.event);
        let Some(value) = row.value else {
            self.missing.entry(event).or_insert(at);
            return Ok(());
        };
        if value < 0.0 {
            return Err(wrong(file, at, line, "a count below zero"));
        }
        self.multiplexed |= row.counted_percent.is_some_and(|percent| percent < 99.0);
        // Times are printed in milliseconds, counts as they are.
        let value = match row.unit {
            "msec" | "ms" => value * 1e6,
            "usec" | "us" => value * 1e3,
            _ => value,
        };
        let count = self.counts.entry(event).or_insert(Count {
            value: 0.0,
            line: at,
        });
        count.value += value;
        self.remark(at, &row.remark);
        Ok(())
    }

    /// What perf makes of counts: only what cannot be had from the counts themselves.
    fn remark(&mut self, at: u64, text: &str) -> bool {
        const NAMES: [(&str, &str); 10] = [
            ("retiring", "retiring"),
            ("bad_speculation", "bad_speculation"),
            ("bad speculation", "bad_speculation"),
            ("bad spec", "bad_speculation"),
            ("frontend_bound", "frontend_bound"),
            ("frontend bound", "frontend_bound"),
            ("backend_bound", "backend_bound"),
            ("backend bound", "backend_bound"),
            ("memory_bound", "memory_bound"),
            ("core_bound", "core_bound"),
        ];
        if let Some((before, _)) = text.split_once("CPUs utilized") {
            self.utilized = before.split_whitespace().last().and_then(number);
            return true;
        }
        let Some((before, after)) = text.split_once('%') else {
            return false;
        };
        let Some(percent) = before
            .split(['#', ' '])
            .rfind(|word| !word.is_empty())
            .and_then(number)
        else {
            return false;
        };
        let words = after
            .trim_start()
            .trim_start_matches("tma_")
            .to_ascii_lowercase();
        let known = NAMES.iter().find(|(theirs, _)| words.starts_with(theirs));
        let Some((_, ours)) = known.filter(|_| (0.0..=100.0).contains(&percent)) else {
            return false;
        };
        let value = percent / 100.0;
        self.topdown
            .entry(ours)
            .or_insert(Count { value, line: at });
        true
    }

    /// With what is too strange to be given on.
    fn subject(&self, file: &str) -> (Subject, Vec<String>) {
        let mut absurd = Vec::new();
        let mut metrics = Metrics::default();
        let get = |names: &[&'static str]| {
            let found = names
                .iter()
                .find_map(|name| Some((*name, self.counts.get(*name)?)));
            found.map(|(name, count): (&'static str, &Count)| (name, *count))
        };
        let cycles = get(&["cycles", "cpu-cycles"]);
        let mut share = |name: &str, unit: Unit, top: &[&'static str], below: &[&'static str]| {
            if let (Some((top, a)), Some((below, b))) = (get(top), get(below))
                && b.value > 0.0
            {
                let source = format!("{file}:{} {top} / {below}", a.line);
                let value = a.value / b.value;
                // Counted at different times, the part may be a little more than the whole.
                if unit == Unit::Share && value > MAX_SHARE {
                    absurd.push(format!(
                        "line {}: {top} is {value:.3} times {below}, and left out",
                        a.line
                    ));
                } else if unit == Unit::Share {
                    metrics.number(name, unit, value.min(1.0), Some(&source));
                } else {
                    metrics.number(name, unit, value, Some(&source));
                }
            }
        };
        let all_cycles = &["cycles", "cpu-cycles"];
        share("ipc", Unit::Count, &["instructions"], all_cycles);
        share(
            "llc.miss_share",
            Unit::Share,
            &["LLC-load-misses"],
            &["LLC-loads"],
        );
        if get(&["LLC-load-misses"]).is_none() || get(&["LLC-loads"]).is_none() {
            share(
                "llc.miss_share",
                Unit::Share,
                &["cache-misses"],
                &["cache-references"],
            );
        }
        share(
            "l1d.miss_share",
            Unit::Share,
            &["L1-dcache-load-misses"],
            &["L1-dcache-loads"],
        );
        share(
            "dtlb.miss_share",
            Unit::Share,
            &["dTLB-load-misses"],
            &["dTLB-loads"],
        );
        share(
            "branch.miss_share",
            Unit::Share,
            &["branch-misses"],
            &["branches", "branch-instructions"],
        );
        share(
            "stalled_backend",
            Unit::Share,
            &["stalled-cycles-backend", "idle-cycles-backend"],
            all_cycles,
        );
        share(
            "stalled_frontend",
            Unit::Share,
            &["stalled-cycles-frontend", "idle-cycles-frontend"],
            all_cycles,
        );
        for (name, event) in [
            ("topdown.retiring", "topdown-retiring"),
            ("topdown.bad_speculation", "topdown-bad-spec"),
            ("topdown.frontend_bound", "topdown-fe-bound"),
            ("topdown.backend_bound", "topdown-be-bound"),
            ("topdown.memory_bound", "topdown-mem-bound"),
        ] {
            share(
                name,
                Unit::Share,
                &[event],
                &["slots", "topdown-total-slots"],
            );
        }
        for (name, count) in &self.topdown {
            let name = format!("topdown.{name}");
            if metrics.get(&name).is_none() {
                let source = format!("{file}:{}", count.line);
                metrics.number(&name, Unit::Share, count.value, Some(&source));
            }
        }
        let clock = get(&["task-clock", "cpu-clock"]).filter(|(_, clock)| clock.value > 0.0);
        let elapsed = self.elapsed();
        let mut rate = |name: &str, events: &[&'static str]| {
            if let (Some((event, count)), Some((seconds, of))) = (get(events), elapsed) {
                let source = format!("{file}:{} {event} / {of}", count.line);
                metrics.number(name, Unit::Count, count.value / seconds, Some(&source));
            }
        };
        rate("context_switches_per_second", &["context-switches", "cs"]);
        rate("migrations_per_second", &["cpu-migrations", "migrations"]);
        rate("page_faults_per_second", &["page-faults", "faults"]);
        rate("major_faults_per_second", &["major-faults"]);
        if let (Some((event, clock)), Some((seconds, of))) = (clock, elapsed) {
            let source = format!("{file}:{} {event} / {of}", clock.line);
            metrics.number(
                "cpus_utilized",
                Unit::Count,
                clock.value / 1e9 / seconds,
                Some(&source),
            );
        }
        if let (Some((event, cycles)), Some((of, clock))) = (cycles, clock) {
            let source = format!("{file}:{} {event} / {of}", cycles.line);
            metrics.number(
                "frequency_hertz",
                Unit::Count,
                cycles.value / clock.value * 1e9,
                Some(&source),
            );
        }
        let subject = Subject {
            kind: "counters".to_owned(),
            name: self.command.clone().unwrap_or_else(|| file.to_owned()),
            metrics,
        };
        (subject, absurd)
    }

    /// Seconds, and what says so. `-x,` and `-j` do not print them, but what perf has divided by
    /// them.
    fn elapsed(&self) -> Option<(f64, &'static str)> {
        let clock = self
            .counts
            .get("task-clock")
            .or_else(|| self.counts.get("cpu-clock"));
        let said = self
            .elapsed_seconds
            .map(|count| (count.value, "seconds elapsed"));
        let intervals = self
            .interval_seconds
            .map(|count| (count.value, "end of the last interval"));
        let divided = clock
            .zip(self.utilized)
            .map(|(clock, utilized)| (clock.value / 1e9 / utilized, "task-clock by CPUs utilized"));
        said.or(intervals)
            .or(divided)
            .filter(|(seconds, _)| *seconds > 0.0 && seconds.is_finite())
    }
}

fn wrong(file: &str, at: u64, line: &str, what: &str) -> Error {
    Error::line(
        file,
        at,
        format!("no counter of perf stat: {what}: `{}`", shown(line)),
    )
}

/// Without the kind of core and without modifiers.
fn normal(event: &str) -> String {
    let inner = match event.split_once('/') {
        Some((_, rest)) => rest.split('/').next().unwrap_or(rest),
        None => event,
    };
    // `sched:sched_switch` has a colon that is no modifier.
    match inner.rsplit_once(':') {
        Some((name, modifiers)) if modifiers.bytes().all(|b| b"ukhIGHpPSDWe".contains(&b)) => {
            name.to_owned()
        }
        _ => inner.to_owned(),
    }
}

fn value(text: &str) -> Option<Option<f64>> {
    match text {
        "<not supported>" | "<not counted>" => Some(None),
        text => number(text).map(Some),
    }
}

fn json_row(object: &Json) -> Option<Row<'_>> {
    let text = |key: &str| object.get(key).and_then(Json::as_str).unwrap_or("");
    let any = |key: &str| match object.get(key)? {
        Json::Number(number) => number.as_f64(),
        Json::String(text) => number(text),
        _ => None,
    };
    let remark = any("metric-value").map(|value| format!("{value} {}", text("metric-unit")));
    // A second number of the event before has no event of its own.
    let counted = match object.get("counter-value") {
        Some(Json::String(text)) => value(text.trim())?,
        Some(Json::Number(number)) => number.as_f64(),
        _ if remark.is_some() => None,
        _ => return None,
    };
    Some(Row {
        interval: any("interval"),
        value: counted,
        unit: text("unit"),
        event: text("event"),
        remark: remark.unwrap_or_default(),
        counted_percent: any("pcnt-running"),
    })
    .filter(|row| !row.event.is_empty())
}

/// `[interval,][processor,[count,]]value,unit,event,run time,percent[,metric,its unit]`
fn csv_row(line: &str) -> Option<Row<'_>> {
    let separator = [',', ';', '\t']
        .into_iter()
        .find(|c| line.matches(*c).count() >= 4)?;
    let fields: Vec<&str> = line.split(separator).map(str::trim).collect();
    let at = (0..4).find(|at| is_counter(&fields, *at))?;
    let remark = match (fields.get(at + 5), fields.get(at + 6)) {
        (Some(value), Some(unit)) if !value.is_empty() => format!("{value} {unit}"),
        _ => String::new(),
    };
    Some(Row {
        interval: fields[..at]
            .first()
            .filter(|text| text.contains('.'))
            .and_then(|text| number(text)),
        value: value(fields[at])?,
        unit: fields[at + 1],
        event: fields[at + 2],
        remark,
        counted_percent: number(fields[at + 4]),
    })
}

fn is_counter(fields: &[&str], at: usize) -> bool {
    fields.len() >= at + 5
        && value(fields[at]).is_some()
        && fields[at + 2].starts_with(|c: char| c.is_ascii_alphabetic())
        && !fields[at + 3].is_empty()
        && fields[at + 3].bytes().all(|b| b.is_ascii_digit())
        && number(fields[at + 4]).is_some_and(|percent| (0.0..=100.0).contains(&percent))
        // Units and events are words.
        && !fields[at + 1].contains(' ')
        && !fields[at + 2].contains(' ')
}

/// Whether this is a line of `-x,`. Strict, for [`crate::detect()`].
pub fn is_csv_line(line: &str) -> bool {
    csv_row(line).is_some()
}

fn text_row(line: &str) -> Option<Row<'_>> {
    let (left, remark) = line.split_once('#').unwrap_or((line, ""));
    let (left, counted) = match left
        .trim_end()
        .strip_suffix("%)")
        .and_then(|left| left.rsplit_once('('))
    {
        Some((left, percent)) => (left, number(percent)),
        None => (left, None),
    };
    let from_remark = remark
        .trim_end()
        .strip_suffix("%)")
        .and_then(|left| left.rsplit_once('('));
    let counted = counted.or_else(|| from_remark.and_then(|(_, percent)| number(percent)));
    // With -r: `( +- 0.52% )`.
    let left = left.split("( +-").next().unwrap_or(left);
    let mut words: Vec<&str> = left.split_whitespace().collect();
    let mut interval = None;
    // Of one processor or core: `CPU0`, `S0-D0-C0 2`.
    let is_place = |word: &str| {
        let mut letters = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
        letters = letters.trim_start_matches('-');
        word.len() > letters.len()
            && word.starts_with(['C', 'S', 'N', 'D'])
            && letters.starts_with(|c: char| c.is_ascii_digit())
    };
    // `0.050120772  0.77 msec task-clock`: two numbers, and the first is a time.
    if words.len() >= 3
        && words[0].contains('.')
        && (number(words[1]).is_some() || words[1] == "<not" || is_place(words[1]))
    {
        interval = Some(number(words[0])?);
        words.remove(0);
    }
    if words.len() >= 3 && is_place(words[0]) {
        let cores = words[0].starts_with(['S', 'N', 'D']);
        words.remove(0);
        if cores && words.len() >= 3 && words[0].bytes().all(|b| b.is_ascii_digit()) {
            words.remove(0);
        }
    }
    let (counted_value, rest) = match words[..] {
        ["<not", "supported>" | "counted>", ref rest @ ..] => (None, rest),
        [first, ref rest @ ..] => (Some(number(first)?), rest),
        [] => return None,
    };
    let (unit, event) = match rest {
        [event] => ("", *event),
        [unit, event] => (*unit, *event),
        _ => return None,
    };
    event
        .starts_with(|c: char| c.is_ascii_alphabetic())
        .then(|| Row {
            interval,
            value: counted_value,
            unit,
            event,
            remark: remark.to_owned(),
            counted_percent: counted,
        })
}
