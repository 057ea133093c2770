//! Graphs of libraries that lay their structs out otherwise, translated into
//! ours before anything reads them.
//!
//! What changed since 2024 in what we read:
//!
//! | struct | until | difference |
//! |---|---|---|
//! | `ggml_type` | 2024-02-27 | integers have other numbers; [`TensorLayout::WithPerf`] |
//! | `ggml_tensor` | 2024-06-24 | three `perf_*` fields behind `src`; [`TensorLayout::WithPerf`] |
//! | `ggml_tensor` | 2024-11-17 | `grad` before `src`; [`TensorLayout::WithGrad`] |
//! | `ggml_cgraph` | 2026-04-16 | no `uid`; [`graph_without_uid`] |
//!
//! The first fields of `ggml_tensor` (to `flags`) and of `ggml_cgraph` (to
//! `nodes`) never moved. [`crate::check::identify`] tells the layouts apart.

use std::ffi::c_void;

use gguf::types::GgmlType;

use crate::graph::{RawGraph, RawHashSet};
use crate::tensor::{MAX_NAME_BYTES, MAX_SRC, RawTensor, Tensor};

/// A layout of `ggml_tensor` that we can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorLayout {
    /// [`RawTensor`].
    Today,
    /// 2024-06-24 to 2024-11-17: everything from `src` on is 8 bytes further, and
    /// there is no padding.
    WithGrad,
    /// Until 2024-06-24: as `WithGrad`, and what is behind `src` is 24 bytes
    /// further still.
    WithPerf {
        /// The number of I8, before I16 and I32. New types were put in front of
        /// them until 2024-02-27.
        first_integer: u32,
    },
}

/// Bytes of `grad`, and of `perf_runs`, `perf_cycles` and `perf_time_us`.
const GRAD_BYTES: usize = 8;
const PERF_BYTES: usize = 24;
/// I8, I16 and I32.
const INTEGERS: u32 = 3;

impl TensorLayout {
    pub fn bytes(self) -> usize {
        let today = std::mem::size_of::<RawTensor>();
        match self {
            TensorLayout::Today | TensorLayout::WithGrad => today,
            TensorLayout::WithPerf { .. } => today + GRAD_BYTES + PERF_BYTES,
        }
    }

    pub fn name_offset(self) -> usize {
        std::mem::offset_of!(RawTensor, name) + self.shift_behind_src()
    }

    /// By how much `src` is moved.
    fn shift_of_src(self) -> usize {
        match self {
            TensorLayout::Today => 0,
            TensorLayout::WithGrad | TensorLayout::WithPerf { .. } => GRAD_BYTES,
        }
    }

    /// By how much everything behind `src` is moved.
    fn shift_behind_src(self) -> usize {
        match self {
            TensorLayout::Today => 0,
            TensorLayout::WithGrad => GRAD_BYTES,
            TensorLayout::WithPerf { .. } => GRAD_BYTES + PERF_BYTES,
        }
    }

    /// Our number of a type that has this one in the library.
    fn ty(self, ty: u32) -> u32 {
        match self {
            TensorLayout::WithPerf { first_integer }
                if (first_integer..first_integer + INTEGERS).contains(&ty) =>
            {
                ty - first_integer + GgmlType::I8.as_u32()
            }
            _ => ty,
        }
    }
}

/// The graph's first node; `None` for an empty graph.
///
/// # Safety
/// `graph` is a live `ggml_cgraph` of any version.
pub unsafe fn first_node(graph: *const c_void) -> Option<*const c_void> {
    // SAFETY: nodes and their number come first in every version.
    let (count, nodes) = unsafe { nodes_of(graph) };
    // SAFETY: the list has `count` entries.
    (count > 0 && !nodes.is_null()).then(|| unsafe { nodes.read() })
}

/// The graph in our layout, for a library whose graphs have no `uid`. Such a
/// library does not fuse, so its use counts are not read.
///
/// # Safety
/// As [`first_node`].
pub unsafe fn graph_without_uid(graph: *const c_void) -> RawGraph {
    // SAFETY: as in `first_node`.
    let (count, nodes) = unsafe { nodes_of(graph) };
    plain_graph(count, nodes.cast_mut().cast())
}

/// Copies of the tensors of a graph, in our layout. Its memory is kept from one
/// graph to the next.
#[derive(Default)]
pub struct Mirror {
    copies: Vec<RawTensor>,
    originals: Vec<*const c_void>,
    nodes: Vec<*mut RawTensor>,
    /// Open addressing: index + 1 into `copies`, 0 where free.
    slots: Vec<u32>,
    /// Stands for tensors behind the copied ones, which nobody looks at.
    beyond: Beyond,
    graph: Option<RawGraph>,
}

// SAFETY: all pointers are to its own memory, or are not followed.
unsafe impl Send for Mirror {}

struct Beyond(Box<RawTensor>);

impl Default for Beyond {
    fn default() -> Self {
        Beyond(Box::new(RawTensor::ZERO))
    }
}

impl Mirror {
    /// Copies the nodes of `graph`, their sources, and what those are views of.
    ///
    /// # Safety
    /// `graph` is a live graph whose tensors have `layout`.
    pub unsafe fn translate(&mut self, graph: *const c_void, layout: TensorLayout) -> &RawGraph {
        // SAFETY: a live graph (caller).
        let (count, nodes) = unsafe { nodes_of(graph) };
        self.copies.clear();
        self.originals.clear();
        self.nodes.clear();
        // A node has two sources on average, and each may have its own root.
        let slots = (count * 8).next_power_of_two().max(64);
        self.slots.clear();
        self.slots.resize(slots, 0);
        for i in 0..count {
            // SAFETY: the list has `count` entries, which are live tensors.
            unsafe { self.add(nodes.add(i).read(), layout) };
        }
        // Of the nodes, which are the first `count` copies: their sources.
        let with_sources = self.copies.len();
        for i in 0..with_sources {
            for source in self.copies[i].src {
                // SAFETY: a source of a live node.
                unsafe { self.add(source.cast_const().cast(), layout) };
            }
        }
        let mut i = 0;
        while i < self.copies.len() {
            let viewed = self.copies[i].view_src;
            // SAFETY: what a live tensor is a view of.
            unsafe { self.add(viewed.cast_const().cast(), layout) };
            i += 1;
        }
        // Addresses of copies are final now.
        let first = self.copies.as_mut_ptr();
        for i in 0..self.copies.len() {
            let mut copy = self.copies[i].clone();
            for pointer in copy.src.iter_mut().chain([&mut copy.view_src]) {
                if !pointer.is_null() {
                    *pointer = match self.find(pointer.cast_const().cast()) {
                        // SAFETY: an index into `copies`.
                        Some(index) => unsafe { first.add(index) },
                        None => &raw mut *self.beyond.0,
                    };
                }
            }
            self.copies[i] = copy;
        }
        for i in 0..count {
            // SAFETY: as above.
            let node = unsafe { nodes.add(i).read() };
            let index = self.find(node).unwrap_or(0);
            // SAFETY: an index into `copies`, which has at least one entry here.
            self.nodes.push(unsafe { first.add(index) });
        }
        self.graph
            .insert(plain_graph(count, self.nodes.as_mut_ptr()))
    }

    /// Every copy with its original.
    pub fn tensors(&self) -> impl Iterator<Item = (*const c_void, Tensor<'_>)> {
        let copies = self.originals.iter().zip(&self.copies);
        // SAFETY: a copy points to other copies only.
        copies.filter_map(|(&original, copy)| Some((original, unsafe { Tensor::from_ptr(copy)? })))
    }

    unsafe fn add(&mut self, original: *const c_void, layout: TensorLayout) {
        if original.is_null() || self.find(original).is_some() {
            return;
        }
        // SAFETY: a live tensor of this layout (caller of `translate`).
        self.copies.push(unsafe { copy_of(original, layout) });
        self.originals.push(original);
        if self.copies.len() * 2 > self.slots.len() {
            self.grow();
        } else {
            self.place(self.copies.len() - 1);
        }
    }

    fn place(&mut self, index: usize) {
        let mask = self.slots.len() - 1;
        let mut slot = hash(self.originals[index]) & mask;
        while self.slots[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = index as u32 + 1;
    }

    fn grow(&mut self) {
        let slots = self.slots.len() * 2;
        self.slots.clear();
        self.slots.resize(slots, 0);
        (0..self.originals.len()).for_each(|index| self.place(index));
    }

    fn find(&self, original: *const c_void) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash(original) & mask;
        loop {
            let index = self.slots[slot].checked_sub(1)? as usize;
            if self.originals[index] == original {
                return Some(index);
            }
            slot = (slot + 1) & mask;
        }
    }
}

fn hash(pointer: *const c_void) -> usize {
    (pointer as usize >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

unsafe fn nodes_of(graph: *const c_void) -> (usize, *const *const c_void) {
    let graph = graph.cast::<RawGraph>();
    // SAFETY: both fields lie at the same place in every version (caller).
    let (count, nodes) = unsafe {
        (
            (&raw const (*graph).n_nodes).read(),
            (&raw const (*graph).nodes).read(),
        )
    };
    (usize::try_from(count).unwrap_or(0), nodes.cast())
}

fn plain_graph(count: usize, nodes: *mut *mut RawTensor) -> RawGraph {
    RawGraph {
        size: 0,
        n_nodes: i32::try_from(count).unwrap_or(0),
        n_leafs: 0,
        nodes,
        grads: std::ptr::null_mut(),
        grad_accs: std::ptr::null_mut(),
        leafs: std::ptr::null_mut(),
        use_counts: std::ptr::null_mut(),
        visited_hash_set: RawHashSet {
            size: 0,
            used: std::ptr::null_mut(),
            keys: std::ptr::null_mut(),
        },
        order: 0,
        uid: 0,
    }
}

/// Still points to originals.
unsafe fn copy_of(original: *const c_void, layout: TensorLayout) -> RawTensor {
    let raw = original.cast::<RawTensor>();
    // SAFETY: what is in front of `src` lies where it does in our layout.
    let mut copy = unsafe {
        RawTensor {
            ty: layout.ty((&raw const (*raw).ty).read()),
            buffer: (&raw const (*raw).buffer).read(),
            ne: (&raw const (*raw).ne).read(),
            nb: (&raw const (*raw).nb).read(),
            op: (&raw const (*raw).op).read(),
            op_params: (&raw const (*raw).op_params).read(),
            flags: (&raw const (*raw).flags).read(),
            ..RawTensor::ZERO
        }
    };
    let moved_src = raw.wrapping_byte_add(layout.shift_of_src());
    let moved = raw.wrapping_byte_add(layout.shift_behind_src());
    // SAFETY: the rest lies so many bytes further; padding and extra, which may
    // end behind the struct then, are not read.
    unsafe {
        copy.src = (&raw const (*moved_src).src)
            .cast::<[*mut RawTensor; MAX_SRC]>()
            .read();
        copy.view_src = (&raw const (*moved).view_src).read();
        copy.view_offs = (&raw const (*moved).view_offs).read();
        copy.data = (&raw const (*moved).data).read();
        copy.name = (&raw const (*moved).name)
            .cast::<[u8; MAX_NAME_BYTES]>()
            .read();
    }
    copy
}
