//! Operations, bytes and time of the nodes of a run, added up by what they do.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use reader::{Prepared, Seen, Tally, Tensors};
use serde::{Deserialize, Serialize};
use trace::{format::Phase, template::TensorKind};

use super::flops::{self, Flops};
use crate::traffic::works_on;

/// Nodes of one op with weights of one type for one part of the model, in one phase, with
/// about as many tokens at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRow {
    pub phase: String,
    pub op: String,
    /// Type of the weight that the nodes read, or of the KV cache; `None` where they touch
    /// neither.
    pub weight_type: Option<String>,
    /// Of that weight; else `kv_cache` or `activation`.
    pub component: String,
    /// That computed them; where that changed, the most.
    pub threads: u32,
    /// Tokens in an evaluation: the fewest and the most.
    pub batch_from: u64,
    pub batch_to: u64,
    pub executions: u64,
    pub nanos: u64,
    /// `None` where some of the nodes are of an op that is not counted.
    pub flops: Option<u64>,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    /// Activations and inputs, read and written.
    pub other_bytes: u64,
}

impl ClassRow {
    pub fn bytes(&self) -> u64 {
        let bytes = [self.weight_bytes, self.kv_bytes, self.other_bytes];
        bytes.into_iter().fold(0, u64::saturating_add)
    }

    /// `MUL_MAT q4_0 ffn`.
    pub fn name(&self) -> String {
        class_name(&self.op, self.weight_type.as_deref(), &self.component)
    }

    fn add(&mut self, other: &ClassRow) {
        self.threads = self.threads.max(other.threads);
        self.batch_from = self.batch_from.min(other.batch_from);
        self.batch_to = self.batch_to.max(other.batch_to);
        self.flops = match (self.flops, other.flops) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            _ => None,
        };
        for (sum, more) in [
            (&mut self.executions, other.executions),
            (&mut self.nanos, other.nanos),
            (&mut self.weight_bytes, other.weight_bytes),
            (&mut self.kv_bytes, other.kv_bytes),
            (&mut self.other_bytes, other.other_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

pub(crate) fn class_name(op: &str, weight_type: Option<&str>, component: &str) -> String {
    match weight_type {
        Some(ty) => format!("{op} {ty} {component}"),
        None => format!("{op} {component}"),
    }
}

/// Phase, op, type, component, and tokens at once, up to the next power of two.
type Key = (
    &'static str,
    Arc<str>,
    Option<&'static str>,
    &'static str,
    u64,
);

/// Sums while the log goes by.
#[derive(Debug, Default)]
pub struct Accumulator {
    rows: BTreeMap<Key, ClassRow>,
    /// Of the stream at hand, by template.
    evaluations: HashMap<(u32, Phase), Evaluations>,
}

/// What the evaluations of one template in one phase have in common.
#[derive(Debug, Default)]
struct Evaluations {
    count: u64,
    tokens: u64,
    threads: u32,
    /// By step.
    flops: Vec<Flops>,
    /// For each extent of a cache: pairs of a token and a cell that it sees, of all of them.
    pairs: Vec<(u64, u64)>,
}

impl Evaluations {
    fn new(seen: &Seen) -> Evaluations {
        let (prepared, tensors, tokens) = (seen.prepared, seen.tensors, seen.tokens());
        let steps = prepared.steps.iter();
        let flops: Vec<Flops> = steps
            .map(|step| flops::of(prepared, step, tensors, tokens))
            .collect();
        let mut pairs = Vec::new();
        for flops in &flops {
            if let Flops::PerPair { extent, .. } = flops
                && !pairs.iter().any(|(known, _)| known == extent)
            {
                pairs.push((*extent, 0));
            }
        }
        Evaluations {
            tokens,
            flops,
            pairs,
            ..Evaluations::default()
        }
    }

    fn add(&mut self, seen: &Seen) {
        self.count += 1;
        self.threads = self.threads.max(u32::from(seen.evaluation.threads));
        // With several positions a token the first of each come first.
        let positions = seen.positions();
        let positions = &positions[..positions.len().min(self.tokens as usize)];
        for (extent, pairs) in &mut self.pairs {
            let extent = *extent;
            // A token sees the cells of those before it and its own.
            let sees = |&position: &i64| match u64::try_from(position) {
                Ok(before) => before.saturating_add(1).min(extent),
                Err(_) => 0,
            };
            let known = positions.iter().map(sees);
            let unknown = self.tokens - positions.len() as u64;
            let all = known.fold(unknown.saturating_mul(extent), u64::saturating_add);
            *pairs = pairs.saturating_add(all);
        }
    }

    /// Of step `number`, executed so often.
    fn flops(&self, number: usize, executions: u64) -> Option<u64> {
        match self.flops[number] {
            Flops::Fixed(each) => Some(each.saturating_mul(executions)),
            Flops::PerPair {
                each,
                extent,
                queries,
            } => {
                let pairs = self.pairs.iter().find(|(known, _)| *known == extent)?.1;
                let all = u128::from(each) * u128::from(pairs);
                // Evaluations that were cut off, and tokens that do not attend.
                let part = all.saturating_mul(executions.into()) / u128::from(self.count.max(1));
                let part = part.saturating_mul(queries.into()) / u128::from(self.tokens.max(1));
                Some(u64::try_from(part).unwrap_or(u64::MAX))
            }
            Flops::Unknown => None,
        }
    }
}

impl Accumulator {
    pub fn push(&mut self, seen: &Seen) {
        // The ceilings are those of the processor.
        if seen.is_on_device() {
            return;
        }
        let key = (seen.template, seen.evaluation.phase);
        let of = self.evaluations.entry(key);
        of.or_insert_with(|| Evaluations::new(seen)).add(seen);
    }

    /// Takes in what a template's evaluations add up to.
    pub fn end_template(
        &mut self,
        template: u32,
        prepared: &Prepared,
        tensors: &Tensors,
        phase: Phase,
        tally: &Tally,
    ) {
        let Some(evaluations) = self.evaluations.remove(&(template, phase)) else {
            return;
        };
        let batch = evaluations.tokens;
        let bucket = batch.checked_next_power_of_two().unwrap_or(u64::MAX);
        for (number, (step, counted)) in prepared.steps.iter().zip(&tally.steps).enumerate() {
            if counted.executions == 0 {
                continue;
            }
            let on = works_on(prepared, step, tensors);
            let component = on.map_or(TensorKind::Activation.name(), |t| t.part_in(&step.op));
            let mut row = ClassRow {
                phase: phase.name().to_owned(),
                op: step.op.to_string(),
                weight_type: on.map(|t| t.type_name().to_owned()),
                component: component.to_owned(),
                threads: evaluations.threads,
                batch_from: batch,
                batch_to: batch,
                executions: counted.executions,
                nanos: counted.nanos,
                flops: evaluations.flops(number, counted.executions),
                ..ClassRow::default()
            };
            for at in step.first..step.end {
                let bytes = tally.of_access(prepared, at).bytes;
                let sum = match prepared.accesses[at].kind {
                    TensorKind::Weight => &mut row.weight_bytes,
                    TensorKind::KvCache => &mut row.kv_bytes,
                    TensorKind::Activation | TensorKind::Input => &mut row.other_bytes,
                };
                *sum = sum.saturating_add(bytes);
            }
            let ty = on.map(|t| t.type_name());
            let key = (phase.name(), step.op.clone(), ty, component, bucket);
            match self.rows.get_mut(&key) {
                Some(sum) => sum.add(&row),
                None => {
                    self.rows.insert(key, row);
                }
            }
        }
    }

    /// Those that took longest first.
    pub fn finish(self) -> Vec<ClassRow> {
        let mut rows: Vec<ClassRow> = self.rows.into_values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.nanos));
        rows
    }
}
