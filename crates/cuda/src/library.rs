//! Shared libraries that are there or not, and their functions.

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use crate::{CudaError, Result, places};

/// A loaded library; never unloaded, CUDA's own do not survive that.
#[derive(Clone, Copy, Debug)]
pub struct Library(*mut c_void);

// SAFETY: a handle that the loader guards with a lock of its own.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The first of `names` that can be loaded, from where the loader looks (LD_LIBRARY_PATH, the
    /// cache of ldconfig) and from [`places`].
    pub fn open(names: &[&str]) -> Result<Library> {
        let everywhere = names.iter().map(PathBuf::from);
        let folders = places::folders();
        let elsewhere = folders
            .iter()
            .flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        let mut reason = String::new();
        for path in everywhere.chain(elsewhere) {
            match Library::at(&path) {
                Ok(library) => return Ok(library),
                Err(CudaError::NoLibrary { reason: first }) if reason.is_empty() => reason = first,
                Err(_) => {}
            }
        }
        Err(CudaError::NoLibrary { reason })
    }

    /// At this path, or of this name where the loader looks.
    pub fn at(path: &Path) -> Result<Library> {
        Library::with(path, libc::RTLD_NOW | libc::RTLD_GLOBAL)
    }

    /// The same, but its functions are not those of libraries that are loaded later.
    pub fn local(path: &Path) -> Result<Library> {
        Library::with(path, libc::RTLD_LAZY | libc::RTLD_LOCAL)
    }

    /// Only if this process has loaded it already, for whatever reason.
    pub fn loaded(path: &Path) -> Option<Library> {
        Library::with(path, libc::RTLD_NOW | libc::RTLD_NOLOAD).ok()
    }

    fn with(path: &Path, flags: c_int) -> Result<Library> {
        let no_library = |reason: String| CudaError::NoLibrary { reason };
        let c_path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| no_library(format!("{}: no path", path.display())))?;
        // SAFETY: a C string; constructors of NVIDIA's libraries may run.
        let handle = unsafe { libc::dlopen(c_path.as_ptr(), flags) };
        if !handle.is_null() {
            return Ok(Library(handle));
        }
        // SAFETY: after a failed call it answers with a C string, or with null where the call
        // only asked whether there is one.
        let reason = unsafe {
            let said = libc::dlerror();
            match said.is_null() {
                true => format!("{}: not loaded", path.display()),
                false => CStr::from_ptr(said).to_string_lossy().into_owned(),
            }
        };
        Err(no_library(reason))
    }

    pub fn function(self, name: &CStr) -> Result<*mut c_void> {
        // SAFETY: a live library and a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        match found.is_null() {
            true => Err(CudaError::NoFunction {
                name: name.to_string_lossy().into_owned(),
            }),
            false => Ok(found),
        }
    }

    /// The file that this function of it is in.
    pub fn file_of(self, function: &CStr) -> Option<PathBuf> {
        let function = self.function(function).ok()?;
        let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked about; what is written is a path, or nothing.
        unsafe {
            if libc::dladdr(function, about.as_mut_ptr()) == 0 {
                return None;
            }
            let name: *const c_char = about.assume_init().dli_fname;
            (!name.is_null())
                .then(|| PathBuf::from(OsStr::from_bytes(CStr::from_ptr(name).to_bytes())))
        }
    }
}

/// What all functions of CUDA answer.
pub type Answer = c_int;

/// A struct of functions that are looked up by their names.
#[macro_export]
macro_rules! functions {
    ($(#[$about:meta])* pub struct $name:ident { $($function:ident($($argument:ty),*);)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        #[allow(non_snake_case)]
        pub struct $name {
            $(pub $function: unsafe extern "C" fn($($argument),*) -> $crate::library::Answer,)*
        }

        impl $name {
            /// An error names the function that is missing.
            pub fn of(library: $crate::library::Library) -> $crate::Result<$name> {
                Ok($name {
                    $($function: {
                        const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
                            concat!(stringify!($function), "\0").as_bytes(),
                        ) {
                            Ok(name) => name,
                            Err(_) => panic!("a name has no zero inside"),
                        };
                        let found = library.function(NAME)?;
                        // SAFETY: the function of this name, as its documentation declares it.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($argument),*) -> $crate::library::Answer>(found) }
                    },)*
                })
            }
        }
    };
}
