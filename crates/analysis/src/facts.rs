//! Every fact about a run, from one pass over its log.
//!
//! ```text
//! let mut facts = facts::Accumulator::new(options);
//! for each stream { for each evaluation { facts.push(&definitions, &evaluation)? } facts.end_stream() }
//! let facts = facts.finish(&model);
//! ```

use serde::{Deserialize, Serialize};
use trace::read::{Definitions, Evaluation};

use crate::{
    determinism::{self, DeterminismResults},
    error::AnalysisError,
    experts::{self, ExpertOptions, ExpertResults},
    heads::{self, HeadLayout, HeadRange, HeadResults},
    hot::{self, HotResults, ModelTensor, Thresholds},
    pass::Pass,
    sequential::{self, DEFAULT_GAP_BYTES, SequentialResults},
    traffic::{self, TrafficResults},
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
    pub heads: HeadLayout,
}

impl From<&gguf::Model> for Model {
    fn from(model: &gguf::Model) -> Model {
        let mut facts = Model::default();
        for tensor in model.tensors() {
            facts.tensors.push(ModelTensor {
                name: tensor.name.to_string(),
                size_bytes: tensor.size_bytes,
            });
            let Some(layout) = gguf::heads::HeadLayout::of(tensor, model.hyper()) else {
                continue;
            };
            let ranges = layout.ranges(tensor).map(|range| HeadRange {
                tensor: tensor.name.to_string(),
                of: range.of.to_owned(),
                head: range.head,
                offset: range.file_offset - tensor.file_offset,
                run_bytes: range.run_bytes,
                stride_bytes: range.stride_bytes,
                run_count: range.run_count,
            });
            facts.heads.ranges.extend(ranges);
        }
        let layers = u32::try_from(model.hyper().layer_count).unwrap_or(0);
        let kv_heads = (0..layers).map(|layer| (layer, model.hyper().head_count_kv(layer)));
        facts.heads.kv_heads = kv_heads.filter(|&(_, heads)| heads > 0).collect();
        facts
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
}

#[derive(Debug)]
pub struct Accumulator {
    options: Options,
    pass: Pass,
    traffic: traffic::Accumulator,
    hot: hot::Accumulator,
    sequential: sequential::Accumulator,
    determinism: determinism::Accumulator,
    working_set: working_set::Accumulator,
    heads: heads::Accumulator,
    experts: experts::Accumulator,
}

impl Accumulator {
    pub fn new(options: Options) -> Accumulator {
        Accumulator {
            pass: Pass::default(),
            traffic: traffic::Accumulator::default(),
            hot: hot::Accumulator::default(),
            sequential: sequential::Accumulator::new(options.gap_bytes),
            determinism: determinism::Accumulator::default(),
            working_set: working_set::Accumulator::new(&options.window_evaluations),
            heads: heads::Accumulator::default(),
            experts: experts::Accumulator::new(options.experts.clone()),
            options,
        }
    }

    /// Takes in one evaluation of the stream at hand, whose definitions these are.
    pub fn push(
        &mut self,
        definitions: &Definitions,
        evaluation: &Evaluation,
    ) -> Result<(), AnalysisError> {
        self.pass.push(definitions, evaluation, |view| {
            self.traffic.push(view);
            self.hot.push(view);
            self.sequential.push(view);
            self.determinism.push(view);
            self.working_set.push(view);
            self.heads.push(view);
            self.experts.push(view);
        })
    }

    /// Before the first evaluation of the next stream.
    pub fn end_stream(&mut self) {
        self.pass.end_stream(|catalog, layout, phase, counts| {
            self.traffic.end_template(catalog, layout, phase, counts);
            self.hot.end_template(catalog, layout, phase, counts);
            self.heads.end_template(catalog, layout, counts);
        });
        self.sequential.end_stream();
        self.determinism.end_stream();
        self.working_set.end_stream();
    }

    pub fn finish(mut self, model: &Model) -> Facts {
        self.end_stream();
        let catalog = &self.pass.catalog;
        let traffic = self.traffic.finish(catalog);
        Facts {
            hot: self
                .hot
                .finish(catalog, &traffic, &model.tensors, self.options.thresholds),
            sequential: self.sequential.finish(),
            determinism: self.determinism.finish(),
            working_set: self.working_set.finish(),
            heads: self.heads.finish(catalog, &model.heads),
            experts: self.experts.finish(),
            traffic,
        }
    }
}
