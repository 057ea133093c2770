//! Memory for packed copies: it begins at a cache line, and lies in large pages where the
//! system gives them.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

/// A large page. Rooms are multiples of it.
const ALIGNMENT: usize = 2 << 20;

/// Room for numbers, which are any at first; it grows, but what was in it is lost then.
#[derive(Debug)]
pub struct Room {
    begin: *mut f32,
    bytes: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            begin: std::ptr::null_mut(),
            bytes: 0,
        }
    }
}

impl Room {
    /// Where so many numbers have room.
    pub fn at_least(&mut self, numbers: usize) -> *mut f32 {
        let bytes = (numbers * size_of::<f32>()).max(1);
        if bytes > self.bytes {
            self.free();
            let layout = layout(bytes);
            // SAFETY: the layout has a size.
            self.begin = unsafe { alloc(layout) }.cast();
            if self.begin.is_null() {
                handle_alloc_error(layout);
            }
            // SAFETY: whole pages that were just allocated. It is a wish: an error says that
            // there are no large pages, and small ones do as well.
            unsafe { libc::madvise(self.begin.cast(), layout.size(), libc::MADV_HUGEPAGE) };
            self.bytes = bytes;
        }
        self.begin
    }

    fn free(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated above with the same layout.
            unsafe { dealloc(self.begin.cast(), layout(self.bytes)) };
            self.bytes = 0;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.free();
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.next_multiple_of(ALIGNMENT), ALIGNMENT)
        .expect("a size that fits memory")
}
