//! A template, prepared: what all its evaluations share, and how the rest is kept.

use std::collections::HashMap;

use reader::prepared::check_region;
use trace::{
    expand::is_merged,
    read::{Definitions, Evaluation},
    region::{IndexOrder, Indexed, Region, Strided},
    template::{CaptureKind, Direction, Step, Template, TensorKind},
};

use crate::{blocks::Blocks, catalog::Catalog};

/// Expert ids are kept in 16 bits; this one means "none".
pub const NO_EXPERT: u16 = u16::MAX;

/// One step of a template.
#[derive(Debug)]
pub struct GraphStep {
    pub op: u32,
    pub layer: u32,
    pub name: u32,
    /// Its accesses: `first..end` of [`Graph::accesses`].
    pub first: u32,
    pub end: u32,
    /// The tensor that it is about: a weight before a KV cache before its result.
    pub primary: Option<u32>,
    /// Component or kind of that; `activation` where there is none.
    pub part: u32,
}

/// One access of a template.
#[derive(Debug)]
pub struct GraphAccess {
    pub step: u32,
    pub tensor: u32,
    pub part: u32,
    pub direction: Direction,
    /// Read from a weight: what maps of the file show.
    pub is_weight_read: bool,
    /// Distinct bytes; with an index, of one unit.
    pub bytes: u64,
    pub touch: Touch,
}

/// Where an access goes, and what decides that.
#[derive(Debug)]
pub enum Touch {
    /// `span` bytes from `offset` of the tensor, of which `bytes` are touched.
    Fixed { offset: u64, span: u64 },
    /// A unit for each expert that the batch uses.
    Slices { router: u32, unit: Unit, class: u32 },
    /// A unit for each choice of an expert.
    Each { router: u32, unit: Unit, class: u32 },
    /// A unit for each value of an index array, `kept` among those kept.
    Rows { kept: u32, unit: Unit, class: u32 },
    /// Not a weight: only how many and how much.
    Counted { class: u32 },
    /// None of these; its evaluations are kept access by access.
    Odd,
}

/// What index 0 touches, and how far the others are from it.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    pub offset: u64,
    pub span: u64,
    pub stride: u64,
    pub bound: u64,
}

/// Expert ids that evaluations hold, and where.
#[derive(Debug)]
pub struct Router {
    pub capture: usize,
    pub weights: Option<usize>,
    pub layer: u32,
    pub used: u32,
    pub elements: u32,
    /// First id among those of an evaluation.
    pub ids_at: u32,
    pub experts: u32,
    /// First expert among those of all routers of the graph.
    pub first_expert: u32,
}

/// An index array whose values are kept.
#[derive(Debug)]
pub struct KeptRows {
    pub capture: usize,
    pub at: u32,
    pub elements: u32,
}

/// How an indexed access is counted without looking at where it goes.
#[derive(Debug)]
pub enum Counting {
    /// Values of a capture below a bound.
    Values { capture: usize, bound: u64 },
    /// Distinct ones of a router.
    Distinct { router: u32, bound: u64 },
    /// By expanding a template of this access alone.
    Expanded(Box<Template>),
}

/// Accesses and bytes of an indexed access, evaluation by evaluation. Nearly
/// always the same; where they differ, the differences are kept, summed up.
#[derive(Debug)]
pub struct Class {
    pub counting: Counting,
    pub unit_bytes: u64,
    usual: Option<(u64, u64)>,
    /// Rank, and the sums of differences up to and with it.
    differences: Vec<(u32, i64, i64)>,
}

impl Class {
    fn new(counting: Counting, unit_bytes: u64) -> Class {
        Class {
            counting,
            unit_bytes,
            usual: None,
            differences: Vec::new(),
        }
    }

    /// Appends the evaluation with the next rank.
    pub fn push(&mut self, rank: u32, (count, bytes): (u64, u64)) {
        let usual = *self.usual.get_or_insert((count, bytes));
        if usual != (count, bytes) {
            let (c, b) = self.differences.last().map_or((0, 0), |d| (d.1, d.2));
            let count = c.wrapping_add(count.wrapping_sub(usual.0) as i64);
            let bytes = b.wrapping_add(bytes.wrapping_sub(usual.1) as i64);
            self.differences.push((rank, count, bytes));
        }
    }

    /// Accesses and bytes of the evaluations with these ranks.
    pub fn sum(&self, from: u32, to: u32) -> (u64, u64) {
        let n = u64::from(to.saturating_sub(from));
        let (count, bytes) = self.usual.unwrap_or_default();
        let (count, bytes) = (n.wrapping_mul(count), n.wrapping_mul(bytes));
        if self.differences.is_empty() {
            return (count, bytes);
        }
        let before = |rank| {
            let at = self.differences.partition_point(|d| d.0 < rank);
            at.checked_sub(1).map_or((0, 0), |at| {
                (self.differences[at].1, self.differences[at].2)
            })
        };
        let (a, b) = (before(from), before(to));
        (
            count.wrapping_add(b.0.wrapping_sub(a.0) as u64),
            bytes.wrapping_add(b.1.wrapping_sub(a.1) as u64),
        )
    }
}

/// A template, and the evaluations of it that are as one expects.
#[derive(Debug)]
pub struct Graph {
    pub steps: Vec<GraphStep>,
    pub accesses: Vec<GraphAccess>,
    pub routers: Vec<Router>,
    pub rows: Vec<KeptRows>,
    pub classes: Vec<Class>,
    pub has_odd: bool,
    pub tokens: Option<usize>,
    pub positions: Option<usize>,
    pub outputs: Option<usize>,
    /// Values that an evaluation keeps: ids, and rows.
    pub ids: u32,
    pub kept_rows: u32,
    /// Of the regular evaluations, by rank: their place in the list of all.
    pub evals: Vec<u32>,
    pub blocks: Blocks,
}

impl Graph {
    /// `Err` says why its evaluations are left out; the tables leave out the same.
    pub fn new(
        definitions: &Definitions,
        template: &Template,
        tensors: &[u32],
        catalog: &mut Catalog,
    ) -> Result<Graph, String> {
        let position = |kind| template.captures.iter().position(|c| c.kind == kind);
        let mut graph = Graph {
            steps: Vec::with_capacity(template.steps.len()),
            accesses: Vec::new(),
            routers: Vec::new(),
            rows: Vec::new(),
            classes: Vec::new(),
            has_odd: false,
            tokens: position(CaptureKind::Tokens),
            positions: position(CaptureKind::Positions),
            outputs: position(CaptureKind::OutputRows),
            ids: 0,
            kept_rows: 0,
            evals: Vec::new(),
            blocks: Blocks::default(),
        };
        graph.find_routers(template)?;
        let mut numbers = HashMap::new();
        for (number, step) in template.steps.iter().enumerate() {
            let first = graph.accesses.len() as u32;
            for (at, def) in step.accesses.iter().enumerate() {
                let place = definitions.tensors[def.tensor as usize].place;
                let name = || definitions.tensor_name(def.tensor);
                check_region(&def.region, place, name)?;
                let tensor = tensors[def.tensor as usize];
                let about = &mut catalog.tensors[tensor as usize];
                let (bytes, touch) = match &def.region {
                    Region::Fixed(region) => (
                        region.bytes(),
                        Touch::Fixed {
                            offset: region.offset,
                            span: span(region),
                        },
                    ),
                    Region::Indexed(indexed) => {
                        let touch = graph.touch(
                            template,
                            (number, at),
                            indexed,
                            about.is_weight(),
                            &mut numbers,
                        );
                        if let Touch::Slices { router, .. } = touch {
                            let experts = graph.routers[router as usize].experts;
                            about.experts = about.experts.max(experts);
                        }
                        (indexed.unit.bytes(), touch)
                    }
                };
                graph.has_odd |= matches!(touch, Touch::Odd);
                graph.accesses.push(GraphAccess {
                    step: number as u32,
                    tensor,
                    part: about.part,
                    direction: def.direction,
                    is_weight_read: about.is_weight() && def.direction == Direction::Read,
                    bytes,
                    touch,
                });
            }
            let of_step = &graph.accesses[first as usize..];
            let of_kind = |kind| {
                let found = |a: &&GraphAccess| catalog.tensors[a.tensor as usize].kind == kind;
                of_step.iter().find(found).map(|a| a.tensor)
            };
            let primary = of_kind(TensorKind::Weight)
                .or_else(|| of_kind(TensorKind::KvCache))
                .or_else(|| of_step.last().map(|a| a.tensor));
            let part = primary.map(|t| catalog.tensors[t as usize].part);
            graph.steps.push(GraphStep {
                op: catalog.ops.number(definitions.text(step.op)),
                layer: catalog.layers.number(step.layer),
                name: catalog.names.number(definitions.name(step.name)),
                first,
                end: graph.accesses.len() as u32,
                primary,
                part: part.unwrap_or_else(|| catalog.parts.number("activation")),
            });
        }
        graph.blocks = Blocks::new(&graph);
        Ok(graph)
    }

    fn find_routers(&mut self, template: &Template) -> Result<(), String> {
        for (number, capture) in template.captures.iter().enumerate() {
            if capture.kind != CaptureKind::ExpertIds {
                continue;
            }
            let accesses = template.steps.iter().flat_map(|step| &step.accesses);
            let bounds = accesses.filter_map(|access| match &access.region {
                Region::Indexed(i) if i.capture as usize == number => Some(i.bound),
                _ => None,
            });
            let experts = bounds.max().unwrap_or(0).min(u64::from(NO_EXPERT)) as u32;
            let pair = Some(number as u32);
            let is_pair = |c: &trace::template::CaptureDef| {
                c.kind == CaptureKind::ExpertWeights && c.pair == pair
            };
            let elements = u32::try_from(capture.elements())
                .ok()
                .filter(|&n| n <= 1 << 24)
                .ok_or("a batch chooses more experts than can be")?;
            let first_expert = self.experts();
            self.routers.push(Router {
                capture: number,
                weights: template.captures.iter().position(is_pair),
                layer: capture.layer.unwrap_or(0),
                used: capture.count[0].clamp(1, 1 << 24) as u32,
                elements,
                ids_at: self.ids,
                experts,
                first_expert,
            });
            self.ids += elements;
            if self.ids > 1 << 26 {
                return Err("a batch chooses more experts than can be".into());
            }
        }
        Ok(())
    }

    /// Experts of all routers.
    pub fn experts(&self) -> u32 {
        self.routers
            .last()
            .map_or(0, |r| r.first_expert + r.experts)
    }

    fn touch(
        &mut self,
        template: &Template,
        place: (usize, usize),
        indexed: &Indexed<u32>,
        is_weight: bool,
        numbers: &mut HashMap<Indexed<u32>, u32>,
    ) -> Touch {
        let capture = &template.captures[indexed.capture as usize];
        let router = self
            .routers
            .iter()
            .position(|r| r.capture == indexed.capture as usize);
        let is_each = indexed.order == IndexOrder::EachInOrder;
        let is_collapsed = is_merged(indexed);
        // One access for each value, and the value alone says where.
        let is_plain = is_each
            && !is_collapsed
            && indexed.count == capture.count.map(|n| n.max(1))
            && (indexed.count[1..].iter().zip(indexed.outer_strides))
                .all(|(&count, stride)| count == 1 || stride == 0);
        let is_small = indexed.bound < u64::from(NO_EXPERT);
        let unit = Unit {
            offset: indexed.unit.offset,
            span: span(&indexed.unit),
            stride: indexed.stride,
            bound: indexed.bound,
        };
        let counting = match router {
            Some(router) if !is_each && is_small => Counting::Distinct {
                router: router as u32,
                bound: indexed.bound,
            },
            _ if is_plain => Counting::Values {
                capture: indexed.capture as usize,
                bound: indexed.bound,
            },
            _ => Counting::Expanded(Box::new(alone(template, place))),
        };
        let is_expanded = matches!(counting, Counting::Expanded(_));
        let names_experts = router.is_some() && !is_collapsed;
        // Sums by expert are kept per router, so its accesses must agree on how many
        // there are.
        let is_of_router =
            router.is_none_or(|r| indexed.bound == u64::from(self.routers[r].experts));
        if (is_expanded && is_weight) || (names_experts && (is_expanded || !is_of_router)) {
            return Touch::Odd;
        }
        let class = *numbers.entry(indexed.clone()).or_insert_with(|| {
            let class = Class::new(counting, indexed.unit.bytes());
            self.classes.push(class);
            self.classes.len() as u32 - 1
        });
        match router.filter(|_| names_experts) {
            Some(router) if !is_each => Touch::Slices {
                router: router as u32,
                unit,
                class,
            },
            Some(router) if is_small => Touch::Each {
                router: router as u32,
                unit,
                class,
            },
            Some(_) => Touch::Odd,
            None if !is_weight => Touch::Counted { class },
            None if indexed.bound >= u64::from(u32::MAX) => Touch::Odd,
            None => match self.keep_rows(indexed.capture as usize, capture.elements()) {
                Some(kept) => Touch::Rows { kept, unit, class },
                None => Touch::Odd,
            },
        }
    }

    fn keep_rows(&mut self, capture: usize, elements: u64) -> Option<u32> {
        if let Some(known) = self.rows.iter().position(|r| r.capture == capture) {
            return Some(known as u32);
        }
        let elements = u32::try_from(elements).ok().filter(|&n| n <= 1 << 22)?;
        self.rows.push(KeptRows {
            capture,
            at: self.kept_rows,
            elements,
        });
        self.kept_rows = self.kept_rows.checked_add(elements)?;
        Some(self.rows.len() as u32 - 1)
    }

    /// Tokens of an evaluation's batch.
    pub fn batch<'e>(&self, evaluation: &'e Evaluation) -> &'e [i64] {
        values(evaluation, self.tokens)
    }
}

pub fn values(evaluation: &Evaluation, capture: Option<usize>) -> &[i64] {
    capture
        .and_then(|c| evaluation.captures.get(c))
        .map_or(&[], Vec::as_slice)
}

/// A template of one access.
fn alone(template: &Template, (step, access): (usize, usize)) -> Template {
    let step = &template.steps[step];
    Template {
        nodes: 1,
        steps: vec![Step {
            accesses: vec![step.accesses[access].clone()],
            ..step.clone()
        }],
        captures: template.captures.clone(),
    }
}

fn span(region: &Strided) -> u64 {
    region.end().unwrap_or(u64::MAX) - region.offset
}
