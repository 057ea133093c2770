//! Frames with axes: ticks, labels with units, grid.

use serde::Serialize;

use super::{
    svg::{Anchor, Canvas, Label},
    text::{shortened, width_px},
    theme::{FONT_PX, SMALL_PX, WIDTH_PX},
    units::{Unit, nice_ticks},
};

/// Room between the picture's edge and the outermost text.
const EDGE_PX: f64 = 12.0;
/// Longest label of a tick on the left.
const WIDEST_TICK_PX: f64 = 190.0;

/// One axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Axis {
    /// What it shows, without the unit.
    pub label: String,
    pub unit: Unit,
    pub min: f64,
    pub max: f64,
    /// Print chooses them by its room, as does the page.
    #[serde(skip)]
    pub ticks: Ticks,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Ticks {
    /// Round numbers.
    Nice,
    /// Round whole numbers.
    Whole,
    /// At these values these texts: names of rows and columns.
    Named(Vec<(f64, String)>),
}

/// A tick as drawn: at a value, with a text.
pub type Tick = (f64, String);

impl Axis {
    pub fn new(label: &str, unit: Unit, min: f64, max: f64) -> Axis {
        Axis {
            label: label.to_owned(),
            unit,
            min,
            // A frame of no width has no scale.
            max: if max > min { max } else { min + 1.0 },
            ticks: Ticks::Nice,
        }
    }

    /// Rows or columns of cells with names in their middle: at most `max_names` of them,
    /// evenly, so that they do not run into each other.
    pub fn cells(
        label: &str,
        names: impl ExactSizeIterator<Item = String>,
        max_names: usize,
    ) -> Axis {
        let count = names.len();
        let named = names.enumerate();
        let named = named.map(|(at, name)| (at as f64 + 0.5, name)).collect();
        Axis::new(label, Unit::Plain, 0.0, count as f64).with_names(named, max_names)
    }

    pub fn with_names(self, names: Vec<Tick>, max_names: usize) -> Axis {
        let every = names.len().div_ceil(max_names.max(1)).max(1);
        self.with_ticks(Ticks::Named(names.into_iter().step_by(every).collect()))
    }

    pub fn with_ticks(mut self, ticks: Ticks) -> Axis {
        self.ticks = ticks;
        self
    }

    /// Label and unit.
    pub fn title(&self) -> String {
        match self.unit.scaled(self.max).symbol {
            "" => self.label.clone(),
            symbol if self.label.is_empty() => symbol.to_owned(),
            symbol => format!("{} ({symbol})", self.label),
        }
    }

    /// A value in words: its name where it has one.
    pub fn text(&self, value: f64) -> String {
        let named = match &self.ticks {
            Ticks::Named(named) => named.iter().find(|(at, _)| *at == value),
            _ => None,
        };
        named.map_or_else(|| self.unit.amount(value), |(_, name)| name.clone())
    }

    fn ticks(&self, wanted: usize) -> Vec<Tick> {
        let divisor = self.unit.scaled(self.max).divisor;
        let least = match self.ticks {
            Ticks::Whole => 1.0,
            _ => 0.0,
        };
        match &self.ticks {
            Ticks::Named(named) => named.clone(),
            Ticks::Nice | Ticks::Whole => {
                nice_ticks(self.min / divisor, self.max / divisor, wanted, least)
                    .into_iter()
                    .map(|(value, text)| (value * divisor, text))
                    .collect()
            }
        }
    }
}

/// Which lines of the grid are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    Horizontal,
    Vertical,
    None,
}

/// The area of the data, and where values lie in it.
#[derive(Clone, Debug)]
pub struct Frame {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
    pub(super) x: (f64, f64),
    pub(super) y: (f64, f64),
}

/// Room that a frame leaves for others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// Above, for a legend.
    pub top_px: f64,
    /// To the right, for a colour bar or values.
    pub right_px: f64,
}

impl Frame {
    /// Draws both axes and gives the area between them.
    pub fn draw(
        canvas: &mut Canvas,
        x: &Axis,
        y: &Axis,
        grid: Grid,
        rows: Direction,
        room: Room,
    ) -> Frame {
        let height_px = canvas.height_px();
        let y_ticks = y.ticks((height_px / 56.0) as usize);
        let widest = y_ticks
            .iter()
            .map(|(_, text)| width_px(text, tick_px(&y.ticks)))
            .fold(0.0, f64::max)
            .min(WIDEST_TICK_PX);
        let title_px = if y.title().is_empty() {
            0.0
        } else {
            FONT_PX + 6.0
        };
        let left = EDGE_PX + title_px + widest + 8.0;
        let top = EDGE_PX + room.top_px;
        let width = WIDTH_PX - left - EDGE_PX - room.right_px;
        let turned = is_turned(x, width);
        let x_ticks = x.ticks((width / 80.0) as usize);
        let below = match turned {
            true => {
                x_ticks
                    .iter()
                    .map(|(_, text)| width_px(text, SMALL_PX))
                    .fold(0.0, f64::max)
                    .min(90.0)
                    + 8.0
            }
            false => FONT_PX + 8.0,
        };
        let x_title_px = if x.title().is_empty() {
            0.0
        } else {
            FONT_PX + 10.0
        };
        let height = height_px - top - below - x_title_px - 8.0;
        let frame = Frame {
            left,
            top,
            width,
            height,
            x: (x.min, x.max),
            y: match rows {
                Direction::Up => (y.min, y.max),
                Direction::Down => (y.max, y.min),
            },
        };
        let bottom = top + height;
        for (value, _) in &x_ticks {
            let at = frame.x(*value);
            if grid == Grid::Vertical {
                canvas.line("grid", (at, top), (at, bottom));
            } else {
                canvas.line("axis", (at, bottom), (at, bottom + 4.0));
            }
        }
        for (value, _) in &y_ticks {
            let at = frame.y(*value);
            if grid == Grid::Horizontal {
                canvas.line("grid", (left, at), (left + width, at));
            }
        }
        canvas.line("axis", (left, bottom), (left + width, bottom));
        for (value, text) in &x_ticks {
            let at = frame.x(*value);
            match turned {
                true => canvas.label(&Label {
                    text: &shortened(text, SMALL_PX, 90.0),
                    at: (at + SMALL_PX * 0.35, bottom + 7.0),
                    anchor: Anchor::End,
                    class: "m",
                    size_px: SMALL_PX,
                    turn: 90.0,
                }),
                false => canvas.label(&Label {
                    text,
                    at: (at, bottom + FONT_PX + 5.0),
                    anchor: Anchor::Middle,
                    class: "m",
                    size_px: tick_px(&x.ticks),
                    turn: 0.0,
                }),
            }
        }
        let size_px = tick_px(&y.ticks);
        for (value, text) in &y_ticks {
            let at = frame.y(*value);
            canvas.label(&Label {
                text: &shortened(text, size_px, WIDEST_TICK_PX),
                at: (left - 7.0, at + size_px * 0.36),
                anchor: Anchor::End,
                class: "m",
                size_px,
                turn: 0.0,
            });
        }
        let title_y = height_px - 8.0;
        canvas.text(
            "t",
            (left + width / 2.0, title_y),
            Anchor::Middle,
            &x.title(),
        );
        if title_px > 0.0 {
            let at = (EDGE_PX + FONT_PX - 2.0, top + height / 2.0);
            canvas.upright(at, &y.title());
        }
        frame
    }

    /// A square of cells without axes, one of several in a picture.
    pub fn panel((left, top): (f64, f64), (width, height): (f64, f64), cells: f64) -> Frame {
        Frame {
            left,
            top,
            width,
            height,
            x: (0.0, cells),
            y: (cells, 0.0),
        }
    }

    pub fn x(&self, value: f64) -> f64 {
        self.left + (value - self.x.0) / (self.x.1 - self.x.0) * self.width
    }

    pub fn y(&self, value: f64) -> f64 {
        self.top + self.height - (value - self.y.0) / (self.y.1 - self.y.0) * self.height
    }

    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }

    pub fn right(&self) -> f64 {
        self.left + self.width
    }
}

/// Where the y axis begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// At the bottom: quantities.
    Up,
    /// At the top: rows of a table, offsets of a file.
    Down,
}

/// Names stand upright when they would run into each other.
fn is_turned(axis: &Axis, width: f64) -> bool {
    let Ticks::Named(named) = &axis.ticks else {
        return false;
    };
    let scale = width / (axis.max - axis.min);
    let half = |text: &str| width_px(text, SMALL_PX) / 2.0;
    named.windows(2).any(|pair| {
        let distance = (pair[1].0 - pair[0].0).abs() * scale;
        half(&pair[0].1) + half(&pair[1].1) + 8.0 > distance
    })
}

fn tick_px(ticks: &Ticks) -> f64 {
    match ticks {
        Ticks::Named(_) => SMALL_PX,
        _ => FONT_PX,
    }
}
