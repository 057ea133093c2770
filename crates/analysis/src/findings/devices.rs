//! What devices did, as sentences: time, gaps, copies, memory, what their nodes reached.

use kernelio::card::CardCeiling;

use super::{
    Finding, List,
    text::{bytes, count, percent, share, time},
};
use crate::{
    devices::{DeviceClass, DeviceFacts, DevicePhase, DeviceResults},
    facts::Facts,
};

/// Classes of less of a phase's time are not worth a sentence.
const MIN_SHARE: f64 = 0.05;
/// The first few of each device are.
const MAX_CLASSES: usize = 4;
/// Copies that are named; the table has all.
const MAX_COPIES: usize = 3;

/// What stands before every sum over experts.
pub(super) fn experts_known(facts: &Facts, list: &mut List) {
    let experts = &facts.devices.experts;
    if facts.devices.is_empty() || experts.are_all() {
        return;
    }
    list.without_query(
        "doubts",
        "facts.devices.experts",
        format!(
            "which experts were read is known for {} of {}: a device chose them, and they were read back in these; experts of \
             the others are not counted, and nothing is said that needs all of them",
            experts.known,
            count(experts.evaluations, "evaluation")
        ),
    );
}

/// Sentences about each device; `cards` is what they allow, as far as that was measured.
pub fn devices(facts: &Facts, cards: &[CardCeiling]) -> Vec<Finding> {
    let mut list = List::default();
    for device in &facts.devices.devices {
        for phase in &device.phases {
            times(device, phase, facts, &mut list);
        }
        for phase in &device.phases {
            gaps(device, phase, facts, &mut list);
        }
        copies(device, &facts.devices, &mut list);
        memory(device, &mut list);
        classes(device, cards, &mut list);
    }
    list.0
}

fn times(device: &DeviceFacts, phase: &DevicePhase, facts: &Facts, list: &mut List) {
    let name = &device.device;
    let tokens = facts.devices.of_phase(&phase.phase).map_or(0, |p| p.tokens);
    let took = match (phase.timed_evaluations, tokens) {
        (0, _) => "how long they took was not measured".to_owned(),
        (timed, tokens) if timed == phase.evaluations && tokens > 0 => format!(
            "they took {} per token",
            time(phase.nanos as f64 / tokens as f64)
        ),
        (timed, _) => format!(
            "{timed} of them were timed and took {} each",
            time(phase.nanos as f64 / timed as f64)
        ),
    };
    list.exact(
        "devices",
        "facts.devices.devices.phases",
        format!(
            "{}: {name} computed {}; {took}; node times were measured in {} of {}",
            phase.phase,
            count(phase.evaluations, "evaluation"),
            phase.measured_evaluations,
            count(phase.evaluations, "evaluation"),
        ),
        format!(
            "SELECT count(*) AS evaluations, count(device_end_nanos) AS timed, sum(device_end_nanos - device_begin_nanos) AS nanos, \
             (SELECT count(DISTINCT k.eval) FROM kernels k JOIN evals e ON e.eval = k.eval WHERE k.end_nanos IS NOT NULL AND \
             e.device = '{name}' AND e.phase = '{0}') AS measured FROM evals WHERE device = '{name}' AND phase = '{0}'",
            phase.phase
        ),
    );
}

fn gaps(device: &DeviceFacts, phase: &DevicePhase, facts: &Facts, list: &mut List) {
    let name = &device.device;
    if let Some(kernels) = phase.kernels.checked_div(phase.measured_evaluations) {
        let each = |nanos: u64| nanos as f64 / phase.measured_evaluations as f64;
        let tokens = facts.devices.of_phase(&phase.phase).map_or(0, |p| p.tokens);
        let evaluations = phase.evaluations as f64 / tokens.max(1) as f64;
        // CUPTI is slow at launching, and fast at running.
        let cost = match tokens {
            0 => String::new(),
            _ => format!(
                "; that costs a token at most {}, because kernels that are timed are launched later",
                time(each(phase.gap_nanos()) * evaluations)
            ),
        };
        list.close(
            "devices",
            "facts.devices.devices.phases",
            format!(
                "{}: where node times were measured, no kernel ran on {name} for {} of the time from an evaluation's first kernel to \
                 its last: {} of {}, between {} kernels{cost}",
                phase.phase,
                percent(share(phase.gap_nanos(), phase.span_nanos)),
                time(each(phase.gap_nanos())),
                time(each(phase.span_nanos)),
                kernels,
            ),
            format!(
                "SELECT 1 - sum(ran) * 1.0 / sum(span) AS share FROM (SELECT k.eval, sum(k.exclusive_nanos) AS ran, \
                 max(k.end_nanos) - min(k.begin_nanos) AS span FROM kernels k JOIN evals e ON e.eval = k.eval \
                 WHERE k.device = '{name}' AND k.end_nanos IS NOT NULL AND e.phase = '{}' GROUP BY k.eval) AS each",
                phase.phase
            ),
        );
    }
    if let Some(between) = phase.between.filter(|_| phase.phase == "generate") {
        // Times of the evaluations between these gaps, near enough: all of the phase.
        let all = between.nanos.saturating_add(phase.nanos);
        let rows = facts.traffic.devices.iter();
        let host: u64 = rows
            .filter(|row| row.device == "CPU" && row.phase == phase.phase)
            .map(|row| row.nanos)
            .sum();
        list.close(
            "devices",
            "facts.devices.devices.phases.between",
            format!(
                "{}: between evaluations {name} had nothing to do for {} of the time, {} from one to the next; the processor \
                 computed nodes for {} of it",
                phase.phase,
                percent(share(between.nanos, all)),
                time(between.nanos as f64 / between.gaps as f64),
                percent(share(host.min(between.nanos), between.nanos)),
            ),
            format!(
                "SELECT sum(gap) * 1.0 / (sum(gap) + sum(nanos)) AS share FROM (SELECT device_end_nanos - device_begin_nanos AS nanos, \
                 device_begin_nanos - lag(device_end_nanos) OVER (ORDER BY eval) AS gap FROM evals WHERE device = '{name}' AND \
                 phase = '{}') AS each",
                phase.phase
            ),
        );
    }
}

fn copies(device: &DeviceFacts, results: &DeviceResults, list: &mut List) {
    let name = &device.device;
    let Some(generate) = results.of_phase("generate").filter(|p| p.passes > 0) else {
        return;
    };
    let per_pass = |sum: u64| bytes((sum as f64 / generate.passes as f64).round() as u64);
    for (way, words) in [
        ("host_to_device", "to"),
        ("device_to_host", "from"),
        ("device_to_device", "on"),
    ] {
        let rows = device.copies.iter();
        let rows: Vec<_> = rows
            .filter(|row| row.phase == "generate" && row.way == way)
            // What happens now and then is in the table.
            .filter(|row| row.calls * 10 >= generate.passes * 9)
            .collect();
        if rows.is_empty() {
            continue;
        }
        let named = rows.iter().take(MAX_COPIES);
        let named = named.map(|row| format!("{} {}", row.tensor, per_pass(row.bytes)));
        let named: Vec<String> = named.collect();
        let others = rows.len() - named.len();
        let more = match others {
            0 => String::new(),
            n => format!(", and {n} more"),
        };
        let calls: u64 = rows.iter().map(|row| row.calls).sum();
        list.close(
            "devices",
            "facts.devices.devices.copies",
            format!(
                "each of {} that generate copies {} {words} {name} in {}: {}{more}",
                passes(generate.passes),
                per_pass(rows.iter().map(|row| row.bytes).sum()),
                count((calls as f64 / generate.passes as f64).round() as u64, "call"),
                named.join(", "),
            ),
            format!(
                "SELECT tensor_name, count(*) AS calls, sum(bytes) AS bytes FROM copies WHERE device = '{name}' AND \
                 way = '{way}' GROUP BY tensor_name ORDER BY bytes DESC"
            ),
        );
    }
    let weights = device.copies.iter().filter(|row| row.kind == "weight");
    let weights: u64 = weights
        .filter(|row| row.phase != "load")
        .map(|row| row.bytes)
        .sum();
    if weights > 0 {
        list.close(
            "devices",
            "facts.devices.devices.copies",
            format!(
                "{} of weights were copied to or from {name} while it computed",
                bytes(weights)
            ),
            format!(
                "SELECT way, sum(bytes) AS bytes FROM copies WHERE device = '{name}' AND kind = 'weight' GROUP BY way"
            ),
        );
    }
}

fn passes(count: u64) -> String {
    match count {
        1 => "the 1 pass".to_owned(),
        n => format!("the {n} passes"),
    }
}

fn memory(device: &DeviceFacts, list: &mut List) {
    let of = |kinds: &[&str]| -> String {
        let rows = device.memory.iter();
        let rows = rows.filter(|row| kinds.contains(&&*row.kind));
        bytes(rows.map(|row| row.bytes).sum())
    };
    if device.memory.is_empty() {
        return;
    }
    let whole = match device.memory_bytes {
        Some(all) => format!(
            "; it has {}, of which the driver and other programs take what is not seen here",
            bytes(all)
        ),
        None => String::new(),
    };
    list.close(
        "devices",
        "facts.devices.devices.memory",
        format!(
            "in the memory of {} lie {} of weights, {} of KV cache and {} of activations and inputs{whole}",
            device.device,
            of(&["weight"]),
            of(&["kv_cache"]),
            of(&["activation", "input"]),
        ),
        format!(
            "SELECT kind, component, count(*) AS tensors, sum(size_bytes) AS bytes FROM tensors WHERE device = '{}' \
             GROUP BY kind, component ORDER BY bytes DESC",
            device.device
        ),
    );
}

fn classes(device: &DeviceFacts, cards: &[CardCeiling], list: &mut List) {
    for phase in &device.phases {
        let of_phase = || {
            let classes = device.classes.iter();
            classes.filter(|class| class.phase == phase.phase)
        };
        let all: u64 = of_phase().map(|class| class.nanos).sum();
        let notable = of_phase().filter(|class| share(class.nanos, all) >= MIN_SHARE);
        for class in notable.take(MAX_CLASSES) {
            list.close(
                "devices",
                "facts.devices.devices.classes",
                format!(
                    "{}: {} on {}, {} of the time of nodes that were measured, {}{}",
                    phase.phase,
                    class.name(),
                    device.device,
                    percent(share(class.nanos, all)),
                    reached(class, &device.device, cards),
                    cells(class),
                ),
                format!(
                    "SELECT n.op, count(*) AS executions, sum(n.duration_nanos) AS nanos FROM nodes n JOIN evals e ON e.eval = n.eval \
                     WHERE n.device = '{}' AND n.end_nanos IS NOT NULL AND e.phase = '{}' GROUP BY n.op ORDER BY nanos DESC",
                    device.device, phase.phase
                ),
            );
        }
    }
}

/// What was counted of the KV cache, where its views have more cells than are in use.
fn cells(class: &DeviceClass) -> String {
    if class.whole_view_bytes > 0 {
        return format!(
            "; {} of these bytes are views of the KV cache whose cells may not all be in use",
            percent(share(class.whole_view_bytes, class.bytes()))
        );
    }
    if class.unused_kv_bytes > 0 {
        let view = class.kv_bytes.saturating_add(class.unused_kv_bytes);
        return format!(
            "; of the KV cache the cells in use are counted, {} of those it was given",
            percent(share(class.kv_bytes, view))
        );
    }
    String::new()
}

fn reached(class: &DeviceClass, device: &str, cards: &[CardCeiling]) -> String {
    let Some(rate) = class.bytes_per_second() else {
        return "touched bytes that are not known".to_owned();
    };
    let rate = rate / 1e9;
    match class.reached(device, cards) {
        Some(reached) => {
            let above = match reached.share_of_ceiling > 1.0 {
                true => "; some of it came from a cache",
                false => "",
            };
            format!(
                "ran at {} of what the card can read ({rate:.1} of {:.1} GB/s{above})",
                percent(reached.share_of_ceiling),
                reached.memory_roof / 1e9
            )
        }
        None => format!("touched {rate:.1} GB/s; what the card can read is not known here"),
    }
}
