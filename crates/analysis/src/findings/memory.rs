//! How memory is used: order, working set, KV cache, attention, opportunities.

use super::{
    List,
    text::{bytes, percent, share},
};
use crate::{
    facts::Facts,
    opportunities::{BudgetOutlook, Opportunities, Strategy},
};

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
        let experts = if determinism.experts.predictions > 0 {
            format!(
                ", and {} of those to experts",
                percent(determinism.experts.share())
            )
        } else {
            String::new()
        };
        list.close(
            "order",
            "facts.determinism",
            format!(
                "what followed last time predicts {} of the accesses to dense weights{experts}",
                percent(determinism.dense.share())
            ),
            format!(
                "SELECT 'dense' AS part, {} UNION ALL SELECT 'experts' AS part, {}",
                predicted_share("AND expert IS NULL", "1 = 1"),
                predicted_share("", "next LIKE '%#%'")
            ),
        );
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
    let windows = &facts.working_set.windows;
    let complete: Vec<String> = windows
        .iter()
        .filter(|w| w.complete > 0)
        .map(|w| {
            let mean = bytes(w.mean_bytes.round() as u64);
            match w.evaluations {
                1 => format!("{mean} in one evaluation"),
                n => format!("{mean} in {n}"),
            }
        })
        .collect();
    if complete.is_empty() || facts.working_set.distinct_bytes == 0 {
        return;
    }
    list.close(
        "weights",
        "facts.working_set",
        format!(
            "distinct bytes of weights touched: {}, {} in the whole run",
            complete.join(", "),
            bytes(facts.working_set.distinct_bytes)
        ),
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
    list.exact(
        "kv",
        "facts.traffic.kv_growth",
        format!(
            "an evaluation reads {} of KV cache at a context of {} tokens and {} at {}",
            bytes(first.read_bytes),
            first.context_tokens,
            bytes(last.read_bytes),
            last.context_tokens
        ),
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

/// The best way where it beats what llama.cpp does today, at the budgets nearest to
/// a quarter, half and three quarters of the weights; a page has no room for all.
pub(super) fn opportunities(opportunities: &Opportunities, list: &mut List) {
    let quarters = [1, 2, 3].map(|n| opportunities.footprint_bytes / 4 * n);
    let budgets = opportunities.budgets.iter().enumerate();
    let nearest = quarters.map(|wanted| {
        let distance = |(_, o): &(usize, &BudgetOutlook)| o.budget_bytes.abs_diff(wanted);
        budgets.clone().min_by_key(distance).map(|(at, _)| at)
    });
    let mut shown: Vec<usize> = nearest.into_iter().flatten().collect();
    shown.dedup();
    for outlook in shown.into_iter().map(|at| &opportunities.budgets[at]) {
        let of = |wanted: Strategy| outlook.strategies.iter().find(|s| s.strategy == wanted);
        let Some(best) = outlook.best.and_then(of) else {
            continue;
        };
        let (Some(stock), Some(reads)) = (
            of(Strategy::PageCache).and_then(|s| s.disk_bytes_per_token),
            best.disk_bytes_per_token,
        ) else {
            continue;
        };
        if best.strategy == Strategy::PageCache {
            continue;
        }
        let way = match best.strategy {
            Strategy::PageCache => "the page cache",
            Strategy::Stream => "streaming in order",
            Strategy::PinAndStream => "pinning the densest weights and streaming the rest",
            Strategy::ExpertCache => "pinning the dense weights and caching experts",
        };
        let speed = match (best.tokens_per_second, best.speedup) {
            (Some(speed), Some(speedup)) => {
                format!(", at most {speed:.1} tokens/s ({speedup:.1} times as fast)")
            }
            _ => String::new(),
        };
        list.without_query(
            "opportunities",
            "caches.opportunities.budgets",
            format!(
                "with {} of memory for weights ({} of those used), {way} reads {} per token where the page cache reads {}{speed}",
                bytes(outlook.budget_bytes),
                percent(share(outlook.budget_bytes, opportunities.footprint_bytes)),
                bytes(reads),
                bytes(stock)
            ),
        );
    }
}
