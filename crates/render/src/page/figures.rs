//! The numbers at the head of the page.

use std::fmt::Write as _;

use index::Info;

use crate::{
    plot::{
        Unit,
        text::escape,
        units::{grouped, short},
    },
    plots::plural,
};

/// A name, a number, and a word about it.
pub(super) struct Figure {
    pub name: String,
    pub value: String,
    pub note: String,
}

pub(super) fn figures(info: &Info) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |name: &str, value: String, note: String| {
        figures.push(Figure {
            name: name.to_owned(),
            value,
            note,
        });
    };
    let model = &info.model;
    if model.size_bytes > 0 {
        let mut note = plural(model.layers, "layer");
        if model.experts > 0 {
            let _ = write!(
                note,
                ", {} of {} experts",
                model.experts_used, model.experts
            );
        }
        add("model", Unit::Bytes.amount(model.size_bytes as f64), note);
    }
    for phase in info
        .phases
        .iter()
        .filter(|phase| phase.tokens > 0 && phase.nanos > 0)
    {
        let speed = phase.tokens as f64 * 1e9 / phase.nanos as f64;
        let note = format!(
            "{} in {}",
            plural(phase.tokens, "token"),
            Unit::Nanos.amount(phase.nanos as f64)
        );
        add(phase.phase, format!("{} tokens/s", short(speed)), note);
    }
    let totals = &info.totals;
    let note = format!(
        "by {} in {}",
        plural(totals.nodes, "node"),
        plural(totals.evals, "evaluation")
    );
    add("accesses", grouped(totals.accesses), note);
    let per_token = totals.bytes as f64 / totals.tokens.max(1) as f64;
    let note = format!("{} per token", Unit::Bytes.amount(per_token));
    add(
        "bytes touched",
        Unit::Bytes.amount(totals.bytes as f64),
        note,
    );
    figures
}

pub(super) fn key_figures(info: &Info) -> String {
    let mut out = String::from("<dl class=\"figures\">\n");
    for figure in figures(info) {
        let _ = writeln!(
            out,
            "<div><dt>{}</dt><dd><b>{}</b><span>{}</span></dd></div>",
            escape(&figure.name),
            with_small_unit(&figure.value),
            escape(&figure.note)
        );
    }
    out.push_str("</dl>\n");
    out
}

/// The number is what counts.
fn with_small_unit(value: &str) -> String {
    match value.split_once(' ') {
        Some((number, unit)) => format!("{} <small>{}</small>", escape(number), escape(unit)),
        None => escape(value),
    }
}
