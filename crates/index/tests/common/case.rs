//! A random log, its index, its naive reading; and random filters.

use index::{Filter, RunIndex};
use proptest::prelude::*;
use trace::format::Phase;

use super::{
    Kind, Random,
    reference::{self, Access, Eval},
};

pub struct Case {
    pub index: RunIndex,
    pub evals: Vec<Eval>,
    /// First byte of each file in the map space.
    pub files: Vec<u64>,
    _folder: tempfile::TempDir,
}

pub fn case(kind: Kind, seed: u64) -> Case {
    let folder = tempfile::tempdir().unwrap();
    super::write_run(folder.path(), kind, seed);
    let run = rundir::Run::open(folder.path()).unwrap();
    let index = RunIndex::open(&run, &mut |_| ()).unwrap();
    let files = index.info().model.files.iter().map(|f| f.begin).collect();
    Case {
        evals: reference::read(folder.path()),
        index,
        files,
        _folder: folder,
    }
}

pub fn kinds() -> impl Strategy<Value = Kind> {
    let evals = prop_oneof![1..40u64, 500..700u64];
    (1..3u32, evals, 1..4u32, 2..9u64, 0..4u64, any::<bool>()).prop_map(
        |(streams, evals, layers, experts, odd, has_odd_access)| Kind {
            streams,
            evals,
            layers,
            experts,
            odd_one_in: [0, 3, 20, 50][odd as usize],
            has_odd_access: has_odd_access && evals < 100,
        },
    )
}

pub fn filter(random: &mut Random, tokens: u64) -> Filter {
    let some = |random: &mut Random| random.one_in(3);
    let mut filter = Filter::default();
    if some(random) {
        filter.phases = Some(vec![
            [Phase::Prompt, Phase::Generate][random.below(2) as usize],
        ]);
    }
    if some(random) {
        let first = random.below(tokens);
        filter.tokens = Some((first, first + random.below(tokens)));
    }
    if some(random) {
        let one = [None, Some(0), Some(1)][random.below(3) as usize];
        filter.layers = Some(vec![one, Some(2)]);
    }
    if some(random) {
        let all = ["attention", "expert", "kv_cache", "activation", "embedding"];
        let one = all[random.below(5) as usize];
        filter.components = Some(vec![one.to_owned(), "output".to_owned()]);
    }
    if some(random) {
        let all = ["MUL_MAT", "MUL_MAT_ID", "GET_ROWS", "ADD_ID"];
        filter.ops = Some(vec![
            all[random.below(4) as usize].to_owned(),
            "ODD".to_owned(),
        ]);
    }
    if some(random) {
        filter.experts = Some(vec![random.below(4) as u32, 5]);
    }
    filter
}

pub fn token_count(case: &Case) -> u64 {
    case.evals.iter().map(|e| e.tokens).sum()
}

pub fn origin(case: &Case) -> u64 {
    case.evals.iter().map(|e| e.begin).min().unwrap()
}

/// First byte and length in the map space.
pub fn place(case: &Case, access: &Access) -> Option<(f64, f64)> {
    let (file, offset) = access.place.filter(|_| access.is_weight)?;
    Some((
        (case.files[file as usize] + offset) as f64,
        access.span as f64,
    ))
}

/// How much of `begin..begin + length` lies in `from..to`.
pub fn share(begin: f64, length: f64, from: f64, to: f64) -> f64 {
    ((begin + length).min(to) - begin.max(from)).max(0.0) / length
}

pub fn check_close(what: &str, found: f64, expected: f64) {
    let tolerance = expected.abs() * 1e-4 + 1e-3;
    assert!(
        (found - expected).abs() <= tolerance,
        "{what}: {found} is not {expected}"
    );
}
