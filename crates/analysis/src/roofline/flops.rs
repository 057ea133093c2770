//! Floating-point operations of a node, from what it touches.
//!
//! A log has no shapes of nodes, but of every operand the bytes that are touched, its type,
//! and of the tensor behind it the shape. That is enough: a product has as many results a
//! column as its destination's first dimension, whatever its sources are views of.
//!
//! A multiplication and an addition are one operation each, as is an exponential or a square
//! root. Moving, sorting and comparing are none.

use gguf::GgmlType;
use reader::{Prepared, PreparedStep, Tensor, Tensors};
use trace::template::{Operand, TensorKind};

/// What a step computes each time it is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flops {
    Fixed(u64),
    /// Attention over a cache: so many for each pair of a token and a cell that it sees. The
    /// first `extent` cells are looked at; those that the mask hides are skipped.
    PerPair {
        each: u64,
        extent: u64,
        /// Tokens that attend.
        queries: u64,
    },
    /// An op whose arithmetic is not counted here.
    Unknown,
}

/// Operations for each number of the result.
const PER_RESULT: &[(&str, u64)] = &[
    ("ADD", 1),
    ("ADD1", 1),
    ("ADD_ID", 1),
    ("ACC", 1),
    ("SUB", 1),
    ("MUL", 1),
    ("DIV", 1),
    ("SCALE", 1),
    ("SQR", 1),
    ("SQRT", 1),
    ("LOG", 1),
    ("SIN", 1),
    ("COS", 1),
    ("CLAMP", 1),
    ("LEAKY_RELU", 1),
    // As SiLU has: negate, exponential, add, divide.
    ("UNARY", 4),
    // The same, and the product with the other half.
    ("GLU", 5),
    // Square, add, scale.
    ("RMS_NORM", 3),
    ("L2_NORM", 3),
    ("RMS_NORM+MUL", 4),
    // Mean, subtract, square, add, scale.
    ("NORM", 5),
    ("GROUP_NORM", 5),
    // Two numbers are turned by four products and two sums.
    ("ROPE", 3),
];

/// Largest, subtract, exponential, add, scale.
const SOFTMAX: u64 = 5;
/// Scale the scores and add the mask.
const SOFTMAX_MASK: u64 = 2;
/// For each number of a state and token: the decay (product, exponential), what is added
/// (product, product, sum), and its share of the result (product, sum).
const STATE: u64 = 7;

/// Operations for each number that is read.
const PER_SOURCE: &[&str] = &["SUM", "SUM_ROWS", "MEAN", "CUMSUM"];

/// Ops that only move numbers, or compare them.
const NONE: &[&str] = &[
    "DUP",
    "REPEAT",
    "CONCAT",
    "SET",
    "CPY",
    "CONT",
    "GET_ROWS",
    "SET_ROWS",
    "DIAG",
    "DIAG_MASK_INF",
    "DIAG_MASK_ZERO",
    "IM2COL",
    "IM2COL_3D",
    "PAD",
    "PAD_REFLECT_1D",
    "ROLL",
    "ARANGE",
    "ARGMAX",
    "ARGSORT",
    "TOP_K",
    "COUNT_EQUAL",
    "TRI",
    "FILL",
    "WIN_PART",
    "WIN_UNPART",
    "GET_REL_POS",
];

/// Of a step of a graph that evaluates `tokens` tokens.
pub fn of(prepared: &Prepared, step: &PreparedStep, tensors: &Tensors, tokens: u64) -> Flops {
    if !step.op_is_known {
        return Flops::Unknown;
    }
    let op = &*step.op;
    if NONE.contains(&op) {
        return Flops::Fixed(0);
    }
    let operands = Operands {
        prepared,
        step,
        tensors,
    };
    operands.flops(op, tokens).unwrap_or(Flops::Unknown)
}

/// What a step touches, by its place in the node.
struct Operands<'a> {
    prepared: &'a Prepared,
    step: &'a PreparedStep,
    tensors: &'a Tensors,
}

/// One of them: the tensor behind it, and how many of its numbers are touched.
struct Touched<'a> {
    tensor: &'a Tensor,
    elements: u64,
}

impl<'a> Operands<'a> {
    fn flops(&self, op: &str, tokens: u64) -> Option<Flops> {
        if let Some((_, each)) = PER_RESULT.iter().find(|(name, _)| *name == op) {
            return Some(Flops::product(&[*each, self.result()?.elements]));
        }
        if PER_SOURCE.contains(&op) {
            return Some(Flops::Fixed(self.source(0)?.elements));
        }
        let first = |touched: &Touched| touched.tensor.ne[0];
        Some(match op {
            // Each number of the second source is multiplied once for each row of the result.
            "MUL_MAT" => {
                // A Hadamard matrix is not read, and not multiplied with one by one.
                self.source(0)?;
                Flops::product(&[2, self.source(1)?.elements, first(&self.result()?)])
            }
            "OUT_PROD" => Flops::product(&[2, self.source(1)?.elements, first(&self.result()?)]),
            // Results are there for each token and each expert that it chose; how many numbers
            // each is a sum of, the weights' rows say.
            "MUL_MAT_ID" => Flops::product(&[2, self.result()?.elements, first(&self.source(0)?)]),
            "SOFT_MAX" => {
                let mask = self.source(1).map_or(0, |_| SOFTMAX_MASK);
                Flops::product(&[SOFTMAX + mask, self.result()?.elements])
            }
            "FLASH_ATTN_EXT" => self.attention()?,
            "SSM_CONV" => Flops::product(&[2, self.result()?.elements, first(&self.source(1)?)]),
            // The state of one sequence, for each token.
            "SSM_SCAN" => Flops::product(&[STATE, self.source(0)?.elements, tokens]),
            // A state is as many numbers a head as a value has, squared; there is one
            // weight for each head and token.
            "GATED_DELTA_NET" => {
                let (values, weights) = (self.source(2)?.elements, self.source(4)?.elements);
                Flops::product(&[STATE, values, values.checked_div(weights)?])
            }
            _ => return None,
        })
    }

    /// Scores and sums: a product and an addition for each number of a key and of a value.
    fn attention(&self) -> Option<Flops> {
        let (queries, keys, result) = (self.source(0)?, self.source(1)?, self.result()?);
        let [value_length, heads, tokens, sequences] = result.tensor.ne;
        let attending = tokens.saturating_mul(sequences);
        let key_length = queries
            .elements
            .checked_div(heads.saturating_mul(attending))?;
        let numbers = key_length.saturating_add(value_length);
        let each = product(&[2, heads, numbers]);
        if keys.tensor.kind != TensorKind::KvCache {
            // Without a cache every token sees those of its own sequence.
            return Some(Flops::product(&[each, attending, tokens]));
        }
        // Keys of all heads lie side by side in a cell.
        let cells = keys.elements.checked_div(keys.tensor.ne[0])?;
        Some(Flops::PerPair {
            each,
            extent: cells.checked_div(sequences)?,
            queries: attending,
        })
    }

    fn source(&self, number: u8) -> Option<Touched<'a>> {
        self.operand(Operand::Source(number))
    }

    fn result(&self) -> Option<Touched<'a>> {
        self.operand(Operand::Destination)
    }

    /// With an index, what one index names.
    fn operand(&self, operand: Operand) -> Option<Touched<'a>> {
        let accesses = &self.prepared.accesses[self.step.first..self.step.end];
        let access = accesses.iter().find(|a| a.operand == operand)?;
        let tensor = &self.tensors.all()[access.tensor as usize];
        let ty = GgmlType::from_u32(tensor.ggml_type)?;
        let blocks = access.bytes / ty.block_bytes();
        Some(Touched {
            tensor,
            elements: blocks.saturating_mul(ty.block_elements()),
        })
    }
}

impl Flops {
    fn product(factors: &[u64]) -> Flops {
        Flops::Fixed(product(factors))
    }
}

/// A damaged log may claim anything.
pub(super) fn product(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1, |n, &factor| n.saturating_mul(factor))
}
