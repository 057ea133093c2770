//! The fixed colours of a playback, and text in them.

use std::collections::HashMap;

use crate::{
    palette::{Category, Rgb, Scheme, mix, surface},
    plot::{picture, text::escape},
};

/// Shades of each ink, from the ground to full.
pub const LEVELS: u8 = 16;
/// Where the shades of each ink begin.
const INK: u8 = 2;
const MUTED: u8 = INK + LEVELS;
const CATEGORY: u8 = MUTED + LEVELS;

pub const GROUND: u8 = 0;
pub const PANEL: u8 = 1;
/// "As in the frame before", in files.
pub const UNCHANGED: u8 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    Text,
    Muted,
    Of(Category),
}

impl Ink {
    /// The colour at `share` of its strength.
    pub fn shade(self, share: f32) -> u8 {
        let level = (share.clamp(0.0, 1.0) * f32::from(LEVELS - 1)).round() as u8;
        let first = match self {
            Ink::Text => INK,
            Ink::Muted => MUTED,
            Ink::Of(category) => CATEGORY + category.number() as u8 * LEVELS,
        };
        first + level
    }
}

pub struct Palette {
    colours: Vec<Rgb>,
}

impl Palette {
    pub fn new() -> Palette {
        let of = |name| surface(name, Scheme::Dark);
        let ground = of("ground");
        let mut colours = vec![ground, of("grid")];
        let mut shades = |from: Rgb, to: Rgb| {
            let share = |level| f64::from(level) / f64::from(LEVELS - 1);
            colours.extend((0..LEVELS).map(|level| mix(from, to, share(level))));
        };
        shades(ground, of("text"));
        shades(ground, of("muted"));
        for category in Category::all() {
            let colour = category.colour(Scheme::Dark);
            // Never quite gone, so that the map shows what lies where; brightest
            // where it is read, towards white.
            shades(mix(ground, colour, 0.17), mix(colour, [255; 3], 0.35));
        }
        colours.resize(256, ground);
        Palette { colours }
    }

    pub fn colour(&self, index: u8) -> Rgb {
        self.colours[usize::from(index)]
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.colours.concat()
    }
}

/// A text as strengths of ink.
#[derive(Clone, Debug)]
pub struct Mask {
    pub width_px: usize,
    pub height_px: usize,
    pub alpha: Vec<u8>,
}

impl Mask {
    /// Up to the last column with ink.
    pub fn ink_width(&self) -> usize {
        let columns = self
            .alpha
            .iter()
            .enumerate()
            .filter(|(_, alpha)| **alpha > 0);
        columns
            .map(|(at, _)| at % self.width_px + 1)
            .max()
            .unwrap_or(0)
    }
}

/// Draws texts, each once.
#[derive(Default)]
pub struct Letters {
    known: HashMap<(String, u32), Mask>,
}

/// Texts that change all the time would fill the memory.
const MAX_KNOWN: usize = 256;

impl Letters {
    /// A line of text; its baseline is at three quarters of the height.
    pub fn mask(&mut self, text: &str, size_px: f32) -> &Mask {
        let key = (text.to_owned(), size_px.to_bits());
        if self.known.len() >= MAX_KNOWN && !self.known.contains_key(&key) {
            self.known.clear();
        }
        self.known.entry(key).or_insert_with(|| draw(text, size_px))
    }
}

fn draw(text: &str, size_px: f32) -> Mask {
    let width_px = crate::plot::text::width_px(text, f64::from(size_px)) * 1.15 + 8.0;
    let height_px = (size_px * 1.5).ceil();
    let svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width_px:.0}\" height=\"{height_px}\"><text xml:space=\"preserve\" x=\"0\" y=\"{:.1}\" font-size=\"{size_px}\">{}</text></svg>",
        size_px * 1.12,
        escape(text)
    );
    match picture::draw(&svg, 1.0) {
        Ok(pixels) => Mask {
            width_px: pixels.width() as usize,
            height_px: pixels.height() as usize,
            alpha: pixels.pixels().iter().map(|pixel| pixel.alpha()).collect(),
        },
        // A text that cannot be drawn is left out; the picture is about the rest.
        Err(_) => Mask {
            width_px: 0,
            height_px: 0,
            alpha: Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_inks_fit_the_palette() {
        let last = Ink::Of(Category::of("other")).shade(1.0);
        assert!(last < UNCHANGED);
        assert_ne!(Ink::Text.shade(1.0), Ink::Muted.shade(0.0));
        assert_eq!(Palette::new().bytes().len(), 768);
    }

    #[test]
    fn letters_have_ink() {
        let mut letters = Letters::default();
        let mask = letters.mask("token", 14.0);
        assert!(mask.alpha.iter().filter(|alpha| **alpha > 128).count() > 40);
    }
}
