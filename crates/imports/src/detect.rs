//! Which tool has written a file, by what is in it.

use serde::Serialize;

use crate::error::Error;
use crate::lines::lines;
use crate::perf::{sched, script, stat};
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
        if script::is_head(&line) {
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
    if stat::is_csv_line(line) {
        return Some(Format::PerfStat);
    }
    if sched::is_latency_header(line) || sched::is_timehist_header(line) {
        return Some(Format::PerfSched);
    }
    if line.contains("Trace Event Information") || line.contains("Shared Data Cache Line Table") {
        return Some(Format::PerfC2c);
    }
    if trimmed.starts_with('#') && line.contains("Overhead") && line.contains("Memory access") {
        return Some(Format::PerfMem);
    }
    if strace::is_summary_header(line) {
        return Some(Format::Strace);
    }
    None
}
