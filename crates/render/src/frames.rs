//! Where bytes and time belong: phase, layer, component, op, tensor.

use std::{collections::HashMap, sync::Arc};

use reader::{Executed, Prepared, PreparedStep, Seen, Tensors};
use trace::{format::Phase, template::TensorKind};

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bytes read and written, of weights, KV cache, activations and inputs.
    Bytes,
    /// Nanoseconds from the tick before to the tick of a node; on a device what its kernels
    /// had for themselves, where that was measured, and nothing otherwise. A node counts for
    /// the weight that it reads; without one for the KV cache; without either
    /// under its own name.
    Time,
}

impl Measure {
    pub fn unit(self) -> &'static str {
        match self {
            Measure::Bytes => "bytes",
            Measure::Time => "nanoseconds",
        }
    }
}

/// A stack of five frames, outermost first. Ordered as a model is: by phase, then
/// layer, what belongs to no layer first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frames {
    pub phase: &'static str,
    pub layer: Option<u32>,
    pub component: &'static str,
    pub op: String,
    pub tensor: String,
}

impl Frames {
    pub const DEPTH: usize = 5;

    pub fn texts(&self) -> [String; Frames::DEPTH] {
        let layer = match self.layer {
            Some(layer) => format!("layer {layer}"),
            None => "no layer".to_owned(),
        };
        [
            self.phase.to_owned(),
            layer,
            self.component.to_owned(),
            self.op.clone(),
            self.tensor.clone(),
        ]
    }
}

/// The tensor that a step's time is put down to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Leaf {
    /// By its number in the run.
    Tensor(u32),
    /// No weight and no cache: the node itself.
    Node(Arc<str>),
}

impl Leaf {
    fn of(step: &PreparedStep, prepared: &Prepared) -> Leaf {
        let accesses = &prepared.accesses[step.first..step.end];
        let first = |kind: TensorKind| {
            let found = accesses.iter().find(|a| a.kind == kind)?;
            Some(Leaf::Tensor(found.tensor))
        };
        first(TensorKind::Weight)
            .or_else(|| first(TensorKind::KvCache))
            .unwrap_or_else(|| Leaf::Node(step.name.clone()))
    }

    /// Component in an operation, and name.
    fn texts(&self, tensors: &Tensors, op: &str) -> (&'static str, String) {
        match self {
            Leaf::Tensor(number) => {
                let tensor = &tensors.all()[*number as usize];
                (tensor.part_in(op), tensor.name.clone())
            }
            Leaf::Node(name) => (TensorKind::Activation.name(), name.to_string()),
        }
    }
}

/// Frames of a step, by what it is mainly about.
pub(crate) fn frames_of_step(executed: &Executed, seen: &Seen) -> Frames {
    let leaf = Leaf::of(executed.step, seen.prepared);
    let (component, tensor) = leaf.texts(seen.tensors, &executed.step.op);
    Frames {
        phase: seen.evaluation.phase.name(),
        layer: executed.step.layer,
        component,
        op: executed.step.op.to_string(),
        tensor,
    }
}

/// Numbers instead of texts while a log is read: texts are made once a stack, not once an
/// access.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    phase: Phase,
    layer: Option<u32>,
    op: Arc<str>,
    leaf: Leaf,
}

/// Sums of a log.
#[derive(Default)]
pub(crate) struct Sums {
    by_key: HashMap<Key, u64>,
}

impl Sums {
    pub fn add(&mut self, seen: &Seen, measure: Measure) {
        for executed in seen.steps() {
            let step = executed.step;
            let key = |leaf| Key {
                phase: seen.evaluation.phase,
                layer: step.layer,
                op: step.op.clone(),
                leaf,
            };
            match measure {
                Measure::Time if executed.times.is_none() => {}
                Measure::Time => {
                    let leaf = Leaf::of(step, seen.prepared);
                    *self.by_key.entry(key(leaf)).or_default() += executed.nanos();
                }
                Measure::Bytes => {
                    // Slices of experts and rows come one after the other: look
                    // a tensor up when it changes.
                    let mut current: Option<(usize, u32, u64)> = None;
                    let by_key = &mut self.by_key;
                    let mut flush = |current: Option<(usize, u32, u64)>| {
                        if let Some((_, tensor, bytes)) = current {
                            *by_key.entry(key(Leaf::Tensor(tensor))).or_default() += bytes;
                        }
                    };
                    seen.for_each_access(executed.number, |access| {
                        let bytes = access.access.region.bytes();
                        match &mut current {
                            Some((at, _, sum)) if *at == access.at => *sum += bytes,
                            other => {
                                let next = (access.at, access.prepared.tensor, bytes);
                                flush(other.replace(next));
                            }
                        }
                    });
                    flush(current);
                }
            }
        }
    }

    /// The sums with their texts, in no order.
    pub fn into_frames(self, tensors: &Tensors) -> impl Iterator<Item = (Frames, u64)> {
        self.by_key.into_iter().map(move |(key, sum)| {
            let (component, tensor) = key.leaf.texts(tensors, &key.op);
            let frames = Frames {
                phase: key.phase.name(),
                layer: key.layer,
                component,
                op: key.op.to_string(),
                tensor,
            };
            (frames, sum)
        })
    }
}
