//! Which nodes of a graph a device executes as one, and what each such step touches.
//!
//! Backends for GPUs fuse by rules of their own, which change from version to version and
//! are not written again here. They ask `ggml_is_empty` about each node before they launch
//! it; the nodes between two that were asked about went into the step before. Whoever hears
//! the questions hands them to [`device_steps`].
//!
//! Results that only nodes of the same step read stay in registers: they are neither written
//! nor read.

use crate::ops::{Direction, Known, NodeAccess, Op, Slot, accesses};
use crate::steps::{ComputeFlag, TickRules};
use crate::tensor::{FLAG_COMPUTE, FLAG_OUTPUT, Tensor};

/// Nodes that were executed as one, as positions in the list of nodes. Between the first and
/// the last there may be some that compute nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStep {
    pub first: usize,
    pub last: usize,
}

/// The steps of a graph on a device. `asked` are the positions of the nodes that the backend
/// asked about, ascending; `None` if nobody heard: then each node is taken for a step.
pub fn device_steps<'g>(
    rules: TickRules,
    nodes: &[Tensor<'g>],
    op_of: impl Fn(Tensor<'g>) -> Op,
    asked: Option<&[u32]>,
) -> Vec<DeviceStep> {
    let computes = |at: &usize| {
        let node = nodes[*at];
        !op_of(node).is_empty()
            && !node.is_empty()
            && (rules.compute_flag == ComputeFlag::DoesNotExist || node.flags() & FLAG_COMPUTE != 0)
    };
    let one = |at| DeviceStep {
        first: at,
        last: at,
    };
    let Some(asked) = asked else {
        return (0..nodes.len()).filter(computes).map(one).collect();
    };
    let mut steps = Vec::with_capacity(asked.len());
    // What stands before the first question was not executed by itself.
    let ends = asked.iter().skip(1).map(|&at| at as usize);
    let ends = ends.chain([nodes.len()]);
    for (&begin, end) in asked.iter().zip(ends) {
        let begin = begin as usize;
        // A view is asked about, too, and launches nothing.
        if begin >= nodes.len() || !computes(&begin) {
            continue;
        }
        let last = (begin..end.min(nodes.len())).rfind(computes);
        steps.push(DeviceStep {
            first: begin,
            last: last.unwrap_or(begin),
        });
    }
    steps
}

impl DeviceStep {
    /// The nodes of the step that compute something.
    pub fn nodes<'a, 'g: 'a>(
        self,
        nodes: &'a [Tensor<'g>],
        op_of: impl Fn(Tensor<'g>) -> Op + 'a,
    ) -> impl Iterator<Item = Tensor<'g>> + 'a {
        let all = nodes[self.first..=self.last].iter().copied();
        all.filter(move |&node| !op_of(node).is_empty() && !node.is_empty())
    }
}

/// Appends what a step on a device touches. `use_count` is [`crate::Graph::use_count`].
pub fn device_accesses<'g>(
    step: DeviceStep,
    nodes: &[Tensor<'g>],
    op_of: impl Fn(Tensor<'g>) -> Op + Copy,
    use_count: impl Fn(Tensor<'g>) -> i32,
    out: &mut Vec<NodeAccess<'g>>,
) -> Known {
    let inside: Vec<Tensor> = step.nodes(nodes, op_of).collect();
    let &[.., result] = inside.as_slice() else {
        return Known::Yes;
    };
    // Also views of the step's own results, which are nodes without work.
    let range = &nodes[step.first..=step.last];
    let is_made_inside = |tensor: Tensor<'g>| inside.contains(&tensor.root());
    let uses_inside = |tensor: Tensor<'g>| {
        let sources = range.iter().flat_map(|node| node.srcs());
        sources.filter(|&(_, source)| source == tensor).count() as i32
    };
    let stays_inside = |node: Tensor<'g>| {
        node != result
            && node.view_src().is_none()
            && node.flags() & FLAG_OUTPUT == 0
            && use_count(node) <= uses_inside(node)
            && range
                .iter()
                .filter(|view| view.view_src() == Some(node))
                .all(|&view| use_count(view) <= uses_inside(view))
    };
    let mut known = Known::Yes;
    let mut found = Vec::new();
    for &node in &inside {
        found.clear();
        if accesses(op_of(node), node, &mut found) == Known::No {
            known = Known::No;
        }
        for access in found.drain(..) {
            let is_read = access.direction == Direction::Read;
            let is_dropped = match access.slot {
                // What an earlier node of the step has made is at hand, wherever it is kept.
                Slot::Src(_) if is_read => {
                    access.tensor.root() != node && is_made_inside(access.tensor)
                }
                _ => access.tensor.root() == node && stays_inside(node),
            };
            let is_double = is_read && out.iter().any(|other| same(other, &access));
            if !is_dropped && !is_double {
                out.push(access);
            }
        }
    }
    known
}

/// Two nodes of a step that read the same bytes read them once.
fn same(a: &NodeAccess<'_>, b: &NodeAccess<'_>) -> bool {
    a.direction == b.direction && a.tensor.root() == b.tensor.root() && a.region == b.region
}
