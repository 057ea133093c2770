//! The memory into which the kernel writes the records of one cpu.
//!
//! 1. The kernel writes a record and then moves `head`.
//! 2. We read `head` (acquire), then the records up to it.
//! 3. We move `tail` (release): the kernel may overwrite what is before it.
//!
//! A full ring loses the new records, never old ones, and the kernel says how many
//! with a LOST record.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Event;

/// Places in the first page, from `struct perf_event_mmap_page`.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

const HEADER_BYTES: usize = 8;

/// A record: what, and its bytes behind the header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub kind: u32,
    pub misc: u16,
    pub body: &'a [u8],
}

/// The memory of one event, shared with those that send to it.
#[derive(Debug)]
pub(crate) struct Ring {
    start: NonNull<u8>,
    page_bytes: usize,
    data_bytes: usize,
    /// A record that lies around the end of the ring, put together.
    whole: Vec<u8>,
}

// SAFETY: the mapping is used by one thread at a time; the kernel is the other side
// of the protocol above.
unsafe impl Send for Ring {}

impl Ring {
    /// `data_bytes` must be a power of two times the page size.
    pub fn map(event: &Event, data_bytes: usize) -> io::Result<Ring> {
        let page_bytes =
            usize::try_from(crate::residency::page_bytes()).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no
        // other memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page_bytes + data_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.descriptor(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Ring {
            start,
            page_bytes,
            data_bytes,
            whole: Vec::new(),
        })
    }

    /// Hands out every record that is there, and gives the room back.
    pub fn drain(&mut self, mut take: impl FnMut(Record<'_>)) {
        let head = self.number(HEAD).load(Ordering::Acquire);
        let mut tail = self.number(TAIL).load(Ordering::Relaxed);
        while tail < head {
            let mut header = [0; HEADER_BYTES];
            self.copy(tail, &mut header);
            let [k0, k1, k2, k3, m0, m1, s0, s1] = header;
            let bytes = usize::from(u16::from_ne_bytes([s0, s1]));
            if bytes < HEADER_BYTES || bytes as u64 > head - tail {
                // The kernel does not write this; without a length there is no next
                // record, so the rest is given up.
                tail = head;
                break;
            }
            let at = self.place(tail) + HEADER_BYTES;
            let body_bytes = bytes - HEADER_BYTES;
            let (kind, misc) = (
                u32::from_ne_bytes([k0, k1, k2, k3]),
                u16::from_ne_bytes([m0, m1]),
            );
            if at + body_bytes <= self.data_bytes {
                // SAFETY: the range is inside the data pages, and the kernel does
                // not write to it before `tail` has moved past it.
                let body = unsafe { std::slice::from_raw_parts(self.data().add(at), body_bytes) };
                take(Record { kind, misc, body });
            } else {
                let mut whole = std::mem::take(&mut self.whole);
                whole.resize(body_bytes, 0);
                self.copy(tail + HEADER_BYTES as u64, &mut whole);
                take(Record {
                    kind,
                    misc,
                    body: &whole,
                });
                self.whole = whole;
            }
            tail += bytes as u64;
        }
        self.number(TAIL).store(tail, Ordering::Release);
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        // SAFETY: both places are inside the first page and multiples of 8, and are
        // only accessed as atomics on this side.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    fn data(&self) -> *const u8 {
        // SAFETY: the mapping is one page and the data behind it.
        unsafe { self.start.as_ptr().add(self.page_bytes) }
    }

    fn place(&self, position: u64) -> usize {
        // The ring is smaller than the address space, so the rest fits.
        (position % self.data_bytes as u64) as usize
    }

    /// Bytes of records that are there, from a position on, around the end.
    fn copy(&self, position: u64, to: &mut [u8]) {
        let at = self.place(position);
        let first = to.len().min(self.data_bytes - at);
        let (before, after) = to.split_at_mut(first);
        // SAFETY: both ranges are inside the data pages, for a record is at most
        // 64 KiB minus a header and never larger than the ring; `to` is our own.
        unsafe {
            std::ptr::copy_nonoverlapping(self.data().add(at), before.as_mut_ptr(), before.len());
            std::ptr::copy_nonoverlapping(self.data(), after.as_mut_ptr(), after.len());
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `mmap` returned this start for this length, and nothing borrows
        // from the mapping.
        unsafe {
            libc::munmap(
                self.start.as_ptr().cast(),
                self.page_bytes + self.data_bytes,
            )
        };
    }
}

/// Numbers of a record, one behind the other; zeros when it ends too early, which
/// the kernel's records do not.
pub(crate) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn u32(&mut self) -> u32 {
        self.take(4)
            .try_into()
            .map_or(0, |bytes: [u8; 4]| u32::from_ne_bytes(bytes))
    }

    pub fn u64(&mut self) -> u64 {
        self.take(8)
            .try_into()
            .map_or(0, |bytes: [u8; 8]| u64::from_ne_bytes(bytes))
    }

    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
