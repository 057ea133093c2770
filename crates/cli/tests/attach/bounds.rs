//! `--tokens`, `--max-size`, `--duration`: recording ends, the program does not; the
//! built-in engine does.

use std::{path::Path, time::Duration, time::Instant};

use rundir::{Condition, metadata::RunStatus};

use crate::fixture::*;

const PROMPT: &str = "To be, or not to be";
const TOKENS_RECORDED: &str = "the tokens that were asked for are recorded";
const LOG_FULL: &str = "the log reached its largest size";
const DURATION_OVER: &str = "the duration that was asked for is over";

/// Records 60 tokens of the dense model within a bound, whose reason is said.
fn bounded(folder: &Path, flags: &[&str], reason: &str) -> Trace {
    let args = ["-e", "-n", "60", "-x", "4"];
    let without = alone(folder, &args, &dense(), &[PROMPT]);
    let flags = [flags, &["-o", "RUN"]].concat();
    let with = record_generate(folder, &flags, &args, &dense(), &[PROMPT])
        .output()
        .unwrap();
    assert_eq!(stdout(&with), stdout(&without));
    assert_eq!(stdout(&with).lines().count(), 60);
    assert_eq!(with.status.code(), Some(4));
    let (ours, _) = talk(&with);
    assert_eq!(ours.len(), 1, "{ours:?}");
    assert!(
        ours[0].starts_with(&format!("tensorscope: {reason}: ")),
        "{ours:?}"
    );
    stopped_early(&folder.join("RUN"), reason)
}

fn stopped_early(path: &Path, reason: &str) -> Trace {
    let trace = Trace::open(path);
    let metadata = trace.run.metadata().unwrap();
    assert_eq!(metadata.status, RunStatus::StoppedEarly);
    assert_eq!(metadata.stopped_reason.as_deref(), Some(reason));
    assert_eq!(
        trace.run.condition(),
        &Condition::StoppedEarly(reason.to_owned())
    );
    let sum = &trace.summary;
    assert_eq!((sum.partial, sum.flagged, sum.closed), (0, 0, true));
    trace
}

#[test]
fn tokens_bound_the_recording_and_not_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let trace = bounded(folder.path(), &["--tokens", "25"], TOKENS_RECORDED);
    // Behind the prompt there is one token an evaluation.
    assert_eq!(trace.tokens(), 25);
    let statistics = trace.run.metadata().unwrap().statistics.as_ref().unwrap();
    assert_eq!(statistics.prompt_tokens + statistics.generated_tokens, 25);
}

#[test]
fn a_bound_within_the_prompt_records_the_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let trace = bounded(folder.path(), &["--tokens", "1"], TOKENS_RECORDED);
    assert_eq!(trace.stream().evaluations.len(), 1);
}

#[test]
fn a_bound_that_is_not_reached_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--tokens", "1000", "--max-size", "1G", "--duration", "1h"];
    let flags = [&flags[..], &["-o", "RUN"]].concat();
    let output = record_generate(folder.path(), &flags, &[], &dense(), &[PROMPT])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    Trace::complete(&folder.path().join("RUN"));
}

#[test]
fn size_bounds_the_recording_and_not_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let bound = 50 << 10;
    let trace = bounded(folder.path(), &["--max-size", "50K"], LOG_FULL);
    let bytes = &trace.stream().bytes;
    assert!((2..60).contains(&bytes.len()));
    assert!(bytes[bytes.len() - 1] >= bound, "{bytes:?}");
    assert!(
        bytes[bytes.len() - 2] < bound,
        "more than one evaluation more: {bytes:?}"
    );
}

#[test]
fn duration_bounds_the_recording_and_not_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--duration", "200ms", "-o", "RUN"];
    let args = ["-l", "-e", "-n", "200", "-c"];
    let mut command = record_generate(folder.path(), &flags, &args, &dense(), &[PROMPT]);
    let (child, mut lines) = start(&mut command);
    next_line(&mut lines);
    // The first evaluation has ended by now, so that the time is over for sure.
    let begun = Instant::now();
    let mut read = 1;
    while begun.elapsed() < Duration::from_millis(250) {
        next_line(&mut lines);
        read += 1;
    }
    let more = read_lines(&mut lines, 50);
    signal(child.id() as i32, libc::SIGTERM);
    rest(lines);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = stopped_early(&folder.path().join("RUN"), DURATION_OVER);
    let recorded = trace.stream().evaluations.len();
    assert!(recorded < read + more, "{recorded} of {read} and {more}");
}

#[test]
fn bounds_are_of_all_processes_together() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--tokens", "40", "-o", "RUN"];
    let mut command = record_program(folder.path(), &flags, "sh");
    let script = r#""$0" -e -n 30 "$1" To; "$0" -e -n 30 "$1" To"#;
    command
        .args(["-c", script])
        .arg(generate_program())
        .arg(dense());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 60);
    let trace = stopped_early(&folder.path().join("RUN"), TOKENS_RECORDED);
    assert_eq!((trace.streams.len(), trace.tokens()), (2, 40));
}

/// The built-in engine with a bound, far more tokens than fit, and no end of text.
fn engine(folder: &Path, flags: &[&str], reason: &str) -> Trace {
    let mut command = tensorscope(folder);
    command
        .args(["record", "--no-tables", "-t", "1", "--ignore-eos"])
        .args(["-n", "8000", "-c", "8192", "-p", PROMPT, "-o", "RUN", "-m"])
        .arg(dense())
        .args(flags);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (ours, theirs) = talk(&output);
    assert_eq!((ours.len(), theirs.len()), (1, 0), "{ours:?} {theirs:?}");
    assert!(
        ours[0].starts_with(&format!("tensorscope: {reason}: ")),
        "{ours:?}"
    );
    stopped_early(&folder.join("RUN"), reason)
}

#[test]
fn size_ends_the_built_in_engine() {
    let folder = tempfile::tempdir().unwrap();
    let trace = engine(folder.path(), &["--max-size", "50K"], LOG_FULL);
    let (bytes, bound) = (&trace.stream().bytes, 50 << 10);
    assert!(bytes[bytes.len() - 1] >= bound, "{bytes:?}");
    assert!(bytes[bytes.len() - 2] < bound, "{bytes:?}");
}

#[test]
fn duration_ends_the_built_in_engine() {
    let folder = tempfile::tempdir().unwrap();
    let trace = engine(folder.path(), &["--duration", "100ms"], DURATION_OVER);
    assert!((1..8000).contains(&trace.stream().evaluations.len()));
}
