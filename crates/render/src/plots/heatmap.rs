//! Heatmaps whose columns are tokens.

use index::{RunIndex, TokenInfo, TokenWindow};

use crate::plot::{
    Axis, Canvas, Frame, Svg, Ticks, Unit,
    axes::{Direction, Grid, Room},
    raster::{COLOUR_BAR_PX, Raster, colour_bar},
    text::token_label,
};

/// More tokens than this have numbers along the axis instead of their texts.
const MAX_TEXTS: usize = 72;

/// A heatmap over tokens.
pub struct TokenMap<'a> {
    pub title: &'a str,
    pub description: &'a str,
    pub raster: Raster,
    /// Token number at each column's left edge, and the end.
    pub edges: &'a [u64],
    pub y: Axis,
    pub height_px: f64,
    /// Rows before which a line is drawn.
    pub breaks: &'a [usize],
    pub bar_label: &'a str,
    pub unit: Unit,
}

impl TokenMap<'_> {
    pub fn draw(&self, index: &RunIndex) -> Svg {
        self.draw_with(&axis(index, self.edges, self.raster.columns))
    }

    fn draw_with(&self, x: &Axis) -> Svg {
        let mut canvas = Canvas::new(self.height_px);
        let has_bar = !self.raster.is_plain();
        let room = Room {
            top_px: 0.0,
            right_px: if has_bar { COLOUR_BAR_PX } else { 10.0 },
        };
        let frame = Frame::draw(&mut canvas, x, &self.y, Grid::None, Direction::Down, room);
        self.raster.draw(&mut canvas, &frame);
        for row in self.breaks {
            let y = frame.y(*row as f64);
            canvas.line("gap", (frame.left, y), (frame.right(), y));
        }
        if has_bar {
            colour_bar(&mut canvas, &frame, &self.raster, self.bar_label, self.unit);
        }
        canvas.finish(self.title, self.description)
    }
}

/// Texts of the tokens where there is room, else their numbers.
fn axis(index: &RunIndex, edges: &[u64], columns: usize) -> Axis {
    let (first, end) = match (edges.first(), edges.last()) {
        (Some(first), Some(end)) => (*first, *end),
        _ => (0, 0),
    };
    let is_one_each = end - first == columns as u64;
    if is_one_each && columns <= MAX_TEXTS && columns > 0 {
        let window = TokenWindow {
            from: Some(first),
            to: Some(end - 1),
        };
        return named_axis(&index.tokens(window), first, end);
    }
    Axis::new("token number", Unit::Plain, first as f64, end as f64).with_ticks(Ticks::Whole)
}

fn named_axis(tokens: &[TokenInfo], first: u64, end: u64) -> Axis {
    let named = tokens.iter().map(|token| {
        let text = match token.text.as_deref() {
            Some(text) if !text.is_empty() => token_label(text),
            _ => format!("#{}", token.id),
        };
        (token.token as f64 + 0.5, text)
    });
    Axis::new(
        "token, in the order of the run",
        Unit::Plain,
        first as f64,
        end as f64,
    )
    .with_ticks(Ticks::Named(named.collect()))
}

/// Where groups of rows begin, and each group's name at its middle.
pub fn groups<'a>(rows: impl Iterator<Item = &'a str>) -> (Vec<usize>, Vec<(f64, String)>) {
    let mut breaks = Vec::new();
    let mut spans: Vec<(usize, usize, String)> = Vec::new();
    for (row, group) in rows.enumerate() {
        match spans.last_mut() {
            Some((_, end, name)) if name == group => *end = row + 1,
            _ => {
                if row > 0 {
                    breaks.push(row);
                }
                spans.push((row, row + 1, group.to_owned()));
            }
        }
    }
    let named = spans
        .into_iter()
        .map(|(begin, end, name)| ((begin + end) as f64 / 2.0, name));
    (breaks, named.collect())
}

/// At most `most` names, evenly, so that they do not run into each other.
pub fn thinned(names: Vec<(f64, String)>, most: usize) -> Vec<(f64, String)> {
    let every = names.len().div_ceil(most.max(1)).max(1);
    names.into_iter().step_by(every).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_in_their_middle() {
        let (breaks, names) = groups(["a", "a", "b", "c", "c", "c"].into_iter());
        assert_eq!(breaks, [2, 3]);
        let names: Vec<(f64, &str)> = names
            .iter()
            .map(|(at, name)| (*at, name.as_str()))
            .collect();
        assert_eq!(names, [(1.0, "a"), (2.5, "b"), (4.5, "c")]);
    }
}
