//! Tokens against layers and tensors.

use index::{Filter, HeatmapMetric, HeatmapQuery, RowKind, RunIndex, TokenWindow};

use super::{
    Plot, Section,
    heatmap::{TokenMap, groups, thinned},
};
use crate::plot::{
    Axis, Ticks, Unit,
    colour::Ramp,
    raster::{Raster, Scale},
};

/// Most columns of a heatmap: more than a printed page can show.
pub(super) const COLUMNS: u32 = 640;
/// Most cells of one picture, for the size of the page.
const MAX_CELLS: usize = 320_000;

pub fn plots(index: &RunIndex) -> Vec<Plot> {
    [
        by_layer(index, HeatmapMetric::Bytes),
        by_layer(index, HeatmapMetric::Nanos),
        by_tensor(index),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The heatmap of all tokens, where the run has any.
pub(super) fn heatmap(
    index: &RunIndex,
    rows: RowKind,
    metric: HeatmapMetric,
    columns: u32,
    filter: &Filter,
) -> Option<index::Raster<index::HeatmapHeader>> {
    let query = HeatmapQuery {
        rows,
        metric,
        window: TokenWindow::default(),
        columns,
    };
    let heatmap = index.heatmap(&query, filter).ok()?;
    let has_cells = heatmap.header.columns > 0 && !heatmap.header.rows.is_empty();
    has_cells.then_some(heatmap)
}

/// Nothing is not a small amount.
pub(super) fn without_zeros(values: &[f32]) -> Vec<f32> {
    let keep = |value: &f32| if *value > 0.0 { *value } else { f32::NAN };
    values.iter().map(keep).collect()
}

fn by_layer(index: &RunIndex, metric: HeatmapMetric) -> Option<Plot> {
    let found = heatmap(index, RowKind::Layer, metric, COLUMNS, &Filter::default())?;
    let rows = &found.header.rows;
    let values = without_zeros(&found.values);
    let (id, title, caption, bar_label, unit, ramp) = match metric {
        HeatmapMetric::Nanos => (
            "token-layer-time",
            "Time of each token in each layer",
            "Time in nodes, by the layer they belong to; “none” is what belongs to no layer: the embedding and the output. The scale is logarithmic. Tokens of one batch (the prompt) share its time evenly.",
            "time",
            Unit::Nanos,
            Ramp::Time,
        ),
        _ => (
            "token-layer-bytes",
            "Bytes that each token touches in each layer",
            "Bytes read and written (weights, KV cache, activations), by the layer of the node; “none” is what belongs to no layer: the embedding and the output. Tokens of one batch (the prompt) share its bytes evenly, which makes them paler: a batch reads a weight once for all its tokens.",
            "bytes",
            Unit::Bytes,
            Ramp::Counts,
        ),
    };
    let names = rows
        .iter()
        .enumerate()
        .map(|(row, name)| (row as f64 + 0.5, super::layer_name(name.layer)));
    let height_px = (rows.len() as f64 * 16.0).clamp(150.0, 640.0);
    let svg = TokenMap {
        title,
        description: caption,
        raster: Raster {
            columns: found.header.columns as usize,
            rows: rows.len(),
            scale: match metric {
                HeatmapMetric::Nanos => Scale::log_of(&values),
                _ => Scale::linear_of(&values),
            },
            values,
            ramp,
        },
        edges: &found.header.edges,
        y: Axis::new("layer", Unit::Plain, 0.0, rows.len() as f64).with_ticks(Ticks::Named(
            thinned(names.collect(), (height_px / 13.0) as usize),
        )),
        height_px: height_px + 90.0,
        breaks: &[],
        bar_label,
        unit,
    }
    .draw(index);
    Some(Plot {
        id: id.to_owned(),
        section: Section::Tokens,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg,
    })
}

fn by_tensor(index: &RunIndex) -> Option<Plot> {
    let tensors = index.info().tensors.len().max(1);
    let columns = (MAX_CELLS / tensors).clamp(1, COLUMNS as usize) as u32;
    let found = heatmap(
        index,
        RowKind::Tensor,
        HeatmapMetric::Bytes,
        columns,
        &Filter::default(),
    )?;
    let rows = &found.header.rows;
    // Layer after layer, as the model computes, and what has none last.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| (rows[*row].layer.is_none(), rows[*row].layer, *row));
    let columns = found.header.columns as usize;
    let values: Vec<f32> = order
        .iter()
        .flat_map(|row| &found.values[row * columns..(row + 1) * columns])
        .copied()
        .collect();
    let values = without_zeros(&values);
    let layers: Vec<String> = order
        .iter()
        .map(|row| super::layer_name(rows[*row].layer))
        .collect();
    let (breaks, names) = groups(layers.iter().map(String::as_str));
    let height_px = (rows.len() as f64 * 4.0).clamp(180.0, 900.0);
    let title = "Bytes that each token reads of each tensor";
    let caption = "One row per weight, grouped by layer in the order of the file; “none” has the embedding, the last norm and the output. Stripes are weights that every token reads in full; where experts are, a token reads its own experts’ part of the tensor. Prompt tokens are paler: a batch reads a weight once for all of them. The scale is logarithmic, and empty cells were not read.";
    let svg = TokenMap {
        title,
        description: caption,
        raster: Raster {
            columns,
            rows: rows.len(),
            scale: Scale::log_of(&values),
            values,
            ramp: Ramp::Counts,
        },
        edges: &found.header.edges,
        y: Axis::new("tensors by layer", Unit::Plain, 0.0, rows.len() as f64)
            .with_ticks(Ticks::Named(thinned(names, (height_px / 13.0) as usize))),
        height_px: height_px + 90.0,
        breaks: if breaks.len() < 100 { &breaks } else { &[] },
        bar_label: "bytes per token",
        unit: Unit::Bytes,
    }
    .draw(index);
    Some(Plot {
        id: "token-tensor".to_owned(),
        section: Section::Tokens,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg,
    })
}
