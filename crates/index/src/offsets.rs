//! Weights read over time: time along the axis, the model's files down the side.
//!
//! A window with few accesses places each of them: its step's time, its bytes. A
//! window with many evaluations is filled from profiles of their graphs
//! (`profile`).

use std::ops::Range;

use crate::{
    RunIndex,
    answers::{ExactAccess, OffsetsHeader, Raster},
    data::Eval,
    even::Even,
    filter::Filter,
    graph::{Graph, GraphAccess, NO_EXPERT, Touch},
    map::Stretches,
    query::OffsetsQuery,
    select::{Mask, Masks, Selector},
    sums::{Hit, lies_in},
};

/// At most this many accesses are listed.
pub const MAX_EXACT: usize = 4000;
/// Accesses that are placed one by one.
const MAX_PLACED: u64 = 300_000;

/// The window and its grid.
pub(crate) struct Window {
    pub t0: u64,
    pub t1: u64,
    pub o0: u64,
    pub o1: u64,
    pub w: usize,
    pub h: usize,
}

impl Window {
    fn column_nanos(&self) -> f64 {
        (self.t1 - self.t0).max(1) as f64 / self.w as f64
    }

    /// Columns that a stretch of time touches, with its share in each.
    pub fn columns(&self, begin: u64, end: u64, mut f: impl FnMut(usize, f64)) {
        let size = self.column_nanos();
        let from = begin.max(self.t0);
        let to = end.min(self.t1);
        if begin >= end {
            // No time passed: all of it is where it is.
            if (self.t0..self.t1).contains(&begin) {
                f(
                    (((begin - self.t0) as f64 / size) as usize).min(self.w - 1),
                    1.0,
                );
            }
            return;
        }
        if from >= to {
            return;
        }
        let length = (end - begin) as f64;
        let (from, to) = ((from - self.t0) as f64, (to - self.t0) as f64);
        let first = ((from / size) as usize).min(self.w - 1);
        let last = ((to / size) as usize).min(self.w - 1);
        for column in first..=last {
            let a = from.max(column as f64 * size);
            let b = if column == last {
                to
            } else {
                to.min((column + 1) as f64 * size)
            };
            if b > a {
                f(column, (b - a) / length);
            }
        }
    }

    pub fn rows(&self) -> Stretches {
        let size = (self.o1 - self.o0).max(1) as f64 / self.h as f64;
        Stretches::new(self.o0 as f64, size, self.h)
    }

    pub fn meets(&self, begin: f64, span: u64) -> bool {
        begin < self.o1 as f64 && begin + span.max(1) as f64 > self.o0 as f64
    }
}

/// Accesses of a graph that a window meets, and where their tensors begin.
#[derive(Default)]
struct Reads {
    accesses: Vec<(u32, f64)>,
    /// How many that makes in an evaluation, at most.
    estimate: u64,
}

impl RunIndex {
    /// Where the tensor of a read begins in the map space, if it is a weight's.
    pub(crate) fn begin_of_read(&self, access: &GraphAccess) -> Option<f64> {
        let tensor = &self.catalog.tensors[access.tensor as usize];
        let begin = tensor.begin.filter(|_| access.is_weight_read)?;
        Some(begin as f64)
    }

    /// Evaluations that a stretch of time meets, by their begin; absolute times.
    pub(crate) fn evals_between(&self, t0: u64, t1: u64) -> &[u32] {
        let start = self.latest.partition_point(|&last| last < t0);
        let begin = |at: &u32| self.evals[*at as usize].begin;
        let end = self.by_time.partition_point(|at| begin(at) < t1);
        &self.by_time[start.min(end)..end]
    }

    /// Those that may have steps in a window of time: clocks that jump may take steps to
    /// before the begin of their evaluation.
    pub(crate) fn evals_with_steps_in(&self, times: &Range<u64>) -> impl Iterator<Item = &Eval> {
        let (t0, t1) = (times.start, times.end);
        let all = self.evals_between(t0, t1.saturating_add(self.jumped_back));
        let evals = all.iter().map(|&at| &self.evals[at as usize]);
        evals.filter(move |e| e.last >= t0 && (e.begin < t1 || !e.is_regular()))
    }

    /// A window of time in absolute nanoseconds.
    pub(crate) fn window(&self, t0: Option<u64>, t1: Option<u64>) -> Range<u64> {
        let last = self.latest.last().copied().unwrap_or(0);
        let duration = last.saturating_sub(self.origin).saturating_add(1);
        let t0 = t0.unwrap_or(0).min(1 << 62);
        let t1 = t1.unwrap_or(duration).min(1 << 62).max(t0 + 1);
        self.origin.saturating_add(t0)..self.origin.saturating_add(t1)
    }

    pub(crate) fn offsets_window(&self, query: &OffsetsQuery) -> Window {
        let times = self.window(query.t0, query.t1);
        let total = self.catalog.total_bytes.max(1);
        let o0 = query.o0.unwrap_or(0).min(1 << 52);
        Window {
            t0: times.start,
            t1: times.end,
            o0,
            o1: query.o1.unwrap_or(total).min(1 << 52).max(o0 + 1),
            w: query.w.max(1) as usize,
            h: query.h.max(1) as usize,
        }
    }

    pub fn offsets(&self, query: &OffsetsQuery, filter: &Filter) -> Raster<OffsetsHeader> {
        let window = self.offsets_window(query);
        let selector = Selector::new(self, filter);
        let masks = Masks::new(self, &selector);
        let evals: Vec<&Eval> = self
            .evals_with_steps_in(&(window.t0..window.t1))
            .filter(|e| selector.keeps_eval(e))
            .collect();
        let mut reads: Vec<Option<Reads>> = self.graphs.iter().map(|_| None).collect();
        let mut estimate = 0;
        for eval in &evals {
            let graph = &self.graphs[eval.graph as usize];
            let reads = &mut reads[eval.graph as usize];
            let reads =
                reads.get_or_insert_with(|| self.reads_of(graph, masks.of(eval.graph), &window));
            estimate += reads.estimate + u64::from(!eval.is_regular()) * graph.steps.len() as u64;
        }
        // Few enough to be drawn one by one are never spread.
        let even = Even::of(&evals, window.column_nanos(), query.even)
            .filter(|_| estimate > MAX_EXACT as u64);
        let (values, accesses, exact) = if estimate <= MAX_PLACED && even.is_none() {
            self.place_each(&selector, &masks, &evals, &reads, &window)
        } else {
            let even = even.as_ref();
            let (values, accesses) = self.place_profiles(&selector, &masks, &evals, &window, even);
            (values, accesses, None)
        };
        Raster {
            header: OffsetsHeader {
                t0: window.t0 - self.origin,
                t1: window.t1 - self.origin,
                o0: window.o0,
                o1: window.o1,
                w: window.w as u32,
                h: window.h as u32,
                max: values.iter().copied().fold(0.0, f32::max),
                accesses,
                even: even.is_some(),
                exact,
            },
            values,
        }
    }

    /// Reads of an evaluation of the graph that may lie in the window.
    fn reads_of(&self, graph: &Graph, mask: &Mask, window: &Window) -> Reads {
        let mut reads = Reads::default();
        for (at, access) in mask.kept(graph) {
            let tensor = &self.catalog.tensors[access.tensor as usize];
            let begin = self.begin_of_read(access);
            let Some(begin) = begin.filter(|&b| window.meets(b, tensor.size_bytes)) else {
                continue;
            };
            reads.accesses.push((at as u32, begin));
            reads.estimate += match &access.touch {
                Touch::Slices { router, .. } | Touch::Each { router, .. } => {
                    graph.routers[*router as usize].elements.into()
                }
                Touch::Rows { kept, .. } => graph.rows[*kept as usize].elements.into(),
                _ => 1,
            };
        }
        reads
    }

    fn place_each(
        &self,
        selector: &Selector,
        masks: &Masks,
        evals: &[&Eval],
        reads: &[Option<Reads>],
        window: &Window,
    ) -> (Vec<f32>, u64, Option<Vec<ExactAccess>>) {
        // Columns are filled side by side; each is a stack of stretches of its own.
        let mut columns: Vec<Option<Stretches>> = (0..window.w).map(|_| None).collect();
        let mut exact = Some(Vec::new());
        let mut accesses = 0;
        let times = window.t0..window.t1;
        let mut place = |eval: &Eval, hit: Hit, tensor: f64, begin: u64, end: u64| {
            let at = tensor + hit.offset as f64;
            if !lies_in(&times, begin, end) || !window.meets(at, hit.span) {
                return;
            }
            accesses += hit.count;
            match &mut exact {
                Some(list) if list.len() < MAX_EXACT => {
                    list.push(self.exact_access(eval, &hit, begin, end));
                }
                _ => exact = None,
            }
            window.columns(begin, end, |column, share| {
                let rows = columns[column].get_or_insert_with(|| window.rows());
                rows.add(at, hit.span as f64, hit.bytes as f64 * share);
            });
        };
        for eval in evals {
            let graph = &self.graphs[eval.graph as usize];
            let reads = reads[eval.graph as usize].as_ref();
            let reads = reads.map_or(&[][..], |r| r.accesses.as_slice());
            if !eval.is_regular() {
                let mask = masks.of(eval.graph);
                self.each_step(eval, |step, begin, end| {
                    let (begin, end) = self.known_time(eval, begin, end);
                    self.each_hit_of_steps(selector, mask, eval, step..step + 1, |hit| {
                        let access = &graph.accesses[hit.access as usize];
                        if let Some(tensor) = self.begin_of_read(access) {
                            place(eval, hit, tensor, begin, end);
                        }
                    });
                });
                continue;
            }
            for &(at, tensor) in reads {
                let access = &graph.accesses[at as usize];
                let (begin, end) = self.time_of_step(eval, access.step as usize);
                if !lies_in(&times, begin, end) {
                    continue;
                }
                match access.touch {
                    Touch::Fixed { offset, span } if selector.experts.is_none() => {
                        let hit = Hit {
                            step: access.step,
                            access: at,
                            expert: NO_EXPERT,
                            count: 1,
                            bytes: access.bytes,
                            offset,
                            span,
                        };
                        place(eval, hit, tensor, begin, end);
                    }
                    _ => self.each_indexed_hit(selector, eval, graph, at, |hit| {
                        place(eval, hit, tensor, begin, end);
                    }),
                }
            }
        }
        let mut values = vec![0f32; window.w * window.h];
        for (column, rows) in columns.into_iter().enumerate() {
            if let Some(mut rows) = rows {
                rows.take(|row, amount| values[row * window.w + column] = amount as f32);
            }
        }
        (values, accesses, exact)
    }

    fn exact_access(&self, eval: &Eval, hit: &Hit, begin: u64, end: u64) -> ExactAccess {
        let graph = &self.graphs[eval.graph as usize];
        let step = &graph.steps[hit.step as usize];
        let access = &graph.accesses[hit.access as usize];
        let tensor = &self.catalog.tensors[access.tensor as usize];
        ExactAccess {
            eval: eval.number,
            step: hit.step,
            token: eval.first_token_if_any(),
            tensor: tensor.number,
            expert: (hit.expert != NO_EXPERT).then_some(hit.expert.into()),
            op: self.catalog.ops.all[step.op as usize].clone(),
            layer: self.catalog.layers.all[step.layer as usize],
            begin: begin.saturating_sub(self.origin),
            end: end.saturating_sub(self.origin),
            offset: tensor.begin.unwrap_or(0).saturating_add(hit.offset),
            bytes: hit.bytes,
        }
    }
}
