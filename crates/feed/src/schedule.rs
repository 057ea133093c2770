//! A graph as a schedule: which step needs which weight, and where experts are chosen.
//!
//! Ticks come after each step, before its barrier. *Point* `p` is the tick of step
//! `p - 1` (point 0 is before the graph): the steps up to `p - 2` are over on all
//! threads, and step `p` has not begun on any. So what step `p` needs has to be there
//! at point `p`, and what step `p - 2` needed is free.

use std::collections::HashMap;
use std::sync::Arc;

use capture::hook::Split;
use ggml::{
    Direction, Graph, NodeAccess, Op, OpNumbers, RawTensor, Slot, StepNodes, Tensor, TickRules,
    executed_steps_under, step_accesses,
};

use crate::foresight::Router;
use crate::pieces::{Piece, Splitting};
use crate::ranks::Rank;
use crate::weights::{Weights, nodes_of};

/// A weight that a step needs.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub step: u32,
    /// Which source of the node it is.
    pub operand: u8,
    pub weight: u32,
    /// Tensors to be pointed at it, as a range of `Schedule::pointers`.
    pub pointers: (u32, u32),
    /// Of a weight that comes in pieces: the first byte of this one, and how many.
    pub part: Option<(u64, u64)>,
}

/// A tensor that lies `offset` bytes inside of a weight, and what it points to when
/// nobody feeds.
#[derive(Clone, Copy, Debug)]
pub struct Pointer {
    pub tensor: *mut RawTensor,
    pub offset: u64,
}

/// A layer's choice of experts, and the nodes that follow it.
#[derive(Clone, Debug)]
pub struct Routing {
    /// The tensor with the ids.
    pub ids: *mut RawTensor,
    /// The first point at which they are there.
    pub known_at: u32,
    pub nodes: Vec<RoutedNode>,
    /// What makes the choice, where that was found.
    pub router: Option<Router>,
}

#[derive(Clone, Copy, Debug)]
pub struct RoutedNode {
    pub node: *mut RawTensor,
    pub step: u32,
    pub weight: Option<u32>,
    /// Which of a token's experts it is for, if it is not for all (`ranks.rs`).
    pub rank: Option<u32>,
}

impl Routing {
    /// A node was replaced by one for each expert.
    pub fn in_ranks(&mut self, node: *mut RawTensor, ranks: &[*mut RawTensor]) {
        let Some(at) = self.nodes.iter().position(|routed| routed.node == node) else {
            return;
        };
        let whole = self.nodes[at];
        let each = (0u32..).zip(ranks).map(|(rank, &node)| RoutedNode {
            node,
            rank: Some(rank),
            ..whole
        });
        self.nodes.splice(at..=at, each);
    }
}

/// What an evaluation of a graph does.
#[derive(Default)]
pub struct Schedule {
    key: Key,
    /// By step.
    pub needs: Vec<Need>,
    pub pointers: Vec<Pointer>,
    pub routings: Vec<Routing>,
    /// Most tokens that one choice of experts is for.
    pub tokens: u64,
    /// Most experts of one token.
    pub used: u64,
    /// Ticks that the graph makes.
    pub steps: u32,
    /// Products in pieces (`pieces.rs`), and the list of nodes that they stand in. Steps are
    /// counted by it.
    pub pieces: Vec<Piece>,
    pub ranks: Vec<Rank>,
    pub split: Option<Arc<Split>>,
}

// SAFETY: the pointers are of the graph that is being computed, by one thread.
unsafe impl Send for Schedule {}

/// What says that a graph is the one that was seen before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    uid: u64,
    nodes: usize,
    first: usize,
    last: usize,
}

impl Key {
    fn of(graph: Graph<'_>) -> Key {
        let mut nodes = graph.nodes();
        let address = |node: Option<Tensor<'_>>| node.map_or(0, |node| node.as_ptr() as usize);
        Key {
            uid: graph.uid(),
            nodes: nodes.len(),
            first: address(nodes.next()),
            last: address(nodes.last()),
        }
    }
}

/// Nodes and steps of a graph.
pub fn walk<'g>(
    graph: Graph<'g>,
    ops: &OpNumbers,
    rules: TickRules,
) -> (Vec<Tensor<'g>>, Vec<StepNodes>) {
    let nodes: Vec<Tensor<'g>> = graph.nodes().collect();
    let use_count = |tensor| graph.use_count(tensor);
    let steps = executed_steps_under(rules, &nodes, |node| ops.op_of(node), use_count);
    (nodes, steps)
}

impl Schedule {
    pub fn is_of(&self, graph: Graph<'_>) -> bool {
        self.key.uid != 0 && self.key == Key::of(graph)
    }

    /// The graph's number; 0 if it has none.
    pub fn uid(&self) -> u64 {
        self.key.uid
    }

    /// Some steps are computed in pieces, if that is said.
    pub fn build(
        graph: Graph<'_>,
        ops: &OpNumbers,
        rules: TickRules,
        weights: Option<&Weights>,
        splitting: Option<Splitting>,
    ) -> Schedule {
        let (nodes, steps) = walk(graph, ops, rules);
        let mut schedule = Schedule {
            key: Key::of(graph),
            steps: steps.len() as u32,
            ..Schedule::default()
        };
        let mut made_at: HashMap<*const RawTensor, u32> = HashMap::new();
        let mut routing_of: HashMap<*const RawTensor, usize> = HashMap::new();
        let op_of = |node| ops.op_of(node);
        let mut accesses = Vec::new();
        for (number, &step) in steps.iter().enumerate() {
            let number = number as u32;
            for node in nodes_of(&nodes, step) {
                made_at.insert(node.root().as_ptr(), number);
                if !node.is_empty()
                    && op_of(node) == Op::MUL_MAT_ID
                    && let Some(ids) = node.src(2)
                {
                    let router = || Router::find(ids, node, ops, weights?);
                    schedule.route(
                        number,
                        (node, ids),
                        weights,
                        &made_at,
                        &mut routing_of,
                        router,
                    );
                }
            }
            let Some(weights) = weights else {
                continue;
            };
            accesses.clear();
            // An op that the table does not know is taken to read all of everything.
            let _ = step_accesses(step, &nodes, op_of, &mut accesses);
            let op = op_of(nodes[step.result()]);
            for access in &accesses {
                schedule.need(number, op, access, weights);
            }
        }
        if let (Some(weights), Some(splitting)) = (weights, splitting) {
            schedule.split(&nodes, &steps, weights, splitting);
        }
        schedule
    }

    fn need(&mut self, step: u32, op: Op, access: &NodeAccess<'_>, weights: &Weights) {
        let Slot::Src(operand) = access.slot else {
            return;
        };
        // Rows that are looked up are few, and come from the file.
        let is_looked_up = op == Op::GET_ROWS && operand == 0;
        if access.direction != Direction::Read || is_looked_up {
            return;
        }
        let source = access.tensor;
        let Some(weight) = weights.find(source) else {
            return;
        };
        let tensor = source.as_ptr().cast_mut();
        let of_step = self.needs.iter().rev().take_while(|need| need.step == step);
        let mut known = of_step.map(|need| self.pointers[need.pointers.0 as usize].tensor);
        if known.any(|known| known == tensor) {
            return;
        }
        let at = self.pointers.len() as u32;
        self.pointers.push(Pointer {
            tensor,
            // Not by address: a view may point where its weight was before.
            offset: source.declared_offset_in_root(),
        });
        self.needs.push(Need {
            step,
            operand,
            weight,
            pointers: (at, at + 1),
            part: None,
        });
    }

    fn route(
        &mut self,
        step: u32,
        (node, ids): (Tensor<'_>, Tensor<'_>),
        weights: Option<&Weights>,
        made_at: &HashMap<*const RawTensor, u32>,
        routing_of: &mut HashMap<*const RawTensor, usize>,
        router: impl Fn() -> Option<Router>,
    ) {
        let weight = node.src(0).and_then(|src| weights?.find(src));
        let &mut at = routing_of.entry(ids.as_ptr()).or_insert_with(|| {
            // Complete when the step after the one that makes them ticks.
            let known_at = made_at.get(&ids.root().as_ptr()).map_or(0, |made| made + 2);
            self.routings.push(Routing {
                ids: ids.as_ptr().cast_mut(),
                known_at,
                nodes: Vec::new(),
                router: router(),
            });
            self.routings.len() - 1
        });
        self.tokens = self.tokens.max(ids.extent(1));
        self.used = self.used.max(ids.extent(0));
        self.routings[at].nodes.push(RoutedNode {
            node: node.as_ptr().cast_mut(),
            step,
            weight,
            rank: None,
        });
    }
}
