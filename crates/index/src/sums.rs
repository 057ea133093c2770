//! Sums over evaluations, through their graph; and single evaluations, one by one.

use std::ops::Range;

use crate::{
    RunIndex,
    data::{Eval, NO_ROW, Ragged},
    graph::{Graph, GraphAccess, NO_EXPERT, Touch, Unit},
    select::{Mask, Selector, count},
};

/// An access of one evaluation; of what is no weight, several at once.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    pub step: u32,
    pub access: u32,
    /// Or [`NO_EXPERT`].
    pub expert: u16,
    pub count: u64,
    /// Of all of them.
    pub bytes: u64,
    /// In the tensor, and up to its last byte. Of single reads of weights only.
    pub offset: u64,
    pub span: u64,
}

impl Hit {
    fn one(about: &GraphAccess, access: u32, expert: u16, offset: u64, span: u64) -> Hit {
        Hit {
            step: about.step,
            access,
            expert,
            count: 1,
            bytes: about.bytes,
            offset,
            span,
        }
    }
}

impl Unit {
    pub fn offset_of(&self, value: u64) -> u64 {
        // Whoever read the template has checked that this is a place in memory.
        self.offset.wrapping_add(value.wrapping_mul(self.stride))
    }
}

/// Of a step on a device that ended then; one that nobody timed is at the begin of the call.
pub fn is_timed(eval: &Eval, end: u64) -> bool {
    end > eval.begin
}

/// Whether something lies in a window of time. A step whose clock jumped back, so that it ends
/// before it begins, took no time: it lies where it began.
pub fn lies_in(window: &Range<u64>, begin: u64, end: u64) -> bool {
    end.max(begin) >= window.start && begin < window.end
}

impl RunIndex {
    /// Of regular evaluations: `f(access, how many, bytes)` for each access of the
    /// graph that is kept.
    pub(crate) fn each_access_sum(
        &self,
        selector: &Selector,
        graph: &Graph,
        mask: &Mask,
        ranges: &[Range<u32>],
        mut f: impl FnMut(usize, u64, u64),
    ) {
        let evals = count(ranges);
        let class_sum = |class: u32| {
            let class = &graph.classes[class as usize];
            ranges.iter().fold((0u64, 0u64), |sum, r| {
                let (count, bytes) = class.sum(r.start, r.end);
                (sum.0.wrapping_add(count), sum.1.wrapping_add(bytes))
            })
        };
        let Some(_) = &selector.experts else {
            for (at, access) in mask.kept(graph) {
                let (count, bytes) = match access.touch {
                    Touch::Fixed { .. } => (evals, evals.wrapping_mul(access.bytes)),
                    Touch::Slices { class, .. }
                    | Touch::Each { class, .. }
                    | Touch::Rows { class, .. }
                    | Touch::Counted { class } => class_sum(class),
                    Touch::Odd => (0, 0),
                };
                f(at, count, bytes);
            }
            return;
        };
        let [used, chosen] = self.expert_sums(graph, ranges);
        for (at, access) in mask.kept(graph) {
            let (sums, router, unit) = match &access.touch {
                Touch::Slices { router, unit, .. } => (&used, *router, unit),
                Touch::Each { router, unit, .. } => (&chosen, *router, unit),
                _ => continue,
            };
            let router = &graph.routers[router as usize];
            let experts = u64::from(router.experts).min(unit.bound) as usize;
            let sums = &sums[router.first_expert as usize..][..experts];
            let kept = sums
                .iter()
                .enumerate()
                .filter(|(e, _)| selector.keeps_expert(*e as u16));
            let count: u64 = kept.map(|(_, &n)| n).sum();
            f(at, count, count.wrapping_mul(access.bytes));
        }
    }

    /// Of regular evaluations, per expert of each router: how many used it, and
    /// how often it was chosen.
    pub(crate) fn expert_sums(&self, graph: &Graph, ranges: &[Range<u32>]) -> [Vec<u64>; 2] {
        let mut sums = [(); 2].map(|()| vec![0u64; graph.experts() as usize]);
        for range in ranges {
            let used = graph.used(&self.evals, &self.data, range.clone());
            let chosen = graph.chosen(&self.evals, &self.data, range.clone());
            for (to, from) in sums.iter_mut().zip([used, chosen]) {
                to.iter_mut()
                    .zip(from)
                    .for_each(|(to, from)| *to += u64::from(from));
            }
        }
        sums
    }

    /// Of regular evaluations: `f(step, how many, nanoseconds)` for each step of
    /// the graph that is kept.
    pub(crate) fn each_node_sum(
        &self,
        selector: &Selector,
        graph: &Graph,
        mask: &Mask,
        ranges: &[Range<u32>],
        mut f: impl FnMut(usize, u64, u64),
    ) {
        let nodes = mask.nodes(graph, selector);
        let evals = count(ranges);
        if selector.experts.is_none() {
            let mut nanos = vec![0u64; graph.steps.len()];
            for range in ranges {
                let sums = graph.nanos(&self.evals, &self.data, range.clone());
                for (to, from) in nanos.iter_mut().zip(sums) {
                    *to = to.wrapping_add(from);
                }
            }
            nodes
                .iter()
                .for_each(|(step, _)| f(*step, evals, nanos[*step]));
            return;
        }
        // Nearly all steps depend on one router: looked at router by router.
        let mut of_router: Vec<Vec<usize>> = vec![Vec::new(); graph.routers.len()];
        let mut of_several = Vec::new();
        for (at, (_, routers)) in nodes.iter().enumerate() {
            match routers[..] {
                [router] => of_router[router as usize].push(at),
                _ => of_several.push(at),
            }
        }
        let mut sums = vec![(0u64, 0u64); nodes.len()];
        let mut hits = vec![false; graph.routers.len()];
        for range in ranges {
            graph.each(&self.evals, range.clone(), |eval| {
                self.router_hits(selector, eval, &mut hits);
                let ends = self.data.ends(eval, graph.steps.len());
                let mut add = |at: usize| {
                    let step = nodes[at].0;
                    let before = step.checked_sub(1).map_or(0, |s| ends[s]);
                    let sum = &mut sums[at];
                    sum.0 += 1;
                    sum.1 = sum.1.wrapping_add(u64::from(ends[step] - before));
                };
                let hit_routers = of_router.iter().zip(&hits).filter(|(_, hit)| **hit);
                hit_routers.flat_map(|(of, _)| of).for_each(|&at| add(at));
                let is_hit = |at: &&usize| nodes[**at].1.iter().any(|&r| hits[r as usize]);
                of_several.iter().filter(is_hit).for_each(|&at| add(at));
            });
        }
        for ((step, _), (count, nanos)) in nodes.iter().zip(sums) {
            f(*step, count, nanos);
        }
    }

    /// Whether each router of an evaluation chose an expert that is kept.
    pub(crate) fn router_hits(&self, selector: &Selector, eval: &Eval, hits: &mut [bool]) {
        let routers = &self.graphs[eval.graph as usize].routers;
        for (number, (router, hit)) in routers.iter().zip(hits).enumerate() {
            let chosen = self.data.distinct(eval, number);
            let keeps = |&e: &u16| selector.keeps_expert(e) && u32::from(e) < router.experts;
            *hit = chosen.iter().any(keeps);
        }
    }

    /// Each access of one evaluation that is kept, by step.
    pub(crate) fn each_hit(
        &self,
        selector: &Selector,
        mask: &Mask,
        eval: &Eval,
        f: impl FnMut(Hit),
    ) {
        let graph = &self.graphs[eval.graph as usize];
        self.each_hit_of_steps(selector, mask, eval, 0..graph.steps.len(), f);
    }

    /// As [`RunIndex::each_hit`], of some steps.
    pub(crate) fn each_hit_of_steps(
        &self,
        selector: &Selector,
        mask: &Mask,
        eval: &Eval,
        steps: Range<usize>,
        mut f: impl FnMut(Hit),
    ) {
        let graph = &self.graphs[eval.graph as usize];
        let ragged = (!eval.is_regular()).then(|| self.data.ragged(eval));
        let entries = ragged.map_or(&[][..], |r| r.entries.as_slice());
        let first_access = graph.steps.get(steps.start).map_or(0, |s| s.first);
        let mut entry = entries.partition_point(|e| e.access < first_access);
        for number in steps {
            let step = &graph.steps[number];
            let is_executed = ragged.is_none_or(|r| r.nanos[number] != 0);
            for at in step.first..step.end {
                let access = &graph.accesses[at as usize];
                let is_kept = mask.accesses[at as usize] && is_executed;
                let hit = |expert, offset, span| Hit::one(access, at, expert, offset, span);
                if ragged.is_some() {
                    while let Some(e) = entries.get(entry).filter(|e| e.access == at) {
                        entry += 1;
                        if is_kept && selector.keeps_expert(e.expert) {
                            f(Hit {
                                count: u64::from(e.count),
                                bytes: e.bytes,
                                ..hit(e.expert, e.offset, e.span)
                            });
                        }
                    }
                }
                match &access.touch {
                    _ if !is_kept => {}
                    Touch::Fixed { offset, span } => {
                        if selector.experts.is_none() {
                            f(hit(NO_EXPERT, *offset, *span));
                        }
                    }
                    _ if ragged.is_some() => {}
                    _ => self.each_indexed_hit(selector, eval, graph, at, &mut f),
                }
            }
        }
    }

    /// Of a regular evaluation: each touch of an access that an index decides.
    pub(crate) fn each_indexed_hit(
        &self,
        selector: &Selector,
        eval: &Eval,
        graph: &Graph,
        at: u32,
        mut f: impl FnMut(Hit),
    ) {
        let access = &graph.accesses[at as usize];
        let hit = |expert, offset, span| Hit::one(access, at, expert, offset, span);
        match &access.touch {
            Touch::Slices { router, unit, .. } | Touch::Each { router, unit, .. } => {
                let experts = match access.touch {
                    Touch::Each { .. } => self.data.ids(eval, &graph.routers[*router as usize]),
                    _ => self.data.distinct(eval, *router as usize),
                };
                for &e in experts {
                    if u64::from(e) < unit.bound && selector.keeps_expert(e) {
                        f(hit(e, unit.offset_of(e.into()), unit.span));
                    }
                }
            }
            _ if selector.experts.is_some() => {}
            Touch::Rows { kept, unit, .. } => {
                for &row in self.data.rows(eval, graph, *kept) {
                    if row != NO_ROW && u64::from(row) < unit.bound {
                        f(hit(NO_EXPERT, unit.offset_of(row.into()), unit.span));
                    }
                }
            }
            Touch::Counted { class } => {
                let class = &graph.classes[*class as usize];
                let (count, bytes) = class.sum(eval.rank, eval.rank + 1);
                f(Hit {
                    count,
                    bytes,
                    ..hit(NO_EXPERT, 0, 0)
                });
            }
            Touch::Fixed { .. } | Touch::Odd => {}
        }
    }

    /// `f(step, begin, end)` for each executed step of an evaluation.
    pub(crate) fn each_step(&self, eval: &Eval, mut f: impl FnMut(usize, u64, u64)) {
        let graph = &self.graphs[eval.graph as usize];
        let mut begin = eval.begin;
        if graph.is_on_device() {
            self.each_device_step(eval, graph, f);
        } else if eval.is_regular() {
            let ends = self.data.ends(eval, graph.steps.len());
            for (step, &end) in ends.iter().enumerate() {
                let end = eval.begin + u64::from(end);
                f(step, begin, end);
                begin = end;
            }
        } else {
            let nanos = &self.data.ragged(eval).nanos;
            for (step, &end) in nanos.iter().enumerate().filter(|(_, n)| **n != 0) {
                f(step, begin, end);
                begin = end;
            }
        }
    }

    /// Steps of a device overlap: each has what was its own, up to its end.
    fn each_device_step(&self, eval: &Eval, graph: &Graph, mut f: impl FnMut(usize, u64, u64)) {
        if eval.is_regular() {
            let sums = self.data.ends(eval, graph.steps.len());
            let moments = self.data.moments(eval, graph);
            let mut before = 0;
            for (step, (&sum, &moment)) in sums.iter().zip(moments).enumerate() {
                let end = eval.begin + u64::from(moment);
                f(step, end - u64::from(sum - before), end);
                before = sum;
            }
        } else {
            let Ragged { nanos, own, .. } = self.data.ragged(eval);
            let own = own.iter().flatten();
            for (step, (&end, own)) in nanos.iter().zip(own).enumerate() {
                f(step, end.saturating_sub(*own), end);
            }
        }
    }

    /// When a step of a regular evaluation ran, as far as that is known.
    pub(crate) fn time_of_step(&self, eval: &Eval, step: usize) -> (u64, u64) {
        let graph = &self.graphs[eval.graph as usize];
        let ends = self.data.ends(eval, graph.steps.len());
        let before = step.checked_sub(1).map_or(0, |before| ends[before]);
        if !graph.is_on_device() {
            let [begin, end] = [before, ends[step]].map(u64::from);
            return (eval.begin + begin, eval.begin + end);
        }
        let end = eval.begin + u64::from(self.data.moments(eval, graph)[step]);
        self.known_time(eval, end - u64::from(ends[step] - before), end)
    }

    /// A step of a device that nobody timed ran at some time of its evaluation.
    pub(crate) fn known_time(&self, eval: &Eval, begin: u64, end: u64) -> (u64, u64) {
        match self.on_devices.of(eval.on_device) {
            Some(on) if !is_timed(eval, end) => on.nanos.unwrap_or((eval.begin, eval.end)),
            _ => (begin, end),
        }
    }

    /// `f(step, begin, end)` for each node of an evaluation that is kept.
    pub(crate) fn each_node(
        &self,
        selector: &Selector,
        mask: &Mask,
        eval: &Eval,
        mut f: impl FnMut(usize, u64, u64),
    ) {
        let graph = &self.graphs[eval.graph as usize];
        let mut keeps = mask.steps.clone();
        if selector.asks_for_accesses() {
            let mut touched = vec![false; graph.steps.len()];
            self.each_hit(selector, mask, eval, |hit| {
                touched[hit.step as usize] = true
            });
            keeps
                .iter_mut()
                .zip(touched)
                .for_each(|(keeps, touched)| *keeps &= touched);
        }
        self.each_step(eval, |step, begin, end| {
            if keeps[step] {
                f(step, begin, end);
            }
        });
    }
}
