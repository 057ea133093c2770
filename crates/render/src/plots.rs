//! Every plot of the report.
//!
//! Input are the answers of crates `index` and `analysis`; nothing is added up
//! here that they have added up already. A plot that a run has nothing to show in
//! (experts of a dense model) is left out.

mod attention;
mod experts;
pub mod feed;
mod offsets;
mod roofline;
mod tokens;
mod traffic;
mod underneath;

use analysis::{
    actions::Action, cache_trace::Scope, caches::Caches, facts::Facts, findings::Finding,
    roofline::Roofline, underneath::UnderneathResults,
};
use diagnose::Diagnosis;
use index::RunIndex;
use kernelio::card::CardCeiling;

use crate::{
    charts::{self, CountBy, LineChart},
    flamegraph,
    plot::{Canvas, Svg},
};

/// Everything that a report is made from.
#[derive(Clone, Copy)]
pub struct ReportInput<'a> {
    /// Of the report: the model, usually.
    pub title: &'a str,
    /// How the run was made, as names and values for the head of the page.
    pub about: &'a [(String, String)],
    pub index: &'a RunIndex,
    pub actions: &'a [Action],
    pub findings: &'a [Finding],
    pub facts: &'a Facts,
    /// Absent when the run read no weights from a file.
    pub caches: Option<&'a Caches>,
    /// Absent when nothing was recorded of what the kernel did.
    pub underneath: Option<&'a UnderneathResults>,
    /// Absent when it is not known what the hardware allows.
    pub roofline: Option<&'a Roofline>,
    /// What graphics cards allow, as far as that is known.
    pub cards: &'a [CardCeiling],
    /// Absent where nobody asked why.
    pub diagnosis: Option<&'a Diagnosis>,
}

/// A picture with its words.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Of letters, digits and dashes: file name and anchor.
    pub id: String,
    pub section: Section,
    pub title: String,
    /// What is shown and how to read it, in sentences.
    pub caption: String,
    pub svg: Svg,
}

impl Plot {
    pub(crate) fn new(
        id: &str,
        section: Section,
        title: &str,
        caption: impl Into<String>,
        canvas: Canvas,
    ) -> Plot {
        let caption = caption.into();
        Plot {
            id: id.to_owned(),
            section,
            title: title.to_owned(),
            svg: canvas.finish(title, &caption),
            caption,
        }
    }

    fn of(chart: &LineChart, section: Section) -> Plot {
        let canvas = chart.draw(LINES_PX);
        Plot::new(chart.id, section, chart.title, &chart.caption, canvas)
    }
}

const LINES_PX: f64 = 300.0;

/// What a plot belongs to, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Tokens,
    Weights,
    Work,
    Attention,
    Experts,
    Memory,
    Underneath,
    Flame,
}

impl Section {
    pub const ALL: [Section; 8] = [
        Section::Tokens,
        Section::Weights,
        Section::Work,
        Section::Attention,
        Section::Experts,
        Section::Memory,
        Section::Underneath,
        Section::Flame,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Section::Tokens => "Token by token",
            Section::Weights => "Weights and the file",
            Section::Work => "Layers and ops",
            Section::Attention => "Attention and the KV cache",
            Section::Experts => "Experts",
            Section::Memory => "Memory",
            Section::Underneath => "Underneath: disk and page faults",
            Section::Flame => "Flame graphs",
        }
    }

    pub fn id(self) -> &'static str {
        match self {
            Section::Tokens => "tokens",
            Section::Weights => "weights",
            Section::Work => "work",
            Section::Attention => "attention",
            Section::Experts => "experts",
            Section::Memory => "memory",
            Section::Underneath => "underneath",
            Section::Flame => "flame",
        }
    }
}

/// All plots that the run has something to show in, in the order of the report.
pub fn all(input: &ReportInput) -> Vec<Plot> {
    let mut plots = Vec::new();
    plots.extend(tokens::plots(input.index));
    plots.extend(offsets::plot(input.index));
    plots.extend(traffic::plots(input.facts));
    plots.extend(input.roofline.and_then(roofline::plot));
    plots.extend(attention::plots(input.facts));
    plots.extend(experts::plots(input.index, input.caches));
    plots.extend(memory(input.facts, input.caches));
    plots.extend(input.underneath.map(underneath::plots).unwrap_or_default());
    plots.extend(flamegraph::plots(input.index));
    plots.sort_by_key(|plot| plot.section);
    plots
}

fn memory(facts: &Facts, caches: Option<&Caches>) -> Vec<Plot> {
    let opportunities = caches.and_then(|caches| caches.opportunities.as_ref());
    [
        charts::working_set(&facts.working_set, facts.hot.model_bytes),
        caches.and_then(|c| charts::miss_ratios(&c.unit.curves, Scope::Run, CountBy::Bytes)),
        // Speeds say more than bytes, where they are known.
        opportunities.and_then(|o| charts::predicted_speed(o).or_else(|| charts::disk_reads(o))),
    ]
    .iter()
    .flatten()
    .map(|chart| Plot::of(chart, Section::Memory))
    .collect()
}

/// `layer 3`, or what stands for none.
pub(crate) fn layer_name(layer: Option<u32>) -> String {
    layer.map_or_else(|| "none".to_owned(), |layer| layer.to_string())
}

/// `1 token`, `2 tokens`.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    let count_text = crate::plot::units::grouped(count);
    match count {
        1 => format!("{count_text} {noun}"),
        _ => format!("{count_text} {noun}s"),
    }
}
