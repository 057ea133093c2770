//! Memory that weights are read into: anonymous, of huge pages where the kernel
//! gives them.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The size of a huge page on the usual machines.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Since Linux 5.14.
const MADV_POPULATE_WRITE: i32 = 23;

/// A stretch of memory of our own, at a huge page's boundary. Pages come when they are
/// first written to: what is planned and never read costs nothing.
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
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
    /// No more than the pages that `bytes` take: its end may lie in small ones.
    pub fn new(bytes: u64) -> io::Result<(Region, Refused)> {
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let wanted = usize::try_from(bytes).map_err(|_| too_much())?.max(1);
        let bytes = wanted
            .checked_next_multiple_of(page_bytes())
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
        // What is not ours must not become a part of a huge page.
        for (at, length) in [
            (mapped.as_ptr() as usize, padding),
            (start.as_ptr() as usize + bytes, HUGE_PAGE_BYTES - padding),
        ] {
            if length > 0 {
                // SAFETY: the two ends of the fresh mapping, which nobody has the address of.
                unsafe { libc::munmap(at as *mut c_void, length) };
            }
        }
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
        Ok((Region { start, bytes }, refused))
    }

    /// Gives the memory back to the kernel. From then on the same addresses show the file from
    /// `file_offset` on (a multiple of a page), so that whoever reads there, at whatever moment,
    /// finds what was there before if it was read from that place.
    pub fn give_back(&self, file: RawFd, file_offset: u64) -> io::Result<()> {
        let offset = libc::off_t::try_from(file_offset).map_err(io::Error::other)?;
        // SAFETY: replaces pages of ours, all at once: the kernel lets nobody see a hole. They
        // hold what the file does, which is the caller's to know; nobody writes to them.
        let mapped = unsafe {
            libc::mmap(
                self.start.as_ptr().cast(),
                self.bytes,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file,
                offset,
            )
        };
        match mapped == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }

    /// Puts the pages of `other`, of the same size, in the place of these, all at once: who
    /// reads here sees the one or the other.
    pub fn replace_with(&self, other: Region) -> io::Result<()> {
        assert_eq!(self.bytes, other.bytes, "regions of different sizes");
        // SAFETY: both are ours, do not overlap, and hold the same bytes, which is the caller's
        // to know.
        let moved = unsafe {
            libc::mremap(
                other.start.as_ptr().cast(),
                other.bytes,
                self.bytes,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                self.start.as_ptr(),
            )
        };
        if moved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Its addresses are nobody's any more.
        std::mem::forget(other);
        Ok(())
    }

    /// Of its pages, those that are there.
    pub fn resident_bytes(&self) -> u64 {
        let start = self.start.as_ptr() as usize;
        resident_bytes(start..start + self.bytes).unwrap_or(0)
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
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The size of a page.
pub fn page_bytes() -> usize {
    // SAFETY: takes and answers a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // AArch64 has kernels with pages of 64 KiB.
    usize::try_from(bytes).unwrap_or(64 << 10)
}

/// Of the pages that these addresses lie in, those that are there. `None` where some of them
/// are nobody's.
pub fn resident_bytes(addresses: Range<usize>) -> Option<u64> {
    const STEP_PAGES: usize = 16 << 10;
    let page_bytes = page_bytes();
    let start = addresses.start / page_bytes * page_bytes;
    let end = addresses.end.checked_next_multiple_of(page_bytes)?;
    let mut flags = vec![0u8; STEP_PAGES.min(end.saturating_sub(start) / page_bytes)];
    let mut pages = 0;
    for at in (start..end).step_by(STEP_PAGES * page_bytes) {
        let length = (end - at).min(STEP_PAGES * page_bytes);
        // SAFETY: looks at no memory, and writes a byte for each page.
        let result = unsafe { libc::mincore(at as *mut c_void, length, flags.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        let flags = &flags[..length / page_bytes];
        pages += flags.iter().filter(|flag| **flag & 1 == 1).count();
    }
    Some((pages * page_bytes) as u64)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

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
    fn pages_are_there_when_they_were_written_to() {
        let (region, _) = Region::new(5 << 20).unwrap();
        assert_eq!((region.len(), region.resident_bytes()), (5 << 20, 0));
        let address = region.place(0, region.len());
        // SAFETY: a byte of each megabyte of the region.
        (0..5).for_each(|at| unsafe { ((address + (at << 20)) as *mut u8).write(1) });
        let resident = region.resident_bytes();
        assert!((5 * page_bytes() as u64..=5 << 20).contains(&resident));
        assert_eq!(resident_bytes(1..2), None);
    }

    /// The same addresses show the same bytes, whatever is behind them.
    #[test]
    fn memory_is_given_back_and_comes_again_under_whoever_reads_it() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 977) as u8).collect();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let skipped = page_bytes();
        let expected = &bytes[skipped..];
        let filled = || {
            let (region, _) = Region::new(expected.len() as u64).unwrap();
            let address = region.place(0, region.len()) as *mut u8;
            // SAFETY: a region of this size.
            unsafe { std::ptr::copy(expected.as_ptr(), address, expected.len()) };
            region
        };
        let region = filled();
        let address = region.place(0, region.len()) as *const u8;
        // SAFETY: the region, which lives to the end; whatever is behind it is readable.
        let seen = || unsafe { std::slice::from_raw_parts(address, expected.len()) };
        for _ in 0..3 {
            region.give_back(file.as_raw_fd(), skipped as u64).unwrap();
            assert!(seen() == expected);
            region.replace_with(filled()).unwrap();
            assert!(seen() == expected);
        }
    }
}
