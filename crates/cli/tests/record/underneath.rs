//! Faults, block requests, residency and memory pressure: the counts are the
//! kernel's own, and every byte has its tensor.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use kernelio::kernel_log::{
    faults::{Fault, FaultKind},
    io::Operation,
};
use reader::kernel::Underneath;
use rundir::{Run, metadata::Underneath as Counted};

use crate::fixture::*;

/// Some 400 MB: larger than what [`pressed`] leaves for it.
pub fn model(folder: &Path) -> PathBuf {
    let path = folder.join("big.gguf");
    let mut command = tensorscope(folder);
    command.args(["synth", "--like", "llama-3.2-1b", "--type", "q8_0"]);
    command.args(["--layers", "3", "-q", "-o"]).arg(&path);
    assert!(command.output().unwrap().status.success());
    path
}

/// `None`, with a printed reason, where the kernel does not allow it.
fn pressed(folder: &Path, model: &Path, args: &[&str]) -> Option<(Run, Counted)> {
    let limit = std::fs::metadata(model).unwrap().len() * 2 / 3;
    let limit = limit.to_string();
    let args = [
        &[
            "-p",
            "hello",
            "-n",
            "4",
            "--ignore-eos",
            "--cold",
            "--no-tables",
            "-o",
            "RUN",
        ],
        &["--memory", &limit][..],
        args,
    ];
    let output = record(folder, model, &args.concat());
    let talk = stderr(&output);
    if talk.contains("cannot be recorded:") || talk.contains("a memory limit") {
        println!("skipped: {talk}");
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{talk}");
    let run = Run::open(&folder.join("RUN")).unwrap();
    let counted = run.metadata().unwrap().underneath.clone().unwrap();
    Some((run, counted))
}

#[test]
fn counts_are_those_of_the_kernel_and_bytes_have_their_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let wanted = ["--faults", "--io", "--residency=1"];
    let Some((run, counted)) = pressed(folder.path(), &model, &wanted) else {
        return;
    };
    let below = Underneath::open(&run).unwrap().unwrap();
    let faults = below.faults().unwrap().unwrap();
    let major = faults
        .iter()
        .filter(|f| f.fault.kind == FaultKind::Major)
        .count() as u64;
    // Few where the disk reads far ahead (8 MiB here).
    assert!(major > 3, "{counted:?}");
    let since = counted.evaluating_since_nanos.unwrap();
    let until = counted.evaluating_until_nanos.unwrap();
    let is_evaluating = |fault: &Fault| {
        since <= fault.nanos
            && fault.nanos <= until
            && !counted.recorder_threads.contains(&fault.tid)
    };
    let evaluating = faults.iter().filter(|f| is_evaluating(&f.fault)).count() as u64;
    assert_eq!(Some(evaluating), counted.evaluating_major_faults);
    assert!(Some(major) <= counted.major_faults, "{counted:?}");
    assert_eq!(counted.lost_faults, Some(0));
    // Every byte of the model that was read came by a request.
    let io = below.io().unwrap().unwrap();
    let read: u64 = io
        .iter()
        .filter(|part| part.io.rwbs.operation() == Operation::Read && part.io.place.is_some())
        .map(|part| part.bytes)
        .sum();
    assert_eq!(Some(read), counted.model_read_bytes);
    let by_process = counted.read_bytes.unwrap() as f64;
    assert!(
        (read as f64 / by_process - 1.0).abs() < 0.01,
        "{read} of requests, {by_process} of /proc io"
    );
    let model_bytes = std::fs::metadata(&model).unwrap().len();
    assert!(
        read > model_bytes,
        "a model that does not fit is read again"
    );
    // Nearly every fault in the model has a tensor, and most have a node.
    let in_model: Vec<_> = faults.iter().filter(|f| f.fault.place.is_some()).collect();
    let owned = in_model.iter().filter(|f| f.owner.is_some()).count();
    assert!(
        owned * 100 >= in_model.len() * 99,
        "{owned} of {}",
        in_model.len()
    );
    assert!(in_model.iter().filter(|f| f.at.is_some()).count() * 2 > in_model.len());
    // The limit held, and was felt.
    let (limit, peak) = (counted.memory_limit_bytes, counted.peak_memory_bytes);
    assert!(
        peak <= limit && counted.times_at_limit > Some(0),
        "{counted:?}"
    );
    assert_eq!(counted.oom_kills, Some(0));
    // Samples: at the beginning nothing, later less than the limit.
    let samples = below.samples().unwrap().unwrap();
    assert!(samples.len() as u64 == counted.residency_samples && samples.len() >= 3);
    let most = samples.iter().map(|s| s.resident_bytes).max().unwrap();
    assert!(most > 0 && Some(most) <= limit, "{most}");
    for sample in &samples {
        let tensors: u64 = sample.tensors.iter().map(|(_, bytes)| bytes).sum();
        assert!(tensors <= sample.resident_bytes);
    }
    assert_no_group_is_left();
}

#[test]
fn without_wishes_there_are_no_logs_of_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let (_, trace) = recorded(folder.path(), &dense(), &["-p", "hello", "-n", "2"]);
    assert!(trace.run.metadata().unwrap().underneath.is_none());
    assert!(Underneath::open(&trace.run).unwrap().is_none());
}

#[test]
fn what_is_not_allowed_is_named_with_the_command_that_allows_it() {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: has no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can become somebody who may less");
        return;
    }
    // Somebody else must reach the program and write the run.
    let program = folder.path().join("tensorscope");
    std::fs::copy(env!("CARGO_BIN_EXE_tensorscope"), &program).unwrap();
    std::fs::copy(dense(), folder.path().join("m.gguf")).unwrap();
    let open = ["-R", "a+rwX"];
    assert!(
        Command::new("chmod")
            .args(open)
            .arg(folder.path())
            .status()
            .unwrap()
            .success()
    );
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args([
            "record",
            "-m",
            "m.gguf",
            "-p",
            "hello",
            "-n",
            "4",
            "--no-tables",
            "-o",
            "RUN",
        ])
        .args(["--faults", "--io", "--residency"])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .output();
    let Ok(output) = output else {
        println!("skipped: there is no setpriv");
        return;
    };
    let talk = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{talk}");
    assert!(talk.contains("block requests"), "{talk}");
    assert!(talk.contains("sudo"), "{talk}");
    let run = Run::open(&folder.path().join("RUN")).unwrap();
    let counted = run.metadata().unwrap().underneath.clone().unwrap();
    // What anybody may know is there.
    assert!(
        counted.major_faults.is_some() && counted.minor_faults > Some(0),
        "{counted:?}"
    );
    assert!(
        counted.residency_samples > 0 && !counted.missing.is_empty(),
        "{counted:?}"
    );
}

#[test]
fn blkparse_text_becomes_requests() {
    let folder = tempfile::tempdir().unwrap();
    let (_, trace) = recorded(folder.path(), &dense(), &["-p", "hello", "-n", "2"]);
    let text = "  8,0    1        1     0.000000100   697  D   R 2048 + 256 [x]\n  \
                8,0    1        2     0.000900000     0  C   R 2048 + 256 [0]\n";
    std::fs::write(folder.path().join("io.txt"), text).unwrap();
    let ingest = || {
        let mut command = tensorscope(folder.path());
        command
            .arg("ingest")
            .arg(trace.run.path())
            .args(["--blkparse", "io.txt"]);
        command.output().unwrap()
    };
    let output = ingest();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let run = Run::open(trace.run.path()).unwrap();
    let io = Underneath::open(&run)
        .unwrap()
        .unwrap()
        .io()
        .unwrap()
        .unwrap();
    assert_eq!(io.len(), 1);
    assert_eq!((io[0].bytes, io[0].io.sector), (256 * 512, 2048));
    // Twice would count twice.
    let again = ingest();
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("already"), "{}", stderr(&again));
}

#[test]
fn text_without_requests_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_, trace) = recorded(folder.path(), &dense(), &["-p", "hello", "-n", "2"]);
    std::fs::write(folder.path().join("io.txt"), "no blkparse\n").unwrap();
    let mut command = tensorscope(folder.path());
    command.arg("ingest").arg(trace.run.path());
    let output = command.args(["--blkparse", "io.txt"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("no block request"),
        "{}",
        stderr(&output)
    );
    assert!(!trace.run.log_directory().join("io").exists());
}

#[test]
fn a_limit_in_which_nothing_runs_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["-p", "hello", "--memory", "5", "-o", "RUN"];
    let output = record(folder.path(), &dense(), &args);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("at least"), "{}", stderr(&output));
    assert!(!folder.path().join("RUN").exists());
}

/// Groups are `tensorscope-PID`; other tests may have theirs while they run. The
/// kernel may need a moment to empty one, for which a guardian waits.
fn assert_no_group_is_left() {
    let mut command = Command::new("sh");
    let script = r#"
        left() {
            find /sys/fs/cgroup -maxdepth 5 -type d -name 'tensorscope-*' | while read -r group; do
                [ -d "/proc/${group##*-}" ] || echo "$group"
            done
        }
        tries=100
        while [ $tries -gt 0 ] && [ -n "$(left)" ]; do
            tries=$((tries - 1))
            sleep 0.1
        done
        left"#;
    let output = command.args(["-c", script]).output().unwrap();
    assert_eq!(stdout(&output), "");
}
