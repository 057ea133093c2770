//! What the kernel did: reads again, read sizes, reads and faults over the file,
//! what was in memory.

use std::collections::BTreeMap;

use analysis::underneath::{UnderneathResults, picture::Picture};

use super::{Plot, Section, heatmap::thinned, layer_name, plural, traffic::component_legend};
use crate::plot::{
    Axis, Canvas, Frame, Ticks, Unit,
    axes::{Direction, Grid, Room},
    colour::Ramp,
    marks::{Bar, Line, bars, columns, lines},
    raster::{COLOUR_BAR_PX, Raster, Scale, colour_bar},
    svg::Anchor,
    theme::Category,
    units::short,
};

const HEIGHT_PX: f64 = 300.0;
const PICTURE_PX: f64 = 400.0;
/// Names along an axis of layers.
const MAX_NAMES: usize = 24;

pub fn plots(results: &UnderneathResults) -> Vec<Plot> {
    let picture = results.picture.as_ref();
    [
        reread_by_layer(results),
        reread_by_component(results),
        read_sizes(results),
        picture.and_then(reads),
        picture.and_then(faults),
        residency(results),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn plot(id: &str, title: &str, caption: String, svg: crate::plot::Svg) -> Plot {
    Plot {
        id: id.to_owned(),
        section: Section::Underneath,
        title: title.to_owned(),
        caption,
        svg,
    }
}

/// Bytes read over the layer's size, by component: parts add up to the factor.
fn reread_by_layer(results: &UnderneathResults) -> Option<Plot> {
    let sums = results.by_layer.iter().filter(|sum| sum.size_bytes > 0);
    let sums: Vec<_> = sums.collect();
    if sums.iter().all(|sum| sum.read_bytes == 0) {
        return None;
    }
    let mut names = Vec::new();
    let list: Vec<Bar> = sums
        .iter()
        .map(|sum| {
            let mut parts: BTreeMap<u8, f64> = BTreeMap::new();
            for tensor in results.by_tensor.iter().filter(|t| t.layer == sum.layer) {
                let component = tensor.component.as_deref().unwrap_or("other");
                if tensor.read_bytes > 0 {
                    names.push(component);
                    *parts.entry(Category::of(component).0).or_default() +=
                        tensor.read_bytes as f64 / sum.size_bytes as f64;
                }
            }
            Bar {
                name: sum.name.clone(),
                parts: parts.into_iter().map(|(c, v)| (v, Category(c))).collect(),
                note: format!("{} read", Unit::Bytes.amount(sum.read_bytes as f64)),
            }
        })
        .collect();
    let entries = component_legend(names.into_iter());
    let ticks = sums
        .iter()
        .enumerate()
        .map(|(at, sum)| (at as f64 + 0.5, layer_name(sum.layer)));
    let max = list.iter().map(Bar::sum).fold(0.0, f64::max);
    let x = Axis::new("layer", Unit::Plain, 0.0, list.len() as f64)
        .with_ticks(Ticks::Named(thinned(ticks.collect(), MAX_NAMES)));
    let y = Axis::new("times its size", Unit::Plain, 0.0, max * 1.05);
    let title = "Read again, by layer";
    let caption = format!(
        "Bytes read from the disk over the layer’s size, by component. 1 is every byte once; what is above was dropped from memory and read again. Of the whole model {} × was read.",
        short(results.reread.as_ref().map_or(0.0, |reread| reread.factor)),
    );
    let svg = columns(HEIGHT_PX, &x, &y, &list, &entries).finish(title, &caption);
    Some(plot("reread-layers", title, caption, svg))
}

fn reread_by_component(results: &UnderneathResults) -> Option<Plot> {
    let list: Vec<Bar> = results
        .by_component
        .iter()
        .filter(|sum| sum.read_bytes > 0)
        .map(|sum| Bar {
            name: sum.name.clone(),
            parts: vec![(sum.reread_factor, Category::of(&sum.name))],
            note: format!(
                "{} ×, {} of {}",
                short(sum.reread_factor),
                Unit::Bytes.amount(sum.read_bytes as f64),
                Unit::Bytes.amount(sum.size_bytes as f64)
            ),
        })
        .collect();
    if list.is_empty() {
        return None;
    }
    let title = "Read again, by component";
    let caption = "Bytes read from the disk over the component’s size, those with most bytes on top. Components that every token needs are read again with every token, once the model does not fit.".to_owned();
    let svg = bars(title, &caption, "times its size", Unit::Plain, &list, &[]);
    Some(plot("reread-components", title, caption, svg))
}

fn read_sizes(results: &UnderneathResults) -> Option<Plot> {
    let disk = results.disk.as_ref().filter(|disk| disk.requests > 0)?;
    let list: Vec<Bar> = disk
        .sizes
        .iter()
        .map(|bin| Bar {
            name: format!(
                "{} to {}",
                Unit::Bytes.amount(bin.from_bytes as f64),
                Unit::Bytes.amount(bin.from_bytes as f64 * 2.0)
            ),
            parts: vec![(bin.bytes as f64, Category::nth(0))],
            note: format!(
                "{:.1} % of the bytes, {}",
                bin.bytes as f64 * 100.0 / disk.bytes.max(1) as f64,
                plural(bin.requests, "read")
            ),
        })
        .collect();
    let title = "Sizes of reads";
    let caption = format!(
        "Bytes read for the model by the size of the request, as the disk saw them: half of the {} are of at most {}. {:.1} % of the bytes begin where the read before them ended, {:.1} % at most {} behind it.",
        plural(disk.requests, "read"),
        Unit::Bytes.amount(disk.median_bytes as f64),
        disk.sequential_share * 100.0,
        disk.near_share * 100.0,
        Unit::Bytes.amount(disk.gap_bytes as f64),
    );
    let svg = bars(title, &caption, "bytes read", Unit::Bytes, &list, &[]);
    Some(plot("read-sizes", title, caption, svg))
}

fn reads(picture: &Picture) -> Option<Plot> {
    let title = "Reads over the file";
    let caption = "Bytes read from the disk, by time and by offset in the model’s files, end to end. With the model in memory there is one pass, when it is loaded; a diagonal for each token means that what a token reads is gone when the next one comes. Lines mark the first evaluation and the first that generates.";
    let svg = over_file(
        picture,
        &picture.read_bytes,
        title,
        caption,
        ("bytes read", Unit::Bytes, Ramp::Counts),
    )?;
    Some(plot("offset-reads", title, caption.to_owned(), svg))
}

fn faults(picture: &Picture) -> Option<Plot> {
    let (list, title, which) = match picture.major_faults.is_empty() {
        false => (&picture.major_faults, "Major faults over the file", "Major"),
        true => (&picture.minor_faults, "Minor faults over the file", "Minor"),
    };
    let caption = format!(
        "{which} page faults, by time and by offset in the model’s files, end to end. A read ahead saves the faults behind it, so that fewer faults than reads are good, and as many are the worst. Lines mark the first evaluation and the first that generates.",
    );
    let svg = over_file(
        picture,
        list,
        title,
        &caption,
        ("faults", Unit::Count, Ramp::Time),
    )?;
    Some(plot("offset-faults", title, caption, svg))
}

/// Cells of time and offset; `None` where they are all empty.
fn over_file(
    picture: &Picture,
    cells: &[u64],
    title: &str,
    caption: &str,
    (label, unit, ramp): (&str, Unit, Ramp),
) -> Option<crate::plot::Svg> {
    if cells.len() != (picture.columns * picture.rows) as usize {
        return None;
    }
    let value = |cell: &u64| if *cell > 0 { *cell as f32 } else { f32::NAN };
    let values: Vec<f32> = cells.iter().map(value).collect();
    let raster = Raster {
        columns: picture.columns as usize,
        rows: picture.rows as usize,
        scale: Scale::log_of(&values),
        values,
        ramp,
    };
    let mut canvas = Canvas::new(PICTURE_PX);
    let span = picture.end_nanos.saturating_sub(picture.begin_nanos);
    let x = Axis::new("time", Unit::Nanos, 0.0, span as f64);
    let y = Axis::new(
        "offset in the model’s files",
        Unit::Bytes,
        0.0,
        picture.bytes as f64,
    );
    let room = Room {
        top_px: 16.0,
        right_px: COLOUR_BAR_PX,
    };
    let frame = Frame::draw(&mut canvas, &x, &y, Grid::None, Direction::Down, room);
    raster.draw(&mut canvas, &frame);
    moments(picture, &mut canvas, &frame);
    if !raster.is_plain() {
        colour_bar(&mut canvas, &frame, &raster, label, unit);
    }
    Some(canvas.finish(title, caption))
}

/// Where evaluations begin, unless that is at the edge or in the way of another.
fn moments(picture: &Picture, canvas: &mut Canvas, frame: &Frame) {
    let marks = [
        (picture.first_eval_nanos, "prompt"),
        (picture.generate_nanos, "generate"),
    ];
    let mut free_from = frame.left + 4.0;
    for (nanos, name) in marks {
        let Some(nanos) = nanos else { continue };
        let at = frame.x(nanos.saturating_sub(picture.begin_nanos) as f64);
        if at < free_from {
            continue;
        }
        canvas.line("rule", (at, frame.top - 4.0), (at, frame.bottom()));
        canvas.text("m", (at, frame.top - 8.0), Anchor::Start, name);
        free_from = at + 64.0;
    }
}

fn residency(results: &UnderneathResults) -> Option<Plot> {
    let residency = results.residency.as_ref()?;
    let points = &residency.timeline.points;
    if points.len() < 2 {
        return None;
    }
    let components = residency.components.iter().enumerate();
    let mut drawn: Vec<Line> = components
        .filter(|(_, component)| {
            // Norms and routers would hide the rest.
            component.size_bytes * 200 >= results.model_bytes
        })
        .map(|(at, component)| Line {
            name: component.component.clone(),
            category: Category::of(&component.component),
            points: points
                .iter()
                .map(|point| {
                    let resident = point.by_component.get(at).copied().unwrap_or(0);
                    let share = resident as f64 / component.size_bytes.max(1) as f64;
                    (point.token as f64, share)
                })
                .collect(),
        })
        .collect();
    drawn.push(Line {
        name: "whole model".to_owned(),
        category: Category::of("kv_cache"),
        points: points
            .iter()
            .map(|point| {
                let share = point.resident_bytes as f64 / results.model_bytes.max(1) as f64;
                (point.token as f64, share)
            })
            .collect(),
    });
    let (first, last) = (points.first()?.token, points.last()?.token);
    let x =
        Axis::new("token number", Unit::Plain, first as f64, last as f64).with_ticks(Ticks::Whole);
    let y = Axis::new("in memory", Unit::Share, 0.0, 1.0);
    let title = "What is in memory";
    let caption = format!(
        "Share of each component that was in memory, in {} of the run; components of less than half a per cent of the model are left out. What falls was dropped by the kernel, and must be read again when it is needed.",
        plural(residency.samples, "sample")
    );
    let svg = lines(HEIGHT_PX, &x, &y, &drawn).finish(title, &caption);
    Some(plot("residency", title, caption, svg))
}
