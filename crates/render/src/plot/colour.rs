//! Colour maps.
//!
//! Two sequential maps, told apart by hue: blues for counts and bytes, viridis for
//! time. Both grow evenly in lightness, so that they read in grey and with any
//! colour blindness. Little is close to the background, much stands out; on dark
//! ground the blues therefore run the other way, and viridis loses its darkest end
//! (and on white its brightest).

/// What the ground is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Light,
    Dark,
}

/// A sequential map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ramp {
    /// Counts and bytes.
    Counts,
    /// Viridis: time, or tokens in their order.
    Time,
}

pub type Rgb = [u8; 3];

/// Colours of a palette: the first is "nothing", transparent.
pub const PALETTE_LEN: usize = 256;

const BLUES_LIGHT: &[Rgb] = &[
    [0xe4, 0xee, 0xf8],
    [0xa8, 0xcd, 0xe6],
    [0x58, 0xa2, 0xd0],
    [0x1d, 0x70, 0xae],
    [0x0a, 0x47, 0x82],
    [0x07, 0x24, 0x4b],
];
const BLUES_DARK: &[Rgb] = &[
    [0x15, 0x2b, 0x43],
    [0x18, 0x48, 0x71],
    [0x22, 0x6b, 0xa2],
    [0x3c, 0x90, 0xcd],
    [0x77, 0xb8, 0xe4],
    [0xbf, 0xe0, 0xf5],
];
/// Viridis (Smith and van der Walt, CC0) at eleven even places.
const VIRIDIS: &[Rgb] = &[
    [0x44, 0x01, 0x54],
    [0x48, 0x24, 0x75],
    [0x41, 0x44, 0x87],
    [0x35, 0x5f, 0x8d],
    [0x2a, 0x78, 0x8e],
    [0x21, 0x91, 0x8c],
    [0x22, 0xa8, 0x84],
    [0x44, 0xbf, 0x70],
    [0x7a, 0xd1, 0x51],
    [0xbd, 0xdf, 0x26],
    [0xfd, 0xe7, 0x25],
];

impl Ramp {
    /// The colour at `share` (0 to 1) of the way.
    pub fn colour(self, share: f64, scheme: Scheme) -> Rgb {
        let share = share.clamp(0.0, 1.0);
        match (self, scheme) {
            (Ramp::Counts, Scheme::Light) => between(BLUES_LIGHT, share),
            (Ramp::Counts, Scheme::Dark) => between(BLUES_DARK, share),
            (Ramp::Time, Scheme::Light) => between(VIRIDIS, share * 0.88),
            (Ramp::Time, Scheme::Dark) => between(VIRIDIS, 0.16 + share * 0.84),
        }
    }

    /// All colours of a raster; the first stands for "nothing".
    pub fn palette(self, scheme: Scheme) -> Vec<Rgb> {
        let last = (PALETTE_LEN - 2) as f64;
        let colours = (0..PALETTE_LEN - 1).map(|i| self.colour(i as f64 / last, scheme));
        std::iter::once([0, 0, 0]).chain(colours).collect()
    }
}

fn between(anchors: &[Rgb], share: f64) -> Rgb {
    let place = share * (anchors.len() - 1) as f64;
    let before = (place.floor() as usize).min(anchors.len() - 2);
    mix(anchors[before], anchors[before + 1], place - before as f64)
}

/// `share` of the way from one colour to another.
pub fn mix(from: Rgb, to: Rgb, share: f64) -> Rgb {
    std::array::from_fn(|channel| {
        let (from, to) = (f64::from(from[channel]), f64::from(to[channel]));
        (from + (to - from) * share).round() as u8
    })
}

pub fn hex([red, green, blue]: Rgb) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Luminance of WCAG 2.
pub fn luminance(colour: Rgb) -> f64 {
    let [red, green, blue] = colour.map(|channel| {
        let value = f64::from(channel) / 255.0;
        match value <= 0.04045 {
            true => value / 12.92,
            false => ((value + 0.055) / 1.055).powf(2.4),
        }
    });
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

/// Contrast of WCAG 2, from 1 to 21.
pub fn contrast(a: Rgb, b: Rgb) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ramps_change_lightness_in_one_direction() {
        for ramp in [Ramp::Counts, Ramp::Time] {
            for scheme in [Scheme::Light, Scheme::Dark] {
                let of = |i: usize| luminance(ramp.colour(i as f64 / 50.0, scheme));
                let rises = of(50) > of(0);
                for i in 1..=50 {
                    assert_eq!(of(i) > of(i - 1), rises, "{ramp:?} {scheme:?} at {i}");
                }
            }
        }
    }

    #[test]
    fn much_stands_out_from_the_ground() {
        let white = [255; 3];
        let dark = super::super::theme::GROUND_DARK;
        assert!(contrast(Ramp::Counts.colour(1.0, Scheme::Light), white) > 10.0);
        assert!(contrast(Ramp::Counts.colour(1.0, Scheme::Dark), dark) > 10.0);
        for share in [0.0, 0.5, 1.0] {
            assert!(contrast(Ramp::Time.colour(share, Scheme::Dark), dark) > 1.5);
            assert!(contrast(Ramp::Time.colour(share, Scheme::Light), white) > 1.5);
        }
    }

    #[test]
    fn a_palette_fits_a_png() {
        assert_eq!(Ramp::Time.palette(Scheme::Light).len(), PALETTE_LEN);
    }
}
