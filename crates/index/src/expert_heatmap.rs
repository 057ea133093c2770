//! Heatmaps whose rows are the experts of layers.
//!
//! Choices and their weights are those of the routing, exact by token; bytes are
//! those of the accesses to the experts' slices.

use std::ops::Range;

use crate::{
    QueryError, RunIndex,
    answers::{HeatmapHeader, HeatmapRow, Raster},
    data::Eval,
    graph::Touch,
    heatmap::{Columns, NO_ROW, raster},
    query::{HeatmapMetric, HeatmapQuery, MAX_CELLS},
    select::{Masks, Selector},
};

/// Where the experts of each layer are among the rows.
struct Rows {
    rows: Vec<HeatmapRow>,
    /// Layer, its experts, its first row; ascending.
    layers: Vec<(u32, u32, usize)>,
    /// Row of an expert from the first of its layer, or [`NO_ROW`].
    in_layer: Vec<u32>,
}

/// Reads of the experts that a router chose, by all accesses that are alike.
struct Slices {
    router: u32,
    /// A read for each choice, or for each expert that is chosen at all.
    is_each: bool,
    /// Experts from here on are not there.
    bound: u64,
    first_row: usize,
    bytes: f32,
}

impl Slices {
    fn is_like(&self, other: &Slices) -> bool {
        let key = |s: &Slices| (s.router, s.is_each, s.bound, s.first_row);
        key(self) == key(other)
    }
}

impl Rows {
    fn new(index: &RunIndex, selector: &Selector) -> Rows {
        let mut rows = Vec::new();
        let mut layers = Vec::new();
        let keeps = |expert: &u32| selector.keeps_expert(*expert as u16);
        for (layer, experts) in index.router_layers(selector) {
            layers.push((layer, experts, rows.len()));
            rows.extend((0..experts).filter(keeps).map(|expert| HeatmapRow {
                label: format!("{layer}/{expert}"),
                layer: Some(layer),
                tensor: None,
                expert: Some(expert),
                group: format!("layer {layer}"),
            }));
        }
        let most = layers.iter().map(|l| l.1).max().unwrap_or(0);
        let mut in_layer = vec![NO_ROW; most as usize];
        for (row, expert) in (0..most).filter(keeps).enumerate() {
            in_layer[expert as usize] = row as u32;
        }
        Rows {
            rows,
            layers,
            in_layer,
        }
    }

    fn layer(&self, layer: u32) -> Option<&(u32, u32, usize)> {
        let at = self.layers.binary_search_by_key(&layer, |l| l.0).ok()?;
        Some(&self.layers[at])
    }
}

impl RunIndex {
    pub(crate) fn expert_heatmap(
        &self,
        query: &HeatmapQuery,
        selector: &Selector,
        tokens: Range<u64>,
    ) -> Result<Raster<HeatmapHeader>, QueryError> {
        if query.metric == HeatmapMetric::Nanos {
            let message =
                "metric: nanos is not known of experts; ask for accesses, weight or bytes";
            return Err(QueryError(message.into()));
        }
        let rows = Rows::new(self, selector);
        let height = rows.rows.len();
        let most = u64::from(query.columns).min(MAX_CELLS / height.max(1) as u64);
        let columns = Columns::new(tokens, most.max(1));
        // Column by column while it is filled: choices of a token lie together.
        let mut sums = vec![0f32; height * columns.len()];
        let by_weight = query.metric == HeatmapMetric::Weight;
        let mut counts = vec![0u32; if by_weight { sums.len() } else { 0 }];
        let masks = Masks::new(self, selector);
        let mut slices: Vec<Option<Vec<Slices>>> = self.graphs.iter().map(|_| None).collect();
        for (_, eval) in self.evals_of_tokens(&columns) {
            if !selector.keeps_eval(eval) {
                continue;
            }
            for (column, tokens) in columns.of(eval.token_range()) {
                let cells = column * height..(column + 1) * height;
                let sums = &mut sums[cells.clone()];
                if query.metric == HeatmapMetric::Bytes && eval.is_regular() {
                    let slices = slices[eval.graph as usize]
                        .get_or_insert_with(|| self.slices(&masks, eval.graph, &rows));
                    let share = (tokens.end - tokens.start) as f32 / eval.batch as f32;
                    self.add_slices(slices, eval, share, &rows, sums);
                } else if query.metric == HeatmapMetric::Bytes {
                    self.add_expert_bytes(selector, &masks, eval, tokens, &rows, sums);
                } else {
                    let counts = by_weight.then(|| &mut counts[cells]);
                    self.add_choices(selector, eval, tokens, &rows, sums, counts);
                }
            }
        }
        if by_weight {
            for (sum, &count) in sums.iter_mut().zip(&counts) {
                *sum /= count.max(1) as f32;
            }
        } else {
            for (column, sums) in sums.chunks_mut(height.max(1)).enumerate() {
                let tokens = columns.edges[column + 1] - columns.edges[column];
                sums.iter_mut().for_each(|sum| *sum /= tokens.max(1) as f32);
            }
        }
        let values = transposed(&sums, columns.len(), height);
        let unit = match query.metric {
            HeatmapMetric::Bytes => "bytes per token",
            HeatmapMetric::Weight => "mean router weight",
            _ => "choices per token",
        };
        Ok(raster(rows.rows, columns, unit, values))
    }

    /// What a choice of each router of a graph reads: gate, up and down in one.
    fn slices(&self, masks: &Masks, graph: u32, rows: &Rows) -> Vec<Slices> {
        let mask = masks.of(graph);
        let graph = &self.graphs[graph as usize];
        let mut all: Vec<Slices> = Vec::new();
        for (_, access) in mask.kept(graph) {
            let (router, unit, is_each) = match &access.touch {
                Touch::Slices { router, unit, .. } => (*router, unit, false),
                Touch::Each { router, unit, .. } => (*router, unit, true),
                _ => continue,
            };
            let step = &graph.steps[access.step as usize];
            let layer = self.catalog.layers.all[step.layer as usize];
            let Some(&(_, experts, first_row)) = layer.and_then(|layer| rows.layer(layer)) else {
                continue;
            };
            let slices = Slices {
                router,
                is_each,
                bound: unit.bound.min(experts.into()),
                first_row,
                bytes: 0.0,
            };
            let at = all.iter().position(|other| other.is_like(&slices));
            let at = at.unwrap_or_else(|| {
                all.push(slices);
                all.len() - 1
            });
            all[at].bytes += access.bytes as f32;
        }
        all
    }

    fn add_slices(
        &self,
        slices: &[Slices],
        eval: &Eval,
        share: f32,
        rows: &Rows,
        sums: &mut [f32],
    ) {
        let graph = &self.graphs[eval.graph as usize];
        for slices in slices {
            let chosen = match slices.is_each {
                true => self.data.ids(eval, &graph.routers[slices.router as usize]),
                false => self.data.distinct(eval, slices.router as usize),
            };
            let sums = &mut sums[slices.first_row..];
            let bytes = slices.bytes * share;
            for &expert in chosen {
                if u64::from(expert) < slices.bound {
                    let row = rows.in_layer[usize::from(expert)];
                    if row != NO_ROW {
                        sums[row as usize] += bytes;
                    }
                }
            }
        }
    }

    fn add_expert_bytes(
        &self,
        selector: &Selector,
        masks: &Masks,
        eval: &Eval,
        tokens: Range<u64>,
        rows: &Rows,
        sums: &mut [f32],
    ) {
        let graph = &self.graphs[eval.graph as usize];
        let share = (tokens.end - tokens.start) as f32 / eval.batch as f32;
        self.each_hit(selector, masks.of(eval.graph), eval, |hit| {
            let step = &graph.steps[hit.step as usize];
            let layer = self.catalog.layers.all[step.layer as usize];
            let Some(&(_, experts, first)) = layer.and_then(|layer| rows.layer(layer)) else {
                return;
            };
            if u32::from(hit.expert) < experts {
                let row = rows.in_layer[usize::from(hit.expert)];
                if row != NO_ROW {
                    sums[first + row as usize] += hit.bytes as f32 * share;
                }
            }
        });
    }

    /// Adds choices, or where there are `counts` their weights.
    fn add_choices(
        &self,
        selector: &Selector,
        eval: &Eval,
        tokens: Range<u64>,
        rows: &Rows,
        sums: &mut [f32],
        mut counts: Option<&mut [u32]>,
    ) {
        let graph = &self.graphs[eval.graph as usize];
        for router in &graph.routers {
            let Some(&(_, _, first)) = rows.layer(router.layer) else {
                continue;
            };
            let used = router.used as usize;
            let in_layer = &rows.in_layer[..router.experts as usize];
            let row_of = |id: u16| in_layer.get(usize::from(id)).filter(|row| **row != NO_ROW);
            let sums = &mut sums[first..];
            let ids = self.data.ids(eval, router);
            let weights = self.data.weights(eval, router);
            for line in 0..ids.len() / used {
                let token = self.data.token_of_row(eval, router, line as u32);
                let token = eval.batch_first + u64::from(token);
                if !tokens.contains(&token) || !selector.keeps_token(token) {
                    continue;
                }
                let choices = line * used..(line + 1) * used;
                let Some(counts) = counts.as_deref_mut() else {
                    for &row in ids[choices].iter().filter_map(|&id| row_of(id)) {
                        sums[row as usize] += 1.0;
                    }
                    continue;
                };
                let counts = &mut counts[first..];
                for (&id, &weight) in ids[choices.clone()].iter().zip(&weights[choices]) {
                    if let Some(&row) = row_of(id).filter(|_| weight.is_finite()) {
                        sums[row as usize] += weight;
                        counts[row as usize] += 1;
                    }
                }
            }
        }
    }
}

/// Tile by tile, so that reading and writing both stay in the cache.
fn transposed(from: &[f32], lines: usize, length: usize) -> Vec<f32> {
    const TILE: usize = 32;
    let mut to = vec![0f32; from.len()];
    for line in (0..lines).step_by(TILE) {
        for at in (0..length).step_by(TILE) {
            for line in line..(line + TILE).min(lines) {
                for at in at..(at + TILE).min(length) {
                    to[at * lines + line] = from[line * length + at];
                }
            }
        }
    }
    to
}
