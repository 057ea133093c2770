//! Heads, Q/K/V/O and the KV cache.

use analysis::facts::Facts;

use super::{Plot, Section, tokens::groups};
use crate::{
    charts,
    palette::{Category, Ramp},
    plot::{
        Axis, Unit,
        marks::{Bar, Entry, bars},
        raster::{Map, Raster, Scale},
    },
};

/// In the order of a reader's questions.
const ORDER: [&str; 6] = ["q", "k", "v", "o", "cache_k", "cache_v"];

pub fn plots(facts: &Facts) -> Vec<Plot> {
    let growth = charts::kv_growth(&facts.traffic.kv_growth);
    let growth = growth.map(|chart| Plot::of(&chart, Section::Attention));
    [projections(facts), heads(facts), growth]
        .into_iter()
        .flatten()
        .collect()
}

fn place(of: &str) -> usize {
    let place = ORDER.iter().position(|known| *known == of);
    place.unwrap_or(ORDER.len())
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
    let entries = [Entry::new("read", read), Entry::new("written", written)];
    Some(Plot::new(
        "qkvo",
        Section::Attention,
        "Q, K, V, O and the cache",
        "Bytes of the attention weights that were read, and of the KV cache that were read and written, in the whole run. What is written is one row per token, often too little to see.",
        bars("bytes", Unit::Bytes, &list, &entries),
    ))
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
    let (column_breaks, names) = groups(columns.iter().map(|(_, of, _)| *of));
    let names = names.into_iter().map(|(at, of)| {
        let count = columns.iter().filter(|(_, known, _)| *known == of).count();
        (at, format!("{} ({count})", name(&of)))
    });
    let x = "heads of each projection, left to right (how many)";
    let x = Axis::new(x, Unit::Plain, 0.0, columns.len() as f64);
    let height_px = (layers.len() as f64 * 18.0).clamp(140.0, 560.0);
    let rows = layers.iter().map(u32::to_string);
    let map = Map {
        x: x.with_names(names.collect(), columns.len()),
        y: Axis::cells("layer", rows, (height_px / 13.0) as usize),
        row_breaks: &Vec::from_iter(1..layers.len()),
        column_breaks: &column_breaks,
        raster: Raster {
            columns: columns.len(),
            rows: layers.len(),
            scale: Scale::linear_of(&values),
            values,
            ramp: Ramp::Counts,
        },
        height_px: height_px + 56.0,
        top_px: 0.0,
        label: "bytes",
        unit: Unit::Bytes,
    };
    Some(Plot::new(
        "heads",
        Section::Attention,
        "Bytes of each head",
        "Bytes read and written for each attention head in the whole run: its rows of the Q, K and V weights, its columns of O, and its part of the KV cache. Where several heads of Q share one of K and V, there are fewer of those.",
        map.draw().0,
    ))
}
