//! From an evaluation and its template to single accesses.

use std::collections::BTreeSet;

use crate::{
    read::Evaluation,
    region::{IndexOrder, Indexed, Region, Strided},
    template::{AccessDef, CaptureDef, CaptureKind, Template},
};

/// Rows shorter than a cache line that follow each other at a constant distance
/// (the transposed V cache) are given as one access, not as thousands.
const SMALL_UNIT_BYTES: u64 = 64;

/// Whether units of this access are merged when they follow each other: how many accesses
/// it makes then depends on the values.
pub fn is_merged(indexed: &Indexed<u32>) -> bool {
    indexed.order == IndexOrder::EachInOrder
        && indexed.unit.dims.is_empty()
        && indexed.unit.run_bytes < SMALL_UNIT_BYTES
}

/// One access, down to its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access<'t> {
    pub def: &'t AccessDef,
    /// Bytes of the root tensor.
    pub region: Strided,
    /// The expert whose slice it is.
    pub expert: Option<u32>,
    /// The element of the index array (the token, for an embedding or a KV row)
    /// that caused it.
    pub element: Option<u64>,
}

/// Calls `f` for each access of step `step`, which was executed
/// ([`Evaluation::was_executed`]). An index out of bounds causes no access; the
/// evaluation is flagged then.
pub fn for_each_access<'t>(
    template: &'t Template,
    evaluation: &Evaluation,
    step: usize,
    mut f: impl FnMut(Access<'t>),
) {
    for def in &template.steps[step].accesses {
        for_each_of(template, evaluation, def, &mut f);
    }
}

/// The same for one access of a step of `template`.
pub fn for_each_of<'t>(
    template: &Template,
    evaluation: &Evaluation,
    def: &'t AccessDef,
    mut f: impl FnMut(Access<'t>),
) {
    let indexed = match &def.region {
        Region::Fixed(region) => {
            return f(Access {
                def,
                region: region.clone(),
                expert: None,
                element: None,
            });
        }
        Region::Indexed(indexed) => indexed,
    };
    let values = evaluation
        .captures
        .get(indexed.capture as usize)
        .map_or(&[][..], Vec::as_slice);
    let capture = &template.captures[indexed.capture as usize];
    let is_expert = capture.kind == CaptureKind::ExpertIds;
    match indexed.order {
        IndexOrder::DistinctAscending => {
            let distinct: BTreeSet<u64> = in_bounds(indexed, values).collect();
            for value in distinct {
                f(Access {
                    def,
                    region: moved(&indexed.unit, value * indexed.stride),
                    expert: is_expert.then_some(value as u32),
                    element: None,
                });
            }
        }
        IndexOrder::EachInOrder => each_in_order(def, indexed, capture, values, &mut f),
    }
}

/// Accesses of a whole evaluation: of the steps that were executed.
pub fn count_accesses(template: &Template, evaluation: &Evaluation) -> u64 {
    let mut count = 0;
    for step in (0..template.steps.len()).filter(|&step| evaluation.was_executed(step)) {
        for_each_access(template, evaluation, step, |_| count += 1);
    }
    count
}

/// One token sent to one expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    pub layer: u32,
    /// Index of the token in the batch.
    pub token: u32,
    pub rank: u32,
    pub expert: u32,
    /// Router weight, where the graph has one.
    pub weight: Option<f32>,
}

/// Calls `f` for each choice of an expert, by layer, token and rank.
pub fn for_each_route(template: &Template, evaluation: &Evaluation, mut f: impl FnMut(Route)) {
    for (index, capture) in template.captures.iter().enumerate() {
        if capture.kind != CaptureKind::ExpertIds {
            continue;
        }
        let Some(ids) = evaluation.captures.get(index) else {
            continue;
        };
        let weights = template
            .captures
            .iter()
            .position(|c| c.kind == CaptureKind::ExpertWeights && c.pair == Some(index as u32))
            .and_then(|i| evaluation.captures.get(i));
        let used = capture.count[0].max(1) as usize;
        // Behind the last attention only the rows that are output are left.
        let batch = evaluation.first_of(template, CaptureKind::Tokens).len();
        let outputs = evaluation.first_of(template, CaptureKind::OutputRows);
        let rows = ids.len() / used;
        let is_reduced = rows != batch && rows == outputs.len();
        for (at, &id) in ids.iter().enumerate() {
            f(Route {
                layer: capture.layer.unwrap_or(0),
                token: if is_reduced {
                    outputs[at / used] as u32
                } else {
                    (at / used) as u32
                },
                rank: (at % used) as u32,
                expert: id as u32,
                weight: weights
                    .and_then(|w| w.get(at))
                    .map(|&bits| f32::from_bits(bits as u32)),
            });
        }
    }
}

fn in_bounds<'v>(indexed: &Indexed<u32>, values: &'v [i64]) -> impl Iterator<Item = u64> + 'v {
    let bound = indexed.bound;
    values
        .iter()
        .filter_map(move |&v| u64::try_from(v).ok())
        .filter(move |&v| v < bound)
}

fn each_in_order<'t>(
    def: &'t AccessDef,
    indexed: &Indexed<u32>,
    capture: &CaptureDef,
    values: &[i64],
    f: &mut impl FnMut(Access<'t>),
) {
    let collapse = is_merged(indexed);
    let [n0, n1, n2] = capture.count.map(|n| n.max(1));
    let is_expert = capture.kind == CaptureKind::ExpertIds;
    let mut run: Option<(u64, u64, u64, u64)> = None; // element, first offset, stride, count
    let flush = |run: Option<(u64, u64, u64, u64)>, f: &mut dyn FnMut(Access<'t>)| {
        if let Some((element, first, stride, count)) = run {
            let region = Strided::new(first, indexed.unit.run_bytes, [(count, stride)]);
            f(Access {
                def,
                region,
                expert: None,
                element: Some(element),
            });
        }
    };
    for i2 in 0..indexed.count[2] {
        for i1 in 0..indexed.count[1] {
            for i0 in 0..indexed.count[0] {
                let at = (i2 % n2) * n1 * n0 + (i1 % n1) * n0 + i0 % n0;
                let Some(value) = values.get(at as usize).and_then(|&v| u64::try_from(v).ok())
                else {
                    continue;
                };
                if value >= indexed.bound {
                    continue;
                }
                let shift = value * indexed.stride
                    + i1 * indexed.outer_strides[0]
                    + i2 * indexed.outer_strides[1];
                if !collapse {
                    let region = moved(&indexed.unit, shift);
                    // Rows that expert ids name (the biases of experts) are theirs.
                    let expert = is_expert.then_some(value as u32);
                    f(Access {
                        def,
                        region,
                        expert,
                        element: Some(at),
                    });
                    continue;
                }
                let offset = indexed.unit.offset + shift;
                run = match run {
                    Some((element, first, _, 1)) if offset > first => {
                        Some((element, first, offset - first, 2))
                    }
                    Some((element, first, stride, count))
                        if offset == first + stride * count && count > 1 =>
                    {
                        Some((element, first, stride, count + 1))
                    }
                    previous => {
                        flush(previous, f);
                        Some((at, offset, 0, 1))
                    }
                };
            }
        }
    }
    flush(run, f);
}

fn moved(unit: &Strided, by: u64) -> Strided {
    Strided {
        offset: unit.offset + by,
        ..unit.clone()
    }
}
