//! Speed against memory, for each way of running a model larger than memory.

use crate::{
    palette::Category,
    plot::{
        Axis, Svg, Ticks, Unit,
        marks::{Line, lines},
    },
};

const HEIGHT_PX: f64 = 380.0;

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

    let mut drawn: Vec<Line> = speeds
        .modes
        .iter()
        .map(|mode| {
            let mut points = mode.points.clone();
            points.sort_by_key(|point| point.weights_memory_bytes);
            let medians = points.iter();
            let medians = medians.map(|p| (p.weights_memory_bytes as f64, p.median));
            Line {
                spreads: points.iter().map(|p| (p.least, p.most)).collect(),
                ..Line::new(&mode.name, colour(&mode.name), medians)
            }
        })
        .collect();
    let mut ceilings = speeds.ceilings.clone();
    ceilings.sort_by_key(|ceiling| ceiling.0);
    if !ceilings.is_empty() {
        let ceilings = ceilings.iter();
        drawn.push(Line::new(
            "ceiling of disk and compute",
            Category::of("kv_cache"),
            ceilings.map(|(bytes, speed)| (*bytes as f64, *speed)),
        ));
    }
    let title = format!("Speed against memory: {}", speeds.model);
    let caption = "Tokens per second against the memory that weights are given, median and spread over repeats; every way runs in a memory cgroup of the same size, with a cold cache.";
    Some(lines(HEIGHT_PX, &x, &y, &drawn).finish(&title, caption))
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
            "all: 1.1 (0.99 to 1.32) at 25 %",
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
