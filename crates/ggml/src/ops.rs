//! From a graph node to the bytes it reads and writes on the CPU backend.
//!
//! [`table`] says for every op which sources it reads and how much of each;
//! [`extents`] holds the rules that are more than "the whole view". Both follow
//! `ggml_compute_forward_*` of ggml 0.26.0 line by line, because `audit` compares
//! what is claimed here with the pages that the MMU saw touched.
//!
//! What counts as an access:
//! - bytes that the kernel loads from a source or stores to a destination.
//!   Loading back what the same op has stored is not a read; scratch memory of
//!   the plan is not an access at all;
//! - a source that is broadcast is read once;
//! - an op in place (its node is a view of its source) reads and writes the same
//!   bytes;
//! - a node without elements executes nothing.

pub mod extents;
pub mod table;

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, Ordering};

use gguf::types::GgmlType;
use trace::region::Region;

use crate::region::{flat_rows_region, view_region};
use crate::tensor::{MAX_SRC, Tensor};

pub use table::{Op, known_ops};

/// Which operand of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    Src(u8),
    Dst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Read,
    Write,
}

/// One operand of a node, as its kernel touches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAccess<'g> {
    /// The operand itself, which may be a view.
    pub tensor: Tensor<'g>,
    pub slot: Slot,
    pub direction: Direction,
    /// Relative to the start of the data of `tensor.root()`.
    pub region: Region<Tensor<'g>>,
}

/// Whether the table knows the op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Known {
    Yes,
    /// Recorded as whole views of everything; the caller counts these.
    No,
}

/// What an op touches.
#[derive(Clone, Copy, Debug)]
pub enum Semantics {
    /// Never executed.
    Nothing,
    /// The reads, then the writes; these bytes and no others.
    Exact(&'static [Touch], &'static [Touch]),
    /// Like `Exact`, but some of the bytes may stay untouched, because of what.
    AtMost(&'static [Touch], &'static [Touch], &'static str),
}

/// One operand and how much of it. A source that is null is skipped.
#[derive(Clone, Copy, Debug)]
pub enum Touch {
    Src(u8, Extent),
    Dst(Extent),
}

/// How much of an operand.
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    /// All elements of the view.
    Whole,
    /// All rows, as a flat list of stride `nb[1]`.
    FlatRows,
    /// What the rule says.
    By(Rule),
}

/// From the node and the operand to its bytes; `None` when it is not touched.
pub type Rule = for<'g> fn(Tensor<'g>, Tensor<'g>) -> Option<Region<Tensor<'g>>>;

/// Appends what executing `node` touches: reads in the order of the sources,
/// then writes.
pub fn accesses<'g>(op: Op, node: Tensor<'g>, out: &mut Vec<NodeAccess<'g>>) -> Known {
    let Some(semantics) = op.semantics().filter(|_| !has_old_form(op, node)) else {
        if !node.is_empty() {
            unknown_accesses(node, out);
        }
        return Known::No;
    };
    if !node.is_empty() {
        for touch in semantics.reads() {
            push(node, *touch, Direction::Read, out);
        }
        for touch in semantics.writes() {
            push(node, *touch, Direction::Write, out);
        }
    }
    Known::Yes
}

/// Until 2024-04-03 the experts of MUL_MAT_ID were tensors of their own, behind
/// the ids, which came first.
fn has_old_form(op: Op, node: Tensor<'_>) -> bool {
    op == Op::MUL_MAT_ID
        && node
            .src(0)
            .is_some_and(|ids| ids.ty() == GgmlType::I32.as_u32())
}

/// RMS_NORM and MUL in one pass: the norm's own result stays in registers and
/// its tensor is not touched.
pub fn fused_norm_accesses<'g>(norm: Tensor<'g>, mul: Tensor<'g>, out: &mut Vec<NodeAccess<'g>>) {
    if mul.is_empty() {
        return;
    }
    push(norm, Touch::Src(0, Extent::Whole), Direction::Read, out);
    let weight = if mul.src(0) == Some(norm) { 1 } else { 0 };
    push(mul, Touch::Src(weight, Extent::Whole), Direction::Read, out);
    push(mul, Touch::Dst(Extent::Whole), Direction::Write, out);
}

impl Semantics {
    pub fn reads(&self) -> &'static [Touch] {
        match *self {
            Semantics::Nothing => &[],
            Semantics::Exact(reads, _) | Semantics::AtMost(reads, _, _) => reads,
        }
    }

    pub fn writes(&self) -> &'static [Touch] {
        match *self {
            Semantics::Nothing => &[],
            Semantics::Exact(_, writes) | Semantics::AtMost(_, writes, _) => writes,
        }
    }

    /// Why some of the claimed bytes may stay untouched; `None` when none do.
    pub fn slack(&self) -> Option<&'static str> {
        match *self {
            Semantics::AtMost(_, _, why) => Some(why),
            _ => None,
        }
    }

    /// Whether the kernel never looks at the data of source `slot`: it is there
    /// for its shape, or to keep the destination alive.
    pub fn ignores(&self, slot: u8) -> bool {
        !self
            .reads()
            .iter()
            .any(|touch| matches!(touch, Touch::Src(s, _) if *s == slot))
    }
}

/// The library's op numbers as [`Op`]s, which are known by name because the
/// numbers shift between versions.
///
/// Numbers are resolved when first met, since `ggml_op_name` checks no bounds
/// and the library does not tell how many ops it has. Shared between threads
/// without a lock: they would all write the same answer.
pub struct OpNumbers {
    name_of: OpName,
    resolved: [AtomicU8; OpNumbers::CACHED],
}

/// `ggml_op_name`.
pub type OpName = unsafe extern "C" fn(u32) -> *const c_char;

impl OpNumbers {
    const CACHED: usize = 256;
    const UNRESOLVED: u8 = u8::MAX;

    /// # Safety
    /// `name_of` is `ggml_op_name` of the library whose tensors are asked about.
    pub unsafe fn new(name_of: OpName) -> OpNumbers {
        OpNumbers {
            name_of,
            resolved: [const { AtomicU8::new(Self::UNRESOLVED) }; Self::CACHED],
        }
    }

    /// The op of a live node.
    pub fn op_of(&self, node: Tensor<'_>) -> Op {
        let number = node.op();
        // ggml has about a hundred ops: a larger number is not an op.
        let Some(cached) = self.resolved.get(number as usize) else {
            return Op::Unknown;
        };
        match cached.load(Ordering::Relaxed) {
            Self::UNRESOLVED => {
                // SAFETY: the number comes from a node that the library made
                // (contracts of `new` and `Tensor::from_ptr`).
                let name = unsafe { (self.name_of)(number) };
                let op = if name.is_null() {
                    Op::Unknown
                } else {
                    // SAFETY: ggml answers with a static C string.
                    Op::from_name(unsafe { CStr::from_ptr(name) }.to_bytes())
                };
                cached.store(op as u8, Ordering::Relaxed);
                op
            }
            index => Op::from_index(index),
        }
    }
}

fn unknown_accesses<'g>(node: Tensor<'g>, out: &mut Vec<NodeAccess<'g>>) {
    for slot in 0..MAX_SRC as u8 {
        push(node, Touch::Src(slot, Extent::Whole), Direction::Read, out);
    }
    push(node, Touch::Dst(Extent::Whole), Direction::Write, out);
}

fn push<'g>(node: Tensor<'g>, touch: Touch, direction: Direction, out: &mut Vec<NodeAccess<'g>>) {
    let (slot, operand, extent) = match touch {
        Touch::Src(slot, extent) => (Slot::Src(slot), node.src(slot.into()), extent),
        Touch::Dst(extent) => (Slot::Dst, Some(node), extent),
    };
    let Some(tensor) = operand else { return };
    let region = match extent {
        Extent::Whole => Some(Region::Fixed(view_region(tensor))),
        Extent::FlatRows => Some(Region::Fixed(flat_rows_region(tensor))),
        Extent::By(rule) => rule(node, tensor),
    };
    if let Some(region) = region.filter(touches_something) {
        out.push(NodeAccess {
            tensor,
            slot,
            direction,
            region,
        });
    }
}

fn touches_something(region: &Region<Tensor<'_>>) -> bool {
    match region {
        Region::Fixed(bytes) => bytes.run_bytes > 0,
        Region::Indexed(rows) => rows.unit.run_bytes > 0 && !rows.count.contains(&0),
    }
}
