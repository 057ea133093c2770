//! The structure map: one row for each tensor, or for each expert of a merged
//! tensor, and on request one for each attention head.
//!
//! Invariant: the rows without a head that carry one tensor's name add up to
//! exactly that tensor, in order and without gaps. Head rows come on top of
//! them; they are another view of the same bytes.
//!
//! Rows are made on demand, because a model can have hundreds of thousands.

use std::io;

use crate::heads::{Boundary, HeadLayout, HeadRange};
use crate::model::{Model, Tensor};
use crate::names::{Experts, Kind};

/// More experts in one tensor than this are a damaged file, not a model.
const MAX_EXPERTS: u64 = 1 << 16;

/// Whether the structure map also has a row for each attention head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRows {
    Without,
    With,
}

/// A tensor, an expert's slice of one, or a head's part of one.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    pub tensor: &'a Tensor,
    pub file_offset: u64,
    pub size_bytes: u64,
    pub expert: Option<u64>,
    pub head: Option<HeadRange>,
}

/// Expert slices of a merged tensor: equal parts of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertSlices {
    /// The dimension that counts experts; a slice has those before it.
    pub dimension: usize,
    pub count: u64,
    pub slice_bytes: u64,
}

impl Tensor {
    /// How a merged tensor divides into experts; `None` for any other.
    pub fn expert_slices(&self) -> Option<ExpertSlices> {
        if self.meaning.experts != Experts::Merged {
            return None;
        }
        // Experts are the slowest dimension: [in, out, expert] for a weight,
        // [out, expert] for a bias, [expert] for scales.
        let dimension = match self.meaning.kind {
            Kind::Weight => 2,
            Kind::Bias => 1,
            Kind::Scale | Kind::Plain => (self.n_dims as usize).max(1) - 1,
        };
        let count = self.ne[dimension];
        let slower = self.ne[dimension + 1..].iter().all(|&n| n == 1);
        let whole = slower
            && self.size_bytes > 0
            && (1..=MAX_EXPERTS).contains(&count)
            && self.size_bytes.is_multiple_of(count)
            && (dimension > 0 || !self.ty.is_quantized());
        whole.then(|| ExpertSlices {
            dimension,
            count,
            slice_bytes: self.size_bytes / count,
        })
    }

    /// Rows of the structure map: one for each expert of a merged tensor, or
    /// one for the whole.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        expert_rows(self)
    }

    /// The expert that one-expert tensors belong to.
    pub fn single_expert(&self) -> Option<u64> {
        match self.meaning.experts {
            Experts::One(expert) => Some(expert.into()),
            Experts::None | Experts::Merged => None,
        }
    }
}

impl Model {
    /// The structure map, tensors in file order.
    pub fn rows(&self, heads: HeadRows) -> impl Iterator<Item = Row<'_>> {
        self.tensors().iter().flat_map(move |tensor| {
            let layout = match heads {
                HeadRows::With => HeadLayout::of(tensor, self.hyper()),
                HeadRows::Without => None,
            };
            let head_ranges: Vec<HeadRange> =
                layout.map_or(Vec::new(), |l| l.ranges(tensor).collect());
            tensor
                .rows()
                .chain(head_ranges.into_iter().map(move |range| Row {
                    tensor,
                    file_offset: range.file_offset,
                    size_bytes: range.size_bytes(),
                    expert: None,
                    head: Some(range),
                }))
        })
    }

    /// Writes the structure map as CSV, with a header line.
    pub fn write_structure_csv(&self, heads: HeadRows, out: impl io::Write) -> io::Result<()> {
        let mut out = io::BufWriter::new(out);
        let with_heads = heads == HeadRows::With;
        let columns = if with_heads {
            COLUMNS.len()
        } else {
            COLUMNS.len() - HEAD_COLUMNS
        };
        write_csv_line(&mut out, &COLUMNS[..columns])?;
        let paths: Vec<String> = self
            .files()
            .iter()
            .map(|f| f.path.display().to_string())
            .collect();
        for row in self.rows(heads) {
            let fields = row.fields(&paths);
            write_csv_line(&mut out, &fields[..columns])?;
        }
        io::Write::flush(&mut out)
    }
}

/// Columns of the structure map; the last [`HEAD_COLUMNS`] only with heads.
pub const COLUMNS: [&str; 18] = [
    "tensor_name",
    "file",
    "file_offset",
    "size_bytes",
    "type",
    "layer_id",
    "component_type",
    "role",
    "expert_id",
    "kind",
    "shape",
    "elements",
    "head_of",
    "head_id",
    "run_bytes",
    "stride_bytes",
    "run_count",
    "head_boundary",
];
pub const HEAD_COLUMNS: usize = 6;

impl Row<'_> {
    fn fields(&self, paths: &[String]) -> [String; COLUMNS.len()] {
        let tensor = self.tensor;
        let meaning = &tensor.meaning;
        let text = |value: Option<u64>| value.map_or(String::new(), |v| v.to_string());
        let head = self.head.as_ref();
        let (elements, shape) = match (self.expert, tensor.expert_slices(), head) {
            (Some(_), Some(slices), _) => (
                Some(tensor.elements() / slices.count),
                shape_text(&tensor.ne[..slices.dimension]),
            ),
            (_, _, Some(_)) => (None, shape_text(tensor.shape())),
            _ => (Some(tensor.elements()), shape_text(tensor.shape())),
        };
        [
            tensor.name.to_string(),
            paths[tensor.file as usize].clone(),
            self.file_offset.to_string(),
            self.size_bytes.to_string(),
            tensor.ty.name().to_owned(),
            text(meaning.layer.map(u64::from)),
            meaning.component.name().to_owned(),
            meaning.role.to_string(),
            text(self.expert),
            meaning.kind.name().to_owned(),
            shape,
            text(elements),
            head.map_or(String::new(), |h| h.of.to_owned()),
            text(head.map(|h| h.head)),
            text(head.map(|h| h.run_bytes)),
            text(head.map(|h| h.stride_bytes)),
            text(head.map(|h| h.run_count)),
            head.map_or(String::new(), |h| h.boundary.name().to_owned()),
        ]
    }
}

impl Boundary {
    pub fn name(self) -> &'static str {
        match self {
            Boundary::Exact => "exact",
            Boundary::SharesBlocks => "shares_blocks",
        }
    }
}

/// `4096x32000`, fastest dimension first.
pub fn shape_text(shape: &[u64]) -> String {
    if shape.is_empty() {
        return "1".to_owned();
    }
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    dims.join("x")
}

/// By hand: this crate is linked into other people's programs. Fields are quoted where they
/// have to be.
fn write_csv_line(out: &mut impl io::Write, fields: &[impl AsRef<str>]) -> io::Result<()> {
    for (i, field) in fields.iter().map(AsRef::as_ref).enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        match field.contains([',', '"', '\n', '\r']) {
            true => write!(out, "\"{}\"", field.replace('"', "\"\""))?,
            false => out.write_all(field.as_bytes())?,
        }
    }
    out.write_all(b"\n")
}

fn expert_rows(tensor: &Tensor) -> impl Iterator<Item = Row<'_>> {
    let slices = tensor.expert_slices();
    let count = slices.map_or(1, |s| s.count);
    (0..count).map(move |index| match slices {
        Some(slices) => Row {
            tensor,
            file_offset: tensor.file_offset + index * slices.slice_bytes,
            size_bytes: slices.slice_bytes,
            expert: Some(index),
            head: None,
        },
        None => Row {
            tensor,
            file_offset: tensor.file_offset,
            size_bytes: tensor.size_bytes,
            expert: tensor.single_expert(),
            head: None,
        },
    })
}
