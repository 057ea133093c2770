//! What the kernel did underneath: verdicts, reads again, faults, evictions.

use super::{
    Finding, List,
    text::{bytes, count, percent, share, time},
};
use crate::underneath::{UnderneathResults, verdict::PhaseVerdict};

const TOPIC: &str = "underneath";

/// Everything worth saying about it, the verdicts first.
pub fn underneath(results: &UnderneathResults) -> Vec<Finding> {
    let mut list = List::default();
    for verdict in &results.verdicts {
        verdict_of(verdict, results.disk.is_some(), &mut list);
    }
    reread(results, &mut list);
    disk(results, &mut list);
    faults(results, &mut list);
    stall(results, &mut list);
    residency(results, &mut list);
    list.0
}

/// Nothing where too little was recorded.
fn verdict_of(verdict: &PhaseVerdict, has_io: bool, list: &mut List) {
    let what = match (verdict.verdict, verdict.or) {
        (Some(bound), Some(or)) => format!("{} or {}", bound.name(), or.name()),
        (Some(bound), None) => bound.name().to_owned(),
        (None, _) => return,
    };
    let text = format!("{}: bound by {what}: {}", verdict.phase, verdict.why);
    let evidence = "underneath.verdicts";
    match has_io {
        // Tables have no union of times: these are the bytes and faults it rests on.
        true => list.close(
            TOPIC,
            evidence,
            text,
            format!(
                "SELECT count(DISTINCT request) AS requests, sum(bytes) AS bytes, min(issued_nanos) AS first, \
                 max(completed_nanos) AS last FROM io WHERE phase = '{}' AND kind = 'read' AND file IS NOT NULL",
                verdict.phase
            ),
        ),
        false => list.without_query(TOPIC, evidence, text),
    }
}

fn reread(results: &UnderneathResults, list: &mut List) {
    let Some(reread) = results
        .reread
        .as_ref()
        .filter(|reread| reread.read_bytes > 0)
    else {
        return;
    };
    let mut text = format!(
        "{} were read from a model of {}, {:.2} times its size; {} of that ({}) had been read before",
        bytes(reread.read_bytes),
        bytes(results.model_bytes),
        reread.factor,
        percent(share(reread.read_again_bytes, reread.read_bytes)),
        bytes(reread.read_again_bytes)
    );
    let generated = reread.by_phase.iter().find(|row| row.phase == "generate");
    if let Some(per_token) = generated.and_then(|row| row.bytes_per_token) {
        text += &format!(
            "; a generated token reads {}",
            bytes(per_token.round() as u64)
        );
    }
    list.exact(
        TOPIC,
        "underneath.reread",
        text,
        "SELECT phase, sum(bytes) AS bytes FROM io WHERE kind = 'read' AND file IS NOT NULL GROUP BY phase",
    );
    let tensors = results.most_read();
    let Some(first) = tensors.first().filter(|first| first.read_bytes > 0) else {
        return;
    };
    let mut by_layer: Vec<_> = results
        .by_layer
        .iter()
        .filter(|l| l.read_bytes > 0)
        .collect();
    by_layer.sort_by(|a, b| b.reread_factor.total_cmp(&a.reread_factor));
    let mut text = format!(
        "{} was read most: {}, {:.1} times its size ({} times whole)",
        first.name,
        bytes(first.read_bytes),
        first.reread_factor,
        first.whole_reads
    );
    if let (Some(most), Some(least)) = (by_layer.first(), by_layer.last()) {
        text += &format!(
            "; for its size most was read of {} ({:.1} times), least of {} ({:.1} times)",
            most.name, most.reread_factor, least.name, least.reread_factor
        );
    }
    list.exact(
        TOPIC,
        "underneath.by_tensor",
        text,
        "SELECT * FROM reads_by_tensor ORDER BY bytes DESC LIMIT 20",
    );
}

fn disk(results: &UnderneathResults, list: &mut List) {
    let Some(disk) = results.disk.as_ref().filter(|disk| disk.requests > 0) else {
        return;
    };
    list.close(
        TOPIC,
        "underneath.disk",
        format!(
            "the disk saw {} for the model, half of them of at most {}; {} of the bytes follow the read before \
             ({} within {}), {} are read-ahead, {:.1} requests are outstanding while it is busy, at {}/s",
            count(disk.requests, "read"),
            bytes(disk.median_bytes),
            percent(disk.sequential_share),
            percent(disk.near_share),
            bytes(disk.gap_bytes),
            percent(disk.read_ahead_share),
            disk.mean_depth,
            bytes(disk.bytes_per_second)
        ),
        "SELECT * FROM read_sizes ORDER BY from_bytes",
    );
}

fn faults(results: &UnderneathResults, list: &mut List) {
    let Some(faults) = results
        .faults
        .as_ref()
        .filter(|faults| faults.model.sum() > 0)
    else {
        return;
    };
    let outside = faults.by_phase.iter().find(|row| row.phase == "none");
    let outside = outside.map_or(0, |row| row.major + row.minor);
    let mut text = format!(
        "{} and {} in the model's files ({} outside of evaluations); {} of them have a tensor",
        count(faults.model.major, "major fault"),
        count(faults.model.minor, "minor fault"),
        outside,
        percent(faults.with_tensor_share)
    );
    if let Some(waits) = faults.waits.as_ref().filter(|waits| waits.threads > 0) {
        text += &format!(
            "; those that read or waited for a read ({}) took {} on average",
            waits.major + waits.minor,
            time(waits.mean_nanos as f64)
        );
    }
    list.exact(
        TOPIC,
        "underneath.faults",
        text,
        "SELECT kind, component, count(*) AS faults FROM faults WHERE file IS NOT NULL GROUP BY kind, component \
         ORDER BY faults DESC",
    );
}

fn stall(results: &UnderneathResults, list: &mut List) {
    let stall = results.stall.as_ref();
    let Some(stall) = stall.filter(|stall| stall.total.io_nanos > 0) else {
        return;
    };
    let Some(worst) = stall.by_node.first() else {
        return;
    };
    let place = match worst.layer {
        Some(layer) => format!("{} of layer {layer}", worst.op),
        None => worst.op.clone(),
    };
    list.close(
        TOPIC,
        "underneath.stall",
        format!(
            "of {} in nodes, {} had a read of the model outstanding; most of it in {place} ({}: {}, {} of its time)",
            time(stall.total.nanos as f64),
            percent(stall.total.io_share),
            worst.phase,
            time(worst.sum.io_nanos as f64),
            percent(worst.sum.io_share)
        ),
        "SELECT phase, op, count(DISTINCT request) AS requests, sum(bytes) AS bytes FROM io \
         WHERE kind = 'read' AND file IS NOT NULL GROUP BY phase, op ORDER BY bytes DESC",
    );
}

fn residency(results: &UnderneathResults, list: &mut List) {
    let Some(residency) = results.residency.as_ref().filter(|r| r.samples > 0) else {
        return;
    };
    let mut text = format!(
        "{} of the model was in memory on average ({} to {})",
        percent(residency.mean_share),
        bytes(residency.least_bytes),
        bytes(residency.most_bytes)
    );
    if let Some(evicted) = residency.evicted_bytes.filter(|evicted| *evicted > 0) {
        text += &format!(
            "; the kernel dropped {} of tensors between samples",
            bytes(evicted)
        );
        let most = results.by_component.iter();
        let most = most.max_by_key(|sum| sum.evicted_bytes.unwrap_or(0));
        if let Some(most) = most {
            text += &format!(
                ", {} of it of component {}",
                percent(share(most.evicted_bytes.unwrap_or(0), evicted)),
                most.name
            );
        }
    } else if residency.lost_bytes > 0 {
        text += &format!(
            "; tensors lost {} between samples",
            bytes(residency.lost_bytes)
        );
    }
    list.close(
        TOPIC,
        "underneath.residency",
        text,
        "SELECT token, component, sum(resident_bytes) AS resident_bytes FROM residency GROUP BY token, component \
         ORDER BY token, component",
    );
}
