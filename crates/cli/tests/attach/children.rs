//! Programs that a program starts are recorded too, each in its own streams.

use std::{fs, os::unix::fs::PermissionsExt};

use rundir::Condition;

use crate::fixture::*;

#[test]
fn two_programs_of_a_shell_are_in_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#""$0" -n 10 "$1" To & "$0" -e -n 20 "$2" Now; wait"#;
    let mut command = record_program(folder.path(), &["-o", "RUN"], "sh");
    command.args(["-c", script]);
    command.arg(generate_program()).arg(dense()).arg(moe());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = Trace::complete(&folder.path().join("RUN"));
    let [first, second] = &trace.streams[..] else {
        panic!("{} streams", trace.streams.len());
    };
    let mut evaluations = [first, second].map(|s| s.evaluations.len());
    evaluations.sort_unstable();
    assert_eq!(evaluations, [10, 20]);
    let context = |stream: &Stream| stream.evaluations[0].context;
    assert_ne!(context(first), context(second));
    // Files of both models, of which each stream names its own.
    let model = trace.run.metadata().unwrap().model.as_ref().unwrap();
    assert_eq!(model.files.len(), 2);
    for stream in [first, second] {
        let files = stream.definitions.tensors.iter().filter_map(|t| t.place);
        let mut files: Vec<u32> = files.map(|place| place.file).collect();
        files.dedup();
        let is_moe = model.files[files[0] as usize].path.ends_with("-moe.gguf");
        assert_eq!(files.len(), 1, "{files:?}");
        assert_eq!(is_moe, stream.evaluations.len() == 20);
    }
}

#[test]
fn a_script_is_run_by_its_interpreter() {
    check_script("#!/bin/sh -e\n");
    check_script("#!/usr/bin/env -S sh -e\n");
    // As a shell does with a script that names none.
    check_script("");
}

fn check_script(first_line: &str) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    let text = format!("{first_line}\"$@\"\nexit 9\n");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = record_program(folder.path(), &["-o", "RUN"], "./script");
    command
        .arg(generate_program())
        .arg(dense())
        .arg("a prompt of words");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{}", stderr(&output));
    let trace = Trace::complete(&folder.path().join("RUN"));
    assert_eq!(trace.stream().evaluations.len(), 8);
}

#[test]
fn one_child_that_dies_does_not_spoil_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#""$0" -l -e "$1" To | head -n 5 >&2; "$0" -n 10 "$1" To"#;
    let mut command = record_program(folder.path(), &["-o", "RUN"], "sh");
    command.args(["-c", script]);
    command.arg(generate_program()).arg(dense());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = Trace::open(&folder.path().join("RUN"));
    let [first, second] = &trace.streams[..] else {
        panic!("{} streams", trace.streams.len());
    };
    assert!(first.evaluations.len() >= 5);
    assert_eq!(
        (second.evaluations.len(), second.partial, second.is_closed),
        (10, 0, true)
    );
    assert_eq!(trace.summary.flagged, 0);
}

#[test]
fn a_child_that_outlives_the_program_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // It has computed when its first token is in the file.
    let script = r#""$0" -l -e -n 100 "$1" To >out 2>errors &
        while ! [ -s out ]; do :; done; echo $!"#;
    let mut command = record_program(folder.path(), &["-o", "RUN"], "sh");
    command.args(["-c", script]);
    command.arg(generate_program()).arg(dense());
    let output = command.output().unwrap();
    let child: i32 = stdout(&output).trim().parse().unwrap();
    // It is recorded on: nobody closes a stream that somebody writes.
    let is_alive = fs::exists(format!("/proc/{child}/maps")).unwrap();
    signal(child, libc::SIGKILL);
    assert!(is_alive);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (ours, _) = talk(&output);
    let expect = format!("process {child} was still running when sh ended");
    assert!(ours.len() == 1 && ours[0].contains(&expect), "{ours:?}");
    let trace = Trace::open(&folder.path().join("RUN"));
    let why = match trace.run.condition() {
        Condition::StoppedEarly(why) => why.as_str(),
        Condition::Killed { .. } => expect.as_str(),
        other => panic!("{other:?}"),
    };
    assert_eq!(why, expect);
    assert!(trace.summary.evaluations >= 1 && trace.summary.flagged == 0);
}

#[test]
fn a_launcher_that_nothing_is_preloaded_into_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = generate_program().with_file_name("launcher");
    for linked in [Linked::Shared, Linked::Stripped] {
        let run = format!("{linked:?}");
        let mut command = record_program(folder.path(), &["-o", &run], &launcher);
        command.arg(generate_linked(linked)).arg(dense()).arg("To");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let trace = Trace::complete(&folder.path().join(&run));
        assert_eq!(trace.stream().evaluations.len(), 8, "{linked:?}");
    }
}
