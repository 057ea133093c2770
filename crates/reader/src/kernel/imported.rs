//! Events of other tools beside a run: `log/imported.jsonl`, one line each, on the clock of
//! the run.
//!
//! Whoever reads another tool's file (crate `imports`) appends them; here they get the node
//! that was running. Lines of JSON, because there are few of them and names are theirs.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// In the folder of the log.
pub const FILE: &str = "imported.jsonl";
/// No event's line is longer; a damaged file may have no lines at all.
const MAX_LINE_BYTES: usize = 1 << 16;

/// Something that a thread did, by another tool's account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// CLOCK_MONOTONIC.
    pub begin_nanos: u64,
    /// 0 of a sample.
    pub duration_nanos: u64,
    pub pid: u32,
    pub tid: u32,
    /// `strace`, `perf_data`, …
    pub tool: String,
    /// `futex`, `file_read`, `cpu-clock`, …
    pub category: String,
    pub name: String,
}

/// Adds events to those that are there.
pub fn append(log_directory: &Path, events: &[Imported]) -> io::Result<()> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path(log_directory))?;
    let mut out = BufWriter::new(file);
    for event in events {
        serde_json::to_writer(&mut out, event)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// By time; none where nothing was imported. A line that is no event is an error with its
/// number.
pub fn read(log_directory: &Path) -> io::Result<Vec<Imported>> {
    let file = match File::open(path(log_directory)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut events: Vec<Imported> = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let wrong = |why: String| {
            let text = format!("{FILE}:{number}: {why}");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let line = line.map_err(|error| wrong(error.to_string()))?;
        if line.len() > MAX_LINE_BYTES {
            return Err(wrong("the line is too long for an event".to_owned()));
        }
        events.push(serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?);
    }
    events.sort_by_key(|event| event.begin_nanos);
    Ok(events)
}

fn path(log_directory: &Path) -> PathBuf {
    log_directory.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(begin_nanos: u64) -> Imported {
        Imported {
            begin_nanos,
            duration_nanos: 5,
            pid: 1,
            tid: 2,
            tool: "strace".to_owned(),
            category: "futex".to_owned(),
            name: "futex\n\"".to_owned(),
        }
    }

    #[test]
    fn events_come_back_by_time_and_files_are_added_up() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), []);
        append(folder.path(), &[event(9)]).unwrap();
        append(folder.path(), &[event(3)]).unwrap();
        assert_eq!(read(folder.path()).unwrap(), [event(3), event(9)]);
    }

    #[test]
    fn a_line_that_is_no_event_is_named() {
        let folder = tempfile::tempdir().unwrap();
        append(folder.path(), &[event(9)]).unwrap();
        let mut file = OpenOptions::new()
            .append(true)
            .open(folder.path().join(FILE))
            .unwrap();
        file.write_all(b"{\"begin").unwrap();
        let said = read(folder.path()).unwrap_err().to_string();
        assert!(said.starts_with("imported.jsonl:2:"), "{said}");
    }
}
