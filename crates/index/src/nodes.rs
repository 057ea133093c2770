//! The timeline: nodes by layer over time, one by one or as a grid.

use crate::{
    RunIndex,
    answers::{NodeSpan, NodesHeader, Raster},
    data::Eval,
    even::Even,
    filter::Filter,
    query::NodesQuery,
    select::{Mask, Masks, Selector},
    sums::{is_timed, lies_in},
};

/// At most this many nodes are listed one by one.
pub const MAX_SPANS: usize = 6000;
/// Up to this many steps the op of each cell is found step by step; beyond, it is
/// the one that its graph spends most time in.
const MAX_STEPS: u64 = 400_000;
/// Marks a layer without a lane.
const NO_LANE: u32 = u32::MAX;

struct Lanes {
    layers: Vec<Option<u32>>,
    /// Lane of each layer of the catalogue.
    of: Vec<u32>,
}

/// The grid of a window: lanes × columns.
struct Grid {
    t0: u64,
    t1: u64,
    w: usize,
    lanes: usize,
    column_nanos: f64,
    /// Nanoseconds.
    busy: Vec<f64>,
}

impl Grid {
    /// Columns that a stretch of time touches, with its nanoseconds in each.
    fn columns(&self, begin: u64, end: u64, mut f: impl FnMut(usize, f64)) {
        let (from, to) = (begin.max(self.t0), end.min(self.t1));
        if from >= to {
            return;
        }
        let (from, to) = ((from - self.t0) as f64, (to - self.t0) as f64);
        let first = ((from / self.column_nanos) as usize).min(self.w - 1);
        let last = ((to / self.column_nanos) as usize).min(self.w - 1);
        if first == last {
            return f(first, to - from);
        }
        for column in first..=last {
            let a = from.max(column as f64 * self.column_nanos);
            let b = to.min((column + 1) as f64 * self.column_nanos);
            if b > a {
                f(column, b - a);
            }
        }
    }

    /// The column that holds all of it, if one does.
    fn column(&self, begin: u64, end: u64) -> Option<usize> {
        if begin < self.t0 || end >= self.t1 {
            return None;
        }
        let first = ((begin - self.t0) as f64 / self.column_nanos) as usize;
        let last = ((end - self.t0) as f64 / self.column_nanos) as usize;
        (first == last && first < self.w).then_some(first)
    }
}

/// What a grid is filled with.
struct Wanted<'a> {
    selector: &'a Selector,
    masks: &'a Masks<'a>,
    evals: &'a [&'a Eval],
    lanes: &'a Lanes,
    even: Option<&'a Even>,
}

impl Wanted<'_> {
    /// Where the nodes of an evaluation are spread, if they are.
    fn stretch(&self, at: usize) -> Option<std::ops::Range<u64>> {
        self.even.and_then(|even| even.stretch(at))
    }
}

impl RunIndex {
    /// `values` is empty when the header holds spans.
    pub fn nodes(&self, query: &NodesQuery, filter: &Filter) -> Raster<NodesHeader> {
        let times = self.window(query.t0, query.t1);
        let selector = Selector::new(self, filter);
        let masks = Masks::new(self, &selector);
        let evals: Vec<&Eval> = self
            .evals_with_steps_in(&times)
            .filter(|e| selector.keeps_eval(e))
            .collect();
        let lanes = self.layer_lanes(&selector);
        // Whole evaluations in the middle, so the edges are all that is uncertain.
        let steps: u64 = evals
            .iter()
            .map(|e| self.graphs[e.graph as usize].steps.len() as u64)
            .sum();
        if steps <= MAX_STEPS
            && let Some(spans) = self.spans(&selector, &masks, &evals, &times)
        {
            let header = NodesHeader::Spans {
                t0: times.start - self.origin,
                t1: times.end - self.origin,
                lanes: lanes.layers,
                spans,
            };
            let values = Vec::new();
            return Raster { header, values };
        }
        let w = query.w.max(1) as usize;
        let mut grid = Grid {
            t0: times.start,
            t1: times.end,
            w,
            lanes: lanes.layers.len(),
            column_nanos: (times.end - times.start) as f64 / w as f64,
            busy: vec![0.0; w * lanes.layers.len()],
        };
        let even = Even::of(&evals, grid.column_nanos, query.even);
        let wanted = Wanted {
            selector: &selector,
            masks: &masks,
            evals: &evals,
            lanes: &lanes,
            even: even.as_ref(),
        };
        let (ops, nodes) = if steps <= MAX_STEPS {
            self.fill_exactly(&wanted, &mut grid)
        } else {
            self.fill_by_runs(&wanted, &mut grid)
        };
        let share = |nanos: &f64| (nanos / grid.column_nanos).min(1.0) as f32;
        Raster {
            values: grid.busy.iter().map(share).collect(),
            header: NodesHeader::Raster {
                t0: times.start - self.origin,
                t1: times.end - self.origin,
                w: w as u32,
                lanes: lanes.layers,
                ops,
                nodes,
                even: even.is_some(),
            },
        }
    }

    fn layer_lanes(&self, selector: &Selector) -> Lanes {
        let all = &self.catalog.layers.all;
        let mut lanes = Lanes {
            layers: Vec::new(),
            of: vec![NO_LANE; all.len()],
        };
        for number in self.catalog.layer_order() {
            if selector.keeps_layer(number) {
                lanes.of[number as usize] = lanes.layers.len() as u32;
                lanes.layers.push(all[number as usize]);
            }
        }
        lanes
    }

    /// The nodes in the window; `None` when they are too many.
    fn spans(
        &self,
        selector: &Selector,
        masks: &Masks,
        evals: &[&Eval],
        times: &std::ops::Range<u64>,
    ) -> Option<Vec<NodeSpan>> {
        let mut found: Vec<(&Eval, usize, u64, u64)> = Vec::new();
        for eval in evals {
            let is_on_device = self.graphs[eval.graph as usize].is_on_device();
            self.each_node(selector, masks.of(eval.graph), eval, |step, begin, end| {
                // What nobody timed has no place: the lanes of devices say so.
                if is_on_device && !is_timed(eval, end) {
                    return;
                }
                if lies_in(times, begin, end) && found.len() <= MAX_SPANS {
                    found.push((eval, step, begin, end));
                }
            });
            if found.len() > MAX_SPANS {
                return None;
            }
        }
        let span = |&(eval, step, begin, end): &(&Eval, usize, u64, u64)| {
            let about = &self.graphs[eval.graph as usize].steps[step];
            let mut bytes = 0u64;
            let mask = masks.of(eval.graph);
            self.each_hit_of_steps(selector, mask, eval, step..step + 1, |hit| {
                bytes = bytes.wrapping_add(hit.bytes);
            });
            NodeSpan {
                eval: eval.number,
                step: step as u32,
                layer: self.catalog.layers.all[about.layer as usize],
                op: self.catalog.ops.all[about.op as usize].clone(),
                name: self.catalog.names.all[about.name as usize].clone(),
                component: self.catalog.parts.all[about.part as usize],
                begin: begin.saturating_sub(self.origin),
                end: end.saturating_sub(self.origin),
                bytes,
                token: eval.first_token_if_any(),
            }
        };
        Some(found.iter().map(span).collect())
    }

    /// Step by step; the ops of the cells, and the nodes.
    fn fill_exactly(&self, wanted: &Wanted, grid: &mut Grid) -> (Vec<i32>, u64) {
        let ops = self.catalog.ops.all.len();
        let mut by_op = vec![0f32; grid.busy.len() * ops];
        let mut nodes = 0;
        // Of an evaluation that is spread: nanoseconds by lane and op.
        let mut sums = vec![0u64; grid.lanes * ops];
        for (at, eval) in wanted.evals.iter().enumerate() {
            let graph = &self.graphs[eval.graph as usize];
            let stretch = wanted.stretch(at);
            let mask = wanted.masks.of(eval.graph);
            self.each_node(wanted.selector, mask, eval, |step, begin, end| {
                let about = &graph.steps[step];
                let lane = wanted.lanes.of[about.layer as usize];
                if lane == NO_LANE {
                    return;
                }
                let is_in_window = lies_in(&(grid.t0..grid.t1), begin, end);
                nodes += u64::from(is_in_window);
                if stretch.is_some() {
                    sums[lane as usize * ops + about.op as usize] += end.saturating_sub(begin);
                } else if is_in_window {
                    let mut busy = std::mem::take(&mut grid.busy);
                    grid.columns(begin, end, |column, nanos| {
                        let cell = lane as usize * grid.w + column;
                        busy[cell] += nanos;
                        by_op[cell * ops + about.op as usize] += nanos as f32;
                    });
                    grid.busy = busy;
                }
            });
            let Some(stretch) = stretch else { continue };
            let length = (stretch.end - stretch.start) as f64;
            let mut busy = std::mem::take(&mut grid.busy);
            grid.columns(stretch.start, stretch.end, |column, nanos| {
                for (place, &sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0) {
                    let cell = place / ops * grid.w + column;
                    let nanos = sum as f64 * nanos / length;
                    busy[cell] += nanos;
                    by_op[cell * ops + place % ops] += nanos as f32;
                }
            });
            grid.busy = busy;
            sums.fill(0);
        }
        let most = |nanos: &[f32]| {
            let best = nanos.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            best.filter(|b| *b.1 > 0.0).map_or(-1, |b| b.0 as i32)
        };
        if ops == 0 {
            return (vec![-1; grid.busy.len()], nodes);
        }
        (by_op.chunks(ops).map(most).collect(), nodes)
    }

    /// Consecutive steps of a lane at once.
    fn fill_by_runs(&self, wanted: &Wanted, grid: &mut Grid) -> (Vec<i32>, u64) {
        let Wanted {
            selector,
            masks,
            evals,
            lanes,
            ..
        } = *wanted;
        let mut ops = vec![-1; grid.busy.len()];
        let mut by_graph: Vec<Option<LaneRuns>> = self.graphs.iter().map(|_| None).collect();
        let mut nodes = 0;
        let w = grid.w;
        let mut busy = std::mem::take(&mut grid.busy);
        // Summed up column by column: the lanes of a column lie together.
        let mut sums = vec![0u64; grid.lanes];
        let mut present = usize::MAX;
        let close = |column: usize, sums: &mut [u64], busy: &mut [f64]| {
            for (lane, sum) in sums.iter_mut().enumerate().filter(|(_, s)| **s > 0) {
                busy[lane * w + column] += *sum as f64;
                *sum = 0;
            }
        };
        // Of an evaluation that is spread over several columns.
        let mut spread = vec![0u64; grid.lanes];
        for (at, eval) in evals.iter().enumerate() {
            let graph = &self.graphs[eval.graph as usize];
            let of_graph = by_graph[eval.graph as usize].get_or_insert_with(|| {
                self.lane_runs(selector, masks.of(eval.graph), eval.graph, lanes)
            });
            let is_plain = eval.is_regular() && selector.experts.is_none();
            if !is_plain {
                self.each_node(selector, masks.of(eval.graph), eval, |step, begin, end| {
                    let lane = lanes.of[graph.steps[step].layer as usize];
                    if lane != NO_LANE {
                        nodes += 1;
                        grid.columns(begin, end, |column, nanos| {
                            busy[lane as usize * w + column] += nanos;
                            ops[lane as usize * w + column] = of_graph.ops[lane as usize];
                        });
                    }
                });
                continue;
            }
            nodes += of_graph.nodes;
            let ends = self.data.ends(eval, graph.steps.len());
            let times = |&(_, first, last): &(u32, u32, u32)| {
                let before = (first as usize).checked_sub(1).map_or(0, |s| ends[s]);
                (before, ends[last as usize])
            };
            let stretch = wanted.stretch(at);
            let end = stretch.as_ref().map_or(eval.last, |s| s.end);
            match grid.column(eval.begin, end) {
                Some(column) => {
                    if column != present {
                        if present != usize::MAX {
                            close(present, &mut sums, &mut busy);
                        }
                        present = column;
                        for (lane, &op) in of_graph.ops.iter().enumerate() {
                            ops[lane * w + column] = op;
                        }
                    }
                    for run in &of_graph.runs {
                        let (begin, end) = times(run);
                        sums[run.0 as usize] += u64::from(end - begin);
                    }
                }
                None if stretch.is_some() => {
                    for run in &of_graph.runs {
                        let (begin, end) = times(run);
                        spread[run.0 as usize] += u64::from(end - begin);
                    }
                    let length = (end - eval.begin) as f64;
                    grid.columns(eval.begin, end, |column, nanos| {
                        for (lane, &sum) in spread.iter().enumerate().filter(|(_, sum)| **sum > 0) {
                            busy[lane * w + column] += sum as f64 * nanos / length;
                            ops[lane * w + column] = of_graph.ops[lane];
                        }
                    });
                    spread.fill(0);
                }
                // Its steps do not follow each other without a gap.
                None if graph.is_on_device() => {
                    self.each_node(selector, masks.of(eval.graph), eval, |step, begin, end| {
                        let lane = lanes.of[graph.steps[step].layer as usize];
                        if lane != NO_LANE {
                            let cell = lane as usize * w;
                            grid.columns(begin, end, |column, nanos| {
                                busy[cell + column] += nanos;
                                ops[cell + column] = of_graph.ops[lane as usize];
                            });
                        }
                    });
                }
                None => {
                    for run in &of_graph.runs {
                        let (begin, end) = times(run);
                        let (begin, end) =
                            (eval.begin + u64::from(begin), eval.begin + u64::from(end));
                        let lane = run.0 as usize;
                        grid.columns(begin, end, |column, nanos| {
                            busy[lane * w + column] += nanos;
                            ops[lane * w + column] = of_graph.ops[lane];
                        });
                    }
                }
            }
        }
        if present != usize::MAX {
            close(present, &mut sums, &mut busy);
        }
        grid.busy = busy;
        for (op, busy) in ops.iter_mut().zip(&grid.busy) {
            if *busy <= 0.0 {
                *op = -1;
            }
        }
        (ops, nodes)
    }

    fn lane_runs(&self, selector: &Selector, mask: &Mask, number: u32, lanes: &Lanes) -> LaneRuns {
        let graph = &self.graphs[number as usize];
        let ranks = 0..graph.evals.len() as u32;
        let nanos = graph.nanos(&self.evals, &self.data, ranks);
        let ops = self.catalog.ops.all.len();
        let mut by_op = vec![0u64; lanes.layers.len() * ops];
        let mut of_graph = LaneRuns {
            runs: Vec::new(),
            ops: vec![-1; lanes.layers.len()],
            nodes: 0,
        };
        for (step, _) in mask.nodes(graph, selector) {
            let about = &graph.steps[step];
            let lane = lanes.of[about.layer as usize];
            if lane == NO_LANE {
                continue;
            }
            of_graph.nodes += 1;
            let of_op = &mut by_op[lane as usize * ops + about.op as usize];
            *of_op = of_op.wrapping_add(nanos[step]);
            match of_graph.runs.last_mut() {
                Some(last) if last.0 == lane && last.2 as usize + 1 == step => last.2 = step as u32,
                _ => of_graph.runs.push((lane, step as u32, step as u32)),
            }
        }
        for (lane, op) in of_graph.ops.iter_mut().enumerate() {
            let of_lane = by_op[lane * ops..(lane + 1) * ops].iter().enumerate();
            let best = of_lane.max_by_key(|(_, nanos)| **nanos);
            *op = best.filter(|b| *b.1 > 0).map_or(-1, |b| b.0 as i32);
        }
        of_graph
    }
}

/// What a regular evaluation of a graph shows in the lanes.
struct LaneRuns {
    /// Lane, first step, last step.
    runs: Vec<(u32, u32, u32)>,
    /// The op that each lane spends most time in.
    ops: Vec<i32>,
    nodes: u64,
}
