//! Every fact about a run, from one pass over its log.

use std::collections::BTreeMap;

use gguf::heads::{HeadLayout, HeadRange};
use reader::{SeenCopy, Stream, Tallies, Tensors};
use serde::{Deserialize, Serialize};

use crate::{
    determinism::{self, DeterminismResults},
    devices::{self, DeviceResults},
    experts::{self, ExpertOptions, ExpertResults},
    heads::{self, HeadResults},
    hot::{self, HotResults, Thresholds},
    pass::{Pass, View},
    roofline::classes::{self, ClassRow},
    sequential::{self, DEFAULT_GAP_BYTES, SequentialResults},
    sources::{self, SourceRow},
    traffic::{self, TrafficResults},
    units::Units,
    working_set::{self, DEFAULT_WINDOWS, WorkingSetResults},
};

/// What can be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub thresholds: Thresholds,
    pub gap_bytes: u64,
    /// Lengths of the windows of the working set, in evaluations.
    pub window_evaluations: Vec<u64>,
    pub experts: ExpertOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            thresholds: Thresholds::default(),
            gap_bytes: DEFAULT_GAP_BYTES,
            window_evaluations: DEFAULT_WINDOWS.to_vec(),
            experts: ExpertOptions::default(),
        }
    }
}

/// What the model's files say, as far as the caller knows it; may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub tensors: Vec<ModelTensor>,
    /// Heads of K and V, by layer.
    pub kv_heads: BTreeMap<u32, u64>,
}

/// A tensor of the model's files, used or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelTensor {
    pub name: String,
    pub size_bytes: u64,
    pub file_offset: u64,
    /// Of an attention weight.
    pub heads: Vec<HeadRange>,
}

impl From<&gguf::Model> for Model {
    fn from(model: &gguf::Model) -> Model {
        let tensors = model.tensors().iter().map(|tensor| {
            let layout = HeadLayout::of(tensor, model.hyper());
            ModelTensor {
                name: tensor.name.to_string(),
                size_bytes: tensor.size_bytes,
                file_offset: tensor.file_offset,
                heads: layout.map_or_else(Vec::new, |layout| layout.ranges(tensor).collect()),
            }
        });
        let layers = u32::try_from(model.hyper().layer_count).unwrap_or(0);
        let kv_heads = (0..layers).map(|layer| (layer, model.hyper().head_count_kv(layer)));
        Model {
            tensors: tensors.collect(),
            kv_heads: kv_heads.filter(|&(_, heads)| heads > 0).collect(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub traffic: TrafficResults,
    pub hot: HotResults,
    pub sequential: SequentialResults,
    pub determinism: DeterminismResults,
    pub working_set: WorkingSetResults,
    pub heads: HeadResults,
    pub experts: ExpertResults,
    /// Empty for a run whose weights nobody fed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceRow>,
    /// Operations, bytes and time by what nodes do, those that took longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassRow>,
    /// Empty for a run in which only the processor computed.
    #[serde(default, skip_serializing_if = "DeviceResults::is_empty")]
    pub devices: DeviceResults,
}

#[derive(Debug)]
pub struct Accumulator {
    options: Options,
    tallies: Tallies,
    traffic: traffic::Accumulator,
    hot: hot::Accumulator,
    sequential: sequential::Accumulator,
    determinism: determinism::Accumulator,
    working_set: working_set::Accumulator,
    heads: heads::Accumulator,
    experts: experts::Accumulator,
    sources: sources::Accumulator,
    classes: classes::Accumulator,
    devices: devices::Accumulator,
}

impl Accumulator {
    pub fn new(options: Options) -> Accumulator {
        Accumulator {
            tallies: Tallies::default(),
            traffic: traffic::Accumulator::default(),
            hot: hot::Accumulator::default(),
            sequential: sequential::Accumulator::new(options.gap_bytes),
            determinism: determinism::Accumulator::default(),
            working_set: working_set::Accumulator::new(&options.window_evaluations),
            heads: heads::Accumulator::default(),
            experts: experts::Accumulator::new(options.experts.clone()),
            sources: sources::Accumulator::default(),
            classes: classes::Accumulator::default(),
            devices: devices::Accumulator::default(),
            options,
        }
    }

    /// Takes in one evaluation.
    pub fn push(&mut self, view: &View) {
        let tally = self.tallies.count(view.seen);
        for &(at, traffic) in view.indexed {
            tally.add(at, traffic);
        }
        self.traffic.push(view.seen);
        self.hot.push(view);
        self.sequential.push(view);
        self.determinism.push(view);
        self.working_set.push(view);
        self.experts.push(view.seen);
        self.sources.push(view.seen);
        self.classes.push(view.seen);
        self.devices.push(view.seen);
    }

    pub fn copy(&mut self, copy: &SeenCopy) {
        self.devices.copy(copy);
    }

    /// Takes in what the evaluations of a stream have in common; `pass` gave their views.
    pub fn end_stream(&mut self, pass: &Pass, stream: &Stream) {
        self.tallies
            .end_stream(stream, |template, prepared, phase, tally| {
                self.traffic
                    .end_template(prepared, stream.tensors, phase, tally);
                self.hot.end_template(pass, template, phase, tally);
                self.heads.end_template(prepared, stream.tensors, tally);
                self.classes
                    .end_template(template, prepared, stream.tensors, phase, tally);
            });
        self.sequential.end_stream();
        self.determinism.end_stream();
        self.devices.end_stream();
    }

    /// After the last stream has ended.
    pub fn finish(self, units: &Units, tensors: &Tensors, model: &Model) -> Facts {
        let traffic = self.traffic.finish();
        let thresholds = self.options.thresholds;
        Facts {
            hot: self.hot.finish(units, &traffic, &model.tensors, thresholds),
            sequential: self.sequential.finish(),
            determinism: self.determinism.finish(),
            working_set: self.working_set.finish(),
            heads: self.heads.finish(tensors, model),
            experts: self.experts.finish(),
            sources: self.sources.finish(),
            classes: self.classes.finish(),
            devices: self.devices.finish(tensors),
            traffic,
        }
    }
}
