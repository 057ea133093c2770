//! Heatmaps whose columns are tokens: layers, tensors, experts.

use index::{
    Filter, HeatmapHeader, HeatmapMetric, HeatmapQuery, RowKind, RunIndex, TokenInfo, TokenWindow,
};

use super::{Plot, Section, layer_name};
use crate::{
    palette::Ramp,
    plot::{
        Axis, Canvas, Ticks, Unit,
        axes::Tick,
        raster::{Map, Raster, Scale},
        text::token_label,
    },
};

/// Most columns of a heatmap: more than a printed page can show.
const COLUMNS: u32 = 640;
/// Most cells of one picture, for the size of the page.
const MAX_CELLS: usize = 320_000;
/// More tokens than this have numbers along the axis instead of their texts.
const MAX_TEXTS: usize = 72;

pub fn plots(index: &RunIndex) -> Vec<Plot> {
    [
        bytes_by_layer(index),
        time_by_layer(index),
        by_tensor(index),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn bytes_by_layer(index: &RunIndex) -> Option<Plot> {
    let map = TokenMap::of(index, RowKind::Layer, HeatmapMetric::Bytes, COLUMNS)?;
    let canvas = map.draw_layers(index, "bytes", Unit::Bytes, Ramp::Counts);
    Some(Plot::new(
        "token-layer-bytes",
        Section::Tokens,
        "Bytes that each token touches in each layer",
        "Bytes read and written (weights, KV cache, activations), by the layer of the node; “none” is what belongs to no layer: the embedding and the output. Tokens of one batch (the prompt) share its bytes evenly, which makes them paler: a batch reads a weight once for all its tokens.",
        canvas,
    ))
}

fn time_by_layer(index: &RunIndex) -> Option<Plot> {
    let map = TokenMap::of(index, RowKind::Layer, HeatmapMetric::Nanos, COLUMNS)?;
    let canvas = map.draw_layers(index, "time", Unit::Nanos, Ramp::Time);
    Some(Plot::new(
        "token-layer-time",
        Section::Tokens,
        "Time of each token in each layer",
        "Time in nodes, by the layer they belong to; “none” is what belongs to no layer: the embedding and the output. The scale is logarithmic. Tokens of one batch (the prompt) share its time evenly.",
        canvas,
    ))
}

fn by_tensor(index: &RunIndex) -> Option<Plot> {
    let tensors = index.info().tensors.len().max(1);
    let columns = (MAX_CELLS / tensors).clamp(1, COLUMNS as usize) as u32;
    let mut map = TokenMap::of(index, RowKind::Tensor, HeatmapMetric::Bytes, columns)?;
    // Layer after layer, as the model computes, and what has none last.
    let rows = &map.header.rows;
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| (rows[*row].layer.is_none(), rows[*row].layer, *row));
    map.keep_rows(&order);
    let row_px = 4.0;
    let canvas = map.draw_groups(
        index,
        ("tensors by layer", row_px, 180.0..900.0),
        ("bytes per token", Unit::Bytes),
        Scale::log_of,
    );
    Some(Plot::new(
        "token-tensor",
        Section::Tokens,
        "Bytes that each token reads of each tensor",
        "One row per weight, grouped by layer in the order of the file; “none” has the embedding, the last norm and the output. Stripes are weights that every token reads in full; where experts are, a token reads its own experts’ part of the tensor. Prompt tokens are paler: a batch reads a weight once for all of them. The scale is logarithmic, and empty cells were not read.",
        canvas,
    ))
}

/// A heatmap of all tokens.
pub(super) struct TokenMap {
    pub header: HeatmapHeader,
    /// NaN where there is nothing: that is not a small amount.
    values: Vec<f32>,
}

impl TokenMap {
    /// Where the run has any.
    pub fn of(
        index: &RunIndex,
        rows: RowKind,
        metric: HeatmapMetric,
        columns: u32,
    ) -> Option<TokenMap> {
        let query = HeatmapQuery {
            rows,
            metric,
            window: TokenWindow::default(),
            columns,
        };
        let found = index.heatmap(&query, &Filter::default()).ok()?;
        let has_cells = found.header.columns > 0 && !found.header.rows.is_empty();
        let seen = |value: f32| if value > 0.0 { value } else { f32::NAN };
        has_cells.then(|| TokenMap {
            values: found.values.into_iter().map(seen).collect(),
            header: found.header,
        })
    }

    /// As many tokens as the widest map may show.
    pub fn of_experts(index: &RunIndex) -> Option<TokenMap> {
        TokenMap::of(index, RowKind::Expert, HeatmapMetric::Accesses, COLUMNS)
    }

    /// Only these, in this order.
    pub fn keep_rows(&mut self, order: &[usize]) {
        let columns = self.header.columns as usize;
        let rows = order.iter();
        self.values = rows
            .clone()
            .flat_map(|row| &self.values[row * columns..(row + 1) * columns])
            .copied()
            .collect();
        self.header.rows = rows.map(|row| self.header.rows[*row].clone()).collect();
    }

    fn layers(&self) -> Vec<String> {
        let rows = self.header.rows.iter();
        rows.map(|row| layer_name(row.layer)).collect()
    }

    /// A row for each layer.
    fn draw_layers(self, index: &RunIndex, label: &str, unit: Unit, ramp: Ramp) -> Canvas {
        let names = self.layers();
        let height_px = (names.len() as f64 * 16.0).clamp(150.0, 640.0);
        let y = Axis::cells("layer", names.into_iter(), (height_px / 13.0) as usize);
        let scale = match ramp {
            Ramp::Time => Scale::log_of(&self.values),
            _ => Scale::linear_of(&self.values),
        };
        self.draw(index, (y, height_px, &[]), (label, unit), (scale, ramp))
    }

    /// Rows grouped by layer.
    pub fn draw_groups(
        self,
        index: &RunIndex,
        (label, row_px, limits_px): (&str, f64, std::ops::Range<f64>),
        bar: (&str, Unit),
        scale: fn(&[f32]) -> Scale,
    ) -> Canvas {
        let layers = self.layers();
        let (breaks, names) = groups(layers.iter().map(String::as_str));
        let height_px = (layers.len() as f64 * row_px).clamp(limits_px.start, limits_px.end);
        let y = Axis::new(label, Unit::Plain, 0.0, layers.len() as f64);
        let y = y.with_names(names, (height_px / 13.0) as usize);
        let scale = scale(&self.values);
        // So many lines would hide the cells.
        let breaks = if breaks.len() < 100 { &breaks[..] } else { &[] };
        self.draw(index, (y, height_px, breaks), bar, (scale, Ramp::Counts))
    }

    fn draw(
        self,
        index: &RunIndex,
        (y, height_px, row_breaks): (Axis, f64, &[usize]),
        (label, unit): (&str, Unit),
        (scale, ramp): (Scale, Ramp),
    ) -> Canvas {
        let columns = self.header.columns as usize;
        let map = Map {
            x: token_axis(index, &self.header.edges, columns),
            y,
            raster: Raster {
                columns,
                rows: self.header.rows.len(),
                values: self.values,
                scale,
                ramp,
            },
            height_px: height_px + 90.0,
            top_px: 0.0,
            row_breaks,
            column_breaks: &[],
            label,
            unit,
        };
        map.draw().0
    }
}

/// Texts of the tokens where there is room, else their numbers.
fn token_axis(index: &RunIndex, edges: &[u64], columns: usize) -> Axis {
    let (first, end) = match (edges.first(), edges.last()) {
        (Some(first), Some(end)) => (*first, *end),
        _ => (0, 0),
    };
    let axis = |label| Axis::new(label, Unit::Plain, first as f64, end as f64);
    let is_one_each = end - first == columns as u64;
    if !is_one_each || columns > MAX_TEXTS || columns == 0 {
        return axis("token number").with_ticks(Ticks::Whole);
    }
    let named = |token: &TokenInfo| {
        let text = match token.text.as_deref() {
            Some(text) if !text.is_empty() => token_label(text),
            _ => format!("#{}", token.id),
        };
        (token.token as f64 + 0.5, text)
    };
    let window = TokenWindow {
        from: Some(first),
        to: Some(end - 1),
    };
    let names = index.tokens(window).iter().map(named).collect();
    axis("token, in the order of the run").with_ticks(Ticks::Named(names))
}

/// Where groups of rows begin, and each group's name at its middle.
pub(super) fn groups<'a>(rows: impl Iterator<Item = &'a str>) -> (Vec<usize>, Vec<Tick>) {
    let mut breaks = Vec::new();
    let mut spans: Vec<(usize, usize, String)> = Vec::new();
    for (row, group) in rows.enumerate() {
        match spans.last_mut() {
            Some((_, end, name)) if name == group => *end = row + 1,
            _ => {
                if row > 0 {
                    breaks.push(row);
                }
                spans.push((row, row + 1, group.to_owned()));
            }
        }
    }
    let named = spans
        .into_iter()
        .map(|(begin, end, name)| ((begin + end) as f64 / 2.0, name));
    (breaks, named.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_in_their_middle() {
        let (breaks, names) = groups(["a", "a", "b", "c", "c", "c"].into_iter());
        assert_eq!(breaks, [2, 3]);
        let names: Vec<(f64, &str)> = names
            .iter()
            .map(|(at, name)| (*at, name.as_str()))
            .collect();
        assert_eq!(names, [(1.0, "a"), (2.5, "b"), (4.5, "c")]);
    }
}
