//! What is asked for beside the filter, from the parameters of an address.
//!
//! Limits keep one request from taking the server's memory: they are far above
//! what a screen shows.

use std::{fmt::Display, str::FromStr};

/// Most cells of a raster.
pub const MAX_CELLS: u64 = 1 << 23;
const MAX_SIDE: u32 = 1 << 14;
const MAX_MAP_CELLS: u32 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    Layer,
    Tensor,
    Expert,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeatmapMetric {
    Bytes,
    Accesses,
    Nanos,
    Weight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapMetric {
    Accesses,
    Bytes,
    Recency,
}

/// What the file map shows of the kernel's logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelMetric {
    Faults,
    Disk,
    Residency,
}

/// What lies over the offset plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    Faults,
    Reads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlameBy {
    Bytes,
    Nanos,
}

/// Tokens by number, both ends included; the whole run where absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenWindow {
    pub from: Option<u64>,
    pub to: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeatmapQuery {
    pub rows: RowKind,
    pub metric: HeatmapMetric,
    pub window: TokenWindow,
    pub columns: u32,
}

/// Time and map space that a raster covers; the whole run or model where absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetsQuery {
    pub t0: Option<u64>,
    pub t1: Option<u64>,
    pub o0: Option<u64>,
    pub o1: Option<u64>,
    pub w: u32,
    pub h: u32,
    /// As in [`NodesQuery`].
    pub even: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesQuery {
    pub t0: Option<u64>,
    pub t1: Option<u64>,
    pub w: u32,
    /// Evaluations narrower than this many columns are spread evenly over their time; 0: never.
    pub even: u32,
}

/// Time that the lanes of processor, devices and copies cover; the whole run where absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanesQuery {
    pub t0: Option<u64>,
    pub t1: Option<u64>,
    pub w: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapQuery {
    pub cells: u32,
    pub metric: MapMetric,
    /// Only what ended by this time.
    pub at: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMapQuery {
    pub cells: u32,
    pub metric: KernelMetric,
    /// Only what happened by this time; the end of the run where absent.
    pub at: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarksQuery {
    pub of: MarkKind,
    pub window: OffsetsQuery,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskQuery {
    /// Resident pages are those of the last sample by this time.
    pub at: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalsQuery {
    /// Evaluations by number, both ends included.
    pub from: Option<u64>,
    pub to: Option<u64>,
    pub max: u32,
}

/// Parameters of an address. Keys that a query does not know are the filter's.
type Pairs<'a> = &'a [(&'a str, &'a str)];

impl TokenWindow {
    pub fn from_pairs(pairs: Pairs) -> Result<TokenWindow, String> {
        Ok(TokenWindow {
            from: optional(pairs, "from")?,
            to: optional(pairs, "to")?,
        })
    }
}

impl HeatmapQuery {
    pub fn from_pairs(pairs: Pairs) -> Result<HeatmapQuery, String> {
        Ok(HeatmapQuery {
            rows: one_of(
                pairs,
                "rows",
                &[
                    ("layer", RowKind::Layer),
                    ("tensor", RowKind::Tensor),
                    ("expert", RowKind::Expert),
                ],
            )?,
            metric: one_of(
                pairs,
                "metric",
                &[
                    ("bytes", HeatmapMetric::Bytes),
                    ("accesses", HeatmapMetric::Accesses),
                    ("nanos", HeatmapMetric::Nanos),
                    ("weight", HeatmapMetric::Weight),
                ],
            )?,
            window: TokenWindow::from_pairs(pairs)?,
            columns: size(pairs, "columns", 512, MAX_SIDE)?,
        })
    }
}

impl OffsetsQuery {
    pub fn from_pairs(pairs: Pairs) -> Result<OffsetsQuery, String> {
        let query = OffsetsQuery {
            t0: optional(pairs, "t0")?,
            t1: optional(pairs, "t1")?,
            o0: optional(pairs, "o0")?,
            o1: optional(pairs, "o1")?,
            w: size(pairs, "w", 800, MAX_SIDE)?,
            h: size(pairs, "h", 400, MAX_SIDE)?,
            even: optional(pairs, "even")?.unwrap_or(0),
        };
        if u64::from(query.w) * u64::from(query.h) > MAX_CELLS {
            return Err(format!("w×h: at most {MAX_CELLS} cells; ask for fewer"));
        }
        Ok(query)
    }
}

impl NodesQuery {
    pub fn from_pairs(pairs: Pairs) -> Result<NodesQuery, String> {
        Ok(NodesQuery {
            t0: optional(pairs, "t0")?,
            t1: optional(pairs, "t1")?,
            w: size(pairs, "w", 800, MAX_SIDE)?,
            even: optional(pairs, "even")?.unwrap_or(0),
        })
    }
}

impl LanesQuery {
    pub fn from_pairs(pairs: Pairs) -> Result<LanesQuery, String> {
        Ok(LanesQuery {
            t0: optional(pairs, "t0")?,
            t1: optional(pairs, "t1")?,
            w: size(pairs, "w", 800, MAX_SIDE)?,
        })
    }
}

impl MapQuery {
    pub fn from_pairs(pairs: Pairs) -> Result<MapQuery, String> {
        Ok(MapQuery {
            cells: size(pairs, "cells", 4096, MAX_MAP_CELLS)?,
            metric: one_of(
                pairs,
                "metric",
                &[
                    ("accesses", MapMetric::Accesses),
                    ("bytes", MapMetric::Bytes),
                    ("recency", MapMetric::Recency),
                ],
            )?,
            at: optional(pairs, "at")?,
        })
    }
}

impl KernelMetric {
    pub const ALL: [KernelMetric; 3] = [
        KernelMetric::Faults,
        KernelMetric::Disk,
        KernelMetric::Residency,
    ];

    pub fn name(self) -> &'static str {
        match self {
            KernelMetric::Faults => "faults",
            KernelMetric::Disk => "disk",
            KernelMetric::Residency => "residency",
        }
    }
}

impl MarkKind {
    pub fn name(self) -> &'static str {
        match self {
            MarkKind::Faults => "faults",
            MarkKind::Reads => "reads",
        }
    }
}

impl KernelMapQuery {
    pub fn from_pairs(pairs: Pairs) -> Result<KernelMapQuery, String> {
        let metrics = KernelMetric::ALL.map(|metric| (metric.name(), metric));
        Ok(KernelMapQuery {
            cells: size(pairs, "cells", 4096, MAX_MAP_CELLS)?,
            metric: one_of(pairs, "metric", &metrics)?,
            at: optional(pairs, "at")?,
        })
    }
}

impl MarksQuery {
    pub fn from_pairs(pairs: Pairs) -> Result<MarksQuery, String> {
        let kinds = [MarkKind::Faults, MarkKind::Reads].map(|kind| (kind.name(), kind));
        Ok(MarksQuery {
            of: one_of(pairs, "of", &kinds)?,
            window: OffsetsQuery::from_pairs(pairs)?,
        })
    }
}

impl DiskQuery {
    pub fn from_pairs(pairs: Pairs) -> Result<DiskQuery, String> {
        Ok(DiskQuery {
            at: optional(pairs, "at")?,
        })
    }
}

impl EvalsQuery {
    pub fn from_pairs(pairs: Pairs) -> Result<EvalsQuery, String> {
        Ok(EvalsQuery {
            from: optional(pairs, "from")?,
            to: optional(pairs, "to")?,
            max: size(pairs, "max", 4096, 1 << 16)?,
        })
    }
}

impl FlameBy {
    pub fn from_pairs(pairs: Pairs) -> Result<FlameBy, String> {
        one_of(
            pairs,
            "by",
            &[("bytes", FlameBy::Bytes), ("nanos", FlameBy::Nanos)],
        )
    }
}

/// The value of a key that must be a number, if it is there.
pub fn optional<T: FromStr>(pairs: Pairs, key: &str) -> Result<Option<T>, String> {
    let value = pairs.iter().rev().find(|(k, _)| *k == key);
    value
        .filter(|(_, v)| !v.is_empty())
        .map(|(_, v)| v.parse().map_err(|_| not_a_number(key, v)))
        .transpose()
}

fn size(pairs: Pairs, key: &str, default: u32, most: u32) -> Result<u32, String> {
    let value: u32 = optional(pairs, key)?.unwrap_or(default);
    if (1..=most).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{key}: {value} is not in 1 to {most}"))
    }
}

/// The first choice where the key is absent.
fn one_of<T: Copy>(pairs: Pairs, key: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let Some((_, value)) = pairs.iter().rev().find(|(k, _)| *k == key) else {
        return Ok(choices[0].1);
    };
    let found = choices.iter().find(|(name, _)| name == value);
    found.map(|&(_, choice)| choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("{key}: {} is none of {}", quoted(value), names.join(", "))
    })
}

pub(crate) fn not_a_number(key: &str, value: impl Display) -> String {
    format!("{key}: {} is not a number", quoted(value))
}

/// Short and without control characters: it comes from an address.
pub(crate) fn quoted(value: impl Display) -> String {
    let text: String = value.to_string().chars().take(40).collect();
    format!("{text:?}")
}
