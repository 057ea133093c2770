//! Bytes and time: by component, tensor, layer and op.

use std::collections::BTreeMap;

use analysis::{facts::Facts, hot::Measure};

use super::{Plot, Section, heatmap::thinned, layer_name, plural};
use crate::plot::{
    Axis, Ticks, Unit,
    marks::{Bar, Entry, bars, columns},
    theme::Category,
    units::short,
};

/// Bars of a ranking.
const MAX_BARS: usize = 24;
const COLUMNS_HEIGHT_PX: f64 = 300.0;
/// Names along an axis of layers.
const MAX_NAMES: usize = 24;

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
    let title = "Bytes by component";
    let caption = "Bytes read and written in the whole run. Weights are shown by what they are for; kv_cache, activation and input are memory that is no part of the model.";
    Some(Plot {
        id: "components".to_owned(),
        section: Section::Weights,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: bars(
            title,
            caption,
            "bytes read and written",
            Unit::Bytes,
            &list,
            &[],
        ),
    })
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
    let entries = component_legend(units.iter().map(|unit| unit.component.as_str()));
    let title = "The hottest tensors";
    let caption = format!(
        "The {} of {} weights and expert slices from which most bytes were read, and how many times over. A number in brackets is the expert.",
        units.len(),
        plural(facts.hot.units.len() as u64, "unit").trim_end_matches(" units"),
    );
    Some(Plot {
        id: "hottest-tensors".to_owned(),
        section: Section::Weights,
        title: title.to_owned(),
        svg: bars(title, &caption, "bytes read", Unit::Bytes, &list, &entries),
        caption,
    })
}

/// Without what all weights end with.
fn short_name(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Components in the order of their colours, each once.
pub(super) fn component_legend<'a>(components: impl Iterator<Item = &'a str>) -> Vec<Entry> {
    let mut names: BTreeMap<u8, &str> = BTreeMap::new();
    for component in components {
        let number = Category::of(component).0;
        let name = if number == Category::of("other").0 {
            "other"
        } else {
            component
        };
        names.insert(number, name);
    }
    let entry = |(number, name): (u8, &str)| Entry {
        name: name.to_owned(),
        category: Category(number),
        dash: None,
    };
    names.into_iter().map(entry).collect()
}

/// By layer, what has none last, then by component.
type ByLayer = BTreeMap<(bool, Option<u32>), BTreeMap<u8, (String, f64)>>;

fn layer_bytes(facts: &Facts) -> Option<Plot> {
    let rows = facts.traffic.rows.iter();
    let sums = by_layer(rows.map(|row| (row.layer, row.component.as_str(), row.bytes)));
    let title = "Bytes by layer";
    let caption = "Bytes read and written by the nodes of each layer, by component; “none” is what belongs to no layer: the embedding and the output.";
    layers(
        "layers-bytes",
        title,
        caption,
        "bytes read and written",
        Unit::Bytes,
        &sums,
    )
}

fn layer_time(facts: &Facts) -> Option<Plot> {
    let rows = facts.traffic.times.iter();
    let sums = by_layer(rows.map(|row| (row.layer, row.component.as_str(), row.nanos)));
    let title = "Time by layer";
    let caption = "Time in the nodes of each layer. A node counts for the weight that it reads, without one for the KV cache, without either as activation.";
    layers(
        "layers-time",
        title,
        caption,
        "time in nodes",
        Unit::Nanos,
        &sums,
    )
}

fn by_layer<'a>(rows: impl Iterator<Item = (Option<u32>, &'a str, u64)>) -> ByLayer {
    let mut sums = ByLayer::new();
    for (layer, component, value) in rows.filter(|(.., value)| *value > 0) {
        let parts = sums.entry((layer.is_none(), layer)).or_default();
        let number = Category::of(component).0;
        let part = parts
            .entry(number)
            .or_insert_with(|| (component.to_owned(), 0.0));
        part.1 += value as f64;
    }
    sums
}

fn layers(
    id: &str,
    title: &str,
    caption: &str,
    label: &str,
    unit: Unit,
    sums: &ByLayer,
) -> Option<Plot> {
    if sums.is_empty() {
        return None;
    }
    let list: Vec<Bar> = sums
        .iter()
        .map(|((_, layer), parts)| Bar {
            name: match layer {
                Some(layer) => format!("layer {layer}"),
                None => "no layer".to_owned(),
            },
            parts: parts
                .iter()
                .map(|(number, part)| (part.1, Category(*number)))
                .collect(),
            note: String::new(),
        })
        .collect();
    let entries = component_legend(
        sums.values()
            .flat_map(|parts| parts.values())
            .map(|part| part.0.as_str()),
    );
    let names = sums
        .keys()
        .enumerate()
        .map(|(at, (_, layer))| (at as f64 + 0.5, layer_name(*layer)));
    let max = list.iter().map(Bar::sum).fold(0.0, f64::max);
    let x = Axis::new("layer", Unit::Plain, 0.0, list.len() as f64)
        .with_ticks(Ticks::Named(thinned(names.collect(), MAX_NAMES)));
    let y = Axis::new(label, unit, 0.0, max);
    Some(Plot {
        id: id.to_owned(),
        section: Section::Work,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: columns(COLUMNS_HEIGHT_PX, &x, &y, &list, &entries).finish(title, caption),
    })
}

fn ops(facts: &Facts) -> Option<Plot> {
    let mut sums: BTreeMap<&str, (u64, u64, BTreeMap<u8, u64>)> = BTreeMap::new();
    for row in &facts.traffic.times {
        let (executions, nanos, parts) = sums.entry(&row.op).or_default();
        *executions += row.executions;
        *nanos += row.nanos;
        *parts.entry(Category::of(&row.component).0).or_default() += row.nanos;
    }
    let total: u64 = sums.values().map(|(_, nanos, _)| nanos).sum();
    if total == 0 {
        return None;
    }
    let mut ordered: Vec<_> = sums.into_iter().collect();
    ordered.sort_by_key(|(_, (_, nanos, _))| std::cmp::Reverse(*nanos));
    ordered.truncate(MAX_BARS);
    let list: Vec<Bar> = ordered
        .iter()
        .map(|(op, (executions, nanos, parts))| Bar {
            name: (*op).to_owned(),
            parts: parts
                .iter()
                .map(|(number, nanos)| (*nanos as f64, Category(*number)))
                .collect(),
            note: format!(
                "{:.1} %, {} each",
                *nanos as f64 * 100.0 / total as f64,
                Unit::Nanos.amount(*nanos as f64 / (*executions).max(1) as f64)
            ),
        })
        .collect();
    let entries = component_legend(facts.traffic.times.iter().map(|row| row.component.as_str()));
    let title = "Time by op";
    let caption = "Time in nodes by their op, with its share of all nodes and the mean of one execution; colours say which weights the nodes read.";
    Some(Plot {
        id: "ops".to_owned(),
        section: Section::Work,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: bars(
            title,
            caption,
            "time in nodes",
            Unit::Nanos,
            &list,
            &entries,
        ),
    })
}
