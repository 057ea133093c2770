//! Views that are parts of the analysis (`report --json`), as they are.

use serde_json::{Map, Value, json};

use crate::{
    parameters::Parameters,
    reply::{Refusal, Reply},
    viewer::HostedRun,
};

/// A key of the answer, and where its value stands in the results.
type Part = (&'static str, &'static str);

/// Everything, for whoever wants what no view shows.
pub(crate) fn all(run: &HostedRun, _: &Parameters) -> Result<Reply, Refusal> {
    Reply::json(&*run.results()?)
}

pub(crate) fn findings(run: &HostedRun, _: &Parameters) -> Result<Reply, Refusal> {
    Reply::json(&at(&*run.results()?, "/findings"))
}

pub(crate) fn attention(run: &HostedRun, _: &Parameters) -> Result<Reply, Refusal> {
    parts(
        run,
        &[
            ("projections", "/facts/heads/projections"),
            ("heads", "/facts/heads/heads"),
            ("unassigned_bytes", "/facts/heads/unassigned_bytes"),
            ("kv_growth", "/facts/traffic/kv_growth"),
        ],
    )
}

pub(crate) fn memory(run: &HostedRun, _: &Parameters) -> Result<Reply, Refusal> {
    parts(
        run,
        &[
            ("curves", "/caches/unit/curves"),
            ("page_curves", "/caches/page/curves"),
            ("reuse", "/caches/unit/reuse"),
            ("reuse_generate", "/caches/unit/reuse_generate"),
            ("page_reuse", "/caches/page/reuse"),
            ("page_reuse_generate", "/caches/page/reuse_generate"),
            ("expert_caches", "/caches/expert_caches"),
            ("opportunities", "/caches/opportunities"),
            ("working_set", "/facts/working_set"),
            ("distinct_bytes", "/facts/working_set/distinct_bytes"),
        ],
    )
}

/// Which tokens an expert is chosen for more often than others.
pub(crate) fn prefers(run: &HostedRun, _: &Parameters) -> Result<Reply, Refusal> {
    let results = run.results()?;
    let layers = at(&results, "/facts/experts/layers").as_array();
    let mut rows = Vec::new();
    for layer in layers.into_iter().flatten() {
        for expert in layer["experts"].as_array().into_iter().flatten() {
            rows.push(json!({
                "layer": layer["layer"],
                "expert": expert["expert"],
                "prefers": expert["prefers"],
            }));
        }
    }
    Reply::json(&rows)
}

fn parts(run: &HostedRun, parts: &[Part]) -> Result<Reply, Refusal> {
    let results = run.results()?;
    let object: Map<String, Value> = parts
        .iter()
        .map(|(key, place)| ((*key).to_owned(), at(&results, place).clone()))
        .collect();
    Reply::json(&object)
}

/// Null where a run has no such results, as a dense model has no experts.
fn at<'a>(results: &'a Value, place: &str) -> &'a Value {
    results.pointer(place).unwrap_or(&Value::Null)
}
