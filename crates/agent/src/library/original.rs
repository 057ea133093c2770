//! What a call of an exported function would have reached without us, found once for each object
//! that calls it.
//!
//! Where a function is looked for depends on the object of the caller alone. Call sites would be
//! too many: a kernel of CUDA's is launched by a stub of its own. What lies in no object (code
//! that a program has made) is remembered by its call site.

use std::{
    ffi::{CStr, c_int, c_void},
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{Scope, loaded, object_of};
use crate::inside;

/// Objects that are remembered per function. A program has one or two that call it.
const CACHED: usize = 16;

/// A range that is being filled: no address is above its begin.
const TAKEN: usize = usize::MAX;

/// Code from which calls mean the same function.
struct Callers {
    /// 0 where there is none yet; written last.
    begin: AtomicUsize,
    end: AtomicUsize,
    function: AtomicUsize,
}

/// The original of one interposed function.
pub struct Original {
    name: &'static CStr,
    callers: [Callers; CACHED],
}

impl Original {
    pub const fn new(name: &'static CStr) -> Original {
        Original {
            name,
            callers: [const {
                Callers {
                    begin: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                    function: AtomicUsize::new(0),
                }
            }; CACHED],
        }
    }

    pub const fn name(&self) -> &'static CStr {
        self.name
    }

    /// What the call that returns to `caller` is meant for; null when no library
    /// has such a function.
    #[inline]
    pub fn of(&self, caller: usize) -> *mut c_void {
        self.known(caller).unwrap_or_else(|| self.search(caller))
    }

    /// The same where it was found before.
    #[inline]
    pub fn known(&self, caller: usize) -> Option<*mut c_void> {
        for known in &self.callers {
            match known.begin.load(Ordering::Acquire) {
                0 => break,
                begin if begin <= caller && caller < known.end.load(Ordering::Relaxed) => {
                    return Some(known.function.load(Ordering::Relaxed) as *mut c_void);
                }
                _ => {}
            }
        }
        None
    }

    #[cold]
    fn search(&self, caller: usize) -> *mut c_void {
        let mut function = Scope::around(caller).find(self.name);
        if function.is_null() {
            // Of an object with ggml inside, called from elsewhere.
            let mut inside = inside::objects().map(|object| object.find(self.name));
            function = inside.find(|&place| place != 0).unwrap_or(0) as *mut c_void;
        }
        if !function.is_null() && self.remember(code_around(caller), function as usize) {
            pin(caller);
            pin(function as usize);
        }
        function
    }

    /// `false` if there is no room.
    fn remember(&self, (begin, end): (usize, usize), function: usize) -> bool {
        for known in &self.callers {
            // Taken first, so that nobody reads the rest before it is there.
            if known.begin.load(Ordering::Relaxed) == 0
                && known
                    .begin
                    .compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                known.end.store(end, Ordering::Relaxed);
                known.function.store(function, Ordering::Relaxed);
                known.begin.store(begin, Ordering::Release);
                return true;
            }
        }
        false
    }
}

/// Keeps the library of an address that we will use again from being unloaded.
fn pin(code: usize) {
    if let Some((name, _)) = object_of(code) {
        let _kept = loaded(&name);
    }
}

/// From where to where the code lies that a loaded object has around an address; the address
/// alone if it is in none.
fn code_around(address: usize) -> (usize, usize) {
    struct Search {
        address: usize,
        found: Option<(usize, usize)>,
    }
    unsafe extern "C" fn look(
        about: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the struct that the caller passed, and the loader's own, whose headers are as
        // many as it says.
        let (search, base, headers) = unsafe {
            let about = &*about;
            let headers = match about.dlpi_phdr.is_null() {
                true => &[],
                false => std::slice::from_raw_parts(about.dlpi_phdr, about.dlpi_phnum.into()),
            };
            (&mut *search.cast::<Search>(), about.dlpi_addr, headers)
        };
        let code = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0);
        for header in code {
            let begin = base.wrapping_add(header.p_vaddr) as usize;
            let end = begin.saturating_add(header.p_memsz as usize);
            if begin != 0 && (begin..end).contains(&search.address) {
                search.found = Some((begin, end));
            }
        }
        c_int::from(search.found.is_some())
    }
    let mut search = Search {
        address,
        found: None,
    };
    // SAFETY: `look` gets the struct and does not keep it.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found.unwrap_or((address, address.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(original: &Original) -> usize {
        let begins = original
            .callers
            .iter()
            .map(|c| c.begin.load(Ordering::Relaxed));
        begins.take_while(|&begin| begin != 0).count()
    }

    #[test]
    fn an_object_is_searched_once_however_many_places_it_calls_from() {
        static GETPID: Original = Original::new(c"getpid");
        let here =
            an_object_is_searched_once_however_many_places_it_calls_from as *const () as usize;
        let (begin, end) = code_around(here);
        assert!(begin <= here && here < end);
        let function = GETPID.of(here);
        assert!(!function.is_null());
        for caller in (begin..end).step_by((end - begin).div_ceil(100)) {
            assert_eq!(GETPID.of(caller), function);
        }
        assert_eq!(remembered(&GETPID), 1);
        // The C library calls it, too.
        assert_eq!(GETPID.of(function as usize), function);
        assert_eq!(remembered(&GETPID), 2);
    }

    #[test]
    fn code_that_lies_in_no_object_is_remembered_by_its_call_site() {
        static GETPID: Original = Original::new(c"getpid");
        let made = [0u8; 64];
        let caller = made.as_ptr() as usize;
        assert_eq!(code_around(caller), (caller, caller + 1));
        let function = GETPID.of(caller);
        assert!(!function.is_null());
        assert_eq!([0, 0, 1].map(|at| GETPID.of(caller + at)), [function; 3]);
        assert_eq!(remembered(&GETPID), 2);
    }

    #[test]
    fn more_objects_than_are_remembered_are_searched_again() {
        static GETPID: Original = Original::new(c"getpid");
        let made = [0u8; 2 * CACHED];
        let first = made.as_ptr() as usize;
        let function = GETPID.of(first);
        for caller in first..first + 2 * CACHED {
            assert_eq!(GETPID.of(caller), function);
        }
        assert_eq!(remembered(&GETPID), CACHED);
    }

    #[test]
    fn what_no_library_has_is_null_each_time() {
        static NONE: Original = Original::new(c"tensorscope_has_no_such_function");
        let here = remembered as *const () as usize;
        assert!(NONE.of(here).is_null() && NONE.of(here).is_null());
        assert_eq!(remembered(&NONE), 0);
    }
}
