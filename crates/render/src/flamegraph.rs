//! Flame graphs: phase, layer, component, op, tensor, from top to bottom.
//!
//! One drawing, for the report's figure and as a file of its own. It has no script: to zoom
//! and search in there is the viewer, or any tool that reads folded stacks.

use std::io::Write;

use index::{Filter, Flame, FlameBy, RunIndex};
use reader::Log;

use crate::{
    error::RenderError,
    folded::Folded,
    frames::Measure,
    log::Stats,
    palette::Category,
    plot::{
        Canvas, Unit,
        marks::{Entry, legend, legend_height_px},
        svg::Anchor,
        text::shortened,
        theme::{SMALL_PX, WIDTH_PX},
    },
    plots::{Plot, Section},
};

/// A file of its own is as wide as a screen, the report's figure as its text.
const FILE_PX: f64 = 1200.0;

const ROW_PX: f64 = 19.0;
const EDGE_PX: f64 = 12.0;
/// Narrower frames are left out.
const NARROWEST_PX: f64 = 0.4;
/// Depth of the component: what lies below has its colour.
const COMPONENT_DEPTH: usize = 3;
const DEPTHS: usize = 6;

/// Writes the flame graph of a log as an SVG.
pub fn write(
    log: &Log,
    measure: Measure,
    title: &str,
    out: &mut dyn Write,
) -> Result<Stats, RenderError> {
    let (folded, stats) = Folded::of(log, measure)?;
    let (what, unit) = about(measure);
    let title = format!("{title}: {}", what.to_lowercase());
    let caption = caption(measure, folded.total());
    let svg = draw(&folded.tree(), unit, FILE_PX).finish(&title, &caption);
    out.write_all(svg.standalone().as_bytes())?;
    out.flush()?;
    Ok(stats)
}

/// Those of the report.
pub(crate) fn plots(index: &RunIndex) -> Vec<Plot> {
    let of = |by, measure: Measure, id: &str, title: &str| {
        let flame = index.flame(by, &Filter::default());
        (flame.value > 0).then(|| {
            let caption = caption(measure, flame.value);
            let canvas = draw(&flame, about(measure).1, WIDTH_PX);
            Plot::new(id, Section::Flame, title, caption, canvas)
        })
    };
    [
        of(
            FlameBy::Bytes,
            Measure::Bytes,
            "flame-bytes",
            "Flame graph of bytes",
        ),
        of(
            FlameBy::Nanos,
            Measure::Time,
            "flame-time",
            "Flame graph of time",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn about(measure: Measure) -> (&'static str, Unit) {
    match measure {
        Measure::Bytes => ("Bytes read and written", Unit::Bytes),
        Measure::Time => ("Time in nodes", Unit::Nanos),
    }
}

fn caption(measure: Measure, total: u64) -> String {
    let (what, unit) = about(measure);
    format!(
        "{what} of the whole run ({}), divided from top to bottom by phase, layer, component, op and tensor. A frame is as wide as its share; point at one for its numbers. `tensorscope view` has one to zoom and search in.",
        unit.amount(total as f64)
    )
}

fn draw(flame: &Flame, unit: Unit, width_px: f64) -> Canvas {
    let room_px = width_px - 2.0 * EDGE_PX;
    let entries = Entry::components(components(flame, 0).into_iter().map(Category::of));
    let legend_px = legend_height_px(&entries, room_px);
    let mut canvas = Canvas::new(EDGE_PX * 2.0 + legend_px + DEPTHS as f64 * ROW_PX);
    canvas.set_width(width_px);
    legend(&mut canvas, EDGE_PX, room_px, &entries);
    let mut picture = Picture {
        canvas: &mut canvas,
        unit,
        total: flame.value.max(1) as f64,
        top: EDGE_PX + legend_px,
        room_px,
    };
    picture.frame(flame, 0, EDGE_PX, None);
    canvas
}

/// Names of all components, some more than once.
fn components(flame: &Flame, depth: usize) -> Vec<&str> {
    match depth {
        COMPONENT_DEPTH => vec![flame.name.as_str()],
        _ => flame
            .children
            .iter()
            .flat_map(|child| components(child, depth + 1))
            .collect(),
    }
}

struct Picture<'a> {
    canvas: &'a mut Canvas,
    unit: Unit,
    total: f64,
    top: f64,
    room_px: f64,
}

impl Picture<'_> {
    fn frame(&mut self, flame: &Flame, depth: usize, left: f64, component: Option<Category>) {
        let share = flame.value as f64 / self.total;
        let width = share * self.room_px;
        if width < NARROWEST_PX || depth >= DEPTHS {
            return;
        }
        let component = match depth {
            COMPONENT_DEPTH => Some(Category::of(&flame.name)),
            _ => component,
        };
        let name = self.name(flame, depth);
        let top = self.top + depth as f64 * ROW_PX;
        let tip = format!(
            "{name}: {} ({} {}), {:.1} %",
            self.unit.amount(flame.value as f64),
            flame.value,
            match self.unit {
                Unit::Nanos => "nanoseconds",
                _ => "bytes",
            },
            share * 100.0
        );
        // A gap between neighbours, unless nothing would be left.
        let gap = if width > 3.0 { 1.0 } else { 0.0 };
        let at = ((left, top), (width - gap, ROW_PX - 1.0));
        let class = component.map_or_else(|| "cell".to_owned(), Category::fill);
        // Op and tensor are lighter shades of their component, over the ground.
        let class = match depth {
            4 => class + " pale",
            5 => class + " paler",
            _ => class,
        };
        self.canvas.rect(&class, at.0, at.1, &tip);
        let label = shortened(&name, SMALL_PX, width - 8.0);
        // Two letters of a name are none.
        if label == name || label.chars().count() >= 6 {
            let class = match component {
                Some(category) if depth == COMPONENT_DEPTH => category.text(),
                _ => "t",
            };
            let at = (left + 4.0, top + ROW_PX - 6.0);
            self.canvas.small(class, at, Anchor::Start, &label);
        }
        let mut x = left;
        for child in &flame.children {
            self.frame(child, depth + 1, x, component);
            x += child.value as f64 / self.total * self.room_px;
        }
    }

    /// The layer stands above a tensor already.
    fn name(&self, flame: &Flame, depth: usize) -> String {
        if depth == 0 {
            return format!("all: {}", self.unit.amount(self.total));
        }
        let rest = flame
            .name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'));
        match rest {
            Some((layer, base))
                if depth == DEPTHS - 1 && layer.bytes().all(|b| b.is_ascii_digit()) =>
            {
                base.to_owned()
            }
            _ => flame.name.clone(),
        }
    }
}
