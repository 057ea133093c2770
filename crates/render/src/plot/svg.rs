//! A picture: while it is drawn, and finished.

use std::fmt::Write as _;

use super::{
    text::escape,
    theme::{FONT, FONT_PX, SMALL_PX, WIDTH_PX, style},
};
use crate::palette::Scheme;

/// Room above a picture on its own for its title.
const TITLE_PX: f64 = 34.0;

/// A finished picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Svg {
    width_px: f64,
    height_px: f64,
    title: String,
    description: String,
    parts: Vec<Part>,
}

/// A piece of the picture.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Markup(String),
    /// What a style sheet cannot recolour.
    Themed {
        light: String,
        dark: String,
    },
}

impl Svg {
    /// For a page: no colours, no size and no title of its own; the page has
    /// [`style`] for both schemes and shows `.light` or `.dark`.
    pub fn inline(&self) -> String {
        let mut out = format!(
            "<svg class=\"picture\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" font-size=\"{FONT_PX}\">\n",
            number(self.width_px),
            number(self.height_px),
            escape(&format!("{}. {}", self.title, self.description)),
        );
        for part in &self.parts {
            match part {
                Part::Markup(markup) => out.push_str(markup),
                Part::Themed { light, dark } => {
                    let _ = write!(
                        out,
                        "<g class=\"light\">{light}</g><g class=\"dark\">{dark}</g>"
                    );
                }
            }
        }
        out.push_str("</svg>\n");
        out
    }

    /// For a file: light colours, with its title on top.
    pub fn standalone(&self) -> String {
        let height_px = self.height_px + TITLE_PX;
        let (width, height) = (number(self.width_px), number(height_px));
        let title = escape(&self.title);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 -{TITLE_PX} {width} {height}\" font-family=\"{FONT}\" font-size=\"{FONT_PX}\">\n\
             <title>{title}</title>\n<desc>{}</desc>\n<style>{}</style>\n\
             <rect class=\"bg\" x=\"0\" y=\"-{TITLE_PX}\" width=\"{width}\" height=\"{height}\"/>\n\
             <text class=\"t\" x=\"12\" y=\"-12\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n",
            escape(&self.description),
            style(Scheme::Light, ""),
        );
        for part in &self.parts {
            match part {
                Part::Markup(markup) | Part::Themed { light: markup, .. } => out.push_str(markup),
            }
        }
        out.push_str("</svg>\n");
        out
    }

    pub fn width_px(&self) -> f64 {
        self.width_px
    }

    pub fn height_px(&self) -> f64 {
        self.height_px
    }
}

/// A picture in the making.
#[derive(Clone, Debug)]
pub struct Canvas {
    width_px: f64,
    height_px: f64,
    parts: Vec<Part>,
    markup: String,
}

/// Where a text is tied to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// A text and how it stands.
#[derive(Clone, Copy, Debug)]
pub struct Label<'a> {
    pub text: &'a str,
    pub at: (f64, f64),
    pub anchor: Anchor,
    pub class: &'a str,
    pub size_px: f64,
    /// Turned to the left, in degrees.
    pub turn: f64,
}

impl Canvas {
    pub fn new(height_px: f64) -> Canvas {
        Canvas {
            width_px: WIDTH_PX,
            height_px,
            parts: Vec::new(),
            markup: String::new(),
        }
    }

    pub fn height_px(&self) -> f64 {
        self.height_px
    }

    /// Other than [`WIDTH_PX`]; for pictures without axes.
    pub(crate) fn set_width(&mut self, width_px: f64) {
        self.width_px = width_px;
    }

    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.markup,
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>",
            number(from.0),
            number(from.1),
            number(to.0),
            number(to.1)
        );
    }

    /// A rectangle; `tip` is what a pointer shows.
    pub fn rect(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        tip: &str,
    ) {
        let _ = write!(
            self.markup,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            number(x),
            number(y),
            number(width.max(0.0)),
            number(height.max(0.0))
        );
        self.close("rect", tip);
    }

    pub fn circle(&mut self, class: &str, (x, y): (f64, f64), radius: f64, tip: &str) {
        let _ = write!(
            self.markup,
            "<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"{}\"",
            number(x),
            number(y),
            number(radius)
        );
        self.close("circle", tip);
    }

    /// A line through points; `dash` as in SVG, or empty.
    pub fn polyline(&mut self, class: &str, points: &[(f64, f64)], width_px: f64, dash: &str) {
        let _ = write!(
            self.markup,
            "<polyline class=\"{class}\" stroke-width=\"{}\" stroke-linejoin=\"round\"",
            number(width_px)
        );
        if !dash.is_empty() {
            let _ = write!(self.markup, " stroke-dasharray=\"{dash}\"");
        }
        self.markup.push_str(" points=\"");
        for (x, y) in points {
            let _ = write!(self.markup, "{},{} ", number(*x), number(*y));
        }
        self.markup.push_str("\"/>\n");
    }

    pub fn label(&mut self, label: &Label) {
        let (x, y) = (number(label.at.0), number(label.at.1));
        let _ = write!(
            self.markup,
            "<text class=\"{}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{}\"",
            label.class,
            label.anchor.name()
        );
        if (label.size_px - FONT_PX).abs() > f64::EPSILON {
            let _ = write!(self.markup, " font-size=\"{}\"", number(label.size_px));
        }
        if label.turn != 0.0 {
            let _ = write!(
                self.markup,
                " transform=\"rotate({} {x} {y})\"",
                number(-label.turn)
            );
        }
        let _ = writeln!(self.markup, ">{}</text>", escape(label.text));
    }

    /// A text in the plot's usual size.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        self.label(&Label {
            text,
            at,
            anchor,
            class,
            size_px: FONT_PX,
            turn: 0.0,
        });
    }

    /// A small text: of a tick, a note, a frame.
    pub fn small(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        self.label(&Label {
            text,
            at,
            anchor,
            class,
            size_px: SMALL_PX,
            turn: 0.0,
        });
    }

    /// A title along a y axis.
    pub fn upright(&mut self, at: (f64, f64), text: &str) {
        self.label(&Label {
            text,
            at,
            anchor: Anchor::Middle,
            class: "t",
            size_px: FONT_PX,
            turn: 90.0,
        });
    }

    /// Markup for light and dark ground, where classes cannot do it.
    pub(super) fn themed(&mut self, light: String, dark: String) {
        self.parts
            .push(Part::Markup(std::mem::take(&mut self.markup)));
        self.parts.push(Part::Themed { light, dark });
    }

    pub fn finish(mut self, title: &str, description: &str) -> Svg {
        self.parts.push(Part::Markup(self.markup));
        Svg {
            width_px: self.width_px,
            height_px: self.height_px,
            title: title.to_owned(),
            description: description.to_owned(),
            parts: self.parts,
        }
    }

    fn close(&mut self, element: &str, tip: &str) {
        let _ = match tip {
            "" => writeln!(self.markup, "/>"),
            tip => writeln!(self.markup, "><title>{}</title></{element}>", escape(tip)),
        };
    }
}

/// Two decimals are a fiftieth of a pixel; more would be bytes for nothing.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}
