//! Text that people and programs write: plans, names, arguments, filters.

use std::path::Path;
use std::str::FromStr as _;
use std::sync::LazyLock;

use gguf::Model;
use gguf::names::Meaning;
use gguf::split::SplitName;
use index::Filter;
use plan::{Policy, weights_of};
use planfile::Plan;

use crate::header::Sparse;
use crate::log::one_line;

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let input = include_bytes!("../../corpus/header/shakespeare-moe");
    let (source, len_bytes) = Sparse::of(input).expect("it has a length");
    Model::from_source(Path::new("moe.gguf"), &source, len_bytes).expect("our own model")
});

/// Input: a plan file.
pub fn plan(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let path = Path::new("my.plan");
    let plan = match Plan::from_json(path, text) {
        Ok(plan) => plan,
        Err(error) => return one_line(&error.to_string()),
    };
    let again = Plan::from_json(path, &plan.to_json()).expect("what we write we read");
    assert_eq!(plan.to_json(), again.to_json());
    if let Err(error) = plan.check(&MODEL) {
        one_line(&error.to_string());
    }
    let weights = weights_of(&MODEL);
    let choice = plan.named_choice().choice(&weights);
    let lists = [
        &choice.pinned,
        &choice.streamed,
        &choice.sliced,
        &choice.mapped,
    ];
    assert_eq!(
        lists.iter().map(|list| list.len()).sum::<usize>(),
        weights.len()
    );
}

/// Input: names of tensors and files, and the table of them.
pub fn names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(names) = rundir::names::parse(&text) {
        let mut again = Vec::new();
        rundir::names::write(names.iter().map(String::as_str), &mut again).expect("to memory");
        let again = String::from_utf8(again).expect("text");
        assert_eq!(rundir::names::parse(&again).as_ref(), Ok(&names));
    }
    for line in text.lines().take(100) {
        let escaped = rundir::names::escape(line);
        assert_eq!(rundir::names::unescape(&escaped).as_deref(), Some(line));
        Meaning::of(line);
        if let Some(split) = SplitName::parse(line) {
            split.sibling(1);
        }
    }
}

/// Input: a line for each argument of a program or parameter of an address.
pub fn arguments(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines().take(100) {
        let _ = terminal::text::duration(line);
        let _ = Policy::from_str(line);
        if let Ok(bytes) = terminal::text::size(line) {
            assert!(bytes <= 9 << 60);
        }
        let pairs = line.split('&').filter_map(|pair| pair.split_once('='));
        let _ = Filter::from_pairs(pairs);
    }
}
