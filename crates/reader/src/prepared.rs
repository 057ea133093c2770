//! A template, prepared: what all its evaluations share is worked out once.
//!
//! A run evaluates few graphs many times. Of most accesses the template fixes every byte;
//! of the others (rows of an embedding, KV cells, slices of experts) it fixes one unit, and
//! an index array that each evaluation carries says how often and where.

use std::sync::Arc;

use trace::{
    read::Definitions,
    region::{Region, Strided},
    template::{Direction, FilePlace, Operand, Template, TensorKind},
};

use crate::{
    choices::{Index, Router, routers},
    device::Device,
    tensors::{Tensor, Tensors},
};

#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// That computes it; `None` for the processor.
    pub device: Option<Device>,
    pub steps: Vec<PreparedStep>,
    /// Of all steps, in their order.
    pub accesses: Vec<PreparedAccess>,
    /// Where experts are chosen.
    pub routers: Vec<Router>,
    /// Of the accesses those to a KV cache.
    pub kv: Vec<usize>,
    /// Of all accesses, each as often as it has elements.
    pub(crate) bytes: u64,
}

/// An executed node.
#[derive(Clone, Debug)]
pub struct PreparedStep {
    pub op: Arc<str>,
    pub name: Arc<str>,
    pub layer: Option<u32>,
    pub node: u32,
    pub fused_nodes: u8,
    pub op_is_known: bool,
    /// Its accesses: `first..end` of [`Prepared::accesses`].
    pub first: usize,
    pub end: usize,
    /// An index array decides some of them.
    pub has_index: bool,
    /// Of its accesses, if none has an index.
    pub sums: Sums,
}

/// One access of the template.
#[derive(Clone, Debug)]
pub struct PreparedAccess {
    pub step: usize,
    /// Place of the tensor in [`Tensors::all`].
    pub tensor: u32,
    pub kind: TensorKind,
    pub place: Option<FilePlace>,
    pub direction: Direction,
    pub operand: Operand,
    /// What it touches; with an index, what index 0 touches.
    pub unit: Strided,
    /// Of `unit`.
    pub bytes: u64,
    /// If an index array decides what it touches.
    pub index: Option<Box<Index>>,
}

/// Sums of an evaluation, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub accesses: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
}

impl Sums {
    pub fn add(&mut self, access: &PreparedAccess, bytes: u64) {
        self.accesses += 1;
        // A damaged template may claim anything.
        let add = |sum: &mut u64| *sum = sum.saturating_add(bytes);
        match access.direction {
            Direction::Read => add(&mut self.read_bytes),
            Direction::Write => add(&mut self.written_bytes),
        }
        match access.kind {
            TensorKind::Weight => add(&mut self.weight_bytes),
            TensorKind::KvCache => add(&mut self.kv_bytes),
            TensorKind::Activation | TensorKind::Input => {}
        }
    }

    pub fn add_all(&mut self, other: &Sums) {
        self.accesses += other.accesses;
        for (sum, more) in [
            (&mut self.read_bytes, other.read_bytes),
            (&mut self.written_bytes, other.written_bytes),
            (&mut self.weight_bytes, other.weight_bytes),
            (&mut self.kv_bytes, other.kv_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl Prepared {
    /// `Err` says what of the template cannot be; its evaluations have no rows anywhere.
    pub(crate) fn new(
        definitions: &Definitions,
        template: &Template,
        tensors: &Tensors,
        of_stream: &[u32],
    ) -> Result<Prepared, String> {
        let mut prepared = Prepared {
            device: template.device.and_then(|n| Device::of(definitions, n)),
            routers: routers(template)?,
            ..Prepared::default()
        };
        for (number, step) in template.steps.iter().enumerate() {
            let first = prepared.accesses.len();
            let mut sums = Sums::default();
            let mut has_index = false;
            for def in &step.accesses {
                let at = of_stream[def.tensor as usize];
                let tensor = &tensors.all()[at as usize];
                check_region(&def.region, tensor)?;
                let (unit, index) = match &def.region {
                    Region::Fixed(region) => (region, None),
                    Region::Indexed(indexed) => {
                        let index = Index::new(template, indexed, &prepared.routers);
                        (&indexed.unit, Some(Box::new(index)))
                    }
                };
                has_index |= index.is_some();
                let access = PreparedAccess {
                    step: number,
                    tensor: at,
                    kind: tensor.kind,
                    place: tensor.place,
                    direction: def.direction,
                    operand: def.operand,
                    bytes: unit.bytes(),
                    unit: unit.clone(),
                    index,
                };
                sums.add(&access, access.bytes);
                if access.kind == TensorKind::KvCache {
                    prepared.kv.push(prepared.accesses.len());
                }
                let elements = access.index.as_ref().map_or(1, |index| index.elements);
                let all = access.bytes.saturating_mul(elements);
                prepared.bytes = prepared.bytes.saturating_add(all);
                prepared.accesses.push(access);
            }
            prepared.steps.push(PreparedStep {
                op: definitions.text(step.op).into(),
                name: definitions.name(step.name).into(),
                layer: step.layer,
                node: step.node,
                fused_nodes: step.fused_nodes,
                op_is_known: step.op_is_known,
                first,
                end: prepared.accesses.len(),
                has_index,
                sums,
            });
        }
        Ok(prepared)
    }

    /// Access `at` writes bytes that its step reads, too: what lies there is changed, nothing is
    /// added.
    pub(crate) fn is_in_place(&self, at: usize) -> bool {
        let access = &self.accesses[at];
        let step = &self.steps[access.step];
        self.accesses[step.first..step.end].iter().any(|other| {
            other.direction == Direction::Read
                && (other.tensor, &other.unit) == (access.tensor, &access.unit)
                && other.index.is_none()
                && access.index.is_none()
        })
    }
}

/// Larger iteration spaces are damage: a batch of 65,536 tokens times 4,096 rows.
const MAX_ELEMENTS: u64 = 1 << 28;

/// `Err` if a region cannot be: offsets and sizes must be signed 64-bit numbers, as pandas
/// and Spark have them.
fn check_region(region: &Region<u32>, tensor: &Tensor) -> Result<(), String> {
    let (unit, end, elements) = match region {
        Region::Fixed(region) => (region, region.end(), Some(1)),
        Region::Indexed(indexed) => {
            let mut count = indexed.count.iter();
            let elements = count.try_fold(1u64, |n, &c| n.checked_mul(c));
            (&indexed.unit, indexed.end(), elements)
        }
    };
    let file_offset = tensor.place.map_or(0, |p| p.file_offset);
    let last = end.and_then(|end| end.checked_add(file_offset));
    let runs = unit
        .dims
        .iter()
        .try_fold(1u64, |n, &(count, _)| n.checked_mul(count));
    let bytes = runs.and_then(|runs| runs.checked_mul(unit.run_bytes));
    let fits = |n: Option<u64>| n.is_some_and(|n| i64::try_from(n).is_ok());
    if !(fits(last) && fits(bytes) && fits(Some(unit.run_bytes))) {
        let name = &tensor.name;
        return Err(format!(
            "a region of tensor {name} is larger than a table can say"
        ));
    }
    if elements.is_none_or(|n| n > MAX_ELEMENTS) {
        let name = &tensor.name;
        return Err(format!("tensor {name} is indexed more often than can be"));
    }
    Ok(())
}
