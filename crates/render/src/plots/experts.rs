//! Experts: who is chosen, for which token, with whom.

use analysis::{cache_trace::Scope, caches::Caches};
use index::{Filter, LayerExperts, RunIndex};

use super::{Plot, Section, tokens::TokenMap};
use crate::{
    charts::{self, Pool},
    palette::Ramp,
    plot::{
        Axis, Canvas, Frame, Unit,
        raster::{Map, Raster, Scale, colour_bar},
        svg::Anchor,
    },
};

/// Rows of one picture; further layers are left out evenly.
const MAX_ROWS: usize = 1024;
/// Matrices of one picture, and in one row of it.
const MAX_PANELS: usize = 12;
const PANELS_ACROSS: usize = 4;

pub fn plots(index: &RunIndex, caches: Option<&Caches>) -> Vec<Plot> {
    let layers = index.experts(&Filter::default()).layers;
    if layers.is_empty() {
        return Vec::new();
    }
    let caches = caches.and_then(|caches| caches.expert_caches.as_ref());
    let hits = caches.and_then(|caches| charts::expert_hits(caches, Pool::Global, Scope::Run));
    [
        by_token(index),
        temperature(&layers),
        together(&layers),
        hits.map(|chart| Plot::of(&chart, Section::Experts)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Evenly chosen, so that at most `most` are left.
fn evenly(count: usize, most: usize) -> usize {
    count.div_ceil(most.max(1)).max(1)
}

fn by_token(index: &RunIndex) -> Option<Plot> {
    let mut map = TokenMap::of_experts(index)?;
    let rows = &map.header.rows;
    let mut layers: Vec<u32> = rows.iter().filter_map(|row| row.layer).collect();
    layers.sort_unstable();
    layers.dedup();
    let of_layer = rows.len() / layers.len().max(1);
    let every = evenly(layers.len(), MAX_ROWS / of_layer.max(1));
    let shown: Vec<u32> = layers.iter().copied().step_by(every).collect();
    let kept: Vec<usize> = (0..rows.len())
        .filter(|row| rows[*row].layer.is_some_and(|layer| shown.contains(&layer)))
        .collect();
    map.keep_rows(&kept);
    let mut caption = format!(
        "One row per expert ({of_layer} of each layer, number 0 on top), grouped by layer. A filled cell is a token that the router sent to that expert; a row of many is a hot expert, and stripes along the row are experts used again token after token.",
    );
    if every > 1 {
        caption.push_str(&format!(
            " Every {every}th layer is shown; the viewer has all of them."
        ));
    }
    let row_px = 7.0;
    let canvas = map.draw_groups(
        index,
        ("experts by layer", row_px, 200.0..1000.0),
        ("choices per token", Unit::Plain),
        Scale::linear_of,
    );
    Some(Plot::new(
        "token-expert",
        Section::Experts,
        "Which expert each token is sent to",
        caption,
        canvas,
    ))
}

fn temperature(layers: &[LayerExperts]) -> Option<Plot> {
    let experts = layers.iter().map(|layer| layer.experts.len()).max();
    let experts = experts.filter(|count| *count > 0)?;
    let mut values = vec![f32::NAN; experts * layers.len()];
    for (row, layer) in layers.iter().enumerate() {
        for known in layer.experts.iter().filter(|known| known.tokens > 0) {
            values[row * experts + known.expert as usize] = known.temperature as f32;
        }
    }
    let height_px = (layers.len() as f64 * 18.0).clamp(110.0, 640.0);
    let names = layers.iter().map(|layer| layer.layer.to_string());
    let numbers = (0..experts).map(|expert| expert.to_string());
    let map = Map {
        x: Axis::cells("expert number", numbers, 16),
        y: Axis::cells("layer", names, (height_px / 13.0) as usize),
        raster: Raster {
            columns: experts,
            rows: layers.len(),
            scale: Scale::linear_of(&values),
            values,
            ramp: Ramp::Counts,
        },
        height_px: height_px + 56.0,
        top_px: 0.0,
        row_breaks: &[],
        column_breaks: &[],
        label: "temperature (×)",
        unit: Unit::Plain,
    };
    Some(Plot::new(
        "expert-temperature",
        Section::Experts,
        "Expert temperature",
        "How often each expert is chosen, over the mean of its layer: 1 is an even choice, 2 twice as often. Empty cells were never chosen in this run.",
        map.draw().0,
    ))
}

/// A small matrix of experts against experts for each layer.
fn together(layers: &[LayerExperts]) -> Option<Plot> {
    let every = evenly(layers.len(), MAX_PANELS);
    let shown: Vec<&LayerExperts> = layers
        .iter()
        .step_by(every)
        .filter(|layer| !layer.pairs.is_empty())
        .collect();
    let most = shown
        .iter()
        .flat_map(|layer| &layer.pairs)
        .map(|pair| pair.count)
        .max()?;
    let across = shown.len().min(PANELS_ACROSS);
    let down = shown.len().div_ceil(PANELS_ACROSS);
    let side_px = match across {
        1 | 2 => 230.0,
        3 => 170.0,
        _ => 122.0,
    };
    let (gap_px, left_px, top_px) = (26.0, 46.0, 26.0);
    let bottom_px = top_px + down as f64 * (side_px + gap_px);
    let mut canvas = Canvas::new(bottom_px + 34.0);
    let scale = Scale::Linear {
        min: 0.0,
        max: most as f64,
    };
    let mut last = None;
    for (number, layer) in shown.iter().enumerate() {
        let raster = matrix(layer, scale);
        let left = left_px + (number % PANELS_ACROSS) as f64 * (side_px + gap_px);
        let top = top_px + (number / PANELS_ACROSS) as f64 * (side_px + gap_px);
        let frame = Frame::panel((left, top), (side_px, side_px), raster.columns as f64);
        raster.draw(&mut canvas, &frame);
        let name = format!("layer {}", layer.layer);
        canvas.small("t", (left, top - 5.0), Anchor::Start, &name);
        // Numbers at the left and the lower edge are those of all.
        let is_lowest = number + PANELS_ACROSS >= shown.len();
        panel_ticks(
            &mut canvas,
            &frame,
            raster.columns,
            number.is_multiple_of(PANELS_ACROSS),
            is_lowest,
        );
        last = Some(raster);
    }
    let width_px = across as f64 * (side_px + gap_px) - gap_px;
    let bar_frame = Frame::panel(
        (left_px, top_px),
        (width_px, side_px.max(150.0).min(bottom_px - top_px)),
        1.0,
    );
    colour_bar(
        &mut canvas,
        &bar_frame,
        &last?,
        "tokens sent to both",
        Unit::Count,
    );
    canvas.text(
        "t",
        (left_px + width_px / 2.0, bottom_px + 16.0),
        Anchor::Middle,
        "expert number",
    );
    canvas.upright((22.0, top_px + side_px / 2.0), "expert number");
    let mut caption = "For each layer, how many tokens were sent to both of two experts; expert 0 is on top and on the left. Dark cells are pairs that work together.".to_owned();
    if every > 1 {
        caption.push_str(&format!(" Every {every}th layer is shown."));
    }
    Some(Plot::new(
        "co-activation",
        Section::Experts,
        "Experts chosen together",
        caption,
        canvas,
    ))
}

fn matrix(layer: &LayerExperts, scale: Scale) -> Raster {
    let in_pairs = layer
        .pairs
        .iter()
        .map(|pair| pair.a.max(pair.b) as usize + 1)
        .max()
        .unwrap_or(0);
    let numbered = layer
        .experts
        .iter()
        .map(|known| known.expert as usize + 1)
        .max()
        .unwrap_or(0);
    let experts = in_pairs.max(numbered);
    let mut values = vec![f32::NAN; experts * experts];
    for pair in layer.pairs.iter().filter(|pair| pair.count > 0) {
        let (a, b) = (pair.a as usize, pair.b as usize);
        values[a * experts + b] = pair.count as f32;
        values[b * experts + a] = pair.count as f32;
    }
    Raster {
        columns: experts,
        rows: experts,
        values,
        scale,
        ramp: Ramp::Counts,
    }
}

fn panel_ticks(
    canvas: &mut Canvas,
    frame: &Frame,
    experts: usize,
    is_leftmost: bool,
    is_lowest: bool,
) {
    let every = evenly(experts, 8);
    let mut tick = |text: &str, at, anchor| canvas.small("m", at, anchor, text);
    for expert in (0..experts).step_by(every) {
        let share = (expert as f64 + 0.5) / experts as f64;
        let text = expert.to_string();
        if is_leftmost {
            let at = (frame.left - 5.0, frame.top + share * frame.height + 3.4);
            tick(&text, at, Anchor::End);
        }
        if is_lowest {
            let at = (frame.left + share * frame.width, frame.bottom() + 12.0);
            tick(&text, at, Anchor::Middle);
        }
    }
}
