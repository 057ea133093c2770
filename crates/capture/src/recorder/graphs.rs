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
    /// Whatever its number: [`fingerprint`] of a graph on a device, [`identity`] of the
    /// processor's, 0 where ggml gives no number.
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
        let count = self.kept.len();
        if !self.has_room(&graph) && count > MIN_GRAPHS_KEPT {
            self.drop_old(count - MIN_GRAPHS_KEPT + 1);
        }
        if self.has_room(&graph) {
            self.kept.push(graph);
            return self.kept.len() - 1;
        }
        let index = self.next_victim;
        self.next_victim = (index + 1) % MIN_GRAPHS_KEPT;
        self.kept[index] = graph;
        index
    }

    fn has_room(&self, graph: &KeptGraph) -> bool {
        let count = self.kept.len();
        count < MIN_GRAPHS_KEPT
            || count < MAX_GRAPHS_KEPT && self.steps() + graph.known.steps <= MAX_STEPS_KEPT
    }

    fn steps(&self) -> usize {
        self.kept.iter().map(|kept| kept.known.steps).sum()
    }

    /// Makes room by leaving so many of the oldest out. Those that are still in use come again; but
    /// for one that a device has recorded as a graph of its own: it goes on launching that, and
    /// its kernels were seen only once. So these stay, while they are not most of all.
    fn drop_old(&mut self, old: usize) {
        let mut at = 0;
        self.kept.retain(|kept| {
            at += 1;
            at > old || kept.kernels.is_some()
        });
        if self.kept.len() > MAX_GRAPHS_KEPT / 2 || self.steps() > MAX_STEPS_KEPT / 2 {
            let old = self.kept.len().saturating_sub(MIN_GRAPHS_KEPT - 1);
            self.kept.drain(..old);
        }
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

/// The same, and all else that a graph of the processor's is made of: ggml gives a graph a new
/// number each time it is divided among backends, and mostly it is what it was. Not if it is
/// another context's: its model may lie where one lay that is gone. Slower than
/// [`fingerprint`], and asked only where the number is new.
pub fn identity(graph: Graph<'_>, context: u64) -> u64 {
    let mut hash = fingerprint(graph);
    let mut add =
        |value: u64| hash = (hash.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    add(context);
    for node in graph.nodes() {
        add(u64::from(node.flags().cast_unsigned()));
        add(u64::from(graph.use_count(node).cast_unsigned()));
        let params = node.op_params();
        params
            .into_iter()
            .for_each(|word| add(u64::from(word.cast_unsigned())));
        for tensor in node.srcs().map(|(_, source)| source).chain([node]) {
            add(u64::from(tensor.ty()));
            add(tensor.buffer() as u64);
            add(tensor.view_src().map_or(0, |of| of.as_ptr() as u64));
            add(tensor.view_offs());
            tensor.nb().into_iter().for_each(&mut add);
            tensor.name().iter().for_each(|&byte| add(byte.into()));
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(number: u64, steps: usize, has_kernels: bool) -> KeptGraph {
        KeptGraph {
            key: GraphKey::Uid(number),
            known: KnownGraph {
                template: 0,
                steps,
                first_nodes: Arc::new([]),
                begin_tensors: Vec::new(),
                late: Vec::new(),
                step_words: 0,
                begin: Vec::new(),
                tokens: None,
                positions: None,
                outputs: None,
                at_steps: Vec::new(),
                has_capture: Vec::new(),
                accesses: 0,
                unknown_ops: 0,
            },
            fingerprint: number,
            launches: None,
            kernels: has_kernels.then(|| Arc::from([])),
        }
    }

    fn is_kept(graphs: &Graphs, number: u64) -> bool {
        graphs
            .find(0, |kept| kept.key == GraphKey::Uid(number))
            .is_some()
    }

    #[test]
    fn a_graph_that_a_device_launches_again_outlives_those_of_the_processor() {
        let mut graphs = Graphs::default();
        for number in 0..10_000 {
            let at = graphs.keep(graph(number, 3, number == 1));
            assert!(graphs[at].key == GraphKey::Uid(number));
            assert!(graphs.kept.len() <= MAX_GRAPHS_KEPT);
        }
        assert!(is_kept(&graphs, 1) && is_kept(&graphs, 9_999));
        assert!(!is_kept(&graphs, 2));
    }

    #[test]
    fn graphs_of_devices_make_room_for_each_other() {
        let mut graphs = Graphs::default();
        for (number, steps) in (0..5_000).zip([1, 1_000].into_iter().cycle()) {
            graphs.keep(graph(number, steps, true));
            assert!(graphs.kept.len() <= MAX_GRAPHS_KEPT);
            assert!(graphs.steps() <= MAX_STEPS_KEPT);
            assert!(number < 15 || is_kept(&graphs, number - 14));
        }
    }
}
