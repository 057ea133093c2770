//! Flame graphs: phase, layer, component, op, tensor, from top to bottom.
//!
//! One drawing, for the report's figure and as a file of its own. It has no script: to zoom
//! and search in there is the viewer, or any tool that reads folded stacks.

use std::io::Write;

use index::{Filter, Flame, FlameBy, RunIndex};
use reader::Log;

use crate::{
    error::RenderError,
    folded::{self, Folded},
    frames::Measure,
    log::Stats,
    palette::Category,
    plot::{
        Canvas, Svg, Unit,
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
const TENSOR_DEPTH: usize = 5;

/// A frame as it is drawn.
pub(crate) struct Frame {
    pub name: String,
    pub value: u64,
    /// `None`: of no component.
    pub component: Option<Category>,
    pub shade: Shade,
    pub children: Vec<Frame>,
}

/// What lies below a component has lighter shades of its colour, over the ground.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shade {
    Full,
    Pale,
    Paler,
}

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
    write_file(
        Frame::of_model(&folded.tree()),
        unit,
        (&title, &caption),
        out,
    )?;
    Ok(stats)
}

/// Draws folded stacks, whoever wrote them; `None` where a line is no stack. Those of a model have the
/// colours of its components; of others, only tensors have them.
pub fn of_stacks(text: &str, unit: Unit, (title, caption): (&str, &str)) -> Option<Svg> {
    let mut lines: Vec<(Vec<&str>, u64)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (frames, sum) = line.rsplit_once(' ')?;
        lines.push((frames.split(';').collect(), sum.parse().ok()?));
    }
    // Those that share a prefix follow each other.
    lines.sort();
    // Phase, layer, component, op, tensor.
    let is_of_model = lines.iter().all(|(frames, _)| {
        let layer = frames.get(1).unwrap_or(&"");
        frames.len() == TENSOR_DEPTH && (layer.starts_with("layer ") || *layer == "no layer")
    });
    let stacks = lines
        .iter()
        .map(|(frames, sum)| (frames.iter().map(|&name| name.to_owned()), *sum));
    let root = folded::tree(stacks);
    let root = match is_of_model {
        true => Frame::of_model(&root),
        false => Frame::of_anything(&root),
    };
    Some(draw(&root, unit, FILE_PX).finish(title, caption))
}

/// Draws a tree of frames as a file, with its title and caption.
pub(crate) fn write_file(
    root: Frame,
    unit: Unit,
    (title, caption): (&str, &str),
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    let svg = draw(&root, unit, FILE_PX).finish(title, caption);
    out.write_all(svg.standalone().as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Those of the report.
pub(crate) fn plots(index: &RunIndex) -> Vec<Plot> {
    let of = |by, measure: Measure, id: &str, title: &str| {
        let flame = index.flame(by, &Filter::default());
        (flame.value > 0).then(|| {
            let caption = caption(measure, flame.value);
            let canvas = draw(&Frame::of_model(&flame), about(measure).1, WIDTH_PX);
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

impl Frame {
    /// Phase, layer, component, op, tensor.
    fn of_model(flame: &Flame) -> Frame {
        Frame::of_part(flame, 0, None)
    }

    fn of_anything(flame: &Flame) -> Frame {
        let name = without_layer(&flame.name);
        let component = match name {
            _ if name.starts_with("cache_") => Some(Category::of("kv_cache")),
            _ if name.ends_with(".weight") => {
                let meaning = gguf::names::Meaning::of(&flame.name);
                Some(Category::of(meaning.component.name()))
            }
            _ => None,
        };
        Frame {
            name: name.to_owned(),
            value: flame.value,
            component,
            shade: Shade::Full,
            children: flame.children.iter().map(Frame::of_anything).collect(),
        }
    }

    fn of_part(flame: &Flame, depth: usize, component: Option<Category>) -> Frame {
        let component = match depth {
            COMPONENT_DEPTH => Some(Category::of(&flame.name)),
            _ => component,
        };
        let below = |child| Frame::of_part(child, depth + 1, component);
        Frame {
            name: match depth {
                TENSOR_DEPTH => without_layer(&flame.name).to_owned(),
                _ => flame.name.clone(),
            },
            value: flame.value,
            component,
            shade: match depth {
                ..=COMPONENT_DEPTH => Shade::Full,
                TENSOR_DEPTH.. => Shade::Paler,
                _ => Shade::Pale,
            },
            children: flame.children.iter().map(below).collect(),
        }
    }

    /// Rows that are drawn, when the whole width stands for `total`.
    fn depth(&self, total: f64, room_px: f64) -> usize {
        if self.value as f64 / total * room_px < NARROWEST_PX {
            return 0;
        }
        let below = self.children.iter().map(|c| c.depth(total, room_px));
        1 + below.max().unwrap_or(0)
    }

    /// All components, some more than once.
    fn components(&self) -> Vec<Category> {
        let below = self.children.iter().flat_map(Frame::components);
        self.component.into_iter().chain(below).collect()
    }
}

/// The layer stands above a tensor already.
pub(crate) fn without_layer(tensor: &str) -> &str {
    match tensor.strip_prefix("blk.").and_then(|r| r.split_once('.')) {
        Some((layer, base)) if layer.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => tensor,
    }
}

fn draw(root: &Frame, unit: Unit, width_px: f64) -> Canvas {
    let room_px = width_px - 2.0 * EDGE_PX;
    let total = root.value.max(1) as f64;
    let entries = Entry::components(root.components().into_iter());
    let legend_px = legend_height_px(&entries, room_px);
    let rows = root.depth(total, room_px).max(1);
    let mut canvas = Canvas::new(EDGE_PX * 2.0 + legend_px + rows as f64 * ROW_PX);
    canvas.set_width(width_px);
    legend(&mut canvas, EDGE_PX, room_px, &entries);
    let mut picture = Picture {
        canvas: &mut canvas,
        unit,
        total,
        top: EDGE_PX + legend_px,
        room_px,
    };
    picture.frame(root, 0, EDGE_PX);
    canvas
}

struct Picture<'a> {
    canvas: &'a mut Canvas,
    unit: Unit,
    total: f64,
    top: f64,
    room_px: f64,
}

impl Picture<'_> {
    fn frame(&mut self, frame: &Frame, depth: usize, left: f64) {
        let share = frame.value as f64 / self.total;
        let width = share * self.room_px;
        if width < NARROWEST_PX {
            return;
        }
        let name = match depth {
            0 => format!("all: {}", self.unit.amount(self.total)),
            _ => frame.name.clone(),
        };
        let top = self.top + depth as f64 * ROW_PX;
        let tip = format!(
            "{name}: {} ({} {}), {:.1} %",
            self.unit.amount(frame.value as f64),
            frame.value,
            match self.unit {
                Unit::Nanos => "nanoseconds",
                _ => "bytes",
            },
            share * 100.0
        );
        // A gap between neighbours, unless nothing would be left.
        let gap = if width > 3.0 { 1.0 } else { 0.0 };
        let at = ((left, top), (width - gap, ROW_PX - 1.0));
        let class = frame
            .component
            .map_or_else(|| "cell".to_owned(), Category::fill);
        let class = match frame.shade {
            Shade::Full => class,
            Shade::Pale => class + " pale",
            Shade::Paler => class + " paler",
        };
        self.canvas.rect(&class, at.0, at.1, &tip);
        let label = shortened(&name, SMALL_PX, width - 8.0);
        // Two letters of a name are none.
        if label == name || label.chars().count() >= 6 {
            let class = match frame.component {
                Some(category) if frame.shade == Shade::Full => category.text(),
                _ => "t",
            };
            let at = (left + 4.0, top + ROW_PX - 6.0);
            self.canvas.small(class, at, Anchor::Start, &label);
        }
        let mut x = left;
        for child in &frame.children {
            self.frame(child, depth + 1, x);
            x += child.value as f64 / self.total * self.room_px;
        }
    }
}
