//! A template, prepared: what all its evaluations share, and what varies.

use trace::{
    expand::is_merged,
    read::Definitions,
    region::{IndexOrder, Indexed, Region, Strided},
    template::{CaptureKind, Direction, Step, Template, TensorKind},
};

use crate::catalog::{Catalog, Group};

/// No model has more experts in a layer; a larger bound is damage.
pub const MAX_EXPERTS: u64 = 1 << 16;
/// Marks an access that is no weight's.
pub const NO_UNIT: u32 = u32::MAX;

/// An access whose bytes the template fixes.
#[derive(Clone, Debug)]
pub struct Fixed {
    pub step: u32,
    pub group: u32,
    /// Catalogue number of a weight or KV tensor.
    pub tensor: Option<u32>,
    pub unit: u32,
    pub bytes: u64,
    /// Within the tensor.
    pub begin: u64,
    pub end: u64,
    /// Of a weight, where it has gaps.
    pub(crate) region: Option<Box<Strided>>,
}

/// An access whose bytes an index array decides.
#[derive(Clone, Debug)]
pub struct Varying {
    pub step: u32,
    pub group: u32,
    pub tensor: Option<u32>,
    /// Unit of index 0; the others follow if `is_sliced`.
    pub(crate) unit: u32,
    pub(crate) is_sliced: bool,
    pub(crate) unit_bytes: u64,
    /// Bytes from first to last of one unit, and its first byte.
    pub(crate) span_bytes: u64,
    pub(crate) first_byte: u64,
    pub(crate) indexed: Indexed<u32>,
    /// A template of this access alone, for what has no short cut.
    pub(crate) alone: Option<Template>,
}

/// An access to a weight, in execution order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    Fixed(u32),
    Varying(u32),
}

/// A template, prepared.
#[derive(Debug)]
pub struct Layout {
    pub fixed: Vec<Fixed>,
    pub varying: Vec<Varying>,
    /// Time group of each step.
    pub step_groups: Vec<u32>,
    /// Experts that the ids of this capture choose from, and its layer.
    pub routers: Vec<Router>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) tokens_capture: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Router {
    pub layer: u32,
    pub experts: u32,
    /// Chosen per token.
    pub used: u32,
}

impl Layout {
    pub(crate) fn new(
        definitions: &Definitions,
        template: &Template,
        catalog: &mut Catalog,
    ) -> Layout {
        let mut layout = Layout {
            fixed: Vec::new(),
            varying: Vec::new(),
            step_groups: Vec::with_capacity(template.steps.len()),
            routers: Vec::new(),
            slots: Vec::new(),
            tokens_capture: template
                .captures
                .iter()
                .position(|c| c.kind == CaptureKind::Tokens),
        };
        for (number, step) in template.steps.iter().enumerate() {
            let mut of_tensors = Vec::with_capacity(step.accesses.len());
            for (at, access) in step.accesses.iter().enumerate() {
                let tensor = catalog.tensor(definitions, access.tensor);
                let kind = definitions.tensors[access.tensor as usize].kind;
                let weight = tensor.filter(|_| kind == TensorKind::Weight);
                let meaning = weight.map(|t| &catalog.tensors[t as usize].meaning);
                let group = Group {
                    kind,
                    part: meaning
                        .map_or(kind.name(), |m| m.component.name())
                        .to_owned(),
                    role: meaning.map(|m| m.role.to_string()),
                    op: definitions.text(step.op),
                    layer: step.layer,
                    direction: match access.direction {
                        Direction::Read => "read",
                        Direction::Write => "write",
                    },
                };
                of_tensors.push((kind, group.part.clone()));
                let group = catalog.group(group);
                let is_weight = weight.is_some();
                match &access.region {
                    Region::Fixed(region) => {
                        let unit = weight.map_or(NO_UNIT, |t| catalog.whole_unit(t));
                        if is_weight {
                            layout.slots.push(Slot::Fixed(layout.fixed.len() as u32));
                        }
                        layout.fixed.push(Fixed {
                            step: number as u32,
                            group,
                            tensor,
                            unit,
                            bytes: region.bytes(),
                            begin: region.offset,
                            end: region.end().unwrap_or(u64::MAX),
                            region: (is_weight && !region.dims.is_empty())
                                .then(|| Box::new(region.clone())),
                        });
                    }
                    Region::Indexed(indexed) => {
                        if is_weight {
                            layout
                                .slots
                                .push(Slot::Varying(layout.varying.len() as u32));
                        }
                        let place = (number as u32, at, group);
                        let varying =
                            Varying::new(template, place, tensor, weight, indexed, catalog);
                        layout.varying.push(varying);
                    }
                }
            }
            let part = part_of(&of_tensors);
            layout
                .step_groups
                .push(catalog.time_group(definitions, step, part));
        }
        layout.routers = routers(template);
        layout
    }
}

/// What a step works on: a weight before the KV cache before anything else.
fn part_of(tensors: &[(TensorKind, String)]) -> String {
    let of = |wanted| tensors.iter().find(|(kind, _)| *kind == wanted);
    of(TensorKind::Weight)
        .or(of(TensorKind::KvCache))
        .map_or_else(
            || TensorKind::Activation.name().to_owned(),
            |(_, part)| part.clone(),
        )
}

fn routers(template: &Template) -> Vec<Router> {
    let mut routers = Vec::new();
    for (number, capture) in template.captures.iter().enumerate() {
        if capture.kind != CaptureKind::ExpertIds {
            continue;
        }
        let accesses = template.steps.iter().flat_map(|step| &step.accesses);
        let bounds = accesses.filter_map(|access| match &access.region {
            Region::Indexed(i) if i.capture as usize == number => Some(i.bound),
            _ => None,
        });
        routers.push(Router {
            layer: capture.layer.unwrap_or(0),
            experts: bounds.max().unwrap_or(0).min(MAX_EXPERTS) as u32,
            used: capture.count[0].clamp(1, MAX_EXPERTS) as u32,
        });
    }
    routers
}

impl Varying {
    fn new(
        template: &Template,
        (step, at, group): (u32, usize, u32),
        tensor: Option<u32>,
        weight: Option<u32>,
        indexed: &Indexed<u32>,
        catalog: &mut Catalog,
    ) -> Varying {
        let capture = &template.captures[indexed.capture as usize];
        let is_collapsed = is_merged(indexed);
        let is_sliced = weight.is_some()
            && capture.kind == CaptureKind::ExpertIds
            && indexed.bound <= MAX_EXPERTS
            && !is_collapsed;
        let unit = match weight {
            None => NO_UNIT,
            Some(tensor) if is_sliced => catalog.slice_units(tensor, indexed.bound as u32),
            Some(tensor) => catalog.whole_unit(tensor),
        };
        let is_row_list = indexed.count[1] == 1
            && indexed.count[2] == 1
            && indexed.count[0] <= capture.count[0].max(1);
        let has_short_cut = match indexed.order {
            IndexOrder::DistinctAscending => indexed.bound <= MAX_EXPERTS,
            IndexOrder::EachInOrder => is_row_list && !is_collapsed,
        } && (weight.is_none() || indexed.unit.dims.is_empty());
        let alone = (!has_short_cut).then(|| Template {
            nodes: 1,
            steps: vec![Step {
                accesses: vec![template.steps[step as usize].accesses[at].clone()],
                ..template.steps[step as usize].clone()
            }],
            captures: template.captures.clone(),
        });
        let end = indexed.unit.end().unwrap_or(u64::MAX);
        Varying {
            step,
            group,
            tensor,
            unit,
            is_sliced,
            unit_bytes: indexed.unit.bytes(),
            span_bytes: end - indexed.unit.offset,
            first_byte: indexed.unit.offset,
            indexed: indexed.clone(),
            alone,
        }
    }
}
