//! Windows of time with many evaluations: each graph's profile over the files,
//! added to the columns that its evaluations lie in.

use crate::{
    RunIndex,
    data::{Eval, NO_ROW},
    even::Even,
    graph::{Graph, Touch, Unit},
    offsets::Window,
    select::{Masks, Selector},
};

impl RunIndex {
    /// The values of the window, and about how many accesses they are.
    pub(crate) fn place_profiles(
        &self,
        selector: &Selector,
        masks: &Masks,
        evals: &[&Eval],
        window: &Window,
        even: Option<&Even>,
    ) -> (Vec<f32>, u64) {
        // Which evaluations lie in which column, by how much of their time.
        let mut shares: Vec<(u32, u32, f32)> = Vec::with_capacity(evals.len() + window.w);
        for (at, eval) in evals.iter().enumerate() {
            let stretch = even.and_then(|even| even.stretch(at));
            let stretch = stretch.unwrap_or(eval.begin..eval.last);
            window.columns(stretch.start, stretch.end, |column, share| {
                shares.push((column as u32, at as u32, share as f32));
            });
        }
        shares.sort_by_key(|s| s.0);
        let mut profiles: Vec<Option<Profile>> = self.graphs.iter().map(|_| None).collect();
        let mut values = vec![0f32; window.w * window.h];
        let mut sums = vec![0f64; window.h];
        let mut rows = window.rows();
        let mut accesses = 0f64;
        for column in shares.chunk_by(|a, b| a.0 == b.0) {
            let mut graphs: Vec<u32> = Vec::new();
            for &(_, at, share) in column {
                let eval = evals[at as usize];
                if !eval.is_regular() {
                    self.each_hit(selector, masks.of(eval.graph), eval, |hit| {
                        let graph = &self.graphs[eval.graph as usize];
                        let access = &graph.accesses[hit.access as usize];
                        if let Some(begin) = self.begin_of_read(access) {
                            let amount = hit.bytes as f64 * f64::from(share);
                            accesses += hit.count as f64 * f64::from(share);
                            rows.add(begin + hit.offset as f64, hit.span as f64, amount);
                        }
                    });
                    continue;
                }
                let graph = &self.graphs[eval.graph as usize];
                let profile = profiles[eval.graph as usize]
                    .get_or_insert_with(|| Profile::new(self, selector, masks, eval.graph, window));
                if profile.evals == 0.0 {
                    graphs.push(eval.graph);
                }
                profile.evals += f64::from(share);
                profile.add_choices(self, graph, eval, share);
                for &(begin, kept, unit, bytes) in &profile.rows {
                    for &row in self.data.rows(eval, graph, kept) {
                        if row != NO_ROW && u64::from(row) < unit.bound {
                            let at = begin + unit.offset_of(row.into()) as f64;
                            accesses += f64::from(share);
                            rows.add(at, unit.span as f64, bytes * f64::from(share));
                        }
                    }
                }
            }
            rows.take(|row, amount| sums[row] = amount);
            for graph in graphs {
                let profile = profiles[graph as usize].as_mut().expect("made above");
                accesses += profile.flush(&mut sums);
            }
            let at = column[0].0 as usize;
            for (row, sum) in sums.iter_mut().enumerate() {
                values[row * window.w + at] = *sum as f32;
                *sum = 0.0;
            }
        }
        (values, accesses.round() as u64)
    }
}

/// What an evaluation of a graph reads, row by row of the window.
struct Profile {
    fixed: Vec<f64>,
    fixed_accesses: f64,
    /// Routers whose experts lie in the window.
    routers: Vec<Chosen>,
    /// Begin of the tensor, kept array, unit, bytes.
    rows: Vec<(f64, u32, Unit, f64)>,
    /// Of the present column.
    evals: f64,
}

/// Begin of a tensor, unit of an expert in it, bytes of that.
type Sliced = (f64, Unit, f64);

/// What the choices of a router read.
struct Chosen {
    router: u32,
    is_each: bool,
    /// Per expert of the present column, and what one choice reads.
    counts: Vec<f32>,
    ends: Vec<u32>,
    cells: Vec<(u32, f32)>,
    reads: Vec<f32>,
}

impl Profile {
    fn new(
        index: &RunIndex,
        selector: &Selector,
        masks: &Masks,
        number: u32,
        window: &Window,
    ) -> Profile {
        let graph = &index.graphs[number as usize];
        let mut fixed_rows = window.rows();
        let mut profile = Profile {
            fixed: vec![0.0; window.h],
            fixed_accesses: 0.0,
            routers: Vec::new(),
            rows: Vec::new(),
            evals: 0.0,
        };
        let mut sliced: Vec<(u32, bool, Vec<Sliced>)> = Vec::new();
        for (_, access) in masks.of(number).kept(graph) {
            let tensor = &index.catalog.tensors[access.tensor as usize];
            let begin = index.begin_of_read(access);
            let Some(begin) = begin.filter(|&b| window.meets(b, tensor.size_bytes)) else {
                continue;
            };
            let bytes = access.bytes as f64;
            match &access.touch {
                Touch::Fixed { offset, span } if selector.experts.is_none() => {
                    let at = begin + *offset as f64;
                    if window.meets(at, *span) {
                        fixed_rows.add(at, *span as f64, bytes);
                        profile.fixed_accesses += 1.0;
                    }
                }
                Touch::Slices { router, unit, .. } | Touch::Each { router, unit, .. } => {
                    let is_each = matches!(access.touch, Touch::Each { .. });
                    let same = sliced.iter_mut().find(|s| (s.0, s.1) == (*router, is_each));
                    match same {
                        Some(same) => same.2.push((begin, *unit, bytes)),
                        None => sliced.push((*router, is_each, vec![(begin, *unit, bytes)])),
                    }
                }
                Touch::Rows { kept, unit, .. } if selector.experts.is_none() => {
                    profile.rows.push((begin, *kept, *unit, bytes));
                }
                _ => {}
            }
        }
        fixed_rows.take(|row, amount| profile.fixed[row] = amount);
        for (router, is_each, units) in sliced {
            let experts = graph.routers[router as usize].experts;
            let mut chosen = Chosen {
                router,
                is_each,
                counts: vec![0.0; experts as usize],
                ends: Vec::new(),
                cells: Vec::new(),
                reads: Vec::new(),
            };
            for expert in 0..experts {
                let mut reads = 0.0;
                for &(begin, unit, bytes) in &units {
                    let at = begin + unit.offset_of(expert.into()) as f64;
                    let is_kept = selector.keeps_expert(expert as u16);
                    if u64::from(expert) < unit.bound && is_kept && window.meets(at, unit.span) {
                        reads += 1.0;
                        fixed_rows.each(at, unit.span as f64, bytes, |row, amount| {
                            chosen.cells.push((row as u32, amount as f32));
                        });
                    }
                }
                chosen.reads.push(reads);
                chosen.ends.push(chosen.cells.len() as u32);
            }
            profile.routers.push(chosen);
        }
        profile
    }

    fn add_choices(&mut self, index: &RunIndex, graph: &Graph, eval: &Eval, share: f32) {
        for chosen in &mut self.routers {
            let experts = if chosen.is_each {
                index.data.ids(eval, &graph.routers[chosen.router as usize])
            } else {
                index.data.distinct(eval, chosen.router as usize)
            };
            for &expert in experts {
                if let Some(count) = chosen.counts.get_mut(expert as usize) {
                    *count += share;
                }
            }
        }
    }

    /// Adds the present column and begins the next; its accesses.
    fn flush(&mut self, sums: &mut [f64]) -> f64 {
        let mut accesses = self.fixed_accesses * self.evals;
        for (sum, amount) in sums.iter_mut().zip(&self.fixed) {
            *sum += amount * self.evals;
        }
        for chosen in &mut self.routers {
            let mut first = 0;
            let all = chosen
                .counts
                .iter_mut()
                .zip(&chosen.ends)
                .zip(&chosen.reads);
            for ((count, &end), &reads) in all {
                if *count > 0.0 {
                    accesses += f64::from(*count * reads);
                    for &(row, amount) in &chosen.cells[first..end as usize] {
                        sums[row as usize] += f64::from(amount * *count);
                    }
                    *count = 0.0;
                }
                first = end as usize;
            }
        }
        self.evals = 0.0;
        accesses
    }
}
