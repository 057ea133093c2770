//! Lines that both the report and the viewer draw: their numbers, units, names and colours.
//!
//! A chart is data. Print draws it ([`crate::plots`]); the viewer's page gets it from the
//! server and draws it with a pointer in mind. What the viewer lets people choose is a
//! parameter here, and the report takes the default.

mod roofline;

pub use roofline::{Roof, RooflineChart, RooflinePoint, roofline};

use analysis::{
    cache_trace::{Count, Counts, Scope},
    curves::{CurvePoint, Curves},
    experts_cache::{ExpertCachePoint, ExpertCaches, Hits, PolicyHits},
    opportunities::{Opportunities, Strategy, StrategyOutlook},
    timeline::Timeline,
    traffic::KvPoint,
    working_set::WorkingSetResults,
};
use serde::Serialize;

use crate::{
    palette::Category,
    plot::{
        Axis, Canvas, Ticks, Unit,
        marks::{Line, lines},
    },
};

/// Lines over a common x.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LineChart {
    /// Of letters and dashes.
    pub id: &'static str,
    pub title: &'static str,
    /// What is shown and how to read it, in sentences.
    pub caption: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

impl LineChart {
    /// Where there is something to show; the y axis leaves a little room above.
    fn new(
        id: &'static str,
        title: &'static str,
        caption: impl Into<String>,
        (x, y): (Axis, Axis),
        mut drawn: Vec<Line>,
    ) -> Option<LineChart> {
        drawn.retain(|line| !line.points.is_empty());
        if drawn.is_empty() {
            return None;
        }
        let points = || drawn.iter().flat_map(|line| &line.points);
        let max = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
        let y_max = match y.unit {
            Unit::Share => 1.0,
            _ => max(|point| point.1) * 1.05,
        };
        let stretched = |axis: Axis, max| Axis {
            ticks: axis.ticks,
            ..Axis::new(&axis.label, axis.unit, 0.0, max)
        };
        Some(LineChart {
            id,
            title,
            caption: caption.into(),
            x: stretched(x, max(|point| point.0)),
            y: stretched(y, y_max),
            lines: drawn,
        })
    }

    pub fn draw(&self, height_px: f64) -> Canvas {
        lines(height_px, &self.x, &self.y, &self.lines)
    }
}

/// An axis whose end the values give.
fn axis(label: &str, unit: Unit) -> Axis {
    Axis::new(label, unit, 0.0, 1.0)
}

fn tokens(label: &str) -> Axis {
    axis(label, Unit::Plain).with_ticks(Ticks::Whole)
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountBy {
    Bytes,
    Accesses,
}

impl CountBy {
    fn of(self, count: Count) -> f64 {
        match self {
            CountBy::Bytes => count.bytes as f64,
            CountBy::Accesses => count.accesses as f64,
        }
    }
}

pub fn kv_growth(growth: &Timeline<KvPoint>) -> Option<LineChart> {
    let mut points: Vec<&KvPoint> = growth.points.iter().collect();
    points.sort_by_key(|point| (point.context_tokens, point.eval));
    if points.len() < 2 || points.iter().all(|p| p.read_bytes + p.written_bytes == 0) {
        return None;
    }
    let line = |name, nth, value: fn(&KvPoint) -> u64| {
        let points = points.iter();
        let points = points.map(|p| (p.context_tokens as f64, value(p) as f64));
        Line::new(name, Category::nth(nth), points)
    };
    LineChart::new(
        "kv-growth",
        "How the KV cache grows",
        "Bytes of the KV cache that each evaluation reads and writes, by the highest position of its batch plus one. llama.cpp reads it in steps of whole blocks of cells, so that it grows in stairs.",
        (
            tokens("context (tokens)"),
            axis("KV cache per evaluation", Unit::Bytes),
        ),
        vec![
            line("read", 0, |point| point.read_bytes),
            line("written", 1, |point| point.written_bytes),
        ],
    )
}

/// `model_bytes` may be 0 where it is not known.
pub fn working_set(results: &WorkingSetResults, model_bytes: u64) -> Option<LineChart> {
    let points = &results.cumulative.points;
    let last = points.iter().map(|point| point.tokens).max()?;
    if points.len() < 2 {
        return None;
    }
    let touched = points
        .iter()
        .map(|point| (point.tokens as f64, point.distinct_bytes as f64));
    let all = [(0.0, model_bytes as f64), (last as f64, model_bytes as f64)];
    let all = all.into_iter().filter(|_| model_bytes > 0);
    LineChart::new(
        "working-set",
        "The working set",
        "Distinct bytes of weights touched since the begin. A dense model has touched all of them with its first token; with experts the line climbs as tokens choose new ones.",
        (
            tokens("tokens so far"),
            axis("distinct bytes touched", Unit::Bytes),
        ),
        vec![
            Line::new("distinct weights", Category::nth(0), touched),
            Line::new("all weights of the model", Category::of_way("belady"), all),
        ],
    )
}

pub fn miss_ratios(curves: &Curves, scope: Scope, by: CountBy) -> Option<LineChart> {
    let total = by.of(curves.total.of(scope));
    if total == 0.0 || curves.points.is_empty() {
        return None;
    }
    let line = |name, way, missed: fn(&CurvePoint) -> Counts| {
        let share = |p: &CurvePoint| by.of(missed(p).of(scope)) / total;
        let points = curves.points.iter();
        let points = points.map(|point| (point.budget_bytes as f64, share(point)));
        // Without memory everything is missed.
        let points = std::iter::once((0.0, 1.0)).chain(points);
        Line::new(name, Category::of_way(way), points)
    };
    let (what, label) = match by {
        CountBy::Bytes => ("bytes", "bytes missed of all bytes read"),
        CountBy::Accesses => ("accesses", "accesses missed of all"),
    };
    LineChart::new(
        "miss-ratio",
        "Miss-ratio curves",
        format!(
            "Of the {what} of weights that {} reads, how many are not in memory when they are needed, first reads included, with {} of weights in use. A model that does not fit is LRU’s worst case: each weight is dropped just before it comes round again.",
            match scope {
                Scope::Run => "the run",
                Scope::Generate => "the generating part",
            },
            Unit::Bytes.amount(curves.footprint_bytes as f64)
        ),
        (
            axis("memory for weights", Unit::Bytes),
            axis(label, Unit::Share),
        ),
        vec![
            line("LRU (the page cache)", "lru", |point| point.lru),
            line("pin and stream", "pin_and_stream", |point| {
                point.pin_and_stream
            }),
            line("Belady (knows the future)", "belady", |point| point.belady),
        ],
    )
}

const WAYS: &str = "for each way of using the memory: the page cache as llama.cpp uses it today, streaming everything, pinning the densest weights alone, pinning them and streaming the rest, and caching experts. A line begins where the way first fits.";

fn strategies(
    opportunities: &Opportunities,
    value: impl Fn(&StrategyOutlook) -> Option<f64>,
) -> Vec<Line> {
    let ways = [
        (Strategy::PageCache, "page_cache", "page cache"),
        (Strategy::Stream, "stream", "stream"),
        (Strategy::Pin, "pin", "pin only"),
        (Strategy::PinAndStream, "pin_and_stream", "pin and stream"),
        (Strategy::ExpertCache, "expert_cache", "expert cache"),
    ];
    ways.map(|(strategy, way, name)| {
        let points = opportunities.budgets.iter().filter_map(|budget| {
            let mut found = budget.strategies.iter();
            let outlook = found.find(|outlook| outlook.strategy == strategy)?;
            Some((budget.budget_bytes as f64, value(outlook)?))
        });
        Line::new(name, Category::of_way(way), points)
    })
    .into()
}

pub fn disk_reads(opportunities: &Opportunities) -> Option<LineChart> {
    let mut drawn = strategies(opportunities, |outlook| {
        outlook.disk_bytes_per_token.map(|bytes| bytes as f64)
    });
    let least = opportunities.budgets.iter().map(|budget| {
        let least = budget.least_disk_bytes_per_token;
        (budget.budget_bytes as f64, least as f64)
    });
    drawn.push(Line::new(
        "least possible (Belady)",
        Category::of_way("belady"),
        least,
    ));
    LineChart::new(
        "disk-bytes",
        "Bytes from the disk against memory",
        format!("Bytes that a generated token takes from the disk, {WAYS}"),
        (
            axis("memory for weights", Unit::Bytes),
            axis("from the disk per token", Unit::Bytes),
        ),
        drawn,
    )
}

/// `None` where the speeds of the machine are not known.
pub fn predicted_speed(opportunities: &Opportunities) -> Option<LineChart> {
    LineChart::new(
        "predicted-speed",
        "Predicted speed against memory",
        format!(
            "Tokens per second that the measured speeds of disk and memory allow at best, {WAYS}"
        ),
        (
            axis("memory for weights", Unit::Bytes),
            axis("tokens per second", Unit::Plain),
        ),
        strategies(opportunities, |outlook| outlook.tokens_per_second),
    )
}

/// Who shares a cache of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    Global,
    PerLayer,
}

pub fn expert_hits(caches: &ExpertCaches, pool: Pool, scope: Scope) -> Option<LineChart> {
    let of = |hits: Hits| match scope {
        Scope::Run => hits.run,
        Scope::Generate => hits.generate,
    };
    let uses = of(caches.uses).max(1) as f64;
    let line = |name, way, hits: fn(&PolicyHits) -> Hits| {
        let pooled = |point: &ExpertCachePoint| match pool {
            Pool::Global => point.global,
            Pool::PerLayer => point.per_layer,
        };
        let points = caches.points.iter();
        let points = points.map(|p| (p.bytes as f64, of(hits(&pooled(p))) as f64 / uses));
        Line::new(name, Category::of_way(way), points)
    };
    LineChart::new(
        "expert-cache",
        "Hits of an expert cache",
        format!(
            "How many of the uses of an expert find it in a cache {}, by the cache’s size and rule. First uses always miss, so that no line reaches 100 %.",
            match pool {
                Pool::Global => "for the experts of all layers",
                Pool::PerLayer => "of each layer’s own",
            }
        ),
        (
            axis("memory for experts", Unit::Bytes),
            axis("hits of all uses", Unit::Share),
        ),
        vec![
            line("LRU", "lru", |hits| hits.lru),
            line("LFU", "lfu", |hits| hits.lfu),
            line("LFU, ageing", "lfu_aged", |hits| hits.lfu_aged),
            line("Belady (knows the future)", "belady", |hits| hits.belady),
        ],
    )
}

#[cfg(test)]
#[path = "../../index/tests/generated/mod.rs"]
mod generated;

#[cfg(test)]
mod tests {
    use super::{generated::declaration as of, *};

    /// The page's types are these: `TENSORSCOPE_BLESS=1 cargo test -p render --lib` writes them.
    #[test]
    fn the_page_knows_charts() {
        let types = [
            of::<LineChart>(),
            of::<Axis>(),
            of::<Line>(),
            of::<Category>(),
            of::<Unit>(),
            of::<RooflineChart>(),
            of::<Roof>(),
            of::<RooflinePoint>(),
        ];
        let text = format!(
            "// Written by a test of crates/render/src/charts.rs; change that.\n{}",
            types.concat()
        );
        generated::check("src/generated/charts.ts", &text);
    }
}
