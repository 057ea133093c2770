//! What an experiment found: rows for people (a table, a plot) and for programs (JSON).

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::{measure::Spread, step::Step};

/// One experiment, run once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub experiment: String,
    /// What was asked, in a sentence.
    pub question: String,
    pub machine: Machine,
    /// What was typed, and when.
    pub command: String,
    pub unix_seconds: u64,
    pub seed: u32,
    /// What the number under `x` of a row is ("size", "batch").
    pub x_name: String,
    /// What is measured ("TFLOP/s", "GB/s").
    pub quantity: String,
    pub rows: Vec<Row>,
    /// What follows from the rows, and what was left out and why.
    pub notes: Vec<String>,
}

/// What a card says of itself, as files have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub name: String,
    /// Of its instructions: (9, 0) for Hopper.
    pub capability: (i32, i32),
    pub multiprocessors: u32,
    pub memory_bytes: u64,
    pub l2_bytes: u64,
    /// Shared memory that one block may ask for.
    pub shared_bytes: u32,
    /// As CUDA counts versions: 13000 for 13.0.
    pub driver_version: i32,
}

impl From<&cuda::About> for About {
    fn from(card: &cuda::About) -> About {
        About {
            name: card.name.clone(),
            capability: card.capability,
            multiprocessors: card.multiprocessors,
            memory_bytes: card.memory_bytes,
            l2_bytes: card.l2_bytes,
            shared_bytes: card.shared_bytes,
            driver_version: card.driver_version,
        }
    }
}

/// Where it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub card: Option<About>,
}

impl Machine {
    pub fn here(card: Option<&cuda::About>) -> Machine {
        let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = about
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        Machine {
            processor: name
                .map_or("unknown", |name| name.trim_start_matches([':', ' ', '\t']))
                .to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            card: card.map(About::from),
        }
    }
}

/// One step in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub step: String,
    /// What the step does otherwise; empty for a reference, and in files after its first row.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// `path:line` of its source; empty for a reference.
    #[serde(default)]
    pub source: String,
    /// The case in words ("4096", "batch 8, context 4096").
    pub case: String,
    /// The same as a number, for a plot.
    pub x: f64,
    pub value: Spread,
    /// Speed against a reference that was measured in the same rounds.
    pub against: Option<Against>,
    /// Relative to float64.
    pub error: Option<f64>,
    /// What is done in the time, where a time is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

/// Of one run of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub flops: Option<f64>,
    /// That must come from memory, each once.
    pub bytes: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// "cuBLAS", "OpenBLAS", "copy".
    pub reference: String,
    /// 1 is as fast.
    pub ratio: Spread,
}

impl Row {
    /// Of a step; what else there is to say is set after.
    pub fn of(step: &Step, case: impl Into<String>, x: f64, value: Spread) -> Row {
        Row {
            about: step.about.to_owned(),
            source: step.address(),
            ..Row::reference(step.name, case, x, value)
        }
    }

    /// Of something that is not ours.
    pub fn reference(name: &str, case: impl Into<String>, x: f64, value: Spread) -> Row {
        Row {
            step: name.to_owned(),
            about: String::new(),
            source: String::new(),
            case: case.into(),
            x,
            value,
            against: None,
            error: None,
            work: None,
        }
    }

    pub fn against(mut self, reference: &str, ratio: Spread) -> Row {
        self.against = Some(Against {
            reference: reference.to_owned(),
            ratio,
        });
        self
    }

    pub fn with_error(mut self, error: f64) -> Row {
        self.error = Some(error);
        self
    }
}

impl Outcome {
    pub fn new(
        experiment: &str,
        question: &str,
        x_name: &str,
        quantity: &str,
        card: Option<&cuda::About>,
        seed: u32,
    ) -> Outcome {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Outcome {
            experiment: experiment.to_owned(),
            question: question.to_owned(),
            machine: Machine::here(card),
            command: format!("tensorscope {}", words.join(" ")),
            unix_seconds: now.map_or(0, |now| now.as_secs()),
            seed,
            x_name: x_name.to_owned(),
            quantity: quantity.to_owned(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Says that results were right at these sizes, and that nothing was timed.
    pub fn checked(&mut self, sizes: &[impl std::fmt::Debug]) {
        let sizes: Vec<String> = sizes.iter().map(|size| format!("{size:?}")).collect();
        self.notes.push(format!(
            "Every kernel is right at {}; nothing was timed (--check).",
            sizes.join(", ")
        ));
    }

    /// For programs, and for people who compare two of them: one row a line.
    pub fn json(&self) -> serde_json::Result<String> {
        let head = Outcome {
            rows: Vec::new(),
            ..self.clone()
        };
        let mut named: Vec<&str> = Vec::new();
        let rows = self.rows.iter().map(|row| {
            let mut row = row.clone();
            match named.contains(&row.step.as_str()) {
                true => row.about.clear(),
                false => named.extend(
                    self.rows
                        .iter()
                        .map(|r| r.step.as_str())
                        .find(|s| **s == row.step),
                ),
            }
            serde_json::to_string(&row)
        });
        let rows = rows
            .collect::<serde_json::Result<Vec<_>>>()?
            .join(",\n    ");
        let text = serde_json::to_string_pretty(&head)?;
        Ok(text.replacen("\"rows\": []", &format!("\"rows\": [\n    {rows}\n  ]"), 1) + "\n")
    }

    /// The table for a terminal, what each step does and where, and what follows.
    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let reference = self.rows.iter().find_map(|row| row.against.as_ref());
        let has_errors = self.rows.iter().any(|row| row.error.is_some());
        let mut header = vec![
            self.x_name.clone(),
            "step".into(),
            self.quantity.clone(),
            "spread".into(),
        ];
        header.extend(reference.map(|against| format!("of {}", against.reference)));
        header.extend(has_errors.then(|| "error".to_owned()));
        let columns = header.len();
        table.set_header(header);
        let mut case = "";
        for row in &self.rows {
            let is_new = row.case != case;
            case = &row.case;
            let spread = row.value;
            let mut cells = vec![
                if is_new {
                    row.case.clone()
                } else {
                    String::new()
                },
                row.step.clone(),
                short(spread.median),
                format!(
                    "{} – {}",
                    short(spread.lower_quartile),
                    short(spread.upper_quartile)
                ),
            ];
            if reference.is_some() {
                let ratio = row.against.as_ref().map(|against| against.ratio.median);
                cells.push(ratio.map_or(String::new(), |ratio| format!("{:.1} %", 100.0 * ratio)));
            }
            if has_errors {
                cells.push(
                    row.error
                        .map_or(String::new(), |error| format!("{error:.1e}")),
                );
            }
            table.add_row(cells);
        }
        for column in 2..columns {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let notes: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        format!(
            "{}: {}\n{}\n{}{notes}",
            self.experiment,
            self.question,
            table.trim_fmt(),
            self.steps()
        )
    }

    /// Each step once: its name, where its source is, what it does.
    fn steps(&self) -> String {
        let mut named: Vec<&str> = Vec::new();
        let mut text = String::new();
        for row in self.rows.iter().filter(|row| !row.source.is_empty()) {
            if !named.contains(&row.step.as_str()) {
                named.push(&row.step);
                text += &format!("{} ({}): {}\n", row.step, row.source, row.about);
            }
        }
        text
    }

    /// Ratio of a step to its reference, over all its cases (the geometric mean).
    pub fn mean_ratio(&self, step: &str) -> Option<f64> {
        let ratios = self.rows.iter().filter(|row| row.step == step);
        let logs: Vec<f64> = ratios
            .filter_map(|row| row.against.as_ref())
            .map(|a| a.ratio.median.ln())
            .collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }
}

/// Three digits, as people read them.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_names_each_case_once_and_the_reference() {
        let mut outcome = Outcome::new("gemm", "How fast?", "size", "TFLOP/s", None, 1);
        let value = Spread {
            median: 12.34,
            lower_quartile: 12.0,
            upper_quartile: 13.0,
        };
        let ratio = Spread {
            median: 0.5,
            lower_quartile: 0.4,
            upper_quartile: 0.6,
        };
        outcome.rows.push(
            Row::reference("naive", "4096", 4096.0, value)
                .against("cuBLAS", ratio)
                .with_error(1e-6),
        );
        outcome
            .rows
            .push(Row::reference("cuBLAS", "4096", 4096.0, value));
        outcome.notes.push("Half.".to_owned());
        let text = outcome.text();
        assert!(
            text.contains("12.3")
                && text.contains("50.0 %")
                && text.contains("of cuBLAS")
                && text.contains("Half."),
            "{text}"
        );
        assert_eq!(text.matches("4096").count(), 1, "{text}");
        assert_eq!(outcome.mean_ratio("naive"), Some(0.5));
        let read: Outcome = serde_json::from_str(&outcome.json().unwrap()).unwrap();
        assert_eq!(read, outcome);
    }
}
