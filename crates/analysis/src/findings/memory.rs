//! How memory is used: order, working set, KV cache, attention.

use super::{
    List,
    text::{bytes, count, percent, share},
};
use crate::{determinism::Score, facts::Facts, working_set::WindowResults};

pub(super) fn order(facts: &Facts, list: &mut List) {
    let sequential = &facts.sequential;
    if sequential.total.accesses > 0 {
        list.close(
            "order",
            "facts.sequential",
            format!(
                "{} of the weight bytes are read in file order (within {} of the read before); a run is {} long on average, \
                 the longest {}",
                percent(sequential.total.of_bytes()),
                bytes(sequential.gap_bytes),
                bytes(sequential.mean_run_bytes.round() as u64),
                bytes(sequential.longest_run_bytes)
            ),
            format!(
                "SELECT sum(CASE WHEN gap BETWEEN 0 AND {} THEN bytes ELSE 0 END) * 1.0 / sum(bytes) AS share FROM \
                 (SELECT bytes, file_offset - lag(file_offset + bytes) OVER (ORDER BY eval, step, file_offset) AS gap \
                 FROM accesses WHERE kind = 'weight' AND file_offset IS NOT NULL) AS ordered",
                sequential.gap_bytes
            ),
        );
    }
    let determinism = &facts.determinism;
    if determinism.dense.predictions > 0 {
        list.close(
            "order",
            "facts.determinism",
            repetition(&determinism.dense, &determinism.experts),
            format!(
                "SELECT 'dense' AS part, {} UNION ALL SELECT 'experts' AS part, {}",
                predicted_share("AND expert IS NULL", "1 = 1"),
                predicted_share("", "next LIKE '%#%'")
            ),
        );
    }
}

/// How much of the order of reads is that of last time. Only where every read is followed by
/// the one that followed it last time, the order as a whole is the same; a weight that is read
/// twice in an evaluation has two that follow it.
fn repetition(dense: &Score, experts: &Score) -> String {
    let part = |score: &Score| match score.hits == score.predictions {
        true => "repeats exactly".to_owned(),
        false => format!(
            "is that of last time, read by read, for {}",
            percent(score.share())
        ),
    };
    match experts.predictions {
        0 => format!("the order of reads {}", part(dense)),
        _ => format!(
            "the order of reads of dense weights {}; that of experts {}",
            part(dense),
            part(experts)
        ),
    }
}

/// SQL: how often the unit that follows is the one that followed last time, over a
/// part of the weights and of the predictions.
fn predicted_share(weights: &str, predictions: &str) -> String {
    format!(
        "avg(CASE WHEN next = predicted THEN 1.0 ELSE 0.0 END) AS share FROM \
         (SELECT next, lag(next) OVER (PARTITION BY unit ORDER BY eval, step, file_offset) AS predicted FROM \
         (SELECT eval, step, file_offset, unit, lead(unit) OVER (PARTITION BY eval ORDER BY step, file_offset) AS next FROM \
         (SELECT eval, step, file_offset, concat(tensor_name, CASE WHEN expert IS NULL THEN '' ELSE \
         concat('#', CAST(expert AS VARCHAR)) END) AS unit FROM accesses WHERE kind = 'weight' {weights}) AS units) AS \
         pairs) AS predictions WHERE next IS NOT NULL AND predicted IS NOT NULL AND {predictions}"
    )
}

pub(super) fn working_set(facts: &Facts, list: &mut List) {
    let windows = facts.working_set.windows.iter();
    let windows: Vec<&WindowResults> = windows.filter(|w| w.complete > 0).collect();
    let distinct = facts.working_set.distinct_bytes;
    if windows.is_empty() || distinct == 0 {
        return;
    }
    let is_same = windows
        .iter()
        .all(|w| w.mean_bytes > distinct as f64 * 0.99);
    let text = match (is_same, windows[0].complete) {
        (true, 1) => format!(
            "the evaluation reads {} of distinct weights",
            bytes(distinct)
        ),
        (true, _) => format!(
            "every evaluation reads the same {} of weights",
            bytes(distinct)
        ),
        (false, _) => {
            let means = windows.iter().map(|w| {
                let mean = bytes(w.mean_bytes.round() as u64);
                match w.evaluations {
                    1 => format!("{mean} in one evaluation"),
                    n => format!("{mean} in {n}"),
                }
            });
            format!(
                "distinct bytes of weights touched: {}, {} in the whole run",
                means.collect::<Vec<_>>().join(", "),
                bytes(distinct)
            )
        }
    };
    list.close(
        "weights",
        "facts.working_set",
        text,
        "SELECT eval, sum(bytes) AS distinct_bytes FROM (SELECT DISTINCT eval, tensor, tensor_offset, bytes FROM accesses \
         WHERE kind = 'weight') AS touched GROUP BY eval ORDER BY eval",
    );
}

pub(super) fn kv(facts: &Facts, list: &mut List) {
    let points = &facts.traffic.kv_growth.points;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return;
    };
    if last.read_bytes == 0 {
        return;
    }
    let read = bytes(last.read_bytes);
    // On a device positions lie in its memory, and nobody has them.
    let has_context = points.iter().all(|p| p.context_tokens > 0);
    let text = if !facts.devices.is_empty() && !has_context {
        let first = bytes(first.read_bytes);
        format!("a pass reads {first} of KV cache at first, and {read} in the end")
    } else if first.eval == last.eval {
        let context = count(last.context_tokens, "token");
        format!("an evaluation reads {read} of KV cache at a context of {context}")
    } else if points.iter().all(|p| p.read_bytes == last.read_bytes) {
        format!(
            "every evaluation reads {read} of KV cache, whatever the context ({} to {} tokens)",
            first.context_tokens, last.context_tokens
        )
    } else {
        format!(
            "an evaluation reads {} of KV cache at a context of {} and {read} at {}",
            bytes(first.read_bytes),
            count(first.context_tokens, "token"),
            last.context_tokens
        )
    };
    list.exact(
        "kv",
        "facts.traffic.kv_growth",
        text,
        "SELECT eval, sum(CASE WHEN direction = 'read' THEN bytes ELSE 0 END) AS read_bytes, \
         sum(CASE WHEN direction = 'write' THEN bytes ELSE 0 END) AS written_bytes FROM accesses \
         WHERE kind = 'kv_cache' GROUP BY eval ORDER BY eval",
    );
}

pub(super) fn attention(facts: &Facts, list: &mut List) {
    let projections = &facts.heads.projections;
    let read = |of: &str| {
        projections
            .iter()
            .find(|p| p.of == of)
            .map_or(0, |p| p.read_bytes)
    };
    let (weights, cache) = (
        ["q", "k", "v", "o"].map(read),
        ["cache_k", "cache_v"].map(read),
    );
    let total: u64 = projections.iter().map(|p| p.read_bytes).sum();
    if total == 0 {
        return;
    }
    let part = |bytes: u64| percent(share(bytes, total));
    let mut text = format!(
        "of the bytes that attention reads, Q is {}, K {}, V {}, O {}, and the KV cache {}",
        part(weights[0]),
        part(weights[1]),
        part(weights[2]),
        part(weights[3]),
        part(cache[0] + cache[1])
    );
    let heads = |of: &str| {
        facts
            .heads
            .heads
            .iter()
            .filter(|h| h.of == of)
            .map(|h| h.head + 1)
            .max()
            .unwrap_or(0)
    };
    if heads("q") > 0 && heads("cache_k") > 0 {
        text += &format!(
            "; {} heads of Q share {} of K and V",
            heads("q"),
            heads("cache_k")
        );
    }
    list.exact(
        "attention",
        "facts.heads",
        text,
        "SELECT coalesce(role, substr(tensor_name, 1, 7)) AS part, sum(bytes) AS bytes FROM accesses \
         WHERE direction = 'read' AND (component = 'attention' OR kind = 'kv_cache') GROUP BY 1 ORDER BY bytes DESC",
    );
}
