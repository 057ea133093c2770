//! Numbers for everything that answers name, the same in all streams.
//!
//! A stream numbers its own tensors and strings; the same tensor may be defined
//! in several streams. The catalogue knows tensors by name, kind, size and place.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use gguf::{GgmlType, Meaning};
use trace::{
    read::Definitions,
    template::{FilePlace, TensorKind},
};

use crate::answers::FileInfo;

/// Files of a model; a place in a later one is damage.
const MAX_FILES: u32 = 4096;

/// Things in the order of their first appearance, each with its number.
#[derive(Debug)]
pub struct Numbered<T> {
    pub all: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered {
            all: Vec::new(),
            numbers: HashMap::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    pub fn number(&mut self, of: T) -> u32 {
        let all = &mut self.all;
        *self.numbers.entry(of).or_insert_with_key(|key| {
            all.push(key.clone());
            all.len() as u32 - 1
        })
    }
}

/// A root tensor, over all streams.
#[derive(Debug)]
pub struct CatalogTensor {
    pub name: String,
    pub kind: TensorKind,
    /// Of what has a place in a file, as in the tables.
    pub meaning: Option<Meaning>,
    /// Number of its component, or of its kind.
    pub part: u32,
    pub ggml_type: u32,
    pub size_bytes: u64,
    pub place: Option<FilePlace>,
    /// Where it was defined first: which stream, and its number there.
    pub stream: u32,
    pub number: u32,
    /// Its number in the tables, once the streams before are known.
    pub table_number: u32,
    /// First byte in the map space; `None` for what has no place there.
    pub begin: Option<u64>,
    /// Experts whose slices accesses to it named.
    pub experts: u32,
    /// The first tensor with its name: activations of different batches share one.
    pub namesake: u32,
}

impl CatalogTensor {
    pub fn is_weight(&self) -> bool {
        self.kind == TensorKind::Weight
    }

    pub fn type_name(&self) -> &'static str {
        GgmlType::from_u32(self.ggml_type).map_or("unknown", GgmlType::name)
    }
}

type TensorKey = (String, TensorKind, u64, Option<FilePlace>);

#[derive(Debug, Default)]
pub struct Catalog {
    pub tensors: Vec<CatalogTensor>,
    /// Of weights their component, of other tensors their kind.
    pub parts: Numbered<&'static str>,
    pub ops: Numbered<String>,
    /// Names of nodes.
    pub names: Numbered<String>,
    pub layers: Numbered<Option<u32>>,
    pub files: Vec<FileInfo>,
    /// Bytes of the map space.
    pub total_bytes: u64,
    numbers: HashMap<TensorKey, u32>,
    by_name: HashMap<String, u32>,
}

impl Catalog {
    /// The number of a stream's tensor.
    pub fn tensor(&mut self, definitions: &Definitions, number: usize, stream: u32) -> u32 {
        let def = &definitions.tensors[number];
        let name = definitions.name(def.name);
        let key = (name, def.kind, def.size_bytes, def.place);
        if let Some(&known) = self.numbers.get(&key) {
            return known;
        }
        let meaning = def.place.map(|_| Meaning::of(&key.0));
        let part = meaning
            .as_ref()
            .map_or(def.kind.name(), |m| m.component.name());
        let at = self.tensors.len() as u32;
        self.tensors.push(CatalogTensor {
            name: key.0.clone(),
            kind: def.kind,
            meaning,
            part: self.parts.number(part),
            ggml_type: def.ggml_type,
            size_bytes: def.size_bytes,
            place: def.place,
            stream,
            number: number as u32,
            table_number: number as u32,
            begin: None,
            experts: 0,
            namesake: *self.by_name.entry(key.0.clone()).or_insert(at),
        });
        self.numbers.insert(key, at);
        at
    }

    /// Layers as answers list them: ascending, none last. Numbers of layers.
    pub fn layer_order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.layers.all.len() as u32).collect();
        order.sort_by_key(|&n| {
            let layer = self.layers.all[n as usize];
            (layer.is_none(), layer)
        });
        order
    }

    /// Lays the files end to end. `files` are those that the metadata names; where
    /// there are none, they are as long as the tensors in them need.
    pub fn place(&mut self, files: &[(String, u64)]) {
        let mut sizes: Vec<(String, u64)> = files.to_vec();
        if sizes.is_empty() {
            let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
            for (tensor, place) in self.tensors.iter().filter_map(|t| Some((t, t.place?))) {
                let end = place.file_offset.saturating_add(tensor.size_bytes);
                if place.file < MAX_FILES && end < 1 << 52 {
                    let known = ends.entry(place.file).or_default();
                    *known = end.max(*known);
                }
            }
            let count = ends.keys().last().map_or(0, |last| last + 1);
            sizes = (0..count)
                .map(|file| {
                    (
                        format!("file {file}"),
                        ends.get(&file).copied().unwrap_or(0),
                    )
                })
                .collect();
        }
        self.total_bytes = 0;
        self.files.clear();
        for (name, size_bytes) in sizes {
            self.files.push(FileInfo {
                name,
                size_bytes,
                begin: self.total_bytes,
            });
            self.total_bytes = self.total_bytes.saturating_add(size_bytes);
        }
        for tensor in &mut self.tensors {
            tensor.begin = tensor.place.and_then(|place| {
                let file = self.files.get(place.file as usize)?;
                let end = place.file_offset.checked_add(tensor.size_bytes)?;
                (end <= file.size_bytes && tensor.kind == TensorKind::Weight)
                    .then(|| file.begin + place.file_offset)
            });
        }
    }
}
