//! The weights of a model in memory: which tensors they are, where their bytes lie in
//! which file, and what becomes of each.
//!
//! A weight is a tensor whose data lie in the mapping of a file. That is all that is
//! asked: no names, no GGUF header, so that it holds for any model in any program.

use std::collections::HashMap;
use std::sync::Arc;

use ggml::{Op, OpNumbers, RawTensor, StepNodes, Tensor};

use crate::error::FeedError;
use crate::files::{Cache, Files, Mapping, mappings};
use crate::pump::{Place, Planned};
use crate::uploaded::drop_pages;
use crate::usage::ModelFileId;

/// How a graph uses a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    Rows,
    Whole,
    Experts {
        count: u32,
        used: u32,
        slice_bytes: u64,
    },
}

/// What becomes of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Stays in the file's mapping.
    Mapped,
    /// Has an address of its own, where its aligned read starts.
    Pinned { address: usize, is_loaded: bool },
    /// Goes through the ring for each evaluation.
    Streamed,
    /// Goes slice by slice into the slots of a layer.
    Sliced { layer: u32, role: u32 },
}

pub struct WeightInMemory {
    pub tensor: *mut RawTensor,
    pub name: String,
    pub bytes: u64,
    /// The address in the mapping.
    pub original: usize,
    pub file: u32,
    pub file_offset: u64,
    pub usage: Usage,
    /// Of a matrix that is only multiplied with, so that it can come a few rows at a time.
    pub row_bytes: Option<u64>,
    /// Its pieces are no larger than this, so that some of them can be kept.
    pub max_piece_bytes: u64,
    pub fate: Fate,
}

// SAFETY: the tensors belong to a loaded model, which outlives the feeder, and are
// written to only by the thread that computes.
unsafe impl Send for WeightInMemory {}

/// All weights of the graph that was seen first, in the order of their first use.
pub struct Weights {
    pub list: Vec<WeightInMemory>,
    pub files: Arc<Files>,
    pub file_ids: Vec<ModelFileId>,
    pub direct_refused: Option<String>,
    by_tensor: HashMap<*const RawTensor, u32>,
}

// SAFETY: the pointers are keys.
unsafe impl Send for Weights {}

/// A graph without weights in a file's mapping.
pub const NOTHING_MAPPED: &str = "none of the model's weights lie in a mapped file; load it with \
     mmap and without repacking";

impl Weights {
    /// Finds the weights of a graph.
    pub fn discover(
        nodes: &[Tensor<'_>],
        steps: &[StepNodes],
        ops: &OpNumbers,
        cache: Cache,
    ) -> Result<Weights, FeedError> {
        let maps = mappings().map_err(FeedError::Start)?;
        let mut used: Vec<&Mapping> = Vec::new();
        let mut list: Vec<WeightInMemory> = Vec::new();
        let mut by_tensor: HashMap<*const RawTensor, u32> = HashMap::new();
        for node in step_nodes(nodes, steps) {
            let op = ops.op_of(node);
            for (slot, src) in node.srcs() {
                let root = src.root();
                let usage = usage_of(op, slot, node, src);
                let row_bytes = row_bytes_of(op, slot, src);
                if let Some(&known) = by_tensor.get(&root.as_ptr()) {
                    let known = &mut list[known as usize];
                    known.row_bytes = match (known.usage, usage) {
                        (Usage::Rows, _) => row_bytes,
                        (_, Usage::Rows) => known.row_bytes,
                        _ => known.row_bytes.and(row_bytes),
                    };
                    known.usage = both(known.usage, usage);
                    continue;
                }
                let Some(mapping) = mapping_of(&maps, root) else {
                    continue;
                };
                let same = |m: &&Mapping| (m.device, m.inode) == (mapping.device, mapping.inode);
                let file = used.iter().position(same).unwrap_or_else(|| {
                    used.push(mapping);
                    used.len() - 1
                });
                by_tensor.insert(root.as_ptr(), list.len() as u32);
                list.push(WeightInMemory {
                    tensor: root.as_ptr().cast_mut(),
                    name: String::from_utf8_lossy(root.name()).into_owned(),
                    bytes: root.nbytes(),
                    original: root.data(),
                    file: file as u32,
                    file_offset: mapping.file_offset + (root.data() - mapping.start) as u64,
                    usage,
                    row_bytes,
                    max_piece_bytes: u64::MAX,
                    fate: Fate::Mapped,
                });
            }
        }
        if list.is_empty() {
            return Err(FeedError::Refused(NOTHING_MAPPED.into()));
        }
        let (files, direct_refused) = Files::open(&used, cache)?;
        let weights = Weights {
            list,
            files: Arc::new(files),
            file_ids: used.iter().map(|file| (file.device, file.inode)).collect(),
            direct_refused,
            by_tensor,
        };
        drop_pages(&weights, &maps);
        Ok(weights)
    }

    /// When a program warms up it computes with all experts; how many a token uses is
    /// in the model's file then.
    pub fn correct_warm_up(&mut self) {
        let is_warm_up = |weight: &WeightInMemory| matches!(weight.usage, Usage::Experts { count, used, .. } if used == count && count > 1);
        let Some(weight) = self.list.iter().find(|weight| is_warm_up(weight)) else {
            return;
        };
        let Ok(model) = gguf::Model::open(self.files.path(weight.file)) else {
            return;
        };
        let from_file = model.hyper().expert_used_count_max() as u32;
        for weight in &mut self.list {
            if let Usage::Experts { count, used, .. } = &mut weight.usage
                && *used == *count
                && (1..*count).contains(&from_file)
            {
                *used = from_file;
            }
        }
    }

    /// The weight that a tensor is, or is a view of.
    pub fn find(&self, tensor: Tensor<'_>) -> Option<u32> {
        let root = tensor.root();
        let &number = self.by_tensor.get(&root.as_ptr())?;
        // Another model may lie where one was freed.
        let weight = &self.list[number as usize];
        let is_there = root.data() == weight.original
            || match weight.fate {
                Fate::Pinned { address, .. } => {
                    root.data() == address + self.phase(number) as usize
                }
                _ => false,
            };
        let is_same = weight.bytes == root.nbytes() && weight.name.as_bytes() == root.name();
        (is_there && is_same).then_some(number)
    }

    /// Bytes of an aligned read before the weight.
    fn phase(&self, number: u32) -> u64 {
        self.list[number as usize].file_offset % self.files.alignment_bytes
    }

    /// The read that brings a weight to its place.
    pub fn planned(&self, number: u32, place: Place) -> Planned {
        self.planned_part(number, (0, self.list[number as usize].bytes), place)
    }

    /// The read that brings some bytes of it there: the first, and how many.
    pub fn planned_part(&self, number: u32, (first, bytes): (u64, u64), place: Place) -> Planned {
        let weight = &self.list[number as usize];
        let alignment = self.files.alignment_bytes;
        let start = weight.file_offset + first;
        let phase = start % alignment;
        Planned {
            weight: number,
            file: weight.file,
            offset: start - phase,
            bytes: (phase + bytes).next_multiple_of(alignment),
            phase: phase as u32,
            needed: phase + bytes,
            place,
        }
    }

    /// Points every tensor at its mapping again.
    pub fn restore(&mut self) {
        for weight in &mut self.list {
            point(weight.tensor, weight.original);
            weight.fate = Fate::Mapped;
        }
    }
}

/// Points a tensor at other data.
pub fn point(tensor: *mut RawTensor, address: usize) {
    // SAFETY: a tensor of the model or graph that is being computed; only the thread
    // that computes calls this, and what it points to holds the same bytes.
    unsafe { (&raw mut (*tensor).data).write(address as *mut std::ffi::c_void) };
}

/// The nodes that are executed, fused ones included, in order.
pub fn step_nodes<'a, 'g>(
    nodes: &'a [Tensor<'g>],
    steps: &'a [StepNodes],
) -> impl Iterator<Item = Tensor<'g>> + use<'a, 'g> {
    steps.iter().flat_map(move |&step| nodes_of(nodes, step))
}

pub fn nodes_of<'g>(
    nodes: &[Tensor<'g>],
    step: StepNodes,
) -> impl Iterator<Item = Tensor<'g>> + use<'g> {
    let (first, second) = match step {
        StepNodes::One(node) => (nodes[node], None),
        StepNodes::RmsNormMul { norm } => (nodes[norm], Some(nodes[norm + 1])),
    };
    std::iter::once(first).chain(second)
}

pub fn usage_of(op: Op, slot: u8, node: Tensor<'_>, src: Tensor<'_>) -> Usage {
    match (op, slot) {
        (Op::GET_ROWS, 0) => Usage::Rows,
        (Op::MUL_MAT_ID, 0) if src.view_src().is_none() && src.extent(3) == 1 => Usage::Experts {
            count: src.extent(2) as u32,
            used: node.src(2).map_or(1, |ids| ids.extent(0)) as u32,
            slice_bytes: src.nb()[2],
        },
        _ => Usage::Whole,
    }
}

/// Bytes of a row of a matrix that a product reads row by row.
fn row_bytes_of(op: Op, slot: u8, src: Tensor<'_>) -> Option<u64> {
    let is_matrix = src.view_src().is_none()
        && (src.extent(2), src.extent(3)) == (1, 1)
        && src.nb()[1] * src.extent(1) == src.nbytes();
    (op == Op::MUL_MAT && slot == 0 && is_matrix).then(|| src.nb()[1])
}

fn both(one: Usage, other: Usage) -> Usage {
    match (one, other) {
        (Usage::Rows, usage) | (usage, Usage::Rows) => usage,
        (one, other) if one == other => one,
        _ => Usage::Whole,
    }
}

pub fn mapping_of<'m>(maps: &'m [Mapping], tensor: Tensor<'_>) -> Option<&'m Mapping> {
    let (start, bytes) = (tensor.data(), tensor.nbytes() as usize);
    let end = start.checked_add(bytes)?;
    let inside = |m: &&Mapping| m.start <= start && end <= m.end;
    maps.iter().find(inside).filter(|_| bytes > 0)
}
