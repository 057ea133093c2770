//! Figures of the posts and chapters: bars, lines and flame graphs whose numbers others have looked up.
//!
//! `tests/posts/check.py` resolves the names of values in a page's data file and hands the figure over
//! as JSON; docs/posts/data/README.md describes it. The same figure gives the same bytes, so that what
//! is committed can be compared.

use anyhow::{Context as _, bail};
use render::{
    flamegraph,
    palette::Category,
    plot::{
        Axis, Svg, Ticks, Unit,
        marks::{Bar, Entry, Line, bars, lines},
    },
};
use serde::Deserialize;

const HEIGHT_PX: f64 = 340.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    title: String,
    #[serde(default)]
    caption: String,
    /// What the numbers are, with their unit: the label of their axis.
    #[serde(default)]
    quantity: String,
    #[serde(default)]
    bars: Vec<NamedValue>,
    /// Names of the colours of bars, in the order of their series.
    #[serde(default)]
    legend: Vec<String>,
    /// Label of the axis of cases.
    #[serde(default)]
    x: String,
    #[serde(default)]
    cases: Vec<String>,
    #[serde(default)]
    lines: Vec<NamedValues>,
    /// Folded stacks, a line each.
    #[serde(default)]
    stacks: String,
    /// Of stacks.
    #[serde(default)]
    unit: StackUnit,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedValue {
    name: String,
    value: f64,
    #[serde(default)]
    note: String,
    #[serde(default)]
    series: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedValues {
    name: String,
    values: Vec<f64>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StackUnit {
    #[default]
    Nanos,
    Bytes,
}

pub fn read(bytes: &[u8]) -> anyhow::Result<Figure> {
    serde_json::from_slice(bytes).context("no figure: docs/posts/data/README.md describes one")
}

impl Figure {
    pub fn draw(&self) -> anyhow::Result<Svg> {
        let words = (self.title.as_str(), self.caption.as_str());
        let kinds = [
            !self.bars.is_empty(),
            !self.lines.is_empty(),
            !self.stacks.is_empty(),
        ];
        match kinds {
            [true, false, false] => Ok(self.bars().finish(words.0, words.1)),
            [false, true, false] => Ok(self.lines()?.finish(words.0, words.1)),
            [false, false, true] => {
                let unit = match self.unit {
                    StackUnit::Nanos => Unit::Nanos,
                    StackUnit::Bytes => Unit::Bytes,
                };
                let svg = flamegraph::of_stacks(&self.stacks, unit, words);
                svg.context("stacks: a line is `frame;frame;frame NUMBER`")
            }
            _ => bail!("a figure has either bars, lines or stacks"),
        }
    }

    fn bars(&self) -> render::plot::Canvas {
        let drawn: Vec<Bar> = self
            .bars
            .iter()
            .map(|bar| Bar {
                name: bar.name.clone(),
                parts: vec![(bar.value, Category::nth(bar.series))],
                note: bar.note.clone(),
            })
            .collect();
        let entries: Vec<Entry> = self
            .legend
            .iter()
            .enumerate()
            .map(|(series, name)| Entry::new(name, Category::nth(series)))
            .collect();
        bars(&self.quantity, Unit::Plain, &drawn, &entries)
    }

    fn lines(&self) -> anyhow::Result<render::plot::Canvas> {
        if let Some(line) = self
            .lines
            .iter()
            .find(|line| line.values.len() > self.cases.len())
        {
            bail!("line {:?} has more values than there are cases", line.name);
        }
        let drawn: Vec<Line> = self
            .lines
            .iter()
            .enumerate()
            .map(|(series, line)| {
                let points = line.values.iter().enumerate();
                let points = points.map(|(case, value)| (case as f64, *value));
                Line::new(&line.name, Category::nth(series), points)
            })
            .collect();
        let values = self.lines.iter().flat_map(|line| &line.values);
        let most = values.copied().fold(0.0, f64::max);
        let names = self.cases.iter().enumerate();
        let names = names.map(|(at, case)| (at as f64, case.clone()));
        let x = Axis::new(&self.x, Unit::Plain, 0.0, self.cases.len() as f64 - 0.8)
            .with_ticks(Ticks::Named(names.collect()));
        let y = Axis::new(&self.quantity, Unit::Plain, 0.0, most * 1.05);
        Ok(lines(HEIGHT_PX, &x, &y, &drawn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn svg(json: &str) -> anyhow::Result<String> {
        Ok(read(json.as_bytes())?.draw()?.standalone())
    }

    #[test]
    fn bars_lines_and_stacks_are_drawn() {
        let bars = svg(
            r#"{"title": "T", "quantity": "GB/s", "legend": ["ours", "theirs"],
                "bars": [{"name": "naive", "value": 2.5}, {"name": "wide", "value": 4, "series": 1, "note": "4 of 5"}]}"#,
        )
        .unwrap();
        for text in [">naive<", ">theirs<", ">4 of 5<", "GB/s"] {
            assert!(bars.contains(text), "{text}: {bars}");
        }
        let lines = svg(
            r#"{"title": "T", "quantity": "%", "x": "batch", "cases": ["1", "32", "256"],
                "lines": [{"name": "a", "values": [1, 2, 3]}, {"name": "b", "values": [3, 2]}]}"#,
        )
        .unwrap();
        assert!(lines.contains(">256<") && !lines.contains("NaN"), "{lines}");
        let stacks = svg(r#"{"title": "T", "stacks": "main;run 5\nmain;wait 3\n"}"#).unwrap();
        assert!(stacks.contains("main: 8 ns (8 nanoseconds)"), "{stacks}");
    }

    #[test]
    fn what_is_no_figure_is_refused() {
        for json in [
            r#"{"title": "T"}"#,
            r#"{"title": "T", "colour": "red"}"#,
            r#"{"title": "T", "stacks": "main run"}"#,
            r#"{"title": "T", "cases": ["1"], "lines": [{"name": "a", "values": [1, 2]}]}"#,
        ] {
            assert!(svg(json).is_err(), "{json}");
        }
    }
}
