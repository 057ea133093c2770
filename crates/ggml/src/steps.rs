//! Which nodes of a graph execute, one after another, and what each touches.
//!
//! The CPU backend calls its abort callback once after each step; the tick
//! carries no node. So the steps are predicted from the graph, exactly as
//! `ggml_graph_compute_thread` walks it (ggml-cpu.c):
//!
//! 1. empty ops (NONE, RESHAPE, VIEW, PERMUTE, TRANSPOSE) are passed over;
//! 2. nodes without `GGML_TENSOR_FLAG_COMPUTE` are passed over;
//! 3. an RMS_NORM whose only use is the MUL right after it becomes one step with
//!    it (`ggml_cpu_try_fuse_ops`, `ggml_can_fuse`);
//! 4. everything else is a step, also a node without elements.
//!
//! Older CPU backends ticked for more nodes; [`TickRules`] says which version
//! does what. Whoever counts ticks must compare them with the number of steps: a
//! later ggml may fuse more.

use gguf::types::GgmlType;

use crate::ops::{Known, NodeAccess, Op, accesses, fused_norm_accesses};
use crate::tensor::{FLAG_COMPUTE, FLAG_OUTPUT, Tensor};

/// Whether the backend fuses. `GGML_CPU_DISABLE_FUSION` and a plan with
/// `use_ref` turn it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    On,
    Off,
}

/// Which nodes tick in a given version of the CPU backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickRules {
    /// Since 2026-05.
    pub fusion: Fusion,
    pub empty_ops: EmptyOps,
    pub compute_flag: ComputeFlag,
}

/// What the backend does at RESHAPE, VIEW, PERMUTE, TRANSPOSE and NONE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyOps {
    /// Since 2025-11.
    PassedOver,
    Tick,
}

/// Whether `GGML_TENSOR_FLAG_COMPUTE` decides what is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeFlag {
    /// Since 2026-01.
    Decides,
    DoesNotExist,
}

impl TickRules {
    /// Of ggml 0.26.0.
    pub fn today(fusion: Fusion) -> TickRules {
        TickRules {
            fusion,
            empty_ops: EmptyOps::PassedOver,
            compute_flag: ComputeFlag::Decides,
        }
    }

    fn passes_over(self, op: Op, node: Tensor<'_>) -> bool {
        op.is_empty() && self.empty_ops == EmptyOps::PassedOver
            || !is_computed(node) && self.compute_flag == ComputeFlag::Decides
    }
}

/// The nodes of one step, as positions in the list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepNodes {
    One(usize),
    /// RMS_NORM at `norm`, MUL at `norm + 1`.
    RmsNormMul {
        norm: usize,
    },
}

impl StepNodes {
    /// The node whose result the step leaves behind.
    pub fn result(self) -> usize {
        match self {
            StepNodes::One(node) => node,
            StepNodes::RmsNormMul { norm } => norm + 1,
        }
    }
}

/// The steps of a graph, as today's backend walks it. `use_count` is
/// [`crate::Graph::use_count`], or [`crate::graph::UseCounts::get`] where only
/// the nodes are known.
pub fn executed_steps<'g>(
    nodes: &[Tensor<'g>],
    op_of: impl Fn(Tensor<'g>) -> Op,
    use_count: impl Fn(Tensor<'g>) -> i32,
    fusion: Fusion,
) -> Vec<StepNodes> {
    executed_steps_under(TickRules::today(fusion), nodes, op_of, use_count)
}

/// As [`executed_steps`], for a backend of any version.
pub fn executed_steps_under<'g>(
    rules: TickRules,
    nodes: &[Tensor<'g>],
    op_of: impl Fn(Tensor<'g>) -> Op,
    use_count: impl Fn(Tensor<'g>) -> i32,
) -> Vec<StepNodes> {
    let mut steps = Vec::with_capacity(nodes.len());
    let mut i = 0;
    while let Some(&node) = nodes.get(i) {
        let op = op_of(node);
        if rules.passes_over(op, node) {
            i += 1;
            continue;
        }
        let fused = rules.fusion == Fusion::On
            && op == Op::RMS_NORM
            && nodes.get(i + 1).is_some_and(|&next| {
                op_of(next) == Op::MUL && fuses_into(node, next) && use_count(node) == 1
            });
        if fused {
            steps.push(StepNodes::RmsNormMul { norm: i });
            i += 2;
        } else {
            steps.push(StepNodes::One(i));
            i += 1;
        }
    }
    steps
}

/// Appends what a step touches.
pub fn step_accesses<'g>(
    step: StepNodes,
    nodes: &[Tensor<'g>],
    op_of: impl Fn(Tensor<'g>) -> Op,
    out: &mut Vec<NodeAccess<'g>>,
) -> Known {
    match step {
        StepNodes::One(i) => accesses(op_of(nodes[i]), nodes[i], out),
        StepNodes::RmsNormMul { norm } => {
            fused_norm_accesses(nodes[norm], nodes[norm + 1], out);
            Known::Yes
        }
    }
}

/// The conditions of `ggml_can_fuse` and `ggml_cpu_try_fuse_ops` other than ops
/// and use count.
fn fuses_into(norm: Tensor<'_>, mul: Tensor<'_>) -> bool {
    let f32 = GgmlType::F32.as_u32();
    // The other factor, chosen as ggml does.
    let weight = if mul.src(0) == Some(norm) {
        mul.src(1)
    } else if mul.src(1) == Some(norm) {
        mul.src(0)
    } else {
        return false;
    };
    let (Some(input), Some(weight)) = (norm.src(0), weight) else {
        return false;
    };
    is_computed(mul)
        && norm.view_src().is_none()
        && norm.flags() & FLAG_OUTPUT == 0
        && mul.ne() == norm.ne()
        && [input.ty(), mul.ty(), weight.ty()] == [f32; 3]
        && weight.ne()[0] == norm.ne()[0]
        && weight.nb()[0] == GgmlType::F32.block_bytes()
}

fn is_computed(node: Tensor<'_>) -> bool {
    node.flags() & FLAG_COMPUTE != 0
}
