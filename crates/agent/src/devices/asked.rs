//! What a backend asks about the nodes of a graph while it launches them.
//!
//! Backends for GPUs call `ggml_is_empty(node)` for a node right before they launch it, and
//! not for nodes that they have fused into the one before. They may walk over the graph
//! several times (to see whether it can be recorded as a graph of the device's own); the last
//! walk is the one that launches.

use std::{
    cell::{Cell, UnsafeCell},
    ffi::c_void,
};

use ggml::{Graph, RawGraph, RawTensor};

use crate::cuda;

/// Nodes that are noted at most.
const MOST: usize = 1 << 16;

struct Asked {
    /// While a graph is launched.
    is_on: Cell<bool>,
    first: Cell<*const RawTensor>,
    length: Cell<usize>,
    list: UnsafeCell<*mut *const RawTensor>,
}

thread_local! {
    static ASKED: Asked = const {
        Asked {
            is_on: Cell::new(false),
            first: Cell::new(std::ptr::null()),
            length: Cell::new(0),
            list: UnsafeCell::new(std::ptr::null_mut()),
        }
    };
}

/// `ggml_is_empty(tensor)`. The extents have not moved in the struct since 2023, so the answer
/// needs nobody else.
///
/// # Safety
/// A live tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ggml_is_empty(tensor: *const c_void) -> bool {
    let tensor: *const RawTensor = tensor.cast();
    ASKED.with(|asked| {
        if asked.is_on.get() {
            asked.note(tensor);
        }
    });
    // SAFETY: as promised by the caller.
    unsafe { (&raw const (*tensor).ne).read() }.contains(&0)
}

impl Asked {
    #[cold]
    fn note(&self, tensor: *const RawTensor) {
        if std::ptr::eq(tensor, self.first.get()) {
            self.length.set(0);
            cuda::walk_begins();
        }
        let at = self.length.get();
        if at < MOST {
            // SAFETY: the list has so many places, and is this thread's own.
            unsafe { (*self.list.get()).add(at).write(tensor) };
            self.length.set(at + 1);
            cuda::asked(at, tensor);
        }
    }
}

/// A graph is about to be launched.
///
/// # Safety
/// A live graph.
pub unsafe fn begin(graph: *const RawGraph) {
    // SAFETY: these fields never moved (caller).
    let first = unsafe {
        let (nodes, count) = ((*graph).nodes, (*graph).n_nodes);
        match nodes.is_null() || count <= 0 {
            true => std::ptr::null_mut(),
            false => nodes.read(),
        }
    };
    ASKED.with(|asked| {
        // SAFETY: this thread's own.
        let list = unsafe { &mut *asked.list.get() };
        if list.is_null() {
            // Kept for good: threads that compute are few.
            *list = Box::leak(vec![std::ptr::null(); MOST].into_boxed_slice()).as_mut_ptr();
        }
        asked.first.set(first);
        asked.length.set(0);
        asked.is_on.set(true);
    });
}

pub fn end() {
    ASKED.with(|asked| asked.is_on.set(false));
}

/// How far ahead of the last node the next one is looked for: more than any backend fuses.
const AHEAD: usize = 128;

/// For each question of the last walk the position of the node that it was about; for a
/// question about something else, that of the node before.
pub fn positions(graph: Graph<'_>) -> Vec<Option<u32>> {
    ASKED.with(|asked| {
        // SAFETY: this thread's own; so many were written.
        let list = unsafe { std::slice::from_raw_parts(*asked.list.get(), asked.length.get()) };
        let nodes: Vec<*const RawTensor> = graph.nodes().map(|node| node.as_ptr()).collect();
        in_order(&nodes, list)
    })
}

/// Nodes are asked about in their order.
fn in_order<T: Copy + PartialEq>(nodes: &[T], questions: &[T]) -> Vec<Option<u32>> {
    let (mut from, mut last) = (0, None);
    let about = questions.iter().map(|question| {
        let near = &nodes[from..nodes.len().min(from + AHEAD)];
        if let Some(at) = near.iter().position(|node| node == question) {
            last = Some((from + at) as u32);
            from += at;
        }
        last
    });
    about.collect()
}

/// The nodes that were asked about, once each; `None` if the backend does not ask.
pub fn nodes(graph: Graph<'_>) -> Option<Vec<u32>> {
    let mut nodes: Vec<u32> = positions(graph).into_iter().flatten().collect();
    nodes.dedup();
    (!nodes.is_empty()).then_some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_other_tensors_belong_to_the_node_before() {
        let nodes = [10, 11, 12, 13, 14];
        let about = in_order(&nodes, &[10, 99, 12, 12, 14]);
        assert_eq!(about, [Some(0), Some(0), Some(2), Some(2), Some(4)]);
        assert_eq!(in_order(&nodes, &[99, 11]), [None, Some(1)]);
    }
}
