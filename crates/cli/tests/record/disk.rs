//! A disk that is full, gone or read-only ends the recording, never the generation.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use rundir::Condition;

use testing::mount::Mount;

use crate::fixture::*;

/// Some 28 KB of log per token, so that a few hundred tokens fill two segments.
fn many_layers(folder: &Path) -> PathBuf {
    synth(folder, "--like llama-3.2-1b --type q4_0 --layers 200")
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_generation() {
    let folder = tempfile::tempdir().unwrap();
    // Room for the two segments that a recording starts with, and no third.
    let Some(small) = Mount::new(folder.path().join("small"), "size=9m") else {
        return;
    };
    let model = many_layers(folder.path());
    let args = |output| ["-p", "hello", "-n", "320", "--ignore-eos", "-o", output];
    let undisturbed = record(folder.path(), &model, &args("whole"));
    assert_eq!(
        undisturbed.status.code(),
        Some(0),
        "{}",
        stderr(&undisturbed)
    );
    let disturbed = record(folder.path(), &model, &args("small/run"));
    let talk = stderr(&disturbed);
    assert_eq!(disturbed.status.code(), Some(1), "{talk}");
    assert_eq!(disturbed.stdout, undisturbed.stdout, "the text differs");
    let lines: Vec<&str> = talk.lines().collect();
    let [stopped, closing] = lines[..] else {
        panic!("{talk}")
    };
    assert_eq!(
        stopped,
        "tensorscope: small/run: the log cannot grow: no space left on device; generation goes on"
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
    assert!(
        closing.contains(&format!("{} evaluations lost", lost.evaluations)),
        "{closing}"
    );
    let warning = trace.run.warning().unwrap();
    assert!(warning.contains("no space left on device"), "{warning}");
    // What is there is as good as in the undisturbed run, and so are the sums of both.
    let whole = Trace::open(&folder.path().join("whole"));
    for (ours, theirs) in trace.evaluations.iter().zip(&whole.evaluations) {
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
fn a_disk_that_is_full_only_behind_the_end_lacks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(small) = Mount::new(folder.path().join("small"), "size=9m") else {
        return;
    };
    let output = record(
        folder.path(),
        &dense(),
        &["-p", "x", "-n", "100", "--ignore-eos", "-o", "small/run"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = Trace::open(&small.0.join("run"));
    assert_eq!(
        (trace.run.condition(), trace.run.warning()),
        (&Condition::Complete, None)
    );
    assert_eq!(trace.summary.evaluations, 100);
}

#[test]
fn too_little_space_to_begin_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let Some(small) = Mount::new(folder.path().join("small"), "size=2m") else {
        return;
    };
    let output = record(
        folder.path(),
        &dense(),
        &["-p", "x", "-n", "10", "-o", "small/run"],
    );
    let talk = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{talk}");
    assert_eq!(
        talk,
        "tensorscope: small/run/log: cannot start the log: no space left on device\n"
    );
    assert_eq!(
        std::fs::read_dir(&small.0).unwrap().count(),
        0,
        "something was left behind"
    );
}

#[test]
fn a_read_only_folder_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::new(folder.path().join("fixed"), "ro") else {
        return;
    };
    let output = record(
        folder.path(),
        &dense(),
        &["-p", "x", "-n", "10", "-o", "fixed/run"],
    );
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "tensorscope: fixed/run: cannot create the run directory: read-only file system\n"
    );
}

/// Tokens of a generation that goes on while its run is removed.
const MANY: &str = "1000";
const CONTEXT: &str = "1024";

/// Removes the run as soon as the first text is there.
fn record_and_remove(folder: &Path, model: &Path, tokens: &str) -> (Vec<u8>, Option<i32>, String) {
    let args = [
        "-p",
        "hello",
        "-n",
        tokens,
        "-c",
        CONTEXT,
        "--ignore-eos",
        "-o",
        "gone",
    ];
    let mut child = start(&mut record_command(folder, model, &args));
    let mut text = read_text(&mut child, 1);
    // The next segment may be made while this one is removed.
    let run = folder.join("gone");
    let removed = (0..100).any(|_| std::fs::remove_dir_all(&run).is_ok() || !run.exists());
    assert!(removed);
    child.stdout.take().unwrap().read_to_end(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    (text, output.status.code(), stderr(&output))
}

#[test]
fn a_removed_directory_ends_the_recording_and_not_the_generation() {
    let folder = tempfile::tempdir().unwrap();
    let (text, code, talk) = record_and_remove(folder.path(), &dense(), MANY);
    let undisturbed = record(
        folder.path(),
        &dense(),
        &[
            "-p",
            "hello",
            "-n",
            MANY,
            "-c",
            CONTEXT,
            "--ignore-eos",
            "-o",
            "whole",
        ],
    );
    assert_eq!(text, undisturbed.stdout);
    assert_eq!(code, Some(1), "{talk}");
    let last = talk.lines().last().unwrap();
    assert!(
        last.starts_with("tensorscope: gone: there is no trace: the log was removed"),
        "{talk}"
    );
    assert!(
        !talk.contains("panicked") && talk.lines().count() <= 2,
        "{talk}"
    );
    assert!(!folder.path().join("gone").exists());
}

#[test]
fn a_log_that_cannot_go_on_for_lack_of_its_directory_says_so_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = many_layers(folder.path());
    // Enough for more than the segments that are ready when the directory goes.
    let (text, code, talk) = record_and_remove(folder.path(), &model, "170");
    assert_eq!(code, Some(1), "{talk}");
    assert!(text.len() > 170);
    let lines: Vec<&str> = talk.lines().collect();
    let [stopped, closing] = lines[..] else {
        panic!("{talk}")
    };
    assert!(
        stopped.contains("the log cannot grow: no such file or directory; generation goes on"),
        "{talk}"
    );
    assert!(closing.contains("there is no trace"), "{talk}");
}
