//! Sums and heatmaps agree with a naive reading of the same log, access by access.

mod common;

use std::collections::BTreeMap;

use common::{
    Random,
    case::{Case, case, check_close, filter, kinds, token_count},
    reference::{self, Eval},
};
use index::*;
use proptest::prelude::*;
use trace::template::Direction;

fn check_summary(case: &Case, filter: &Filter) {
    let found = case.index.summary(filter);
    let evals: Vec<&Eval> = case
        .evals
        .iter()
        .filter(|e| reference::keeps_eval(filter, e))
        .collect();
    let mut totals = SummaryTotals {
        evals: evals.len() as u64,
        tokens: evals.iter().map(|e| e.tokens).sum(),
        ..SummaryTotals::default()
    };
    let mut parts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut tensors: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut ops: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    let mut layers: BTreeMap<Option<u32>, [u64; 4]> = BTreeMap::new();
    let mut add = |layer, values: [u64; 4]| {
        let sums: &mut [u64; 4] = layers.entry(layer).or_default();
        sums.iter_mut().zip(values).for_each(|(a, b)| *a += b);
    };
    for (_, node, access) in reference::kept(&case.evals, filter) {
        totals.accesses += 1;
        totals.bytes += access.bytes;
        match access.direction {
            Direction::Read => totals.read_bytes += access.bytes,
            Direction::Write => totals.written_bytes += access.bytes,
        }
        let part = parts.entry(access.part).or_default();
        *part = (part.0 + 1, part.1 + access.bytes);
        if access.is_weight {
            let tensor = tensors.entry(&access.tensor).or_default();
            *tensor = (tensor.0 + 1, tensor.1 + access.bytes);
        }
        add(node.layer, [0, 0, 1, access.bytes]);
        let op = ops.entry(&node.op).or_default();
        op[2] += 1;
        op[3] += access.bytes;
    }
    for (_, node) in reference::kept_nodes(&case.evals, filter) {
        let nanos = node.end.saturating_sub(node.begin);
        totals.nodes += 1;
        totals.nanos += nanos;
        add(node.layer, [1, nanos, 0, 0]);
        let op = ops.entry(&node.op).or_default();
        op[0] += 1;
        op[1] += nanos;
    }
    assert_eq!(found.totals, totals);
    let found_parts = found.by_component.iter();
    let found_parts: BTreeMap<&str, (u64, u64)> = found_parts
        .map(|c| (c.component, (c.accesses, c.bytes)))
        .collect();
    assert_eq!(found_parts, parts);
    let found_ops: BTreeMap<&str, [u64; 4]> = found
        .by_op
        .iter()
        .map(|o| (o.op.as_str(), [o.nodes, o.nanos, o.accesses, o.bytes]))
        .collect();
    assert_eq!(found_ops, ops);
    let found_layers: BTreeMap<Option<u32>, [u64; 4]> = found
        .by_layer
        .iter()
        .map(|l| (l.layer, [l.nodes, l.nanos, l.accesses, l.bytes]))
        .collect();
    assert_eq!(found_layers, layers);
    let mut found_tensors: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for tensor in &found.by_tensor {
        // Streams place their tensors differently; names are what they share.
        let sums = found_tensors.entry(&tensor.name).or_default();
        *sums = (sums.0 + tensor.accesses, sums.1 + tensor.bytes);
    }
    assert_eq!(found_tensors, tensors);
}

fn check_heatmap(case: &Case, filter: &Filter, random: &mut Random) {
    let tokens = token_count(case);
    let from = random.below(tokens);
    let to = (from + random.below(tokens)).min(tokens - 1);
    let query = HeatmapQuery {
        rows: [RowKind::Layer, RowKind::Tensor, RowKind::Expert][random.below(3) as usize],
        metric: [
            HeatmapMetric::Bytes,
            HeatmapMetric::Accesses,
            HeatmapMetric::Nanos,
            HeatmapMetric::Weight,
        ][random.below(4) as usize],
        window: TokenWindow {
            from: Some(from),
            to: Some(to),
        },
        columns: 1 + random.below(40) as u32,
    };
    let Ok(found) = case.index.heatmap(&query, filter) else {
        return;
    };
    let header = &found.header;
    let columns = header.columns as usize;
    assert_eq!(header.edges.len(), columns + 1);
    assert_eq!((header.edges[0], header.edges[columns]), (from, to + 1));
    assert_eq!(found.values.len(), columns * header.rows.len());
    let column_of = |token: u64| header.edges.partition_point(|&e| e <= token) - 1;
    let mut sums = vec![0f64; found.values.len()];
    let mut counts = vec![0f64; found.values.len()];
    let row_where = |is: &dyn Fn(&HeatmapRow) -> bool| header.rows.iter().position(is);
    for eval in case
        .evals
        .iter()
        .filter(|e| reference::keeps_eval(filter, e))
    {
        let in_window =
            (eval.first_token..eval.first_token + eval.tokens).filter(|t| (from..=to).contains(t));
        let in_window: Vec<u64> = in_window.collect();
        let mut add = |row: Option<usize>, amount: f64| {
            for &token in &in_window {
                if let Some(row) = row {
                    sums[row * columns + column_of(token)] += amount / eval.tokens as f64;
                }
            }
        };
        match (query.rows, query.metric) {
            (RowKind::Expert, HeatmapMetric::Accesses | HeatmapMetric::Weight) => {
                for &(token, layer, expert, weight) in &eval.routes {
                    let row = row_where(&|r| (r.layer, r.expert) == (Some(layer), Some(expert)));
                    let in_filter = filter.tokens.is_none_or(|(a, b)| a <= token && token <= b);
                    if !in_filter || !in_window.contains(&token) {
                        continue;
                    }
                    if let Some(row) = row {
                        let cell = row * columns + column_of(token);
                        let by_weight = query.metric == HeatmapMetric::Weight;
                        let amount = if by_weight { weight } else { Some(1.0) };
                        sums[cell] += f64::from(amount.unwrap_or(0.0));
                        counts[cell] += f64::from(u8::from(amount.is_some()));
                    }
                }
            }
            (rows, HeatmapMetric::Nanos) => {
                for node in eval
                    .nodes
                    .iter()
                    .filter(|n| reference::keeps_node(filter, n))
                {
                    let row = match rows {
                        RowKind::Layer => row_where(&|r| r.layer == node.layer),
                        _ => node
                            .weight
                            .as_ref()
                            .and_then(|w| row_where(&|r| r.label == *w)),
                    };
                    add(row, node.end.saturating_sub(node.begin) as f64);
                }
            }
            (rows, metric) => {
                for node in &eval.nodes {
                    for access in &node.accesses {
                        if !reference::keeps_access(filter, node, access) {
                            continue;
                        }
                        let row = match rows {
                            RowKind::Layer => row_where(&|r| r.layer == node.layer),
                            RowKind::Tensor => row_where(&|r| r.label == access.tensor),
                            RowKind::Expert => access.expert.and_then(|expert| {
                                row_where(&|r| (r.layer, r.expert) == (node.layer, Some(expert)))
                            }),
                        };
                        let is_bytes = metric == HeatmapMetric::Bytes;
                        add(row, if is_bytes { access.bytes as f64 } else { 1.0 });
                    }
                }
            }
        }
    }
    for (cell, &value) in found.values.iter().enumerate() {
        let column = cell % columns;
        let tokens = (header.edges[column + 1] - header.edges[column]) as f64;
        let is_weight = query.metric == HeatmapMetric::Weight;
        let expected = if !is_weight {
            sums[cell] / tokens
        } else if counts[cell] > 0.0 {
            sums[cell] / counts[cell]
        } else {
            0.0
        };
        check_close(
            &format!("{query:?} {filter:?} cell {cell}"),
            value.into(),
            expected,
        );
    }
}

fn check_flame(case: &Case, filter: &Filter) {
    fn leaves(flame: &Flame) -> u64 {
        match flame.children.as_slice() {
            [] => flame.value,
            children => {
                let sum = children.iter().map(leaves).sum();
                assert_eq!(flame.value, sum, "{} is the sum of its parts", flame.name);
                sum
            }
        }
    }
    let totals = case.index.summary(filter).totals;
    assert_eq!(
        leaves(&case.index.flame(FlameBy::Bytes, filter)),
        totals.bytes
    );
    assert_eq!(
        leaves(&case.index.flame(FlameBy::Nanos, filter)),
        totals.nanos
    );
}

fn check_experts(case: &Case, filter: &Filter) {
    let found = case.index.experts(filter);
    let mut sums: BTreeMap<(u32, u32), (u64, f64)> = BTreeMap::new();
    let mut pairs: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
    let mut by_token: BTreeMap<(u64, u32), Vec<u32>> = BTreeMap::new();
    for eval in case
        .evals
        .iter()
        .filter(|e| reference::keeps_eval(filter, e))
    {
        for &(token, layer, expert, weight) in &eval.routes {
            if filter.tokens.is_none_or(|(a, b)| a <= token && token <= b) {
                let sum = sums.entry((layer, expert)).or_default();
                *sum = (sum.0 + 1, sum.1 + f64::from(weight.unwrap_or(0.0)));
                by_token.entry((token, layer)).or_default().push(expert);
            }
        }
    }
    for ((_, layer), experts) in by_token {
        if let [a, b] = experts[..]
            && a != b
        {
            *pairs.entry((layer, a.min(b), a.max(b))).or_default() += 1;
        }
    }
    for layer in &found.layers {
        for expert in &layer.experts {
            let (count, weight) = sums
                .get(&(layer.layer, expert.expert))
                .copied()
                .unwrap_or_default();
            assert_eq!(
                expert.tokens, count,
                "{filter:?} layer {} {expert:?}",
                layer.layer
            );
            if let Some(mean) = expert.mean_weight {
                check_close("weight", mean, weight / count as f64);
            }
        }
        for pair in &layer.pairs {
            let expected = pairs.get(&(layer.layer, pair.a, pair.b)).copied();
            assert_eq!(Some(pair.count), expected, "{filter:?} {pair:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn sums_agree_with_the_accesses_one_by_one(kind in kinds(), seed in any::<u64>()) {
        let case = case(kind, seed);
        let mut random = Random(seed ^ 1);
        for round in 0..12 {
            let filter = match round {
                0 => Filter::default(),
                _ => filter(&mut random, token_count(&case)),
            };
            check_summary(&case, &filter);
            check_heatmap(&case, &filter, &mut random);
            check_heatmap(&case, &filter, &mut random);
            check_flame(&case, &filter);
            check_experts(&case, &filter);
        }
    }
}
