//! Heads, Q/K/V/O and the KV cache.

use analysis::facts::Facts;

use super::{Plot, Section, heatmap::thinned};
use crate::plot::{
    Axis, Canvas, Frame, Ticks, Unit,
    axes::{Direction, Grid, Room},
    colour::Ramp,
    marks::{Bar, Entry, Line, bars, lines},
    raster::{COLOUR_BAR_PX, Raster, Scale, colour_bar},
    theme::Category,
};

/// In the order of a reader's questions.
const ORDER: [&str; 6] = ["q", "k", "v", "o", "cache_k", "cache_v"];

pub fn plots(facts: &Facts) -> Vec<Plot> {
    [projections(facts), heads(facts), growth(facts)]
        .into_iter()
        .flatten()
        .collect()
}

fn place(of: &str) -> usize {
    ORDER
        .iter()
        .position(|known| *known == of)
        .unwrap_or(ORDER.len())
}

/// `Q`, `K cache`.
fn name(of: &str) -> String {
    match of.strip_prefix("cache_") {
        Some(cache) => format!("{} cache", cache.to_uppercase()),
        None if of.len() == 1 => of.to_uppercase(),
        None => of.to_owned(),
    }
}

fn projections(facts: &Facts) -> Option<Plot> {
    let mut found: Vec<_> = facts.heads.projections.iter().collect();
    found.retain(|projection| projection.read_bytes + projection.written_bytes > 0);
    found.sort_by_key(|projection| (place(&projection.of), projection.of.clone()));
    if found.is_empty() {
        return None;
    }
    let (read, written) = (Category::of("attention"), Category::of("expert"));
    let list: Vec<Bar> = found
        .iter()
        .map(|projection| Bar {
            name: name(&projection.of),
            parts: vec![
                (projection.read_bytes as f64, read),
                (projection.written_bytes as f64, written),
            ],
            note: String::new(),
        })
        .collect();
    let entry = |name: &str, category| Entry {
        name: name.to_owned(),
        category,
        dash: None,
    };
    let title = "Q, K, V, O and the cache";
    let caption = "Bytes of the attention weights that were read, and of the KV cache that were read and written, in the whole run. What is written is one row per token, often too little to see.";
    Some(Plot {
        id: "qkvo".to_owned(),
        section: Section::Attention,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: bars(
            title,
            caption,
            "bytes",
            Unit::Bytes,
            &list,
            &[entry("read", read), entry("written", written)],
        ),
    })
}

/// Layers down, heads of Q, K, V, O and the caches across.
fn heads(facts: &Facts) -> Option<Plot> {
    let heads = &facts.heads.heads;
    let mut columns: Vec<(usize, &str, u64)> = heads
        .iter()
        .map(|head| (place(&head.of), head.of.as_str(), head.head))
        .collect();
    columns.sort_unstable();
    columns.dedup();
    let mut layers: Vec<u32> = heads.iter().map(|head| head.layer).collect();
    layers.sort_unstable();
    layers.dedup();
    if columns.is_empty() {
        return None;
    }
    let mut values = vec![f32::NAN; columns.len() * layers.len()];
    for head in heads {
        let key = (place(&head.of), head.of.as_str(), head.head);
        let (Ok(row), Ok(column)) = (
            layers.binary_search(&head.layer),
            columns.binary_search(&key),
        ) else {
            continue;
        };
        values[row * columns.len() + column] = (head.read_bytes + head.written_bytes) as f32;
    }
    let (breaks, names) = super::heatmap::groups(columns.iter().map(|(_, of, _)| *of));
    let names = names.into_iter().map(|(at, of)| {
        let count = columns.iter().filter(|(_, known, _)| *known == of).count();
        (at, format!("{} ({count})", name(&of)))
    });
    let raster = Raster {
        columns: columns.len(),
        rows: layers.len(),
        scale: Scale::linear_of(&values),
        values,
        ramp: Ramp::Counts,
    };
    let height_px = (layers.len() as f64 * 18.0).clamp(140.0, 560.0);
    let mut canvas = Canvas::new(height_px + 56.0);
    let x = Axis::new(
        "heads of each projection, left to right (how many)",
        Unit::Plain,
        0.0,
        columns.len() as f64,
    )
    .with_ticks(Ticks::Named(names.collect()));
    let rows = layers
        .iter()
        .enumerate()
        .map(|(row, layer)| (row as f64 + 0.5, layer.to_string()));
    let y = Axis::new("layer", Unit::Plain, 0.0, layers.len() as f64).with_ticks(Ticks::Named(
        thinned(rows.collect(), (height_px / 13.0) as usize),
    ));
    let room = Room {
        top_px: 0.0,
        right_px: COLOUR_BAR_PX,
    };
    let frame = Frame::draw(&mut canvas, &x, &y, Grid::None, Direction::Down, room);
    raster.draw(&mut canvas, &frame);
    for column in breaks {
        let x = frame.x(column as f64);
        canvas.line("gap wide", (x, frame.top), (x, frame.bottom()));
    }
    for row in 1..layers.len() {
        let y = frame.y(row as f64);
        canvas.line("gap", (frame.left, y), (frame.right(), y));
    }
    colour_bar(&mut canvas, &frame, &raster, "bytes", Unit::Bytes);
    let title = "Bytes of each head";
    let caption = "Bytes read and written for each attention head in the whole run: its rows of the Q, K and V weights, its columns of O, and its part of the KV cache. Where several heads of Q share one of K and V, there are fewer of those.";
    Some(Plot {
        id: "heads".to_owned(),
        section: Section::Attention,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: canvas.finish(title, caption),
    })
}

fn growth(facts: &Facts) -> Option<Plot> {
    let points = &facts.traffic.kv_growth.points;
    if points.len() < 2 {
        return None;
    }
    let line = |name: &str, number, value: &dyn Fn(&analysis::traffic::KvPoint) -> u64| Line {
        name: name.to_owned(),
        category: Category::nth(number),
        points: points
            .iter()
            .map(|point| (point.tokens as f64, value(point) as f64))
            .collect(),
    };
    let drawn = [
        line("read", 0, &|point| point.read_bytes),
        line("written", 1, &|point| point.written_bytes),
    ];
    let max = points
        .iter()
        .map(|point| point.read_bytes.max(point.written_bytes))
        .max()?;
    let tokens = points.iter().map(|point| point.tokens).max()?;
    let x = Axis::new("tokens so far", Unit::Plain, 0.0, tokens as f64).with_ticks(Ticks::Whole);
    let y = Axis::new(
        "KV cache per evaluation",
        Unit::Bytes,
        0.0,
        max as f64 * 1.05,
    );
    let title = "How the KV cache grows";
    let caption = "Bytes of the KV cache that each evaluation reads and writes. llama.cpp reads it in steps of whole blocks of cells, so that it grows in stairs.";
    Some(Plot {
        id: "kv-growth".to_owned(),
        section: Section::Attention,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: lines(280.0, &x, &y, &drawn).finish(title, caption),
    })
}
