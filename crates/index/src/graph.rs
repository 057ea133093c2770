//! What all evaluations of a template share, and how the rest of them is kept.

use std::{collections::HashMap, ops::Deref, sync::Arc};

use reader::{Index, Prepared, device::PROCESSOR};
use trace::{
    region::{IndexOrder, Indexed, Strided},
    template::{Direction, TensorKind},
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
    router: reader::Router,
    /// First id among those of an evaluation.
    pub ids_at: u32,
    /// First expert among those of all routers of the graph.
    pub first_expert: u32,
}

impl Deref for Router {
    type Target = reader::Router;

    fn deref(&self) -> &reader::Router {
        &self.router
    }
}

/// An index array whose values are kept: that of an access.
#[derive(Debug)]
pub struct KeptRows {
    pub access: usize,
    capture: u32,
    pub at: u32,
    pub elements: u32,
}

/// How an indexed access is counted.
#[derive(Clone, Copy, Debug)]
pub enum Counting {
    /// A unit for each value of its index array.
    Values,
    /// A unit for each expert that a router chose.
    Distinct { router: u32 },
    /// By looking at each of them.
    Expanded,
}

/// Accesses and bytes of an indexed access, evaluation by evaluation. Nearly
/// always the same; where they differ, the differences are kept, summed up.
#[derive(Debug)]
pub struct Class {
    /// The first access that is indexed like this.
    pub access: usize,
    pub counting: Counting,
    usual: Option<(u64, u64)>,
    /// Rank, and the sums of differences up to and with it.
    differences: Vec<(u32, i64, i64)>,
}

impl Class {
    fn new(access: usize, counting: Counting) -> Class {
        Class {
            access,
            counting,
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
    /// That computes it, where it is not the processor.
    device: Option<Arc<str>>,
    pub steps: Vec<GraphStep>,
    pub accesses: Vec<GraphAccess>,
    pub routers: Vec<Router>,
    pub rows: Vec<KeptRows>,
    pub classes: Vec<Class>,
    pub has_odd: bool,
    /// Values that an evaluation keeps: ids, and rows.
    pub ids: u32,
    pub kept_rows: u32,
    /// Of the regular evaluations, by rank: their place in the list of all.
    pub evals: Vec<u32>,
    pub blocks: Blocks,
}

impl Graph {
    pub fn is_on_device(&self) -> bool {
        self.device.is_some()
    }

    /// As tables call what computes it.
    pub fn device_name(&self) -> &str {
        self.device.as_deref().unwrap_or(PROCESSOR)
    }

    pub fn new(prepared: &Prepared, catalog: &mut Catalog) -> Graph {
        let mut graph = Graph {
            device: prepared.device.as_ref().map(|device| device.name.clone()),
            steps: Vec::with_capacity(prepared.steps.len()),
            accesses: Vec::with_capacity(prepared.accesses.len()),
            routers: Vec::new(),
            rows: Vec::new(),
            classes: Vec::new(),
            has_odd: false,
            ids: 0,
            kept_rows: 0,
            evals: Vec::new(),
            blocks: Blocks::default(),
        };
        for &router in &prepared.routers {
            graph.routers.push(Router {
                router,
                ids_at: graph.ids,
                first_expert: graph.experts(),
            });
            graph.ids += router.elements;
        }
        let mut classes = HashMap::new();
        for (at, access) in prepared.accesses.iter().enumerate() {
            let tensor = catalog.numbers[access.tensor as usize];
            let about = &mut catalog.tensors[tensor as usize];
            let touch = match &access.index {
                None => Touch::Fixed {
                    offset: access.unit.offset,
                    span: span(&access.unit),
                },
                Some(index) => graph.touch(at, index, about.is_weight(), &mut classes),
            };
            if let Touch::Slices { router, .. } = touch {
                let experts = graph.routers[router as usize].experts;
                about.experts = about.experts.max(experts);
            }
            graph.has_odd |= matches!(touch, Touch::Odd);
            let part = about.part_of_use(&prepared.steps[access.step].op);
            about.is_tied |= part != about.part;
            graph.accesses.push(GraphAccess {
                step: access.step as u32,
                tensor,
                part,
                direction: access.direction,
                is_weight_read: about.is_weight() && access.direction == Direction::Read,
                bytes: access.bytes,
                touch,
            });
        }
        for step in &prepared.steps {
            let of_step = &graph.accesses[step.first..step.end];
            let of_kind = |kind| {
                let found = |a: &&GraphAccess| catalog.tensors[a.tensor as usize].kind == kind;
                of_step.iter().find(found).map(|a| a.tensor)
            };
            let primary = of_kind(TensorKind::Weight)
                .or_else(|| of_kind(TensorKind::KvCache))
                .or_else(|| of_step.last().map(|a| a.tensor));
            let part = primary.map(|t| catalog.tensors[t as usize].part_of_use(&step.op));
            graph.steps.push(GraphStep {
                op: catalog.ops.number(step.op.to_string()),
                layer: catalog.layers.number(step.layer),
                name: catalog.names.number(step.name.to_string()),
                first: step.first as u32,
                end: step.end as u32,
                primary,
                part: part.unwrap_or_else(|| catalog.parts.number("activation")),
            });
        }
        graph.blocks = Blocks::new(&graph);
        graph
    }

    /// Experts of all routers.
    pub fn experts(&self) -> u32 {
        self.routers
            .last()
            .map_or(0, |r| r.first_expert + r.experts)
    }

    fn touch<'a>(
        &mut self,
        at: usize,
        index: &'a Index,
        is_weight: bool,
        classes: &mut HashMap<&'a Indexed<u32>, u32>,
    ) -> Touch {
        let (indexed, router) = (&index.indexed, index.router);
        let is_each = indexed.order == IndexOrder::EachInOrder;
        let is_small = indexed.bound < u64::from(NO_EXPERT);
        let unit = Unit {
            offset: indexed.unit.offset,
            span: span(&indexed.unit),
            stride: indexed.stride,
            bound: indexed.bound,
        };
        let counting = match router {
            Some(router) if !is_each && is_small => Counting::Distinct { router },
            _ if is_each && index.is_plain => Counting::Values,
            _ => Counting::Expanded,
        };
        let is_expanded = matches!(counting, Counting::Expanded);
        let names_experts = router.is_some() && !index.is_merged;
        // Sums by expert are kept per router, so its accesses must agree on how many
        // there are, and be all that it chose.
        let is_of_router = router.is_none_or(|r| {
            let router = &self.routers[r as usize];
            indexed.bound == u64::from(router.experts)
                && (!is_each || index.elements == u64::from(router.elements))
        });
        if (is_expanded && is_weight) || (names_experts && (is_expanded || !is_of_router)) {
            return Touch::Odd;
        }
        let class = *classes.entry(indexed).or_insert_with(|| {
            self.classes.push(Class::new(at, counting));
            self.classes.len() as u32 - 1
        });
        match router.filter(|_| names_experts) {
            Some(router) if !is_each => Touch::Slices {
                router,
                unit,
                class,
            },
            Some(router) if is_small => Touch::Each {
                router,
                unit,
                class,
            },
            Some(_) => Touch::Odd,
            None if !is_weight => Touch::Counted { class },
            None if indexed.bound >= u64::from(u32::MAX) => Touch::Odd,
            None => match self.keep_rows(at, index) {
                Some(kept) => Touch::Rows { kept, unit, class },
                None => Touch::Odd,
            },
        }
    }

    fn keep_rows(&mut self, access: usize, index: &Index) -> Option<u32> {
        let capture = index.indexed.capture;
        let elements = u32::try_from(index.elements).ok();
        let elements = elements.filter(|&n| n <= 1 << 22)?;
        let is_same = |r: &KeptRows| (r.capture, r.elements) == (capture, elements);
        if let Some(known) = self.rows.iter().position(is_same) {
            return Some(known as u32);
        }
        self.rows.push(KeptRows {
            access,
            capture,
            at: self.kept_rows,
            elements,
        });
        self.kept_rows = self.kept_rows.checked_add(elements)?;
        Some(self.rows.len() as u32 - 1)
    }
}

fn span(region: &Strided) -> u64 {
    region.end().unwrap_or(u64::MAX) - region.offset
}
