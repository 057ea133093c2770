//! `metadata.json`: what was run, on what, and with what result.
//!
//! It is written twice: at the start with status `recording` and without
//! statistics, at the end with both. Readers take a missing field for its
//! default and ignore fields they do not know, so that fields can be added
//! without a new [`VERSION`]; a change of meaning needs one.
//!
//! Units are in the names. Times are integers of nanoseconds, sizes of bytes.
//! What is not known is `null`. Paths and arguments that are no UTF-8 have their
//! odd bytes replaced.

use std::collections::BTreeMap;
use std::path::Path;

use std::io;

use serde::{Deserialize, Serialize};
use trace::format::Checksum;

use crate::limits::{self, Limits};
use crate::machine::{self, Machine};
use crate::process;
use crate::time::Moment;

/// Value of [`Metadata::format`].
pub const FORMAT: &str = "tensorscope-run";
/// Value of [`Metadata::version`] that this program writes; it reads 1 up to it.
pub const VERSION: u64 = 1;

/// Everything about one run that is not in the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Always [`FORMAT`]; first in the file, so that people and programs see at
    /// once what this is.
    pub format: String,
    pub version: u64,
    pub status: RunStatus,
    /// Why, when `status` is `stopped early`.
    pub stopped_reason: Option<String>,
    /// Of the program that recorded.
    pub tensorscope_version: String,
    pub command_line: Vec<String>,
    pub process: Process,
    /// RFC 3339. The same moment as `started_monotonic_nanos`: the two together
    /// turn times of the log into calendar time.
    pub started_utc: String,
    pub started_monotonic_nanos: u64,
    pub finished_utc: Option<String>,
    pub finished_monotonic_nanos: Option<u64>,
    /// `None` for a program that loads its own model.
    pub model: Option<ModelMetadata>,
    /// One for each sequence.
    pub prompts: Vec<String>,
    /// `None` for a program that has its own.
    pub settings: Option<Settings>,
    pub sampling: Sampling,
    pub versions: Versions,
    pub machine: Machine,
    pub limits: Limits,
    /// `None` when the program was neither watched from below nor limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underneath: Option<Underneath>,
    /// `None` when nobody fed the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fed: Option<Fed>,
    /// `None` until the run has ended.
    pub statistics: Option<Statistics>,
}

/// What the kernel did for the run, and what it was told to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Underneath {
    /// `record --memory`; the next three go with it.
    pub memory_limit_bytes: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    /// How often pages had to be given up.
    pub times_at_limit: Option<u64>,
    pub oom_kills: Option<u64>,
    /// `record --cold`: cached bytes of the model that were dropped first.
    pub dropped_bytes: Option<u64>,
    /// By the kernel's own counters of the process.
    pub major_faults: Option<u64>,
    pub minor_faults: Option<u64>,
    pub read_bytes: Option<u64>,
    /// The same of the evaluations alone, between these moments. While a model is
    /// loaded the kernel may fill a mapping itself (MAP_POPULATE); it counts that as
    /// faults, which have no address and are no events.
    pub evaluating_since_nanos: Option<u64>,
    pub evaluating_until_nanos: Option<u64>,
    /// But for those of our own threads, which are listed.
    pub evaluating_major_faults: Option<u64>,
    pub recorder_threads: Vec<u32>,
    /// Of `log/faults`.
    pub recorded_faults: Option<u64>,
    pub lost_faults: Option<u64>,
    /// Of `log/io`; bytes read in all, and of the model's files.
    pub requests: Option<u64>,
    pub request_bytes: Option<u64>,
    pub model_read_bytes: Option<u64>,
    pub lost_requests: Option<u64>,
    /// Of `log/residency`.
    pub residency_samples: u64,
    /// `record --cpu`: stacks, and times that a thread began or ceased to run, of `log/cpu`.
    pub cpu_samples: Option<u64>,
    pub cpu_switches: Option<u64>,
    pub lost_cpu_records: Option<u64>,
    /// Events of processors that were counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_counters: Vec<String>,
    /// What could not be recorded, why, and the command that allows it.
    pub missing: Vec<String>,
}

/// How the weights were fed, and what that took, by the feeder's own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fed {
    /// Memory for the whole program.
    pub budget_bytes: u64,
    pub pinned_bytes: u64,
    /// For each evaluation, through a ring of so many bytes.
    pub streamed_bytes: u64,
    pub ring_bytes: u64,
    /// Memory of the cache of experts.
    pub expert_bytes: u64,
    /// Weights that were left to the page cache.
    pub page_cache_bytes: u64,
    pub evaluations: u64,
    pub read_bytes: u64,
    /// What the computation waited for pinned and streamed weights.
    pub waited_nanos: u64,
    pub waited_for_experts_nanos: u64,
    pub expert_hits: u64,
    pub expert_misses: u64,
}

/// How the run stands, as far as its process came to say so. After a kill this
/// stays `recording`; `log/status` and [`crate::Run::condition`] know better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunStatus {
    #[default]
    #[serde(rename = "recording")]
    Recording,
    #[serde(rename = "complete")]
    Complete,
    /// The trace is whole up to a point before the end of the run.
    #[serde(rename = "stopped early")]
    StoppedEarly,
}

/// Which process recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks from boot to its start, which tell it from a later process
    /// with the same number.
    pub started_ticks: u64,
}

/// The model, as its file describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelMetadata {
    /// All files of a split set, in order.
    pub files: Vec<ModelFile>,
    pub name: Option<String>,
    pub architecture: String,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Of all files, headers included.
    pub size_bytes: u64,
    pub tensors: u64,
    pub hyperparameters: Hyperparameters,
    /// Tensors by their type, as `ggml` spells it.
    pub quantisation: Vec<TypeSum>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelFile {
    /// Absolute, so that later commands find it from anywhere.
    pub path: String,
    pub size_bytes: u64,
}

/// Numbers that define the model, spelled as llama.cpp does. Where layers
/// differ, the largest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hyperparameters {
    pub n_layer: u64,
    pub n_embd: u64,
    pub n_head: u64,
    pub n_head_kv: u64,
    /// Elements of one key head.
    pub n_embd_head_k: u64,
    /// Elements of one value head.
    pub n_embd_head_v: u64,
    pub n_ff: Option<u64>,
    /// 0 for a dense model.
    pub n_expert: u64,
    pub n_expert_used: u64,
    pub n_ff_exp: Option<u64>,
    pub n_vocab: Option<u64>,
    /// Tokens that the model was trained for.
    pub context_length: Option<u64>,
    /// Tokens that windowed layers attend to.
    pub sliding_window: Option<u64>,
    /// The token embedding is the output matrix too.
    pub tied_embeddings: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypeSum {
    #[serde(rename = "type")]
    pub ty: String,
    pub tensors: u64,
    pub parameters: u64,
    pub size_bytes: u64,
}

/// How the engine was set up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Threads that compute single tokens.
    pub threads: u32,
    /// Threads that compute batches.
    pub threads_batch: u32,
    pub context_tokens: u32,
    pub batch_tokens: u32,
    pub ubatch_tokens: u32,
    /// Type of the K and of the V cache, as `ggml` spells it.
    pub kv_type_k: String,
    pub kv_type_v: String,
    /// `on`, `off` or `auto`.
    pub flash_attention: String,
    /// Whether weights may be copied out of the file mapping into another
    /// layout; their addresses then lie outside the file.
    pub repack: bool,
    /// Sequences in one batch.
    pub parallel: u32,
    /// One KV buffer for all sequences.
    pub kv_unified: bool,
    /// Whether weights stay in the mapping of the file.
    pub mmap: bool,
    /// Tokens to generate that were asked for.
    pub generate_tokens: Option<u64>,
}

/// How tokens were chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "snake_case")]
pub enum Sampling {
    /// The most likely token, always.
    Greedy,
    /// At random, reproducible with the seed.
    Random {
        temperature: f32,
        top_k: Option<u32>,
        top_p: Option<f32>,
        seed: u64,
    },
    /// A program that samples by itself, or a method of a newer version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What the recording program was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Versions {
    pub llama_cpp: Option<String>,
    pub ggml: Option<String>,
    pub llama_cpp_sys_2: Option<String>,
    /// Which of the built-in engine's kernels computed: `avx2`.
    pub kernels: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Statistics {
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// Graph evaluations in the trace.
    pub evaluations: u64,
    /// Executed nodes.
    pub steps: u64,
    pub accesses: u64,
    /// Different graphs.
    pub templates: u64,
    /// Evaluations that ran and are not in the trace.
    pub lost_evaluations: u64,
    pub lost_accesses: u64,
    /// Evaluations whose ticks were not those that the graph predicts.
    pub tick_mismatches: u64,
    /// Executions of ops that the op table does not know, by op; they are
    /// recorded as their whole views.
    pub unknown_ops: BTreeMap<String, u64>,
    /// Of all files in `log/`.
    pub log_bytes: u64,
    /// From the first evaluation to the last.
    pub duration_nanos: u64,
    pub tokens_per_second_prompt: Option<f64>,
    pub tokens_per_second_generate: Option<f64>,
}

impl Metadata {
    /// What has to be added to a time since 1970 to have one of the log.
    pub fn wall_to_monotonic_nanos(&self) -> Option<i128> {
        let began = crate::time::parse_rfc3339(&self.started_utc)?;
        Some(i128::from(self.started_monotonic_nanos) - i128::from(began))
    }

    /// The metadata of a run that starts now: clocks, machine and limits are
    /// read, everything else is empty. `model` tells which disk matters.
    pub fn start(command_line: Vec<String>, model: Option<&gguf::Model>) -> Metadata {
        let now = Moment::now();
        let first_file = model.map(|m| m.files()[0].path.as_path());
        Metadata {
            format: FORMAT.to_owned(),
            version: VERSION,
            status: RunStatus::Recording,
            tensorscope_version: env!("CARGO_PKG_VERSION").to_owned(),
            command_line,
            process: process::current(),
            started_utc: now.rfc3339(),
            started_monotonic_nanos: now.monotonic_nanos,
            model: model.map(ModelMetadata::of),
            machine: machine::describe(first_file),
            limits: limits::describe(),
            ..Metadata::default()
        }
    }
}

impl ModelMetadata {
    pub fn of(model: &gguf::Model) -> ModelMetadata {
        let summary = gguf::Summary::new(model, &gguf::Question::default());
        let hyper = model.hyper();
        ModelMetadata {
            files: model
                .files()
                .iter()
                .map(|file| ModelFile {
                    path: absolute(&file.path),
                    size_bytes: file.len_bytes,
                })
                .collect(),
            name: summary.name,
            architecture: summary.architecture,
            parameters: summary.parameters,
            size_bytes: summary.file_bytes,
            tensors: summary.tensor_count,
            hyperparameters: Hyperparameters {
                n_layer: summary.layer_count,
                n_embd: summary.embedding_length,
                n_head: summary.head_count,
                n_head_kv: summary.head_count_kv,
                n_embd_head_k: summary.key_length,
                n_embd_head_v: summary.value_length,
                n_ff: hyper.feed_forward_length_max(),
                n_expert: summary.expert_count,
                n_expert_used: summary.expert_used_count,
                n_ff_exp: hyper.expert_feed_forward_length_max(),
                n_vocab: summary.vocabulary,
                context_length: summary.context_length,
                sliding_window: summary.sliding_window,
                tied_embeddings: summary.tied_embeddings,
            },
            quantisation: summary
                .types
                .iter()
                .map(|sum| TypeSum {
                    ty: sum.ty.to_owned(),
                    tensors: sum.tensors,
                    parameters: sum.parameters,
                    size_bytes: sum.size_bytes,
                })
                .collect(),
        }
    }
}

fn absolute(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    absolute.as_deref().unwrap_or(path).display().to_string()
}

/// Where the checksum stands, the last field of the file.
const CHECKSUM: &str = ",\n  \"checksum\": \"";

/// The text of the file, from metadata as pretty JSON.
pub(crate) fn with_checksum(json: String) -> io::Result<String> {
    let rest = json.strip_suffix("\n}").unwrap_or(&json);
    let checksum = Checksum::of(rest.as_bytes())?;
    Ok(format!("{rest}{CHECKSUM}{checksum:016x}\"\n}}\n"))
}

/// Whether the text differs from what was written; not known without a checksum, which
/// older programs did not write.
pub(crate) fn was_changed(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else {
        return true;
    };
    let Some((rest, checksum)) = text.rsplit_once(CHECKSUM) else {
        return false;
    };
    let written = checksum
        .strip_suffix("\"\n}\n")
        .map(|hex| u64::from_str_radix(hex, 16));
    written != Some(Ok(Checksum::of(rest.as_bytes()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_format_are_spelled_as_documented() {
        assert_eq!(json(&RunStatus::StoppedEarly), r#""stopped early""#);
        assert_eq!(json(&RunStatus::Recording), r#""recording""#);
        assert_eq!(json(&Sampling::Greedy), r#"{"method":"greedy"}"#);
        let random = Sampling::Random {
            temperature: 0.5,
            top_k: Some(40),
            top_p: None,
            seed: u64::MAX,
        };
        let text = json(&random);
        assert_eq!(
            text,
            r#"{"method":"random","temperature":0.5,"top_k":40,"top_p":null,"seed":18446744073709551615}"#
        );
        assert_eq!(serde_json::from_str::<Sampling>(&text).unwrap(), random);
    }

    #[test]
    fn fields_of_other_versions_are_tolerated() {
        let text = r#"{"format":"tensorscope-run","version":1,"status":"complete",
            "sampling":{"method":"mirostat","tau":5},"colour":"green",
            "machine":{"hostname":"h","moons":2},"statistics":{"accesses":7}}"#;
        let metadata: Metadata = serde_json::from_str(text).unwrap();
        assert_eq!(metadata.status, RunStatus::Complete);
        assert_eq!(metadata.sampling, Sampling::Unknown);
        assert_eq!(metadata.machine.hostname.as_deref(), Some("h"));
        assert_eq!(metadata.statistics.unwrap().accesses, 7);
        assert_eq!(metadata.model, None);
    }

    fn json(value: &impl Serialize) -> String {
        serde_json::to_string(value).unwrap()
    }
}
