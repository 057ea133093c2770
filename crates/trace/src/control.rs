//! `log/control`: one mapped page by which a launcher bounds the recording of
//! the processes that it started, however many compute.
//!
//! The launcher makes it with the bounds; every recording process adds what it
//! recorded, and stops when a bound is reached. Whoever notices first says why.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::fd::AsRawFd,
    path::Path,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use crate::format::VERSION;

/// Its name in the log folder.
pub const CONTROL: &str = "control";

const MAGIC: [u8; 8] = *b"TSCOPCTL";
const PAGE_BYTES: usize = 4096;

/// How much is to be recorded; `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// From the first evaluation on.
    pub duration_nanos: Option<u64>,
    /// Of records, over all processes.
    pub log_bytes: Option<u64>,
    /// Tokens that were evaluated, prompts included.
    pub tokens: Option<u64>,
}

/// Why a recording ended before its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stop {
    Duration = 1,
    LogBytes = 2,
    Tokens = 3,
}

#[repr(C)]
struct Page {
    magic: [u8; 8],
    version: u32,
    /// 0 while recording, else a [`Stop`].
    stop: AtomicU32,
    /// 0 is none for the three.
    duration_nanos: u64,
    log_bytes: u64,
    tokens: u64,
    reserved: [u64; 3],
    // What recording processes write.
    first_nanos: AtomicU64,
    log_bytes_so_far: AtomicU64,
    tokens_so_far: AtomicU64,
    /// Processes that computed a graph.
    processes: AtomicU64,
}

/// The mapped page.
pub struct Control {
    page: *mut Page,
}

// SAFETY: all fields that change are atomics.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

impl Control {
    pub fn create(log_directory: &Path, bounds: Bounds) -> io::Result<Control> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(log_directory.join(CONTROL))?;
        let mut bytes = vec![0u8; PAGE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let bounds = [bounds.duration_nanos, bounds.log_bytes, bounds.tokens];
        for (i, bound) in bounds.into_iter().enumerate() {
            // A bound of nothing is the smallest that can be told from none.
            let bound = bound.map_or(0, |bound| bound.max(1));
            bytes[16 + i * 8..24 + i * 8].copy_from_slice(&bound.to_le_bytes());
        }
        file.write_all(&bytes)?;
        Control::map(&file)
    }

    pub fn open(log_directory: &Path) -> io::Result<Control> {
        let path = log_directory.join(CONTROL);
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < PAGE_BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let control = Control::map(&file)?;
        if control.page().magic != MAGIC || control.page().version != VERSION {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(control)
    }

    fn map(file: &File) -> io::Result<Control> {
        // SAFETY: a fresh shared mapping of a file of PAGE_BYTES bytes; the result
        // is checked.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Control { page: page.cast() })
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping lives as long as self, is page-aligned and large
        // enough; whatever bytes it holds are valid.
        unsafe { &*self.page }
    }

    /// Whether the evaluation that begins now is to be recorded.
    pub fn allows(&self, now_nanos: u64) -> bool {
        let page = self.page();
        if page.stop.load(Relaxed) != 0 {
            return false;
        }
        let first = match page.first_nanos.load(Relaxed) {
            0 => page
                .first_nanos
                .compare_exchange(0, now_nanos, Relaxed, Relaxed)
                .map_or_else(|other| other, |_| now_nanos),
            first => first,
        };
        let reached = |bound: u64, value: u64| bound != 0 && value >= bound;
        let stop = if reached(page.duration_nanos, now_nanos.saturating_sub(first)) {
            Stop::Duration
        } else if reached(page.log_bytes, page.log_bytes_so_far.load(Relaxed)) {
            Stop::LogBytes
        } else if reached(page.tokens, page.tokens_so_far.load(Relaxed)) {
            Stop::Tokens
        } else {
            return true;
        };
        let _ = page.stop.compare_exchange(0, stop as u32, Relaxed, Relaxed);
        false
    }

    /// Adds what one evaluation recorded.
    pub fn add(&self, log_bytes: u64, tokens: u64) {
        self.page().log_bytes_so_far.fetch_add(log_bytes, Relaxed);
        self.page().tokens_so_far.fetch_add(tokens, Relaxed);
    }

    pub fn add_process(&self) {
        self.page().processes.fetch_add(1, Relaxed);
    }

    pub fn processes(&self) -> u64 {
        self.page().processes.load(Relaxed)
    }

    pub fn tokens(&self) -> u64 {
        self.page().tokens_so_far.load(Relaxed)
    }

    /// Why recording ended before the program, if it did.
    pub fn stop(&self) -> Option<Stop> {
        let reasons = [Stop::Duration, Stop::LogBytes, Stop::Tokens];
        let number = self.page().stop.load(Relaxed);
        reasons.into_iter().find(|&reason| reason as u32 == number)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no reference outlives self.
        unsafe { libc::munmap(self.page.cast(), PAGE_BYTES) };
    }
}
