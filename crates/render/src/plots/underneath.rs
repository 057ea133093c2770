//! What the kernel did: reads again, read sizes, reads and faults over the file,
//! what was in memory.

use analysis::underneath::{UnderneathResults, picture::Picture};

use super::{LINES_PX, Plot, Section, plural};
use crate::{
    palette::{Category, Ramp},
    plot::{
        Axis, Canvas, Frame, Ticks, Unit,
        marks::{Bar, Entry, Line, Parts, bars, columns, lines},
        raster::{Map, Raster, Scale},
        svg::Anchor,
        units::short,
    },
};

const PICTURE_PX: f64 = 400.0;

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

fn plot(id: &str, title: &str, caption: impl Into<String>, canvas: Canvas) -> Plot {
    Plot::new(id, Section::Underneath, title, caption, canvas)
}

/// Bytes read over the layer's size, by component: parts add up to the factor.
fn reread_by_layer(results: &UnderneathResults) -> Option<Plot> {
    let sums = results.by_layer.iter().filter(|sum| sum.size_bytes > 0);
    let sums: Vec<_> = sums.collect();
    if sums.iter().all(|sum| sum.read_bytes == 0) {
        return None;
    }
    let mut used = Vec::new();
    let list: Vec<Bar> = sums
        .iter()
        .map(|sum| {
            let mut parts = Parts::new();
            for tensor in results.by_tensor.iter().filter(|t| t.layer == sum.layer) {
                let category = Category::of(tensor.component.as_deref().unwrap_or("other"));
                if tensor.read_bytes > 0 {
                    used.push(category);
                    *parts.entry(category).or_default() +=
                        tensor.read_bytes as f64 / sum.size_bytes as f64;
                }
            }
            Bar {
                note: format!("{} read", Unit::Bytes.amount(sum.read_bytes as f64)),
                ..Bar::stacked(sum.name.clone(), parts)
            }
        })
        .collect();
    let caption = format!(
        "Bytes read from the disk over the layer’s size, by component. 1 is every byte once; what is above was dropped from memory and read again. Of the whole model {} × was read.",
        short(results.reread.as_ref().map_or(0.0, |reread| reread.factor)),
    );
    let entries = Entry::components(used.into_iter());
    let canvas = columns("times its size", Unit::Plain, &list, &entries);
    Some(plot(
        "reread-layers",
        "Read again, by layer",
        caption,
        canvas,
    ))
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
    Some(plot(
        "reread-components",
        "Read again, by component",
        "Bytes read from the disk over the component’s size, those with most bytes on top. Components that every token needs are read again with every token, once the model does not fit.",
        bars("times its size", Unit::Plain, &list, &[]),
    ))
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
    let caption = format!(
        "Bytes read for the model by the size of the request, as the disk saw them: half of the {} are of at most {}. {:.1} % of the bytes begin where the read before them ended, {:.1} % at most {} behind it.",
        plural(disk.requests, "read"),
        Unit::Bytes.amount(disk.median_bytes as f64),
        disk.sequential_share * 100.0,
        disk.near_share * 100.0,
        Unit::Bytes.amount(disk.gap_bytes as f64),
    );
    let canvas = bars("bytes read", Unit::Bytes, &list, &[]);
    Some(plot("read-sizes", "Sizes of reads", caption, canvas))
}

fn reads(picture: &Picture) -> Option<Plot> {
    let canvas = over_file(
        picture,
        &picture.read_bytes,
        ("bytes read", Unit::Bytes, Ramp::Counts),
    )?;
    Some(plot(
        "offset-reads",
        "Reads over the file",
        "Bytes read from the disk, by time and by offset in the model’s files, end to end. With the model in memory there is one pass, when it is loaded; a diagonal for each token means that what a token reads is gone when the next one comes. Lines mark the first evaluation and the first that generates.",
        canvas,
    ))
}

fn faults(picture: &Picture) -> Option<Plot> {
    let (list, title, which) = match picture.major_faults.is_empty() {
        false => (&picture.major_faults, "Major faults over the file", "Major"),
        true => (&picture.minor_faults, "Minor faults over the file", "Minor"),
    };
    let caption = format!(
        "{which} page faults, by time and by offset in the model’s files, end to end. A read ahead saves the faults behind it, so that fewer faults than reads are good, and as many are the worst. Lines mark the first evaluation and the first that generates.",
    );
    let canvas = over_file(picture, list, ("faults", Unit::Count, Ramp::Time))?;
    Some(plot("offset-faults", title, caption, canvas))
}

/// Cells of time and offset; `None` where they are all empty.
fn over_file(
    picture: &Picture,
    cells: &[u64],
    (label, unit, ramp): (&str, Unit, Ramp),
) -> Option<Canvas> {
    if cells.len() != (picture.columns * picture.rows) as usize {
        return None;
    }
    let value = |cell: &u64| if *cell > 0 { *cell as f32 } else { f32::NAN };
    let values: Vec<f32> = cells.iter().map(value).collect();
    let span = picture.end_nanos.saturating_sub(picture.begin_nanos);
    let bytes = picture.bytes as f64;
    let map = Map {
        raster: Raster {
            columns: picture.columns as usize,
            rows: picture.rows as usize,
            scale: Scale::log_of(&values),
            values,
            ramp,
        },
        x: Axis::new("time", Unit::Nanos, 0.0, span as f64),
        y: Axis::new("offset in the model’s files", Unit::Bytes, 0.0, bytes),
        height_px: PICTURE_PX,
        top_px: 16.0,
        row_breaks: &[],
        column_breaks: &[],
        label,
        unit,
    };
    let (mut canvas, frame) = map.draw();
    moments(picture, &mut canvas, &frame);
    Some(canvas)
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
        .map(|(at, component)| {
            let share = points.iter().map(|point| {
                let resident = point.by_component.get(at).copied().unwrap_or(0);
                let share = resident as f64 / component.size_bytes.max(1) as f64;
                (point.token as f64, share)
            });
            let name = &component.component;
            Line::new(name, Category::of(name), share)
        })
        .collect();
    let whole = points.iter().map(|point| {
        let share = point.resident_bytes as f64 / results.model_bytes.max(1) as f64;
        (point.token as f64, share)
    });
    drawn.push(Line::new("whole model", Category::of("kv_cache"), whole));
    let (first, last) = (points.first()?.token, points.last()?.token);
    let x =
        Axis::new("token number", Unit::Plain, first as f64, last as f64).with_ticks(Ticks::Whole);
    let y = Axis::new("in memory", Unit::Share, 0.0, 1.0);
    let caption = format!(
        "Share of each component that was in memory, in {} of the run; components of less than half a per cent of the model are left out. What falls was dropped by the kernel, and must be read again when it is needed.",
        plural(residency.samples, "sample")
    );
    let canvas = lines(LINES_PX, &x, &y, &drawn);
    Some(plot("residency", "What is in memory", caption, canvas))
}
