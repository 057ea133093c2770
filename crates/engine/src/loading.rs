//! How a model's file is mapped.
//!
//! llama.cpp maps with `MAP_POPULATE`: the whole file is read before the first token,
//! through a page cache that may not hold it. When weights are fed that is for
//! nothing, so the linker sends `mmap` and `posix_madvise` here (build.rs), and on a
//! thread that loads lazily they do not read.

use std::{
    cell::{Cell, RefCell},
    ffi::{c_int, c_void},
    io,
};

/// Whether the file is read while it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// As llama.cpp does.
    AsFound,
    /// Pages come when they are touched.
    Lazy,
}

/// A file's mapping that llama.cpp made. It lives as long as the model.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    pub(crate) fn advise(&self, advice: c_int) -> io::Result<()> {
        // SAFETY: advice about a mapping that the model keeps.
        match unsafe { libc::madvise(self.address as *mut c_void, self.bytes, advice) } {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                // llama.cpp has unmapped its header by now; the rest was advised.
                error if error.raw_os_error() == Some(libc::ENOMEM) => Ok(()),
                error => Err(error),
            },
        }
    }
}

thread_local! {
    static LOADING: Cell<Option<Loading>> = const { Cell::new(None) };
    static MAPPED: RefCell<Vec<Mapping>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, which loads a model, and answers what it mapped.
pub fn with<R>(loading: Loading, f: impl FnOnce() -> R) -> (R, Vec<Mapping>) {
    LOADING.set(Some(loading));
    let result = f();
    LOADING.set(None);
    (result, MAPPED.take())
}

unsafe extern "C" {
    fn __real_mmap(
        address: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: libc::off_t,
    ) -> *mut c_void;
    fn __real_posix_madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
}

/// What everything in this program calls instead of `mmap`.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap_mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let loading = LOADING.get().filter(|_| file >= 0);
    let flags = match loading {
        Some(Loading::Lazy) => flags & !libc::MAP_POPULATE,
        _ => flags,
    };
    // SAFETY: the call that was made, without reading ahead.
    let mapped = unsafe { __real_mmap(address, length, protection, flags, file, offset) };
    if loading.is_some() && mapped != libc::MAP_FAILED {
        let mapping = Mapping {
            address: mapped as usize,
            bytes: length,
        };
        MAPPED.with_borrow_mut(|mapped| mapped.push(mapping));
    }
    mapped
}

/// What everything in this program calls instead of `posix_madvise`.
///
/// # Safety
/// As `posix_madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap_posix_madvise(
    address: *mut c_void,
    length: usize,
    advice: c_int,
) -> c_int {
    if LOADING.get() == Some(Loading::Lazy) && advice == libc::POSIX_MADV_WILLNEED {
        return 0;
    }
    // SAFETY: the call that was made.
    unsafe { __real_posix_madvise(address, length, advice) }
}
