//! Every colour, with its one meaning: in the report, in pictures and in the viewer's page.
//!
//! Categories are coloured after Okabe and Ito, whose colours people with any
//! common colour blindness can tell apart. No colour carries meaning alone: bars are
//! labelled, lines differ in their dashes too.
//!
//! Sequential maps are told apart by hue: warm for counts and bytes, viridis for time. Both
//! grow evenly in lightness, so that they read in grey and with any colour blindness. Little
//! is close to the background, much stands out; on dark ground the warm ones therefore run
//! the other way, and viridis loses its darkest end (and on white its brightest).
//!
//! The page gets them as `web/src/generated/palette.{ts,css}`, which `tests/generated.rs` writes.

pub type Rgb = [u8; 3];

/// What the ground is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Light,
    Dark,
}

impl Scheme {
    pub const ALL: [Scheme; 2] = [Scheme::Light, Scheme::Dark];

    fn of<T: Copy>(self, (light, dark): (T, T)) -> T {
        match self {
            Scheme::Light => light,
            Scheme::Dark => dark,
        }
    }
}

/// A colour on light and on dark ground.
type Pair = (Rgb, Rgb);

const fn pair(light: u32, dark: u32) -> Pair {
    (rgb(light), rgb(dark))
}

const fn rgb(hex: u32) -> Rgb {
    let [_, red, green, blue] = hex.to_be_bytes();
    [red, green, blue]
}

/// What is neither data nor meaning: paper, ink and lines, and what lies over data.
const SURFACES: &[(&str, Pair)] = &[
    ("ground", pair(0xffffff, 0x12151c)),
    // Cards, and cells without a value.
    ("panel", pair(0xf6f7f9, 0x171b24)),
    ("text", pair(0x1c2024, 0xe6e8eb)),
    ("muted", pair(0x5b626b, 0xa0a8b2)),
    ("grid", pair(0xe3e6ea, 0x262c38)),
    // Of axes.
    ("line", pair(0x9aa2ac, 0x5a6372)),
    ("accent", pair(0x0a62a9, 0x6cb6ff)),
    ("fault", pair(0xd1260b, 0xff5a3c)),
    ("disk", pair(0x0072b2, 0x56b4e9)),
];

/// Names of all surfaces.
pub fn surfaces() -> impl Iterator<Item = &'static str> {
    SURFACES.iter().map(|(name, _)| *name)
}

/// One of [`surfaces`].
pub fn surface(name: &str, scheme: Scheme) -> Rgb {
    let found = SURFACES.iter().find(|(known, _)| *known == name);
    scheme.of(found.expect("a surface of the list").1)
}

/// A component, or a kind of memory.
#[cfg_attr(test, derive(ts_rs::TS))]
#[cfg_attr(test, ts(type = "string"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Category(u8);

const CATEGORIES: &[(&str, Pair)] = &[
    ("attention", pair(0x0072b2, 0x3b9dd8)),
    ("expert", pair(0xd55e00, 0xe87a26)),
    ("shared_expert", pair(0xf2a36b, 0xf2a36b)),
    ("ffn", pair(0xe69f00, 0xe69f00)),
    ("router", pair(0x009e73, 0x12b889)),
    ("norm", pair(0x56b4e9, 0x7cc7f0)),
    ("embedding", pair(0xcc79a7, 0xd992ba)),
    ("output", pair(0xd9c416, 0xf0e442)),
    ("ssm", pair(0x5d3a9b, 0xa98fe0)),
    ("kv_cache", pair(0x7d7d7d, 0xa5a5a5)),
    ("activation", pair(0xb0b0b0, 0x7c7c7c)),
    ("input", pair(0xc9b49a, 0x9a866c)),
    ("other", pair(0x99938a, 0x8a8680)),
];

/// Lines and bars without components, far apart from each other.
pub const SERIES: [&str; 8] = [
    "attention",
    "expert",
    "router",
    "embedding",
    "ffn",
    "norm",
    "output",
    "kv_cache",
];

/// Families of ops that have a colour of their own; the others are `other`.
pub const OPS: &[(&str, &str)] = &[
    ("MUL_MAT", "attention"),
    ("MUL_MAT_ID", "expert"),
    ("GET_ROWS", "embedding"),
    ("SET_ROWS", "output"),
    ("CPY", "output"),
    ("FLASH_ATTN_EXT", "router"),
    ("SOFT_MAX", "router"),
    ("ROPE", "ffn"),
    ("RMS_NORM", "norm"),
    ("NORM", "norm"),
];

/// Ways of using memory, and rules of caches.
pub const WAYS: &[(&str, &str)] = &[
    ("page_cache", "attention"),
    ("pin", "output"),
    ("pin_and_stream", "expert"),
    ("expert_cache", "router"),
    ("stream", "embedding"),
    ("lru", "attention"),
    ("lfu", "router"),
    ("lfu_aged", "ffn"),
    ("belady", "kv_cache"),
];

/// Parts of a phase's time, as `diagnose::stack` names them: computing is green and blue,
/// waiting is warm, not running is pink and violet, the rest is grey.
pub const TIME_PARTS: &[(&str, &str)] = &[
    ("at_wall", "router"),
    ("below_wall", "attention"),
    ("in_operations", "norm"),
    ("page_faults", "expert"),
    ("fed_reads", "shared_expert"),
    ("barriers", "ffn"),
    ("imbalance", "output"),
    ("preempted", "embedding"),
    ("throttled", "ssm"),
    ("stolen", "input"),
    ("host", "kv_cache"),
    ("unexplained", "activation"),
];

/// Those of a phase in which devices compute; some colours are of parts that such runs hardly
/// have.
const DEVICE_TIME_PARTS: &[(&str, &str)] = &[
    ("device_kernels_1", "router"),
    ("device_kernels_2", "ffn"),
    ("device_kernels_3", "embedding"),
    ("device_kernels_4", "ssm"),
    ("device_kernels_5", "input"),
    ("device_kernels", "router"),
    ("device_gaps", "output"),
    ("device_unsplit", "ffn"),
    ("copies", "expert"),
    ("device_waits", "expert"),
    ("launching", "shared_expert"),
];

impl Category {
    pub fn all() -> impl Iterator<Item = Category> {
        (0..CATEGORIES.len() as u8).map(Category)
    }

    /// Of a component, or of a kind of memory.
    pub fn of(name: &str) -> Category {
        let known = CATEGORIES.iter().position(|(known, ..)| *known == name);
        Category(known.unwrap_or(CATEGORIES.len() - 1) as u8)
    }

    /// Of the n-th of [`SERIES`].
    pub fn nth(n: usize) -> Category {
        Category::of(SERIES[n % SERIES.len()])
    }

    /// Of one of [`WAYS`].
    pub fn of_way(name: &str) -> Category {
        let known = WAYS.iter().find(|(known, _)| *known == name);
        Category::of(known.map_or("other", |(_, category)| category))
    }

    /// Of one of [`TIME_PARTS`], or of a device's.
    pub fn of_time_part(name: &str) -> Category {
        let mut parts = TIME_PARTS.iter().chain(DEVICE_TIME_PARTS);
        let known = parts.find(|(known, _)| *known == name);
        Category::of(known.map_or("other", |(_, category)| category))
    }

    pub fn name(self) -> &'static str {
        CATEGORIES[self.number()].0
    }

    /// Its place among all.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    /// As in SVG. Each colour of a line has one of its own, so that lines differ without it.
    pub fn dash(self) -> &'static str {
        const DASHES: [&str; 10] = [
            "",
            "7 4",
            "3 4",
            "9 3 2 3",
            "5 2 1 2",
            "12 3",
            "2 3",
            "4 6",
            "1 3",
            "12 3 2 3 2 3",
        ];
        DASHES[self.number() % DASHES.len()]
    }

    pub fn colour(self, scheme: Scheme) -> Rgb {
        scheme.of(CATEGORIES[self.number()].1)
    }
}

/// By its name.
impl serde::Serialize for Category {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A continuous map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ramp {
    /// Counts and bytes, from the ground.
    Counts,
    /// Viridis: time, or tokens in their order.
    Time,
    /// Less, the same in the middle, more.
    Difference,
}

/// What is there at all must differ from what is not.
pub const MIN_SHARE: f64 = 0.08;

const COUNTS: [&[u32]; 2] = [
    &[
        0xf7f5ef, 0xfde8b9, 0xfcc878, 0xf79b4d, 0xe4694a, 0xbd415f, 0x86306f, 0x51225f, 0x26103a,
    ],
    &[
        0x171b24, 0x251d45, 0x4a2068, 0x7d2a6f, 0xb23a66, 0xde5b4c, 0xf58d3d, 0xfbc15c, 0xfdf3b4,
    ],
];
const DIFFERENCE: [&[u32]; 2] = [
    &[
        0x0b3c68, 0x0f63a8, 0x4f9cd4, 0xb4d5ec, 0xf5f4f0, 0xf6d9a8, 0xe3a03c, 0xb26c06, 0x6b3d00,
    ],
    &[
        0x9bd4ff, 0x4a9fe0, 0x1f5f97, 0x1c3550, 0x1b1f28, 0x4d3416, 0x96600f, 0xdd9014, 0xffd27a,
    ],
];
/// Viridis (Smith and van der Walt, CC0) at eleven even places.
const VIRIDIS: &[u32] = &[
    0x440154, 0x482475, 0x414487, 0x355f8d, 0x2a788e, 0x21918c, 0x22a884, 0x44bf70, 0x7ad151,
    0xbddf26, 0xfde725,
];

impl Ramp {
    /// The colour at `share` (0 to 1) of the way.
    pub fn colour(self, share: f64, scheme: Scheme) -> Rgb {
        let share = share.clamp(0.0, 1.0);
        match (self, scheme) {
            (Ramp::Time, Scheme::Light) => between(VIRIDIS, share * 0.88),
            (Ramp::Time, Scheme::Dark) => between(VIRIDIS, 0.16 + share * 0.84),
            (Ramp::Counts, _) => between(scheme.of((COUNTS[0], COUNTS[1])), share),
            (Ramp::Difference, _) => between(scheme.of((DIFFERENCE[0], DIFFERENCE[1])), share),
        }
    }

    /// `count` colours from the least that is there to the most.
    pub fn steps(self, count: usize, scheme: Scheme) -> impl Iterator<Item = Rgb> {
        let last = (count - 1) as f64;
        let min = if self == Ramp::Counts { MIN_SHARE } else { 0.0 };
        (0..count).map(move |step| self.colour((step as f64 / last).max(min), scheme))
    }
}

fn between(stops: &[u32], share: f64) -> Rgb {
    let place = share * (stops.len() - 1) as f64;
    let before = (place.floor() as usize).min(stops.len() - 2);
    let [from, to] = [stops[before], stops[before + 1]].map(rgb);
    mix(from, to, place - before as f64)
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
fn luminance(colour: Rgb) -> f64 {
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
            for scheme in Scheme::ALL {
                let of = |i: usize| luminance(ramp.colour(i as f64 / 50.0, scheme));
                let rises = of(50) > of(0);
                for i in 1..=50 {
                    assert_eq!(of(i) > of(i - 1), rises, "{ramp:?} {scheme:?} at {i}");
                }
            }
        }
    }

    #[test]
    fn much_stands_out_from_the_ground_and_little_can_be_seen() {
        for scheme in Scheme::ALL {
            let ground = surface("ground", scheme);
            let seen = |ramp: Ramp, share| contrast(ramp.colour(share, scheme), ground);
            assert!(seen(Ramp::Counts, 1.0) > 10.0);
            assert!(seen(Ramp::Counts, MIN_SHARE) > 1.1, "{scheme:?}");
            for share in [0.0, 0.5, 1.0] {
                assert!(seen(Ramp::Time, share) > 1.5);
            }
        }
    }

    #[test]
    fn words_can_be_read_and_categories_seen() {
        for scheme in Scheme::ALL {
            for ground in ["ground", "panel"].map(|name| surface(name, scheme)) {
                for word in ["text", "muted", "accent"] {
                    assert!(contrast(surface(word, scheme), ground) >= 5.0, "{word}");
                }
                for category in Category::all() {
                    let contrast = contrast(category.colour(scheme), ground);
                    assert!(contrast > 1.5, "{category:?} on {scheme:?}: {contrast:.2}");
                }
            }
        }
    }

    #[test]
    fn names_have_colours() {
        assert_eq!(Category::of("nextn"), Category::of("other"));
        assert_ne!(Category::of("expert"), Category::of("attention"));
        let named = OPS.iter().chain(WAYS).chain(TIME_PARTS);
        for name in SERIES.iter().chain(named.map(|(_, name)| name)) {
            assert_eq!(Category::of(name).name(), *name);
        }
    }

    #[test]
    fn every_part_of_a_token_has_a_colour_of_its_own() {
        let mut used = vec![Category::of("other")];
        for (part, _) in diagnose::stack::PARTS {
            let colour = Category::of_time_part(part);
            assert!(!used.contains(&colour), "{part} is {}", colour.name());
            used.push(colour);
        }
        for (part, _) in diagnose::stack::DEVICE_PARTS {
            assert_ne!(
                Category::of_time_part(part),
                Category::of("other"),
                "{part}"
            );
        }
    }
}
