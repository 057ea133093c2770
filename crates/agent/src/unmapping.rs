//! `mmap`, `munmap` and `posix_madvise` of a program that is fed: its model's file is
//! not read while it is loaded, and when the mapping goes, the model is gone.
//!
//! These are called before our constructor, by other libraries' constructors and by
//! allocators: nothing but the system calls, and a look at two atomics. In a program
//! that is not fed they are what they are in libc.

use std::{
    ffi::{c_int, c_void},
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
};

static IS_FED: AtomicBool = AtomicBool::new(false);
static IS_GONE: AtomicBool = AtomicBool::new(false);
/// Where the weights that are fed are mapped. Never freed: somebody may look.
static WATCHED: AtomicPtr<Vec<(usize, usize)>> = AtomicPtr::new(std::ptr::null_mut());

/// From now on files are mapped without being read.
pub fn feeds() {
    IS_FED.store(true, Ordering::Relaxed);
}

/// Notices when one of these ranges is unmapped.
pub fn watch(ranges: Vec<(usize, usize)>) {
    IS_GONE.store(false, Ordering::Relaxed);
    let ranges = match ranges.is_empty() {
        true => std::ptr::null_mut(),
        false => Box::into_raw(Box::new(ranges)),
    };
    WATCHED.store(ranges, Ordering::Release);
}

pub fn is_watching() -> bool {
    !WATCHED.load(Ordering::Acquire).is_null()
}

/// Whether a watched range was unmapped since the last call.
pub fn take_gone() -> bool {
    IS_GONE.swap(false, Ordering::Relaxed)
}

/// `mmap` of libc, without reading a file ahead.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let reads = IS_FED.load(Ordering::Relaxed) && flags & libc::MAP_POPULATE != 0;
    let flags = match reads && file >= 0 && flags & libc::MAP_ANONYMOUS == 0 && is_regular(file) {
        true => flags & !libc::MAP_POPULATE,
        false => flags,
    };
    // SAFETY: the call that was made; the result and `errno` are as libc's.
    unsafe {
        libc::syscall(
            libc::SYS_mmap,
            address,
            length,
            libc::c_long::from(protection),
            libc::c_long::from(flags),
            libc::c_long::from(file),
            offset,
        ) as *mut c_void
    }
}

/// The same: offsets have 64 bits.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the call that was made.
    unsafe { mmap(address, length, protection, flags, file, offset) }
}

/// `munmap` of libc, which tells when a model goes.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, length: usize) -> c_int {
    // SAFETY: never freed.
    if let Some(watched) = unsafe { WATCHED.load(Ordering::Acquire).as_ref() } {
        let (start, end) = (address as usize, (address as usize).saturating_add(length));
        if watched.iter().any(|range| range.0 < end && start < range.1) {
            IS_GONE.store(true, Ordering::Relaxed);
        }
    }
    // SAFETY: the call that was made.
    unsafe { libc::syscall(libc::SYS_munmap, address, length) as c_int }
}

/// `posix_madvise` of libc, but a file that is fed is not read ahead.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(
    address: *mut c_void,
    length: usize,
    advice: c_int,
) -> c_int {
    let is_for_nothing = IS_FED.load(Ordering::Relaxed) && advice == libc::POSIX_MADV_WILLNEED;
    // As in libc: giving up memory would lose what was written.
    if is_for_nothing || advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: the call that was made; `errno` is this thread's, and stays as it was.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let result = libc::syscall(
            libc::SYS_madvise,
            address,
            length,
            libc::c_long::from(advice),
        );
        let error = *errno;
        *errno = before;
        match result {
            0 => 0,
            _ => error,
        }
    }
}

fn is_regular(file: c_int) -> bool {
    let mut about = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fills the struct, for which zero is a value.
    let about = unsafe {
        libc::fstat(file, about.as_mut_ptr());
        about.assume_init()
    };
    about.st_mode & libc::S_IFMT == libc::S_IFREG
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn results_and_errors_are_those_of_libc() {
        const PAGE: usize = 4096;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, which is unmapped again.
        unsafe {
            let place = mmap64(std::ptr::null_mut(), PAGE, protection, flags, -1, 0);
            assert_ne!(place, libc::MAP_FAILED);
            assert_eq!(posix_madvise(place, PAGE, libc::POSIX_MADV_RANDOM), 0);
            assert_eq!(posix_madvise(place, PAGE, libc::POSIX_MADV_DONTNEED), 0);
            let odd = place.wrapping_byte_add(1);
            assert_eq!(
                posix_madvise(odd, PAGE, libc::POSIX_MADV_RANDOM),
                libc::EINVAL
            );
            assert_eq!(munmap(place, PAGE), 0);
            assert_eq!(munmap(odd, PAGE), -1);
            assert_eq!(errno(), libc::EINVAL);
            let nowhere = std::ptr::null_mut();
            let failed = mmap(nowhere, PAGE, protection, libc::MAP_PRIVATE, -1, 0);
            assert_eq!((failed, errno()), (libc::MAP_FAILED, libc::EBADF));
        }
    }

    #[test]
    fn a_watched_range_that_goes_is_noticed_once() {
        const PAGE: usize = 4096;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping, of which one page after the other is unmapped.
        unsafe {
            let place = mmap(
                std::ptr::null_mut(),
                3 * PAGE,
                libc::PROT_READ,
                flags,
                -1,
                0,
            );
            let start = place as usize;
            watch(vec![(start + PAGE, start + PAGE + 100)]);
            munmap(place, PAGE);
            munmap(place.wrapping_byte_add(2 * PAGE), PAGE);
            assert!(!take_gone());
            munmap(place.wrapping_byte_add(PAGE), PAGE);
            assert!(take_gone() && !take_gone());
            watch(Vec::new());
            assert!(!is_watching());
        }
    }
}
