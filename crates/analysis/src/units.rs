//! Units and pieces, each once: what a cache would hold, and what parts of it are read.

use std::{collections::HashMap, mem::take};

use gguf::{Kind, names::Experts};
use reader::{Index, Tensor, choices::MAX_EXPERTS};
use trace::region::Strided;

use crate::sequence::{Extent, Piece, Run, Unit};

/// The units of a run and the pieces of them that were read, by number. The same weight in
/// two streams is the same units.
#[derive(Debug, Default)]
pub struct Units {
    pub(crate) units: Vec<Unit>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) runs: Vec<Run>,
    /// By [`Tensor::first`].
    of_tensor: HashMap<u32, TensorUnits>,
    /// Number of each piece, by unit and runs.
    known: HashMap<(u32, Vec<Run>), u32>,
}

/// The units that a weight is cut into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorUnits {
    first: u32,
    count: u64,
    unit_bytes: u64,
}

impl Units {
    pub(crate) fn runs_of(&self, piece: &Piece) -> &[Run] {
        let first = piece.first_run as usize;
        &self.runs[first..first + piece.run_count as usize]
    }

    /// File, begin and end of a piece, where it lies in a file.
    pub(crate) fn place_of(&self, piece: &Piece) -> Option<(u32, u64, u64)> {
        let unit = &self.units[piece.unit as usize];
        let (file, offset) = (unit.file?, unit.file_offset?);
        let runs = self.runs_of(piece);
        let (first, last) = (runs.first()?, runs.last()?);
        let end = offset + last.offset + last.bytes;
        Some((file, offset + first.offset, end))
    }

    /// The units of a weight, made when it is first seen; `index` is what decides which parts
    /// of it are read.
    pub(crate) fn of_tensor(&mut self, tensor: &Tensor, index: Option<&Index>) -> TensorUnits {
        if let Some(&units) = self.of_tensor.get(&tensor.first) {
            return units;
        }
        let meaning = tensor
            .meaning
            .clone()
            .unwrap_or_else(|| gguf::Meaning::of(&tensor.name));
        let count = slices(tensor, &meaning, index);
        let is_sliced = count > 1 || meaning.experts == Experts::Merged;
        let units = TensorUnits {
            first: self.units.len() as u32,
            count,
            unit_bytes: tensor.size_bytes / count,
        };
        for slice in 0..count {
            self.units.push(Unit {
                name: tensor.name.clone(),
                expert: match meaning.experts {
                    Experts::One(expert) => Some(expert),
                    _ => is_sliced.then_some(slice as u32),
                },
                layer: meaning.layer,
                component: meaning.component,
                role: meaning.role.to_string(),
                bytes: units.unit_bytes,
                file: tensor.place.map(|p| p.file),
                file_offset: (tensor.place)
                    .map(|p| p.file_offset.saturating_add(slice * units.unit_bytes)),
            });
        }
        self.of_tensor.insert(tensor.first, units);
        units
    }

    /// Appends the pieces that a region of a weight consists of.
    pub(crate) fn resolve(&mut self, of: TensorUnits, region: &Strided, out: &mut Vec<u32>) {
        let (mut slice, mut runs): (u64, Vec<Run>) = (0, Vec::new());
        let end_of_tensor = of.unit_bytes * of.count;
        region.for_each_run(|offset, bytes| {
            let mut at = offset;
            let end = offset.saturating_add(bytes).min(end_of_tensor);
            while at < end {
                let unit = at / of.unit_bytes;
                if unit != slice {
                    if !runs.is_empty() {
                        out.push(self.piece(of.first + slice as u32, take(&mut runs)));
                    }
                    slice = unit;
                }
                let until = end.min((unit + 1) * of.unit_bytes);
                let (offset, bytes) = (at - unit * of.unit_bytes, until - at);
                match runs.last_mut() {
                    Some(run) if run.offset + run.bytes == offset => run.bytes += bytes,
                    _ => runs.push(Run { offset, bytes }),
                }
                at = until;
            }
        });
        if !runs.is_empty() {
            out.push(self.piece(of.first + slice as u32, runs));
        }
    }

    fn piece(&mut self, unit: u32, runs: Vec<Run>) -> u32 {
        let (units, pieces, all) = (&self.units, &mut self.pieces, &mut self.runs);
        let known = self.known.entry((unit, runs));
        *known.or_insert_with_key(|(_, runs)| {
            let bytes = runs.iter().map(|run| run.bytes).sum();
            let is_whole = bytes == units[unit as usize].bytes;
            pieces.push(Piece {
                unit,
                extent: if is_whole {
                    Extent::Whole
                } else {
                    Extent::Part
                },
                bytes,
                first_run: all.len() as u32,
                run_count: runs.len() as u32,
            });
            all.extend_from_slice(runs);
            pieces.len() as u32 - 1
        })
    }
}

/// How many experts a weight stacks: as its name and shape say, else as what names them
/// says; 1 for any other weight.
fn slices(tensor: &Tensor, meaning: &gguf::Meaning, index: Option<&Index>) -> u64 {
    let stacked = match meaning.kind {
        Kind::Weight | Kind::Plain => tensor.ne[2],
        _ if tensor.ne[1] > 1 => tensor.ne[1],
        _ => tensor.ne[0],
    };
    if meaning.experts == Experts::Merged
        && (2..=MAX_EXPERTS).contains(&stacked)
        && tensor.size_bytes.is_multiple_of(stacked)
    {
        return stacked;
    }
    let chosen = index.filter(|index| index.router.is_some());
    let chosen = chosen.map_or((1, 0), |i| (i.indexed.bound, i.indexed.stride));
    match chosen {
        (count @ 1..=MAX_EXPERTS, bytes) if count.checked_mul(bytes) == Some(tensor.size_bytes) => {
            count
        }
        _ => 1,
    }
}
