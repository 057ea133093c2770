//! What the model reads: weights, tokens, time, hot and cold, experts.

use super::{
    List,
    text::{self, bytes, count, percent, share},
};
use crate::{
    experts::LayerExperts,
    facts::Facts,
    hot::{GroupHeat, Measure, Part},
};

/// Shares that differ by less than a point are one number.
const SAME_SHARE: f64 = 0.01;

/// What makes the other numbers doubtful comes first.
pub(super) fn doubts(facts: &Facts, list: &mut List) {
    let flagged = facts.traffic.flagged_evaluations;
    if flagged > 0 {
        list.exact(
            "doubts",
            "facts.traffic.flagged_evaluations",
            format!(
                "{} had other ticks or indices than the graph predicts; their times cannot be assigned to nodes with certainty",
                count(flagged, "evaluation")
            ),
            "SELECT eval, phase, flags FROM evals WHERE flags IN (1, 2, 3, 5, 6, 7)",
        );
    }
}

pub(super) fn weights(facts: &Facts, list: &mut List) {
    let hot = &facts.hot;
    let Some(first) = hot.by_component.first().filter(|group| group.bytes > 0) else {
        return;
    };
    let size_share = |group: &GroupHeat| share(group.size_bytes.unwrap_or(0), hot.model_bytes);
    let gap = |group: &GroupHeat| size_share(group) - group.share_of_bytes;
    let text = if hot.by_component.iter().all(|g| gap(g).abs() < SAME_SHARE) {
        in_proportion(&hot.by_component)
    } else {
        let mut text = match gap(first).abs() < SAME_SHARE {
            true => format!(
                "{} of the weights, and of the weight bytes read, are {}",
                percent(first.share_of_bytes),
                component_text(first)
            ),
            false => format!(
                "{} of the weight bytes read are {}, which is {} of the weights",
                percent(first.share_of_bytes),
                component_text(first),
                percent(size_share(first))
            ),
        };
        // The one that is read least for its size.
        let others = hot.by_component.iter().filter(|g| g.name != first.name);
        let least = others.max_by(|a, b| gap(a).total_cmp(&gap(b)));
        if let Some(least) = least.filter(|least| gap(least) > SAME_SHARE) {
            text += &format!(
                "; {} is {} of the weights and {} of the bytes read",
                component_text(least),
                percent(size_share(least)),
                percent(least.share_of_bytes)
            );
        }
        text
    };
    list.exact(
        "weights",
        "facts.hot.by_component",
        text,
        "SELECT component, sum(bytes) AS bytes, 100.0 * sum(bytes) / (SELECT sum(bytes) FROM accesses \
         WHERE kind = 'weight' AND direction = 'read') AS percent FROM accesses \
         WHERE kind = 'weight' AND direction = 'read' GROUP BY component ORDER BY bytes DESC",
    );
    if hot.never_read_bytes > 0 {
        let slices = hot
            .units
            .iter()
            .filter(|u| u.accesses == 0 && u.expert.is_some())
            .count();
        let what = if slices > 0 {
            format!(", {} of experts among them", count(slices as u64, "slice"))
        } else {
            String::new()
        };
        list.close(
            "weights",
            "facts.hot.never_read_bytes",
            format!(
                "{} of the weights ({}) were never read in this run{what}",
                percent(share(hot.never_read_bytes, hot.model_bytes)),
                bytes(hot.never_read_bytes)
            ),
            "SELECT tensor_name, count(DISTINCT expert) AS experts_read FROM accesses \
             WHERE kind = 'weight' AND expert IS NOT NULL GROUP BY tensor_name ORDER BY experts_read, tensor_name",
        );
    }
}

/// Every part is read as often as every other: its share is said once.
fn in_proportion(groups: &[GroupHeat]) -> String {
    let named = groups.iter().filter(|g| g.share_of_bytes >= SAME_SHARE);
    let parts: Vec<String> = named
        .map(|g| format!("{} {}", component_text(g), percent(g.share_of_bytes)))
        .collect();
    format!(
        "weights are read in proportion to their size: {}",
        parts.join(", ")
    )
}

fn component_text(group: &GroupHeat) -> String {
    match (group.name.as_str(), &group.tied_to) {
        ("expert", _) => "experts".to_owned(),
        ("ffn", _) => "feed-forward layers".to_owned(),
        ("norm", _) => "norms".to_owned(),
        ("router", _) => "routers".to_owned(),
        ("shared_expert", _) => "shared experts".to_owned(),
        ("embedding", _) => "the embedding".to_owned(),
        ("output", None) => "the output head".to_owned(),
        ("output", Some(_)) => "the output head (tied to the embedding)".to_owned(),
        (other, _) => other.replace('_', " "),
    }
}

pub(super) fn tokens(facts: &Facts, list: &mut List) {
    for phase in facts.traffic.phases.iter().filter(|p| p.tokens > 0) {
        let of_kind = |kind: &str| {
            let rows = facts.traffic.per_token.iter();
            let rows = rows.filter(|row| row.phase == phase.phase && row.kind == kind);
            bytes(rows.map(|row| row.bytes_per_token).sum::<f64>().round() as u64)
        };
        let seconds = phase.nanos as f64 / 1e9;
        let speed = if seconds > 0.0 && phase.untimed_evaluations == 0 {
            format!(", at {:.1} tokens/s", phase.tokens as f64 / seconds)
        } else {
            String::new()
        };
        let at_least = match facts.devices.experts.are_all() {
            true => "",
            false => "at least ",
        };
        list.exact(
            "tokens",
            "facts.traffic.per_token",
            format!(
                "{}: a token touches {at_least}{} of weights, {} of KV cache and {} of activations ({} in {}{speed})",
                phase.phase,
                of_kind("weight"),
                of_kind("kv_cache"),
                of_kind("activation"),
                count(phase.tokens, "token"),
                count(phase.evaluations, "evaluation"),
            ),
            format!(
                "SELECT kind, direction, sum(bytes) * 1.0 / (SELECT sum(tokens) FROM evals WHERE phase = '{0}') \
                 AS bytes_per_token FROM accesses WHERE phase = '{0}' GROUP BY kind, direction ORDER BY kind, direction",
                phase.phase
            ),
        );
    }
}

pub(super) fn time(facts: &Facts, list: &mut List) {
    let mut by_op: std::collections::BTreeMap<&str, u64> = Default::default();
    for row in &facts.traffic.times {
        *by_op.entry(&row.op).or_default() += row.nanos;
    }
    let total: u64 = by_op.values().sum();
    let mut ops: Vec<(&str, u64)> = by_op.into_iter().collect();
    ops.sort_by_key(|&(_, nanos)| std::cmp::Reverse(nanos));
    if total == 0 {
        return;
    }
    let top: Vec<String> = ops
        .iter()
        .take(3)
        .map(|(op, nanos)| format!("{op} {}", percent(share(*nanos, total))))
        .collect();
    list.exact(
        "time",
        "facts.traffic.times",
        format!("of {} in nodes, {}", text::time(total as f64), top.join(", ")),
        "SELECT op, count(*) AS executions, sum(duration_nanos) AS nanos FROM nodes GROUP BY op ORDER BY nanos DESC",
    );
}

pub(super) fn hot_and_cold(facts: &Facts, list: &mut List) {
    let hot = &facts.hot;
    let Some(ranking) = hot
        .rankings
        .iter()
        .find(|r| r.measure == Measure::BytesPerByte)
    else {
        return;
    };
    if ranking.hot.units == 0 || ranking.order.is_empty() {
        return;
    }
    let uses = |part: &Part| share(part.bytes, part.size_bytes);
    let is_even = uses(&ranking.hot) < uses(&ranking.cold) * 1.02;
    let text = if is_even {
        let evaluations = facts.traffic.phases.iter().map(|p| p.evaluations).sum();
        let bytes: u64 = hot.units.iter().map(|u| u.bytes).sum();
        format!(
            "every weight is read equally often: each byte {} in {}",
            count(share(bytes, hot.model_bytes).round() as u64, "time"),
            count(evaluations, "evaluation")
        )
    } else {
        format!(
            "the hottest {} of the {} units (weights and expert slices), by use of each byte, are {} of the weights and \
             {} of the bytes read; the coldest {} are {} and {}",
            percent(ranking.thresholds.hot),
            hot.units.len(),
            percent(ranking.hot.share_of_size),
            percent(ranking.hot.share_of_bytes),
            percent(ranking.thresholds.cold),
            percent(ranking.cold.share_of_size),
            percent(ranking.cold.share_of_bytes)
        )
    };
    // Where every read is of a whole unit, accesses are uses of each byte.
    list.close(
        "hot",
        "facts.hot.rankings",
        text,
        "SELECT tensor_name, expert, count(*) AS accesses, sum(bytes) AS bytes FROM accesses \
         WHERE kind = 'weight' GROUP BY tensor_name, expert ORDER BY accesses DESC, bytes DESC",
    );
}

pub(super) fn experts(facts: &Facts, list: &mut List) {
    let experts = &facts.experts;
    let layers: Vec<&LayerExperts> = experts.layers.iter().filter(|l| l.choices > 0).collect();
    if layers.is_empty() {
        return;
    }
    let mean = |of: &dyn Fn(&LayerExperts) -> f64| {
        layers.iter().map(|l| of(l)).sum::<f64>() / layers.len() as f64
    };
    let hottest = layers
        .iter()
        .flat_map(|l| l.experts.iter().map(|e| (l.layer, e)))
        .max_by(|a, b| a.1.temperature.total_cmp(&b.1.temperature));
    if let Some((layer, expert)) = hottest {
        list.exact(
            "experts",
            "facts.experts.layers",
            format!(
                "experts are chosen {}: the entropy is {} of an even choice; the hottest is expert {} of layer {layer}, \
                 chosen {:.1} times as often as the average ({} of {} choices)",
                if mean(&|l| l.normalised_entropy) > 0.95 { "evenly" } else { "unevenly" },
                percent(mean(&|l| l.normalised_entropy)),
                expert.expert,
                expert.temperature,
                expert.choices,
                layers.iter().find(|l| l.layer == layer).map_or(0, |l| l.choices)
            ),
            "SELECT layer, expert, count(*) AS choices FROM routing GROUP BY layer, expert ORDER BY choices DESC",
        );
    }
    // Between two evaluations whose experts are known there may be others.
    if facts.devices.experts.are_all() {
        list.close(
            "experts",
            "facts.experts.layers",
            format!(
                "{} of the experts that an evaluation uses were used by the one before it too",
                percent(mean(&|l| l.repeat_share))
            ),
            "SELECT count(b.expert) * 1.0 / count(*) AS share FROM (SELECT DISTINCT eval, layer, expert FROM routing) a \
             LEFT JOIN (SELECT DISTINCT eval, layer, expert FROM routing) b \
             ON b.eval = a.eval - 1 AND b.layer = a.layer AND b.expert = a.expert",
        );
    }
    let moving: Vec<&&LayerExperts> = layers.iter().filter(|l| l.stability.windows > 1).collect();
    if !moving.is_empty() {
        let of = |get: &dyn Fn(&LayerExperts) -> f64| {
            moving.iter().map(|l| get(l)).sum::<f64>() / moving.len() as f64
        };
        let jaccard = of(&|l| l.stability.mean_jaccard);
        list.without_query(
            "experts",
            "facts.experts.layers.stability",
            format!(
                "the hot set of experts {} through the run: hot sets of neighbouring windows share {} of their members, \
                 those of the first and the last {}",
                if jaccard < 0.5 { "moves" } else { "stays" },
                percent(jaccard),
                percent(of(&|l| l.stability.first_to_last_jaccard))
            ),
        );
    }
    let pair = layers
        .iter()
        .filter_map(|l| l.pairs.first().map(|pair| (l.layer, pair)))
        .max_by(|a, b| a.1.lift.total_cmp(&b.1.lift));
    if let Some((layer, pair)) = pair.filter(|(_, pair)| pair.lift > 1.0) {
        let [a, b] = pair.experts;
        list.exact(
            "experts",
            "facts.experts.layers.pairs",
            format!(
                "experts {a} and {b} of layer {layer} are chosen together for {}, {:.1} times as often as by chance",
                count(pair.tokens, "token"),
                pair.lift
            ),
            format!(
                "SELECT count(*) AS tokens FROM routing a JOIN routing b ON a.eval = b.eval AND a.token = b.token AND \
                 a.layer = b.layer WHERE a.layer = {layer} AND a.expert = {a} AND b.expert = {b}"
            ),
        );
    }
    preference(&layers, list);
}

/// The token whose expert is surest, of those that came often.
fn preference(layers: &[&LayerExperts], list: &mut List) {
    let all = layers
        .iter()
        .flat_map(|l| l.experts.iter().map(|e| (l.layer, e)));
    let all = all.flat_map(|(layer, e)| e.prefers.iter().map(move |p| (layer, e.expert, p)));
    let best = all.max_by(|a, b| {
        // What a token chose by more than chance.
        let weight = |p: &crate::experts::Preference| p.choices as f64 * (1.0 - 1.0 / p.lift);
        weight(a.2).total_cmp(&weight(b.2))
    });
    if let Some((layer, expert, preference)) = best {
        let token = match &preference.text {
            Some(text) => format!("{text:?}"),
            None => format!("number {}", preference.token_id),
        };
        list.exact(
            "experts",
            "facts.experts.layers.experts.prefers",
            format!(
                "expert {expert} of layer {layer} prefers the token {token}: chosen {} of the {} times it came, {:.1} times \
                 as often as for other tokens",
                preference.choices, preference.occurrences, preference.lift
            ),
            format!(
                "SELECT t.text, count(*) AS choices FROM routing r JOIN tokens t ON t.token = r.token \
                 WHERE r.layer = {layer} AND r.expert = {expert} GROUP BY t.text ORDER BY choices DESC"
            ),
        );
    }
}
