//! What crate `plan` wants to know of a run: its weights in the order of their use, and the
//! time to compute a token.

use std::collections::{BTreeSet, HashMap};

use gguf::Kind;
use plan::{Use, Weight};

use crate::sequence::{EvalInfo, Extent, Sequence};

/// The weights of the model, in the order in which the run used them; where the model's file
/// is gone, those that the run touched, used as it did.
pub fn weights_of(sequence: &Sequence, model: Option<&gguf::Model>) -> Vec<Weight> {
    let mut weights = match model {
        Some(model) => plan::weights_of(model),
        None => touched(sequence),
    };
    let mut first_use: HashMap<&str, usize> = HashMap::new();
    let token = sequence.evals.iter().find(|eval| eval.is_generate());
    if let Some(token) = token.or(sequence.evals.first()) {
        for (at, &piece) in sequence.accesses_of(token).iter().enumerate() {
            let unit = &sequence.units[sequence.pieces[piece as usize].unit as usize];
            first_use.entry(unit.name.as_str()).or_insert(at);
        }
    }
    weights.sort_by_key(|weight| first_use.get(weight.name.as_str()).copied().unwrap_or(0));
    weights
}

/// Seconds that a token takes with its weights in memory: of the run's tokens, one of
/// the fastest.
pub fn compute_seconds(sequence: &Sequence) -> Option<f64> {
    let mut seconds: Vec<f64> = generating(sequence)
        .filter(|eval| eval.tokens > 0)
        .map(|eval| {
            let nanos = eval.end_nanos.saturating_sub(eval.begin_nanos);
            nanos as f64 / 1e9 / f64::from(eval.tokens)
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 4).copied()
}

fn generating(sequence: &Sequence) -> impl Iterator<Item = &EvalInfo> {
    sequence.evals.iter().filter(|eval| eval.is_generate())
}

/// The weights that the run touched.
fn touched(sequence: &Sequence) -> Vec<Weight> {
    let mut weights: Vec<Weight> = Vec::new();
    let mut number_of: HashMap<&str, usize> = HashMap::new();
    let mut slices: Vec<u32> = Vec::new();
    let mut weight_of_unit = Vec::with_capacity(sequence.units.len());
    for unit in &sequence.units {
        let number = *number_of.entry(unit.name.as_str()).or_insert(weights.len());
        if number == weights.len() {
            weights.push(Weight {
                name: unit.name.clone(),
                bytes: 0,
                layer: unit.layer,
                usage: Use::Rows,
                // Its shape went with the file.
                row_bytes: None,
            });
            slices.push(0);
        }
        weights[number].bytes += unit.bytes;
        slices[number] += 1;
        weight_of_unit.push(number);
    }
    // Of each weight, the slices that a token uses; batches use more.
    let mut used: Vec<Option<u32>> = vec![None; weights.len()];
    for eval in generating(sequence) {
        let pieces = sequence.accesses_of(eval).iter();
        let units: BTreeSet<u32> = pieces
            .map(|&piece| sequence.pieces[piece as usize].unit)
            .collect();
        let mut count: HashMap<usize, u32> = HashMap::new();
        for unit in units {
            *count.entry(weight_of_unit[unit as usize]).or_default() += 1;
        }
        for (weight, count) in count {
            let least = used[weight].map_or(count, |least| least.min(count));
            used[weight] = Some(least);
        }
    }
    for piece in &sequence.pieces {
        let number = weight_of_unit[piece.unit as usize];
        let weight = &mut weights[number];
        let unit = &sequence.units[piece.unit as usize];
        // A few rows are looked up; views of a matrix are most of it.
        let is_read = piece.extent == Extent::Whole || piece.bytes >= unit.bytes / 2;
        if !is_read {
            continue;
        }
        let is_routed = slices[number] > 1 && gguf::Meaning::of(&weight.name).kind == Kind::Weight;
        weight.usage = match used[number] {
            // Biases of experts are small, and read by other ops.
            Some(used) if is_routed => Use::Experts {
                count: slices[number],
                used,
                slice_bytes: unit.bytes,
            },
            _ => Use::Whole,
        };
    }
    weights
}
