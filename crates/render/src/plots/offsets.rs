//! File offset against time, coloured by token.

use index::{EvalBrief, EvalsQuery, Filter, OffsetsQuery, RunIndex};

use super::{Plot, Section};
use crate::{
    palette::Ramp,
    plot::{
        Axis, Unit,
        raster::{Map, Raster, Scale},
    },
};

/// About a cell per pixel of the frame.
const COLUMNS: u32 = 560;
const ROWS: u32 = 320;

pub fn plot(index: &RunIndex) -> Option<Plot> {
    let query = OffsetsQuery {
        t0: None,
        t1: None,
        o0: None,
        o1: None,
        w: COLUMNS,
        h: ROWS,
        even: 0,
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
    let axis = |label, unit, from: u64, to: u64| Axis::new(label, unit, from as f64, to as f64);
    let time = "time since the first evaluation";
    let offset = "offset in the model’s files";
    let map = Map {
        raster,
        x: axis(time, Unit::Nanos, header.t0, header.t1),
        y: axis(offset, Unit::Bytes, header.o0, header.o1),
        height_px: 420.0,
        top_px: 0.0,
        row_breaks: &[],
        column_breaks: &[],
        label: "token number",
        unit: Unit::Plain,
    };
    Some(Plot::new(
        "offset-time",
        Section::Weights,
        "Where in the file, and when",
        "Every read of weights: the offset in the model’s files, end to end, against time, coloured by the token that it was for. A diagonal is a pass over the model; gaps in it are experts that were not chosen.",
        map.draw().0,
    ))
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
