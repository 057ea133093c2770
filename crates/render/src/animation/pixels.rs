//! Rectangles and letters on a frame.

use super::ink::{GROUND, Ink, Mask};

/// A rectangle of pixels.
#[derive(Clone, Copy)]
pub struct Area {
    pub left: usize,
    pub top: usize,
    pub width: usize,
    pub height: usize,
}

impl Area {
    /// A cell of a grid over the area, with a gap to the next where there is room.
    pub fn cell(self, (column, columns): (usize, usize), (row, rows): (usize, usize)) -> Area {
        let edge = |at: usize, of: usize, length: usize| at * length / of.max(1);
        let (left, right) = (
            edge(column, columns, self.width),
            edge(column + 1, columns, self.width),
        );
        let (top, bottom) = (
            edge(row, rows, self.height),
            edge(row + 1, rows, self.height),
        );
        let gap = |length: usize| usize::from(length > 3);
        Area {
            left: self.left + left,
            top: self.top + top,
            width: right - left - gap(right - left),
            height: bottom - top - gap(bottom - top),
        }
    }
}

/// A frame in the making.
pub struct Pixels {
    width: usize,
    pub indices: Vec<u8>,
}

impl Pixels {
    pub fn new(width: usize, height: usize) -> Pixels {
        Pixels {
            width,
            indices: vec![GROUND; width * height],
        }
    }

    pub fn fill(&mut self, area: Area, colour: u8) {
        for row in area.top..area.top + area.height {
            let start = row * self.width + area.left;
            if let Some(pixels) = self.indices.get_mut(start..start + area.width) {
                pixels.fill(colour);
            }
        }
    }

    pub fn text(&mut self, mask: &Mask, left: usize, top: usize, right: usize, ink: Ink) {
        self.text_over(mask, left, top, right, ink, GROUND);
    }

    /// Up to `right`; where there is no ink, `ground`.
    pub fn text_over(
        &mut self,
        mask: &Mask,
        left: usize,
        top: usize,
        right: usize,
        ink: Ink,
        ground: u8,
    ) {
        self.letters(mask, left, top, right, |alpha| match alpha {
            0..8 => None,
            // The palest shades are the ground's, which differs on a panel.
            8..32 if ground != GROUND => None,
            alpha => Some(ink.shade(f32::from(alpha) / 255.0)),
        });
    }

    fn letters(
        &mut self,
        mask: &Mask,
        left: usize,
        top: usize,
        right: usize,
        colour: impl Fn(u8) -> Option<u8>,
    ) {
        if mask.width_px == 0 {
            return;
        }
        for (row, line) in mask.alpha.chunks(mask.width_px).enumerate() {
            for (column, alpha) in line.iter().enumerate().take(right.saturating_sub(left)) {
                let at = (top + row) * self.width + left + column;
                if let (Some(colour), Some(pixel)) = (colour(*alpha), self.indices.get_mut(at)) {
                    *pixel = colour;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_a_grid_do_not_overlap_and_fill_it() {
        let area = Area {
            left: 10,
            top: 10,
            width: 100,
            height: 30,
        };
        let last = area.cell((6, 7), (2, 3));
        assert!(last.left + last.width <= 110 && last.top + last.height <= 40);
        let (a, b) = (area.cell((0, 7), (0, 1)), area.cell((1, 7), (0, 1)));
        assert!(a.left + a.width <= b.left);
    }
}
