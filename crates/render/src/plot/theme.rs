//! What pictures look like: the classes that they use, and their style sheets.
//!
//! Categories are coloured after Okabe and Ito, whose colours people with any
//! common colour blindness can tell apart. A component has the same colour in
//! every picture: that of the flame graph's file, but for the palest, which are
//! darker here because lines are thin. No colour carries meaning alone: bars are
//! labelled, lines differ in their dashes too.

use std::fmt::Write as _;

use super::colour::{Rgb, Scheme, contrast, hex};

/// Width of every plot; heights differ.
pub const WIDTH_PX: f64 = 720.0;
pub const FONT_PX: f64 = 12.0;
pub const SMALL_PX: f64 = 10.5;
/// Families for pictures on their own; the first is the one we bring.
pub const FONT: &str = "Noto Sans, system-ui, sans-serif";

pub const GROUND_LIGHT: Rgb = [0xff, 0xff, 0xff];
pub const GROUND_DARK: Rgb = [0x14, 0x17, 0x1c];

/// A category's colour, by class: `f3` fills, `s3` draws lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Category(pub u8);

/// Class number, name and its colours on light and dark ground.
const CATEGORIES: &[(&str, Rgb, Rgb)] = &[
    ("attention", [0x00, 0x72, 0xb2], [0x3b, 0x9d, 0xd8]),
    ("expert", [0xd5, 0x5e, 0x00], [0xe8, 0x7a, 0x26]),
    ("shared_expert", [0xf2, 0xa3, 0x6b], [0xf2, 0xa3, 0x6b]),
    ("ffn", [0xe6, 0x9f, 0x00], [0xe6, 0x9f, 0x00]),
    ("router", [0x00, 0x9e, 0x73], [0x12, 0xb8, 0x89]),
    ("norm", [0x56, 0xb4, 0xe9], [0x7c, 0xc7, 0xf0]),
    ("embedding", [0xcc, 0x79, 0xa7], [0xd9, 0x92, 0xba]),
    ("output", [0xd9, 0xc4, 0x16], [0xf0, 0xe4, 0x42]),
    ("kv_cache", [0x7d, 0x7d, 0x7d], [0xa5, 0xa5, 0xa5]),
    ("activation", [0xb0, 0xb0, 0xb0], [0x7c, 0x7c, 0x7c]),
    ("input", [0xc9, 0xb4, 0x9a], [0x9a, 0x86, 0x6c]),
    ("other", [0x99, 0x93, 0x8a], [0x8a, 0x86, 0x80]),
];

impl Category {
    /// How many there are.
    pub const COUNT: u8 = CATEGORIES.len() as u8;

    /// Of a component, or of a kind of memory.
    pub fn of(name: &str) -> Category {
        let known = CATEGORIES.iter().position(|(known, ..)| *known == name);
        Category(known.unwrap_or(CATEGORIES.len() - 1) as u8)
    }

    /// Of the n-th line of a plot without components: far apart from each other.
    pub fn nth(n: usize) -> Category {
        const ORDER: [&str; 5] = ["attention", "expert", "router", "embedding", "ffn"];
        Category::of(ORDER[n % ORDER.len()])
    }

    pub fn fill(self) -> String {
        format!("f{}", self.0)
    }

    pub fn stroke(self) -> String {
        format!("s{}", self.0)
    }

    /// Class of text that is readable on this colour.
    pub fn text(self) -> &'static str {
        match contrast(self.colour(Scheme::Light), GROUND_LIGHT) >= 3.5 {
            true => "on",
            false => "ink",
        }
    }

    pub fn colour(self, scheme: Scheme) -> Rgb {
        let (_, light, dark) = CATEGORIES[usize::from(self.0)];
        match scheme {
            Scheme::Light => light,
            Scheme::Dark => dark,
        }
    }
}

/// The style sheet of pictures: with colours for one scheme, selectors prefixed so
/// that a page can keep them to its pictures.
pub fn style(scheme: Scheme, prefix: &str) -> String {
    let ink = |light: &str, dark: &str| match scheme {
        Scheme::Light => light.to_owned(),
        Scheme::Dark => dark.to_owned(),
    };
    let ground = hex(match scheme {
        Scheme::Light => GROUND_LIGHT,
        Scheme::Dark => GROUND_DARK,
    });
    let mut css = String::new();
    let mut rule = |selector: &str, body: &str| {
        let _ = write!(css, "{prefix}{selector}{{{body}}}");
    };
    rule(".bg", &format!("fill:{ground}"));
    rule(".t", &format!("fill:{}", ink("#1c2024", "#e6e8eb")));
    rule(".m", &format!("fill:{}", ink("#5b626b", "#a0a8b2")));
    rule(".on", &format!("fill:{}", ink("#fff", "#10131a")));
    rule(".ink", &format!("fill:{}", ink("#111", "#10131a")));
    rule(
        ".grid",
        &format!("stroke:{};fill:none", ink("#e3e6ea", "#2b3038")),
    );
    rule(
        ".axis",
        &format!("stroke:{};fill:none", ink("#8a929c", "#69717c")),
    );
    rule(
        ".rule",
        &format!("stroke:{};fill:none", ink("#3c434b", "#c3c9d0")),
    );
    rule(".cell", &format!("fill:{}", ink("#f4f6f8", "#1b1f26")));
    rule(".gap", &format!("stroke:{ground}"));
    // Not as an attribute: older readers of SVG know this value in style sheets only.
    rule(".raster", "image-rendering:pixelated");
    rule(".wide", "stroke-width:3");
    rule(".pale", "fill-opacity:.6");
    rule(".paler", "fill-opacity:.36");
    for number in 0..CATEGORIES.len() {
        let category = Category(number as u8);
        let colour = hex(category.colour(scheme));
        rule(&format!(".f{number}"), &format!("fill:{colour}"));
        rule(
            &format!(".s{number}"),
            &format!("stroke:{colour};fill:none"),
        );
    }
    css
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_category_is_visible_on_its_ground() {
        for (number, (name, ..)) in CATEGORIES.iter().enumerate() {
            let category = Category(number as u8);
            for (scheme, ground) in [(Scheme::Light, GROUND_LIGHT), (Scheme::Dark, GROUND_DARK)] {
                let contrast = contrast(category.colour(scheme), ground);
                assert!(contrast > 1.6, "{name} on {scheme:?}: {contrast:.2}");
            }
        }
    }

    #[test]
    fn text_on_a_category_is_readable() {
        let [white, light_ink, dark_ink] = [[0xff; 3], [0x11; 3], [0x10, 0x13, 0x1a]];
        for number in 0..Category::COUNT {
            let category = Category(number);
            let on_light = if category.text() == "on" {
                white
            } else {
                light_ink
            };
            let light = contrast(category.colour(Scheme::Light), on_light);
            let dark = contrast(category.colour(Scheme::Dark), dark_ink);
            assert!(
                light >= 3.5 && dark >= 4.0,
                "{number}: {light:.1} {dark:.1}"
            );
        }
    }

    #[test]
    fn unknown_components_have_a_colour() {
        assert_eq!(Category::of("ssm"), Category::of("other"));
        assert_ne!(Category::of("expert"), Category::of("attention"));
    }
}
