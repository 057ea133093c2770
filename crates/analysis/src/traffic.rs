//! Accesses, bytes and time: by kind, component, role, op, layer, phase, and per
//! token; how the KV cache grows.

use std::{collections::BTreeMap, sync::Arc};

use reader::{
    Prepared, PreparedStep, Seen, Tally, Tensor, Tensors, Traffic, device::PROCESSOR,
    rows::direction_name,
};
use serde::{Deserialize, Serialize};
use trace::{
    format::Phase,
    template::{Direction, TensorKind},
};

use crate::timeline::Timeline;

/// In the order of their numbers, as which they index sums.
pub const PHASES: [Phase; 3] = [Phase::Unknown, Phase::Prompt, Phase::Generate];

/// Everything summed up; other results are sums of `rows` and `times`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficResults {
    pub phases: Vec<PhaseSum>,
    /// Sorted by all their names.
    pub rows: Vec<TrafficRow>,
    pub times: Vec<TimeRow>,
    pub per_token: Vec<PerToken>,
    /// By device and phase, the processor among them; empty if only the processor computed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceSum>,
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
    /// In which they were computed: on a device what was measured there.
    pub nanos: u64,
    /// Evaluations of devices that did not say how long they took: `nanos` lacks them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub untimed_evaluations: u64,
    /// Executed nodes.
    pub steps: u64,
    pub accesses: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What one device computed in one phase. `timed_nanos` and `timed_bytes` are of the same
/// steps: their quotient is a bandwidth, that of others is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSum {
    pub device: String,
    pub phase: String,
    pub evaluations: u64,
    /// Those of them that nobody timed.
    pub untimed_evaluations: u64,
    /// Of the others.
    pub nanos: u64,
    pub steps: u64,
    pub accesses: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    /// Steps in evaluations whose steps were timed, their time, and all bytes that they touched.
    pub timed_steps: u64,
    pub timed_nanos: u64,
    pub timed_bytes: u64,
}

impl DeviceSum {
    fn add_access(&mut self, kind: TensorKind, direction: Direction, traffic: Traffic) {
        let bytes = traffic.bytes;
        let of_direction = match direction {
            Direction::Read => &mut self.read_bytes,
            Direction::Write => &mut self.written_bytes,
        };
        *of_direction = of_direction.saturating_add(bytes);
        match kind {
            TensorKind::Weight => self.weight_bytes = self.weight_bytes.saturating_add(bytes),
            TensorKind::KvCache => self.kv_bytes = self.kv_bytes.saturating_add(bytes),
            TensorKind::Activation | TensorKind::Input => {}
        }
        self.accesses = self.accesses.saturating_add(traffic.accesses);
    }
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

/// Names of a [`TrafficRow`], in the order of its fields.
type RowKey = (
    [&'static str; 3],
    Option<String>,
    Arc<str>,
    Option<u32>,
    &'static str,
);

/// Names of a [`TimeRow`].
type TimeKey = ([&'static str; 2], Arc<str>, Option<u32>);

/// Sums while the log goes by.
#[derive(Debug, Default)]
pub struct Accumulator {
    rows: BTreeMap<RowKey, Traffic>,
    /// Executions and nanos.
    times: BTreeMap<TimeKey, (u64, u64)>,
    phases: [PhaseSum; 3],
    devices: BTreeMap<(String, &'static str), DeviceSum>,
    kv_growth: Timeline<KvPoint>,
    /// Of the pass at hand, in its stream: more splits may follow.
    pass: Option<(u32, KvPoint)>,
    flagged: u64,
}

impl Accumulator {
    pub fn push(&mut self, seen: &Seen) {
        let evaluation = seen.evaluation;
        let sum = &mut self.phases[evaluation.phase as usize];
        sum.evaluations += 1;
        sum.tokens += seen.tokens();
        let nanos = seen.computed_nanos();
        sum.nanos += nanos.unwrap_or(0);
        sum.untimed_evaluations += u64::from(nanos.is_none());
        let of_device = self.device(seen.device_name(), evaluation.phase);
        of_device.evaluations += 1;
        of_device.nanos += nanos.unwrap_or(0);
        of_device.untimed_evaluations += u64::from(nanos.is_none());
        self.flagged += u64::from(seen.is_doubtful());
        if seen.definitions.devices.is_empty() {
            self.kv_growth.push(|| kv_point(seen));
        } else {
            self.add_split(seen);
        }
    }

    /// Several devices compute a graph in splits, one evaluation each: the tokens are in the
    /// first of them.
    fn add_split(&mut self, seen: &Seen) {
        let point = kv_point(seen);
        match &mut self.pass {
            Some((stream, pass)) if *stream == seen.stream && seen.tokens() == 0 => {
                pass.context_tokens = pass.context_tokens.max(point.context_tokens);
                pass.read_bytes = pass.read_bytes.saturating_add(point.read_bytes);
                pass.written_bytes = pass.written_bytes.saturating_add(point.written_bytes);
            }
            _ => {
                let before = self.pass.replace((seen.stream, point));
                if let Some((_, before)) = before {
                    self.kv_growth.push(|| before);
                }
            }
        }
    }

    fn device(&mut self, name: &str, phase: Phase) -> &mut DeviceSum {
        let key = (name.to_owned(), phase.name());
        self.devices.entry(key).or_default()
    }

    /// Takes in what a template's evaluations add up to.
    pub fn end_template(
        &mut self,
        prepared: &Prepared,
        tensors: &Tensors,
        phase: Phase,
        tally: &Tally,
    ) {
        let name = prepared.device.as_ref().map_or(PROCESSOR, |d| &d.name);
        let mut of_device = std::mem::take(self.device(name, phase));
        let phase_number = phase;
        let phase = phase.name();
        for (step, counted) in prepared.steps.iter().zip(&tally.steps) {
            let bytes_before = of_device.read_bytes.saturating_add(of_device.written_bytes);
            let tensor = |at: usize| &tensors.all()[prepared.accesses[at].tensor as usize];
            for at in step.first..step.end {
                let traffic = tally.of_access(prepared, at);
                if traffic.accesses > 0 {
                    let (access, tensor) = (&prepared.accesses[at], tensor(at));
                    let key = (
                        [phase, tensor.kind.name(), tensor.part_in(&step.op)],
                        tensor.role().map(str::to_owned),
                        step.op.clone(),
                        step.layer,
                        direction_name(access.direction),
                    );
                    let sum = self.rows.entry(key).or_default();
                    sum.add(traffic.accesses, traffic.bytes);
                    of_device.add_access(access.kind, access.direction, traffic);
                }
            }
            if counted.executions > 0 {
                let part = works_on(prepared, step, tensors);
                let part = part.map_or(TensorKind::Activation.name(), |t| t.part_in(&step.op));
                let key = ([phase, part], step.op.clone(), step.layer);
                let (executions, nanos) = self.times.entry(key).or_default();
                *executions += counted.executions;
                *nanos = nanos.saturating_add(counted.nanos);
            }
            of_device.steps += counted.executions;
            if tally.is_timed {
                let bytes = of_device.read_bytes.saturating_add(of_device.written_bytes);
                of_device.timed_steps += counted.executions;
                of_device.timed_nanos = of_device.timed_nanos.saturating_add(counted.nanos);
                of_device.timed_bytes += bytes - bytes_before;
            }
        }
        *self.device(name, phase_number) = of_device;
    }

    pub fn finish(mut self) -> TrafficResults {
        if let Some((_, last)) = self.pass.take() {
            self.kv_growth.push(|| last);
        }
        let rows = self.rows.into_iter().map(
            |(([phase, kind, component], role, op, layer, direction), sum)| TrafficRow {
                phase: phase.to_owned(),
                kind: kind.to_owned(),
                component: component.to_owned(),
                role,
                op: op.to_string(),
                layer,
                direction: direction.to_owned(),
                accesses: sum.accesses,
                bytes: sum.bytes,
            },
        );
        let times =
            self.times
                .into_iter()
                .map(
                    |(([phase, component], op, layer), (executions, nanos))| TimeRow {
                        phase: phase.to_owned(),
                        component: component.to_owned(),
                        op: op.to_string(),
                        layer,
                        executions,
                        nanos,
                    },
                );
        let mut results = TrafficResults {
            rows: rows.collect(),
            times: times.collect(),
            kv_growth: self.kv_growth,
            flagged_evaluations: self.flagged,
            ..TrafficResults::default()
        };
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
        if self.devices.keys().any(|(device, _)| device != PROCESSOR) {
            let devices = self.devices.into_iter();
            let named = devices.map(|((device, phase), sum)| DeviceSum {
                device,
                phase: phase.to_owned(),
                ..sum
            });
            results.devices = named.collect();
        }
        results
    }
}

fn kv_point(seen: &Seen) -> KvPoint {
    let mut bits = Vec::new();
    let mut point = KvPoint {
        eval: seen.eval,
        tokens: seen.first_token + seen.tokens(),
        context_tokens: (seen.positions().iter().max())
            .map_or(0, |&p| p.max(0) as u64 + u64::from(p >= 0)),
        read_bytes: 0,
        written_bytes: 0,
    };
    for executed in seen.steps().filter(|e| e.step.sums.kv_bytes > 0) {
        for at in executed.step.first..executed.step.end {
            let access = &seen.prepared.accesses[at];
            if access.kind == TensorKind::KvCache {
                let sum = match access.direction {
                    Direction::Read => &mut point.read_bytes,
                    Direction::Write => &mut point.written_bytes,
                };
                *sum = sum.saturating_add(seen.traffic_of(at, &mut bits).bytes);
            }
        }
    }
    point
}

/// The tensor that a step is about: a weight before the KV cache before anything else, which is
/// `None`.
pub(crate) fn works_on<'a>(
    prepared: &Prepared,
    step: &PreparedStep,
    tensors: &'a Tensors,
) -> Option<&'a Tensor> {
    let accesses = &prepared.accesses[step.first..step.end];
    let of = |kind| accesses.iter().find(|access| access.kind == kind);
    let access = of(TensorKind::Weight).or_else(|| of(TensorKind::KvCache))?;
    Some(&tensors.all()[access.tensor as usize])
}

/// `-` for what belongs to none.
pub(crate) fn layer_name(layer: Option<u32>) -> String {
    layer.map_or_else(|| "-".to_owned(), |layer| layer.to_string())
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
