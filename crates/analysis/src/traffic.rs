//! Accesses, bytes and time: by kind, component, role, op, layer, phase, and per
//! token; how the KV cache grows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trace::{
    format::flags,
    template::{CaptureKind, TensorKind},
};

use crate::{
    catalog::Catalog,
    layout::Layout,
    pass::{Counts, PHASES, Traffic, View, phase_index},
    timeline::Timeline,
};

/// Everything summed up; other results are sums of `rows` and `times`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficResults {
    pub phases: Vec<PhaseSum>,
    /// Sorted by all their names.
    pub rows: Vec<TrafficRow>,
    pub times: Vec<TimeRow>,
    pub per_token: Vec<PerToken>,
    pub kv_growth: Timeline<KvPoint>,
    /// Evaluations whose ticks or indices were not as predicted: their times are
    /// not certain.
    pub flagged_evaluations: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseSum {
    pub phase: String,
    pub evaluations: u64,
    pub tokens: u64,
    pub nanos: u64,
    /// Executed nodes.
    pub steps: u64,
    pub accesses: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficRow {
    pub phase: String,
    pub kind: String,
    /// Of weights their component, of the rest their kind.
    pub component: String,
    pub role: Option<String>,
    pub op: String,
    pub layer: Option<u32>,
    pub direction: String,
    pub accesses: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeRow {
    pub phase: String,
    /// Of the weight that the nodes read; else `kv_cache` or `activation`.
    pub component: String,
    pub op: String,
    pub layer: Option<u32>,
    pub executions: u64,
    pub nanos: u64,
}

/// Bytes per token of one kind in one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerToken {
    pub phase: String,
    pub kind: String,
    pub direction: String,
    pub bytes: u64,
    pub bytes_per_token: f64,
}

/// The KV cache at one evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvPoint {
    pub eval: u64,
    /// Tokens of the run up to and with this evaluation.
    pub tokens: u64,
    /// Highest position in the batch, plus one.
    pub context_tokens: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

impl TrafficResults {
    pub fn tokens(&self) -> u64 {
        self.phases.iter().map(|p| p.tokens).sum()
    }

    pub fn phase(&self, name: &str) -> Option<&PhaseSum> {
        self.phases.iter().find(|p| p.phase == name)
    }

    /// Sums of the rows that `keep` keeps, by what `key` gives.
    pub fn sums<K: Ord>(
        &self,
        keep: impl Fn(&TrafficRow) -> bool,
        key: impl Fn(&TrafficRow) -> K,
    ) -> BTreeMap<K, Traffic> {
        let mut sums: BTreeMap<K, Traffic> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| keep(row)) {
            sums.entry(key(row))
                .or_default()
                .add(row.accesses, row.bytes);
        }
        sums
    }
}

/// Sums while the log goes by.
#[derive(Debug, Default)]
pub struct Accumulator {
    /// By group and phase.
    rows: Vec<[Traffic; 3]>,
    /// By time group and phase: executions and nanos.
    times: Vec<[(u64, u64); 3]>,
    phases: [PhaseSum; 3],
    kv_growth: Timeline<KvPoint>,
    /// Bytes of the KV cache that each template reads and writes, once known.
    kv_fixed: Vec<Option<(u64, u64)>>,
    tokens: u64,
    flagged: u64,
}

impl Accumulator {
    pub fn push(&mut self, view: &View) {
        let phase = phase_index(view.evaluation.phase);
        self.rows
            .resize(view.catalog.groups.len(), Default::default());
        for (varying, traffic) in view.layout.varying.iter().zip(&view.scratch.traffic) {
            self.rows[varying.group as usize][phase].add(traffic.accesses, traffic.bytes);
        }
        let sum = &mut self.phases[phase];
        sum.evaluations += 1;
        sum.tokens += view.tokens.len() as u64;
        sum.nanos += view
            .evaluation
            .end_nanos
            .saturating_sub(view.evaluation.begin_nanos);
        self.tokens += view.tokens.len() as u64;
        self.flagged += u64::from(view.evaluation.flags & !flags::ABORTED != 0);
        self.push_kv(view);
    }

    fn push_kv(&mut self, view: &View) {
        let number = view.template_number as usize;
        if self.kv_fixed.len() <= number {
            self.kv_fixed.resize(number + 1, None);
        }
        let is_read = |group: u32| view.catalog.groups[group as usize].direction == "read";
        let is_kv = |group: u32| view.catalog.groups[group as usize].kind == TensorKind::KvCache;
        let sum_fixed = |is_executed: &dyn Fn(u32) -> bool| {
            let fixed = view.layout.fixed.iter();
            let mut sums = (0, 0);
            for access in fixed.filter(|f| is_kv(f.group) && is_executed(f.step)) {
                *if is_read(access.group) {
                    &mut sums.0
                } else {
                    &mut sums.1
                } += access.bytes;
            }
            sums
        };
        let (mut read_bytes, mut written_bytes) = if view.is_whole {
            *self.kv_fixed[number].get_or_insert_with(|| sum_fixed(&|_| true))
        } else {
            sum_fixed(&|step| view.evaluation.was_executed(step as usize))
        };
        for (varying, traffic) in view.layout.varying.iter().zip(&view.scratch.traffic) {
            if is_kv(varying.group) {
                let sum = if is_read(varying.group) {
                    &mut read_bytes
                } else {
                    &mut written_bytes
                };
                *sum += traffic.bytes;
            }
        }
        let tokens = self.tokens;
        self.kv_growth.push(|| {
            let positions = view
                .evaluation
                .first_of(view.template, CaptureKind::Positions);
            KvPoint {
                eval: view.evaluation.number,
                tokens,
                context_tokens: positions.iter().max().map_or(0, |&p| p.max(-1) as u64 + 1),
                read_bytes,
                written_bytes,
            }
        });
    }

    /// Takes in what a template's evaluations have in common.
    pub fn end_template(
        &mut self,
        catalog: &Catalog,
        layout: &Layout,
        phase: usize,
        counts: &Counts,
    ) {
        self.rows.resize(catalog.groups.len(), Default::default());
        self.times
            .resize(catalog.time_groups.len(), Default::default());
        for fixed in &layout.fixed {
            let times = counts.executions(fixed.step);
            self.rows[fixed.group as usize][phase].add(times, times.saturating_mul(fixed.bytes));
        }
        for (step, &group) in layout.step_groups.iter().enumerate() {
            let (executions, nanos) = &mut self.times[group as usize][phase];
            *executions += counts.executions(step as u32);
            *nanos += counts.nanos[step];
        }
        self.kv_fixed.clear();
    }

    pub fn finish(self, catalog: &Catalog) -> TrafficResults {
        let mut results = TrafficResults {
            kv_growth: self.kv_growth,
            flagged_evaluations: self.flagged,
            ..TrafficResults::default()
        };
        for (group, by_phase) in catalog.groups.iter().zip(&self.rows) {
            for (phase, traffic) in PHASES.iter().zip(by_phase) {
                if traffic.accesses > 0 {
                    results.rows.push(TrafficRow {
                        phase: phase.name().to_owned(),
                        kind: group.kind.name().to_owned(),
                        component: group.part.clone(),
                        role: group.role.clone(),
                        op: group.op.clone(),
                        layer: group.layer,
                        direction: group.direction.to_owned(),
                        accesses: traffic.accesses,
                        bytes: traffic.bytes,
                    });
                }
            }
        }
        results.rows.sort_by(|a, b| row_key(a).cmp(&row_key(b)));
        for (group, by_phase) in catalog.time_groups.iter().zip(&self.times) {
            for (phase, &(executions, nanos)) in PHASES.iter().zip(by_phase) {
                if executions > 0 {
                    results.times.push(TimeRow {
                        phase: phase.name().to_owned(),
                        component: group.part.clone(),
                        op: group.op.clone(),
                        layer: group.layer,
                        executions,
                        nanos,
                    });
                }
            }
        }
        results.times.sort_by(|a, b| time_key(a).cmp(&time_key(b)));
        for (phase, sum) in PHASES.iter().zip(self.phases) {
            if sum.evaluations == 0 {
                continue;
            }
            let name = phase.name();
            let rows = results.rows.iter().filter(|r| r.phase == name);
            let times = results.times.iter().filter(|r| r.phase == name);
            results.phases.push(PhaseSum {
                phase: name.to_owned(),
                steps: times.map(|r| r.executions).sum(),
                accesses: rows.map(|r| r.accesses).sum(),
                ..sum
            });
        }
        results.per_token = per_token(&results);
        results
    }
}

fn row_key(row: &TrafficRow) -> impl Ord + '_ {
    let names = (&row.phase, &row.kind, &row.component, &row.role);
    (names, &row.op, row.layer, &row.direction)
}

fn time_key(row: &TimeRow) -> impl Ord + '_ {
    (&row.phase, &row.component, &row.op, row.layer)
}

fn per_token(results: &TrafficResults) -> Vec<PerToken> {
    let sums = results.sums(
        |_| true,
        |row| (row.phase.clone(), row.kind.clone(), row.direction.clone()),
    );
    let rows = sums.into_iter().map(|((phase, kind, direction), traffic)| {
        let tokens = results.phase(&phase).map_or(0, |p| p.tokens);
        PerToken {
            bytes_per_token: traffic.bytes as f64 / tokens.max(1) as f64,
            phase,
            kind,
            direction,
            bytes: traffic.bytes,
        }
    });
    rows.collect()
}
