//! `kill -9` at any moment loses no completed evaluation; signals that ask are obeyed.
//!
//! The bar is 100 kills: `TENSORSCOPE_TEST_KILLS=100 cargo test --release -p tensorscope
//! --test record kill::` runs as many (25 without the variable).

use std::{
    io::Read,
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use rundir::{Condition, Run};
use support::random::Random;
use trace::format::flags;

use crate::fixture::*;

const LONG: [&str; 8] = [
    "-p",
    "To be",
    "-n",
    "400",
    "-c",
    "512",
    "--ignore-eos",
    "-o",
];

#[test]
fn a_kill_at_any_moment_loses_no_completed_evaluation() {
    let kills = std::env::var("TENSORSCOPE_TEST_KILLS").map_or(25, |n| n.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let reference = record(
        folder.path(),
        &dense(),
        &[&LONG[..], &["reference"]].concat(),
    );
    assert!(reference.status.success(), "{}", stderr(&reference));
    let whole = Trace::open(&folder.path().join("reference"));
    // Lengths of the text after each token: token n is printed after evaluation n.
    let text_ends: Vec<usize> = whole.evaluations[1..]
        .iter()
        .scan(0, |end, e| {
            *end += whole.text_of(e).len();
            Some(*end)
        })
        .collect();
    let mut random = Random(0x5eed);
    let (mut with_trace, mut with_partial, mut evaluations) = (0, 0, 0);
    for number in 0..kills {
        let name = format!("killed-{number}");
        let mut child = start(&mut record_command(
            folder.path(),
            &dense(),
            &[&LONG[..], &[&name]].concat(),
        ));
        let mut text = Vec::new();
        // One in five dies before its first token: while it makes the directory, loads
        // the model, evaluates the prompt. The others after some of their text.
        let spread = if number % 5 == 0 {
            let latest = 1 + random.below(100_000);
            Duration::from_micros(random.below(latest))
        } else {
            text = read_text(&mut child, 1 + random.below(400) as usize);
            Duration::from_micros(random.below(3_000))
        };
        let now = Instant::now();
        while now.elapsed() < spread {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        assert_eq!(
            child.wait().unwrap().signal(),
            Some(libc::SIGKILL),
            "it must not have ended by itself"
        );
        child.stdout.take().unwrap().read_to_end(&mut text).unwrap();
        assert!(reference.stdout.starts_with(&text));
        let printed =
            text_ends.partition_point(|&end| end < text.len()) + usize::from(!text.is_empty());

        let path = folder.path().join(&name);
        if !path.exists() {
            assert_eq!(printed, 0);
            continue;
        }
        let is_empty = std::fs::read_dir(&path).unwrap().next().is_none();
        let run = match Run::open(&path) {
            Ok(run) => run,
            // Between making the folder and its first file.
            Err(error) if is_empty => {
                assert_eq!(printed, 0, "kill {number}");
                assert!(
                    error.to_string().contains("nothing was recorded"),
                    "{error}"
                );
                continue;
            }
            Err(error) => panic!("kill {number}: {error}"),
        };
        assert!(
            matches!(run.condition(), Condition::Killed { .. }),
            "{:?}",
            run.condition()
        );
        assert!(
            run.warning().unwrap().contains("was killed"),
            "{:?}",
            run.warning()
        );
        if trace::read::streams(&run.log_directory()).is_err() {
            assert_eq!(printed, 0, "kill {number}: no log");
            continue;
        }
        let trace = Trace::open(&path);
        with_trace += 1;
        with_partial += trace.partial.len();
        evaluations += trace.evaluations.len();
        assert!(
            trace.evaluations.len() >= printed,
            "kill {number}: {} of {printed}",
            trace.evaluations.len()
        );
        assert!(trace.partial.len() <= 1 && !trace.is_closed());
        let committed = run.status().unwrap().evals_committed;
        // Counted after it is committed.
        assert!((trace.evaluations.len() as u64).abs_diff(committed) <= 1);
        for (ours, theirs) in trace.evaluations.iter().zip(&whole.evaluations) {
            let steps = trace.template(ours).steps.len();
            assert_eq!(
                (ours.ticks as usize, ours.flags & !flags::ABORTED),
                (steps, 0)
            );
            assert_eq!(ours.captures, theirs.captures);
            assert_eq!(
                trace.template(ours).steps.len(),
                whole.template(theirs).steps.len()
            );
            assert!(
                ours.step_nanos.is_sorted() && ours.end_nanos >= *ours.step_nanos.last().unwrap()
            );
        }
        std::fs::remove_dir_all(path).unwrap();
    }
    println!(
        "{kills} kills: {with_trace} traces, {evaluations} evaluations, {with_partial} partial ones"
    );
    assert!(
        with_trace * 2 > kills,
        "only {with_trace} of {kills} kills came after the log was begun"
    );
}

#[test]
fn a_signal_that_asks_ends_the_run_with_a_complete_trace() {
    let folder = tempfile::tempdir().unwrap();
    for (signal, code) in [
        (libc::SIGINT, 130),
        (libc::SIGTERM, 143),
        (libc::SIGHUP, 129),
    ] {
        let name = format!("signal-{signal}");
        let args = [
            "-p",
            "To be",
            "-n",
            "8000",
            "-c",
            "8192",
            "--ignore-eos",
            "-o",
            &name,
        ];
        let mut child = start(&mut record_command(folder.path(), &dense(), &args));
        let mut text = read_text(&mut child, 20);
        // SAFETY: a child that was not waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        child.stdout.take().unwrap().read_to_end(&mut text).unwrap();
        let output = child.wait_with_output().unwrap();
        let talk = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{talk}");
        assert!(
            talk.starts_with("tensorscope: interrupted: ") && talk.lines().count() == 1,
            "{talk}"
        );
        let trace = Trace::open(&folder.path().join(&name));
        assert_eq!(
            trace.run.condition(),
            &Condition::StoppedEarly("interrupted".into())
        );
        assert!(trace.is_closed() && trace.partial.is_empty());
        let statistics = trace.run.metadata().unwrap().statistics.as_ref().unwrap();
        // Every token was printed after its evaluation, and none evaluated after it.
        assert_eq!(statistics.generated_tokens, trace.summary.evaluations);
        let evaluated: Vec<u8> = trace.evaluations[1..]
            .iter()
            .flat_map(|e| trace.text_of(e))
            .collect();
        assert!(text.starts_with(&evaluated), "{text:?}");
    }
}

/// As in the background of a script, where the shell has SIGINT ignored.
#[test]
fn an_ignored_signal_stays_ignored() {
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    let args = ["-p", "To be", "-n", "60", "--ignore-eos", "-o", "RUN"];
    let mut command = record_command(folder.path(), &dense(), &args);
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            Ok(())
        })
    };
    let mut child = start(&mut command);
    read_text(&mut child, 1);
    // SAFETY: a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        Trace::open(&folder.path().join("RUN")).evaluations.len(),
        60
    );
}
