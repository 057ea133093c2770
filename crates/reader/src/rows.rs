//! Rows of the tables, one function each, whatever format they end up in.
//!
//! The columns are those of [`crate::tables`], in their order. CSV and JSON lines take the
//! rows of accesses one by one; the ingest takes the fixed values of each access of a
//! template once, because they repeat with every evaluation: both from
//! [`fixed_access`] and [`indexed_access`].

use std::borrow::Cow;

use trace::{
    region::Strided,
    template::{Direction, Operand},
};

use crate::{
    device::{Device, Kernel, PROCESSOR, SeenCopy, Times},
    prepared::{Prepared, PreparedAccess, PreparedStep, Sums},
    seen::{Executed, Seen, SeenAccess},
    tensors::Tensor,
};

/// A field of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    Null,
    /// All integers are signed: pandas, Spark and SQL have no other 64-bit ones in common.
    /// Addresses and byte counts fit.
    Int(i64),
    Float(f32),
    Text(Cow<'a, str>),
}

impl<'a> Cell<'a> {
    pub fn int(value: impl Into<u64>) -> Cell<'a> {
        // What has its top bit set (a context's number) keeps its bits.
        Cell::Int(value.into() as i64)
    }

    pub fn int_or_null(value: Option<impl Into<u64>>) -> Cell<'a> {
        value.map_or(Cell::Null, Cell::int)
    }

    pub fn text(value: impl Into<Cow<'a, str>>) -> Cell<'a> {
        Cell::Text(value.into())
    }

    pub fn text_or_null(value: Option<impl Into<Cow<'a, str>>>) -> Cell<'a> {
        value.map_or(Cell::Null, Cell::text)
    }
}

/// Of [`crate::tables::TENSORS`].
pub fn tensor(tensor: &Tensor) -> [Cell<'_>; 14] {
    [
        Cell::int(tensor.number),
        Cell::text(&*tensor.name),
        Cell::text(tensor.kind.name()),
        Cell::text_or_null(tensor.component()),
        Cell::text_or_null(tensor.role()),
        Cell::int_or_null(tensor.meaning.as_ref().and_then(|m| m.layer)),
        Cell::text(tensor.type_name()),
        Cell::text(gguf::structure::shape_text(&tensor.ne)),
        Cell::int(tensor.size_bytes),
        Cell::int_or_null(tensor.place.map(|p| p.file)),
        Cell::int_or_null(tensor.place.map(|p| p.file_offset)),
        Cell::text(&*tensor.buffer_type),
        Cell::int(tensor.address),
        Cell::text_or_null(tensor.device()),
    ]
}

/// Of [`crate::tables::EVALS`].
pub fn eval<'a>(seen: &Seen<'a>, sums: &Sums) -> [Cell<'a>; 20] {
    let evaluation = seen.evaluation;
    let (device_begin, device_end) = seen.device_nanos().unzip();
    [
        Cell::int(seen.eval),
        Cell::int(seen.stream),
        Cell::text(evaluation.phase.name()),
        Cell::int(evaluation.begin_nanos),
        Cell::int(evaluation.end_nanos),
        Cell::int(seen.tokens()),
        Cell::int(seen.prepared.steps.len() as u64),
        Cell::int(evaluation.threads),
        Cell::int(evaluation.context),
        Cell::int(seen.template),
        Cell::int(evaluation.flags),
        Cell::int(sums.accesses),
        Cell::int(sums.read_bytes),
        Cell::int(sums.written_bytes),
        Cell::int(sums.weight_bytes),
        Cell::int(sums.kv_bytes),
        Cell::int_or_null(seen.waited_nanos()),
        Cell::text(seen.device_name()),
        Cell::int_or_null(device_begin),
        Cell::int_or_null(device_end),
    ]
}

/// Of [`crate::tables::TOKENS`].
pub fn tokens<'a>(seen: &'a Seen) -> impl Iterator<Item = [Cell<'static>; 7]> + 'a {
    let (evaluation, positions) = (seen.evaluation, seen.positions());
    let ids = seen.token_ids().iter().enumerate();
    ids.map(move |(i, &id)| {
        [
            Cell::int(seen.first_token + i as u64),
            Cell::int(seen.eval),
            Cell::text(
                evaluation
                    .token_phases
                    .get(i)
                    .map_or("unknown", |p| p.name()),
            ),
            Cell::Int(id),
            Cell::text_or_null(seen.token_text(id)),
            positions.get(i).map_or(Cell::Null, |&p| Cell::Int(p)),
            Cell::int_or_null(evaluation.sequences.get(i).copied()),
        ]
    })
}

/// What a template fixes of [`crate::tables::NODES`].
pub const NODE_FIXED: [&str; 7] = [
    "step",
    "node",
    "fused_nodes",
    "op",
    "name",
    "layer",
    "device",
];

pub fn fixed_node(prepared: &Prepared, number: usize) -> [Cell<'_>; NODE_FIXED.len()] {
    let step = &prepared.steps[number];
    let device = prepared.device.as_ref();
    [
        Cell::int(number as u64),
        Cell::int(step.node),
        Cell::int(step.fused_nodes),
        Cell::text(&*step.op),
        Cell::text(&*step.name),
        Cell::int_or_null(step.layer),
        Cell::text(device.map_or(PROCESSOR, |device| &device.name)),
    ]
}

/// Of [`crate::tables::NODES`].
pub fn node<'a>(seen: &Seen<'a>, executed: &Executed) -> [Cell<'a>; 11] {
    let [step, node, fused, op, name, layer, device] = fixed_node(seen.prepared, executed.number);
    let [begin, end, duration] = times(executed.times);
    [
        Cell::int(seen.eval),
        step,
        node,
        fused,
        op,
        name,
        layer,
        device,
        begin,
        end,
        duration,
    ]
}

/// Begin, end, and what was its own: null where nobody measured them.
fn times(times: Option<Times>) -> [Cell<'static>; 3] {
    times.map_or([const { Cell::Null }; 3], |times| {
        [times.begin_nanos, times.end_nanos, times.nanos].map(Cell::int)
    })
}

/// Of [`crate::tables::DEVICES`].
pub fn device(device: &Device) -> [Cell<'_>; 3] {
    [
        Cell::text(&*device.name),
        Cell::text(&*device.description),
        Cell::int_or_null(device.memory_bytes),
    ]
}

/// What a graph's launches fix of [`crate::tables::KERNELS`].
pub const KERNEL_FIXED: [&str; 7] = ["step", "kernel", "device", "kind", "name", "grid", "block"];

pub fn fixed_kernel<'a>(
    prepared: &'a Prepared,
    number: usize,
    kernel: &'a Kernel,
) -> [Cell<'a>; KERNEL_FIXED.len()] {
    let device = prepared.device.as_ref();
    let size = |[x, y, z]: [u32; 3]| Cell::text(format!("{x}x{y}x{z}"));
    [
        Cell::int_or_null(kernel.step),
        Cell::int(number as u64),
        Cell::text(device.map_or(PROCESSOR, |device| &device.name)),
        Cell::text(kernel.kind.name()),
        Cell::text(&*kernel.name),
        size(kernel.grid),
        size(kernel.block),
    ]
}

/// Of [`crate::tables::KERNELS`].
pub fn kernels<'a>(seen: &Seen<'a>) -> impl Iterator<Item = [Cell<'a>; 11]> {
    let (eval, prepared, measured) = (seen.eval, seen.prepared, seen.kernel_times());
    let kernels = seen.kernels.iter().enumerate();
    kernels.map(move |(number, of)| {
        let [step, kernel, device, kind, name, grid, block] = fixed_kernel(prepared, number, of);
        let measured = measured
            .as_ref()
            .map(|measured| measured[number])
            .filter(Times::is_measured);
        let [begin, end, exclusive] = times(measured);
        [
            Cell::int(eval),
            step,
            kernel,
            device,
            kind,
            name,
            grid,
            block,
            begin,
            end,
            exclusive,
        ]
    })
}

/// Of [`crate::tables::COPIES`].
pub fn copy<'a>(seen: &SeenCopy<'a>) -> [Cell<'a>; 13] {
    let (copy, tensor) = (seen.copy, seen.tensor);
    [
        Cell::int(seen.number),
        Cell::int(seen.eval),
        Cell::int(copy.context),
        Cell::text(&*seen.device.name),
        Cell::text(copy.way.name()),
        Cell::int(tensor.number),
        Cell::text(&*tensor.name),
        Cell::text(tensor.kind.name()),
        Cell::int(copy.tensor_offset),
        Cell::int(copy.bytes),
        Cell::int(copy.is_async),
        Cell::int(copy.begin_nanos),
        Cell::int(copy.end_nanos),
    ]
}

/// What a template fixes of [`crate::tables::ACCESSES`], or fixes but for an index: those
/// from [`FIRST_INDEXED`] on.
pub const ACCESS_FIXED: [&str; 17] = [
    "step",
    "op",
    "layer",
    "tensor",
    "tensor_name",
    "kind",
    "component",
    "role",
    "direction",
    "operand",
    "file",
    "file_offset",
    "tensor_offset",
    "bytes",
    "runs",
    "run_bytes",
    "strides",
];
pub const FIRST_INDEXED: usize = 11;

pub fn fixed_access<'a>(
    step: &'a PreparedStep,
    access: &PreparedAccess,
    tensor: &'a Tensor,
) -> [Cell<'a>; ACCESS_FIXED.len()] {
    let operand = match access.operand {
        Operand::Source(n) => Cell::text(format!("src{n}")),
        Operand::Destination => Cell::text("dst"),
    };
    let [file_offset, tensor_offset, bytes, runs, run_bytes, strides] =
        indexed_access(access, &access.unit);
    [
        Cell::int(access.step as u64),
        Cell::text(&*step.op),
        Cell::int_or_null(step.layer),
        Cell::int(tensor.number),
        Cell::text(&*tensor.name),
        Cell::text(tensor.kind.name()),
        Cell::text_or_null(tensor.component_in(&step.op)),
        Cell::text_or_null(tensor.role()),
        Cell::text(direction_name(access.direction)),
        operand,
        Cell::int_or_null(access.place.map(|p| p.file)),
        file_offset,
        tensor_offset,
        bytes,
        runs,
        run_bytes,
        strides,
    ]
}

/// Of the columns that an index changes.
pub fn indexed_access<'a>(access: &PreparedAccess, region: &Strided) -> [Cell<'a>; 6] {
    let place = access.place.map(|p| p.file_offset + region.offset);
    [
        Cell::int_or_null(place),
        Cell::int(region.offset),
        Cell::int(region.bytes()),
        Cell::int(runs(region)),
        Cell::int(region.run_bytes),
        Cell::text(strides(region)),
    ]
}

/// Of [`crate::tables::ACCESSES`].
pub fn access<'a>(seen: &Seen<'a>, executed: &Executed<'a>, of: &SeenAccess<'a>) -> [Cell<'a>; 24] {
    let tensor = &seen.tensors.all()[of.prepared.tensor as usize];
    let fixed = fixed_access(executed.step, of.prepared, tensor);
    let [
        step,
        op,
        layer,
        number,
        name,
        kind,
        component,
        role,
        direction,
        operand,
        file,
        ..,
    ] = fixed;
    let [file_offset, tensor_offset, bytes, runs, run_bytes, strides] =
        indexed_access(of.prepared, &of.access.region);
    let origin = seen.origin_of(of.at, of.access.expert, of.is_first);
    [
        Cell::int(seen.eval),
        step,
        op,
        layer,
        number,
        name,
        kind,
        component,
        role,
        Cell::text(seen.evaluation.phase.name()),
        direction,
        operand,
        Cell::int_or_null(of.access.expert),
        Cell::int_or_null(seen.token_of(of)),
        file,
        file_offset,
        tensor_offset,
        bytes,
        runs,
        run_bytes,
        strides,
        Cell::text_or_null(origin.map(|o| o.source.name())),
        Cell::int_or_null(origin.map(|o| o.waited_nanos)),
        Cell::int_or_null(seen.used_bytes(of.at)),
    ]
}

/// Of [`crate::tables::ROUTING`].
pub fn routing(seen: &Seen, mut f: impl FnMut([Cell<'static>; 6])) {
    seen.for_each_route(|route| {
        f([
            Cell::int(seen.eval),
            Cell::int(seen.first_token + u64::from(route.token)),
            Cell::int(route.layer),
            Cell::int(route.rank),
            Cell::int(route.expert),
            route.weight.map_or(Cell::Null, Cell::Float),
        ]);
    });
}

pub fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

/// Contiguous ranges of a region.
fn runs(region: &Strided) -> u64 {
    region.dims.iter().map(|&(count, _)| count).product()
}

/// `count x bytes` of each dimension, innermost first.
pub fn strides(region: &Strided) -> String {
    let parts = region.dims.iter();
    let parts: Vec<String> = parts.map(|(n, stride)| format!("{n}x{stride}")).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{ACCESSES, KERNELS, NODES};

    #[test]
    fn what_a_template_fixes_are_columns_of_the_tables() {
        for column in ACCESS_FIXED {
            ACCESSES.position(column);
        }
        for column in NODE_FIXED {
            NODES.position(column);
        }
        for column in KERNEL_FIXED {
            KERNELS.position(column);
        }
    }
}
