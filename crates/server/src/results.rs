//! Views that are parts of the analysis (`report --json`), as they are; and charts of it,
//! which are those of the report.

use analysis::{cache_trace::Scope, roofline::Roofline};
use render::charts::{self, CountBy, Pool};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{
    parameters::{Parameters, bad, quoted},
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

/// Null of a program that gives none.
pub(crate) fn why(run: &HostedRun, _: &Parameters) -> Result<Reply, Refusal> {
    Reply::json(&at(&*run.results()?, "/diagnosis"))
}

/// Null where it is not known what the hardware gives.
pub(crate) fn roofline(run: &HostedRun, _: &Parameters) -> Result<Reply, Refusal> {
    let roofline = part::<Roofline>(&*run.results()?, "/roofline")?;
    Reply::json(&roofline.and_then(|roofline| charts::roofline(&roofline)))
}

pub(crate) fn attention(run: &HostedRun, _: &Parameters) -> Result<Reply, Refusal> {
    parts(
        run,
        &[
            ("projections", "/facts/heads/projections"),
            ("heads", "/facts/heads/heads"),
            ("unassigned_bytes", "/facts/heads/unassigned_bytes"),
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
            ("opportunities", "/caches/opportunities"),
            ("working_set", "/facts/working_set"),
            ("devices", "/facts/devices"),
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

/// `null` where the run has nothing to draw in it.
pub(crate) fn chart(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    let scope = match choice(parameters, "scope", ["run", "generate"])? {
        0 => Scope::Run,
        _ => Scope::Generate,
    };
    let by = match choice(parameters, "measure", ["bytes", "accesses"])? {
        0 => CountBy::Bytes,
        _ => CountBy::Accesses,
    };
    let pool = match choice(parameters, "pool", ["global", "per_layer"])? {
        0 => Pool::Global,
        _ => Pool::PerLayer,
    };
    let curves = match choice(parameters, "grain", ["unit", "page"])? {
        0 => "/caches/unit/curves",
        _ => "/caches/page/curves",
    };
    let results = run.results()?;
    let chart = match parameters.text("of").unwrap_or_default() {
        "kv-growth" => part(&results, "/facts/traffic/kv_growth")?
            .and_then(|growth| charts::kv_growth(&growth)),
        "working-set" => {
            let model_bytes = at(&results, "/facts/hot/model_bytes").as_u64();
            part(&results, "/facts/working_set")?
                .and_then(|set| charts::working_set(&set, model_bytes.unwrap_or(0)))
        }
        "miss-ratio" => {
            part(&results, curves)?.and_then(|curves| charts::miss_ratios(&curves, scope, by))
        }
        "disk-bytes" => part(&results, OPPORTUNITIES)?.and_then(|o| charts::disk_reads(&o)),
        "predicted-speed" => {
            part(&results, OPPORTUNITIES)?.and_then(|o| charts::predicted_speed(&o))
        }
        "expert-cache" => part(&results, "/caches/expert_caches")?
            .and_then(|caches| charts::expert_hits(&caches, pool, scope)),
        other => return Err(bad(format!("there is no chart {}", quoted(other)))),
    };
    Reply::json(&chart)
}

const OPPORTUNITIES: &str = "/caches/opportunities";

/// Which of two; the first where none is given.
fn choice(parameters: &Parameters, key: &str, of: [&str; 2]) -> Result<usize, Refusal> {
    let Some(text) = parameters.text(key) else {
        return Ok(0);
    };
    let found = of.iter().position(|known| *known == text);
    found.ok_or_else(|| {
        let [a, b] = of;
        bad(format!(
            "{key}: {} is not known; give {a} or {b}",
            quoted(text)
        ))
    })
}

/// `None` where the run has no such results.
fn part<T: DeserializeOwned>(results: &Value, place: &str) -> Result<Option<T>, Refusal> {
    let value = at(results, place).clone();
    serde_json::from_value(value).map_err(|error| Refusal::Failed(format!("{place}: {error}")))
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
