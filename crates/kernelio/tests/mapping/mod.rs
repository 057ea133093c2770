//! A file mapped to be read, whose faults are recorded.

use std::{fs::File, os::fd::AsRawFd as _, path::Path};

/// The address of a mapping that stays.
pub fn mapped(path: &Path, bytes: u64) -> u64 {
    let file = File::open(path).unwrap();
    // SAFETY: a new mapping of a file that nobody shortens, read only.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    start as u64
}

pub fn advise(start: u64, bytes: u64, advice: libc::c_int) {
    // SAFETY: advice about a mapping of `mapped`.
    let result = unsafe { libc::madvise(start as *mut _, bytes as usize, advice) };
    assert_eq!(result, 0);
}
