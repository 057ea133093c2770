//! The roofline: what each class of nodes reached, below what memory and arithmetic allow.

#[cfg(test)]
mod tests;

use analysis::roofline::Roofline;

use super::{Plot, Section, plural};
use crate::{
    charts::{self, Roof, RooflineChart, RooflinePoint},
    palette::Category,
    plot::{
        Axis, Canvas, Frame, Ticks, Unit,
        axes::{Direction, Grid, Room},
        marks::{Entry, legend, legend_height_px},
        svg::{Anchor, Label},
        text::width_px,
        theme::SMALL_PX,
        units::short,
    },
};

const HEIGHT_PX: f64 = 460.0;
const LEGEND_PX: f64 = 620.0;
/// More points would hide each other; what is left out took least time.
const MAX_POINTS: usize = 60;
/// Of the largest.
const MAX_LABELS: usize = 7;
const MIN_RADIUS_PX: f64 = 3.0;
const MAX_RADIUS_PX: f64 = 14.0;
const ROOF_PX: f64 = 1.8;
/// Room around the outermost points and roofs, in powers of ten.
const MARGIN: f64 = 0.25;
/// As much of a flat roof is seen at least, in powers of ten: its name is over it.
const FLAT: f64 = 1.0;

/// `None` without classes that compute.
pub fn plot(roofline: &Roofline) -> Option<Plot> {
    let chart = charts::roofline(roofline)?;
    let drawn: Vec<Drawn> = chart.points.iter().map(Drawn::of).collect();
    let left_out = drawn.len().saturating_sub(MAX_POINTS);
    let drawn = &drawn[..drawn.len().min(MAX_POINTS)];
    let caption = match left_out {
        0 => format!("{}.", chart.caption),
        n => {
            let classes = plural(n as u64, "class");
            format!("{}, nor the {classes} that took least time.", chart.caption)
        }
    };
    Some(Plot::new(
        "roofline",
        Section::Work,
        "Roofline",
        caption,
        draw(&chart, drawn),
    ))
}

/// A point with its place, as powers of ten.
struct Drawn<'a> {
    point: &'a RooflinePoint,
    x: f64,
    y: f64,
}

impl Drawn<'_> {
    fn of(point: &RooflinePoint) -> Drawn<'_> {
        Drawn {
            point,
            x: point.intensity.log10(),
            y: point.flops_per_second.log10(),
        }
    }

    fn tip(&self) -> String {
        let point = self.point;
        format!(
            "{}, {} ({} at once): {} GFLOP/s, {} GB/s, {} operations a byte, {} of the roof, {}",
            point.name,
            point.phase,
            point.batch_text,
            short(point.flops_per_second / 1e9),
            short(point.bytes_per_second / 1e9),
            short(point.intensity),
            Unit::Share.amount(point.share_of_ceiling),
            Unit::Nanos.amount(point.nanos as f64),
        )
    }
}

fn draw(roofline: &RooflineChart, drawn: &[Drawn]) -> Canvas {
    let memory = |roof: &Roof| roof.per_second.log10();
    let flats: Vec<f64> = (roofline.compute.iter())
        .map(|roof| roof.per_second.log10())
        .collect();
    let ridges = roofline
        .memory
        .iter()
        .flat_map(|roof| flats.iter().map(move |flat| flat - memory(roof)));
    let ends = ridges.map(|ridge| ridge + FLAT);
    let (left, right) = range(drawn.iter().map(|d| d.x).chain(ends));
    // A slope ends at the highest flat roof; without one it leaves the picture.
    let slopes = roofline.memory.iter().map(|roof| memory(roof) + left);
    let (bottom, top) = range(drawn.iter().map(|d| d.y).chain(flats.iter().copied()));
    let bottom = bottom.max(slopes.fold(bottom, f64::min));
    let x = decades("operations for each byte", left, right, 0.0);
    let y = decades("GFLOP/s", bottom, top, 9.0);
    let entries = Entry::components(drawn.iter().map(|d| d.point.category()));
    let mut canvas = Canvas::new(HEIGHT_PX);
    let room = Room {
        top_px: legend_height_px(&entries, LEGEND_PX),
        right_px: 10.0,
    };
    let frame = Frame::draw(&mut canvas, &x, &y, Grid::Horizontal, Direction::Up, room);
    legend(&mut canvas, frame.left, LEGEND_PX, &entries);
    let mut labels = Labels::new(&frame);
    labels.avoid_points(drawn);
    roofs(
        roofline,
        &mut canvas,
        &mut labels,
        (left, right),
        (bottom, top),
    );
    points(drawn, &mut canvas, &frame);
    shapes(drawn, &mut canvas, &mut labels);
    for drawn in drawn.iter().take(MAX_LABELS) {
        labels.name(drawn, &mut canvas);
    }
    canvas
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(|value| value.is_finite()) {
        (low, high) = (low.min(value), high.max(value));
    }
    (low - MARGIN, high + MARGIN)
}

/// An axis of powers of ten, counted from `10^zero`.
fn decades(label: &str, min: f64, max: f64, zero: f64) -> Axis {
    let ticks = (min.ceil() as i32..=max.floor() as i32).map(|power| {
        let power = f64::from(power);
        (power, tick(power - zero))
    });
    Axis::new(label, Unit::Plain, min, max).with_ticks(Ticks::Named(ticks.collect()))
}

fn tick(power: f64) -> String {
    match power {
        p if (-3.0..=4.0).contains(&p) => format!("{:.*}", (-p).max(0.0) as usize, 10f64.powf(p)),
        p => format!("10^{p:.0}"),
    }
}

fn roofs(
    roofline: &RooflineChart,
    canvas: &mut Canvas,
    labels: &mut Labels,
    (left, right): (f64, f64),
    (bottom, top): (f64, f64),
) {
    let frame = labels.frame;
    let highest = |threads: u32| {
        let of = roofline.compute.iter().filter(|r| r.threads == threads);
        let flats = of.map(|roof| roof.per_second.log10());
        flats.reduce(f64::max).unwrap_or(top)
    };
    for roof in &roofline.memory {
        let slope = roof.per_second.log10();
        let from = left.max(bottom - slope);
        let to = right.min(highest(roof.threads).min(top) - slope);
        if to <= from {
            continue;
        }
        let ends = [from, to].map(|x| (frame.x(x), frame.y(x + slope)));
        canvas.polyline("axis", &ends, ROOF_PX, "");
        let turn = (ends[0].1 - ends[1].1).atan2(ends[1].0 - ends[0].0);
        // Above the slope, from a little behind its begin.
        let (aside, along) = (6.0, 10.0);
        canvas.label(&Label {
            text: &roof.name,
            at: (
                ends[0].0 + along * turn.cos() - aside * turn.sin(),
                ends[0].1 - along * turn.sin() - aside * turn.cos(),
            ),
            anchor: Anchor::Start,
            class: "m",
            size_px: SMALL_PX,
            turn: turn.to_degrees(),
        });
        labels.avoid_slope(ends, width_px(&roof.name, SMALL_PX) + along);
    }
    let height = |roof: &Roof| frame.y(roof.per_second.log10());
    for roof in &roofline.compute {
        let flat = roof.per_second.log10();
        let slope = (roofline.memory.iter()).find(|memory| memory.threads == roof.threads);
        let memory = slope.map_or(0.0, |memory| memory.per_second.log10());
        let (from, y) = (frame.x((flat - memory).max(left)), height(roof));
        canvas.polyline("axis", &[(from, y), (frame.right(), y)], ROOF_PX, "");
        labels.taken.push([from, y - 1.0, frame.right(), y + 1.0]);
    }
    // Their names when all lines are there: none is crossed by one.
    for roof in &roofline.compute {
        labels.at_right_end(&roof.name, height(roof), canvas);
    }
}

/// Those that took longest are drawn first, so that small ones lie on top.
fn points(drawn: &[Drawn], canvas: &mut Canvas, frame: &Frame) {
    let longest = drawn.iter().map(|d| d.point.nanos).max().unwrap_or(1);
    for drawn in drawn {
        let at = (frame.x(drawn.x), frame.y(drawn.y));
        let radius = radius_px(drawn, longest);
        shape(
            canvas,
            &drawn.point.phase,
            drawn.point.category(),
            at,
            radius,
            &drawn.tip(),
        );
    }
}

fn radius_px(drawn: &Drawn, longest: u64) -> f64 {
    let share = drawn.point.nanos as f64 / longest.max(1) as f64;
    (MAX_RADIUS_PX * share.sqrt()).max(MIN_RADIUS_PX)
}

/// A mark of a phase: filled so that others show through, with an edge.
fn shape(
    canvas: &mut Canvas,
    phase: &str,
    category: Category,
    (x, y): (f64, f64),
    radius: f64,
    tip: &str,
) {
    let (fill, edge) = (format!("{} pale", category.fill()), category.stroke());
    // Of one area, whatever the shape.
    let half = radius * 0.886;
    match phase {
        "generate" => {
            canvas.circle(&fill, (x, y), radius, tip);
            canvas.circle(&edge, (x, y), radius, "");
        }
        "prompt" => {
            let (at, size) = ((x - half, y - half), (2.0 * half, 2.0 * half));
            canvas.rect(&fill, at, size, tip);
            canvas.rect(&edge, at, size, "");
        }
        _ => {
            let half = half * std::f64::consts::SQRT_2;
            let corners = [
                (x, y - half),
                (x + half, y),
                (x, y + half),
                (x - half, y),
                (x, y - half),
            ];
            canvas.polyline(&fill, &corners, 0.0, "");
            canvas.polyline(&edge, &corners, 1.0, "");
        }
    }
}

/// Which shape is which phase, in the corner where no node is: much arithmetic, slowly.
fn shapes(drawn: &[Drawn], canvas: &mut Canvas, labels: &mut Labels) {
    let frame = labels.frame;
    let mut y = frame.bottom() - 12.0;
    for phase in ["unknown", "generate", "prompt"] {
        if !drawn.iter().any(|d| d.point.phase == phase) {
            continue;
        }
        let x = frame.right() - 70.0;
        let grey = Category::of("kv_cache");
        shape(canvas, phase, grey, (x, y), 5.0, "");
        canvas.small("m", (x + 10.0, y + SMALL_PX * 0.36), Anchor::Start, phase);
        labels
            .taken
            .push([x - 8.0, y - 8.0, frame.right(), y + 8.0]);
        y -= 16.0;
    }
}

/// Left, top, right, bottom.
type Box4 = [f64; 4];

/// Places that texts have, so that none is over another.
struct Labels<'a> {
    frame: &'a Frame,
    taken: Vec<Box4>,
    /// Those of them that are names of points.
    names: Vec<Box4>,
    longest: u64,
}

impl<'a> Labels<'a> {
    fn new(frame: &'a Frame) -> Labels<'a> {
        Labels {
            frame,
            taken: Vec::new(),
            names: Vec::new(),
            longest: 1,
        }
    }

    fn is_free(&self, wanted: Box4) -> bool {
        let frame = self.frame;
        let is_inside = wanted[0] >= frame.left + 2.0
            && wanted[2] <= frame.right() + 8.0
            && wanted[1] >= frame.top - 10.0
            && wanted[3] <= frame.bottom() - 2.0;
        let meets = |taken: &Box4| {
            wanted[0] < taken[2]
                && taken[0] < wanted[2]
                && wanted[1] < taken[3]
                && taken[1] < wanted[3]
        };
        is_inside && !self.taken.iter().any(meets)
    }

    /// Small boxes along a slope, higher as far as its text goes.
    fn avoid_slope(&mut self, [from, to]: [(f64, f64); 2], text_px: f64) {
        let whole = (to.0 - from.0).hypot(to.1 - from.1).max(1.0);
        let mut along = 0.0;
        while along < whole {
            let part = along / whole;
            let (x, y) = (
                from.0 + (to.0 - from.0) * part,
                from.1 + (to.1 - from.1) * part,
            );
            let room = if along < text_px { 16.0 } else { 3.0 };
            self.taken.push([x - room, y - room, x + 3.0, y + 3.0]);
            along += 4.0;
        }
    }

    fn avoid_points(&mut self, drawn: &[Drawn]) {
        self.longest = drawn.iter().map(|d| d.point.nanos).max().unwrap_or(1);
        for d in drawn {
            let (x, y, r) = (
                self.frame.x(d.x),
                self.frame.y(d.y),
                radius_px(d, self.longest),
            );
            self.taken.push([x - r, y - r, x + r, y + r]);
        }
    }

    /// Above a flat roof at its right end or below it, or left of what is there.
    fn at_right_end(&mut self, text: &str, y: f64, canvas: &mut Canvas) {
        let width = width_px(text, SMALL_PX);
        let mut right = self.frame.right();
        while right - width > self.frame.left {
            for baseline in [y - 5.0, y + SMALL_PX + 2.0] {
                let wanted = [right - width, baseline - SMALL_PX, right, baseline + 3.0];
                if self.is_free(wanted) {
                    canvas.small("m", (right, baseline), Anchor::End, text);
                    self.taken
                        .push([wanted[0] - 8.0, wanted[1], wanted[2], wanted[3]]);
                    return;
                }
            }
            right -= 12.0;
        }
    }

    /// Beside a point, where there is room; else nothing, a pointer shows it.
    fn name(&mut self, drawn: &Drawn, canvas: &mut Canvas) {
        let share = Unit::Share.amount(drawn.point.share_of_ceiling);
        let text = format!("{}, {share}", drawn.point.name);
        let (width, height) = (width_px(&text, SMALL_PX), SMALL_PX + 2.0);
        let (x, y) = (self.frame.x(drawn.x), self.frame.y(drawn.y));
        let reach = radius_px(drawn, self.longest) + 4.0;
        for away in [0.0, 14.0, 28.0, 42.0, 56.0] {
            let sides = [
                (x + reach, y - height / 2.0 + away),
                (x + reach, y - height / 2.0 - away),
                (x - reach - width, y - height / 2.0 + away),
                (x - reach - width, y - height / 2.0 - away),
                (x - width / 2.0, y - reach - height - away),
                (x - width / 2.0, y + reach + away),
            ];
            for (left, top) in sides {
                let wanted = [left, top, left + width, top + height];
                // From the point to the nearest part of the text.
                let end = (
                    x.clamp(left - 2.0, left + width + 2.0),
                    y.clamp(top, top + height),
                );
                let leader = (away > 0.0).then_some([(x, y), end]);
                if !self.is_free(wanted) || leader.is_some_and(|line| self.crosses(line)) {
                    continue;
                }
                if let Some([from, to]) = leader {
                    canvas.line("axis", from, to);
                }
                let at = (left, top + height - 3.0);
                canvas.small("t", at, Anchor::Start, &text);
                self.taken.push(wanted);
                self.names.push(wanted);
                return;
            }
        }
    }

    /// Whether a line goes through the name of a point.
    fn crosses(&self, [from, to]: [(f64, f64); 2]) -> bool {
        (0..=16).any(|step| {
            let part = f64::from(step) / 16.0;
            let x = from.0 + (to.0 - from.0) * part;
            let y = from.1 + (to.1 - from.1) * part;
            let is_in = |name: &Box4| x > name[0] && x < name[2] && y > name[1] && y < name[3];
            self.names.iter().any(is_in)
        })
    }
}
