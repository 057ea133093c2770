//! `trace_metadata.json`: the plan's fields, and what a reader needs to know about
//! the records.

use rundir::{Metadata, Run, metadata::Sampling};
use serde_json::{Map, Value, json};

use crate::{
    log::Stats,
    tracker::{
        Tracker,
        record::{FIELDS, NONE_U16, NONE_U64, RECORD_BYTES, phase, qkv},
    },
};

/// The plan's record was version 1.0.
const VERSION: &str = "2.0";

pub fn describe(run: &Run, tracker: &Tracker, stats: &Stats) -> Value {
    let fields =
        FIELDS.map(|(name, offset, ty)| json!({"name": name, "offset": offset, "type": ty}));
    let operations: Map<String, Value> = (tracker.operations.all())
        .map(|(number, op)| (number.to_string(), op.into()))
        .collect();
    let empty = Metadata::default();
    let metadata = run.metadata().unwrap_or(&empty);
    let model = metadata.model.as_ref();
    let hyper = model.map(|model| &model.hyperparameters);
    let statistics = metadata.statistics.as_ref();
    let (temperature, top_k) = match metadata.sampling {
        Sampling::Greedy => (Some(0.0), Some(1)),
        Sampling::Random {
            temperature, top_k, ..
        } => (Some(temperature), top_k),
        Sampling::Unknown => (None, None),
    };
    json!({
        "trace_version": VERSION,
        "start_time_utc": some_text(&metadata.started_utc),
        "model_file": model.and_then(|m| m.files.first()).map(|file| &file.path),
        "model_files": model.map(|m| m.files.iter().map(|f| &f.path).collect::<Vec<_>>()),
        "model_metadata": {
            "architecture": model.map(|m| &m.architecture),
            "num_layers": hyper.map(|h| h.n_layer),
            "num_heads": hyper.map(|h| h.n_head),
            "num_kv_heads": hyper.map(|h| h.n_head_kv),
            "num_experts": hyper.map(|h| h.n_expert),
            "num_experts_used": hyper.map(|h| h.n_expert_used),
            "hidden_dim": hyper.map(|h| h.n_embd),
            "vocab_size": hyper.and_then(|h| h.n_vocab),
        },
        "inference_config": {
            "prompt": metadata.prompts.first(),
            "prompts": metadata.prompts,
            "num_tokens_generated": statistics.map(|s| s.generated_tokens),
            "temperature": temperature,
            "top_k": top_k,
        },
        "system_info": {
            "hostname": metadata.machine.hostname,
            "cpu": metadata.machine.cpu_model,
            "ram_gb": metadata.machine.memory_bytes.map(|b| b as f64 / 1e9),
            "ssd": metadata.machine.model_disk.as_ref().and_then(|disk| disk.model.as_ref()),
        },
        "trace_stats": {
            "total_entries": stats.written,
            "evaluations": stats.evaluations,
            "duration_seconds": (tracker.end_nanos - tracker.start_nanos) as f64 / 1e9,
            "log_file_size_mb": (stats.written * RECORD_BYTES as u64) as f64 / 1e6,
            "unreadable_records": stats.damaged.len(),
            "lost_accesses": run.lost().accesses,
        },
        "record": {
            "size_bytes": RECORD_BYTES,
            "byte_order": "little",
            "fields": fields,
            "none_u16": NONE_U16,
            "none_u64": NONE_U64,
        },
        "operations": operations,
        "phases": phase::NAMES,
        "qkv_types": qkv::NAMES,
        "directions": ["read", "write"],
    })
}

fn some_text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
