//! Speed against memory, for each way of running a model larger than memory.

use crate::{
    palette::Category,
    plot::{
        Axis, Canvas, Svg, Ticks, Unit,
        axes::{Direction, Frame, Grid, Room},
        marks::{Entry, LEGEND_PX, legend, legend_height_px},
    },
};

const HEIGHT_PX: f64 = 380.0;
/// Half the width of the ends of a spread.
const WHISKER_PX: f64 = 4.0;
/// Modes at one budget stand beside each other, so that their spreads can be told apart.
const STEP_PX: f64 = 5.0;

/// What is drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FeedSpeeds {
    pub model: String,
    /// Memory for weights and how that is called, of each budget.
    pub budgets: Vec<(u64, String)>,
    pub modes: Vec<ModeSpeeds>,
    /// What each budget allows at best.
    pub ceilings: Vec<(u64, f64)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModeSpeeds {
    pub name: String,
    pub points: Vec<Speed>,
}

/// Tokens per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    pub weights_memory_bytes: u64,
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

/// None where nothing was measured.
pub fn plot(speeds: &FeedSpeeds) -> Option<Svg> {
    let points = || speeds.modes.iter().flat_map(|mode| &mode.points);
    points().next()?;
    let fastest = points().map(|point| point.most);
    let fastest = fastest.chain(speeds.ceilings.iter().map(|ceiling| ceiling.1));
    let fastest = fastest
        .filter(|speed| speed.is_finite())
        .fold(0.0, f64::max);
    let memory = speeds.budgets.iter().map(|budget| budget.0).max()? as f64;
    let names = speeds.budgets.iter();
    let names = names.map(|(bytes, name)| (*bytes as f64, name.clone()));
    let x = Axis::new("memory for weights", Unit::Plain, 0.0, memory * 1.06)
        .with_ticks(Ticks::Named(names.collect()));
    let y = Axis::new("tokens per second", Unit::Plain, 0.0, fastest * 1.05);

    let ceiling = Category::of("kv_cache");
    let colours: Vec<Category> = speeds.modes.iter().map(|m| colour(&m.name)).collect();
    let mut entries: Vec<Entry> = speeds
        .modes
        .iter()
        .zip(&colours)
        .map(|(mode, &category)| entry(&mode.name, category))
        .collect();
    if !speeds.ceilings.is_empty() {
        entries.push(entry("ceiling of disk and compute", ceiling));
    }
    let mut canvas = Canvas::new(HEIGHT_PX);
    let room = Room {
        top_px: legend_height_px(&entries, LEGEND_PX),
        right_px: 10.0,
    };
    let frame = Frame::draw(&mut canvas, &x, &y, Grid::Horizontal, Direction::Up, room);

    let line: Vec<(f64, f64)> = in_order(speeds.ceilings.iter().copied())
        .into_iter()
        .map(|(bytes, speed)| (frame.x(bytes as f64), frame.y(speed)))
        .collect();
    canvas.polyline(&ceiling.stroke(), &line, 2.0, ceiling.dash());
    for ((_, speed), &at) in in_order(speeds.ceilings.iter().copied()).iter().zip(&line) {
        let tip = format!("ceiling: {speed:.2} tokens/s");
        canvas.circle(&ceiling.fill(), at, 2.6, &tip);
    }
    for (number, (mode, category)) in speeds.modes.iter().zip(&colours).enumerate() {
        let aside = (number as f64 - (speeds.modes.len() as f64 - 1.0) / 2.0) * STEP_PX;
        let points = in_order(mode.points.iter().map(|p| (p.weights_memory_bytes, *p)));
        let place = |bytes: u64, speed| (frame.x(bytes as f64) + aside, frame.y(speed));
        let line: Vec<(f64, f64)> = points.iter().map(|(b, p)| place(*b, p.median)).collect();
        canvas.polyline(&category.stroke(), &line, 2.0, category.dash());
        for (&at, (bytes, point)) in line.iter().zip(&points) {
            for end in [point.least, point.most] {
                let (x, y) = place(*bytes, end);
                let ends = [(x - WHISKER_PX, y), (x + WHISKER_PX, y)];
                canvas.polyline(&category.stroke(), &ends, 1.2, "");
            }
            let spread = [place(*bytes, point.least), place(*bytes, point.most)];
            canvas.polyline(&category.stroke(), &spread, 1.2, "");
            let tip = format!(
                "{}: {:.2} tokens/s ({:.2} to {:.2})",
                mode.name, point.median, point.least, point.most
            );
            canvas.circle(&category.fill(), at, 3.0, &tip);
        }
    }
    legend(&mut canvas, frame.left, LEGEND_PX, &entries);
    let title = format!("Speed against memory: {}", speeds.model);
    let caption = "Tokens per second against the memory that weights are given, median and spread over repeats; every way runs in a memory group of the same size, with a cold cache.";
    Some(canvas.finish(&title, caption))
}

/// A mode has one colour in all pictures; those of memory plots where they mean the same.
fn colour(mode: &str) -> Category {
    match mode {
        "stock" => Category::of("attention"),
        "stock-best" => Category::of("norm"),
        "pin" => Category::of("ffn"),
        "stream" => Category::of("embedding"),
        "experts" => Category::of("router"),
        "pin+stream" => Category::of("output"),
        "all" => Category::of("expert"),
        _ => Category::of("other"),
    }
}

fn entry(name: &str, category: Category) -> Entry {
    Entry {
        is_line: true,
        ..Entry::new(name, category)
    }
}

fn in_order<T>(points: impl Iterator<Item = (u64, T)>) -> Vec<(u64, T)> {
    let mut points: Vec<(u64, T)> = points.collect();
    points.sort_by_key(|point| point.0);
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds() -> FeedSpeeds {
        let speed = |bytes, median| Speed {
            weights_memory_bytes: bytes,
            median,
            least: median * 0.9,
            most: median * 1.2,
        };
        FeedSpeeds {
            model: "a model".into(),
            budgets: vec![(4 << 30, "50 %".into()), (2 << 30, "25 %".into())],
            modes: vec![
                ModeSpeeds {
                    name: "stock".into(),
                    points: vec![speed(4 << 30, 0.5), speed(2 << 30, 0.4)],
                },
                ModeSpeeds {
                    name: "all".into(),
                    points: vec![speed(4 << 30, 2.0), speed(2 << 30, 1.1)],
                },
            ],
            ceilings: vec![(4 << 30, 2.1), (2 << 30, 1.2)],
        }
    }

    #[test]
    fn a_picture_names_modes_budgets_and_the_ceiling() {
        let svg = plot(&speeds()).unwrap().standalone();
        for text in [
            ">stock<",
            ">all<",
            ">ceiling of disk and compute<",
            ">50 %<",
            ">25 %<",
            "all: 1.10 tokens/s (0.99 to 1.32)",
            "ceiling: 2.10 tokens/s",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn one_budget_is_enough_and_none_is_no_picture() {
        let mut one = speeds();
        one.budgets.truncate(1);
        one.modes
            .iter_mut()
            .for_each(|mode| mode.points.truncate(1));
        one.ceilings.clear();
        assert!(plot(&one).is_some());
        assert!(plot(&FeedSpeeds::default()).is_none());
    }
}
