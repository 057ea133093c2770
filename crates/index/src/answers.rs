//! What the queries answer, as the page gets it: field names are those of the
//! viewer's HTTP API. Times are nanoseconds since the run's first evaluation.

mod lanes;

use serde::Serialize;

pub use lanes::*;

/// Header and values of a grid, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Raster<H> {
    pub header: H,
    pub values: Vec<f32>,
}

/// Everything about a run that no filter changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Info {
    pub name: String,
    pub live: bool,
    /// Grows when a live run grows.
    pub version: u64,
    pub model: ModelInfo,
    pub totals: RunTotals,
    pub phases: Vec<PhaseTotals>,
    /// Ascending; `None`, last, for steps that belong to no layer.
    pub layers: Vec<Option<u32>>,
    pub components: Vec<&'static str>,
    pub ops: Vec<String>,
    /// Most experts of a layer; 0 for a dense model.
    pub experts: u32,
    /// That computed; the processor, called `CPU`, is among them.
    pub devices: Vec<String>,
    /// Weights with a place in the files, ascending by `begin`.
    pub tensors: Vec<TensorInfo>,
    /// Sentences about lost, damaged and partial data.
    pub missing: Vec<String>,
    pub kernel: KernelInfo,
}

/// What was recorded of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct KernelInfo {
    pub faults: bool,
    pub io: bool,
    pub residency: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ModelInfo {
    pub name: Option<String>,
    pub architecture: Option<String>,
    pub size_bytes: u64,
    pub layers: u64,
    pub experts: u64,
    pub experts_used: u64,
    pub files: Vec<FileInfo>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct FileInfo {
    pub name: String,
    pub size_bytes: u64,
    /// Its first byte in the map space: all files end to end.
    pub begin: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RunTotals {
    pub evals: u64,
    pub tokens: u64,
    pub nodes: u64,
    pub accesses: u64,
    pub bytes: u64,
    /// From the first begin to the last end.
    pub duration_nanos: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct PhaseTotals {
    pub phase: &'static str,
    pub evals: u64,
    pub tokens: u64,
    /// Sum over its evaluations.
    pub nanos: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct TensorInfo {
    /// Its number in the tables; `None` for a tensor of the model that the run
    /// never defined.
    pub tensor: Option<u32>,
    pub name: String,
    pub layer: Option<u32>,
    pub component: &'static str,
    pub role: String,
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// In the map space.
    pub begin: u64,
    pub size_bytes: u64,
    /// Experts whose slices it holds; 0 if none.
    pub experts: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct TokenInfo {
    pub token: u64,
    pub eval: u64,
    pub phase: &'static str,
    /// In the vocabulary.
    pub id: i64,
    pub text: Option<String>,
    pub position: Option<i64>,
    pub sequence: Option<u32>,
    pub begin: u64,
    pub end: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Summary {
    pub totals: SummaryTotals,
    pub by_component: Vec<ComponentSum>,
    pub by_op: Vec<OpSum>,
    pub by_layer: Vec<LayerSum>,
    /// All weights touched.
    pub by_tensor: Vec<TensorSum>,
    /// Where weights came from in these evaluations, whatever else the filter says; empty if
    /// nobody fed them.
    pub by_source: Vec<SourceSum>,
}

/// Weights that came from one place, in evaluations of one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SourceSum {
    pub phase: &'static str,
    /// `pinned`, `loaded`, `streamed`, `cache_hit`, `cache_miss` or `page_cache`.
    pub source: &'static str,
    pub accesses: u64,
    pub bytes: u64,
    /// What the computation waited for them.
    pub waited_nanos: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SummaryTotals {
    pub evals: u64,
    /// Of the batches of these evaluations.
    pub tokens: u64,
    pub nodes: u64,
    pub accesses: u64,
    pub bytes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub nanos: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ComponentSum {
    pub component: &'static str,
    pub accesses: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct OpSum {
    pub op: String,
    pub nodes: u64,
    pub nanos: u64,
    pub accesses: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LayerSum {
    pub layer: Option<u32>,
    pub nodes: u64,
    pub nanos: u64,
    pub accesses: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct TensorSum {
    pub tensor: u32,
    pub name: String,
    pub component: &'static str,
    /// Of the tensor's name.
    pub layer: Option<u32>,
    pub size_bytes: u64,
    pub accesses: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct HeatmapHeader {
    pub rows: Vec<HeatmapRow>,
    pub columns: u32,
    /// Token number at each column's left edge, and the end: `columns + 1`.
    pub edges: Vec<u64>,
    pub unit: &'static str,
    pub max: f32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct HeatmapRow {
    pub label: String,
    pub layer: Option<u32>,
    pub tensor: Option<u32>,
    pub expert: Option<u32>,
    /// What neighbouring rows have in common: a layer, or a component.
    pub group: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct OffsetsHeader {
    pub t0: u64,
    pub t1: u64,
    pub o0: u64,
    pub o1: u64,
    pub w: u32,
    pub h: u32,
    pub max: f32,
    /// Reads of weights in the window.
    pub accesses: u64,
    /// Each evaluation is spread evenly over its time: it is too narrow to show more.
    pub even: bool,
    /// Each of them, when there are few.
    pub exact: Option<Vec<ExactAccess>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ExactAccess {
    pub eval: u64,
    pub step: u32,
    /// First token of the evaluation's batch.
    pub token: Option<u64>,
    pub tensor: u32,
    pub expert: Option<u32>,
    pub op: String,
    pub layer: Option<u32>,
    pub begin: u64,
    pub end: u64,
    /// In the map space.
    pub offset: u64,
    pub bytes: u64,
}

/// Nodes one by one, or a grid of lanes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NodesHeader {
    Spans {
        t0: u64,
        t1: u64,
        lanes: Vec<Option<u32>>,
        spans: Vec<NodeSpan>,
    },
    Raster {
        t0: u64,
        t1: u64,
        w: u32,
        /// The layer of each row.
        lanes: Vec<Option<u32>>,
        /// Per cell the op that took most of its time, as an index into
        /// [`Info::ops`]; -1 where nothing ran.
        ops: Vec<i32>,
        nodes: u64,
        /// As in [`OffsetsHeader`].
        even: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct NodeSpan {
    pub eval: u64,
    pub step: u32,
    pub layer: Option<u32>,
    pub op: String,
    pub name: String,
    /// Of the weight that it reads; the kind of what it works on otherwise.
    pub component: &'static str,
    pub begin: u64,
    pub end: u64,
    /// Read and written.
    pub bytes: u64,
    /// First token of the evaluation's batch.
    pub token: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct MapHeader {
    pub cell_bytes: u64,
    pub total_bytes: u64,
    pub max: f32,
    pub metric: &'static str,
    /// Metrics that this crate knows; pages in memory now are the server's.
    pub available: Vec<&'static str>,
    /// Which sample it shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub sampled: Option<SampledAt>,
}

/// A sample of resident pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SampledAt {
    pub nanos: u64,
    pub token: u64,
    /// Of all files.
    pub resident_bytes: u64,
}

/// Major faults, or bytes read, by cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct MarksHeader {
    #[cfg_attr(test, ts(type = "'faults' | 'reads'"))]
    pub of: &'static str,
    pub t0: u64,
    pub t1: u64,
    pub o0: u64,
    pub o1: u64,
    pub w: u32,
    pub h: u32,
    pub max: f32,
    /// Faults, or parts of reads that lie in one tensor, that the window meets.
    pub events: u64,
    /// Faults, or bytes, of those: also what lies beside the window.
    pub amount: u64,
}

/// What was read from the disk, and how often that is the model's size.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Disk {
    pub recorded: KernelInfo,
    /// Of all tensors.
    pub total: DiskSums,
    /// In the model's files, but in no tensor.
    pub unowned: DiskSums,
    /// In no file of the model.
    pub elsewhere: DiskSums,
    /// Ascending, none last.
    pub by_layer: Vec<DiskLayer>,
    /// In the order of the files.
    pub by_tensor: Vec<DiskTensor>,
    pub sizes: Vec<ReadSize>,
    /// Of resident pages.
    pub samples: u64,
    pub sampled: Option<SampledAt>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct DiskSums {
    pub size_bytes: u64,
    pub read_bytes: u64,
    pub major_faults: u64,
    pub minor_faults: u64,
    /// By the sample.
    pub resident_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct DiskLayer {
    /// Of the tensors' names.
    pub layer: Option<u32>,
    #[serde(flatten)]
    pub sums: DiskSums,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct DiskTensor {
    pub name: String,
    pub layer: Option<u32>,
    pub component: &'static str,
    #[serde(flatten)]
    pub sums: DiskSums,
}

/// Requests of at least these bytes, and less than twice as many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ReadSize {
    pub from_bytes: u64,
    pub requests: u64,
    pub bytes: u64,
}

/// Who owns a byte of the map space. All `None` but `offset` outside of tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Located {
    pub offset: u64,
    pub file: Option<String>,
    pub tensor: Option<u32>,
    pub name: Option<String>,
    pub layer: Option<u32>,
    pub component: Option<&'static str>,
    pub role: Option<String>,
    pub expert: Option<u32>,
    /// `q3`, or `q3-4` where a block holds elements of several heads.
    pub head: Option<String>,
    pub begin: Option<u64>,
    pub size_bytes: Option<u64>,
    pub offset_in_tensor: Option<u64>,
    #[serde(rename = "type")]
    pub ty: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct EvalInfo {
    pub eval: u64,
    pub phase: &'static str,
    pub begin: u64,
    pub end: u64,
    pub tokens: Vec<TokenInfo>,
    /// Executed ones.
    pub steps: Vec<EvalStep>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct EvalStep {
    pub step: u32,
    pub op: String,
    pub name: String,
    pub layer: Option<u32>,
    pub begin: u64,
    pub end: u64,
    /// Reads of weights: offset in the map space, bytes from first to last,
    /// expert or -1.
    pub ranges: Vec<(u64, u64, i64)>,
    pub experts: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct EvalBrief {
    pub eval: u64,
    pub begin: u64,
    pub end: u64,
    pub first_token: u64,
    pub tokens: u64,
    pub phase: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Flame {
    pub name: String,
    pub value: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(test, ts(as = "Option<Vec<Flame>>", optional))]
    pub children: Vec<Flame>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Experts {
    pub layers: Vec<LayerExperts>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LayerExperts {
    pub layer: u32,
    pub experts: Vec<ExpertUse>,
    /// Of the choices: 1 is even, 0 is always the same expert.
    pub normalised_entropy: f64,
    pub max_over_mean: f64,
    /// Pairs that tokens used together, most often first.
    pub pairs: Vec<ExpertPair>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ExpertUse {
    pub expert: u32,
    /// Tokens routed to it.
    pub tokens: u64,
    /// Over the mean of its layer: 1 is an even choice.
    pub temperature: f64,
    pub mean_weight: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ExpertPair {
    pub a: u32,
    pub b: u32,
    pub count: u64,
    /// How many times more often than if choices were independent.
    pub lift: f64,
}

#[cfg(test)]
#[path = "../tests/generated/mod.rs"]
mod generated;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ts_rs::{TS, TypeVisitor};

    use super::*;

    /// Declarations of types and of all that they hold, by name.
    #[derive(Default)]
    struct Declared {
        texts: BTreeMap<String, String>,
    }

    impl TypeVisitor for Declared {
        fn visit<T: TS + 'static + ?Sized>(&mut self) {
            let name = T::ident(&generated::config());
            if T::output_path().is_some() && !self.texts.contains_key(&name) {
                self.texts.insert(name, generated::declaration::<T>());
                T::visit_dependencies(self);
            }
        }
    }

    /// The page's types are these: `TENSORSCOPE_BLESS=1 cargo test -p index --lib` writes them.
    #[test]
    fn the_page_knows_every_answer() {
        let mut declared = Declared::default();
        declared.visit::<Info>();
        declared.visit::<TokenInfo>();
        declared.visit::<Summary>();
        declared.visit::<HeatmapHeader>();
        declared.visit::<OffsetsHeader>();
        declared.visit::<NodesHeader>();
        declared.visit::<LanesHeader>();
        declared.visit::<MapHeader>();
        declared.visit::<MarksHeader>();
        declared.visit::<Disk>();
        declared.visit::<Located>();
        declared.visit::<EvalInfo>();
        declared.visit::<EvalBrief>();
        declared.visit::<Flame>();
        declared.visit::<Experts>();
        let texts: String = declared.texts.into_values().collect();
        let text =
            format!("// Written by a test of crates/index/src/answers.rs; change that.\n{texts}");
        generated::check("src/generated/index.ts", &text);
    }
}
