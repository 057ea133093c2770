//! Hot and cold: which weights a run touches most, and which hardly ever.
//!
//! A unit is a weight, or one expert's slice of it. Units are ranked by a
//! [`Measure`]; the hottest are the first units of that ranking that make up the
//! top 10 % of *units*, the coldest the last 50 % (both settable). Units with
//! equal measure are ranked by name, so that the answer is one. Weights of the
//! model that no graph names are cold: they are never read.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use gguf::Component;
use reader::{Tally, Traffic};
use serde::{Deserialize, Serialize};
use trace::format::Phase;

use crate::{
    facts::ModelTensor,
    pass::{Pass, View},
    traffic::{TrafficResults, TrafficRow, layer_name},
    units::Units,
};

/// What makes a unit hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Accesses,
    Bytes,
    /// Bytes read per byte of size: how often each byte was used.
    BytesPerByte,
}

impl Measure {
    pub const ALL: [Measure; 3] = [Measure::Accesses, Measure::Bytes, Measure::BytesPerByte];

    pub fn name(self) -> &'static str {
        match self {
            Measure::Accesses => "accesses",
            Measure::Bytes => "bytes",
            Measure::BytesPerByte => "bytes_per_byte",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Share of the units that are called hot.
    pub hot: f64,
    pub cold: f64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            hot: 0.10,
            cold: 0.50,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotResults {
    pub units: Vec<UnitHeat>,
    /// For each measure: units by rank, hottest first (indices into `units`).
    pub rankings: Vec<Ranking>,
    pub by_component: Vec<GroupHeat>,
    pub by_layer: Vec<GroupHeat>,
    pub by_op: Vec<GroupHeat>,
    pub by_phase: Vec<GroupHeat>,
    /// Of the weights of the model, as far as they are known.
    pub model_bytes: u64,
    pub never_read_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitHeat {
    pub name: String,
    pub expert: Option<u32>,
    pub layer: Option<u32>,
    pub component: String,
    pub role: String,
    pub size_bytes: u64,
    pub accesses: u64,
    pub bytes: u64,
    /// Of `bytes`, by phase: unknown, prompt, generate.
    pub phase_bytes: [u64; 3],
}

impl UnitHeat {
    pub fn bytes_per_byte(&self) -> f64 {
        self.bytes as f64 / self.size_bytes.max(1) as f64
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranking {
    pub measure: Measure,
    pub order: Vec<u32>,
    pub thresholds: Thresholds,
    pub hot: Part,
    pub cold: Part,
}

/// The units at one end of a ranking.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub units: u64,
    pub size_bytes: u64,
    pub bytes: u64,
    pub share_of_size: f64,
    pub share_of_bytes: f64,
}

/// Weights read, summed by a name (`-` where there is no layer).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupHeat {
    pub name: String,
    /// Of a component one of whose weights is another one's, too: that other one. The output
    /// has the bytes of an embedding that is tied to it, the embedding has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tied_to: Option<String>,
    /// Bytes of the weights of this group; `None` where the group has none of
    /// its own (an op, a phase).
    pub size_bytes: Option<u64>,
    pub accesses: u64,
    pub bytes: u64,
    pub share_of_bytes: f64,
    pub bytes_per_byte: Option<f64>,
}

#[derive(Debug, Default)]
pub struct Accumulator {
    /// By unit and phase.
    units: Vec<[Traffic; 3]>,
}

impl Accumulator {
    pub fn push(&mut self, view: &View) {
        let phase = view.seen.evaluation.phase as usize;
        self.units
            .resize(view.units.units.len(), Default::default());
        for piece in view.varying() {
            self.units[piece.unit as usize][phase].add(1, piece.bytes);
        }
    }

    /// Takes in what a template's evaluations have in common.
    pub fn end_template(&mut self, pass: &Pass, template: u32, phase: Phase, tally: &Tally) {
        for (step, piece) in pass.fixed(template) {
            let Traffic { accesses, bytes } =
                Traffic::times(tally.steps[step as usize].executions, piece.bytes);
            self.units[piece.unit as usize][phase as usize].add(accesses, bytes);
        }
    }

    /// `traffic` is that of the same pass; `model` may be empty.
    pub fn finish(
        self,
        of_run: &Units,
        traffic: &TrafficResults,
        model: &[ModelTensor],
        thresholds: Thresholds,
    ) -> HotResults {
        let units = of_run.units.iter().zip(&self.units);
        let mut units: Vec<UnitHeat> = units
            .map(|(unit, phases)| UnitHeat {
                name: unit.name.clone(),
                expert: unit.expert,
                layer: unit.layer,
                component: unit.component.name().to_owned(),
                role: unit.role.clone(),
                size_bytes: unit.bytes,
                accesses: phases.iter().map(|t| t.accesses).sum(),
                bytes: phases.iter().map(|t| t.bytes).sum(),
                phase_bytes: phases.map(|t| t.bytes),
            })
            .collect();
        let known: HashSet<&str> = of_run.units.iter().map(|u| u.name.as_str()).collect();
        for tensor in model.iter().filter(|t| !known.contains(t.name.as_str())) {
            let meaning = gguf::Meaning::of(&tensor.name);
            units.push(UnitHeat {
                name: tensor.name.clone(),
                expert: None,
                layer: meaning.layer,
                component: meaning.component.name().to_owned(),
                role: meaning.role.to_string(),
                size_bytes: tensor.size_bytes,
                accesses: 0,
                bytes: 0,
                phase_bytes: [0; 3],
            });
        }
        units.sort_by(|a, b| (&a.name, a.expert).cmp(&(&b.name, b.expert)));
        HotResults {
            rankings: Measure::ALL
                .map(|measure| rank(&units, measure, thresholds))
                .to_vec(),
            by_component: by_component(&units, traffic),
            by_layer: by_unit(&units, |unit| layer_name(unit.layer)),
            by_op: by_row(traffic, |r| r.op.clone()),
            by_phase: by_row(traffic, |r| r.phase.clone()),
            model_bytes: units.iter().map(|u| u.size_bytes).sum(),
            never_read_bytes: units
                .iter()
                .filter(|u| u.accesses == 0)
                .map(|u| u.size_bytes)
                .sum(),
            units,
        }
    }
}

fn rank(units: &[UnitHeat], measure: Measure, thresholds: Thresholds) -> Ranking {
    let mut order: Vec<u32> = (0..units.len() as u32).collect();
    let unit = |at: &u32| &units[*at as usize];
    match measure {
        Measure::Accesses => order.sort_by_key(|at| Reverse(unit(at).accesses)),
        Measure::Bytes => order.sort_by_key(|at| Reverse(unit(at).bytes)),
        Measure::BytesPerByte => {
            // Cross-multiplied: exact, and without floats in a sort.
            let product =
                |a: &UnitHeat, b: &UnitHeat| u128::from(a.bytes) * u128::from(b.size_bytes.max(1));
            order.sort_by(|a, b| product(unit(b), unit(a)).cmp(&product(unit(a), unit(b))));
        }
    }
    let count = |share: f64| {
        ((units.len() as f64 * share.clamp(0.0, 1.0)).round() as usize).min(order.len())
    };
    let total_size: u64 = units.iter().map(|u| u.size_bytes).sum();
    let total_bytes: u64 = units.iter().map(|u| u.bytes).sum();
    let part = |of: &[u32]| {
        let size_bytes: u64 = of.iter().map(|at| unit(at).size_bytes).sum();
        let bytes: u64 = of.iter().map(|at| unit(at).bytes).sum();
        Part {
            units: of.len() as u64,
            size_bytes,
            bytes,
            share_of_size: size_bytes as f64 / total_size.max(1) as f64,
            share_of_bytes: bytes as f64 / total_bytes.max(1) as f64,
        }
    };
    let (hot, cold) = (
        part(&order[..count(thresholds.hot)]),
        part(&order[order.len() - count(thresholds.cold)..]),
    );
    Ranking {
        measure,
        order,
        thresholds,
        hot,
        cold,
    }
}

/// By what the units are, the unread ones too.
fn by_unit(units: &[UnitHeat], key: impl Fn(&UnitHeat) -> String) -> Vec<GroupHeat> {
    let mut sums: BTreeMap<String, (u64, Traffic)> = BTreeMap::new();
    for unit in units {
        let (size_bytes, traffic) = sums.entry(key(unit)).or_default();
        *size_bytes += unit.size_bytes;
        traffic.add(unit.accesses, unit.bytes);
    }
    groups(
        sums.into_iter()
            .map(|(name, (size_bytes, sum))| (name, Some(size_bytes), sum)),
    )
}

/// By what they were read as, the unread ones too. A tied embedding is one weight with two
/// components: its bytes are the output's, which reads all of them.
fn by_component(units: &[UnitHeat], traffic: &TrafficResults) -> Vec<GroupHeat> {
    let (embedding, output) = (Component::Embedding.name(), Component::Output.name());
    let is_weight = |row: &TrafficRow| row.kind == "weight" && row.direction == "read";
    let is_tied = |row: &TrafficRow| row.component == output && is_token(row.role.as_deref());
    let is_tied = traffic
        .rows
        .iter()
        .any(|row| is_weight(row) && is_tied(row));
    let mut sums: BTreeMap<String, (Option<u64>, Traffic)> = BTreeMap::new();
    for unit in units {
        let is_output = is_tied && unit.component == embedding && is_token(Some(&unit.role));
        let name = if is_output { output } else { &unit.component };
        let (size_bytes, _) = sums.entry(name.to_owned()).or_default();
        *size_bytes = Some(size_bytes.unwrap_or(0) + unit.size_bytes);
    }
    for (name, read) in traffic.sums(is_weight, |row| row.component.clone()) {
        sums.entry(name).or_default().1 = read;
    }
    let mut groups = groups(
        sums.into_iter()
            .map(|(name, (size, sum))| (name, size, sum)),
    );
    for group in groups.iter_mut().filter(|_| is_tied) {
        if group.name == output {
            group.tied_to = Some(embedding.to_owned());
        } else if group.name == embedding {
            group.tied_to = Some(output.to_owned());
        }
    }
    groups
}

fn is_token(role: Option<&str>) -> bool {
    role == Some("token")
}

/// By what used them.
fn by_row(traffic: &TrafficResults, key: impl Fn(&TrafficRow) -> String) -> Vec<GroupHeat> {
    let sums = traffic.sums(|row| row.kind == "weight" && row.direction == "read", key);
    groups(sums.into_iter().map(|(name, sum)| (name, None, sum)))
}

fn groups(sums: impl Iterator<Item = (String, Option<u64>, Traffic)>) -> Vec<GroupHeat> {
    let mut groups: Vec<GroupHeat> = sums
        .map(|(name, size_bytes, sum)| GroupHeat {
            name,
            tied_to: None,
            size_bytes,
            accesses: sum.accesses,
            bytes: sum.bytes,
            share_of_bytes: 0.0,
            bytes_per_byte: size_bytes.map(|size| sum.bytes as f64 / size.max(1) as f64),
        })
        .collect();
    let total: u64 = groups.iter().map(|group| group.bytes).sum();
    for group in &mut groups {
        group.share_of_bytes = group.bytes as f64 / total.max(1) as f64;
    }
    groups.sort_by_key(|group| Reverse(group.bytes));
    groups
}
