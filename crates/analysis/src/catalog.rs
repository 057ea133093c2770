//! Numbers for everything that results name.
//!
//! A stream numbers its own tensors; the same tensor may be defined in several
//! streams, or twice in one. The catalogue knows tensors by name, kind, size
//! and place, so that sums go across streams.

use std::collections::HashMap;

use gguf::Meaning;
use trace::{
    read::Definitions,
    template::{FilePlace, Step, TensorKind},
};

/// What accesses are summed by: a row of the traffic table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    pub kind: TensorKind,
    /// Of weights their component, of the rest their kind.
    pub part: String,
    pub role: Option<String>,
    pub op: String,
    pub layer: Option<u32>,
    pub direction: &'static str,
}

/// What time is summed by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimeGroup {
    /// Component of the weight that the step reads; the kind of tensor that it
    /// works on where it reads none.
    pub part: String,
    pub op: String,
    pub layer: Option<u32>,
}

/// A weight or a KV tensor, over all streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogTensor {
    pub name: String,
    pub kind: TensorKind,
    pub meaning: Meaning,
    pub size_bytes: u64,
    pub file: Option<u32>,
    pub file_offset: u64,
}

/// A weight, or one expert's slice of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogUnit {
    pub tensor: u32,
    pub expert: Option<u32>,
    pub size_bytes: u64,
}

/// What makes a tensor the same in another stream. Not its name alone: a process
/// may hold two models (a draft and its target) with the same names.
type TensorKey = (String, TensorKind, u64, Option<FilePlace>);

/// Numbers of everything that the results name, the same in all streams.
#[derive(Debug, Default)]
pub struct Catalog {
    pub tensors: Vec<CatalogTensor>,
    pub units: Vec<CatalogUnit>,
    pub groups: Vec<Group>,
    pub time_groups: Vec<TimeGroup>,
    tensor_numbers: HashMap<TensorKey, u32>,
    /// First unit and how many, by tensor: of the whole, and of its slices.
    whole_units: HashMap<u32, u32>,
    slice_units: HashMap<u32, (u32, u32)>,
    group_numbers: HashMap<Group, u32>,
    time_group_numbers: HashMap<TimeGroup, u32>,
}

impl Catalog {
    /// Number of a weight or KV tensor; `None` for the others.
    pub(crate) fn tensor(&mut self, definitions: &Definitions, number: u32) -> Option<u32> {
        let def = &definitions.tensors[number as usize];
        if !matches!(def.kind, TensorKind::Weight | TensorKind::KvCache) {
            return None;
        }
        let key = (
            definitions.tensor_name(number),
            def.kind,
            def.size_bytes,
            def.place,
        );
        let tensors = &mut self.tensors;
        Some(*self.tensor_numbers.entry(key).or_insert_with_key(|key| {
            tensors.push(CatalogTensor {
                meaning: Meaning::of(&key.0),
                name: key.0.clone(),
                kind: def.kind,
                size_bytes: def.size_bytes,
                file: def.place.map(|p| p.file),
                file_offset: def.place.map_or(0, |p| p.file_offset),
            });
            tensors.len() as u32 - 1
        }))
    }

    pub(crate) fn whole_unit(&mut self, tensor: u32) -> u32 {
        let (units, tensors) = (&mut self.units, &self.tensors);
        *self.whole_units.entry(tensor).or_insert_with(|| {
            units.push(CatalogUnit {
                tensor,
                expert: None,
                size_bytes: tensors[tensor as usize].size_bytes,
            });
            units.len() as u32 - 1
        })
    }

    /// First unit of a tensor's slices: all of them, the unused too.
    pub(crate) fn slice_units(&mut self, tensor: u32, slices: u32) -> u32 {
        let known = self.slice_units.get(&tensor);
        if let Some(&(first, count)) = known
            && count >= slices
        {
            return first;
        }
        let first = self.units.len() as u32;
        let size_bytes = self.tensors[tensor as usize].size_bytes / u64::from(slices.max(1));
        self.units.extend((0..slices).map(|expert| CatalogUnit {
            tensor,
            expert: Some(expert),
            size_bytes,
        }));
        self.slice_units.insert(tensor, (first, slices));
        first
    }

    pub(crate) fn group(&mut self, group: Group) -> u32 {
        let groups = &mut self.groups;
        *self.group_numbers.entry(group).or_insert_with_key(|group| {
            groups.push(group.clone());
            groups.len() as u32 - 1
        })
    }

    pub(crate) fn time_group(
        &mut self,
        definitions: &Definitions,
        step: &Step,
        part: String,
    ) -> u32 {
        let groups = &mut self.time_groups;
        let group = TimeGroup {
            part,
            op: definitions.text(step.op),
            layer: step.layer,
        };
        *self
            .time_group_numbers
            .entry(group)
            .or_insert_with_key(|group| {
                groups.push(group.clone());
                groups.len() as u32 - 1
            })
    }
}
