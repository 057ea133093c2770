//! Lines, bars and their legends.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    axes::{Axis, Direction, Frame, Grid, Room},
    svg::{Anchor, Canvas},
    text::{shortened, width_px},
    theme::{FONT_PX, SMALL_PX, WIDTH_PX},
    units::Unit,
};
use crate::palette::Category;

/// Height of one row of a [`legend`].
const LEGEND_ROW_PX: f64 = 20.0;
/// Width that a legend may take above lines and columns, and above bars, whose
/// names take room on the left.
const LEGEND_PX: f64 = 630.0;
const LEGEND_OF_BARS_PX: f64 = 470.0;

/// Half the width of the ends of a spread.
const WHISKER_PX: f64 = 4.0;

/// A line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Line {
    pub name: String,
    /// Whose colour and dash it has.
    pub category: Category,
    pub points: Vec<(f64, f64)>,
    /// The least and the most of each point, where it was measured several times.
    #[serde(skip)]
    pub spreads: Vec<(f64, f64)>,
}

impl Line {
    pub fn new(name: &str, category: Category, points: impl Iterator<Item = (f64, f64)>) -> Line {
        Line {
            name: name.to_owned(),
            category,
            points: points.collect(),
            spreads: Vec::new(),
        }
    }
}

/// One entry of a legend.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub category: Category,
    /// Not an area.
    pub is_line: bool,
}

impl Entry {
    pub fn new(name: &str, category: Category) -> Entry {
        Entry {
            name: name.to_owned(),
            category,
            is_line: false,
        }
    }

    /// Components in the order of their colours, each once.
    pub fn components(categories: impl Iterator<Item = Category>) -> Vec<Entry> {
        let once: BTreeSet<Category> = categories.collect();
        let entries = once.into_iter();
        entries.map(|of| Entry::new(of.name(), of)).collect()
    }
}

/// Lines over a common x.
pub fn lines(height_px: f64, x: &Axis, y: &Axis, lines: &[Line]) -> Canvas {
    let mut entries: Vec<Entry> = lines
        .iter()
        .map(|line| Entry {
            is_line: true,
            ..Entry::new(&line.name, line.category)
        })
        .collect();
    // One line is named by the axis.
    entries.retain(|_| lines.len() > 1);
    let mut canvas = Canvas::new(height_px);
    let room = Room {
        top_px: legend_height_px(&entries, LEGEND_PX),
        right_px: 10.0,
    };
    let frame = Frame::draw(&mut canvas, x, y, Grid::Horizontal, Direction::Up, room);
    for (number, line) in lines.iter().enumerate() {
        // Spreads at one x stand beside each other, so that they can be told apart.
        let aside = match line.spreads.len() {
            0 => 0.0,
            _ => (number as f64 - (lines.len() as f64 - 1.0) / 2.0) * WHISKER_PX,
        };
        let place = |x, y| (frame.x(x) + aside, frame.y(y));
        let stroke = line.category.stroke();
        let finite = line.points.iter().filter(|(_, y)| y.is_finite());
        let places: Vec<(f64, f64)> = finite.clone().map(|&(x, y)| place(x, y)).collect();
        canvas.polyline(&stroke, &places, 2.0, line.category.dash());
        let spreads = line.spreads.iter().map(Some);
        let spreads = spreads.chain(std::iter::repeat(None));
        // Few points are measured ones, and a pointer may ask for them.
        let few = places.iter().filter(|_| places.len() <= 40);
        for ((at, &(value_x, value_y)), spread) in few.zip(finite).zip(spreads) {
            let mut range = String::new();
            if let Some(&(least, most)) = spread {
                let ends = [place(value_x, least), place(value_x, most)];
                canvas.polyline(&stroke, &ends, 1.2, "");
                for (x, y) in ends {
                    let cap = [(x - WHISKER_PX, y), (x + WHISKER_PX, y)];
                    canvas.polyline(&stroke, &cap, 1.2, "");
                }
                range = format!(" ({} to {})", y.unit.amount(least), y.unit.amount(most));
            }
            let (amount, place) = (y.unit.amount(value_y), x.text(value_x));
            let tip = format!("{}: {amount}{range} at {place}", line.name);
            canvas.circle(&line.category.fill(), *at, 2.6, &tip);
        }
    }
    legend(&mut canvas, frame.left, LEGEND_PX, &entries);
    canvas
}

/// Names with their colours, in rows that fit `room_px`.
pub fn legend(canvas: &mut Canvas, left: f64, room_px: f64, entries: &[Entry]) {
    for (entry, (x, row)) in entries.iter().zip(places(entries, room_px)) {
        let (x, middle) = (left + x, 16.0 + row as f64 * LEGEND_ROW_PX);
        match entry.is_line {
            true => {
                let ends = [(x, middle), (x + SWATCH_PX * 2.0, middle)];
                canvas.polyline(&entry.category.stroke(), &ends, 2.0, entry.category.dash());
            }
            false => {
                let at = (x, middle - SWATCH_PX / 2.0);
                canvas.rect(&entry.category.fill(), at, (SWATCH_PX, SWATCH_PX), "");
            }
        }
        let at = (x + entry.swatch_px() + 6.0, middle + FONT_PX * 0.36);
        canvas.text("t", at, Anchor::Start, &entry.name);
    }
}

/// Height that a [`legend`] needs above a frame.
pub fn legend_height_px(entries: &[Entry], room_px: f64) -> f64 {
    let rows = places(entries, room_px)
        .last()
        .map_or(0, |(_, row)| row + 1);
    match rows {
        0 => 0.0,
        rows => rows as f64 * LEGEND_ROW_PX + 6.0,
    }
}

const SWATCH_PX: f64 = 11.0;

impl Entry {
    fn swatch_px(&self) -> f64 {
        match self.is_line {
            true => SWATCH_PX * 2.0,
            false => SWATCH_PX,
        }
    }
}

/// Distance from the left, and row, of each entry.
fn places(entries: &[Entry], room_px: f64) -> Vec<(f64, usize)> {
    let (mut x, mut row) = (0.0, 0);
    entries
        .iter()
        .map(|entry| {
            let width = entry.swatch_px() + 6.0 + width_px(&entry.name, FONT_PX);
            if x > 0.0 && x + width > room_px {
                (x, row) = (0.0, row + 1);
            }
            let place = (x, row);
            x += width + 18.0;
            place
        })
        .collect()
}

/// A labelled bar, of one part or several.
#[derive(Clone, Debug)]
pub struct Bar {
    pub name: String,
    /// Value and colour of each part.
    pub parts: Vec<(f64, Category)>,
    /// Behind the bar; the sum with its unit if empty.
    pub note: String,
}

/// Sums by the colour of their component.
pub type Parts = BTreeMap<Category, f64>;

impl Bar {
    pub fn stacked(name: String, parts: Parts) -> Bar {
        let parts = parts.into_iter();
        Bar {
            name,
            parts: parts.map(|(category, value)| (value, category)).collect(),
            note: String::new(),
        }
    }

    pub fn sum(&self) -> f64 {
        self.parts.iter().map(|(value, _)| value).sum()
    }
}

const COLUMNS_PX: f64 = 300.0;
/// Names along an axis of layers.
const MAX_NAMES: usize = 24;
/// How tall a bar may be.
const BAR_PX: f64 = 20.0;

/// Horizontal bars, first on top.
pub fn bars(label: &str, unit: Unit, bars: &[Bar], entries: &[Entry]) -> Canvas {
    let legend_px = legend_height_px(entries, LEGEND_OF_BARS_PX);
    let height_px = 12.0 + legend_px + BAR_PX * bars.len().max(1) as f64 + FONT_PX * 2.0 + 26.0;
    let mut canvas = Canvas::new(height_px);
    let notes: Vec<String> = bars
        .iter()
        .map(|bar| match bar.note.as_str() {
            "" => unit.amount(bar.sum()),
            note => note.to_owned(),
        })
        .collect();
    let note_px = notes
        .iter()
        .map(|note| width_px(note, SMALL_PX))
        .fold(0.0, f64::max);
    let max = bars.iter().map(Bar::sum).fold(0.0, f64::max);
    let x = Axis::new(label, unit, 0.0, max);
    let y = Axis::cells("", bars.iter().map(|bar| bar.name.clone()), bars.len());
    let room = Room {
        top_px: legend_px,
        right_px: (note_px + 10.0).min(WIDTH_PX / 3.0),
    };
    let frame = Frame::draw(&mut canvas, &x, &y, Grid::Vertical, Direction::Down, room);
    let thick = (frame.height / bars.len().max(1) as f64 * 0.68).min(BAR_PX);
    for (row, (bar, note)) in bars.iter().zip(&notes).enumerate() {
        let middle = frame.y(row as f64 + 0.5);
        let mut from = 0.0;
        for (value, category) in &bar.parts {
            let (left, right) = (frame.x(from), frame.x(from + value));
            let tip = format!("{}: {}", bar.name, unit.amount(*value));
            canvas.rect(
                &category.fill(),
                (left, middle - thick / 2.0),
                (right - left, thick),
                &tip,
            );
            from += value;
        }
        let note = shortened(note, SMALL_PX, WIDTH_PX / 3.0);
        let at = (frame.x(from) + 6.0, middle + SMALL_PX * 0.36);
        canvas.small("m", at, Anchor::Start, &note);
    }
    legend(&mut canvas, frame.left, LEGEND_OF_BARS_PX, entries);
    canvas
}

/// Upright bars of layers side by side, with parts on top of each other.
pub fn columns(label: &str, unit: Unit, columns: &[Bar], entries: &[Entry]) -> Canvas {
    let mut canvas = Canvas::new(COLUMNS_PX);
    let names = columns.iter().map(|bar| {
        let number = bar.name.strip_prefix("layer ");
        number.unwrap_or("none").to_owned()
    });
    let x = Axis::cells("layer", names, MAX_NAMES);
    let max = columns.iter().map(Bar::sum).fold(0.0, f64::max);
    let y = Axis::new(label, unit, 0.0, max);
    let room = Room {
        top_px: legend_height_px(entries, LEGEND_PX),
        right_px: 10.0,
    };
    let frame = Frame::draw(&mut canvas, &x, &y, Grid::Horizontal, Direction::Up, room);
    let step = frame.width / columns.len().max(1) as f64;
    let gap = if step > 6.0 {
        (step * 0.22).min(14.0)
    } else {
        0.0
    };
    for (number, column) in columns.iter().enumerate() {
        let mut from = 0.0;
        for (value, category) in &column.parts {
            let (bottom, top) = (frame.y(from), frame.y(from + value));
            let tip = match column.note.as_str() {
                "" => format!("{}: {}", column.name, y.unit.amount(*value)),
                note => format!("{}: {} ({note})", column.name, y.unit.amount(*value)),
            };
            let left = frame.left + number as f64 * step + gap / 2.0;
            canvas.rect(
                &category.fill(),
                (left, top),
                (step - gap, bottom - top),
                &tip,
            );
            from += value;
        }
    }
    legend(&mut canvas, frame.left, LEGEND_PX, entries);
    canvas
}
