//! Progress bars: on a terminal only (indicatif hides them otherwise), on stderr.

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// A bar of `length` units, with the time that is left.
pub fn bar(length: u64, title: &str, unit: &'static str) -> ProgressBar {
    styled(
        length,
        &format!("{}  {{eta}} left", line(title, unit)),
        unit,
    )
}

/// Whether a bar has a line of text (its prefix) above it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TextLine {
    Above,
    None,
}

/// A bar of `length` units, with a message of what was counted besides.
pub fn counting_bar(length: u64, title: &str, unit: &'static str, text: TextLine) -> ProgressBar {
    let above = if text == TextLine::Above {
        "{prefix}\n"
    } else {
        ""
    };
    styled(
        length,
        &format!("{above}{}  {{msg}}", line(title, unit)),
        unit,
    )
}

/// The bar itself takes what the rest leaves of the width, so that the line fits
/// on 80 columns.
fn line(title: &str, unit: &str) -> String {
    format!("{title} [{{wide_bar}}] {{pos}}/{{len}} {unit}  {{rate}}")
}

fn styled(length: u64, template: &str, unit: &'static str) -> ProgressBar {
    let rate = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let _ = write!(out, "{:.0} {unit}/s", state.per_sec());
    };
    let style = ProgressStyle::with_template(template)
        .expect("a constant template")
        .with_key("rate", rate)
        .progress_chars("=> ");
    ProgressBar::new(length).with_style(style)
}
