//! A run in memory, compact, and every aggregate that the viewer shows.
//!
//! llama.cpp evaluates few graphs many times, so the log holds graph *templates*
//! and, per evaluation, times and indices. So does [`RunIndex`]: an aggregate masks
//! the accesses of each template once and multiplies by how often the template
//! was evaluated; only what an index decides (experts, rows) is counted per
//! evaluation. 10^8 accesses are answered for from some 10^5 evaluations.
//!
//! - [`filter`], [`query`]: what is asked; [`answers`]: what is answered;
//! - `load`, `evaluation`: log → `catalog` (names and numbers), `graph` (templates, compact),
//!   `data` (evaluations and their arrays), `blocks` (running sums of those), `devices` (kernels
//!   and copies);
//! - `select`, `sums`: what a filter keeps, and sums of that;
//! - `summary`, `heatmap` and `expert_heatmap`, `offsets` and `profile`, `nodes`, `lanes`,
//!   `map`, `experts`, `describe`: the views;
//! - `kernel`: faults, disk reads and resident pages of runs that have their logs.
//!
//! Numbers of evaluations, tokens and tensors are those of the tables (crate
//! `store`), and so are all sums. What it deliberately does not do: HTTP, JSON
//! text, SQL, or anything that single accesses in order are needed for.

#![forbid(unsafe_code)]

pub mod answers;
mod blocks;
mod catalog;
mod data;
mod describe;
mod devices;
mod evaluation;
mod even;
mod expert_heatmap;
mod experts;
pub mod filter;
mod graph;
mod heatmap;
mod kernel;
mod lanes;
mod load;
mod map;
mod nodes;
mod offsets;
mod profile;
pub mod query;
mod select;
mod summary;
mod sums;

use std::{collections::BTreeMap, path::PathBuf};

pub use answers::*;
pub use filter::Filter;
pub use kernel::KernelQueryError;
pub use query::{
    DiskQuery, EvalsQuery, FlameBy, HeatmapMetric, HeatmapQuery, KernelMapQuery, KernelMetric,
    LanesQuery, MapMetric, MapQuery, MarkKind, MarksQuery, NodesQuery, OffsetsQuery, RowKind,
    TokenWindow,
};

/// Why a run cannot be indexed.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error(transparent)]
    Read(#[from] trace::read::ReadError),
    #[error(transparent)]
    Run(#[from] rundir::RunError),
}

/// Why a question has no answer: what, where, what next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QueryError(pub String);

/// What a [`RunIndex::refresh`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    pub new_evals: u64,
    pub version: u64,
    pub live: bool,
}

/// A run, ready to answer.
#[derive(Default)]
pub struct RunIndex {
    path: PathBuf,
    name: String,
    live: bool,
    version: u64,
    catalog: catalog::Catalog,
    graphs: Vec<graph::Graph>,
    /// While more may come.
    reading: Option<reader::Reading>,
    streams: BTreeMap<u32, load::Stream>,
    /// As they were read.
    evals: Vec<data::Eval>,
    data: data::Data,
    batches: evaluation::Batches,
    on_devices: devices::OnDevices,
    /// Places of the evaluations in the order of the tables, and of their begin.
    order: Vec<u32>,
    by_time: Vec<u32>,
    /// In the order of the tokens that they compute.
    by_token: Vec<u32>,
    /// The latest end up to each of `by_time`.
    latest: Vec<u64>,
    /// The most that a clock jumped back to before the begin of its evaluation.
    jumped_back: u64,
    /// Begin of the first evaluation: all answers count from it.
    origin: u64,
    tokens: u64,
    /// Of evaluations whose weights were fed: place, and what came from where.
    origins: Vec<(u32, evaluation::Sources)>,
    /// Texts of token ids, and the streams that they are from.
    pieces: BTreeMap<u32, (u32, Vec<u8>)>,
    /// The model's files, where they are still there.
    model: Option<gguf::Model>,
    about_model: ModelInfo,
    totals: SummaryTotals,
    missing: Vec<String>,
    /// As `log/status` said when the log was last read.
    committed: Option<u64>,
    kernel_logs: KernelInfo,
    /// Those logs, once somebody has asked for them.
    loaded: kernel::Loaded,
}

impl RunIndex {
    fn empty(run: &rundir::Run) -> RunIndex {
        let whole = run.path().canonicalize();
        let whole = whole.unwrap_or_else(|_| run.path().to_owned());
        let name = whole.file_name();
        RunIndex {
            path: run.path().to_owned(),
            name: name.map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            version: 1,
            ..RunIndex::default()
        }
    }
}
