//! A full disk ends the recording, never the program.

use std::path::Path;

use rundir::Condition;

use testing::mount::Mount;

use crate::fixture::*;

fn record(folder: &Path, output: &str, args: &[&str], model: &Path) -> std::process::Output {
    record_generate(folder, &["-o", output], args, model, &["hello"])
        .output()
        .unwrap()
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    let folder = tempfile::tempdir().unwrap();
    // Room for the two segments that a recording starts with, and no third.
    let Some(small) = Mount::new(folder.path().join("small"), "size=9m") else {
        return;
    };
    // Some 28 KB of log per token.
    let model = synth(
        folder.path(),
        "--like llama-3.2-1b --type q4_0 --layers 200",
    );
    let args = ["-e", "-n", "320", "-x", "6"];
    let undisturbed = record(folder.path(), "whole", &args, &model);
    let disturbed = record(folder.path(), "small/run", &args, &model);
    assert_eq!(disturbed.status.code(), Some(6), "{}", stderr(&disturbed));
    assert_eq!(disturbed.stdout, undisturbed.stdout, "the output differs");
    let (ours, theirs) = talk(&disturbed);
    assert_eq!(theirs.len(), 1, "{theirs:?}");
    let [stopped, closing] = &ours[..] else {
        panic!("{ours:?}")
    };
    assert!(
        stopped.contains(": the log cannot grow: ") && stopped.ends_with("; the program goes on"),
        "{stopped}"
    );
    assert!(
        closing.starts_with("tensorscope: the trace is incomplete (no space left on device; "),
        "{closing}"
    );
    let trace = Trace::open(&small.0.join("run"));
    assert_eq!(
        trace.run.condition(),
        &Condition::Failed {
            errno: libc::ENOSPC
        }
    );
    let lost = trace.run.lost();
    assert!(lost.evaluations > 0 && lost.accesses > 0);
    assert_eq!(lost.evaluations + trace.summary.evaluations, 320);
    let warning = trace.run.warning().unwrap();
    assert!(warning.contains("no space left on device"), "{warning}");
    // What is there is as good as in the undisturbed run.
    let whole = Trace::complete(&folder.path().join("whole"));
    let pairs = trace.stream().evaluations.iter();
    for (ours, theirs) in pairs.zip(&whole.stream().evaluations) {
        assert_eq!(
            (&ours.captures, ours.ticks, ours.flags),
            (&theirs.captures, theirs.ticks, theirs.flags)
        );
    }
    assert_eq!(
        lost.accesses + trace.summary.accesses,
        whole.summary.accesses
    );
}

#[test]
fn a_disk_without_room_for_a_log_lets_the_program_run() {
    let folder = tempfile::tempdir().unwrap();
    let Some(small) = Mount::new(folder.path().join("small"), "size=2m") else {
        return;
    };
    let args = ["-x", "6"];
    let without = alone(folder.path(), &args, &dense(), &["hello"]);
    let with = record(folder.path(), "small/run", &args, &dense());
    assert_eq!(
        (stdout(&with), with.status.code()),
        (stdout(&without), Some(6))
    );
    let (ours, theirs) = talk(&with);
    assert_eq!(theirs.join("\n"), stderr(&without).trim_end());
    assert_eq!(ours.len(), 1, "{ours:?}");
    assert!(
        ours[0].ends_with("; the program goes on without being recorded"),
        "{ours:?}"
    );
    let left = std::fs::read_dir(&small.0).unwrap().count();
    assert_eq!(left, 0, "something was left behind");
}

/// Removes the run as soon as the first token is there.
fn record_and_remove(folder: &Path, args: &[&str]) -> (String, std::process::Output) {
    let mut command = record_generate(folder, &["-o", "RUN"], args, &dense(), &["hello"]);
    let (child, mut lines) = start(&mut command);
    let first = next_line(&mut lines);
    // The recorder may put a file into it meanwhile, as `rm -r` would find too.
    let run = folder.join("RUN");
    while let Err(error) = std::fs::remove_dir_all(&run) {
        match error.kind() {
            std::io::ErrorKind::DirectoryNotEmpty => {}
            std::io::ErrorKind::NotFound => break,
            _ => panic!("{error}"),
        }
    }
    let text = format!("{first}\n{}", rest(lines));
    (text, child.wait_with_output().unwrap())
}

/// Tokens of a generation that goes on while its run is removed.
const MANY: &str = "400";

#[test]
fn a_removed_directory_does_not_disturb_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["-e", "-n", MANY, "-x", "6"];
    let without = alone(folder.path(), &args, &dense(), &["hello"]);
    let (text, output) = record_and_remove(folder.path(), &args);
    assert_eq!((text, output.status.code()), (stdout(&without), Some(6)));
    assert_eq!(talk(&output).1.join("\n"), stderr(&without).trim_end());
    assert!(!folder.path().join("RUN").exists());
}

#[test]
fn a_removed_directory_is_said_to_be_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (_, output) = record_and_remove(folder.path(), &["-e", "-n", MANY]);
    let (ours, _) = talk(&output);
    let last = ours.last().expect("a line about the trace that is gone");
    assert!(
        last.contains("removed") && !last.contains("computed no graph"),
        "{ours:?}"
    );
}
