//! The graphs that a recorder knows, so that one that comes again costs a search.

use std::{
    ops::{Index, IndexMut},
    sync::Arc,
};

use ggml::Graph;

use super::device::Launch;
use crate::known::KnownGraph;

/// Graphs that are kept, however large. llama.cpp keeps one; a server with several
/// contexts, or prompt and decode in turn, a few.
const MIN_GRAPHS_KEPT: usize = 16;
/// Where a device computes, each part of a graph is one: with experts on the processor's side,
/// two for each layer. So many are kept if they have no more than so many steps together.
const MAX_GRAPHS_KEPT: usize = 512;
const MAX_STEPS_KEPT: usize = 32 << 10;

/// A graph that is known.
pub struct KeptGraph {
    pub key: GraphKey,
    pub known: KnownGraph,
    /// Of a graph on a device, whatever its number.
    pub fingerprint: u64,
    /// Its kernels on a device, once they are known, and their number in the log.
    pub launches: Option<u32>,
    pub kernels: Option<Arc<[Launch]>>,
}

/// Tells graphs apart: by ggml's own number where it gives one, otherwise by a
/// fingerprint of everything that what is known depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum GraphKey {
    Uid(u64),
    Fingerprint(u64),
    /// By the number of the device in the log, too; 0 where ggml gives no number.
    OnDevice {
        device: u32,
        uid: u64,
    },
}

/// The known graphs of one thread, each at a place of its own.
#[derive(Default)]
pub struct Graphs {
    kept: Vec<KeptGraph>,
    next_victim: usize,
}

impl Graphs {
    pub fn get(&self, index: usize) -> Option<&KeptGraph> {
        self.kept.get(index)
    }

    /// The place of the one for which this holds. The parts of a graph come in turns, so it is
    /// mostly the one behind the last.
    pub fn find(&self, last: usize, is_it: impl Fn(&KeptGraph) -> bool) -> Option<usize> {
        let next = (last + 1).min(self.kept.len());
        (next..self.kept.len())
            .chain(0..next)
            .find(|&index| is_it(&self.kept[index]))
    }

    /// Keeps what is known of a graph; its place. Others may have another place then.
    pub fn keep(&mut self, graph: KeptGraph) -> usize {
        let steps: usize = self.kept.iter().map(|kept| kept.known.steps).sum();
        let count = self.kept.len();
        let has_room = count < MIN_GRAPHS_KEPT
            || count < MAX_GRAPHS_KEPT && steps + graph.known.steps <= MAX_STEPS_KEPT;
        if !has_room && count > MIN_GRAPHS_KEPT {
            // Those of them that are still in use come again.
            self.kept.drain(..=count - MIN_GRAPHS_KEPT);
        }
        if has_room || self.kept.len() < MIN_GRAPHS_KEPT {
            self.kept.push(graph);
            return self.kept.len() - 1;
        }
        let index = self.next_victim;
        self.next_victim = (index + 1) % MIN_GRAPHS_KEPT;
        self.kept[index] = graph;
        index
    }
}

impl Index<usize> for Graphs {
    type Output = KeptGraph;

    fn index(&self, index: usize) -> &KeptGraph {
        &self.kept[index]
    }
}

impl IndexMut<usize> for Graphs {
    fn index_mut(&mut self, index: usize) -> &mut KeptGraph {
        &mut self.kept[index]
    }
}

/// Of everything that what is known depends on: the identity, shape, place and sources
/// of each node. Pointers alone do not suffice, graph memory is recycled.
pub fn fingerprint(graph: Graph<'_>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add =
        |value: u64| hash = (hash.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    for node in graph.nodes() {
        add(node.as_ptr() as u64);
        add(node.data() as u64);
        add(u64::from(node.op()));
        node.extents().into_iter().for_each(&mut add);
        for (_, source) in node.srcs() {
            add(source.as_ptr() as u64);
            add(source.data() as u64);
            source.extents().into_iter().for_each(&mut add);
        }
    }
    hash
}
