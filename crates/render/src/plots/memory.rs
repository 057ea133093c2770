//! Memory: what would be read again, and how fast it would be.

use analysis::{
    cache_trace::Counts,
    caches::Caches,
    curves::CurvePoint,
    facts::Facts,
    opportunities::{Opportunities, Strategy},
};

use super::{Plot, Section};
use crate::plot::{
    Axis, Ticks, Unit,
    marks::{Line, lines},
    theme::Category,
};

/// A way of using memory has one colour in all plots.
pub(super) mod hue {
    use crate::plot::theme::Category;

    pub const LRU: Category = Category(0);
    pub const PINS: Category = Category(1);
    pub const EXPERT_CACHE: Category = Category(4);
    pub const STREAM: Category = Category(6);
    pub const BELADY: Category = Category(8);
}

const HEIGHT_PX: f64 = 320.0;

pub fn plots(facts: &Facts, caches: Option<&Caches>) -> Vec<Plot> {
    [
        working_set(facts),
        caches.and_then(miss_ratios),
        caches
            .and_then(|caches| caches.opportunities.as_ref())
            .and_then(outlook),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn working_set(facts: &Facts) -> Option<Plot> {
    let points = &facts.working_set.cumulative.points;
    if points.len() < 2 {
        return None;
    }
    let tokens = points.iter().map(|point| point.tokens).max()?;
    let line = Line {
        name: "distinct weights".to_owned(),
        category: Category::nth(0),
        points: points
            .iter()
            .map(|point| (point.tokens as f64, point.distinct_bytes as f64))
            .collect(),
    };
    let all = facts.hot.model_bytes;
    let max = facts.working_set.distinct_bytes.max(all) as f64;
    let mut drawn = vec![line];
    if all > 0 {
        drawn.push(Line {
            name: "all weights of the model".to_owned(),
            category: Category::of("kv_cache"),
            points: vec![(0.0, all as f64), (tokens as f64, all as f64)],
        });
    }
    let x = Axis::new("tokens so far", Unit::Plain, 0.0, tokens as f64).with_ticks(Ticks::Whole);
    let y = Axis::new("distinct bytes touched", Unit::Bytes, 0.0, max * 1.05);
    let title = "The working set";
    let caption = "Distinct bytes of weights touched since the begin. A dense model has touched all of them with its first token; with experts the line climbs as tokens choose new ones.";
    Some(Plot {
        id: "working-set".to_owned(),
        section: Section::Memory,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: lines(280.0, &x, &y, &drawn).finish(title, caption),
    })
}

fn miss_ratios(caches: &Caches) -> Option<Plot> {
    let curves = &caches.unit.curves;
    let total = curves.total.run.bytes;
    if total == 0 || curves.points.is_empty() {
        return None;
    }
    type Policy = fn(&CurvePoint) -> Counts;
    let policies: [(&str, Category, Policy); 3] = [
        ("LRU (the page cache)", hue::LRU, |point| point.lru),
        ("pin and stream", hue::PINS, |point| point.pin_and_stream),
        ("Belady (knows the future)", hue::BELADY, |point| {
            point.belady
        }),
    ];
    let drawn: Vec<Line> = policies
        .into_iter()
        .map(|(name, category, missed)| Line {
            name: name.to_owned(),
            category,
            points: curves
                .points
                .iter()
                .map(|point| {
                    (
                        point.budget_bytes as f64,
                        missed(point).run.bytes as f64 / total as f64,
                    )
                })
                .collect(),
        })
        .collect();
    let most = curves.points.iter().map(|point| point.budget_bytes).max()?;
    let x = Axis::new("memory for weights", Unit::Bytes, 0.0, most as f64);
    let y = Axis::new("bytes missed of all bytes read", Unit::Share, 0.0, 1.0);
    let title = "Miss-ratio curves";
    let caption = format!(
        "Of the bytes of weights that the run reads, how many are not in memory when they are needed, first reads included, with {} of weights in use. A model that does not fit is LRU’s worst case: each weight is dropped just before it comes round again.",
        Unit::Bytes.amount(curves.footprint_bytes as f64)
    );
    Some(Plot {
        id: "miss-ratio".to_owned(),
        section: Section::Memory,
        title: title.to_owned(),
        svg: lines(HEIGHT_PX, &x, &y, &drawn).finish(title, &caption),
        caption,
    })
}

fn name_and_hue(strategy: Strategy) -> (&'static str, Category) {
    match strategy {
        Strategy::PageCache => ("page cache", hue::LRU),
        Strategy::Stream => ("stream", hue::STREAM),
        Strategy::PinAndStream => ("pin and stream", hue::PINS),
        Strategy::ExpertCache => ("expert cache", hue::EXPERT_CACHE),
    }
}

/// Tokens per second where the machine is known, else bytes per token.
fn outlook(opportunities: &Opportunities) -> Option<Plot> {
    let has_speed = opportunities.machine.is_some();
    let strategies = [
        Strategy::PageCache,
        Strategy::Stream,
        Strategy::PinAndStream,
        Strategy::ExpertCache,
    ];
    let value = |outlook: &analysis::opportunities::StrategyOutlook| match has_speed {
        true => outlook.tokens_per_second,
        false => outlook.disk_bytes_per_token.map(|bytes| bytes as f64),
    };
    let mut drawn: Vec<Line> = strategies
        .into_iter()
        .map(|strategy| Line {
            name: name_and_hue(strategy).0.to_owned(),
            category: name_and_hue(strategy).1,
            points: opportunities
                .budgets
                .iter()
                .filter_map(|budget| {
                    let mut found = budget.strategies.iter();
                    let outlook = found.find(|outlook| outlook.strategy == strategy)?;
                    Some((budget.budget_bytes as f64, value(outlook)?))
                })
                .collect(),
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    if !has_speed {
        drawn.push(Line {
            name: "least possible (Belady)".to_owned(),
            category: hue::BELADY,
            points: opportunities
                .budgets
                .iter()
                .map(|budget| {
                    (
                        budget.budget_bytes as f64,
                        budget.least_disk_bytes_per_token as f64,
                    )
                })
                .collect(),
        });
    }
    let most = opportunities
        .budgets
        .iter()
        .map(|budget| budget.budget_bytes)
        .max()?;
    let max = drawn
        .iter()
        .flat_map(|line| &line.points)
        .map(|point| point.1)
        .fold(0.0, f64::max);
    let x = Axis::new("memory for weights", Unit::Bytes, 0.0, most as f64);
    let (id, title, y, how) = match has_speed {
        true => (
            "predicted-speed",
            "Predicted speed against memory",
            Axis::new("tokens per second", Unit::Plain, 0.0, max * 1.05),
            "Tokens per second that the measured speeds of disk and memory allow",
        ),
        false => (
            "disk-bytes",
            "Bytes from the disk against memory",
            Axis::new("from the disk per token", Unit::Bytes, 0.0, max * 1.05),
            "Bytes that a generated token takes from the disk; with ceilings (`bench ceilings`) this is tokens per second",
        ),
    };
    let caption = format!(
        "{how}, for each way of using the memory: the page cache as llama.cpp uses it today, streaming everything, pinning the densest weights and streaming the rest, and caching experts. A line begins where the way first fits."
    );
    Some(Plot {
        id: id.to_owned(),
        section: Section::Memory,
        title: title.to_owned(),
        svg: lines(HEIGHT_PX, &x, &y, &drawn).finish(title, &caption),
        caption,
    })
}
