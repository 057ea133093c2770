//! The bytes of each attention head inside attention weights.
//!
//! A head of `attn_q`, `attn_k`, `attn_v` is a block of rows: one run of bytes.
//! A head of `attn_output` is a block of columns: one run in every row. Columns
//! are quantised in blocks, and a head's edge may fall inside one; the range
//! then covers whole blocks and [`Boundary::SharesBlocks`] says that neighbours
//! overlap. Shapes that the metadata does not explain get no heads at all:
//! a wrong answer is worse than none.

use crate::hyper::Hyperparameters;
use crate::model::Tensor;
use crate::names::Component;

/// A count of heads above this is a damaged file, not a model.
const MAX_HEADS: u64 = 1 << 16;

/// Whether a range holds exactly one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    Exact,
    /// The head begins or ends inside a quantisation block, so the first or
    /// last block of the range also holds elements of a neighbour.
    SharesBlocks,
}

/// `run_count` runs of `run_bytes`, `stride_bytes` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadRange {
    /// `q`, `k`, `v` or `o`: what the head number counts.
    pub of: &'static str,
    pub head: u64,
    /// First byte of the first run, from the start of the file.
    pub file_offset: u64,
    pub run_bytes: u64,
    pub stride_bytes: u64,
    pub run_count: u64,
    pub boundary: Boundary,
}

impl HeadRange {
    pub fn size_bytes(&self) -> u64 {
        self.run_bytes * self.run_count
    }
}

/// How one tensor divides into heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadLayout {
    sections: Vec<Section>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Section {
    of: &'static str,
    head_count: u64,
    axis: Axis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Axis {
    /// Heads follow each other, from `first_byte` of the tensor.
    Rows { first_byte: u64, head_bytes: u64 },
    /// Every row holds all heads, each of `head_elements`.
    Columns { head_elements: u64 },
}

impl HeadLayout {
    /// The layout of `tensor`, or `None` when it has no heads.
    pub fn of(tensor: &Tensor, hyper: &Hyperparameters) -> Option<HeadLayout> {
        let meaning = &tensor.meaning;
        let layer = meaning.layer?;
        if meaning.component != Component::Attention || tensor.size_bytes == 0 {
            return None;
        }
        let heads = hyper.head_count(layer);
        let kv_heads = hyper.head_count_kv(layer);
        let section = match &*meaning.role {
            "q" => by_rows(tensor, "q", heads)?,
            "k" => by_rows(tensor, "k", kv_heads)?,
            "v" => by_rows(tensor, "v", kv_heads)?,
            "qkv" => return merged(tensor, hyper, layer),
            // Only the weight: a bias is added after the heads are summed.
            "o" if tensor.ne[1] > 1 => by_columns(tensor, "o", heads)?,
            "sinks" => by_columns(tensor, "q", heads)?,
            "q_b" => by_rows(tensor, "q", heads)?,
            "kv_b" => by_rows(tensor, "kv", heads)?,
            "k_b" => by_planes(tensor, "k", heads)?,
            "v_b" => by_planes(tensor, "v", heads)?,
            _ => return None,
        };
        Some(HeadLayout {
            sections: vec![section],
        })
    }

    /// The range of every head of `tensor`, whose layout this is.
    pub fn ranges<'a>(&'a self, tensor: &'a Tensor) -> impl Iterator<Item = HeadRange> + 'a {
        self.sections
            .iter()
            .flat_map(move |s| (0..s.head_count).map(move |head| s.range(tensor, head)))
    }

    /// The heads whose elements byte `offset` of `tensor` holds: first and
    /// last, which differ where a quantisation block spans several.
    pub fn heads_at(&self, tensor: &Tensor, offset: u64) -> Option<(&'static str, u64, u64)> {
        self.sections
            .iter()
            .find_map(|s| s.heads_at(tensor, offset))
    }
}

impl Section {
    fn range(&self, tensor: &Tensor, head: u64) -> HeadRange {
        match self.axis {
            Axis::Rows {
                first_byte,
                head_bytes,
            } => HeadRange {
                of: self.of,
                head,
                file_offset: tensor.file_offset + first_byte + head * head_bytes,
                run_bytes: head_bytes,
                stride_bytes: head_bytes,
                run_count: 1,
                boundary: Boundary::Exact,
            },
            Axis::Columns { head_elements } => {
                let block = tensor.ty.block_elements();
                let (start, end) = (head * head_elements, (head + 1) * head_elements);
                let (first, last) = (start / block, end.div_ceil(block));
                let exact = start.is_multiple_of(block) && end.is_multiple_of(block);
                HeadRange {
                    of: self.of,
                    head,
                    file_offset: tensor.file_offset + first * tensor.ty.block_bytes(),
                    run_bytes: (last - first) * tensor.ty.block_bytes(),
                    stride_bytes: tensor.row_bytes(),
                    run_count: tensor.size_bytes / tensor.row_bytes().max(1),
                    boundary: if exact {
                        Boundary::Exact
                    } else {
                        Boundary::SharesBlocks
                    },
                }
            }
        }
    }

    fn heads_at(&self, tensor: &Tensor, offset: u64) -> Option<(&'static str, u64, u64)> {
        let (first, last) = match self.axis {
            Axis::Rows {
                first_byte,
                head_bytes,
            } => {
                let head = offset.checked_sub(first_byte)? / head_bytes;
                (head, head)
            }
            Axis::Columns { head_elements } => {
                let block = tensor.ty.block_elements();
                let in_row = offset % tensor.row_bytes().max(1);
                let element = in_row / tensor.ty.block_bytes() * block;
                (
                    element / head_elements,
                    (element + block - 1) / head_elements,
                )
            }
        };
        (last < self.head_count).then_some((self.of, first, last))
    }
}

/// Heads as equal groups of rows of a matrix, or of elements of its bias.
fn by_rows(tensor: &Tensor, of: &'static str, heads: u64) -> Option<Section> {
    if tensor.ne[1] == 1 {
        return by_columns(tensor, of, heads);
    }
    if tensor.ne[2] != 1 || tensor.ne[3] != 1 {
        return None;
    }
    slices(tensor, of, heads, tensor.ne[1])
}

/// Heads as the planes of a 3-D tensor.
fn by_planes(tensor: &Tensor, of: &'static str, heads: u64) -> Option<Section> {
    (tensor.ne[2] == heads && tensor.ne[3] == 1)
        .then(|| slices(tensor, of, heads, heads))
        .flatten()
}

fn slices(tensor: &Tensor, of: &'static str, heads: u64, units: u64) -> Option<Section> {
    divides(heads, units).then(|| Section {
        of,
        head_count: heads,
        axis: Axis::Rows {
            first_byte: 0,
            head_bytes: tensor.size_bytes / heads,
        },
    })
}

fn by_columns(tensor: &Tensor, of: &'static str, heads: u64) -> Option<Section> {
    divides(heads, tensor.ne[0]).then(|| Section {
        of,
        head_count: heads,
        axis: Axis::Columns {
            head_elements: tensor.ne[0] / heads,
        },
    })
}

/// Q, K and V in one tensor, in this order.
fn merged(tensor: &Tensor, hyper: &Hyperparameters, layer: u32) -> Option<HeadLayout> {
    let (heads, kv_heads) = (hyper.head_count(layer), hyper.head_count_kv(layer));
    let is_matrix = tensor.ne[1] > 1;
    let (units, unit_bytes) = if is_matrix {
        (tensor.ne[1], tensor.row_bytes())
    } else if tensor.ty.is_quantized() {
        return None;
    } else {
        (tensor.ne[0], tensor.ty.block_bytes())
    };
    if tensor.ne[2] != 1 || tensor.ne[3] != 1 || heads > MAX_HEADS || kv_heads > MAX_HEADS {
        return None;
    }
    let parts = [
        ("q", heads, hyper.key_length(layer)),
        ("k", kv_heads, hyper.key_length(layer)),
        ("v", kv_heads, hyper.value_length(layer)),
    ];
    let mut sections = Vec::new();
    let mut first_unit = 0u64;
    for (of, head_count, head_units) in parts {
        let part_units = head_count.checked_mul(head_units).filter(|&n| n > 0)?;
        sections.push(Section {
            of,
            head_count,
            axis: Axis::Rows {
                first_byte: first_unit.checked_mul(unit_bytes)?,
                head_bytes: head_units.checked_mul(unit_bytes)?,
            },
        });
        first_unit = first_unit.checked_add(part_units)?;
    }
    (first_unit == units).then_some(HeadLayout { sections })
}

fn divides(heads: u64, units: u64) -> bool {
    (1..=MAX_HEADS).contains(&heads) && units > 0 && units.is_multiple_of(heads)
}
