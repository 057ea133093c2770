//! What strace prints: calls with `-f`, `-t`, `-tt`, `-ttt`, `-r` and `-T`, or the table of `-c`.
//!
//! ```text
//! 19247 1794881275.401174 access("/etc/ld.so.preload", R_OK) = -1 ENOENT (No such …) <0.000009>
//! pid   when (-ttt)       name(arguments)                    = result                <time (-T)>
//! ```
//!
//! A call that another thread's line interrupts is two lines, `<unfinished ...>` and
//! `<... NAME resumed>`; both together are one call. Signals and exits are passed over. What is
//! printed between the lines (the program's own output on the same terminal) is passed over and
//! counted, unless nothing else is in the file.

mod summary;
mod tally;

use std::collections::HashMap;

use crate::calls::category;
use crate::detect::Format;
use crate::error::Error;
use crate::figures::seconds_as_nanos;
use crate::lines::{lines, shown};
use crate::{Clock, Event, Import};

use tally::Tally;

pub use summary::is_header as is_summary_header;

/// Whether this is a line of a trace. Strict, for [`crate::detect()`]: a result must be there.
pub fn is_line(line: &str) -> bool {
    let (front, rest) = Front::take(line);
    match Body::parse(rest) {
        Some(Body::Call(call)) => !call.result.is_empty() || call.unfinished,
        Some(Body::Resumed(_)) => true,
        // Signals and exits look like other things where nothing is in front of them.
        Some(Body::Aside) => front.pid.is_some() || front.stamp.is_some(),
        None => false,
    }
}

pub fn parse(file: &str, bytes: &[u8]) -> Result<Import, Error> {
    let mut import = Import::new(Format::Strace, file);
    let mut trace = Trace::default();
    let mut table = None;
    let mut foreign: Option<(u64, String)> = None;
    let mut foreign_lines = 0u64;
    for (number, line) in lines(bytes) {
        if line.trim().is_empty() {
            continue;
        }
        if summary::is_header(&line) {
            table = Some(number);
            break;
        }
        if !trace.line(file, number, &line, &mut import.events)? {
            foreign_lines += 1;
            foreign.get_or_insert((number, shown(&line)));
        }
    }
    if !trace.has_calls() && table.is_none() {
        let (number, text) = foreign.unwrap_or((1, String::new()));
        return Err(Error::line(
            file,
            number,
            format!("no line of strace: `{text}`; there is no system call in this file"),
        ));
    }
    if let Some((number, text)) = foreign {
        import.notes.push(format!(
            "{foreign_lines} lines are not strace's and were passed over, the first at line {number}: `{text}`"
        ));
    }
    if trace.has_calls() {
        import.clock = match trace.stamps {
            Stamps::Epoch => Clock::Wall,
            _ => Clock::Unknown,
        };
        trace.finish(&mut import);
    } else if let Some(header) = table {
        import.subjects.push(summary::parse(file, bytes, header)?);
        import.notes.push(
            "times of `strace -c` are the kernel's own processor time; with -w they include waiting".into(),
        );
    }
    Ok(import)
}

/// Which kind of time is at the head of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stamps {
    #[default]
    None,
    /// `-t`, `-tt`: the time of a day.
    Day,
    /// `-ttt`.
    Epoch,
    /// `-r`: since the line before.
    Relative,
}

#[derive(Default)]
struct Trace {
    tally: Tally,
    stamps: Stamps,
    /// By thread: a call that has not returned.
    open: HashMap<u32, Begun>,
    /// Sum of the relative times so far.
    relative_nanos: u64,
    /// By thread: its first line, and the end of its last call.
    spans: HashMap<u32, (u64, u64)>,
    resumed_alone: u64,
    /// Midnights that passed, seen by times of the day that go back.
    days: u64,
    last_day_nanos: u64,
}

/// The first half of a call in two lines.
struct Begun {
    name: String,
    line: u64,
    nanos: Option<u64>,
}

const DAY_NANOS: u64 = 86_400_000_000_000;

impl Trace {
    fn has_calls(&self) -> bool {
        self.tally.calls() > 0 || !self.open.is_empty()
    }

    /// The call that this thread had begun. Where strace prints to the terminal, the last thread
    /// that is left loses its number in the middle of a call.
    fn begun(&mut self, tid: Option<u32>, name: &str) -> Option<(u32, Begun)> {
        let mut found = tid.unwrap_or(0);
        if tid.is_none() && !self.open.contains_key(&found) {
            let mut same = self.open.iter().filter(|(_, call)| call.name == name);
            found = *same.next().filter(|_| same.next().is_none())?.0;
        }
        let begun = self.open.remove(&found).filter(|call| call.name == name);
        begun.map(|call| (found, call))
    }

    /// Whether the line is strace's.
    fn line(
        &mut self,
        file: &str,
        number: u64,
        line: &str,
        events: &mut Vec<Event>,
    ) -> Result<bool, Error> {
        let (front, rest) = Front::take(line);
        let Some(body) = Body::parse(rest) else {
            return Ok(false);
        };
        let now = match front.stamp {
            Some(stamp) => Some(
                self.moment(stamp)
                    .ok_or_else(|| Error::line(file, number, "a time that no clock can show"))?,
            ),
            None => None,
        };
        let tid = front.pid.unwrap_or(0);
        if let Some(now) = now {
            self.seen(tid, now);
        }
        match body {
            Body::Aside => {}
            Body::Call(call) if call.unfinished => {
                let begun = Begun {
                    name: call.name.to_owned(),
                    line: number,
                    nanos: now,
                };
                self.open.insert(tid, begun);
                // What is counted is counted where it ends; one that never ends, at the end.
            }
            Body::Call(call) => self.take(file, number, tid, now, number, &call, events)?,
            Body::Resumed(call) => match self.begun(front.pid, call.name) {
                Some((tid, begun)) => {
                    let (begin, line) = (begun.nanos, begun.line);
                    self.take(file, number, tid, begin, line, &call, events)?;
                }
                // Its first half was before the file began.
                None => {
                    self.resumed_alone += 1;
                    self.take(file, number, tid, None, number, &call, events)?;
                }
            },
        }
        Ok(true)
    }

    fn seen(&mut self, tid: u32, nanos: u64) {
        let (first, last) = self.spans.entry(tid).or_insert((nanos, nanos));
        *first = nanos.min(*first);
        *last = nanos.max(*last);
    }

    fn moment(&mut self, stamp: Stamp<'_>) -> Option<u64> {
        let nanos = match stamp {
            Stamp::Seconds(text) => {
                let nanos = seconds_as_nanos(text)?;
                // No computer's clock stands in 1970; seconds since the line before are few.
                if nanos >= 100_000_000_000_000_000 {
                    self.stamps = Stamps::Epoch;
                    nanos
                } else {
                    self.stamps = Stamps::Relative;
                    self.relative_nanos = self.relative_nanos.checked_add(nanos)?;
                    self.relative_nanos
                }
            }
            Stamp::Day(nanos) => {
                self.stamps = Stamps::Day;
                // Lines of several threads are a little out of order; half a day is not.
                if nanos + DAY_NANOS / 2 < self.last_day_nanos {
                    self.days += 1;
                }
                self.last_day_nanos = nanos;
                self.days.checked_mul(DAY_NANOS)?.checked_add(nanos)?
            }
        };
        Some(nanos)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call, from a line and from two"
    )]
    fn take(
        &mut self,
        file: &str,
        number: u64,
        tid: u32,
        begin: Option<u64>,
        begin_line: u64,
        call: &Call<'_>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        let nanos = match call.time {
            Some(text) => Some(seconds_as_nanos(text).ok_or_else(|| {
                Error::line(
                    file,
                    number,
                    format!("`<{}>` is no time in seconds", shown(text)),
                )
            })?),
            None => None,
        };
        self.tally.add(call.name, call.result, nanos);
        if let Some(begin) = begin {
            let end = begin.checked_add(nanos.unwrap_or(0));
            let end = end.ok_or_else(|| {
                Error::line(file, begin_line, "a call that ends behind all times")
            })?;
            self.seen(tid, end);
            if self.stamps == Stamps::Epoch || nanos.is_some() {
                events.push(Event {
                    begin_nanos: begin,
                    duration_nanos: nanos.unwrap_or(0),
                    pid: tid,
                    tid,
                    category: category(call.name).name().to_owned(),
                    name: call.name.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn finish(mut self, import: &mut Import) {
        let file = import.file.clone();
        let unfinished: Vec<Begun> = self.open.drain().map(|(_, begun)| begun).collect();
        for begun in &unfinished {
            self.tally.add(&begun.name, "", None);
        }
        let first = self.spans.values().map(|(first, _)| *first).min();
        let last = self.spans.values().map(|(_, last)| *last).max();
        let wall = last.zip(first).map(|(last, first)| last - first);
        let threads = self
            .spans
            .values()
            .fold(0u64, |sum, (first, last)| sum.saturating_add(last - first));
        import
            .subjects
            .push(self.tally.subject(&file, wall, wall.map(|_| threads)));
        let notes = &mut import.notes;
        if !unfinished.is_empty() {
            notes.push(format!(
                "{} calls had not returned where the file ends; their time is not known",
                unfinished.len()
            ));
        }
        if self.resumed_alone > 0 {
            notes.push(format!(
                "{} calls had begun before the file begins",
                self.resumed_alone
            ));
        }
        if !self.tally.has_times() {
            notes.push(
                "no times of calls; with `strace -f -ttt -T` their share of the time is known"
                    .into(),
            );
        }
        match self.stamps {
            Stamps::None | Stamps::Relative => notes.push(
                "no times of day; `strace -f -ttt -T` gives what can be joined to a run".into(),
            ),
            Stamps::Day => notes.push(
                "times are of an unknown day; `strace -f -ttt -T` gives what can be joined to a run".into(),
            ),
            Stamps::Epoch => {}
        }
        if !import.events.is_empty() {
            notes.push(
                "strace names threads, not processes: pid and tid of an event are the same".into(),
            );
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Stamp<'a> {
    Seconds(&'a str),
    Day(u64),
}

/// What stands before a call: thread and time, each only with its option.
#[derive(Debug, Default)]
struct Front<'a> {
    pid: Option<u32>,
    stamp: Option<Stamp<'a>>,
}

impl<'a> Front<'a> {
    fn take(line: &'a str) -> (Front<'a>, &'a str) {
        let mut front = Front::default();
        let mut rest = line.trim_start();
        if let Some((pid, after)) = rest
            .strip_prefix("[pid")
            .and_then(|rest| rest.split_once(']'))
        {
            front.pid = pid.trim().parse().ok();
            rest = after.trim_start();
        }
        // `19247 1794881275.4 name(` and `19247 name(`; a time has a point or colons.
        for _ in 0..2 {
            let Some((word, after)) = rest.split_once(' ') else {
                break;
            };
            // With -r beside -f, `(+ 0.000012)` in newer versions.
            let word = word.trim_matches(['(', ')', '+']);
            if let Some(stamp) = stamp(word) {
                front.stamp = Some(stamp);
                rest = after.trim_start();
                break;
            }
            if front.pid.is_some() || word.is_empty() || !word.bytes().all(|b| b.is_ascii_digit()) {
                break;
            }
            let Ok(pid) = word.parse() else { break };
            front.pid = Some(pid);
            rest = after.trim_start();
        }
        (front, rest)
    }
}

fn stamp(word: &str) -> Option<Stamp<'_>> {
    if !word.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if word.contains(':') {
        let mut parts = word.splitn(3, ':');
        let hours: u64 = parts.next()?.parse().ok().filter(|h| *h < 24)?;
        let minutes: u64 = parts.next()?.parse().ok().filter(|m| *m < 60)?;
        let nanos = seconds_as_nanos(parts.next()?).filter(|n| *n < 61_000_000_000)?;
        return Some(Stamp::Day((hours * 60 + minutes) * 60_000_000_000 + nanos));
    }
    (word.contains('.') && seconds_as_nanos(word).is_some()).then_some(Stamp::Seconds(word))
}

#[derive(Debug)]
struct Call<'a> {
    name: &'a str,
    /// Behind the last ` = `; empty where the line has none.
    result: &'a str,
    /// Inside `<…>` at the end.
    time: Option<&'a str>,
    unfinished: bool,
}

#[derive(Debug)]
enum Body<'a> {
    Call(Call<'a>),
    Resumed(Call<'a>),
    /// A signal, an exit, strace's own words.
    Aside,
}

impl<'a> Body<'a> {
    fn parse(text: &'a str) -> Option<Body<'a>> {
        let text = text.trim_end();
        if (text.starts_with("+++ ") && text.ends_with(" +++"))
            || (text.starts_with("--- ") && text.ends_with(" ---"))
            || text.starts_with("strace: Process ")
        {
            return Some(Body::Aside);
        }
        if let Some(rest) = text.strip_prefix("<... ") {
            let (name, rest) = rest.split_once(' ')?;
            let rest = rest.strip_prefix("resumed")?;
            let (result, time) = ending(rest);
            return is_name(name).then_some(Body::Resumed(Call {
                name,
                result,
                time,
                unfinished: false,
            }));
        }
        let (name, rest) = text.split_once('(')?;
        if !is_name(name) {
            return None;
        }
        let unfinished = rest.ends_with("<unfinished ...>");
        let (result, time) = ending(rest);
        let whole = unfinished || !result.is_empty();
        whole.then_some(Body::Call(Call {
            name,
            result,
            time,
            unfinished,
        }))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// The result and the time at the end of a line: `… = 0 <0.000011>`.
fn ending(text: &str) -> (&str, Option<&str>) {
    let text = text.trim_end();
    let (text, time) = match text
        .strip_suffix('>')
        .and_then(|text| text.rsplit_once('<'))
    {
        Some((before, time)) if time.starts_with(|c: char| c.is_ascii_digit()) => {
            (before.trim_end(), Some(time))
        }
        _ => (text, None),
    };
    // The last one: a string among the arguments may hold the same.
    match text.rsplit_once(" = ") {
        Some((_, result)) => (result.trim(), time),
        None => ("", time),
    }
}
