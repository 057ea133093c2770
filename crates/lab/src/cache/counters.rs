//! The processor's own counters of cache misses, where it has them and the kernel allows
//! them to be read.

use std::{fs::File, io::Read as _, os::fd::FromRawFd as _};

/// Reads that the first level missed, of this thread, outside of the kernel.
pub struct Misses(File);

/// From linux/perf_event.h: the first fields of `perf_event_attr`, which newer ones follow.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample: [u64; 3],
    flags: u64,
    rest: [u64; 2],
}

/// `PERF_TYPE_HW_CACHE`: first level of data, reads, misses.
const KIND: u32 = 3;
const CONFIG: u64 = 1 << 16;

/// `exclude_kernel` and `exclude_hv`.
const FLAGS: u64 = 1 << 5 | 1 << 6;

impl Misses {
    /// Counts from now on; an error says why it cannot.
    pub fn count() -> Result<Misses, std::io::Error> {
        let attributes = Attributes {
            kind: KIND,
            size: size_of::<Attributes>() as u32,
            config: CONFIG,
            flags: FLAGS,
            ..Attributes::default()
        };
        // SAFETY: a struct of the size that it says; this thread, on any processor, no group.
        let file = unsafe { libc::syscall(libc::SYS_perf_event_open, &attributes, 0, -1, -1, 0) };
        if file < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just opened, and nobody else's.
        Ok(Misses(unsafe { File::from_raw_fd(file as i32) }))
    }

    pub fn so_far(&mut self) -> Result<u64, std::io::Error> {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}
