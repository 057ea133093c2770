//! `--no-repack` keeps weights where the file has them; without it nothing changes.

use std::{collections::BTreeMap, path::Path};

use trace::template::TensorKind;

use crate::fixture::*;

/// Weights by the type of the buffer that they lie in.
fn buffer_types(trace: &Trace) -> BTreeMap<String, usize> {
    let definitions = &trace.stream().definitions;
    let weights = definitions
        .tensors
        .iter()
        .filter(|t| t.kind == TensorKind::Weight);
    weights.fold(BTreeMap::new(), |mut types, tensor| {
        *types
            .entry(definitions.text(tensor.buffer_type))
            .or_default() += 1;
        types
    })
}

fn is_repacked(types: &BTreeMap<String, usize>) -> bool {
    types
        .keys()
        .any(|name| name.contains("REPACK") || name.contains("AMX"))
}

/// What the built-in engine does on this processor when it may.
fn engine_repacks(folder: &Path, model: &Path) -> bool {
    let mut command = tensorscope(folder);
    command.args(["record", "--no-tables", "--repack", "-t", "1", "-n", "1"]);
    command
        .args(["-p", "hello", "-o", "engine", "-m"])
        .arg(model);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    is_repacked(&buffer_types(&Trace::complete(&folder.join("engine"))))
}

#[test]
fn no_repack_keeps_weights_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = synth(folder.path(), "--like llama-3.2-1b --type q4_0");
    if !engine_repacks(folder.path(), &model) {
        println!("skipped: llama.cpp repacks no q4_0 weights on this processor");
        return;
    }
    let without = alone(folder.path(), &[], &model, &["hello"]);
    let record = |flags: &[&str]| {
        let output = record_generate(folder.path(), flags, &[], &model, &["hello"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        output
    };
    let as_it_likes = record(&["-o", "repacked"]);
    assert_eq!(stdout(&as_it_likes), stdout(&without));
    let types = buffer_types(&Trace::complete(&folder.path().join("repacked")));
    assert!(is_repacked(&types), "{types:?}");

    record(&["--no-repack", "-o", "mapped"]);
    let trace = Trace::complete(&folder.path().join("mapped"));
    let types = buffer_types(&trace);
    assert_eq!(
        types.keys().collect::<Vec<_>>(),
        ["CPU_Mapped"],
        "{types:?}"
    );
    let tensors = &trace.stream().definitions.tensors;
    let is_placed = |t: &&trace::template::TensorDef| t.place.is_some();
    assert_eq!(
        tensors.iter().filter(is_placed).count(),
        types["CPU_Mapped"]
    );
}

/// Both flags contradict each other, and only one of them is for programs.
#[test]
fn repack_is_for_the_built_in_engine() {
    let folder = tempfile::tempdir().unwrap();
    let output = record_generate(folder.path(), &["--repack"], &[], &dense(), &["x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("'--repack' cannot be used with"));
}
