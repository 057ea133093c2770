//! Where bytes and time belong: phase, layer, component, op, tensor.

use std::collections::HashMap;

use trace::{
    expand::for_each_access,
    format::Phase,
    read::Definitions,
    template::{Name, Operand, Step, TensorKind},
};

use crate::log::{Executed, Names, Scene};

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bytes read and written, of weights, KV cache, activations and inputs.
    Bytes,
    /// Nanoseconds from the tick before to the tick of a node. A node counts for
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Leaf {
    Tensor(u32),
    /// No weight and no cache: the node itself.
    Node(Name),
}

impl Leaf {
    pub fn of(step: &Step, scene: &Scene) -> Leaf {
        let first = |kind: TensorKind| {
            let tensors = &scene.definitions.tensors;
            let mut accesses = step.accesses.iter();
            let found = accesses.find(|a| tensors[a.tensor as usize].kind == kind)?;
            Some(Leaf::Tensor(found.tensor))
        };
        first(TensorKind::Weight)
            .or_else(|| first(TensorKind::KvCache))
            .unwrap_or(Leaf::Node(step.name))
    }

    /// Component and name.
    fn texts(self, definitions: &Definitions, names: &Names) -> (&'static str, String) {
        match self {
            Leaf::Tensor(tensor) => {
                let text = names.tensor(tensor);
                (text.component(), text.name.clone())
            }
            Leaf::Node(name) => (TensorKind::Activation.name(), definitions.name(name)),
        }
    }
}

/// Frames of a step, by what it is mainly about.
pub(crate) fn frames_of_step(executed: &Executed, scene: &Scene) -> Frames {
    let leaf = Leaf::of(executed.step, scene);
    let (component, tensor) = leaf.texts(scene.definitions, scene.names);
    Frames {
        phase: scene.evaluation.phase.name(),
        layer: executed.step.layer,
        component,
        op: scene.definitions.text(executed.step.op),
        tensor,
    }
}

/// Numbers instead of texts while a stream is read: texts are made once a stack,
/// not once an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    phase: Phase,
    layer: Option<u32>,
    op: u32,
    leaf: Leaf,
}

/// Sums of one stream.
#[derive(Default)]
pub(crate) struct Sums {
    by_key: HashMap<Key, u64>,
}

impl Sums {
    pub fn add(&mut self, scene: &Scene, measure: Measure) {
        for executed in scene.steps() {
            let step = executed.step;
            let key = |leaf| Key {
                phase: scene.evaluation.phase,
                layer: step.layer,
                op: step.op,
                leaf,
            };
            match measure {
                Measure::Time => {
                    *self.by_key.entry(key(Leaf::of(step, scene))).or_default() += executed.nanos();
                }
                Measure::Bytes => {
                    // Slices of experts and rows come one after the other: look
                    // a tensor up when it changes.
                    let mut current: Option<((u32, Operand), u64)> = None;
                    let by_key = &mut self.by_key;
                    let mut flush = |current: Option<((u32, Operand), u64)>| {
                        if let Some(((tensor, _), bytes)) = current {
                            *by_key.entry(key(Leaf::Tensor(tensor))).or_default() += bytes;
                        }
                    };
                    for_each_access(
                        scene.template,
                        scene.evaluation,
                        executed.number,
                        |access| {
                            let operand = (access.def.tensor, access.def.operand);
                            let bytes = access.region.bytes();
                            match &mut current {
                                Some((same, sum)) if *same == operand => *sum += bytes,
                                other => flush(other.replace((operand, bytes))),
                            }
                        },
                    );
                    flush(current);
                }
            }
        }
    }

    /// The sums with their texts, in no order.
    pub fn into_frames(
        self,
        definitions: &Definitions,
        names: &Names,
    ) -> impl Iterator<Item = (Frames, u64)> {
        self.by_key.into_iter().map(move |(key, sum)| {
            let (component, tensor) = key.leaf.texts(definitions, names);
            let frames = Frames {
                phase: key.phase.name(),
                layer: key.layer,
                component,
                op: definitions.text(key.op),
                tensor,
            };
            (frames, sum)
        })
    }
}
