//! Pages of the model's files that nobody wants any more: llama.cpp has read them, through its
//! mapping, to copy weights to a device.
//!
//! The kernel would take them back when memory is short. Until then they push out what is read
//! through the page cache, and the mapping counts them as the program's.

use std::iter::once;
use std::ops::Range;

use crate::files::Mapping;
use crate::memory::page_bytes;
use crate::weights::Weights;

/// Between weights of the processor there are small gaps everywhere.
const MIN_GAP_BYTES: u64 = 1 << 20;

/// Drops what lies in none of the weights. Whoever reads it after all gets it from the file.
pub fn drop_pages(weights: &Weights, maps: &[Mapping]) {
    for (file, &id) in (0u32..).zip(&weights.file_ids) {
        let of_file = weights.list.iter().filter(|weight| weight.file == file);
        let ranges = of_file.map(|weight| {
            let start = weight.file_offset;
            start..start + weight.bytes
        });
        for gap in gaps(ranges.collect(), weights.files.len_bytes(file)) {
            for map in maps.iter().filter(|map| (map.device, map.inode) == id) {
                forget(map, &gap);
            }
            let (start, bytes) = (gap.start as i64, (gap.end - gap.start) as i64);
            let fd = weights.files.fd(file);
            // SAFETY: advice about a file that is open.
            unsafe { libc::posix_fadvise(fd, start, bytes, libc::POSIX_FADV_DONTNEED) };
        }
    }
}

/// Pages that are mapped are not dropped.
fn forget(map: &Mapping, gap: &Range<u64>) {
    let map_bytes = (map.end - map.start) as u64;
    let start = gap.start.max(map.file_offset);
    let end = gap.end.min(map.file_offset + map_bytes);
    if start < end {
        let address = map.start + (start - map.file_offset) as usize;
        // SAFETY: whole pages of a file's mapping, which shows the file again when it is read.
        unsafe {
            libc::madvise(
                address as *mut libc::c_void,
                (end - start) as usize,
                libc::MADV_DONTNEED,
            )
        };
    }
}

/// Whole pages of a file that are in none of the ranges, where they are many.
fn gaps(mut ranges: Vec<Range<u64>>, file_bytes: u64) -> Vec<Range<u64>> {
    let page_bytes = page_bytes() as u64;
    ranges.sort_unstable_by_key(|range| range.start);
    let mut gaps = Vec::new();
    let mut at = 0;
    for range in ranges.into_iter().chain(once(file_bytes..file_bytes)) {
        let gap = at..range.start / page_bytes * page_bytes;
        at = at.max(range.end.next_multiple_of(page_bytes));
        if gap.end.saturating_sub(gap.start) >= MIN_GAP_BYTES {
            gaps.push(gap);
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn gaps_are_whole_pages_that_no_weight_touches() {
        let page = page_bytes() as u64;
        let ranges = vec![
            9 * MIB..10 * MIB,
            2 * MIB + 1..3 * MIB,
            3 * MIB + page..4 * MIB + 1,
            // Inside of another one.
            3 * MIB + 2 * page..4 * MIB,
        ];
        let expect = [0..2 * MIB, 4 * MIB + page..9 * MIB, 10 * MIB..12 * MIB];
        assert_eq!(gaps(ranges, 12 * MIB + 7), expect);
        let all = 0..5 * MIB;
        assert_eq!(gaps(vec![all], 5 * MIB), []);
        assert_eq!(gaps(Vec::new(), MIB - 1), []);
    }
}
