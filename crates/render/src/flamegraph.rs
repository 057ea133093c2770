//! Flame graphs: folded stacks as an SVG that can be explored in a browser.
//!
//! Root on top; a frame is as wide as its share. Click a frame to zoom into it,
//! the root to go back; "search" marks frames by a regular expression. Without
//! scripts (an image viewer, a README) the picture is the same, only still.
//!
//! Colours say which component a frame belongs to. They are those of Okabe and
//! Ito, which people with any common colour blindness can tell apart; op and
//! tensor are lighter shades of their component, and every frame is labelled, so
//! no colour carries meaning alone. Nothing is random: the same stacks give the
//! same bytes.
//!
//! Why not the crate `inferno`: its licence (CDDL-1.0) asks more than notices of
//! whoever passes the binary on, and it knows no colours by component.

mod layout;

use std::io::Write;

use reader::Log;

use crate::{error::RenderError, folded::Folded, frames::Measure, log::Stats};
use layout::{Bar, DEPTHS, bars};

const WIDTH_PX: f64 = 1200.0;
const MARGIN_PX: f64 = 10.0;
const BAR_PX: usize = 18;
const TOP_PX: usize = 52;
/// Of the font below, which is monospaced.
const CHARACTER_PX: f64 = 6.7;
/// Narrower bars are left out: a file of a hundred thousand is no picture.
const NARROWEST_PX: f64 = 0.05;

/// Zoom and search, run by the browser.
const SCRIPT: &str = include_str!("flamegraph/explore.js");

/// Colour of each component that has one of its own, in the order of the legend.
const COLOURS: &[(&str, [u8; 3])] = &[
    ("attention", [0x00, 0x72, 0xb2]),
    ("expert", [0xd5, 0x5e, 0x00]),
    ("shared_expert", [0xf2, 0xa3, 0x6b]),
    ("ffn", [0xe6, 0x9f, 0x00]),
    ("router", [0x00, 0x9e, 0x73]),
    ("norm", [0x56, 0xb4, 0xe9]),
    ("embedding", [0xcc, 0x79, 0xa7]),
    ("output", [0xf0, 0xe4, 0x42]),
    ("kv_cache", [0x9a, 0x9a, 0x9a]),
    ("activation", [0xc8, 0xc8, 0xc8]),
];
/// Components without one, and frames above the component.
const NEUTRAL: [u8; 3] = [0xe4, 0xe4, 0xe4];

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Title of the picture: the model, usually.
    pub title: String,
}

/// Writes the flame graph of a log.
pub fn write(
    log: &Log,
    measure: Measure,
    options: &Options,
    out: &mut dyn Write,
) -> Result<Stats, RenderError> {
    let (folded, stats) = Folded::of(log, measure)?;
    draw(&folded, measure, options, out)?;
    Ok(stats)
}

/// Draws stacks that are added up already.
pub fn draw(
    folded: &Folded,
    measure: Measure,
    options: &Options,
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    let total = folded.total();
    let (bars, components) = bars(folded);
    let bottom_px = TOP_PX + DEPTHS * BAR_PX;
    let height_px = bottom_px + 58;
    let what = match measure {
        Measure::Bytes => "bytes read and written",
        Measure::Time => "time",
    };
    let title = match options.title.as_str() {
        "" => what.to_owned(),
        title => format!("{title}: {what}"),
    };
    let (title, sum) = (escape(&title), amount(total, measure));
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH_PX}\" height=\"{height_px}\" viewBox=\"0 0 {WIDTH_PX} {height_px}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', Consolas, monospace\" font-size=\"11\">\n\
         <title>{title}</title>\n\
         <desc>Flame graph: phase, layer, component, op, tensor. Total {total} {}.</desc>\n\
         <style>.f{{cursor:pointer}}.f:hover rect,.f:focus rect{{stroke:#000}}.f text,.note{{pointer-events:none}}.f.found rect{{stroke:#000;stroke-width:2}}.act{{cursor:pointer;text-decoration:underline}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{MARGIN_PX}\" y=\"22\" font-size=\"15\">{title}</text>\n\
         <text x=\"{MARGIN_PX}\" y=\"41\" fill=\"#444\">{sum} in all; phase, layer, component, op, tensor from top to bottom</text>\n\
         <text id=\"search\" class=\"act\" x=\"{}\" y=\"22\" text-anchor=\"end\">search</text>\n\
         <text id=\"detail\" class=\"note\" x=\"{MARGIN_PX}\" y=\"{}\"> </text>\n\
         <g id=\"frames\" data-left=\"{MARGIN_PX}\" data-width=\"{}\" data-character=\"{CHARACTER_PX}\">",
        measure.unit(),
        WIDTH_PX - MARGIN_PX,
        bottom_px + 20,
        WIDTH_PX - 2.0 * MARGIN_PX,
    )?;
    if total == 0 {
        writeln!(
            out,
            "<text x=\"{MARGIN_PX}\" y=\"{}\">nothing was recorded</text>",
            TOP_PX + 14
        )?;
    }
    for bar in &bars {
        draw_bar(bar, total, measure, out)?;
    }
    writeln!(out, "</g>")?;
    let mut x_px = MARGIN_PX;
    for (component, colour) in COLOURS.iter().filter(|(c, _)| components.contains(c)) {
        writeln!(
            out,
            "<rect x=\"{x_px:.1}\" y=\"{}\" width=\"11\" height=\"11\" fill=\"{}\"/><text class=\"note\" x=\"{:.1}\" y=\"{}\">{component}</text>",
            bottom_px + 34,
            hex(*colour),
            x_px + 15.0,
            bottom_px + 44,
        )?;
        x_px += 15.0 + CHARACTER_PX * (component.len() + 3) as f64;
    }
    writeln!(out, "<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>")?;
    out.flush()?;
    Ok(())
}

fn draw_bar(
    bar: &Bar,
    total: u64,
    measure: Measure,
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    let inner_px = WIDTH_PX - 2.0 * MARGIN_PX;
    let share = bar.sum as f64 / total as f64;
    let start = bar.start as f64 / total as f64;
    let width_px = share * inner_px;
    if width_px < NARROWEST_PX {
        return Ok(());
    }
    let (x_px, y_px) = (MARGIN_PX + start * inner_px, TOP_PX + bar.depth * BAR_PX);
    let fill = colour(bar);
    let name = escape(&bar.name);
    writeln!(
        out,
        "<g class=\"f\" tabindex=\"0\" data-x=\"{start:.7}\" data-w=\"{share:.7}\" data-d=\"{}\"><title>{name}: {} ({} {}), {:.2} %</title><rect x=\"{x_px:.2}\" y=\"{y_px}\" width=\"{width_px:.2}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\" stroke-width=\"0.5\"/><text x=\"{:.2}\" y=\"{}\" fill=\"{}\">{}</text></g>",
        bar.depth,
        amount(bar.sum, measure),
        bar.sum,
        measure.unit(),
        share * 100.0,
        BAR_PX - 1,
        hex(fill),
        x_px + 3.0,
        y_px + BAR_PX - 6,
        if is_dark(fill) { "#fff" } else { "#000" },
        escape(&shortened(&bar.name, width_px)),
    )?;
    Ok(())
}

/// As much of a label as fits; the script does the same after a zoom.
fn shortened(name: &str, width_px: f64) -> String {
    let room = ((width_px - 6.0) / CHARACTER_PX).max(0.0) as usize;
    if name.chars().count() <= room {
        return name.to_owned();
    }
    // The layer stands above already.
    let name = without_layer(name);
    if name.chars().count() <= room {
        return name.to_owned();
    }
    if room < 3 {
        return String::new();
    }
    let kept: String = name.chars().take(room - 1).collect();
    format!("{kept}…")
}

/// `attn_q.weight` for `blk.7.attn_q.weight`.
fn without_layer(name: &str) -> &str {
    let rest = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    match rest {
        Some((layer, base)) if layer.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

fn colour(bar: &Bar) -> [u8; 3] {
    let of = |component: &str| COLOURS.iter().find(|(name, _)| *name == component);
    let base = bar
        .component
        .and_then(of)
        .map_or(NEUTRAL, |&(_, colour)| colour);
    // Op and tensor lie below the component.
    let white = match bar.depth {
        4 => 0.35,
        5 => 0.6,
        _ => 0.0,
    };
    base.map(|channel| (f64::from(channel) * (1.0 - white) + 255.0 * white).round() as u8)
}

/// Whether white text reads better than black, by the luminance of WCAG 2.
fn is_dark([red, green, blue]: [u8; 3]) -> bool {
    let linear = |channel: u8| (f64::from(channel) / 255.0).powf(2.2);
    0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue) < 0.179
}

fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn amount(value: u64, measure: Measure) -> String {
    let (units, step): (&[&str], f64) = match measure {
        Measure::Bytes => (&["B", "KiB", "MiB", "GiB", "TiB"], 1024.0),
        Measure::Time => (&["ns", "µs", "ms", "s"], 1000.0),
    };
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= step && unit + 1 < units.len() {
        scaled /= step;
        unit += 1;
    }
    match unit {
        0 => format!("{value} {}", units[0]),
        _ => format!("{scaled:.2} {}", units[unit]),
    }
}

/// For text and attributes; XML 1.0 has no control characters at all.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            c if c.is_control() => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_legal_xml() {
        assert_eq!(
            escape("a<b>&\"c\u{0}\n\u{ffff}é"),
            "a&lt;b&gt;&amp;&quot;c???é"
        );
    }

    #[test]
    fn labels_fit_their_bars() {
        let check = |width_px, expect: &str| assert_eq!(shortened("layer 12", width_px), expect);
        check(200.0, "layer 12");
        check(6.0 + 8.0 * CHARACTER_PX, "layer 12");
        check(6.0 + 7.0 * CHARACTER_PX, "layer …");
        check(20.0, "");
        check(0.1, "");
        let tensor = "blk.10.attn_q.weight";
        assert_eq!(shortened(tensor, 6.0 + 20.0 * CHARACTER_PX), tensor);
        assert_eq!(
            shortened(tensor, 6.0 + 19.0 * CHARACTER_PX),
            "attn_q.weight"
        );
        assert_eq!(shortened(tensor, 6.0 + 7.0 * CHARACTER_PX), "attn_q…");
        assert_eq!(
            shortened("blk.x.attn_q", 6.0 + 7.0 * CHARACTER_PX),
            "blk.x.…"
        );
    }

    #[test]
    fn amounts_are_readable() {
        assert_eq!(amount(1023, Measure::Bytes), "1023 B");
        assert_eq!(amount(1536, Measure::Bytes), "1.50 KiB");
        assert_eq!(amount(2_500_000, Measure::Time), "2.50 ms");
        assert_eq!(amount(7_200_000_000_000, Measure::Time), "7200.00 s");
    }

    #[test]
    fn text_is_readable_on_every_colour() {
        let luminance = |c: [u8; 3]| {
            let l: Vec<f64> = c
                .iter()
                .map(|&v| (f64::from(v) / 255.0).powf(2.2))
                .collect();
            0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2]
        };
        for (component, _) in COLOURS {
            for depth in 3..DEPTHS {
                let bar = Bar {
                    depth,
                    start: 0,
                    sum: 1,
                    name: String::new(),
                    component: Some(component),
                };
                let fill = colour(&bar);
                let text = if is_dark(fill) { 1.0 } else { 0.0 };
                let (light, dark) = (luminance(fill).max(text), luminance(fill).min(text));
                let contrast = (light + 0.05) / (dark + 0.05);
                assert!(
                    contrast >= 4.5,
                    "{component} at depth {depth}: {contrast:.2}"
                );
            }
        }
    }
}
