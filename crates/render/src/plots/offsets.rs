//! File offset against time, coloured by token.

use index::{EvalBrief, EvalsQuery, Filter, OffsetsQuery, RunIndex};

use super::{Plot, Section};
use crate::plot::{
    Axis, Canvas, Frame, Ticks, Unit,
    axes::{Direction, Grid, Room},
    colour::Ramp,
    raster::{COLOUR_BAR_PX, Raster, Scale, colour_bar},
};

/// About a cell per pixel of the frame.
const COLUMNS: u32 = 560;
const ROWS: u32 = 320;
const HEIGHT_PX: f64 = 420.0;

pub fn plot(index: &RunIndex) -> Option<Plot> {
    let query = OffsetsQuery {
        t0: None,
        t1: None,
        o0: None,
        o1: None,
        w: COLUMNS,
        h: ROWS,
    };
    let found = index.offsets(&query, &Filter::default());
    let header = &found.header;
    if header.accesses == 0 {
        return None;
    }
    let evals = index.evals(&EvalsQuery {
        from: None,
        to: None,
        max: 1 << 16,
    });
    let tokens = evals
        .iter()
        .map(|eval| eval.first_token + eval.tokens)
        .max()
        .unwrap_or(0);
    let token_at = columns(&evals, header.t0, header.t1, header.w);
    let values = found
        .values
        .iter()
        .enumerate()
        .map(|(cell, bytes)| match token_at[cell % header.w as usize] {
            Some(token) if *bytes > 0.0 => token as f32,
            _ => f32::NAN,
        })
        .collect();
    let raster = Raster {
        columns: header.w as usize,
        rows: header.h as usize,
        values,
        scale: Scale::Linear {
            min: 0.0,
            max: (tokens.max(2) - 1) as f64,
        },
        ramp: Ramp::Time,
    };
    let mut canvas = Canvas::new(HEIGHT_PX);
    let x = Axis::new(
        "time since the first evaluation",
        Unit::Nanos,
        header.t0 as f64,
        header.t1 as f64,
    );
    let y = Axis::new(
        "offset in the model’s files",
        Unit::Bytes,
        header.o0 as f64,
        header.o1 as f64,
    )
    .with_ticks(Ticks::Nice);
    let room = Room {
        top_px: 0.0,
        right_px: COLOUR_BAR_PX,
    };
    let frame = Frame::draw(&mut canvas, &x, &y, Grid::None, Direction::Down, room);
    raster.draw(&mut canvas, &frame);
    colour_bar(&mut canvas, &frame, &raster, "token number", Unit::Plain);
    let title = "Where in the file, and when";
    let caption = "Every read of weights: the offset in the model’s files, end to end, against time, coloured by the token that it was for. A diagonal is a pass over the model; gaps in it are experts that were not chosen.";
    Some(Plot {
        id: "offset-time".to_owned(),
        section: Section::Weights,
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: canvas.finish(title, caption),
    })
}

/// The token that each column of time belongs to: the last that had begun, since a
/// cell may cover several.
fn columns(evals: &[EvalBrief], t0: u64, t1: u64, columns: u32) -> Vec<Option<u64>> {
    let mut ordered: Vec<&EvalBrief> = evals.iter().collect();
    ordered.sort_by_key(|eval| eval.begin);
    let span = t1.saturating_sub(t0) as f64;
    (0..columns)
        .map(|column| {
            let end = t0 as f64 + span * f64::from(column + 1) / f64::from(columns);
            let began = ordered.partition_point(|eval| (eval.begin as f64) < end);
            began.checked_sub(1).map(|at| ordered[at].first_token)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_the_colour_of_the_token_computed_then() {
        let eval = |first_token, begin, end| EvalBrief {
            eval: first_token,
            begin,
            end,
            first_token,
            tokens: 1,
            phase: "generate",
        };
        let evals = [eval(0, 10, 50), eval(3, 50, 80), eval(4, 90, 100)];
        assert_eq!(
            columns(&evals, 0, 100, 10),
            [
                None,
                Some(0),
                Some(0),
                Some(0),
                Some(0),
                Some(3),
                Some(3),
                Some(3),
                Some(3),
                Some(4)
            ]
        );
    }
}
