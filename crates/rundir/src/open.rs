//! The reading side: is this a run, how does it stand, what does it lack?

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use support::text::count;
use trace::status::{State, Status, read_status};

use crate::directory::{io_error, is_model};
use crate::error::{RunError, reason};
use crate::metadata::{FORMAT, Metadata, RunStatus, VERSION, was_changed};
use crate::{LOG, METADATA, METADATA_TEMPORARY, STRUCTURE, TENSOR_NAMES, machine, names, process};

/// Longer metadata is somebody else's file.
const MAX_METADATA_BYTES: u64 = 256 << 20;

/// An opened run. Nothing of the log is read but its status.
#[derive(Clone, Debug)]
pub struct Run {
    path: PathBuf,
    metadata: Option<Metadata>,
    status: Option<Status>,
    condition: Condition,
    problems: Vec<String>,
}

/// How a recording ended, or that it has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Everything that ran is in the trace, or counted in [`Lost`].
    Complete,
    /// Ended on purpose before the run did, with the reason.
    StoppedEarly(String),
    /// The process still records.
    Recording { pid: u32 },
    /// The process is gone and closed nothing.
    Killed { pid: Option<u32> },
    /// Recording ended with this `errno` while the program went on.
    Failed { errno: i32 },
}

/// What ran and is not in the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub evaluations: u64,
    pub accesses: u64,
    /// Evaluations that are in the trace with times that cannot be assigned to
    /// their nodes with certainty.
    pub tick_mismatches: u64,
}

impl Run {
    /// Opens what `tensorscope record` made, whole or not.
    pub fn open(path: &Path) -> Result<Run, RunError> {
        check_is_folder(path)?;
        let mut problems = Vec::new();
        let metadata = match read_metadata(path)? {
            Ok((metadata, changed)) => {
                problems.extend(changed);
                Some(metadata)
            }
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        let status = match read_log_status(path)? {
            Ok(status) => Some(status),
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        if metadata.is_none() && status.is_none() && !has_segments(path) && !only_ours(path) {
            return Err(not_a_run(
                path,
                "it has neither metadata.json of tensorscope nor log/status",
            ));
        }
        let condition = condition_of(path, metadata.as_ref(), status.as_ref());
        // A recorder that is still at it, or was killed before the first
        // evaluation, has no status yet; `condition` says all there is to say.
        if metadata.is_some()
            && !matches!(condition, Condition::Complete | Condition::StoppedEarly(_))
        {
            problems.retain(|p| !p.starts_with(STATUS_MISSING));
        }
        let has_ended = matches!(condition, Condition::Complete | Condition::Failed { .. });
        if has_ended
            && let Some(metadata) = &metadata
            && metadata.status == RunStatus::Recording
            && !process::is_alive(&metadata.process)
        {
            // The log was closed, and then the disk had no room for this.
            problems.push("metadata.json was not completed and lacks the statistics".to_owned());
        }
        Ok(Run {
            path: path.to_owned(),
            metadata,
            status,
            condition,
            problems,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn log_directory(&self) -> PathBuf {
        self.path.join(LOG)
    }

    pub fn structure_path(&self) -> PathBuf {
        self.path.join(STRUCTURE)
    }

    /// `None` when `metadata.json` is missing or garbled; see [`Run::problems`].
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// `None` when `log/status` is missing or garbled; see [`Run::problems`].
    pub fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    /// How the recording stood when the run was opened.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// By `log/status`, or by the metadata where that is missing.
    pub fn lost(&self) -> Lost {
        let statistics = self.metadata.as_ref().and_then(|m| m.statistics.as_ref());
        match (&self.status, statistics) {
            (Some(status), _) => Lost {
                evaluations: status.evals_lost,
                accesses: status.accesses_lost,
                tick_mismatches: status.tick_mismatches,
            },
            (None, Some(statistics)) => Lost {
                evaluations: statistics.lost_evaluations,
                accesses: statistics.lost_accesses,
                tick_mismatches: statistics.tick_mismatches,
            },
            (None, None) => Lost::default(),
        }
    }

    /// What is missing from the directory or cannot be read, a clause for each.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// One line for every command to print when the trace is not all there is
    /// to know about the run; `None` when it is.
    pub fn warning(&self) -> Option<String> {
        let lost = self.lost();
        let lacks = (lost.evaluations > 0).then(|| {
            let evaluations = count(lost.evaluations, "evaluation");
            format!(
                "the trace lacks {evaluations} ({})",
                count(lost.accesses, "access")
            )
        });
        let kept = match &self.status {
            Some(status) => format!("{} complete", count(status.evals_committed, "evaluation")),
            None => "no evaluation known".to_owned(),
        };
        let mut clauses: Vec<String> = Vec::new();
        match (&self.condition, lacks) {
            (Condition::Complete, None) => {}
            (Condition::Complete, Some(lacks)) => {
                clauses.push(format!("{lacks}: the log could not be extended in time"));
            }
            (Condition::Failed { errno }, Some(lacks)) => {
                clauses.push(format!("{lacks}: {}", errno_text(*errno)));
            }
            (Condition::Failed { errno }, None) => {
                clauses.push(format!(
                    "recording ended early: {} ({kept})",
                    errno_text(*errno)
                ));
            }
            (Condition::StoppedEarly(reason), lacks) => {
                clauses.push(format!("the recording was stopped early: {reason}"));
                clauses.extend(lacks);
            }
            (Condition::Recording { pid }, lacks) => {
                clauses.push(format!("process {pid} is still recording ({kept})"));
                clauses.extend(lacks);
            }
            (Condition::Killed { pid }, lacks) => {
                let process = pid.map_or(String::new(), |pid| format!(" {pid}"));
                clauses.push(format!(
                    "the recording process{process} was killed before it could close the trace ({kept})"
                ));
                clauses.extend(lacks);
            }
        }
        if lost.tick_mismatches > 0 {
            let evaluations = count(lost.tick_mismatches, "evaluation");
            clauses.push(format!("times of nodes are uncertain in {evaluations}"));
        }
        clauses.extend(self.problems.iter().cloned());
        (!clauses.is_empty()).then(|| clauses.join("; "))
    }

    /// What a reader that found `evaluations` in the log did not find: a copy that
    /// was cut short, or damage. `None` when all is there, or more is to come.
    pub fn missing_from_log(&self, evaluations: u64) -> Option<String> {
        let recorded = self.status.as_ref()?.evals_committed;
        let is_growing = matches!(self.condition, Condition::Recording { .. });
        (recorded > evaluations && !is_growing).then(|| {
            format!("the log holds {evaluations} of the {recorded} evaluations that were recorded; the rest is cut off or damaged")
        })
    }

    /// Names of the model's tensors in file order.
    pub fn tensor_names(&self) -> Result<Vec<String>, RunError> {
        let path = self.path.join(TENSOR_NAMES);
        let text = fs::read_to_string(&path).map_err(io_error(&path, "cannot read"))?;
        names::parse(&text).map_err(|line| {
            let damage = io::Error::new(ErrorKind::InvalidData, format!("line {line} is damaged"));
            io_error(&path, "cannot read")(damage)
        })
    }

    /// Bytes of all files of the log.
    pub fn log_bytes(&self) -> u64 {
        log_bytes(&self.log_directory())
    }
}

pub(crate) fn log_bytes(log_directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(log_directory) else {
        return 0;
    };
    entries
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .filter(fs::Metadata::is_file)
        .map(|about| about.len())
        .sum()
}

fn check_is_folder(path: &Path) -> Result<(), RunError> {
    let about = match fs::metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(RunError::NotFound {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(io_error(path, "cannot open")(error)),
    };
    if about.is_file() && is_model(path) {
        return Err(not_a_run(
            path,
            "it is a model; record one with `tensorscope record -m MODEL -p TEXT -o RUN`",
        ));
    }
    let parents = path
        .parent()
        .into_iter()
        .flat_map(|p| [Some(p), p.parent()]);
    let run_around = parents.flatten().find(|p| looks_like_run(p));
    if let Some(run) = run_around.filter(|_| !looks_like_run(path)) {
        let run = if run.as_os_str().is_empty() {
            Path::new(".")
        } else {
            run
        };
        return Err(not_a_run(
            path,
            &format!("it is a part of one; give the whole: {}", run.display()),
        ));
    }
    if !about.is_dir() {
        return Err(not_a_run(path, "it is a file, and a run is a folder"));
    }
    let mut entries = fs::read_dir(path).map_err(io_error(path, "cannot look into the folder"))?;
    if entries.next().is_none() {
        return Err(not_a_run(
            path,
            "the folder is empty, nothing was recorded in it",
        ));
    }
    Ok(())
}

fn looks_like_run(path: &Path) -> bool {
    path.join(LOG).join("status").is_file() || matches!(read_metadata(path), Ok(Ok(_)))
}

fn not_a_run(path: &Path, what: &str) -> RunError {
    RunError::NotARun {
        path: path.to_owned(),
        what: what.to_owned(),
    }
}

/// The metadata and a clause if they are not as they were written, or a clause that says why
/// there are none.
fn read_metadata(run: &Path) -> Result<Result<(Metadata, Option<String>), String>, RunError> {
    let path = run.join(METADATA);
    let mut bytes = Vec::new();
    let read =
        File::open(&path).and_then(|file| file.take(MAX_METADATA_BYTES).read_to_end(&mut bytes));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Err("metadata.json is missing".to_owned()));
        }
        Err(error) => {
            return Ok(Err(format!(
                "metadata.json cannot be read: {}",
                reason(&error)
            )));
        }
    }
    let garbled = |why: String| Ok(Err(format!("metadata.json is garbled: {why}")));
    let value: serde_json::Value = match serde_json::from_slice(&bytes) {
        Ok(value) => value,
        Err(error) => return garbled(error.to_string()),
    };
    if value["format"] != FORMAT {
        return garbled(format!("its format is not \"{FORMAT}\""));
    }
    match value["version"].as_u64() {
        Some(version) if version > VERSION => {
            return Err(RunError::newer_metadata(run.to_owned(), version));
        }
        Some(1..) => {}
        _ => return garbled("it has no version".to_owned()),
    }
    match serde_json::from_value(value) {
        Ok(metadata) => {
            let changed = was_changed(&bytes);
            let changed = changed.then(|| "metadata.json was changed after the run".to_owned());
            Ok(Ok((metadata, changed)))
        }
        Err(error) => garbled(error.to_string()),
    }
}

const STATUS_MISSING: &str = "log/status is missing";

/// The status, or a clause that says why there is none.
fn read_log_status(run: &Path) -> Result<Result<Status, String>, RunError> {
    let path = run.join(LOG).join("status");
    let status = match read_status(&path) {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Err(format!("{STATUS_MISSING}, so losses are not known")));
        }
        Err(error) => {
            return Ok(Err(format!(
                "log/status cannot be read: {}",
                reason(&error)
            )));
        }
    };
    if status.is_err()
        && let Some(version) = newer_status(&path)
    {
        return Err(RunError::Newer {
            path: run.to_owned(),
            of: "the log",
            version,
            known: trace::format::VERSION.into(),
        });
    }
    Ok(status.map_err(|why| format!("log/status is garbled: {why}")))
}

/// The version of a status file that is sound but newer than this program.
fn newer_status(path: &Path) -> Option<u64> {
    let mut head = [0; 12];
    File::open(path).ok()?.read_exact(&mut head).ok()?;
    let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    let is_newer = head[..8] == trace::format::STATUS_MAGIC && version > trace::format::VERSION;
    is_newer.then_some(version.into())
}

fn has_segments(run: &Path) -> bool {
    trace::read::streams(&run.join(LOG)).is_ok()
}

/// Whether everything here has a name that `record` gives: then it was killed
/// right after it made the folder.
fn only_ours(run: &Path) -> bool {
    let ours = [LOG, METADATA, METADATA_TEMPORARY, STRUCTURE, TENSOR_NAMES];
    let is_ours = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|e| ours.iter().any(|name| e.file_name() == *name))
    };
    // A foreign folder may have a metadata.json alone, or a log folder with logs
    // of its own.
    let log_is_empty = fs::read_dir(run.join(LOG)).is_ok_and(|mut log| log.next().is_none());
    log_is_empty && fs::read_dir(run).is_ok_and(|mut entries| entries.all(is_ours))
}

fn condition_of(run: &Path, metadata: Option<&Metadata>, status: Option<&Status>) -> Condition {
    let stopped = metadata
        .filter(|m| m.status == RunStatus::StoppedEarly)
        .map(|m| {
            m.stopped_reason
                .clone()
                .unwrap_or_else(|| "no reason given".to_owned())
        });
    match (status, metadata) {
        (Some(status), _) => match (status.state, stopped) {
            // The log could not grow any more, but the run ended before it had to.
            (State::Failed(_), None)
                if status.evals_lost == 0
                    && metadata.is_some_and(|m| m.status == RunStatus::Complete) =>
            {
                Condition::Complete
            }
            (State::Failed(errno), _) => Condition::Failed { errno },
            (State::Complete, Some(reason)) => Condition::StoppedEarly(reason),
            (State::Complete, None) => Condition::Complete,
            (State::Recording, _) => {
                let pid = status.pid;
                if process::has_mapped(pid, &run.join(LOG).join("status")) {
                    Condition::Recording { pid }
                } else {
                    Condition::Killed { pid: Some(pid) }
                }
            }
        },
        (None, Some(metadata)) => match (metadata.status, stopped) {
            (_, Some(reason)) => Condition::StoppedEarly(reason),
            (RunStatus::Complete, None) => Condition::Complete,
            (_, None) => {
                let pid = metadata.process.pid;
                let is_this_boot = machine::boot_id(Path::new("/")) == metadata.machine.boot_id;
                if is_this_boot && process::is_alive(&metadata.process) {
                    Condition::Recording { pid }
                } else {
                    Condition::Killed { pid: Some(pid) }
                }
            }
        },
        (None, None) => Condition::Killed { pid: None },
    }
}

fn errno_text(errno: i32) -> String {
    reason(&io::Error::from_raw_os_error(errno))
}
