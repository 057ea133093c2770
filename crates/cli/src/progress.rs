//! Progress bars: on a terminal only (indicatif hides them otherwise), on stderr.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `length` units.
pub fn bar(length: u64, title: &'static str, unit: &str) -> ProgressBar {
    let template = format!("{{prefix}} [{{bar:32}}] {{pos}}/{{len}} {unit}  {{per_sec}}  {{eta}} left  {{msg}}");
    let style = ProgressStyle::with_template(&template).expect("a constant template").progress_chars("=> ");
    ProgressBar::new(length).with_style(style).with_prefix(title)
}
