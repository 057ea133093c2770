//! A filter, made ready: which evaluations, steps and accesses it keeps.

use std::{cell::OnceCell, collections::HashSet, ops::Range};

use trace::format::Phase;

use crate::{
    RunIndex,
    data::Eval,
    filter::Filter,
    graph::{Graph, GraphAccess, GraphStep, NO_EXPERT, Touch},
};

/// A filter in the numbers of the catalogue.
pub struct Selector {
    phases: Option<Vec<Phase>>,
    pub tokens: Option<(u64, u64)>,
    layers: Option<Vec<bool>>,
    parts: Option<Vec<bool>>,
    ops: Option<Vec<bool>>,
    /// By graph: each is computed by one device.
    graphs: Option<Vec<bool>>,
    /// By expert: as long as there are numbers, so that a look-up needs no check.
    pub experts: Option<Box<[bool; 1 << 16]>>,
}

impl Selector {
    pub fn new(index: &RunIndex, filter: &Filter) -> Selector {
        let catalog = &index.catalog;
        let experts = filter.experts.as_ref().map(|wanted| {
            let mut keeps = Box::new([false; 1 << 16]);
            for &expert in wanted.iter().filter(|&&e| e < u32::from(NO_EXPERT)) {
                keeps[expert as usize] = true;
            }
            keeps
        });
        Selector {
            phases: filter.phases.clone(),
            tokens: filter.tokens,
            layers: keep(&catalog.layers.all, &filter.layers),
            parts: keep(&catalog.parts.all, &filter.components),
            ops: keep(&catalog.ops.all, &filter.ops),
            graphs: filter.devices.as_ref().map(|wanted| {
                let keeps = |graph: &Graph| wanted.iter().any(|w| w == graph.device_name());
                index.graphs.iter().map(keeps).collect()
            }),
            experts,
        }
    }

    pub fn keeps_phase(&self, phase: Phase) -> bool {
        self.phases.as_ref().is_none_or(|p| p.contains(&phase))
    }

    pub fn keeps_eval(&self, eval: &Eval) -> bool {
        self.keeps_batch(eval) && self.keeps_graph(eval.graph)
    }

    /// Whoever computed it.
    pub fn keeps_batch(&self, eval: &Eval) -> bool {
        let tokens = eval.token_range();
        let in_range = |(first, last): (u64, u64)| tokens.start <= last && first < tokens.end;
        self.keeps_phase(eval.phase) && self.tokens.is_none_or(in_range)
    }

    fn keeps_graph(&self, graph: u32) -> bool {
        self.graphs.as_ref().is_none_or(|g| g[graph as usize])
    }

    pub fn keeps_token(&self, token: u64) -> bool {
        let in_range = |(first, last): (u64, u64)| first <= token && token <= last;
        self.tokens.is_none_or(in_range)
    }

    pub fn keeps_layer(&self, layer: u32) -> bool {
        self.layers.as_ref().is_none_or(|l| l[layer as usize])
    }

    pub fn keeps_step(&self, step: &GraphStep) -> bool {
        self.keeps_layer(step.layer) && self.keeps_op(step.op)
    }

    pub fn keeps_all_ops(&self) -> bool {
        self.ops.is_none()
    }

    pub fn keeps_op(&self, op: u32) -> bool {
        self.ops.as_ref().is_none_or(|o| o[op as usize])
    }

    pub fn keeps_part(&self, part: u32) -> bool {
        self.parts.as_ref().is_none_or(|p| p[part as usize])
    }

    /// Whether an access to this expert's slice (or to none) is kept.
    pub fn keeps_expert(&self, expert: u16) -> bool {
        self.experts.as_ref().is_none_or(|e| e[usize::from(expert)])
    }

    /// Whether a node needs an access that is kept in order to be kept.
    pub fn asks_for_accesses(&self) -> bool {
        self.parts.is_some() || self.experts.is_some()
    }
}

fn keep<T: PartialEq<W>, W>(all: &[T], wanted: &Option<Vec<W>>) -> Option<Vec<bool>> {
    let wanted = wanted.as_ref()?;
    let keeps = |one: &T| wanted.iter().any(|w| one == w);
    Some(all.iter().map(keeps).collect())
}

/// What a filter keeps of a graph, whatever the experts.
pub struct Mask {
    pub steps: Vec<bool>,
    pub accesses: Vec<bool>,
}

impl Mask {
    pub fn new(graph: &Graph, selector: &Selector) -> Mask {
        let steps: Vec<bool> = graph.steps.iter().map(|s| selector.keeps_step(s)).collect();
        let keeps = |a: &GraphAccess| steps[a.step as usize] && selector.keeps_part(a.part);
        Mask {
            accesses: graph.accesses.iter().map(keeps).collect(),
            steps,
        }
    }

    /// Accesses that are kept, with their numbers.
    pub fn kept<'g>(
        &self,
        graph: &'g Graph,
    ) -> impl Iterator<Item = (usize, &'g GraphAccess)> + use<'g, '_> {
        let all = graph.accesses.iter().enumerate();
        all.filter(|(at, _)| self.accesses[*at])
    }

    /// Of regular evaluations: each step that some evaluation keeps, with the
    /// routers that must have chosen a kept expert (none: it is always kept).
    pub fn nodes(&self, graph: &Graph, selector: &Selector) -> Vec<(usize, Vec<u32>)> {
        let mut nodes = Vec::new();
        for (number, step) in graph
            .steps
            .iter()
            .enumerate()
            .filter(|(n, _)| self.steps[*n])
        {
            let kept = (step.first as usize..step.end as usize).filter(|&a| self.accesses[a]);
            if !selector.asks_for_accesses() {
                nodes.push((number, Vec::new()));
            } else if selector.experts.is_none() {
                if kept.count() > 0 {
                    nodes.push((number, Vec::new()));
                }
            } else {
                let mut routers: Vec<u32> = kept
                    .filter_map(|a| match graph.accesses[a].touch {
                        Touch::Slices { router, .. } | Touch::Each { router, .. } => Some(router),
                        _ => None,
                    })
                    .collect();
                routers.dedup();
                if !routers.is_empty() {
                    nodes.push((number, routers));
                }
            }
        }
        nodes
    }
}

/// The masks of all graphs, each made when it is needed first.
pub struct Masks<'a> {
    index: &'a RunIndex,
    selector: &'a Selector,
    masks: Vec<OnceCell<Mask>>,
}

impl<'a> Masks<'a> {
    pub fn new(index: &'a RunIndex, selector: &'a Selector) -> Masks<'a> {
        Masks {
            index,
            selector,
            masks: index.graphs.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    pub fn of(&self, graph: u32) -> &Mask {
        let make = || Mask::new(&self.index.graphs[graph as usize], self.selector);
        self.masks[graph as usize].get_or_init(make)
    }
}

/// The evaluations that a query is about.
pub struct Selection {
    /// Ranges of ranks, by graph.
    pub ranks: Vec<Vec<Range<u32>>>,
    /// Places of those without a rank.
    pub ragged: Vec<u32>,
    pub evals: u64,
    pub tokens: u64,
}

impl Selection {
    pub fn new(index: &RunIndex, keeps: impl Fn(&Eval) -> bool) -> Selection {
        let mut selection = Selection {
            ranks: vec![Vec::new(); index.graphs.len()],
            ragged: Vec::new(),
            evals: 0,
            tokens: 0,
        };
        let mut batches = HashSet::new();
        for (at, eval) in index.evals.iter().enumerate().filter(|(_, e)| keeps(e)) {
            selection.evals += 1;
            // Of the parts of a graph each may be kept: their tokens count once.
            let is_new = !index.on_devices.is_used() || batches.insert(eval.batch_first);
            selection.tokens += u64::from(if is_new { eval.batch } else { 0 });
            if eval.is_regular() {
                push_rank(&mut selection.ranks[eval.graph as usize], eval.rank);
            } else {
                selection.ragged.push(at as u32);
            }
        }
        selection
    }

    /// Graphs with regular evaluations among them.
    pub fn graphs(&self) -> impl Iterator<Item = (usize, &[Range<u32>])> {
        let all = self.ranks.iter().enumerate();
        all.filter(|(_, r)| !r.is_empty())
            .map(|(g, r)| (g, r.as_slice()))
    }
}

/// Ranks come ascending: they extend the last range, or begin one.
pub fn push_rank(ranges: &mut Vec<Range<u32>>, rank: u32) {
    match ranges.last_mut() {
        Some(last) if last.end == rank => last.end += 1,
        _ => ranges.push(rank..rank + 1),
    }
}

pub fn count(ranges: &[Range<u32>]) -> u64 {
    ranges.iter().map(|r| u64::from(r.end - r.start)).sum()
}
