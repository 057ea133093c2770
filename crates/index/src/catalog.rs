//! Numbers for everything that answers name, the same in all streams.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    ops::Deref,
};

use reader::{Tensor, Tensors};

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

/// A root tensor, over all streams: as the first of them defines it.
#[derive(Debug)]
pub struct CatalogTensor {
    tensor: Tensor,
    /// Its place in [`Tensors::all`].
    at: usize,
    /// Number of its component, or of its kind.
    pub part: u32,
    /// Of its component where it is multiplied: of a token embedding another one.
    pub multiplied_part: u32,
    /// Whether a graph uses it as that: an embedding that is tied to the output.
    pub is_tied: bool,
    /// First byte in the map space; `None` for what has no place there.
    pub begin: Option<u64>,
    /// Experts whose slices accesses to it named.
    pub experts: u32,
    /// The first tensor with its name: activations of different batches share one.
    pub namesake: u32,
}

impl CatalogTensor {
    /// Number of what it is for in an operation.
    pub fn part_of_use(&self, op: &str) -> u32 {
        match self.tensor.part_in(op) == self.tensor.part() {
            true => self.part,
            false => self.multiplied_part,
        }
    }
}

impl Deref for CatalogTensor {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

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
    /// Of each tensor of the run, by place.
    pub numbers: Vec<u32>,
    by_name: HashMap<String, u32>,
}

impl Catalog {
    /// Takes in what is new among the tensors of the run.
    pub fn extend(&mut self, tensors: &Tensors) {
        let new = tensors.all().iter().enumerate().skip(self.numbers.len());
        for (at, tensor) in new {
            if let Some(&number) = self.numbers.get(tensor.first as usize) {
                self.numbers.push(number);
                let known = &mut self.tensors[number as usize];
                if tensor.stream < known.stream {
                    known.tensor = tensor.clone();
                    known.at = at;
                }
                continue;
            }
            let number = self.tensors.len() as u32;
            self.numbers.push(number);
            let namesake = self.by_name.entry(tensor.name.clone()).or_insert(number);
            self.tensors.push(CatalogTensor {
                tensor: tensor.clone(),
                at,
                part: self.parts.number(tensor.part()),
                multiplied_part: self.parts.number(tensor.part_in("MUL_MAT")),
                is_tied: false,
                begin: None,
                experts: 0,
                namesake: *namesake,
            });
        }
    }

    /// Numbers in the run move when a stream gains tensors that another one is behind.
    pub fn renumber(&mut self, tensors: &Tensors) {
        for known in &mut self.tensors {
            known.tensor.number = tensors.all()[known.at].number;
        }
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
            let place = tensor.place.filter(|_| tensor.is_weight());
            tensor.begin = place.and_then(|place| {
                let file = self.files.get(place.file as usize)?;
                let end = place.file_offset.checked_add(tensor.size_bytes)?;
                (end <= file.size_bytes).then(|| file.begin + place.file_offset)
            });
        }
    }
}
