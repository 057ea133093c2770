//! Memory that weights are read into: anonymous, of huge pages where the kernel
//! gives them.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use support::proc::kilobytes_of;

/// The size of a huge page on the usual machines.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Since Linux 5.14.
const MADV_POPULATE_WRITE: i32 = 23;

/// A stretch of memory of our own, at a huge page's boundary. Pages come when they are
/// first written to: what is planned and never read costs nothing.
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
    mapped: (NonNull<libc::c_void>, usize),
}

// SAFETY: the region owns its memory; who may write where is decided by the pump and
// the slots, which hand out each place once.
unsafe impl Send for Region {}
// SAFETY: as above: `&Region` only gives addresses away.
unsafe impl Sync for Region {}

/// A thread that makes pages come; ends with this.
pub struct TouchAhead {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for TouchAhead {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the kernel did not grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    pub huge_pages: bool,
    /// Kept from being swapped out.
    pub lock: bool,
}

impl Region {
    pub fn new(bytes: u64) -> io::Result<(Region, Refused)> {
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let wanted = usize::try_from(bytes).map_err(|_| too_much())?.max(1);
        let bytes = wanted
            .checked_next_multiple_of(HUGE_PAGE_BYTES)
            .ok_or_else(too_much)?;
        let length = bytes.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_much)?;
        // SAFETY: a fresh private mapping.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let mapped = match NonNull::new(mapped) {
            Some(mapped) if mapped.as_ptr() != libc::MAP_FAILED => mapped,
            _ => return Err(io::Error::last_os_error()),
        };
        let padding = (mapped.as_ptr() as usize).wrapping_neg() % HUGE_PAGE_BYTES;
        // SAFETY: `padding` is less than the huge page that was asked for in addition.
        let start = unsafe { mapped.cast::<u8>().add(padding) };
        // SAFETY: advice for memory that is ours. Refusal costs speed, nothing else.
        let huge = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        // A child has no use for it, and must not share pages that the disk writes to.
        // SAFETY: as above.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTFORK) };
        // SAFETY: memory of ours; pages are locked as they come.
        let locked = unsafe {
            libc::syscall(
                libc::SYS_mlock2,
                start.as_ptr(),
                bytes,
                libc::MLOCK_ONFAULT as libc::c_long,
            )
        };
        let refused = Refused {
            huge_pages: huge != 0,
            lock: locked != 0,
        };
        let region = Region {
            start,
            bytes,
            mapped: (mapped, length),
        };
        Ok((region, refused))
    }

    pub fn len(&self) -> u64 {
        self.bytes as u64
    }

    /// Makes the pages come from another thread, before a read has to wait for them.
    pub fn touch_ahead(&self) -> TouchAhead {
        const STEP_BYTES: usize = 32 << 20;
        let (start, bytes) = (self.start.as_ptr() as usize, self.bytes);
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let touch = move || {
            for at in (0..bytes).step_by(STEP_BYTES) {
                if seen.load(Ordering::Relaxed) {
                    return;
                }
                let length = STEP_BYTES.min(bytes - at);
                // SAFETY: pages of the region, which outlives the thread (`TouchAhead` is
                // dropped before it); what they hold is left as it is.
                let result = unsafe {
                    libc::madvise((start + at) as *mut c_void, length, MADV_POPULATE_WRITE)
                };
                if result != 0 {
                    // Before Linux 5.14, or out of memory: they come as they are used.
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new()
            .name("tensorscope-touch".into())
            .stack_size(64 << 10);
        TouchAhead {
            is_over,
            thread: builder.spawn(touch).ok(),
        }
    }

    /// Address of `bytes` bytes from `at` on. Panics when they are not inside.
    pub fn place(&self, at: u64, bytes: u64) -> usize {
        assert!(
            at.checked_add(bytes).is_some_and(|end| end <= self.len()),
            "{bytes} bytes at {at} are outside of a region of {}",
            self.bytes
        );
        self.start.as_ptr() as usize + at as usize
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; whoever was given addresses is gone (the owner of
        // regions drops them last).
        unsafe { libc::munmap(self.mapped.0.as_ptr(), self.mapped.1) };
    }
}

/// Bytes of private writable memory that this process has asked for, whether it
/// touched them yet or not: the caches and buffers of a model that is about to run.
pub fn private_bytes() -> u64 {
    status_bytes("VmData").unwrap_or(0)
}

fn status_bytes(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    kilobytes_of(&text, field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_start_at_huge_pages_and_are_writable_to_their_end() {
        for bytes in [1, 4096, HUGE_PAGE_BYTES as u64 + 1] {
            let (region, _) = Region::new(bytes).unwrap();
            let address = region.place(0, region.len());
            assert_eq!(address % HUGE_PAGE_BYTES, 0);
            let last = (address + region.len() as usize - 1) as *mut u8;
            // SAFETY: the last byte of the region.
            unsafe { last.write(7) };
        }
        assert!(Region::new(u64::MAX).is_err());
    }

    #[test]
    #[should_panic(expected = "outside of a region")]
    fn no_address_outside_is_given_away() {
        let (region, _) = Region::new(1).unwrap();
        region.place(region.len() - 1, 2);
    }

    #[test]
    fn private_memory_grows_with_what_is_asked_for() {
        let before = private_bytes();
        let (region, _) = Region::new(64 << 20).unwrap();
        assert!(private_bytes() >= before + region.len());
    }
}
