//! Output, signals and exit code are the program's; the trace is whole up to the end.

use std::{fs, os::unix::process::CommandExt};

use rundir::Condition;

use crate::fixture::*;

const PROMPT: &str = "To be";
/// Never ends by itself.
const FOR_EVER: [&str; 4] = ["-l", "-e", "-n", "200"];

/// Everything that is complete is whole, and as many as were printed for sure.
fn assert_whole_up_to_its_end(trace: &Trace, printed_lines: usize) {
    let stream = trace.stream();
    assert!(
        stream.evaluations.len() >= printed_lines,
        "{} evaluations, {printed_lines} lines",
        stream.evaluations.len()
    );
    assert_eq!((trace.summary.flagged, stream.number), (0, 0));
    assert!(stream.partial <= 1);
    for evaluation in &stream.evaluations {
        let steps = stream.template(evaluation).steps.len();
        assert_eq!((evaluation.ticks as usize, evaluation.flags), (steps, 0));
    }
    // Only the evaluation that was going on may be missing, and then it is said.
    match trace.run.condition() {
        Condition::Complete => assert_eq!((stream.partial, stream.is_closed), (0, true)),
        Condition::StoppedEarly(why) => assert_eq!(why, "1 evaluation lost"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn output_and_exit_code_are_those_of_the_program_alone() {
    for code in ["0", "3"] {
        let folder = tempfile::tempdir().unwrap();
        let args = ["-n", "12", "-x", code];
        let prompts = [PROMPT, "Now is"];
        let without = alone(folder.path(), &args, &dense(), &prompts);
        let with = record_generate(folder.path(), &["-o", "RUN"], &args, &dense(), &prompts)
            .output()
            .unwrap();
        assert_eq!(without.status.code(), Some(code.parse().unwrap()));
        assert_eq!(with.status.code(), without.status.code());
        assert_eq!(stdout(&with), stdout(&without));
        let (ours, theirs) = talk(&with);
        assert_eq!(theirs.join("\n"), stderr(&without).trim_end());
        assert_eq!(ours.len(), 1, "{ours:?}");
        assert!(ours[0].ends_with(" of log, in RUN"), "{ours:?}");
        let trace = Trace::complete(&folder.path().join("RUN"));
        assert_eq!(trace.stream().evaluations.len(), 12);
    }
}

#[test]
fn quiet_adds_nothing_to_what_the_program_says() {
    let folder = tempfile::tempdir().unwrap();
    let without = alone(folder.path(), &[], &dense(), &[PROMPT]);
    let flags = ["--quiet", "-o", "RUN"];
    let with = record_generate(folder.path(), &flags, &[], &dense(), &[PROMPT])
        .output()
        .unwrap();
    assert_eq!(
        (stdout(&with), stderr(&with)),
        (stdout(&without), stderr(&without))
    );
    Trace::complete(&folder.path().join("RUN"));
}

#[test]
fn tables_are_made_at_the_end_and_can_be_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tensorscope(folder.path());
    command.args(["record", "-o", "RUN", "--"]);
    command.arg(generate_program()).arg(moe()).arg(PROMPT);
    let output = command.output().unwrap();
    assert_eq!(talk(&output).0.len(), 1, "{}", stderr(&output));
    let query = "SELECT COUNT(*) AS n FROM accesses";
    let asked = tensorscope(folder.path())
        .args(["sql", "RUN", query, "--format", "csv"])
        .output()
        .unwrap();
    let trace = Trace::complete(&folder.path().join("RUN"));
    let wanted = format!("n\n{}\n", trace.summary.accesses);
    assert_eq!(stdout(&asked), wanted, "{}", stderr(&asked));
    let metadata = trace.run.metadata().unwrap();
    let model = metadata.model.as_ref().unwrap();
    assert!(model.files[0].path.ends_with("shakespeare-moe.gguf"));
    assert!(metadata.versions.ggml.is_some() && metadata.versions.llama_cpp.is_some());
}

#[test]
fn a_signal_to_us_alone_is_passed_on() {
    for (number, code) in [(libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["-o", "RUN"];
        let mut command = record_generate(folder.path(), &flags, &FOR_EVER, &dense(), &[PROMPT]);
        let (child, mut lines) = start(&mut command);
        let read = read_lines(&mut lines, 20);
        signal(child.id() as i32, number);
        let printed = read + rest(lines).lines().count();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert_eq!(talk(&output).0.len(), 1, "{}", stderr(&output));
        assert_whole_up_to_its_end(&Trace::open(&folder.path().join("RUN")), printed);
    }
}

#[test]
fn a_program_that_catches_the_signal_ends_as_it_likes() {
    let folder = tempfile::tempdir().unwrap();
    let args = [&FOR_EVER[..], &["-c", "-x", "5"]].concat();
    let mut command = record_generate(folder.path(), &["-o", "RUN"], &args, &dense(), &[PROMPT]);
    let (child, mut lines) = start(&mut command);
    let read = read_lines(&mut lines, 20);
    signal(child.id() as i32, libc::SIGTERM);
    let printed = read + rest(lines).lines().count();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let trace = Trace::complete(&folder.path().join("RUN"));
    assert_eq!(trace.stream().evaluations.len(), printed);
}

#[test]
fn ctrl_c_reaches_the_program_and_ends_both() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-o", "RUN"];
    let mut command = record_generate(folder.path(), &flags, &FOR_EVER, &moe(), &[PROMPT]);
    command.process_group(0);
    let (child, mut lines) = start(&mut command);
    let read = read_lines(&mut lines, 20);
    signal(-(child.id() as i32), libc::SIGINT);
    let printed = read + rest(lines).lines().count();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert_whole_up_to_its_end(&Trace::open(&folder.path().join("RUN")), printed);
}

#[test]
fn a_killed_program_loses_no_completed_evaluation() {
    for tokens in [1, 7, 60] {
        let folder = tempfile::tempdir().unwrap();
        let args = [&["-p"], &FOR_EVER[..]].concat();
        let mut command =
            record_generate(folder.path(), &["-o", "RUN"], &args, &dense(), &[PROMPT]);
        let (child, mut lines) = start(&mut command);
        let program: i32 = next_line(&mut lines).parse().unwrap();
        let read = read_lines(&mut lines, tokens);
        signal(program, libc::SIGKILL);
        let printed = read + rest(lines).lines().count();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(137), "{}", stderr(&output));
        assert_eq!(talk(&output).0.len(), 1, "{}", stderr(&output));
        assert_whole_up_to_its_end(&Trace::open(&folder.path().join("RUN")), printed);
    }
}

/// Nobody is left to complete the run; it can be read all the same.
#[test]
fn a_killed_launcher_leaves_the_program_alone_and_a_log_that_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let args = [&["-p"], &FOR_EVER[..]].concat();
    let mut command = record_generate(folder.path(), &["-o", "RUN"], &args, &dense(), &[PROMPT]);
    let (mut child, mut lines) = start(&mut command);
    let program: i32 = next_line(&mut lines).parse().unwrap();
    next_line(&mut lines);
    child.kill().unwrap();
    child.wait().unwrap();
    // It goes on, and so does its recording.
    let read = read_lines(&mut lines, 100);
    signal(program, libc::SIGTERM);
    let printed = 1 + read + rest(lines).lines().count();
    let trace = Trace::open(&folder.path().join("RUN"));
    assert!(
        matches!(trace.run.condition(), Condition::Killed { .. }),
        "{:?}",
        trace.run.condition()
    );
    assert!(trace.stream().evaluations.len() >= printed && trace.stream().partial <= 1);
    assert_eq!(trace.summary.flagged, 0);
}

#[test]
fn a_model_truncated_under_a_program_is_named_as_what_killed_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("copy.gguf");
    fs::copy(dense(), &model).unwrap();
    let before = fs::metadata(&model).unwrap().len();
    let flags = ["-o", "RUN"];
    let mut command = record_generate(folder.path(), &flags, &FOR_EVER, &model, &[PROMPT]);
    // SAFETY: a system call with a pointer to a value that lives there.
    unsafe {
        command.pre_exec(|| {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            Ok(())
        })
    };
    let (child, mut lines) = start(&mut command);
    let read = read_lines(&mut lines, 20);
    let file = fs::OpenOptions::new().write(true).open(&model).unwrap();
    file.set_len(100_000).unwrap();
    let printed = read + rest(lines).lines().count();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(135), "{}", stderr(&output));
    let (ours, _) = talk(&output);
    let why = format!(
        "killed by SIGBUS: model file {} was truncated from {before} to 100000 bytes while \
         the program ran",
        model.display()
    );
    assert!(ours.len() == 1 && ours[0].contains(&why), "{ours:?}");
    let trace = Trace::open(&folder.path().join("RUN"));
    assert_eq!(trace.run.condition(), &Condition::StoppedEarly(why));
    assert!(trace.stream().evaluations.len() >= printed);
    let report = tensorscope(folder.path())
        .args(["report", "RUN"])
        .output()
        .unwrap();
    assert!(
        stdout(&report).contains(" evaluations"),
        "{}",
        stderr(&report)
    );
}
