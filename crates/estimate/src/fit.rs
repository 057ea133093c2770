//! Dimensions against the units of a machine: which fill them, and what padding the others
//! would cost.
//!
//! Crate `gguf` says which dimensions miss the blocks of a file's types, whatever the machine
//! (`gguf::fit`). This is about the machine: the bytes that tensor cores want rows to be a
//! multiple of, the threads that run in step, the lines of its cache.

use serde::Serialize;

use crate::checked;
use crate::error::Result;
use crate::machines::{Figure, Machine};
use crate::number::ComputeType;
use crate::shape::Shape;

/// What a dimension is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Rows that tensor cores or tiles take whole.
    Tile,
    /// A warp, wavefront or SIMD group.
    Lanes,
    CacheLine,
}

/// One dimension and one unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    pub dimension: &'static str,
    pub number: u64,
    pub unit: Unit,
    /// Numbers that fill the unit, in the type that is computed in.
    pub multiple_of: u64,
    pub fits: bool,
    /// The next number that would.
    pub padded: u64,
    /// What the padded dimension has more, of everything that is as long.
    pub padding_percent: f64,
    pub source: String,
}

/// Every dimension of a model against every unit that the table has of a machine.
pub fn fits(shape: &Shape, machine: &Machine, compute: ComputeType) -> Result<Vec<Fit>> {
    let element_bytes = compute.element_bytes();
    let units = [
        (Unit::Tile, &machine.tile_bytes, element_bytes),
        (Unit::Lanes, &machine.lanes, 1),
        (Unit::CacheLine, &machine.line_bytes, element_bytes),
    ];
    let mut found = Vec::new();
    for (dimension, number) in dimensions(shape)? {
        for (unit, figure, divisor) in units {
            if let Some(figure) = figure {
                found.push(fit(dimension, number, unit, figure, divisor)?);
            }
        }
    }
    Ok(found)
}

fn fit(
    dimension: &'static str,
    number: u64,
    unit: Unit,
    figure: &Figure,
    element_bytes: u64,
) -> Result<Fit> {
    let of_unit = checked::bytes("the size of a unit", figure.value)?;
    let multiple_of = (of_unit / element_bytes).max(1);
    let padded = number
        .checked_next_multiple_of(multiple_of)
        .ok_or(crate::Error::TooLarge("a padded dimension"))?;
    Ok(Fit {
        dimension,
        number,
        unit,
        multiple_of,
        fits: padded == number,
        padded,
        padding_percent: 100.0 * (padded - number) as f64 / number as f64,
        source: figure.source.name.clone(),
    })
}

/// The dimensions that matrices have, each once, none that is zero.
fn dimensions(shape: &Shape) -> Result<Vec<(&'static str, u64)>> {
    let mut all = vec![("hidden", shape.hidden), ("vocabulary", shape.vocabulary)];
    for layer in &shape.layers {
        if let Some(attention) = layer.attention {
            let width =
                |heads, length| checked::product("the width of attention", &[heads, length]);
            all.push(("key head length", attention.key_length));
            all.push(("value head length", attention.value_length));
            all.push(("queries", width(attention.heads, attention.key_length)?));
            match attention.latent {
                Some(latent) => {
                    all.push(("latent", latent.kv_rank.saturating_add(latent.rope_length)))
                }
                None => all.push(("keys", width(attention.kv_heads, attention.key_length)?)),
            }
        }
        all.push(("ffn", layer.ffn));
        if let Some(experts) = layer.experts {
            all.push(("expert ffn", experts.ffn));
            all.push(("shared experts", experts.shared_ffn));
        }
    }
    let mut seen = Vec::new();
    for entry in all {
        if entry.1 > 0 && !seen.contains(&entry) {
            seen.push(entry);
        }
    }
    Ok(seen)
}
