//! `fopen` of a program that is recorded or fed: a model that is opened by code with ggml
//! inside ([`crate::inside`]) is noticed here, because no call of ggml's would tell.

use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    panic::catch_unwind,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{feeding, hooks::export, inside, process};

export!(fopen => open, "rdx", "x2");
export!(fopen64 => open, "rdx", "x2");

type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

/// What a GGUF file begins with.
const MAGIC: &[u8; 4] = b"GGUF";

/// `fopen(path, mode)`; files have 64-bit offsets in either.
unsafe extern "C" fn open(
    path: *const c_char,
    mode: *const c_char,
    caller: usize,
) -> *mut libc::FILE {
    let real = real();
    if real == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: libc's function, with the program's arguments.
    let file = unsafe { std::mem::transmute::<usize, Fopen>(real)(path, mode) };
    if !file.is_null() && (process::is_on() || feeding::is_on()) {
        let error = errno();
        // SAFETY: an open stream, and the program's path.
        unsafe { look(file, path, caller) };
        set_errno(error);
    }
    file
}

fn real() -> usize {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    match REAL.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: a pseudo-handle and a C string.
            let real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fopen64".as_ptr()) };
            REAL.store(real as usize, Ordering::Relaxed);
            real as usize
        }
        real => real,
    }
}

unsafe fn look(file: *mut libc::FILE, path: *const c_char, caller: usize) {
    let mut begin = [0u8; MAGIC.len()];
    // Where the stream stands does not change. A pipe has no place to read at.
    // SAFETY: an open stream, and a buffer with its length.
    let read = unsafe {
        let descriptor = libc::fileno(file);
        libc::pread(
            descriptor,
            begin.as_mut_ptr().cast::<c_void>(),
            begin.len(),
            0,
        )
    };
    if read != MAGIC.len() as isize || &begin != MAGIC {
        return;
    }
    // SAFETY: the program's C string, with which the call succeeded.
    let path = unsafe { CStr::from_ptr(path) };
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    if catch_unwind(|| inside::opened(path, caller)).is_err() {
        process::refuse("an error in the recorder itself, in looking for ggml in the program");
    }
}

fn errno() -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() }
}

fn set_errno(error: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
}
