//! The table of `strace -c`: calls, errors and times by name.
//!
//! The table does not know how long the program ran: shares are of the time in calls, and not
//! of the time.

use rules::{Metrics, Subject, Unit};

use crate::calls::{CATEGORIES, category};
use crate::error::Error;
use crate::figures::number;
use crate::lines::{lines, shown};

pub fn is_header(line: &str) -> bool {
    line.split_whitespace().eq([
        "%",
        "time",
        "seconds",
        "usecs/call",
        "calls",
        "errors",
        "syscall",
    ])
}

/// The table whose header is at this line.
pub fn parse(file: &str, bytes: &[u8], header: u64) -> Result<Subject, Error> {
    let mut sums = [(0.0, 0.0); CATEGORIES.len()];
    let (mut calls, mut errors) = (0.0, 0.0);
    let mut begun = false;
    let mut ended = false;
    for (at, line) in lines(bytes).skip_while(|(at, _)| *at <= header) {
        if line.starts_with("---") {
            ended = begun;
            if ended {
                break;
            }
            begun = true;
            continue;
        }
        let wrong = |what: &str| {
            let text = shown(&line);
            Error::line(file, at, format!("no row of strace -c: {what}: `{text}`"))
        };
        if !begun {
            return Err(wrong("the rule under the header is missing"));
        }
        // The cell of errors is empty where there were none.
        let words: Vec<&str> = line.split_whitespace().collect();
        let (seconds, count, failed, name) = match words[..] {
            [_, seconds, _, count, name] => (seconds, count, "0", name),
            [_, seconds, _, count, failed, name] => (seconds, count, failed, name),
            _ => return Err(wrong("there are 5 or 6 columns")),
        };
        let seconds = number(seconds).ok_or_else(|| wrong("no seconds"))?;
        let count = number(count).ok_or_else(|| wrong("no number of calls"))?;
        let failed = number(failed).ok_or_else(|| wrong("no number of errors"))?;
        if seconds < 0.0 || count < 0.0 || failed < 0.0 {
            return Err(wrong("a number below zero"));
        }
        let of = category(name);
        if let Some(place) = CATEGORIES.iter().position(|known| *known == of) {
            sums[place].0 += count;
            sums[place].1 += seconds;
        }
        calls += count;
        errors += failed;
    }
    if !ended || calls == 0.0 {
        return Err(Error::line(
            file,
            header,
            "a table of strace -c that is cut: its total is missing",
        ));
    }
    let mut metrics = Metrics::default();
    let source = format!("{file}:{header}");
    let source = Some(source.as_str());
    metrics.number("calls.total", Unit::Count, calls, source);
    metrics.number("calls.errors_share", Unit::Share, errors / calls, source);
    let seconds: f64 = sums.iter().map(|(_, seconds)| seconds).sum();
    for (of, (count, of_seconds)) in CATEGORIES.iter().zip(sums) {
        let name = format!("calls.{}.count", of.name());
        metrics.number(&name, Unit::Count, count, source);
        if seconds > 0.0 {
            let name = format!("calls.{}.call_time_share", of.name());
            metrics.number(&name, Unit::Share, of_seconds / seconds, source);
        }
    }
    Ok(Subject {
        kind: "calls".to_owned(),
        name: file.to_owned(),
        metrics,
    })
}
