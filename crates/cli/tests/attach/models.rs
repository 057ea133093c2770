//! Programs with two models whose tensors have the same names: each weight is found
//! in its own file.

use std::{fs, path::Path};

use trace::template::TensorKind;

use crate::fixture::*;

const SHAPE: &str = "--like llama-3.2-1b --type q4_0";

/// Files that the weights of a stream lie in, by their number in the run.
fn files_of(stream: &Stream) -> Vec<u32> {
    let tensors = stream.definitions.tensors.iter();
    let weights = tensors.filter(|tensor| tensor.kind == TensorKind::Weight);
    let mut files: Vec<u32> = weights.map(|t| t.place.expect("a place").file).collect();
    files.sort_unstable();
    files.dedup();
    files
}

fn assert_recorded(output: &std::process::Output) {
    let (ours, _) = talk(output);
    let is_closing = |line: &String| line.ends_with(" of log, in RUN");
    assert!(ours.len() == 1 && is_closing(&ours[0]), "{ours:?}");
}

/// Records two models of one shape in one program.
fn check(flags: &[&str], first: &Path, second: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let flags = [flags, &["-o", "RUN"]].concat();
    let args = ["-n", "5", "-m", first.to_str().unwrap()];
    let without = alone(folder.path(), &args, second, &["hello"]);
    let with = record_generate(folder.path(), &flags, &args, second, &["hello"])
        .output()
        .unwrap();
    assert_eq!(with.status.code(), Some(0), "{}", stderr(&with));
    if !flags.contains(&"--no-repack") {
        assert_eq!(stdout(&with), stdout(&without));
    }
    assert_recorded(&with);
    let trace = Trace::complete(&folder.path().join("RUN"));
    let [one, other] = &trace.streams[..] else {
        panic!("{} streams", trace.streams.len());
    };
    assert_ne!(one.evaluations[0].context, other.evaluations[0].context);
    let recorded = &trace.run.metadata().unwrap().model.as_ref().unwrap().files;
    for (stream, path) in [(one, first), (other, second)] {
        assert_eq!(stream.evaluations.len(), 5);
        let files = files_of(stream);
        assert_eq!(files.len(), 1, "{files:?}");
        let found = &recorded[files[0] as usize].path;
        assert_eq!(Path::new(found), fs::canonicalize(path).unwrap());
    }
}

fn two_models(folder: &Path) -> [std::path::PathBuf; 2] {
    [1, 2].map(|seed| {
        let shape = format!("{SHAPE} --seed {seed}");
        synth(&folder.join(seed.to_string()), &shape)
    })
}

#[test]
fn weights_that_are_mapped_are_found_in_their_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = two_models(folder.path());
    check(&["--no-repack"], &first, &second);
}

/// Neither their addresses nor their bytes tell.
#[test]
fn weights_that_are_repacked_are_found_in_their_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = two_models(folder.path());
    check(&[], &first, &second);
}

#[test]
fn two_models_that_are_repacked_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = two_models(folder.path());
    let args = ["-n", "5", "-m", first.to_str().unwrap()];
    let output = record_generate(folder.path(), &["-o", "RUN"], &args, &second, &["hello"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_recorded(&output);
    let trace = Trace::complete(&folder.path().join("RUN"));
    assert_eq!((trace.streams.len(), trace.summary.evaluations), (2, 10));
}

#[test]
fn a_model_that_is_loaded_twice_is_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = dense();
    let args = ["-n", "5", "-m", model.to_str().unwrap()];
    let output = record_generate(folder.path(), &["-o", "RUN"], &args, &model, &["hello"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = Trace::complete(&folder.path().join("RUN"));
    assert_eq!((trace.streams.len(), trace.summary.evaluations), (2, 10));
    let files = &trace.run.metadata().unwrap().model.as_ref().unwrap().files;
    assert_eq!(files.len(), 1, "{files:?}");
    for stream in &trace.streams {
        assert_eq!(files_of(stream), [0]);
    }
}
