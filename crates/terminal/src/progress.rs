//! Progress bars: on a terminal only (indicatif hides them otherwise), on stderr.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// What is done sooner needs no bar.
const PATIENCE: Duration = Duration::from_millis(400);

static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// From now on bars stay away: `--quiet`.
pub fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// A bar that appears when the work turns out to be long.
pub struct LateBar {
    bar: ProgressBar,
    begin: Instant,
    is_shown: Cell<bool>,
}

/// A bar of `length` units, with the time that is left.
pub fn bar(length: u64, title: &str, unit: &'static str) -> LateBar {
    let template = format!("{}  {{eta}} left", line(title, unit));
    let bar = styled(length, &template, unit);
    bar.set_draw_target(ProgressDrawTarget::hidden());
    LateBar {
        bar,
        begin: Instant::now(),
        is_shown: Cell::new(false),
    }
}

impl LateBar {
    pub fn set_position(&self, position: u64) {
        if !self.is_shown.get() && self.begin.elapsed() > PATIENCE {
            self.is_shown.set(true);
            if !is_quiet() {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
            }
        }
        self.bar.set_position(position);
    }

    pub fn inc(&self, by: u64) {
        self.set_position(self.bar.position() + by);
    }

    pub fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }
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
