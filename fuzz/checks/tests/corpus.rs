//! The committed corpora, replayed on a stable compiler: whatever once broke a parser stays
//! fixed, and no fuzz target rots unnoticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fuzz_checks::CHECKS;

fn fuzz() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap().to_owned()
}

#[test]
fn every_check_holds_for_its_corpus() {
    for (name, check) in CHECKS {
        let corpus = fs::read_dir(fuzz().join("corpus").join(name));
        let corpus = corpus.unwrap_or_else(|error| panic!("{name} has no corpus: {error}"));
        let mut inputs: Vec<PathBuf> = corpus.map(|entry| entry.unwrap().path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        for input in inputs {
            // Shown where the check panics: this input did it.
            eprintln!("{}", input.display());
            check(&fs::read(&input).unwrap());
        }
    }
}

#[test]
fn every_check_is_a_fuzz_target() {
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let targets: BTreeSet<String> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/"))
        .map(|name| name.trim_end_matches(".rs\"").to_owned())
        .collect();
    let checks = CHECKS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(targets, checks);
}
