//! The model that is shown without a run: what it is, where its tensors lie, what it would
//! take and give.
//!
//! An estimate is asked for with options of `tensorscope estimate`. Those that name a file are
//! not among [`ESTIMATE_KEYS`]: **no path comes from the page**.

use std::sync::Arc;

use axum::extract::{RawQuery, State};

use crate::{
    answers::ModelAnswers,
    parameters::Parameters,
    reply::{Refusal, Reply},
    routes::Answer,
    viewer::{Host, Pace},
};

/// Long options of `tensorscope estimate` that describe a question.
pub const ESTIMATE_KEYS: [&str; 22] = [
    "ctx-size",
    "parallel",
    "prompt-tokens",
    "ubatch-size",
    "cache-type-k",
    "cache-type-v",
    "flash-attn",
    "gpu-layers",
    "gpus",
    "threads",
    "memory",
    "machine",
    "latency",
    "versus",
    "draft",
    "attention",
    "shapes",
    "train",
    "global-batch",
    "page-tokens",
    "shared-prefix",
    "disk",
];

/// Null where runs are shown.
pub(crate) async fn facts(State(host): State<Arc<Host>>, RawQuery(query): RawQuery) -> Answer {
    Parameters::read_only(&query.unwrap_or_default(), &[])?;
    let Some(model) = host.model.clone() else {
        return Reply::json(&());
    };
    host.work(Pace::Quick, move || {
        Reply::json(&model.facts().map_err(Refusal::Failed)?)
    })
    .await
}

pub(crate) async fn structure(State(host): State<Arc<Host>>, RawQuery(query): RawQuery) -> Answer {
    Parameters::read_only(&query.unwrap_or_default(), &[])?;
    let model = shown(&host)?;
    host.work(Pace::Quick, move || {
        Reply::json(&model.structure().map_err(Refusal::Failed)?)
    })
    .await
}

/// One at a time: it may measure this machine.
pub(crate) async fn estimate(State(host): State<Arc<Host>>, RawQuery(query): RawQuery) -> Answer {
    let parameters = Parameters::read_only(&query.unwrap_or_default(), &ESTIMATE_KEYS)?;
    let model = shown(&host)?;
    host.work(Pace::Analysis, move || {
        let estimate = model.estimate(&parameters.pairs());
        Reply::json(&estimate.map_err(Refusal::BadInput)?)
    })
    .await
}

fn shown(host: &Host) -> Result<Arc<dyn ModelAnswers>, Refusal> {
    host.model.clone().ok_or_else(|| {
        Refusal::Missing("runs are shown, and no model without one; see api/runs".to_owned())
    })
}
