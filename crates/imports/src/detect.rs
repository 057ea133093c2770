//! Which tool has written a file, by what is in it.

use serde::Serialize;

use crate::error::Error;
use crate::lines::lines;
use crate::strace;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// `perf record`'s own file.
    PerfData,
    /// `perf script`, without options that change its columns.
    PerfScript,
    /// `perf stat`, as text, with `-x,` or with `-j`.
    PerfStat,
    /// `perf sched latency` or `perf sched timehist`.
    PerfSched,
    /// `perf mem report --stdio`.
    PerfMem,
    /// `perf c2c report --stdio`.
    PerfC2c,
    /// `ncu --csv`, `--page raw` or `--page details`.
    NcuCsv,
    /// `nsys export --type sqlite`.
    NsysSqlite,
    Strace,
}

impl Format {
    /// As in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Format::PerfData => "perf_data",
            Format::PerfScript => "perf_script",
            Format::PerfStat => "perf_stat",
            Format::PerfSched => "perf_sched",
            Format::PerfMem => "perf_mem",
            Format::PerfC2c => "perf_c2c",
            Format::NcuCsv => "ncu_csv",
            Format::NsysSqlite => "nsys_sqlite",
            Format::Strace => "strace",
        }
    }
}

/// So much of a file is looked at: what a program prints before the tool's own output, and the
/// long header of a raw page of Nsight Compute, fit.
pub const HEAD_BYTES: u64 = 1 << 20;

/// The format of a file that begins with these bytes.
pub fn detect_bytes(file: &str, head: &[u8]) -> Result<Format, Error> {
    if head.is_empty() {
        return Err(Error::content(file, "empty"));
    }
    if head.starts_with(b"PERFILE2") || head.starts_with(b"2ELIFREP") {
        return Ok(Format::PerfData);
    }
    if head.starts_with(b"SQLite format 3\0") {
        return Ok(Format::NsysSqlite);
    }
    if head.starts_with(b"\x1f\x8b") || head.starts_with(b"PK") {
        return Err(Error::content(file, "compressed; unpack it first"));
    }
    if head.starts_with(b"NVR\0") {
        return Err(Error::content(
            file,
            "a report of Nsight; export it first: `ncu -i FILE --page raw --csv` or `nsys export --type sqlite FILE`",
        ));
    }
    let mut script = 0;
    for (_, line) in lines(head).take(5000) {
        if let Some(format) = by_mark(&line) {
            return Ok(format);
        }
        if strace::is_line(&line) {
            return Ok(Format::Strace);
        }
        if crate::detect::is_sample(&line) {
            script += 1;
            if script == 2 {
                return Ok(Format::PerfScript);
            }
        }
    }
    if script == 1 {
        return Ok(Format::PerfScript);
    }
    Err(Error::content(
        file,
        "of no format that is known here: perf.data, the output of perf script, stat, sched, mem report or c2c report (--stdio), ncu --csv, nsys export --type sqlite, strace",
    ))
}

/// Lines that only one tool writes.
fn by_mark(line: &str) -> Option<Format> {
    let trimmed = line.trim_start();
    if line.starts_with("\"ID\",") && line.contains("\"Kernel Name\"") {
        return Some(Format::NcuCsv);
    }
    if trimmed.starts_with("Performance counter stats for") {
        return Some(Format::PerfStat);
    }
    if trimmed.starts_with('{') && line.contains("\"counter-value\"") {
        return Some(Format::PerfStat);
    }
    if trimmed.starts_with("#") && trimmed.contains(" counts unit events") {
        return Some(Format::PerfStat);
    }
    if is_stat_csv(line) {
        return Some(Format::PerfStat);
    }
    if trimmed.starts_with("Task ")
        && (line.contains("Max delay") || line.contains("Maximum delay"))
    {
        return Some(Format::PerfSched);
    }
    if trimmed.starts_with("time ") && line.contains("task name") && line.contains("wait time") {
        return Some(Format::PerfSched);
    }
    if line.contains("Trace Event Information") || line.contains("Shared Data Cache Line Table") {
        return Some(Format::PerfC2c);
    }
    if trimmed.starts_with('#') && line.contains("Local Weight") && line.contains("Memory access") {
        return Some(Format::PerfMem);
    }
    if strace::is_summary_header(line) {
        return Some(Format::Strace);
    }
    None
}

/// `1.03,msec,task-clock,1026266,100.00,0.103,CPUs utilized`, perhaps with the time of an
/// interval in front.
fn is_stat_csv(line: &str) -> bool {
    let fields: Vec<&str> = line.split([',', ';']).map(str::trim).collect();
    let is_value = |text: &str| {
        matches!(text, "<not supported>" | "<not counted>")
            || crate::figures::number(text).is_some()
    };
    // Value, unit, event, run time, share of the time that it was counted.
    let from = |at: usize| {
        fields.len() >= at + 5
            && is_value(fields[at])
            && fields[at + 2].starts_with(|c: char| c.is_ascii_alphabetic())
            && fields[at + 3].bytes().all(|b| b.is_ascii_digit())
            && !fields[at + 3].is_empty()
            && crate::figures::number(fields[at + 4]).is_some()
    };
    (0..4).any(from)
}

/// `sh 19346   880.475796:     250000 cpu-clock:` or with `[001]` before the time.
pub fn is_sample(line: &str) -> bool {
    if line.starts_with([' ', '\t', '#'])
        && !line
            .trim_start()
            .starts_with(|c: char| c.is_ascii_alphanumeric() || c == ':')
    {
        return false;
    }
    line.split_whitespace().any(|word| {
        word.strip_suffix(':').is_some_and(|time| {
            time.contains('.') && crate::figures::seconds_as_nanos(time).is_some()
        })
    })
}
