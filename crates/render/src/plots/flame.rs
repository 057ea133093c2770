//! Flame graphs as still pictures: phase, layer, component, op, tensor.
//!
//! The exploring one, with zoom and search, is [`crate::flamegraph`]; this one
//! needs no script and follows the colours of the page.

use index::{Filter, Flame, FlameBy, RunIndex};

use super::{Plot, Section, traffic::component_legend};
use crate::plot::{
    Canvas, Svg, Unit,
    marks::{legend, legend_height_px},
    svg::{Anchor, Label},
    text::shortened,
    theme::{Category, SMALL_PX, WIDTH_PX},
};

const ROW_PX: f64 = 19.0;
const EDGE_PX: f64 = 12.0;
/// Narrower frames are left out.
const NARROWEST_PX: f64 = 0.4;
/// Depth of the component: what lies below has its colour.
const COMPONENT_DEPTH: usize = 3;
const DEPTHS: usize = 6;

pub fn plots(index: &RunIndex) -> Vec<Plot> {
    let of = |by, id: &str, title: &str, unit: Unit, what: &str| {
        let flame = index.flame(by, &Filter::default());
        if flame.value == 0 {
            return None;
        }
        let caption = format!(
            "{what} of the whole run ({}), divided from top to bottom by phase, layer, component, op and tensor. A frame is as wide as its share; point at one for its numbers. `tensorscope export --to flamegraph` gives one to zoom and search in.",
            unit.amount(flame.value as f64)
        );
        Some(Plot {
            id: id.to_owned(),
            section: Section::Flame,
            title: title.to_owned(),
            svg: draw(&flame, unit, title, &caption),
            caption,
        })
    };
    [
        of(
            FlameBy::Bytes,
            "flame-bytes",
            "Flame graph of bytes",
            Unit::Bytes,
            "Bytes read and written",
        ),
        of(
            FlameBy::Nanos,
            "flame-time",
            "Flame graph of time",
            Unit::Nanos,
            "Time in nodes",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn draw(flame: &Flame, unit: Unit, title: &str, description: &str) -> Svg {
    let entries = component_legend(components(flame, 0).into_iter());
    let legend_px = legend_height_px(&entries, WIDTH_PX - 2.0 * EDGE_PX);
    let mut canvas = Canvas::new(EDGE_PX * 2.0 + legend_px + DEPTHS as f64 * ROW_PX);
    legend(&mut canvas, EDGE_PX, WIDTH_PX - 2.0 * EDGE_PX, &entries);
    let mut picture = Picture {
        canvas: &mut canvas,
        unit,
        total: flame.value as f64,
        top: EDGE_PX + legend_px,
    };
    picture.frame(flame, 0, EDGE_PX, None);
    canvas.finish(title, description)
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
}

impl Picture<'_> {
    fn frame(&mut self, flame: &Flame, depth: usize, left: f64, component: Option<Category>) {
        let share = flame.value as f64 / self.total;
        let width = share * (WIDTH_PX - 2.0 * EDGE_PX);
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
            "{name}: {}, {:.1} %",
            self.unit.amount(flame.value as f64),
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
            self.canvas.label(&Label {
                text: &label,
                at: (left + 4.0, top + ROW_PX - 6.0),
                anchor: Anchor::Start,
                class: match component {
                    Some(category) if depth == COMPONENT_DEPTH => category.text(),
                    _ => "t",
                },
                size_px: SMALL_PX,
                turn: 0.0,
            });
        }
        let mut x = left;
        for child in &flame.children {
            self.frame(child, depth + 1, x, component);
            x += child.value as f64 / self.total * (WIDTH_PX - 2.0 * EDGE_PX);
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
