//! Memory that a graph is about to write to for the first time.
//!
//! llama.cpp asks for the buffers of its largest graph when a context is made, and touches as
//! much of them as the graphs that are computed need: little for a token, more for a prompt.

use std::cell::OnceCell;
use std::ops::Range;

use ggml::{Graph, Op, OpNumbers, TickRules};
use support::proc;

use crate::memory::{HUGE_PAGE_BYTES, page_bytes, resident_bytes};
use crate::schedule::walk;
use crate::weights::step_nodes;

/// Bytes of pages that are not there yet, of the results of a graph and of `work`, where
/// its kernels put what they need meanwhile.
pub fn untouched_bytes(
    graph: Graph<'_>,
    ops: &OpNumbers,
    rules: TickRules,
    work: Range<usize>,
) -> u64 {
    let (nodes, steps) = walk(graph, ops, rules);
    // Of a cache's rows it sets only those of the batch, and the cache was cleared when it was
    // made.
    let results = step_nodes(&nodes, &steps).filter(|node| ops.op_of(*node) != Op::SET_ROWS);
    let addresses = results.map(|node| {
        let start = node.data();
        start..start.saturating_add(node.nbytes() as usize)
    });
    let mut ranges: Vec<Range<usize>> = addresses.chain([work]).collect();
    merge(&mut ranges);
    let rounding = match are_huge_pages_usual() {
        true => HUGE_PAGE_BYTES as u64,
        false => 0,
    };
    let is_memory = Writable::default();
    let missing = |range: Range<usize>| {
        let page_bytes = page_bytes();
        let start = range.start / page_bytes * page_bytes;
        let bytes = range.end.checked_next_multiple_of(page_bytes)? - start;
        // Where that cannot be asked there is no memory of this process: a card's. A card's may
        // also be addresses that are reserved and cannot be written to.
        let missing = (bytes as u64).checked_sub(resident_bytes(range)?)?;
        Some(missing).filter(|missing| *missing > 0 && is_memory.has(start))
    };
    let missing = ranges.into_iter().filter_map(missing);
    missing.map(|bytes| bytes + rounding).sum()
}

/// Addresses that this process may write to, looked up when they are first asked for.
#[derive(Default)]
struct Writable(OnceCell<Vec<Range<usize>>>);

impl Writable {
    fn has(&self, address: usize) -> bool {
        let ranges = self.0.get_or_init(|| {
            let maps = proc::own_maps().unwrap_or_default();
            let is_writable = |map: &proc::Mapping<'_>| map.protection & libc::PROT_WRITE != 0;
            proc::mappings(&maps)
                .filter(is_writable)
                .map(|map| map.start as usize..map.end as usize)
                .collect()
        });
        ranges.iter().any(|range| range.contains(&address))
    }
}

/// Sorts, drops what is empty, and joins what overlaps or lies in one page.
fn merge(ranges: &mut Vec<Range<usize>>) {
    ranges.retain(|range| range.start != 0 && range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    let page_bytes = page_bytes();
    ranges.dedup_by(|next, last| {
        let joins = next.start <= last.end.saturating_add(page_bytes);
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
}

/// Whether the kernel gives huge pages to who did not ask for them: then a byte may cost one.
fn are_huge_pages_usual() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|text| text.contains("[always]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_addresses_are_no_memory() {
        let own = vec![0u8; 1 << 20];
        let writable = Writable::default();
        assert!(writable.has(own.as_ptr() as usize));
        assert!(!writable.has(reserved_addresses_are_no_memory as *const () as usize));
        assert!(!writable.has(8));
    }

    #[test]
    fn ranges_are_joined_where_they_overlap() {
        let page = page_bytes();
        let mut ranges = vec![
            9 * page..9 * page,
            0..7,
            20 * page..21 * page,
            5 * page..6 * page,
            5 * page + 8..8 * page,
            8 * page..9 * page,
        ];
        merge(&mut ranges);
        assert_eq!(ranges, [5 * page..9 * page, 20 * page..21 * page]);
    }
}
