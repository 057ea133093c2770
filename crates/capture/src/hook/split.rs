//! A graph some of whose steps are computed in pieces: other nodes in its list, and ticks
//! that are counted by both lists.

use std::{ffi::c_void, sync::Arc};

use ggml::{Graph, RawGraph, RawTensor};

/// Nodes to be computed in place of a graph's own.
#[derive(Debug, Default)]
pub struct Split {
    pub nodes: Vec<*mut RawTensor>,
    /// Steps that are made of several pieces, ascending, and of how many: as many nodes in a
    /// row, which leave what the step would.
    pub pieces: Vec<(u32, u32)>,
}

// SAFETY: pointers to tensors that only the thread that computes follows.
unsafe impl Send for Split {}
// SAFETY: as above.
unsafe impl Sync for Split {}

impl Split {
    /// The step of the program's graph that a step of this one belongs to.
    pub fn step_of_graph(&self, step: u32) -> u32 {
        let mut more = 0;
        for &(split, pieces) in &self.pieces {
            if step < split + more {
                break;
            }
            if step < split + more + pieces {
                return split;
            }
            more += pieces - 1;
        }
        step - more
    }
}

/// Whether the list of nodes is where our layout has it.
///
/// # Safety
/// A live graph of any layout, and its view.
pub(super) unsafe fn is_laid_out_as(graph: *const c_void, view: Graph<'_>) -> bool {
    let graph: *const RawGraph = graph.cast();
    // SAFETY: no graph is shorter than up to here (caller).
    let nodes = unsafe {
        (
            (&raw const (*graph).n_nodes).read(),
            (&raw const (*graph).nodes).read(),
        )
    };
    // SAFETY: the view is a live graph in our layout.
    nodes == unsafe { ((*view.as_ptr()).n_nodes, (*view.as_ptr()).nodes) }
}

/// Where a computation in pieces is.
pub(super) struct Pieces {
    split: Arc<Split>,
    /// Whose split it is.
    pub observer: usize,
    /// Pieces and whole steps that were executed.
    pub ticks: u32,
    /// The next entry of `Split::pieces`, and how many of its pieces are done.
    at: (usize, u32),
}

impl Pieces {
    pub fn new(split: Arc<Split>, observer: usize) -> Pieces {
        Pieces {
            split,
            observer,
            ticks: 0,
            at: (0, 0),
        }
    }

    /// One more was executed, of the graph's step `step`; whether that is complete.
    pub fn tick(&mut self, step: u32) -> bool {
        self.ticks += 1;
        match self.split.pieces.get(self.at.0) {
            Some(&(split, pieces)) if split == step => {
                self.at.1 += 1;
                let is_complete = self.at.1 == pieces;
                if is_complete {
                    self.at = (self.at.0 + 1, 0);
                }
                is_complete
            }
            _ => true,
        }
    }
}

/// The list of nodes that a graph has while it is computed in pieces; its own again after.
pub(super) struct Nodes {
    graph: *mut RawGraph,
    own: Option<(i32, *mut *mut RawTensor)>,
}

impl Nodes {
    /// # Safety
    /// The graph is live, laid out as ours where there is a split, and used by this thread
    /// only until the computation begins.
    pub unsafe fn swap(graph: *mut RawGraph, split: Option<&Pieces>) -> Nodes {
        let own = split.map(|pieces| {
            let nodes = &pieces.split.nodes;
            // SAFETY: fields of a live graph (caller).
            unsafe {
                let (count, list) = (&raw mut (*graph).n_nodes, &raw mut (*graph).nodes);
                let own = (count.read(), list.read());
                count.write(nodes.len() as i32);
                list.write(nodes.as_ptr().cast_mut());
                own
            }
        });
        Nodes { graph, own }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some((count, list)) = self.own {
            // SAFETY: the graph of `swap`, which was computed and is still there.
            unsafe {
                (&raw mut (*self.graph).n_nodes).write(count);
                (&raw mut (*self.graph).nodes).write(list);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_pieces_are_counted_apart() {
        let split = Arc::new(Split {
            nodes: Vec::new(),
            pieces: vec![(1, 3), (2, 2), (4, 2)],
        });
        let of_graph: Vec<u32> = (0..10).map(|step| split.step_of_graph(step)).collect();
        assert_eq!(of_graph, [0, 1, 1, 1, 2, 2, 3, 4, 4, 5]);
        let mut pieces = Pieces::new(split.clone(), 0);
        let mut step = 0;
        for (number, of_graph) in of_graph.into_iter().enumerate() {
            assert_eq!(step, of_graph, "{number}");
            step += u32::from(pieces.tick(step));
        }
        assert_eq!((step, pieces.ticks), (6, 10));
    }
}
