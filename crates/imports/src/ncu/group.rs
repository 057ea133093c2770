//! Launches of one kernel with one grid, as one subject.

use std::collections::{BTreeMap, HashMap};

use rules::{Metrics, Subject, Unit};

use super::{Launch, table};

/// One number over several launches.
struct Mean {
    unit: Unit,
    weighted: f64,
    weight: f64,
    source: String,
}

/// In the order of their first launches.
pub fn subjects(file: &str, launches: &[Launch]) -> Vec<Subject> {
    let mut places: HashMap<(&str, &str, &str), usize> = HashMap::new();
    let mut groups: Vec<Vec<&Launch>> = Vec::new();
    for launch in launches {
        let key = (
            launch.kernel.as_str(),
            launch.block.as_str(),
            launch.grid.as_str(),
        );
        let place = *places.entry(key).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(launch);
    }
    // Known only if it is known of each.
    let all: Option<f64> = launches.iter().map(duration).sum();
    groups
        .iter()
        .map(|group| subject(file, group, all))
        .collect()
}

fn duration(launch: &Launch) -> Option<f64> {
    let entry = table::TABLE
        .iter()
        .find(|entry| entry.metric == "duration_nanos")?;
    let nanos = entry.ways.iter().find_map(|way| way.of(launch));
    nanos
        .map(|(reading, _)| reading.value)
        .filter(|nanos| *nanos > 0.0)
}

fn subject(file: &str, group: &[&Launch], all: Option<f64>) -> Subject {
    let mut means: BTreeMap<String, Mean> = BTreeMap::new();
    for launch in group {
        let nanos = duration(launch).unwrap_or(1.0);
        for (name, unit, value, source) in numbers(file, launch) {
            // A share counts by the time that it lasted; an amount is that of a usual launch.
            let weight = if unit == Unit::Share { nanos } else { 1.0 };
            let mean = means.entry(name).or_insert(Mean {
                unit,
                weighted: 0.0,
                weight: 0.0,
                source,
            });
            mean.weighted += value * weight;
            mean.weight += weight;
        }
    }
    let mut metrics = Metrics::default();
    let more = match group.len() {
        1 => String::new(),
        count => format!(" (mean of {count} launches)"),
    };
    for (name, mean) in means {
        let source = format!("{}{more}", mean.source);
        metrics.number(&name, mean.unit, mean.weighted / mean.weight, Some(&source));
    }
    let first = group.first();
    let source = format!("{file}:{}", first.map_or(0, |launch| launch.line));
    metrics.number("launches", Unit::Count, group.len() as f64, Some(&source));
    let own: Option<f64> = group.iter().map(|launch| duration(launch)).sum();
    if let (Some(own), Some(all)) = (own, all) {
        metrics.number("total_share", Unit::Share, own / all, Some(&source));
    }
    Subject {
        kind: "kernel".to_owned(),
        name: first.map_or(String::new(), |launch| launch.kernel.clone()),
        metrics,
    }
}

/// Name, unit, value and source of what is known of a launch.
fn numbers(file: &str, launch: &Launch) -> Vec<(String, Unit, f64, String)> {
    let mut numbers = Vec::new();
    let place = |line: u64, name: &str| format!("{file}:{line} {name}");
    for entry in table::TABLE {
        if let Some((reading, name)) = entry.ways.iter().find_map(|way| way.of(launch)) {
            let source = place(reading.line, &name);
            numbers.push((entry.metric.to_owned(), entry.unit, reading.value, source));
        }
    }
    for (reason, reading, name) in launch.stalls.shares() {
        let source = place(reading.line, &name);
        numbers.push((
            format!("stall.{reason}"),
            Unit::Share,
            reading.value,
            source,
        ));
    }
    let known = |numbers: &[(String, Unit, f64, String)], name: &str| {
        numbers
            .iter()
            .find(|(known, ..)| known == name)
            .map(|(_, _, value, _)| *value)
    };
    for (metric, column, text) in [
        ("grid_blocks", "Grid Size", &launch.grid),
        ("block_threads", "Block Size", &launch.block),
    ] {
        if known(&numbers, metric).is_none()
            && let Some(product) = product(text)
        {
            numbers.push((
                metric.to_owned(),
                Unit::Count,
                product,
                place(launch.line, column),
            ));
        }
    }
    let bytes = known(&numbers, "dram.bytes");
    let nanos = known(&numbers, "duration_nanos").filter(|nanos| *nanos > 0.0);
    if known(&numbers, "dram.bytes_per_second").is_none()
        && let (Some(bytes), Some(nanos)) = (bytes, nanos)
    {
        let source = place(launch.line, "bytes / duration");
        let rate = bytes / nanos * 1e9;
        numbers.push((
            "dram.bytes_per_second".to_owned(),
            Unit::BytesPerSecond,
            rate,
            source,
        ));
    }
    if known(&numbers, "dram.bytes").is_none()
        && let (Some(rate), Some(nanos)) = (known(&numbers, "dram.bytes_per_second"), nanos)
    {
        let source = place(launch.line, "bytes per second * duration");
        numbers.push((
            "dram.bytes".to_owned(),
            Unit::Bytes,
            rate * nanos / 1e9,
            source,
        ));
    }
    numbers
}

/// `(256, 1, 1)` as 256.
fn product(text: &str) -> Option<f64> {
    let inside = text.trim().strip_prefix('(')?.strip_suffix(')')?;
    let mut product = 1.0;
    for part in inside.split(',') {
        product *= part.trim().parse::<u32>().ok()? as f64;
    }
    Some(product)
}
