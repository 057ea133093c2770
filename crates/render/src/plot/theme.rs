//! What pictures look like: sizes, the classes that they use, and their style sheets.

use std::fmt::Write as _;

use crate::palette::{Category, Scheme, contrast, hex, surface};

/// Width of every plot; heights differ.
pub const WIDTH_PX: f64 = 720.0;
pub const FONT_PX: f64 = 12.0;
pub const SMALL_PX: f64 = 10.5;
/// Families for pictures on their own; the first is the one we bring.
pub const FONT: &str = "Noto Sans, system-ui, sans-serif";

/// A category's colour, by class: `f3` fills, `s3` draws lines.
impl Category {
    pub fn fill(self) -> String {
        format!("f{}", self.number())
    }

    pub fn stroke(self) -> String {
        format!("s{}", self.number())
    }

    /// Class of text that is readable on this colour.
    pub fn text(self) -> &'static str {
        let paper = surface("ground", Scheme::Light);
        match contrast(self.colour(Scheme::Light), paper) >= 3.5 {
            true => "on",
            false => "ink",
        }
    }
}

/// The style sheet of pictures: with colours for one scheme, selectors prefixed so
/// that a page can keep them to its pictures.
pub fn style(scheme: Scheme, prefix: &str) -> String {
    let of = |name: &str| hex(surface(name, scheme));
    let dark_ink = hex(surface("ground", Scheme::Dark));
    let ink = match scheme {
        Scheme::Light => "#fff".to_owned(),
        Scheme::Dark => dark_ink.clone(),
    };
    let ground = of("ground");
    let mut css = String::new();
    let mut rule = |selector: &str, body: String| {
        let _ = write!(css, "{prefix}{selector}{{{body}}}");
    };
    rule(".bg", format!("fill:{ground}"));
    rule(".t", format!("fill:{}", of("text")));
    rule(".m", format!("fill:{}", of("muted")));
    rule(".on", format!("fill:{ink}"));
    rule(".ink", format!("fill:{dark_ink}"));
    for (class, name) in [(".grid", "grid"), (".axis", "line"), (".rule", "muted")] {
        rule(class, format!("stroke:{};fill:none", of(name)));
    }
    rule(".cell", format!("fill:{}", of("panel")));
    rule(".gap", format!("stroke:{ground}"));
    // Not as an attribute: older readers of SVG know this value in style sheets only.
    rule(".raster", "image-rendering:pixelated".to_owned());
    rule(".wide", "stroke-width:3".to_owned());
    rule(".pale", "fill-opacity:.6".to_owned());
    rule(".paler", "fill-opacity:.36".to_owned());
    for category in Category::all() {
        let (number, colour) = (category.number(), hex(category.colour(scheme)));
        rule(&format!(".f{number}"), format!("fill:{colour}"));
        rule(&format!(".s{number}"), format!("stroke:{colour};fill:none"));
    }
    css
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_on_a_category_is_readable() {
        let dark_ink = surface("ground", Scheme::Dark);
        for category in Category::all() {
            let on_light = match category.text() {
                "on" => [0xff; 3],
                _ => dark_ink,
            };
            let light = contrast(category.colour(Scheme::Light), on_light);
            let dark = contrast(category.colour(Scheme::Dark), dark_ink);
            assert!(
                light >= 3.5 && dark >= 4.0,
                "{category:?}: {light:.1} {dark:.1}"
            );
        }
    }
}
