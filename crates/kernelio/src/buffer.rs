//! Memory at an address that is a multiple of what direct reads ask for.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::error::CeilingError;

/// The size of a huge page on the usual machines. Aligned to it, a buffer can be
/// made of huge pages, and pinning it for a direct read costs a third.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes that were written to once, so that each page is there and is its own:
/// anonymous memory that was only read is one shared page of zeros.
pub(crate) struct AlignedBuffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the buffer owns its memory alone, as `Box<[u8]>` does.
unsafe impl Send for AlignedBuffer {}

impl AlignedBuffer {
    pub fn new(
        what: &'static str,
        bytes: usize,
        alignment_bytes: usize,
    ) -> Result<AlignedBuffer, CeilingError> {
        let refused = || CeilingError::Memory {
            what,
            wanted_bytes: bytes as u64,
        };
        let alignment_bytes = alignment_bytes.max(HUGE_PAGE_BYTES);
        let layout = Layout::from_size_align(bytes, alignment_bytes).map_err(|_| refused())?;
        if bytes == 0 {
            return Err(refused());
        }
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or_else(refused)?;
        // SAFETY: advice for memory that is ours and starts at a page; the part of
        // the last page behind `bytes` belongs to the allocator and only gets other
        // page sizes. Refusal costs speed, nothing else.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        // SAFETY: `start` is valid for writes of `bytes` bytes.
        unsafe { start.write_bytes(0x5a, bytes) };
        Ok(AlignedBuffer { start, layout })
    }

    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Where the kernel may write `length` bytes from `at` on. Panics when they
    /// are not inside the buffer.
    pub fn place(&mut self, at: usize, length: usize) -> *mut u8 {
        assert!(
            at.checked_add(length).is_some_and(|end| end <= self.len()),
            "{length} bytes at {at} are outside of a buffer of {}",
            self.len()
        );
        // SAFETY: `at` is at most the length, so the result is inside the
        // allocation or one past its end.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// The buffer as words; a rest of less than a word is left out.
    pub fn words(&self) -> &[u64] {
        // SAFETY: every byte was written in `new`, the start is aligned to more
        // than a word, and `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len() / 8) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: `alloc` returned this address for this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_aligned_and_pages_are_written() {
        for alignment in [1, 512, 4096, 4 << 20] {
            let mut buffer = AlignedBuffer::new("a test", 12_289, alignment).unwrap();
            assert_eq!(buffer.place(0, 12_289) as usize % alignment, 0);
            assert_eq!(buffer.words().len(), 1536);
            assert!(buffer.words().iter().all(|w| *w == 0x5a5a_5a5a_5a5a_5a5a));
        }
    }

    #[test]
    fn impossible_sizes_are_errors() {
        for bytes in [0, usize::MAX, isize::MAX as usize - (4 << 20)] {
            assert!(
                AlignedBuffer::new("a test", bytes, 4096).is_err(),
                "{bytes}"
            );
        }
    }

    #[test]
    #[should_panic(expected = "outside of a buffer")]
    fn the_kernel_is_never_given_a_place_outside() {
        AlignedBuffer::new("a test", 4096, 4096)
            .unwrap()
            .place(4000, 97);
    }
}
