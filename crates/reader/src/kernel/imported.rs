//! Events of other tools beside a run: `log/imported.jsonl`, one line each, on the clock of
//! the run.
//!
//! Whoever reads another tool's file (crate `imports`) puts them there; here they get the node
//! that was running. Lines of JSON, because there are few of them and names are theirs. The
//! file is replaced in one step, so that a full disk leaves it as it was, and those of a file
//! that is imported again take the place of the former ones.

use std::fs::File;
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
    /// The tool's file, as it was named.
    pub file: String,
    /// `futex`, `file_read`, `cpu-clock`, …
    pub category: String,
    pub name: String,
}

/// Adds the events of a file to those that are there.
pub fn put(log_directory: &Path, file: &str, events: &[Imported]) -> io::Result<()> {
    let mut all = read(log_directory)?;
    all.retain(|event| event.file != file);
    all.extend_from_slice(events);
    let scratch = log_directory.join(format!(".{FILE}-{}", std::process::id()));
    let written =
        write(&scratch, &all).and_then(|()| std::fs::rename(&scratch, path(log_directory)));
    if written.is_err() {
        let _ = std::fs::remove_file(&scratch);
    }
    written
}

fn write(path: &Path, events: &[Imported]) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
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

    fn event(begin_nanos: u64, file: &str) -> Imported {
        Imported {
            begin_nanos,
            duration_nanos: 5,
            pid: 1,
            tid: 2,
            tool: "strace".to_owned(),
            file: file.to_owned(),
            category: "futex".to_owned(),
            name: "futex\n\"".to_owned(),
        }
    }

    #[test]
    fn files_are_added_up_by_time_and_one_imported_again_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(read(folder).unwrap(), []);
        put(folder, "a", &[event(9, "a")]).unwrap();
        put(folder, "b", &[event(3, "b")]).unwrap();
        assert_eq!(read(folder).unwrap(), [event(3, "b"), event(9, "a")]);
        put(folder, "a", &[event(1, "a")]).unwrap();
        assert_eq!(read(folder).unwrap(), [event(1, "a"), event(3, "b")]);
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1);
    }

    #[test]
    fn a_line_that_is_no_event_is_named() {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), "a", &[event(9, "a")]).unwrap();
        let path = folder.path().join(FILE);
        let cut = std::fs::read_to_string(&path).unwrap() + "{\"begin";
        std::fs::write(&path, cut).unwrap();
        let said = read(folder.path()).unwrap_err().to_string();
        assert!(said.starts_with("imported.jsonl:2:"), "{said}");
    }
}
