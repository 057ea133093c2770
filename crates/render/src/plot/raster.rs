//! Heatmaps and scatter of many points: a PNG inside the SVG.
//!
//! One pixel is one cell, scaled up without smoothing, so that the values can be
//! read back from the picture: palette index 0 is "nothing", index `1 + i` the
//! share `i / 254` of the scale.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{
    axes::{Axis, Direction, Frame, Grid, Room},
    svg::{Anchor, Canvas, number},
    theme::SMALL_PX,
    units::{Unit, nice_ticks},
};
use crate::palette::{Ramp, Scheme};

/// Colours of a picture: the first is "nothing", transparent.
const PALETTE_LEN: usize = 256;

/// Cells of a picture, row by row from the top; NaN is "nothing".
#[derive(Clone, Debug)]
pub struct Raster {
    pub columns: usize,
    pub rows: usize,
    pub values: Vec<f32>,
    pub scale: Scale,
    pub ramp: Ramp,
}

/// How values become colours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    Linear {
        min: f64,
        max: f64,
    },
    /// For values of many magnitudes; `min` is above zero.
    Log {
        min: f64,
        max: f64,
    },
}

impl Scale {
    /// From the smallest to the largest value that is more than nothing.
    pub fn log_of(values: &[f32]) -> Scale {
        let positive = values.iter().copied().filter(|v| *v > 0.0);
        let (min, max) = positive.fold((f32::INFINITY, 0.0f32), |(a, b), v| (a.min(v), b.max(v)));
        match min < max {
            true => Scale::Log {
                min: f64::from(min),
                max: f64::from(max),
            },
            false => Scale::Linear {
                min: 0.0,
                max: f64::from(max).max(1.0),
            },
        }
    }

    /// From nothing to the largest value.
    pub fn linear_of(values: &[f32]) -> Scale {
        let max = values
            .iter()
            .copied()
            .filter(|v| v.is_finite())
            .fold(0.0f32, f32::max);
        Scale::Linear {
            min: 0.0,
            max: if max > 0.0 { f64::from(max) } else { 1.0 },
        }
    }

    pub fn share(self, value: f64) -> f64 {
        match self {
            Scale::Linear { min, max } => (value - min) / (max - min),
            Scale::Log { min, max } => (value / min).ln() / (max / min).ln(),
        }
    }

    fn range(self) -> (f64, f64) {
        match self {
            Scale::Linear { min, max } | Scale::Log { min, max } => (min, max),
        }
    }
}

impl Raster {
    /// Palette index of each cell.
    pub fn indices(&self) -> Vec<u8> {
        let last = (PALETTE_LEN - 2) as f64;
        let index = |value: f32| match value.is_finite() {
            false => 0,
            true => 1 + (self.scale.share(f64::from(value)).clamp(0.0, 1.0) * last).round() as u8,
        };
        self.values.iter().map(|value| index(*value)).collect()
    }

    /// As a PNG with a palette.
    pub fn png(&self, scheme: Scheme) -> Vec<u8> {
        let colours = self.ramp.steps(PALETTE_LEN - 1, scheme);
        let palette: Vec<_> = std::iter::once([0; 3]).chain(colours).collect();
        encode(self.columns, self.rows, &self.indices(), palette.concat())
    }

    /// Whether all cells that are not empty have one value, so that colours say
    /// nothing.
    pub fn is_plain(&self) -> bool {
        let mut values = self.values.iter().filter(|value| value.is_finite());
        let first = values.next();
        values.all(|value| Some(value) == first)
    }

    /// Fills a frame.
    pub fn draw(&self, canvas: &mut Canvas, frame: &Frame) {
        if self.columns == 0 || self.rows == 0 {
            return;
        }
        let image = |scheme| {
            format!(
                "<image class=\"raster\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" href=\"data:image/png;base64,{}\"/>\n",
                number(frame.left),
                number(frame.top),
                number(frame.width),
                number(frame.height),
                STANDARD.encode(self.png(scheme)),
            )
        };
        canvas.rect(
            "cell",
            (frame.left, frame.top),
            (frame.width, frame.height),
            "",
        );
        canvas.themed(image(Scheme::Light), image(Scheme::Dark));
    }
}

/// A heatmap with its axes, and what its colours mean.
pub struct Map<'a> {
    pub raster: Raster,
    pub x: Axis,
    pub y: Axis,
    pub height_px: f64,
    /// Room above for marks.
    pub top_px: f64,
    /// Rows and columns before which a line is drawn.
    pub row_breaks: &'a [usize],
    pub column_breaks: &'a [usize],
    pub label: &'a str,
    pub unit: Unit,
}

impl Map<'_> {
    pub fn draw(&self) -> (Canvas, Frame) {
        let mut canvas = Canvas::new(self.height_px);
        let has_bar = !self.raster.is_plain();
        let room = Room {
            top_px: self.top_px,
            right_px: if has_bar { COLOUR_BAR_PX } else { 10.0 },
        };
        let (x, y) = (&self.x, &self.y);
        let frame = Frame::draw(&mut canvas, x, y, Grid::None, Direction::Down, room);
        self.raster.draw(&mut canvas, &frame);
        for column in self.column_breaks {
            let x = frame.x(*column as f64);
            canvas.line("gap wide", (x, frame.top), (x, frame.bottom()));
        }
        for row in self.row_breaks {
            let y = frame.y(*row as f64);
            canvas.line("gap", (frame.left, y), (frame.right(), y));
        }
        if has_bar {
            colour_bar(&mut canvas, &frame, &self.raster, self.label, self.unit);
        }
        (canvas, frame)
    }
}

/// Width that a [`colour_bar`] needs to the right of a frame.
pub const COLOUR_BAR_PX: f64 = 92.0;

/// What the colours mean, to the right of a frame.
pub fn colour_bar(canvas: &mut Canvas, frame: &Frame, raster: &Raster, label: &str, unit: Unit) {
    let height = frame.height.min(190.0);
    let (left, top, width) = (frame.right() + 18.0, frame.top, 11.0);
    let (min, max) = raster.scale.range();
    let bar = Raster {
        columns: 1,
        rows: 128,
        values: (0..128).map(|i| 1.0 - i as f32 / 127.0).collect(),
        scale: Scale::Linear { min: 0.0, max: 1.0 },
        ramp: raster.ramp,
    };
    let place = Frame {
        left,
        top,
        width,
        height,
        ..frame.clone()
    };
    bar.draw(canvas, &place);
    let scaled = unit.scaled(max);
    let ticks: Vec<(f64, String)> = match raster.scale {
        Scale::Linear { .. } => nice_ticks(
            min / scaled.divisor,
            max / scaled.divisor,
            (height / 38.0) as usize,
            0.0,
        )
        .into_iter()
        .map(|(value, text)| (value * scaled.divisor, text))
        .collect(),
        Scale::Log { .. } => log_ticks(min, max, unit),
    };
    for (value, text) in ticks {
        let y = top + height * (1.0 - raster.scale.share(value));
        canvas.line("axis", (left + width, y), (left + width + 3.0, y));
        let at = (left + width + 6.0, y + SMALL_PX * 0.36);
        canvas.small("m", at, Anchor::Start, &text);
    }
    // The ticks of a logarithmic bar carry units themselves.
    let title = match (raster.scale, scaled.symbol) {
        (Scale::Log { .. }, _) | (_, "") => label.to_owned(),
        (_, symbol) => format!("{label} ({symbol})"),
    };
    canvas.upright((left + width + 64.0, top + height / 2.0), &title);
}

/// Powers of the unit's base, or of a smaller one where these are too few.
fn log_ticks(min: f64, max: f64, unit: Unit) -> Vec<(f64, String)> {
    let bases: &[f64] = match unit {
        Unit::Bytes => &[1024.0, 16.0, 4.0, 2.0],
        _ => &[1000.0, 100.0, 10.0, 2.0],
    };
    let powers = |base: f64| -> Vec<f64> {
        let first = (min.ln() / base.ln() - 1e-9).ceil() as i32;
        let last = (max.ln() / base.ln() + 1e-9).floor() as i32;
        (first..=last).map(|power| base.powi(power)).collect()
    };
    let ticks = bases
        .iter()
        .map(|base| powers(*base))
        .find(|ticks| ticks.len() >= 3);
    let ticks = ticks.unwrap_or_else(|| vec![min, max]);
    ticks
        .into_iter()
        .map(|value| (value, unit.amount(value)))
        .collect()
}

fn encode(columns: usize, rows: usize, indices: &[u8], palette: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, columns as u32, rows as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette);
    encoder.set_trns(vec![0]);
    encoder.set_compression(png::Compression::High);
    let written = encoder
        .write_header()
        .and_then(|mut writer| writer.write_image_data(indices));
    // Memory takes all bytes, and the sizes agree by construction.
    debug_assert!(written.is_ok());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_can_be_read_back_from_the_picture() {
        let raster = Raster {
            columns: 3,
            rows: 2,
            values: vec![0.0, 127.0, 254.0, f32::NAN, 1.0, 253.0],
            scale: Scale::Linear {
                min: 0.0,
                max: 254.0,
            },
            ramp: Ramp::Counts,
        };
        let mut reader = png::Decoder::new(std::io::Cursor::new(raster.png(Scheme::Light)))
            .read_info()
            .unwrap();
        let mut indices = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut indices).unwrap();
        assert_eq!((info.width, info.height), (3, 2));
        assert_eq!(indices, [1, 128, 255, 0, 2, 254]);
    }

    #[test]
    fn a_logarithmic_scale_keeps_small_values_apart() {
        let scale = Scale::log_of(&[1.0, 1000.0, f32::NAN, 0.0]);
        assert!((scale.share(10.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(
            Scale::log_of(&[5.0, 5.0]),
            Scale::Linear { min: 0.0, max: 5.0 }
        );
        let texts: Vec<String> = log_ticks(700.0, 3e6, Unit::Bytes)
            .into_iter()
            .map(|t| t.1)
            .collect();
        assert_eq!(texts, ["4 KiB", "64 KiB", "1 MiB"]);
    }
}
