//! The file map: what was read of each stretch of the model's files.
//!
//! A strided read counts as spread evenly from its first byte to its last; an
//! expert's slice is a read of its own.

use crate::{
    RunIndex,
    answers::{MapHeader, Raster},
    data::{Eval, NO_ROW},
    filter::Filter,
    graph::{Graph, Touch},
    query::{KernelMetric, MapMetric, MapQuery},
    select::{Masks, Selection, Selector, count},
};

/// Amounts over equal stretches of a range. Whole stretches are added through a
/// difference, so that an amount costs the same however many it covers.
pub struct Stretches {
    begin: f64,
    end: f64,
    size: f64,
    edges: Vec<f64>,
    steps: Vec<f64>,
}

impl Stretches {
    pub fn new(begin: f64, size: f64, count: usize) -> Stretches {
        Stretches {
            begin,
            end: begin + size * count as f64,
            size,
            edges: vec![0.0; count],
            steps: vec![0.0; count + 1],
        }
    }

    /// Spreads `amount` from `begin` over `length`, as far as that lies inside.
    pub fn add(&mut self, begin: f64, length: f64, amount: f64) {
        let Some(spread) = self.spread(begin, length, amount) else {
            return;
        };
        self.edges[spread.first] += spread.in_first;
        self.edges[spread.last] += spread.in_last;
        if spread.last > spread.first + 1 {
            self.steps[spread.first + 1] += spread.in_each;
            self.steps[spread.last] -= spread.in_each;
        }
    }

    /// As [`Stretches::add`], but shown and not added: `f(stretch, amount)`.
    pub fn each(&self, begin: f64, length: f64, amount: f64, mut f: impl FnMut(usize, f64)) {
        let Some(spread) = self.spread(begin, length, amount) else {
            return;
        };
        f(spread.first, spread.in_first);
        (spread.first + 1..spread.last).for_each(|at| f(at, spread.in_each));
        if spread.last > spread.first {
            f(spread.last, spread.in_last);
        }
    }

    fn spread(&self, begin: f64, length: f64, amount: f64) -> Option<Spread> {
        let density = amount / length.max(1.0);
        let end = (begin + length.max(1.0)).min(self.end);
        let begin = begin.max(self.begin);
        if begin >= end || amount == 0.0 {
            return None;
        }
        let most = self.edges.len() - 1;
        let first = (((begin - self.begin) / self.size) as usize).min(most);
        let last = (((end - self.begin) / self.size) as usize).min(most);
        let edge = |at: usize| self.begin + self.size * at as f64;
        let (in_first, in_last) = if first == last {
            (density * (end - begin), 0.0)
        } else {
            (
                density * (edge(first + 1) - begin),
                density * (end - edge(last)),
            )
        };
        Some(Spread {
            first,
            last,
            in_first,
            in_last,
            in_each: density * self.size,
        })
    }

    /// The amount in each stretch, and back to zero.
    pub fn take(&mut self, mut f: impl FnMut(usize, f64)) {
        let mut whole = 0.0;
        for (at, edge) in self.edges.iter_mut().enumerate() {
            whole += self.steps[at];
            // What differences leave behind of nothing is not something.
            let rest = if whole.abs() < 1e-6 { 0.0 } else { whole };
            f(at, *edge + rest);
            *edge = 0.0;
        }
        self.steps.fill(0.0);
    }
}

/// How an amount falls onto stretches.
struct Spread {
    first: usize,
    last: usize,
    in_first: f64,
    /// Nothing when it is the first.
    in_last: f64,
    /// Of those between.
    in_each: f64,
}

impl RunIndex {
    pub fn map(&self, query: &MapQuery, filter: &Filter) -> Raster<MapHeader> {
        let total_bytes = self.catalog.total_bytes;
        let cells = u64::from(query.cells.max(1));
        let cell_bytes = total_bytes.div_ceil(cells).max(1);
        let selector = Selector::new(self, filter);
        let values = match query.metric {
            MapMetric::Recency => self.recency(query, &selector, cell_bytes),
            _ => self.amounts(query, &selector, cell_bytes),
        };
        let metric = match query.metric {
            MapMetric::Accesses => "accesses",
            MapMetric::Bytes => "bytes",
            MapMetric::Recency => "recency",
        };
        Raster {
            header: MapHeader {
                cell_bytes,
                total_bytes,
                max: values.iter().copied().fold(0.0, f32::max),
                metric,
                available: self.map_metrics(),
                sampled: None,
            },
            values,
        }
    }

    /// Those that this crate can answer for the run.
    pub(crate) fn map_metrics(&self) -> Vec<&'static str> {
        let mut metrics = vec!["accesses", "bytes", "recency"];
        let logs = self.kernel_logs;
        for (is_there, metric) in [
            (logs.residency, KernelMetric::Residency),
            (logs.faults, KernelMetric::Faults),
            (logs.io, KernelMetric::Disk),
        ] {
            metrics.extend(is_there.then_some(metric.name()));
        }
        metrics
    }

    /// Evaluations that count, and those that a moment cuts.
    fn until(&self, selector: &Selector, at: Option<u64>) -> (Selection, Vec<u32>) {
        let moment = at.map_or(u64::MAX, |at| self.origin.saturating_add(at));
        let whole = Selection::new(self, |e| e.last <= moment && selector.keeps_eval(e));
        // Clocks that jump may take steps to before the begin of their evaluation.
        let begun = moment.saturating_add(self.jumped_back);
        let is_cut = |e: &Eval| e.begin <= begun && e.last > moment && selector.keeps_eval(e);
        let cut = (0..self.evals.len() as u32).filter(|&e| is_cut(&self.evals[e as usize]));
        (whole, cut.collect())
    }

    fn amounts(&self, query: &MapQuery, selector: &Selector, cell_bytes: u64) -> Vec<f32> {
        let cells = query.cells.max(1) as usize;
        let mut sums = Stretches::new(0.0, cell_bytes as f64, cells);
        let (whole, cut) = self.until(selector, query.at);
        let masks = Masks::new(self, selector);
        for (number, ranges) in whole.graphs() {
            let graph = &self.graphs[number];
            let evals = count(ranges) as f64;
            let [used, chosen] = self.expert_sums(graph, ranges);
            for (_, access) in masks.of(number as u32).kept(graph) {
                let Some(begin) = self.begin_of_read(access) else {
                    continue;
                };
                let bytes = access.bytes as f64;
                match &access.touch {
                    Touch::Fixed { offset, span } if selector.experts.is_none() => {
                        sums.add(begin + *offset as f64, *span as f64, bytes * evals);
                    }
                    Touch::Slices { router, unit, .. } | Touch::Each { router, unit, .. } => {
                        let is_each = matches!(access.touch, Touch::Each { .. });
                        let counts = if is_each { &chosen } else { &used };
                        let router = &graph.routers[*router as usize];
                        let experts = u64::from(router.experts).min(unit.bound);
                        let counts = &counts[router.first_expert as usize..][..experts as usize];
                        for (expert, &count) in counts.iter().enumerate() {
                            if count > 0 && selector.keeps_expert(expert as u16) {
                                let at = begin + unit.offset_of(expert as u64) as f64;
                                sums.add(at, unit.span as f64, bytes * count as f64);
                            }
                        }
                    }
                    Touch::Rows { kept, unit, .. } if selector.experts.is_none() => {
                        let add_rows = |eval: &Eval| {
                            for &row in self.data.rows(eval, graph, *kept) {
                                if row != NO_ROW && u64::from(row) < unit.bound {
                                    let at = begin + unit.offset_of(row.into()) as f64;
                                    sums.add(at, unit.span as f64, bytes);
                                }
                            }
                        };
                        self.each_of(graph, ranges, add_rows);
                    }
                    _ => {}
                }
            }
        }
        for at in whole.ragged.into_iter().chain(cut) {
            self.each_read_until(selector, &masks, at, query.at, |begin, hit, _| {
                sums.add(begin + hit.offset as f64, hit.span as f64, hit.bytes as f64);
            });
        }
        let mut values = vec![0f32; cells];
        let total = self.catalog.total_bytes;
        sums.take(|at, amount| {
            let begin = at as u64 * cell_bytes;
            let size = total.saturating_sub(begin).min(cell_bytes);
            values[at] = match query.metric {
                MapMetric::Bytes => amount as f32,
                _ if size == 0 => 0.0,
                _ => (amount / size as f64) as f32,
            };
        });
        values
    }

    pub(crate) fn each_of<'s>(
        &'s self,
        graph: &Graph,
        ranges: &[std::ops::Range<u32>],
        mut f: impl FnMut(&'s Eval),
    ) {
        for range in ranges {
            graph.each(&self.evals, range.clone(), &mut f);
        }
    }

    /// `f(begin of the tensor, access, end of its step)` for each read of a
    /// weight of one evaluation, of steps that ended by `at`.
    fn each_read_until(
        &self,
        selector: &Selector,
        masks: &Masks,
        eval: u32,
        at: Option<u64>,
        mut f: impl FnMut(f64, crate::sums::Hit, u64),
    ) {
        let eval = &self.evals[eval as usize];
        let graph = &self.graphs[eval.graph as usize];
        let moment = at.map_or(u64::MAX, |at| self.origin.saturating_add(at));
        let mut ends = vec![u64::MAX; graph.steps.len()];
        self.each_step(eval, |step, _, end| ends[step] = end);
        self.each_hit(selector, masks.of(eval.graph), eval, |hit| {
            let end = ends[hit.step as usize];
            let access = &graph.accesses[hit.access as usize];
            if let Some(begin) = self.begin_of_read(access).filter(|_| end <= moment) {
                f(begin, hit, end);
            }
        });
    }

    /// When each cell was read last, painted latest first.
    fn recency(&self, query: &MapQuery, selector: &Selector, cell_bytes: u64) -> Vec<f32> {
        let cells = query.cells.max(1) as usize;
        let (whole, cut) = self.until(selector, query.at);
        let masks = Masks::new(self, selector);
        // End of the step, first cell, last cell.
        let mut reads: Vec<(u64, u32, u32)> = Vec::new();
        let cell = |byte: f64| ((byte / cell_bytes as f64) as usize).min(cells - 1) as u32;
        let mut read = |end: u64, begin: f64, span: u64| {
            let last = begin + span.max(1) as f64 - 1.0;
            reads.push((end, cell(begin), cell(last)));
        };
        let mut latest = 0;
        for (number, ranges) in whole.graphs() {
            let graph = &self.graphs[number];
            let rank = ranges.last().expect("a graph has some").end - 1;
            let last = &self.evals[graph.evals[rank as usize] as usize];
            latest = last.last.max(latest);
            let end_in = |eval: &Eval, step: u32| {
                eval.begin + u64::from(self.data.moments(eval, graph)[step as usize])
            };
            let last_use = self.last_uses(graph, ranges);
            for (_, access) in masks.of(number as u32).kept(graph) {
                let Some(begin) = self.begin_of_read(access) else {
                    continue;
                };
                match &access.touch {
                    Touch::Fixed { offset, span } if selector.experts.is_none() => {
                        read(end_in(last, access.step), begin + *offset as f64, *span);
                    }
                    Touch::Slices { router, unit, .. } | Touch::Each { router, unit, .. } => {
                        let router = &graph.routers[*router as usize];
                        let experts = u64::from(router.experts).min(unit.bound);
                        let uses = &last_use[router.first_expert as usize..][..experts as usize];
                        for (expert, eval) in uses.iter().enumerate() {
                            if let Some(eval) =
                                eval.filter(|_| selector.keeps_expert(expert as u16))
                            {
                                let eval = &self.evals[eval as usize];
                                let at = begin + unit.offset_of(expert as u64) as f64;
                                read(end_in(eval, access.step), at, unit.span);
                            }
                        }
                    }
                    Touch::Rows { kept, unit, .. } if selector.experts.is_none() => {
                        self.each_of(graph, ranges, |eval| {
                            for &row in self.data.rows(eval, graph, *kept) {
                                if row != NO_ROW && u64::from(row) < unit.bound {
                                    let at = begin + unit.offset_of(row.into()) as f64;
                                    read(end_in(eval, access.step), at, unit.span);
                                }
                            }
                        });
                    }
                    _ => {}
                }
            }
        }
        for at in whole.ragged.into_iter().chain(cut) {
            latest = self.evals[at as usize].last.max(latest);
            self.each_read_until(selector, &masks, at, query.at, |begin, hit, end| {
                read(end, begin + hit.offset as f64, hit.span);
            });
        }
        let end = query.at.map_or(latest, |at| self.origin.saturating_add(at));
        paint(reads, cells, end)
    }

    /// The last evaluation that used each expert of each router.
    fn last_uses(&self, graph: &Graph, ranges: &[std::ops::Range<u32>]) -> Vec<Option<u32>> {
        let mut uses = vec![None; graph.experts() as usize];
        let mut open = uses.len();
        for rank in ranges.iter().rev().flat_map(|r| r.clone().rev()) {
            if open == 0 {
                break;
            }
            let at = graph.evals[rank as usize];
            for (number, router) in graph.routers.iter().enumerate() {
                let uses = &mut uses[router.first_expert as usize..];
                for &expert in self.data.distinct(&self.evals[at as usize], number) {
                    if u32::from(expert) < router.experts && uses[expert as usize].is_none() {
                        uses[expert as usize] = Some(at);
                        open -= 1;
                    }
                }
            }
        }
        uses
    }
}

/// Nanoseconds from the last read of each cell to `end`; NaN if there is none.
fn paint(mut reads: Vec<(u64, u32, u32)>, cells: usize, end: u64) -> Vec<f32> {
    reads.sort_unstable_by_key(|r| std::cmp::Reverse(r.0));
    let mut values = vec![f32::NAN; cells];
    // The next cell from here on that is not painted yet.
    let mut next: Vec<u32> = (0..=cells as u32).collect();
    for (read, first, last) in reads {
        let mut at = first;
        loop {
            while next[at as usize] != at {
                let hop = next[at as usize];
                next[at as usize] = next[hop as usize];
                at = hop;
            }
            if at > last || at as usize >= cells {
                break;
            }
            values[at as usize] = end.saturating_sub(read) as f32;
            next[at as usize] = at + 1;
        }
    }
    values
}
