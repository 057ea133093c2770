//! A choice by the names of tensors: what a plan says, and a program that is fed is told.

use std::collections::HashMap;

use crate::{Choice, ExpertMemory, Weight};

/// As [`Choice`], but for `mapped`: what is in no list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedChoice {
    pub pinned: Vec<String>,
    pub streamed: Vec<String>,
    pub sliced: Vec<String>,
    pub ring_bytes: u64,
    pub experts: Option<ExpertMemory>,
}

impl NamedChoice {
    /// The lists as indices into these weights, in the order of the names. Names that are not
    /// among them are skipped; weights that are in no list are left in the file.
    pub fn choice(&self, weights: &[Weight]) -> Choice {
        let by_name: HashMap<&str, usize> = weights
            .iter()
            .enumerate()
            .map(|(index, weight)| (&*weight.name, index))
            .collect();
        let mut free = vec![true; weights.len()];
        let mut indices = |names: &[String]| {
            names
                .iter()
                .filter_map(|name| by_name.get(&**name).copied())
                .filter(|&index| std::mem::replace(&mut free[index], false))
                .collect()
        };
        let (pinned, streamed, sliced) = (
            indices(&self.pinned),
            indices(&self.streamed),
            indices(&self.sliced),
        );
        Choice {
            pinned,
            streamed,
            sliced,
            mapped: (0..weights.len()).filter(|&index| free[index]).collect(),
            ring_bytes: self.ring_bytes,
            experts: self.experts,
        }
    }
}
