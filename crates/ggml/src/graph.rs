//! `ggml_cgraph` as the linked library lays it out, and how often it says each
//! tensor is used.
//!
//! Use counts decide fusion ([`crate::steps`]). [`Graph::use_count`] looks them
//! up as ggml does; [`UseCounts`] counts them again where only the node list is
//! known (the evaluation callback hands out nodes, not the graph).

use std::collections::HashMap;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::tensor::{RawTensor, Tensor};

/// `struct ggml_hash_set`: open addressing with linear probing.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct RawHashSet {
    pub size: usize,
    /// One bit a slot, 32 to a word.
    pub used: *mut u32,
    pub keys: *mut *mut RawTensor,
}

/// `struct ggml_cgraph`, 96 bytes on 64-bit targets.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct RawGraph {
    /// Capacity; 0 in the views that the scheduler makes of a graph.
    pub size: i32,
    pub n_nodes: i32,
    pub n_leafs: i32,
    pub nodes: *mut *mut RawTensor,
    pub grads: *mut *mut RawTensor,
    pub grad_accs: *mut *mut RawTensor,
    /// Null in views.
    pub leafs: *mut *mut RawTensor,
    /// By slot of the hash set.
    pub use_counts: *mut i32,
    pub visited_hash_set: RawHashSet,
    pub order: u32,
    /// 0 in views and where not set.
    pub uid: u64,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(std::mem::size_of::<RawGraph>() == 96);
    assert!(std::mem::offset_of!(RawGraph, nodes) == 16);
    assert!(std::mem::offset_of!(RawGraph, use_counts) == 48);
    assert!(std::mem::offset_of!(RawGraph, uid) == 88);
};

/// A live graph.
#[derive(Clone, Copy, Debug)]
pub struct Graph<'g> {
    raw: NonNull<RawGraph>,
    lifetime: PhantomData<&'g RawGraph>,
}

impl<'g> Graph<'g> {
    /// `None` for a null pointer.
    ///
    /// # Safety
    /// `pointer` is null or points to a `ggml_cgraph` of the layout of
    /// [`RawGraph`], which with its arrays stays allocated and unchanged for
    /// `'g`; its nodes and leafs satisfy the contract of [`Tensor::from_ptr`].
    pub unsafe fn from_ptr(pointer: *const c_void) -> Option<Graph<'g>> {
        NonNull::new(pointer.cast_mut().cast()).map(|raw| Graph {
            raw,
            lifetime: PhantomData,
        })
    }

    pub fn as_ptr(self) -> *const RawGraph {
        self.raw.as_ptr()
    }

    /// In execution order.
    pub fn nodes(self) -> impl ExactSizeIterator<Item = Tensor<'g>> {
        let raw = self.raw();
        tensors(raw.nodes, raw.n_nodes)
    }

    /// None for a view of a graph.
    pub fn leafs(self) -> impl ExactSizeIterator<Item = Tensor<'g>> {
        let raw = self.raw();
        tensors(raw.leafs, raw.n_leafs)
    }

    /// Two graphs of the same non-zero number are the same graph.
    pub fn uid(self) -> u64 {
        self.raw().uid
    }

    /// As `ggml_node_get_use_count`: how many sources of the whole graph (not
    /// only of this view of it) are this tensor; 0 for a tensor not in it.
    pub fn use_count(self, tensor: Tensor<'g>) -> i32 {
        let raw = self.raw();
        match hash_slot(&raw.visited_hash_set, tensor.as_ptr()) {
            // SAFETY: `use_counts` has an entry for each slot of the hash set.
            Some(slot) if !raw.use_counts.is_null() => unsafe { raw.use_counts.add(slot).read() },
            _ => 0,
        }
    }

    fn raw(self) -> &'g RawGraph {
        // SAFETY: live and unchanged for `'g` (contract of `from_ptr`).
        unsafe { &*self.raw.as_ptr() }
    }
}

/// Use counts by counting the sources of a list of nodes. Exact when the list is
/// the whole graph; a consumer outside the list is not seen.
#[derive(Clone, Debug, Default)]
pub struct UseCounts {
    counts: HashMap<*const RawTensor, i32>,
}

impl UseCounts {
    pub fn of_nodes(nodes: &[Tensor<'_>]) -> UseCounts {
        let mut counts = HashMap::with_capacity(nodes.len());
        for node in nodes {
            for (_, src) in node.srcs() {
                *counts.entry(src.as_ptr()).or_insert(0) += 1;
            }
        }
        UseCounts { counts }
    }

    pub fn get(&self, tensor: Tensor<'_>) -> i32 {
        self.counts.get(&tensor.as_ptr()).copied().unwrap_or(0)
    }
}

fn tensors<'g>(array: *mut *mut RawTensor, len: i32) -> impl ExactSizeIterator<Item = Tensor<'g>> {
    let len = if array.is_null() {
        0
    } else {
        usize::try_from(len).unwrap_or(0)
    };
    (0..len).map(move |i| {
        // SAFETY: i is inside the array, whose entries are live tensors (contract
        // of `Graph::from_ptr`).
        let tensor = unsafe { Tensor::from_ptr(array.add(i).read()) };
        tensor.expect("ggml puts no null pointers into the nodes and leafs of a graph")
    })
}

/// `ggml_hash_find`, for keys that are present.
fn hash_slot(set: &RawHashSet, key: *const RawTensor) -> Option<usize> {
    if set.size == 0 || set.used.is_null() || set.keys.is_null() {
        return None;
    }
    // Tensors are 16-byte aligned, so ggml drops the four low bits.
    let start = (key as usize >> 4) % set.size;
    let mut slot = start;
    loop {
        // SAFETY: slot < size, and the bit set has a bit for each slot.
        let word = unsafe { set.used.add(slot / 32).read() };
        if word & (1 << (slot % 32)) == 0 {
            return None;
        }
        // SAFETY: slot < size, and a key whose bit is set is initialised.
        if std::ptr::eq(unsafe { set.keys.add(slot).read() }, key) {
            return Some(slot);
        }
        slot = (slot + 1) % set.size;
        if slot == start {
            return None;
        }
    }
}
