//! Heatmaps: tokens along the axis, layers, tensors or experts down the side.
//!
//! A column is a token, or a bucket of tokens with their mean. The tokens of a
//! batch share what their evaluation did evenly; routing is theirs exactly. A
//! column covers ranges of ranks of few graphs, and is summed up through those;
//! only evaluations that a column's edge cuts, or ragged ones, are looked at one
//! by one.

use std::ops::Range;

use crate::{
    QueryError, RunIndex,
    answers::{HeatmapHeader, HeatmapRow, Raster},
    catalog::CatalogTensor,
    data::Eval,
    filter::Filter,
    graph::{Graph, Touch},
    query::{HeatmapMetric, HeatmapQuery, MAX_CELLS, RowKind, TokenWindow},
    select::{Mask, Masks, Selector, push_rank},
};

/// Marks what belongs to no row.
pub const NO_ROW: u32 = u32::MAX;

/// The columns: token numbers at their edges.
pub struct Columns {
    pub edges: Vec<u64>,
}

impl Columns {
    pub fn new(tokens: Range<u64>, most: u64) -> Columns {
        let count = tokens.end.saturating_sub(tokens.start);
        let columns = count.min(most).max(1);
        let edge = |i: u64| {
            tokens.start + (u128::from(count) * u128::from(i) / u128::from(columns)) as u64
        };
        Columns {
            edges: (0..=columns).map(edge).collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.edges.len() - 1
    }

    /// Columns that a range of tokens touches, with the tokens in each.
    pub fn of(&self, tokens: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> + '_ {
        let first = self.edges.partition_point(|&e| e <= tokens.start);
        (first.max(1) - 1..self.len())
            .map(move |column| {
                let begin = self.edges[column].max(tokens.start);
                let end = self.edges[column + 1].min(tokens.end);
                (column, begin..end)
            })
            .skip_while(|(_, tokens)| tokens.is_empty())
            .take_while(|(_, tokens)| !tokens.is_empty())
    }
}

/// What a column consists of.
enum Piece {
    /// Whole regular evaluations.
    Ranks { graph: u32, ranks: Range<u32> },
    /// A share of one evaluation.
    Share { eval: u32, share: f64 },
}

/// One heatmap being made.
struct Making<'a> {
    index: &'a RunIndex,
    selector: &'a Selector,
    masks: Masks<'a>,
    metric: HeatmapMetric,
    kind: RowKind,
    /// Row of each layer, or of each tensor.
    row_of: Vec<u32>,
    by_graph: Vec<Option<RowRuns>>,
}

/// What a graph contributes: fixed per evaluation, and what to look up.
struct RowRuns {
    fixed: Vec<(u32, f64)>,
    /// Row, class.
    classes: Vec<(u32, u32)>,
    /// Row, first step, last step: consecutive steps of one row.
    runs: Vec<(u32, u32, u32)>,
    /// With a filter of experts: row, router, bound, bytes of a unit, whether
    /// each choice counts.
    experts: Vec<(u32, u32, u64, f64, bool)>,
    /// And the steps that depend on them.
    nodes: Vec<(u32, usize, Vec<u32>)>,
}

impl RunIndex {
    pub fn heatmap(
        &self,
        query: &HeatmapQuery,
        filter: &Filter,
    ) -> Result<Raster<HeatmapHeader>, QueryError> {
        let selector = Selector::new(self, filter);
        let tokens = self.token_range(query.window, filter);
        if query.rows == RowKind::Expert {
            return self.expert_heatmap(query, &selector, tokens);
        }
        if query.metric == HeatmapMetric::Weight {
            let message =
                "metric: weight is known for rows=expert only; ask for bytes, accesses or nanos";
            return Err(QueryError(message.into()));
        }
        let (rows, row_of) = match query.rows {
            RowKind::Layer => self.layer_rows(&selector),
            _ => self.tensor_rows(&selector),
        };
        let most = u64::from(query.columns).min(MAX_CELLS / rows.len().max(1) as u64);
        let columns = Columns::new(tokens, most.max(1));
        let mut making = Making {
            index: self,
            selector: &selector,
            masks: Masks::new(self, &selector),
            metric: query.metric,
            kind: query.rows,
            row_of,
            by_graph: self.graphs.iter().map(|_| None).collect(),
        };
        let mut values = vec![0f32; rows.len() * columns.len()];
        let mut sums = vec![0f64; rows.len()];
        let pieces = self.pieces(&selector, &columns);
        for (column, pieces) in pieces.into_iter().enumerate() {
            sums.fill(0.0);
            for piece in pieces {
                match piece {
                    Piece::Ranks { graph, ranks } => making.add_ranks(graph, ranks, &mut sums),
                    Piece::Share { eval, share } => making.add_one(eval, share, &mut sums),
                }
            }
            let tokens = (columns.edges[column + 1] - columns.edges[column]).max(1) as f64;
            for (row, sum) in sums.iter().enumerate() {
                values[row * columns.len() + column] = (sum / tokens) as f32;
            }
        }
        let unit = match query.metric {
            HeatmapMetric::Bytes => "bytes per token",
            HeatmapMetric::Accesses => "accesses per token",
            _ => "nanoseconds per token",
        };
        Ok(raster(rows, columns, unit, values))
    }

    /// The tokens that a window means.
    fn token_range(&self, window: TokenWindow, filter: &Filter) -> Range<u64> {
        let (first, last) = filter.tokens.unwrap_or((0, u64::MAX));
        let from = window.from.unwrap_or(first);
        let end = window.to.unwrap_or(last).saturating_add(1).min(self.tokens);
        from.min(end)..end
    }

    fn layer_rows(&self, selector: &Selector) -> (Vec<HeatmapRow>, Vec<u32>) {
        let mut row_of = vec![NO_ROW; self.catalog.layers.all.len()];
        let mut rows = Vec::new();
        for number in self.catalog.layer_order() {
            if !selector.keeps_layer(number) {
                continue;
            }
            row_of[number as usize] = rows.len() as u32;
            let layer = self.catalog.layers.all[number as usize];
            rows.push(HeatmapRow {
                label: layer_label(layer),
                layer,
                tensor: None,
                expert: None,
                group: String::new(),
            });
        }
        (rows, row_of)
    }

    /// Weights, by place in the file.
    fn tensor_rows(&self, selector: &Selector) -> (Vec<HeatmapRow>, Vec<u32>) {
        let tensors = &self.catalog.tensors;
        let keeps = |tensor: &CatalogTensor| {
            let as_output = tensor.is_tied && selector.keeps_part(tensor.multiplied_part);
            tensor.is_weight() && (as_output || selector.keeps_part(tensor.part))
        };
        let mut order: Vec<usize> = (0..tensors.len()).filter(|&t| keeps(&tensors[t])).collect();
        order.sort_by_key(|&t| {
            let layer = tensors[t].meaning.as_ref().and_then(|m| m.layer);
            (layer.is_none(), layer, tensors[t].begin, t)
        });
        let mut row_of = vec![NO_ROW; tensors.len()];
        let mut rows = Vec::new();
        for tensor in order {
            row_of[tensor] = rows.len() as u32;
            let about = &tensors[tensor];
            let layer = about.meaning.as_ref().and_then(|m| m.layer);
            rows.push(HeatmapRow {
                label: about.name.clone(),
                layer,
                tensor: Some(about.number),
                expert: None,
                group: layer_label(layer),
            });
        }
        (rows, row_of)
    }

    fn pieces(&self, selector: &Selector, columns: &Columns) -> Vec<Vec<Piece>> {
        let mut pieces: Vec<Vec<Piece>> = (0..columns.len()).map(|_| Vec::new()).collect();
        // Ranges of the present column, by graph: evaluations come in the order of
        // their tokens, those of a graph in the order of their ranks.
        let mut open: Vec<(u32, Vec<Range<u32>>)> = Vec::new();
        let mut present = 0;
        let close = |open: &mut Vec<(u32, Vec<Range<u32>>)>, into: &mut Vec<Piece>| {
            for (graph, ranges) in open.drain(..) {
                into.extend(
                    ranges
                        .into_iter()
                        .map(|ranks| Piece::Ranks { graph, ranks }),
                );
            }
        };
        for (at, eval) in self.evals_of_tokens(columns) {
            if !selector.keeps_eval(eval) || eval.batch == 0 {
                continue;
            }
            for (column, tokens) in columns.of(eval.token_range()) {
                if column != present {
                    close(&mut open, &mut pieces[present]);
                    present = column;
                }
                let tokens = tokens.end - tokens.start;
                if tokens == u64::from(eval.batch) && eval.is_regular() {
                    let ranges = match open.iter_mut().position(|(g, _)| *g == eval.graph) {
                        Some(at) => &mut open[at].1,
                        None => {
                            open.push((eval.graph, Vec::new()));
                            &mut open.last_mut().expect("just pushed").1
                        }
                    };
                    push_rank(ranges, eval.rank);
                } else {
                    let share = tokens as f64 / f64::from(eval.batch);
                    let eval = at;
                    pieces[column].push(Piece::Share { eval, share });
                }
            }
        }
        close(&mut open, &mut pieces[present]);
        pieces
    }

    /// Evaluations whose batch holds a token of the columns, in order.
    pub(crate) fn evals_of_tokens(&self, columns: &Columns) -> impl Iterator<Item = (u32, &Eval)> {
        let (first, end) = (columns.edges[0], columns.edges[columns.len()]);
        let eval = |at: &u32| &self.evals[*at as usize];
        let order = &self.by_token;
        let start = order.partition_point(|at| eval(at).token_range().end <= first);
        let stop = order.partition_point(|at| eval(at).batch_first < end);
        let all = &order[start.min(stop)..stop];
        all.iter().map(move |&at| (at, &self.evals[at as usize]))
    }
}

pub(crate) fn raster(
    rows: Vec<HeatmapRow>,
    columns: Columns,
    unit: &'static str,
    values: Vec<f32>,
) -> Raster<HeatmapHeader> {
    Raster {
        header: HeatmapHeader {
            rows,
            columns: columns.len() as u32,
            edges: columns.edges,
            unit,
            max: values.iter().copied().fold(0.0, f32::max),
        },
        values,
    }
}

pub fn layer_label(layer: Option<u32>) -> String {
    layer.map_or_else(|| "no layer".to_owned(), |layer| format!("layer {layer}"))
}

impl Making<'_> {
    fn row_of_access(&self, graph: &Graph, access: usize) -> u32 {
        let about = &graph.accesses[access];
        match self.kind {
            RowKind::Layer => self.row_of[graph.steps[about.step as usize].layer as usize],
            _ => self.row_of[about.tensor as usize],
        }
    }

    /// A node belongs to its layer, or to the weight that it reads.
    fn row_of_step(&self, graph: &Graph, step: usize) -> u32 {
        let about = &graph.steps[step];
        match self.kind {
            RowKind::Layer => self.row_of[about.layer as usize],
            _ => about.primary.map_or(NO_ROW, |t| self.row_of[t as usize]),
        }
    }

    fn of_graph(&self, graph: &Graph, mask: &Mask) -> RowRuns {
        let mut of_graph = RowRuns {
            fixed: Vec::new(),
            classes: Vec::new(),
            runs: Vec::new(),
            experts: Vec::new(),
            nodes: Vec::new(),
        };
        if self.metric == HeatmapMetric::Nanos {
            for (step, routers) in mask.nodes(graph, self.selector) {
                let row = self.row_of_step(graph, step);
                match of_graph.runs.last_mut() {
                    _ if row == NO_ROW => {}
                    _ if !routers.is_empty() => of_graph.nodes.push((row, step, routers)),
                    Some(last) if last.0 == row && last.2 as usize + 1 == step => {
                        last.2 = step as u32;
                    }
                    _ => of_graph.runs.push((row, step as u32, step as u32)),
                }
            }
            return of_graph;
        }
        let mut fixed = vec![0f64; self.row_of.len().max(1)];
        let counts_bytes = self.metric == HeatmapMetric::Bytes;
        for (at, access) in mask.kept(graph) {
            let row = self.row_of_access(graph, at);
            if row == NO_ROW {
                continue;
            }
            let amount = if counts_bytes {
                access.bytes as f64
            } else {
                1.0
            };
            let filters_experts = self.selector.experts.is_some();
            match &access.touch {
                Touch::Slices { router, unit, .. } if filters_experts => {
                    of_graph
                        .experts
                        .push((row, *router, unit.bound, amount, false));
                }
                Touch::Each { router, unit, .. } if filters_experts => {
                    of_graph
                        .experts
                        .push((row, *router, unit.bound, amount, true));
                }
                _ if filters_experts => {}
                Touch::Fixed { .. } => fixed[row as usize] += amount,
                Touch::Slices { class, .. }
                | Touch::Each { class, .. }
                | Touch::Rows { class, .. }
                | Touch::Counted { class } => of_graph.classes.push((row, *class)),
                Touch::Odd => {}
            }
        }
        let fixed = fixed.into_iter().enumerate().filter(|(_, v)| *v > 0.0);
        of_graph.fixed = fixed.map(|(row, v)| (row as u32, v)).collect();
        of_graph
    }

    fn add_ranks(&mut self, number: u32, ranks: Range<u32>, sums: &mut [f64]) {
        let index = self.index;
        let graph = &index.graphs[number as usize];
        if self.by_graph[number as usize].is_none() {
            let of_graph = self.of_graph(graph, self.masks.of(number));
            self.by_graph[number as usize] = Some(of_graph);
        }
        let of_graph = self.by_graph[number as usize].as_ref().expect("just made");
        let evals = f64::from(ranks.end - ranks.start);
        for &(row, amount) in &of_graph.fixed {
            sums[row as usize] += amount * evals;
        }
        for &(row, class) in &of_graph.classes {
            let (count, bytes) = graph.classes[class as usize].sum(ranks.start, ranks.end);
            let counts_bytes = self.metric == HeatmapMetric::Bytes;
            sums[row as usize] += if counts_bytes { bytes } else { count } as f64;
        }
        if of_graph.runs.is_empty() && of_graph.experts.is_empty() && of_graph.nodes.is_empty() {
            return;
        }
        let mut hits = vec![false; graph.routers.len()];
        graph.each(&index.evals, ranks, |eval| {
            let ends = index.data.ends(eval, graph.steps.len());
            let nanos = |first: usize, last: usize| {
                ends[last] - first.checked_sub(1).map_or(0, |before| ends[before])
            };
            for &(row, first, last) in &of_graph.runs {
                sums[row as usize] += f64::from(nanos(first as usize, last as usize));
            }
            for &(row, router, bound, amount, is_each) in &of_graph.experts {
                let chosen = if is_each {
                    index.data.ids(eval, &graph.routers[router as usize])
                } else {
                    index.data.distinct(eval, router as usize)
                };
                let keeps = |e: &&u16| u64::from(**e) < bound && self.selector.keeps_expert(**e);
                sums[row as usize] += chosen.iter().filter(keeps).count() as f64 * amount;
            }
            if !of_graph.nodes.is_empty() {
                index.router_hits(self.selector, eval, &mut hits);
                for (row, step, routers) in &of_graph.nodes {
                    if routers.iter().any(|&r| hits[r as usize]) {
                        sums[*row as usize] += f64::from(nanos(*step, *step));
                    }
                }
            }
        });
    }

    fn add_one(&mut self, eval: u32, share: f64, sums: &mut [f64]) {
        let eval = &self.index.evals[eval as usize];
        let graph = &self.index.graphs[eval.graph as usize];
        let mask = self.masks.of(eval.graph);
        if self.metric == HeatmapMetric::Nanos {
            self.index
                .each_node(self.selector, mask, eval, |step, begin, end| {
                    let row = self.row_of_step(graph, step);
                    if row != NO_ROW {
                        sums[row as usize] += end.saturating_sub(begin) as f64 * share;
                    }
                });
            return;
        }
        let counts_bytes = self.metric == HeatmapMetric::Bytes;
        self.index.each_hit(self.selector, mask, eval, |hit| {
            let row = self.row_of_access(graph, hit.access as usize);
            if row != NO_ROW {
                let amount = if counts_bytes { hit.bytes } else { hit.count };
                sums[row as usize] += amount as f64 * share;
            }
        });
    }
}
