//! Programs and libraries with llama.cpp linked into them, with their names or stripped, are
//! recorded as those with a shared one.

use std::path::Path;

use crate::{
    fixture::*,
    same::{first_difference, lines},
};

const PROMPT: &str = "To be, or not to be";
const INSIDE: [Linked; 5] = [
    Linked::Inside,
    Linked::Stripped,
    Linked::StrippedAtFixedAddress,
    Linked::Library,
    Linked::StrippedLibrary,
];

/// Records into a folder that is named after how the program is linked; what it printed.
fn record(folder: &Path, linked: Linked, flags: &[&str], args: &[&str], model: &Path) -> String {
    let run = format!("{linked:?}");
    let flags = [flags, &["-o", &run]].concat();
    let mut command = record_program(folder, &flags, generate_linked(linked));
    let output = command.args(args).arg(model).arg(PROMPT).output().unwrap();
    let talk = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{linked:?}: {talk}");
    stdout(&output)
}

/// What the shared one records, and every other.
fn check(model: &Path, flags: &[&str], args: &[&str], kinds: &[Linked]) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let printed = record(folder, Linked::Shared, flags, args, model);
    let shared = lines(&Trace::complete(&folder.join("Shared")));
    assert!(shared.len() > 500, "only {} lines", shared.len());
    for &linked in kinds {
        assert_eq!(
            record(folder, linked, flags, args, model),
            printed,
            "{linked:?}"
        );
        let inside = lines(&Trace::complete(&folder.join(format!("{linked:?}"))));
        if let Some(difference) = first_difference(&shared, &inside) {
            panic!("{linked:?}, {}: {difference}", model.display());
        }
    }
}

#[test]
fn the_same_is_recorded_of_a_mixture() {
    check(&moe(), &[], &["-t", "2"], &INSIDE);
}

#[test]
fn the_same_is_recorded_of_a_dense_model_without_mapping() {
    check(&dense(), &[], &["-b"], &INSIDE[..2]);
}

/// In a stripped one the function that is asked for them is another, and found too.
#[test]
fn weights_are_kept_in_their_order_if_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let model = synth(folder.path(), "--like llama-3.2-1b --type q4_0");
    check(&model, &["--no-repack"], &[], &INSIDE[..2]);
}

/// llama-server's, which only C++ can read.
#[test]
fn sequences_of_newer_batches_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let recorded = |linked: Linked| {
        let run = format!("{linked:?}");
        let mut command = record_program(folder, &["-o", &run], generate_linked(linked));
        command.arg(moe()).args([PROMPT, "Now is the winter"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        lines(&Trace::complete(&folder.join(&run)))
    };
    let expected = recorded(Linked::Shared);
    assert!(
        expected[0].contains("of sequences [0, 0"),
        "{}",
        expected[0]
    );
    for linked in [Linked::SharedExtended, Linked::InsideExtended] {
        let difference = first_difference(&expected, &recorded(linked));
        assert_eq!(difference, None, "{linked:?}");
    }
}

#[test]
fn two_models_and_contexts_are_told_apart() {
    for linked in [Linked::Inside, Linked::Stripped] {
        let folder = tempfile::tempdir().unwrap();
        let first = dense();
        let args = ["-m", first.to_str().unwrap()];
        record(folder.path(), linked, &[], &args, &moe());
        let trace = Trace::complete(&folder.path().join(format!("{linked:?}")));
        assert_eq!(trace.streams.len(), 2, "{linked:?}");
        for stream in &trace.streams {
            assert_eq!(stream.evaluations.len(), 8, "{linked:?}");
        }
    }
}

#[test]
fn the_mmu_agrees() {
    for linked in [Linked::Inside, Linked::Stripped] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = tensorscope(folder.path());
        command.args(["audit", "--"]).arg(generate_linked(linked));
        let output = command.arg(moe()).arg(PROMPT).output().unwrap();
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{linked:?}: {said}");
        let passed = "audit passed: recall 100.000 %, precision 100.000 %";
        assert!(said.contains(passed), "{linked:?}: {said}");
    }
}
