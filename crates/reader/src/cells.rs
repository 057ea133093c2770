//! Which cells of a KV cache on a device have been written, so that an attention that is given
//! a view of more cells than are in use can be held to those.
//!
//! llama.cpp hands attention a view whose cells are a multiple of 256. A cell is in use from the
//! first write of it that the log has: a row that an evaluation sets, or bytes that the host
//! copies there (a state that is restored). It stays in use: nobody tells when a sequence is
//! removed or a cache is cleared. So what is said here is at least what lives in the view, and
//! never more than the view.
//!
//! A context's cache often lies where that of one before it was freed, and counts as the same
//! tensor. A context that is new to it and writes from the first cell on begins anew; one that
//! goes on behind cells in use is the same one to llama.cpp, with a new scheduler.
//!
//! Where a write may have been missed nothing is said: after evaluations that were lost, of a
//! cache whose cells do not lie one behind the other (V without flash attention), where cells
//! went from one place on a device to another, in a log of several streams that change what is
//! on a device, which are read one after the other, and where cells in use have an unused one
//! before them: llama.cpp gives cells out from the first one on, so somebody has written that
//! one.

use std::collections::HashMap;

use trace::{
    device::{Copy, Way},
    read::Evaluation,
    region::Strided,
    template::{Direction, TensorKind},
};

use crate::{
    prepared::{Prepared, PreparedAccess},
    tensors::Tensor,
};

/// A larger cache is damage.
const MAX_CELLS: u64 = 1 << 24;

/// Of one stream.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    /// By place of the tensor.
    caches: HashMap<u32, Cache>,
    /// Of the evaluation that was taken in last.
    context: u64,
    /// Number of the next evaluation, if none is lost.
    next: u64,
    /// From here on writes may have been missed.
    is_incomplete: bool,
    /// Other streams may write the same cells.
    pub is_shared: bool,
}

/// A tensor.
#[derive(Debug)]
struct Cache {
    /// The newest that has evaluated a write of it. Numbers of contexts ascend.
    context: Option<u64>,
    /// `None` if nothing is known any more.
    written: Option<Written>,
}

/// Of one tensor: a bit for each cell.
#[derive(Debug)]
struct Written {
    cell_bytes: u64,
    /// Each stream of the cache (a sequence with cells of its own) has so many.
    stream_cells: u64,
    bits: Vec<u64>,
}

impl Cells {
    /// Takes in what an evaluation writes, before anything is said about what it reads: an
    /// attention follows the writes of its own cells.
    pub fn evaluation(&mut self, of: &Evaluation, prepared: &Prepared, tensors: &[Tensor]) {
        self.is_incomplete |= of.number != self.next;
        self.next = of.number.saturating_add(1);
        self.context = of.context;
        for &at in &prepared.kv {
            let access = &prepared.accesses[at];
            if access.direction == Direction::Write
                && of.was_executed(access.step)
                && !prepared.is_in_place(at)
            {
                let tensor = &tensors[access.tensor as usize];
                let cache = self.cache(access.tensor, tensor);
                cache.write(of.context, tensor, |written| written.access(of, access));
            }
        }
    }

    /// Bytes that were copied to tensor `at`, or from it.
    pub fn copy(&mut self, copy: &Copy, at: u32, tensor: &Tensor) {
        if tensor.kind != TensorKind::KvCache {
            return;
        }
        match copy.way {
            Way::DeviceToHost => {}
            // The log names where they came from.
            Way::DeviceToDevice => self.is_incomplete = true,
            Way::HostToDevice => {
                let region = Strided::range(copy.tensor_offset, copy.bytes);
                // Whose they are is told by who computes with them.
                let cache = self.cache(at, tensor);
                cache.mark(|written| written.region(&region));
            }
        }
    }

    /// Bytes of the cells in a view that are in use; `None` where that is not known.
    pub fn used_bytes(&self, access: &PreparedAccess) -> Option<u64> {
        if self.is_incomplete || self.is_shared || access.index.is_some() {
            return None;
        }
        let cache = self.caches.get(&access.tensor)?;
        let is_theirs = cache.context.is_none_or(|of| of == self.context);
        let written = cache.written.as_ref().filter(|_| is_theirs)?;
        let (mut used, mut is_whole) = (0u64, true);
        let each = for_each_range(
            &access.unit,
            written.cell_bytes,
            |first, count| match written.in_use(first, count) {
                Some(cells) => used += cells,
                None => is_whole = false,
            },
        )?;
        // A damaged view may name a cell twice.
        is_whole.then_some(used.saturating_mul(each).min(access.bytes))
    }

    fn cache(&mut self, at: u32, tensor: &Tensor) -> &mut Cache {
        self.caches.entry(at).or_insert_with(|| Cache {
            context: None,
            written: Written::new(tensor),
        })
    }
}

impl Cache {
    /// An evaluation of a context writes.
    fn write(&mut self, context: u64, tensor: &Tensor, mark: impl Fn(&mut Written) -> Option<()>) {
        let before = self.context.unwrap_or(context);
        self.context = Some(before.max(context));
        if context < before {
            // Both are there, and their caches cannot be told apart.
            self.written = None;
        } else if context > before {
            let mut anew = Written::new(tensor);
            let is_marked = anew.as_mut().and_then(&mark).is_some();
            if !is_marked || anew.as_ref().is_some_and(Written::is_from_the_first_cell) {
                self.written = anew.filter(|_| is_marked);
                return;
            }
        }
        self.mark(mark);
    }

    fn mark(&mut self, mark: impl Fn(&mut Written) -> Option<()>) {
        if self.written.as_mut().and_then(mark).is_none() {
            self.written = None;
        }
    }
}

impl Written {
    fn new(tensor: &Tensor) -> Option<Written> {
        let [_, rows @ ..] = tensor.ne;
        let [stream_cells, ..] = rows;
        let cells = rows.iter().try_fold(1u64, |n, &more| n.checked_mul(more))?;
        let cell_bytes = tensor.size_bytes.checked_div(cells)?;
        (cells <= MAX_CELLS && cell_bytes > 0).then_some(Written {
            cell_bytes,
            stream_cells,
            bits: Vec::new(),
        })
    }

    /// `None` if it is not known which cells it writes.
    fn access(&mut self, of: &Evaluation, access: &PreparedAccess) -> Option<()> {
        let Some(index) = &access.index else {
            return self.region(&access.unit);
        };
        let is_known = index.elements == 0 || !index.values(of).is_empty();
        let is_cell = access.unit.dims.is_empty() && access.unit.run_bytes == self.cell_bytes;
        // Small cells that follow each other are one access, and each has its value all the same.
        let is_listed = index.is_plain || index.is_merged && index.indexed.count[1..] == [1, 1];
        if !is_known || !is_listed || !is_cell || index.indexed.stride != self.cell_bytes {
            return None;
        }
        let first = self.cell_at(access.unit.offset)?;
        let mut is_right = true;
        index.for_each_value(of, &mut Vec::new(), |value| {
            is_right &= self.set(first.saturating_add(value), 1).is_some();
        });
        is_right.then_some(())
    }

    fn region(&mut self, region: &Strided) -> Option<()> {
        let mut ranges = Vec::new();
        let each = for_each_range(region, self.cell_bytes, |first, count| {
            ranges.push((first, count));
        })?;
        // A part of a cell.
        if each != self.cell_bytes {
            return None;
        }
        ranges
            .into_iter()
            .try_for_each(|(first, count)| self.set(first, count))
    }

    fn cell_at(&self, offset: u64) -> Option<u64> {
        let is_begin = offset.is_multiple_of(self.cell_bytes);
        is_begin.then_some(offset / self.cell_bytes)
    }

    fn set(&mut self, first: u64, count: u64) -> Option<()> {
        let end = first.checked_add(count).filter(|&end| end <= MAX_CELLS)?;
        let words = end.div_ceil(64) as usize;
        if self.bits.len() < words {
            self.bits.resize(words, 0);
        }
        for_each_word(first, end, |word, mask| self.bits[word] |= mask);
        Some(())
    }

    /// Of a range of cells; `None` if one in use has an unused one before it in its stream.
    fn in_use(&self, first: u64, count: u64) -> Option<u64> {
        let (mut at, end) = (first, first.saturating_add(count));
        let mut all = 0;
        while at < end {
            let next = (at / self.stream_cells + 1).saturating_mul(self.stream_cells);
            let cells = self.count(at, next.min(end) - at);
            if self.count(at, cells) != cells {
                return None;
            }
            all += cells;
            at = next;
        }
        Some(all)
    }

    fn is_from_the_first_cell(&self) -> bool {
        self.in_use(0, self.bits.len() as u64 * 64).is_some()
    }

    fn count(&self, first: u64, count: u64) -> u64 {
        let end = first.saturating_add(count).min(self.bits.len() as u64 * 64);
        let mut cells = 0;
        for_each_word(first, end, |word, mask| {
            cells += u64::from((self.bits[word] & mask).count_ones());
        });
        cells
    }
}

/// The words of 64 bits in which bits `first..end` are, each with a mask of them.
fn for_each_word(first: u64, end: u64, mut f: impl FnMut(usize, u64)) {
    let mut at = first;
    while at < end {
        let bits = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - bits)) << (at % 64);
        f((at / 64) as usize, mask);
        at += bits;
    }
}

/// Calls `f(first, count)` for each range of cells that a region touches; the bytes of each
/// cell that it touches. `None` for one that does not go by cells.
fn for_each_range(region: &Strided, cell_bytes: u64, mut f: impl FnMut(u64, u64)) -> Option<u64> {
    let inside = region.dims.iter().take_while(|&&(_, n)| n < cell_bytes);
    let inside = inside.count();
    let (inside, outside) = region.dims.split_at(inside);
    let begin = region.offset % cell_bytes;
    let (mut cells, mut bytes, mut end) = (1, region.run_bytes, begin);
    if inside.is_empty() && begin == 0 && region.run_bytes.is_multiple_of(cell_bytes) {
        // Whole cells, one behind the other.
        (cells, bytes) = (region.run_bytes / cell_bytes, cell_bytes);
    } else {
        end = end.checked_add(region.run_bytes)?;
        for &(count, stride) in inside {
            bytes = bytes.checked_mul(count)?;
            end = end.checked_add(stride.checked_mul(count.checked_sub(1)?)?)?;
        }
    }
    let goes_by_cells = |&(_, stride): &(u64, u64)| stride.is_multiple_of(cell_bytes);
    if region.run_bytes == 0 || end > cell_bytes || !outside.iter().all(goes_by_cells) {
        return None;
    }
    let mut outside = outside;
    // Parts of cells that follow each other.
    if let [(count, stride), rest @ ..] = outside
        && (cells, *stride) == (1, cell_bytes)
    {
        (cells, outside) = (*count, rest);
    }
    let ranges = outside
        .iter()
        .try_fold(1u64, |n, &(count, _)| n.checked_mul(count));
    if ranges.is_none_or(|ranges| ranges.saturating_mul(cells) > MAX_CELLS) {
        return None;
    }
    let first = region.offset / cell_bytes;
    walk(outside, cell_bytes, first, &mut |first| f(first, cells));
    Some(bytes)
}

fn walk(dims: &[(u64, u64)], cell_bytes: u64, first: u64, f: &mut impl FnMut(u64)) {
    match dims.split_last() {
        None => f(first),
        Some((&(count, stride), rest)) => {
            for at in 0..count {
                walk(rest, cell_bytes, first + at * (stride / cell_bytes), f);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges, and bytes of each cell.
    fn ranges(region: Strided) -> Option<(Vec<(u64, u64)>, u64)> {
        let mut all = Vec::new();
        let each = for_each_range(&region, 100, |first, count| all.push((first, count)))?;
        Some((all, each))
    }

    #[test]
    fn views_of_a_cache_are_ranges_of_cells() {
        // All of a cell's heads, and two streams of a cache.
        assert_eq!(ranges(Strided::range(200, 300)), Some((vec![(2, 3)], 100)));
        assert_eq!(
            ranges(Strided::new(0, 300, [(2, 1000)])),
            Some((vec![(0, 3), (10, 3)], 100))
        );
        // The first 60 bytes of each cell, a head of it, every other piece of it.
        assert_eq!(
            ranges(Strided::new(0, 60, [(4, 100)])),
            Some((vec![(0, 4)], 60))
        );
        assert_eq!(
            ranges(Strided::new(120, 10, [(3, 20), (4, 100), (2, 700)])),
            Some((vec![(1, 4), (8, 4)], 30))
        );
        // One cell, a part of one.
        assert_eq!(ranges(Strided::range(100, 100)), Some((vec![(1, 1)], 100)));
        assert_eq!(ranges(Strided::range(110, 50)), Some((vec![(1, 1)], 50)));
    }

    #[test]
    fn what_does_not_go_by_cells_is_not_known() {
        for region in [
            Strided::EMPTY,
            // Across the end of a cell.
            Strided::range(50, 100),
            Strided::new(60, 10, [(4, 20)]),
            // V transposed: a cell is an element of each row.
            Strided::new(0, 20, [(5, 130)]),
            // Damage.
            Strided::new(0, 100, [(1 << 40, 200)]),
            Strided::new(0, 1, [(u64::MAX, 2)]),
        ] {
            assert_eq!(ranges(region.clone()), None, "{region:?}");
        }
    }

    #[test]
    fn cells_are_counted_as_a_naive_reader_would() {
        let mut written = Written {
            cell_bytes: 100,
            stream_cells: 1000,
            bits: Vec::new(),
        };
        let mut naive = vec![false; 1000];
        for (first, count) in [(0, 1), (63, 2), (128, 64), (200, 300), (5, 1), (5, 1)] {
            assert!(written.set(first, count).is_some());
            naive[first as usize..(first + count) as usize].fill(true);
        }
        for first in (0..1000).step_by(7) {
            for count in [0, 1, 63, 64, 65, 300] {
                let end = (first + count).min(1000);
                let expected = naive[first..end].iter().filter(|is| **is).count() as u64;
                assert_eq!(written.count(first as u64, count as u64), expected);
            }
        }
        assert_eq!(written.set(MAX_CELLS, 1), None);
    }

    #[test]
    fn each_stream_of_a_cache_is_filled_from_its_first_cell() {
        let mut written = Written {
            cell_bytes: 100,
            stream_cells: 256,
            bits: Vec::new(),
        };
        written.set(0, 3).unwrap();
        written.set(256, 20).unwrap();
        // Both streams in one range, each alone, and parts of them.
        assert_eq!(written.in_use(0, 512), Some(23));
        assert_eq!(written.in_use(0, 256), Some(3));
        assert_eq!(written.in_use(256, 10), Some(10));
        assert_eq!(written.in_use(512, 256), Some(0));
        written.set(300, 1).unwrap();
        assert_eq!(written.in_use(0, 256), Some(3));
        assert_eq!(written.in_use(0, 512), None, "cells 276 to 299");
    }
}
