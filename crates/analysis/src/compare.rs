//! Two runs side by side: what moved, in bytes and in time, per token.
//!
//! Everything is divided by the tokens of its phase, so that runs of different
//! length compare. Runs of different models compare by component and op; layers
//! only where both have the same ones.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    experts::{LayerOverlap, between_runs},
    facts::Facts,
    sources::SourceRow,
    traffic::{TimeRow, TrafficResults, TrafficRow, layer_name},
};

/// Whether layer 3 of one run is layer 3 of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Models {
    /// The same model, perhaps at another precision.
    Same,
    Different,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Phases that both runs have.
    pub phases: Vec<PhaseComparison>,
    /// Whether what was hot in A is hot in B; empty for different models.
    pub experts: Vec<LayerOverlap>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseComparison {
    pub phase: String,
    pub a_tokens: u64,
    pub b_tokens: u64,
    pub total: Change,
    /// Each sorted by how much moved, in bytes, then in time.
    pub by_kind: Vec<Change>,
    pub by_component: Vec<Change>,
    pub by_op: Vec<Change>,
    /// `None` where the layers are not the same; `-` is what belongs to none.
    pub by_layer: Option<Vec<Change>>,
    /// Where weights came from, if somebody fed them; the time is what was waited for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_source: Vec<Change>,
}

/// Bytes (read and written) and time per token in both runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub name: String,
    pub a_bytes_per_token: f64,
    pub b_bytes_per_token: f64,
    /// B less A.
    pub bytes_change: f64,
    /// B over A; `None` where A has nothing.
    pub bytes_ratio: Option<f64>,
    /// Time is by node; kinds have none of their own.
    pub a_nanos_per_token: f64,
    pub b_nanos_per_token: f64,
    pub nanos_change: f64,
    pub nanos_ratio: Option<f64>,
}

pub fn compare(a: &Facts, b: &Facts, models: Models) -> Comparison {
    let (ta, tb) = (&a.traffic, &b.traffic);
    let has_same_layers = models == Models::Same && layers(ta) == layers(tb);
    let mut comparison = Comparison {
        experts: match models {
            Models::Same => between_runs(&a.experts, &b.experts),
            Models::Different => Vec::new(),
        },
        ..Comparison::default()
    };
    for in_a in &ta.phases {
        let Some(in_b) = tb.phase(&in_a.phase) else {
            continue;
        };
        if in_a.tokens == 0 || in_b.tokens == 0 {
            continue;
        }
        let sides = Sides {
            phase: &in_a.phase,
            traffic: [ta, tb],
            tokens: [in_a.tokens, in_b.tokens],
        };
        let mut total = sides.changes(|_| String::new(), |_| Some(String::new()));
        comparison.phases.push(PhaseComparison {
            phase: in_a.phase.clone(),
            a_tokens: in_a.tokens,
            b_tokens: in_b.tokens,
            total: Change {
                name: "total".to_owned(),
                ..total.pop().unwrap_or_default()
            },
            by_kind: sides.changes(|row| row.kind.clone(), |_| None),
            by_component: sides.changes(|r| r.component.clone(), |t| Some(t.component.clone())),
            by_op: sides.changes(|row| row.op.clone(), |time| Some(time.op.clone())),
            by_layer: has_same_layers
                .then(|| sides.changes(|r| layer_name(r.layer), |t| Some(layer_name(t.layer)))),
            by_source: sides.sources([&a.sources, &b.sources]),
        });
    }
    comparison
}

fn layers(traffic: &TrafficResults) -> BTreeSet<Option<u32>> {
    traffic.rows.iter().map(|row| row.layer).collect()
}

/// One phase of two runs.
struct Sides<'a> {
    phase: &'a str,
    traffic: [&'a TrafficResults; 2],
    tokens: [u64; 2],
}

impl Sides<'_> {
    fn changes(
        &self,
        of_row: impl Fn(&TrafficRow) -> String,
        of_time: impl Fn(&TimeRow) -> Option<String>,
    ) -> Vec<Change> {
        // Bytes and nanos of A and of B.
        let mut sums: BTreeMap<String, [[u64; 2]; 2]> = BTreeMap::new();
        for (side, traffic) in self.traffic.iter().enumerate() {
            for row in traffic.rows.iter().filter(|row| row.phase == self.phase) {
                sums.entry(of_row(row)).or_default()[0][side] += row.bytes;
            }
            for time in traffic.times.iter().filter(|time| time.phase == self.phase) {
                if let Some(name) = of_time(time) {
                    sums.entry(name).or_default()[1][side] += time.nanos;
                }
            }
        }
        self.sorted(sums)
    }

    /// The same for the sources of weights.
    fn sources(&self, rows: [&Vec<SourceRow>; 2]) -> Vec<Change> {
        let mut sums: BTreeMap<String, [[u64; 2]; 2]> = BTreeMap::new();
        for (side, rows) in rows.iter().enumerate() {
            for row in rows.iter().filter(|row| row.phase == self.phase) {
                let sum = sums.entry(row.source.clone()).or_default();
                sum[0][side] += row.bytes;
                sum[1][side] += row.waited_nanos;
            }
        }
        self.sorted(sums)
    }

    /// Most moved first.
    fn sorted(&self, sums: BTreeMap<String, [[u64; 2]; 2]>) -> Vec<Change> {
        let mut changes: Vec<Change> = sums
            .into_iter()
            .map(|(name, sums)| self.change(name, sums))
            .collect();
        changes.sort_by(|x, y| {
            let by_bytes = y.bytes_change.abs().total_cmp(&x.bytes_change.abs());
            by_bytes.then(y.nanos_change.abs().total_cmp(&x.nanos_change.abs()))
        });
        changes
    }

    fn change(&self, name: String, [bytes, nanos]: [[u64; 2]; 2]) -> Change {
        let per_token = |sums: [u64; 2]| {
            let [a, b] = [0, 1].map(|side| sums[side] as f64 / self.tokens[side] as f64);
            (a, b, b - a, (sums[0] > 0).then(|| b / a))
        };
        let (a_bytes_per_token, b_bytes_per_token, bytes_change, bytes_ratio) = per_token(bytes);
        let (a_nanos_per_token, b_nanos_per_token, nanos_change, nanos_ratio) = per_token(nanos);
        Change {
            name,
            a_bytes_per_token,
            b_bytes_per_token,
            bytes_change,
            bytes_ratio,
            a_nanos_per_token,
            b_nanos_per_token,
            nanos_change,
            nanos_ratio,
        }
    }
}
