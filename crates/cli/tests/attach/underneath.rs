//! The kernel underneath a program: counts are its own, bytes have their tensors,
//! and a program under pressure prints what it prints without us.

use std::path::Path;

use reader::kernel::Underneath;
use rundir::Run;

use crate::fixture::*;

fn model(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("big.gguf");
    let mut synth = tensorscope(folder);
    synth.args([
        "synth",
        "--like",
        "qwen3-30b-a3b",
        "--type",
        "q8_0",
        "--layers",
        "1",
    ]);
    synth.args(["--experts", "24", "-q", "-o"]).arg(&path);
    assert!(synth.output().unwrap().status.success());
    path
}

#[test]
fn a_program_under_pressure_is_watched_from_below() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let args = ["-e", "-n", "6", "-t", "2"];
    let without = alone(folder.path(), &args, &model, &["hello"]);
    let limit = (std::fs::metadata(&model).unwrap().len() * 3 / 4).to_string();
    let flags = [
        "--memory",
        &limit,
        "--cold",
        "--faults",
        "--io",
        "--residency=2",
        "-o",
        "RUN",
    ];
    let output = record_generate(folder.path(), &flags, &args, &model, &["hello"])
        .output()
        .unwrap();
    let talk = stderr(&output);
    if talk.contains("cannot be recorded:") || talk.contains("a memory limit") {
        println!("skipped: {talk}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{talk}");
    assert_eq!(stdout(&output), stdout(&without));
    let run = Run::open(&folder.path().join("RUN")).unwrap();
    let counted = run.metadata().unwrap().underneath.clone().unwrap();
    let below = Underneath::open(&run).unwrap().unwrap();
    let faults = below.faults().unwrap().unwrap();
    // The kernel counts what it fills in itself at load; crates/kernelio has the
    // proof that nothing else is missing.
    let recorded = faults.len() as u64;
    assert!(Some(recorded) <= counted.major_faults, "{counted:?}");
    assert_eq!(counted.recorded_faults, Some(recorded));
    assert_eq!(
        (counted.lost_faults, counted.lost_requests),
        (Some(0), Some(0))
    );
    let in_model: Vec<_> = faults.iter().filter(|f| f.fault.place.is_some()).collect();
    let owned = in_model.iter().filter(|f| f.owner.is_some()).count();
    assert!(
        in_model.len() > 3 && owned * 100 >= in_model.len() * 99,
        "{owned} of {}",
        in_model.len()
    );
    // Experts are told apart: faults have one where the tensor has slices.
    assert!(
        in_model
            .iter()
            .any(|f| f.owner.is_some_and(|o| o.expert.is_some()))
    );
    let (read, model_read) = (
        counted.read_bytes.unwrap(),
        counted.model_read_bytes.unwrap(),
    );
    // The program's own libraries may have to be read as well.
    assert!(
        model_read > 0 && model_read <= read + read / 100,
        "{counted:?}"
    );
    assert!(
        counted.peak_memory_bytes <= counted.memory_limit_bytes,
        "{counted:?}"
    );
    let samples = below.samples().unwrap().unwrap();
    assert!(
        samples.len() >= 2 && samples.iter().all(|s| s.file == 0),
        "{samples:?}"
    );
}

#[test]
fn a_cold_start_needs_to_know_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let output = record_program(folder.path(), &["--cold", "-o", "RUN"], "true")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--cold=MODEL.gguf"),
        "{}",
        stderr(&output)
    );
    assert!(!folder.path().join("RUN").exists());
}

#[test]
fn a_program_that_needs_more_than_the_limit_hears_what_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let model = testing::models::shipped("shakespeare-dense.gguf");
    // `tail` keeps what has no line end.
    let takes_400_mb = "head -c 400000000 /dev/zero | tail > /dev/null";
    let mut command = tensorscope(folder.path());
    command.args(["record", "--memory", "100M", "-o", "RUN", "--", "sh", "-c"]);
    command.args([takes_400_mb, "sh"]).arg(&model);
    let output = command.output().unwrap();
    let talk = stderr(&output);
    if talk.contains("a memory limit") {
        println!("skipped: {talk}");
        return;
    }
    for part in [
        "no trace was written: the kernel killed it for lack of memory: it had taken ",
        " of the 100.00 MiB allowed. Besides weights its model needs about ",
        "give it --memory 150M",
    ] {
        assert!(talk.contains(part), "{part}: {talk}");
    }
    assert!(!folder.path().join("RUN").exists());
}
