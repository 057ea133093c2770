//! The roofline as data: slopes of memory, flat roofs of arithmetic, and classes of nodes below.

use analysis::roofline::{Bound, ComputeRoof, MemoryRoof, Point, Roofline};
use serde::Serialize;

use crate::{palette::Category, plot::units::short, plots::plural};

const CAPTION: &str = "Operations for each byte that a node touches, against operations a second. The slope is what memory gives to the threads of the run, the flat lines are what they can compute: with 32-bit numbers in registers, and in llama.cpp’s products with weights of a type. A point is an op with weights of one type for one part of the model; its area is its time, its colour the part; round ones generate, square ones are of the prompt, a diamond is of neither. Its label says how much it reached of the lower roof above it. What is above the slope came from a cache. Nodes that compute nothing (copies, rows of the embedding) are not shown";

/// What classes of nodes reached, below what memory and arithmetic allow.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RooflineChart {
    /// What is shown and how to read it, in sentences; without the last full stop.
    pub caption: &'static str,
    /// Slopes: bytes a second.
    pub memory: Vec<Roof>,
    /// Flat: operations a second.
    pub compute: Vec<Roof>,
    /// Those that took longest first.
    pub points: Vec<RooflinePoint>,
}

/// What so many threads can do.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Roof {
    /// With its figure.
    pub name: String,
    pub threads: u32,
    pub per_second: f64,
}

/// A class of nodes in one phase, with about as many tokens at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RooflinePoint {
    pub name: String,
    pub phase: String,
    /// Part of the model, whose colour it has.
    pub component: String,
    /// Tokens at once, up to a power of two.
    pub batch: u64,
    /// The same exactly, in words.
    pub batch_text: String,
    pub threads: u32,
    /// Operations for each byte.
    pub intensity: f64,
    pub flops_per_second: f64,
    pub bytes_per_second: f64,
    /// `memory` or `compute`.
    pub bound: &'static str,
    /// Of what the bound would allow.
    pub share_of_ceiling: f64,
    pub share_of_phase: f64,
    pub nanos: u64,
}

impl RooflinePoint {
    /// `None` for what computes nothing.
    fn of(point: &Point) -> Option<RooflinePoint> {
        let row = &point.row;
        let (intensity, flops_per_second) = (point.intensity?, point.flops_per_second?);
        let has_place = |value: f64| value > 0.0 && value.is_finite();
        let batch_text = match row.batch_from == row.batch_to {
            true => plural(row.batch_to, "token"),
            false => format!("{} to {}", row.batch_from, plural(row.batch_to, "token")),
        };
        (has_place(intensity) && has_place(flops_per_second)).then(|| RooflinePoint {
            name: point.name(),
            phase: row.phase.clone(),
            component: row.component.clone(),
            batch: row.batch_to.max(1).next_power_of_two(),
            batch_text,
            threads: row.threads,
            intensity,
            flops_per_second,
            bytes_per_second: point.bytes_per_second,
            bound: match point.bound {
                Bound::Memory => "memory",
                Bound::Compute => "compute",
            },
            share_of_ceiling: point.share_of_ceiling,
            share_of_phase: point.share_of_phase,
            nanos: row.nanos,
        })
    }

    pub fn category(&self) -> Category {
        Category::of(&self.component)
    }
}

/// `None` without classes that compute.
pub fn roofline(of: &Roofline) -> Option<RooflineChart> {
    let points: Vec<_> = of.points.iter().filter_map(RooflinePoint::of).collect();
    (!points.is_empty() && !of.memory.is_empty()).then(|| RooflineChart {
        caption: CAPTION,
        memory: of.memory.iter().map(slope).collect(),
        compute: of.compute.iter().map(flat).collect(),
        points,
    })
}

fn slope(of: &MemoryRoof) -> Roof {
    roof("memory", of.threads, of.bytes_per_second, "GB/s")
}

fn flat(of: &ComputeRoof) -> Roof {
    let what = match &of.weight_type {
        Some(ty) => format!("llama.cpp, {ty}"),
        None => "f32 in registers".to_owned(),
    };
    roof(&what, of.threads, of.flops_per_second, "GFLOP/s")
}

/// `unit` is that of a billionth of the rate.
fn roof(what: &str, threads: u32, per_second: f64, unit: &str) -> Roof {
    let count = plural(u64::from(threads), "thread");
    let rate = short(per_second / 1e9);
    Roof {
        name: format!("{what}, {count}: {rate} {unit}"),
        threads,
        per_second,
    }
}
