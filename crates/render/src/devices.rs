//! What devices did as tables for a terminal and a page: times and gaps, what their nodes
//! reached, copies, and what lies in their memory.

use analysis::devices::{DeviceClass, DeviceFacts, DevicePhase, DeviceResults};
use kernelio::card::CardCeiling;

use crate::plot::{
    Unit,
    units::{grouped, short},
};

/// Classes of less of a phase's time say nothing.
const MIN_SHARE: f64 = 0.005;
const MAX_CLASSES: usize = 24;
const MAX_COPIES: usize = 24;

/// What is shown, and what a sort goes by.
pub type Cell = (String, f64);

/// One table.
pub struct Part {
    pub id: &'static str,
    pub title: &'static str,
    /// Names of the columns; the first ones hold words.
    pub heads: Vec<&'static str>,
    pub words: usize,
    pub rows: Vec<Vec<Cell>>,
    /// Said beside or below it; may be empty.
    pub note: &'static str,
}

/// Those that have rows; none for a run in which only the processor computed.
pub fn parts(results: &DeviceResults, cards: &[CardCeiling]) -> Vec<Part> {
    let mut parts = vec![
        times(results),
        classes(results, cards),
        copies(results),
        memory(results),
    ];
    parts.retain(|part| !part.rows.is_empty());
    parts
}

fn times(results: &DeviceResults) -> Part {
    let rows = each(results, |device| {
        let phases = device.phases.iter();
        phases
            .map(|phase| time_row(device, phase, results))
            .collect()
    });
    Part {
        id: "devices",
        title: "Devices",
        heads: vec![
            "device",
            "phase",
            "evaluations",
            "timed",
            "time per token",
            "node times in",
            "kernels",
            "no kernel %",
            "nothing to do %",
        ],
        words: 2,
        rows,
        note: "no kernel: between the kernels of an evaluation, where node times were measured; nothing to do: between \
               evaluations; - was not measured",
    }
}

fn time_row(device: &DeviceFacts, phase: &DevicePhase, results: &DeviceResults) -> Vec<Cell> {
    let tokens = results.of_phase(&phase.phase).map_or(0, |p| p.tokens);
    let is_timed = phase.timed_evaluations == phase.evaluations && tokens > 0;
    let per_token = is_timed.then(|| phase.nanos as f64 / tokens as f64);
    let measured = phase.measured_evaluations;
    let inside = (phase.span_nanos > 0).then(|| phase.gap_nanos() as f64 / phase.span_nanos as f64);
    let between = phase
        .between
        .map(|between| between.nanos as f64 / (between.nanos + phase.nanos).max(1) as f64);
    vec![
        word(&device.device),
        word(&phase.phase),
        count(phase.evaluations),
        count(phase.timed_evaluations),
        known(per_token, |nanos| Unit::Nanos.amount(nanos)),
        count(measured),
        known(phase.kernels.checked_div(measured).map(|n| n as f64), short),
        known(inside, percent),
        known(between, percent),
    ]
}

fn classes(results: &DeviceResults, cards: &[CardCeiling]) -> Part {
    let rows = each(results, |device| {
        let all = |class: &DeviceClass| -> u64 {
            let same = device.classes.iter().filter(|c| c.phase == class.phase);
            same.map(|c| c.nanos).sum()
        };
        let share = |class: &DeviceClass| class.nanos as f64 / all(class).max(1) as f64;
        let notable = device.classes.iter().filter(|c| share(c) >= MIN_SHARE);
        let rows = notable.take(MAX_CLASSES).map(|class| {
            let reached = class.reached(&device.device, cards);
            vec![
                word(&class.name()),
                word(&device.device),
                word(&class.phase),
                count(class.executions),
                known(Some(share(class)), percent),
                known(Some(class.nanos as f64), |n| Unit::Nanos.amount(n)),
                known(Some(class.bytes() as f64), |n| Unit::Bytes.amount(n)),
                known(class.bytes_per_second().map(|rate| rate / 1e9), short),
                known(reached.map(|reached| reached.share_of_ceiling), percent),
            ]
        });
        rows.collect()
    });
    Part {
        id: "device-nodes",
        title: "Nodes on devices",
        heads: vec![
            "nodes",
            "device",
            "phase",
            "executions",
            "time %",
            "time",
            "bytes",
            "GB/s",
            "of the card %",
        ],
        words: 3,
        rows,
        note: "of evaluations whose nodes were timed; bytes and GB/s of those of them whose experts are known; of the card: of \
               what `bench ceilings` measured that it can read",
    }
}

fn copies(results: &DeviceResults) -> Part {
    let rows = each(results, |device| {
        let rows = device.copies.iter().take(MAX_COPIES);
        rows.map(|row| {
            let passes = results.of_phase(&row.phase).map(|p| p.passes.max(1) as f64);
            vec![
                word(&row.tensor),
                word(&device.device),
                word(&row.phase),
                word(&row.way.replace('_', " ")),
                count(row.calls),
                known(Some(row.bytes as f64), |n| Unit::Bytes.amount(n)),
                known(passes.map(|n| row.bytes as f64 / n), |n| {
                    Unit::Bytes.amount(n)
                }),
            ]
        })
        .collect()
    });
    Part {
        id: "device-copies",
        title: "Copies",
        heads: vec![
            "tensor", "device", "phase", "way", "calls", "bytes", "per pass",
        ],
        words: 4,
        rows,
        note: "tensors of several layers with one name are one row",
    }
}

fn memory(results: &DeviceResults) -> Part {
    let rows = each(results, |device| {
        let rows = device.memory.iter().map(|row| {
            let all = device.memory_bytes.map(|all| row.bytes as f64 / all as f64);
            vec![
                word(&device.device),
                word(&row.kind.replace('_', " ")),
                word(&row.component.replace('_', " ")),
                count(row.tensors),
                known(Some(row.bytes as f64), |n| Unit::Bytes.amount(n)),
                known(all, percent),
            ]
        });
        rows.collect()
    });
    Part {
        id: "device-memory",
        title: "Memory of devices",
        heads: vec!["device", "kind", "part", "tensors", "bytes", "of all %"],
        words: 3,
        rows,
        note: "bytes of memory in which tensors of the graphs lie, those that share a place once",
    }
}

fn each(results: &DeviceResults, rows: impl Fn(&DeviceFacts) -> Vec<Vec<Cell>>) -> Vec<Vec<Cell>> {
    results.devices.iter().flat_map(rows).collect()
}

fn word(text: &str) -> Cell {
    (text.to_owned(), 0.0)
}

fn count(value: u64) -> Cell {
    (grouped(value), value as f64)
}

/// What is not known comes before all.
fn known(value: Option<f64>, text: impl Fn(f64) -> String) -> Cell {
    value.map_or_else(|| ("-".to_owned(), -1.0), |value| (text(value), value))
}

fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use analysis::devices::Passes;

    #[test]
    fn what_was_not_measured_is_no_number() {
        assert!(parts(&DeviceResults::default(), &[]).is_empty());
        let mut device = DeviceFacts {
            device: "CUDA0".into(),
            phases: vec![DevicePhase {
                phase: "generate".into(),
                evaluations: 3,
                timed_evaluations: 2,
                nanos: 2_000,
                ..DevicePhase::default()
            }],
            ..DeviceFacts::default()
        };
        let results = |device: &DeviceFacts| DeviceResults {
            devices: vec![device.clone()],
            passes: vec![Passes {
                phase: "generate".into(),
                passes: 3,
                tokens: 3,
            }],
            ..DeviceResults::default()
        };
        let row = |device: &DeviceFacts| {
            let parts = parts(&results(device), &[]);
            let cells = parts[0].rows[0].iter().map(|(text, _)| text.clone());
            cells.collect::<Vec<_>>()
        };
        assert_eq!(row(&device)[2..], ["3", "2", "-", "0", "-", "-", "-"]);
        let phase = &mut device.phases[0];
        (phase.timed_evaluations, phase.nanos) = (3, 6_000);
        (phase.measured_evaluations, phase.kernels) = (1, 10);
        (phase.span_nanos, phase.kernel_nanos) = (2_000, 1_500);
        let found = row(&device);
        assert_eq!(found[2..4], ["3", "3"]);
        assert_eq!(found[5..], ["1", "10", "25.0", "-"]);
    }
}
