//! Running sums over the regular evaluations of a graph, kept every so often.
//!
//! A sum over any range of ranks is then a difference of two kept sums and at
//! most two short walks, however long the range.

use std::ops::Range;

use crate::{
    data::{Data, Eval},
    graph::{Graph, Router},
};

/// Evaluations between two kept sums, at least.
const EVERY: u32 = 256;
/// The same for pairs of experts, of which there are many.
const PAIRS_EVERY: u32 = 512;
/// Wider choices than this are damage; their pairs are not counted.
pub const MAX_USED_FOR_PAIRS: u32 = 64;
const MAX_PAIRS: u64 = 1 << 25;

/// Sums of one kind of value.
#[derive(Debug, Default)]
pub struct Kept<T> {
    every: u32,
    width: usize,
    /// `snapshots[k]` holds the sums of ranks below `(k + 1) * every`.
    snapshots: Vec<Vec<T>>,
}

#[derive(Debug, Default)]
pub struct Blocks {
    /// Per step.
    pub nanos: Kept<u64>,
    /// Per expert of each router: evaluations that used it, choices of it, and
    /// the sum of their weights.
    pub used: Kept<u32>,
    pub chosen: Kept<u32>,
    pub weight: Kept<f64>,
    /// Per router and pair of experts; empty if there would be too many.
    pub pairs: Kept<u32>,
}

/// Sums that can be taken apart again.
pub trait Amount: Copy + Default {
    fn minus(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty),*) => {$(impl Amount for $t {
        fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
    })*};
}
integers!(u32, u64);

impl Amount for f64 {
    fn minus(self, other: f64) -> f64 {
        self - other
    }
}

impl<T: Amount> Kept<T> {
    fn new(width: usize, every: u32) -> Kept<T> {
        Kept {
            every,
            width,
            snapshots: Vec::new(),
        }
    }

    /// Keeps the sums up to `ranks` evaluations, if that is due; `walk` adds those
    /// of a short range. A graph that is evaluated rarely keeps nothing.
    fn extend(&mut self, ranks: u32, walk: impl FnOnce(Range<u32>, &mut [T])) {
        if self.width == 0 || !ranks.is_multiple_of(self.every) {
            return;
        }
        let mut sums = match self.snapshots.last() {
            Some(last) => last.clone(),
            None => vec![T::default(); self.width],
        };
        walk(ranks - self.every..ranks, &mut sums);
        self.snapshots.push(sums);
    }

    /// The sums over `ranks`; `walk` adds those of a short range.
    fn sum(&self, ranks: Range<u32>, mut walk: impl FnMut(Range<u32>, &mut [T])) -> Vec<T> {
        let mut sums = vec![T::default(); self.width];
        if ranks.is_empty() || self.width == 0 {
            return sums;
        }
        let first = ranks.start.div_ceil(self.every);
        let last = ranks.end / self.every;
        if first >= last || last as usize > self.snapshots.len() {
            walk(ranks, &mut sums);
            return sums;
        }
        sums.copy_from_slice(&self.snapshots[last as usize - 1]);
        if let Some(before) = first.checked_sub(1) {
            let before = &self.snapshots[before as usize];
            for (sum, &before) in sums.iter_mut().zip(before) {
                *sum = sum.minus(before);
            }
        }
        walk(ranks.start..first * self.every, &mut sums);
        walk(last * self.every..ranks.end, &mut sums);
        sums
    }
}

impl Blocks {
    pub fn new(graph: &Graph) -> Blocks {
        let experts = graph.experts() as usize;
        // A hostile log may name many experts and choose few: what is kept stays
        // in proportion to what was read.
        let every = EVERY.max(graph.experts() / graph.ids.max(1));
        let pairs = pair_places(graph);
        let pairs_every = PAIRS_EVERY.max((pairs / u64::from(graph.ids.max(1)) / 4) as u32);
        Blocks {
            nanos: Kept::new(graph.steps.len(), EVERY),
            used: Kept::new(experts, every),
            chosen: Kept::new(experts, every),
            weight: Kept::new(experts, every),
            pairs: Kept::new(pairs as usize, pairs_every),
        }
    }
}

/// Places for the pairs of all routers: for each the full square, whose lower
/// half stays zero (the place of a pair is then a multiplication away).
fn pair_places(graph: &Graph) -> u64 {
    let wide = graph.routers.iter().any(|r| r.used > MAX_USED_FOR_PAIRS);
    let places = graph
        .routers
        .iter()
        .map(|r| u64::from(r.experts) * u64::from(r.experts))
        .sum::<u64>();
    if wide || places > MAX_PAIRS {
        0
    } else {
        places
    }
}

/// Adds up single evaluations of a graph.
#[derive(Clone, Copy)]
pub struct Walker<'a> {
    pub routers: &'a [Router],
    pub steps: usize,
    pub data: &'a Data,
}

impl<'a> Walker<'a> {
    pub fn new(graph: &'a Graph, data: &'a Data) -> Walker<'a> {
        Walker {
            routers: &graph.routers,
            steps: graph.steps.len(),
            data,
        }
    }

    pub fn add_nanos(&self, eval: &Eval, sums: &mut [u64]) {
        let mut before = 0;
        for (sum, &end) in sums.iter_mut().zip(self.data.ends(eval, self.steps)) {
            *sum = sum.wrapping_add(u64::from(end - before));
            before = end;
        }
    }

    fn add_used(&self, eval: &Eval, sums: &mut [u32]) {
        for (number, router) in self.routers.iter().enumerate() {
            let sums = &mut sums[router.first_expert as usize..];
            for &expert in self.data.distinct(eval, number) {
                if u32::from(expert) < router.experts {
                    sums[expert as usize] += 1;
                }
            }
        }
    }

    fn add_chosen(&self, eval: &Eval, sums: &mut [u32]) {
        for router in self.routers {
            let sums = &mut sums[router.first_expert as usize..];
            for &expert in self.data.ids(eval, router) {
                if u32::from(expert) < router.experts {
                    sums[expert as usize] += 1;
                }
            }
        }
    }

    fn add_weight(&self, eval: &Eval, sums: &mut [f64]) {
        for router in self.routers.iter().filter(|r| r.has_weights()) {
            let sums = &mut sums[router.first_expert as usize..];
            let choices = self.data.ids(eval, router).iter();
            for (&expert, &weight) in choices.zip(self.data.weights(eval, router)) {
                if u32::from(expert) < router.experts && weight.is_finite() {
                    sums[expert as usize] += f64::from(weight);
                }
            }
        }
    }

    fn add_all_pairs(&self, eval: &Eval, sums: &mut [u32]) {
        self.add_pairs(eval, 0..eval.batch, sums);
    }

    /// Pairs of experts that a token used together, for tokens of the batch.
    pub fn add_pairs(&self, eval: &Eval, tokens: Range<u32>, sums: &mut [u32]) {
        if sums.is_empty() {
            return;
        }
        let mut first = 0;
        for router in self.routers {
            let experts = router.experts as usize;
            let ids = self.data.ids(eval, router).chunks(router.used as usize);
            for (row, ids) in ids.enumerate() {
                let token = self.data.token_of_row(eval, router, row as u32);
                if !tokens.contains(&token) {
                    continue;
                }
                for (i, &a) in ids.iter().enumerate() {
                    for &b in &ids[i + 1..] {
                        let (a, b) = (a.min(b) as usize, a.max(b) as usize);
                        if b < experts && a != b {
                            sums[first + a * experts + b] += 1;
                        }
                    }
                }
            }
            first += experts * experts;
        }
    }
}

/// Sums over ranges of ranks.
impl Graph {
    /// Brings the kept sums up to date after an evaluation was appended.
    pub fn keep_sums(&mut self, evals: &[Eval], data: &Data) {
        let mut blocks = std::mem::take(&mut self.blocks);
        self.keep(&mut blocks.nanos, evals, data, Walker::add_nanos);
        self.keep(&mut blocks.used, evals, data, Walker::add_used);
        self.keep(&mut blocks.chosen, evals, data, Walker::add_chosen);
        self.keep(&mut blocks.weight, evals, data, Walker::add_weight);
        self.keep(&mut blocks.pairs, evals, data, Walker::add_all_pairs);
        self.blocks = blocks;
    }

    fn keep<'a, T: Amount>(
        &'a self,
        kept: &mut Kept<T>,
        evals: &[Eval],
        data: &'a Data,
        add: impl Fn(&Walker<'a>, &Eval, &mut [T]),
    ) {
        let walker = Walker::new(self, data);
        kept.extend(self.evals.len() as u32, |ranks, sums| {
            self.each(evals, ranks, |eval| add(&walker, eval, sums));
        });
    }

    fn sum<'a, T: Amount>(
        &'a self,
        kept: &Kept<T>,
        evals: &[Eval],
        data: &'a Data,
        ranks: Range<u32>,
        add: impl Fn(&Walker<'a>, &Eval, &mut [T]),
    ) -> Vec<T> {
        let walker = Walker::new(self, data);
        kept.sum(ranks, |ranks, sums| {
            self.each(evals, ranks, |eval| add(&walker, eval, sums));
        })
    }

    pub fn nanos(&self, evals: &[Eval], data: &Data, ranks: Range<u32>) -> Vec<u64> {
        self.sum(&self.blocks.nanos, evals, data, ranks, Walker::add_nanos)
    }

    /// Evaluations that used each expert.
    pub fn used(&self, evals: &[Eval], data: &Data, ranks: Range<u32>) -> Vec<u32> {
        self.sum(&self.blocks.used, evals, data, ranks, Walker::add_used)
    }

    /// Choices of each expert.
    pub fn chosen(&self, evals: &[Eval], data: &Data, ranks: Range<u32>) -> Vec<u32> {
        self.sum(&self.blocks.chosen, evals, data, ranks, Walker::add_chosen)
    }

    pub fn weight(&self, evals: &[Eval], data: &Data, ranks: Range<u32>) -> Vec<f64> {
        self.sum(&self.blocks.weight, evals, data, ranks, Walker::add_weight)
    }

    pub fn pairs(&self, evals: &[Eval], data: &Data, ranks: Range<u32>) -> Vec<u32> {
        self.sum(
            &self.blocks.pairs,
            evals,
            data,
            ranks,
            Walker::add_all_pairs,
        )
    }

    pub fn each<'e>(&self, evals: &'e [Eval], ranks: Range<u32>, mut f: impl FnMut(&'e Eval)) {
        for &eval in &self.evals[ranks.start as usize..ranks.end as usize] {
            f(&evals[eval as usize]);
        }
    }
}
