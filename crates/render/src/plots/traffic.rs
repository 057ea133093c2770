//! Bytes and time: by component, tensor, layer and op.

use std::collections::BTreeMap;

use analysis::{facts::Facts, hot::Measure};

use super::{Plot, Section, plural};
use crate::{
    palette::Category,
    plot::{
        Unit,
        marks::{Bar, Entry, Parts, bars, columns},
        units::short,
    },
};

/// Bars of a ranking.
const MAX_BARS: usize = 24;

pub fn plots(facts: &Facts) -> Vec<Plot> {
    [
        components(facts),
        hottest(facts),
        layer_bytes(facts),
        layer_time(facts),
        ops(facts),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn components(facts: &Facts) -> Option<Plot> {
    let sums = facts.traffic.sums(|_| true, |row| row.component.clone());
    let total: u64 = sums.values().map(|sum| sum.bytes).sum();
    if total == 0 {
        return None;
    }
    let mut ordered: Vec<_> = sums.into_iter().collect();
    ordered.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    let list: Vec<Bar> = ordered
        .iter()
        .map(|(component, sum)| Bar {
            name: component.clone(),
            parts: vec![(sum.bytes as f64, Category::of(component))],
            note: format!(
                "{}, {:.1} %",
                Unit::Bytes.amount(sum.bytes as f64),
                sum.bytes as f64 * 100.0 / total as f64
            ),
        })
        .collect();
    Some(Plot::new(
        "components",
        Section::Weights,
        "Bytes by component",
        "Bytes read and written in the whole run. Weights are shown by what they are for; kv_cache, activation and input are memory that is no part of the model.",
        bars("bytes read and written", Unit::Bytes, &list, &[]),
    ))
}

fn hottest(facts: &Facts) -> Option<Plot> {
    let ranking = facts
        .hot
        .rankings
        .iter()
        .find(|ranking| ranking.measure == Measure::Bytes)?;
    let units = ranking
        .order
        .iter()
        .filter_map(|unit| facts.hot.units.get(*unit as usize));
    let units: Vec<_> = units.filter(|unit| unit.bytes > 0).take(MAX_BARS).collect();
    if units.is_empty() {
        return None;
    }
    let list: Vec<Bar> = units
        .iter()
        .map(|unit| Bar {
            name: match unit.expert {
                Some(expert) => format!("{} [{expert}]", short_name(&unit.name)),
                None => short_name(&unit.name).to_owned(),
            },
            parts: vec![(unit.bytes as f64, Category::of(&unit.component))],
            note: format!(
                "{}, {} ×",
                Unit::Bytes.amount(unit.bytes as f64),
                short(unit.bytes as f64 / unit.size_bytes.max(1) as f64)
            ),
        })
        .collect();
    let categories = units.iter().map(|unit| Category::of(&unit.component));
    let entries = Entry::components(categories);
    let caption = format!(
        "The {} of {} weights and expert slices from which most bytes were read, and how many times over. A number in brackets is the expert.",
        units.len(),
        plural(facts.hot.units.len() as u64, "unit").trim_end_matches(" units"),
    );
    Some(Plot::new(
        "hottest-tensors",
        Section::Weights,
        "The hottest tensors",
        caption,
        bars("bytes read", Unit::Bytes, &list, &entries),
    ))
}

/// Without what all weights end with.
fn short_name(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

fn layer_bytes(facts: &Facts) -> Option<Plot> {
    let rows = facts.traffic.rows.iter();
    let rows = rows.map(|row| (row.layer, row.component.as_str(), row.bytes));
    layers(
        ("layers-bytes", "Bytes by layer"),
        "Bytes read and written by the nodes of each layer, by component; “none” is what belongs to no layer: the embedding and the output.",
        ("bytes read and written", Unit::Bytes),
        rows,
    )
}

fn layer_time(facts: &Facts) -> Option<Plot> {
    let rows = facts.traffic.times.iter();
    let rows = rows.map(|row| (row.layer, row.component.as_str(), row.nanos));
    layers(
        ("layers-time", "Time by layer"),
        "Time in the nodes of each layer. A node counts for the weight that it reads, without one for the KV cache, without either as activation.",
        ("time in nodes", Unit::Nanos),
        rows,
    )
}

fn layers<'a>(
    (id, title): (&str, &str),
    caption: &str,
    (label, unit): (&str, Unit),
    rows: impl Iterator<Item = (Option<u32>, &'a str, u64)>,
) -> Option<Plot> {
    // What has no layer is last.
    let mut sums: BTreeMap<(bool, Option<u32>), Parts> = BTreeMap::new();
    for (layer, component, value) in rows.filter(|(.., value)| *value > 0) {
        let parts = sums.entry((layer.is_none(), layer)).or_default();
        *parts.entry(Category::of(component)).or_default() += value as f64;
    }
    if sums.is_empty() {
        return None;
    }
    let entries = Entry::components(sums.values().flat_map(Parts::keys).copied());
    let name = |layer: Option<u32>| layer.map(|layer| format!("layer {layer}"));
    let list: Vec<Bar> = sums
        .into_iter()
        .map(|((_, layer), parts)| Bar::stacked(name(layer).unwrap_or("no layer".into()), parts))
        .collect();
    let canvas = columns(label, unit, &list, &entries);
    Some(Plot::new(id, Section::Work, title, caption, canvas))
}

fn ops(facts: &Facts) -> Option<Plot> {
    let mut sums: BTreeMap<&str, (u64, u64, Parts)> = BTreeMap::new();
    for row in &facts.traffic.times {
        let (executions, nanos, parts) = sums.entry(&row.op).or_default();
        *executions += row.executions;
        *nanos += row.nanos;
        *parts.entry(Category::of(&row.component)).or_default() += row.nanos as f64;
    }
    let total: u64 = sums.values().map(|(_, nanos, _)| nanos).sum();
    if total == 0 {
        return None;
    }
    let entries = Entry::components(sums.values().flat_map(|sum| sum.2.keys()).copied());
    let mut ordered: Vec<_> = sums.into_iter().collect();
    ordered.sort_by_key(|(_, (_, nanos, _))| std::cmp::Reverse(*nanos));
    ordered.truncate(MAX_BARS);
    let list: Vec<Bar> = ordered
        .into_iter()
        .map(|(op, (executions, nanos, parts))| Bar {
            note: format!(
                "{:.1} %, {} each",
                nanos as f64 * 100.0 / total as f64,
                Unit::Nanos.amount(nanos as f64 / executions.max(1) as f64)
            ),
            ..Bar::stacked(op.to_owned(), parts)
        })
        .collect();
    Some(Plot::new(
        "ops",
        Section::Work,
        "Time by op",
        "Time in nodes by their op, with its share of all nodes and the mean of one execution; colours say which weights the nodes read.",
        bars("time in nodes", Unit::Nanos, &list, &entries),
    ))
}
