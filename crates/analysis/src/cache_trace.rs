//! A sequence as a cache sees it: items of known size, and a use of one at a time.
//!
//! - At *unit* granularity an item is a weight tensor or an expert's slice; rows
//!   of an embedding that is never read whole are items of their own. Reading a
//!   part of a unit that is also read whole (the rows of a tied embedding) is a
//!   [`Use::Probe`]: it hits if the unit is there, reads its own bytes past the
//!   cache if not, and changes nothing in the cache. A policy that fetched half a
//!   gigabyte for one row would be nobody's.
//! - At *page* granularity an item is an *atom*: a maximal run of pages that every
//!   access touches wholly or not at all. Atoms are read in ascending order, so
//!   the pages of one behave alike in every policy here, and pages never have to
//!   be enumerated. Weights that lie in no file get addresses of their own.

use std::{borrow::Cow, collections::HashMap, ops::Range};

pub use plan::cache_trace::{
    CacheTrace, Count, Counts, Granularity, PAGE_BYTES, Reference, Scope, Use,
};

use crate::{
    error::AnalysisError,
    sequence::{Extent, MAX_ACCESSES, Piece, Sequence},
};

/// Tensors, expert slices and embedding rows. Copies no access.
pub fn units(sequence: &Sequence) -> CacheTrace<'_> {
    let mut item_of_unit: Vec<Option<u32>> = vec![None; sequence.units.len()];
    let mut item_bytes = Vec::new();
    for piece in sequence.pieces.iter().filter(|p| p.extent == Extent::Whole) {
        let item = &mut item_of_unit[piece.unit as usize];
        if item.is_none() {
            *item = Some(item_bytes.len() as u32);
            item_bytes.push(piece.bytes);
        }
    }
    let references = sequence.pieces.iter().map(|piece| {
        let (item, kind) = match (item_of_unit[piece.unit as usize], piece.extent) {
            (Some(item), Extent::Whole) => (item, Use::Whole),
            (Some(item), Extent::Part) => (item, Use::Probe),
            (None, _) => {
                item_bytes.push(piece.bytes);
                (item_bytes.len() as u32 - 1, Use::Whole)
            }
        };
        Reference {
            item,
            kind,
            bytes: piece.bytes,
            touches: 1,
        }
    });
    CacheTrace {
        granularity: Granularity::Unit,
        references: references.collect(),
        item_bytes,
        accesses: Cow::Borrowed(&sequence.accesses),
        generate: generating(sequence),
    }
}

/// Pages of the model's files.
pub fn pages(sequence: &Sequence) -> Result<CacheTrace<'static>, AnalysisError> {
    let extents = page_extents(sequence);
    let mut bounds: Vec<u64> = Vec::new();
    for &(first, end) in extents.iter().flatten() {
        bounds.push(first);
        bounds.push(end);
    }
    bounds.sort_unstable();
    bounds.dedup();
    // Atoms are numbered when a piece first covers them: gaps between tensors
    // never are.
    let mut atom_at: Vec<Option<u32>> = vec![None; bounds.len()];
    let mut item_bytes: Vec<u64> = Vec::new();
    let mut atoms: Vec<u32> = Vec::new();
    let mut atoms_of: Vec<Range<usize>> = Vec::with_capacity(extents.len());
    for extent in &extents {
        let start = atoms.len();
        for &(first, end) in extent {
            let mut at = bounds.partition_point(|&bound| bound < first);
            while bounds[at] < end {
                let atom = *atom_at[at].get_or_insert_with(|| {
                    item_bytes.push((bounds[at + 1] - bounds[at]) * PAGE_BYTES);
                    item_bytes.len() as u32 - 1
                });
                atoms.push(atom);
                at += 1;
            }
        }
        atoms_of.push(start..atoms.len());
    }
    let mut total = 0u64;
    for &piece in &sequence.accesses {
        total += atoms_of[piece as usize].len() as u64;
    }
    if total > MAX_ACCESSES {
        return Err(AnalysisError::TooManyAccesses { most: MAX_ACCESSES });
    }
    let mut accesses = Vec::with_capacity(total as usize);
    let mut generate: Vec<Range<usize>> = Vec::new();
    for eval in &sequence.evals {
        let first = accesses.len();
        for &piece in sequence.accesses_of(eval) {
            accesses.extend_from_slice(&atoms[atoms_of[piece as usize].clone()]);
        }
        if eval.is_generate() {
            append(&mut generate, first..accesses.len());
        }
    }
    let references = item_bytes.iter().enumerate();
    let references = references.map(|(item, &bytes)| Reference {
        item: item as u32,
        kind: Use::Whole,
        bytes,
        touches: bytes / PAGE_BYTES,
    });
    Ok(CacheTrace {
        granularity: Granularity::Page,
        references: references.collect(),
        item_bytes,
        accesses: Cow::Owned(accesses),
        generate,
    })
}

fn generating(sequence: &Sequence) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    for eval in sequence.evals.iter().filter(|eval| eval.is_generate()) {
        append(&mut ranges, eval.range());
    }
    ranges
}

/// Appends a stretch, joined to the one before where they touch.
fn append(ranges: &mut Vec<Range<usize>>, range: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// Of each piece the pages it touches, ascending and disjoint, in one address
/// space for all files.
fn page_extents(sequence: &Sequence) -> Vec<Vec<(u64, u64)>> {
    let mut file_pages: HashMap<u32, u64> = HashMap::new();
    let mut unplaced_pages = 0;
    for unit in &sequence.units {
        match (unit.file, unit.file_offset) {
            (Some(file), Some(offset)) => {
                let pages = file_pages.entry(file).or_default();
                *pages = (*pages).max((offset + unit.bytes).div_ceil(PAGE_BYTES));
            }
            _ => unplaced_pages += unit.bytes.div_ceil(PAGE_BYTES),
        }
    }
    let mut files: Vec<u32> = file_pages.keys().copied().collect();
    files.sort_unstable();
    let mut next = unplaced_pages;
    let mut file_base: HashMap<u32, u64> = HashMap::new();
    for file in files {
        file_base.insert(file, next);
        next += file_pages[&file];
    }
    let mut unplaced = 0;
    let mut first_byte = Vec::with_capacity(sequence.units.len());
    for unit in &sequence.units {
        first_byte.push(match (unit.file, unit.file_offset) {
            (Some(file), Some(offset)) => file_base[&file] * PAGE_BYTES + offset,
            _ => {
                let at = unplaced * PAGE_BYTES;
                unplaced += unit.bytes.div_ceil(PAGE_BYTES);
                at
            }
        });
    }
    let extent = |piece: &Piece| {
        let mut pages: Vec<(u64, u64)> = Vec::new();
        for run in sequence.runs_of(piece) {
            let start = first_byte[piece.unit as usize] + run.offset;
            let (first, end) = (start / PAGE_BYTES, (start + run.bytes).div_ceil(PAGE_BYTES));
            match pages.last_mut() {
                Some(last) if first <= last.1 => last.1 = last.1.max(end),
                _ => pages.push((first, end)),
            }
        }
        pages
    };
    sequence.pieces.iter().map(extent).collect()
}
