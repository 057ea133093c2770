//! Shared libraries that are there or not, and their functions.

use std::{
    ffi::{CStr, CString, c_int, c_void},
    path::PathBuf,
};

use anyhow::{anyhow, bail};

/// A loaded library; never unloaded, CUDA's own do not survive that.
#[derive(Clone, Copy, Debug)]
pub struct Library(*mut c_void);

impl Library {
    /// The first of `names` that can be loaded, from where the linker looks and from the
    /// places where NVIDIA's toolkit and its packages for Python put them.
    pub fn open(names: &[&str]) -> anyhow::Result<Library> {
        let folders = folders();
        let everywhere = names.iter().map(PathBuf::from);
        let elsewhere = folders
            .iter()
            .flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        let mut reason = String::new();
        for path in everywhere.chain(elsewhere) {
            let c_path = CString::new(path.as_os_str().as_encoded_bytes())?;
            // SAFETY: a C string; constructors of NVIDIA's libraries may run.
            let handle =
                unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            if !handle.is_null() {
                return Ok(Library(handle));
            }
            if reason.is_empty() {
                // SAFETY: after a failed call it answers with a C string.
                reason = unsafe { CStr::from_ptr(libc::dlerror()) }
                    .to_string_lossy()
                    .into_owned();
            }
        }
        bail!("{reason}")
    }

    pub fn function(self, name: &CStr) -> anyhow::Result<*mut c_void> {
        // SAFETY: a live library and a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        match found.is_null() {
            true => Err(anyhow!(
                "the library has no {}: it is too old",
                name.to_string_lossy()
            )),
            false => Ok(found),
        }
    }
}

/// Where NVIDIA's libraries lie when the linker does not know them.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    // A folder of one's own, or several, as in PATH.
    if let Some(given) = std::env::var_os("TENSORSCOPE_CUDA") {
        folders.extend(std::env::split_paths(&given));
    }
    let toolkits = [
        "/usr/local/cuda/lib64",
        "/usr/local/cuda/targets/x86_64-linux/lib",
        "/opt/cuda/lib64",
    ];
    folders.extend(toolkits.map(PathBuf::from));
    if let Some(environment) = std::env::var_os("VIRTUAL_ENV") {
        let python = PathBuf::from(environment).join("lib");
        for version in children(&python) {
            for package in children(&version.join("site-packages/nvidia")) {
                folders.push(package.join("lib"));
            }
        }
    }
    folders
}

fn children(folder: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// A program of NVIDIA's toolkit, from the path or from where its libraries lie.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = folders().into_iter().map(|folder| folder.join("../bin"));
    let mut folders = std::env::split_paths(&path).chain(beside);
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
}

/// What all functions of CUDA answer.
pub type Answer = c_int;

/// A struct of functions that are looked up by their names.
macro_rules! functions {
    ($(#[$about:meta])* pub struct $name:ident { $($function:ident($($argument:ty),*);)* }) => {
        $(#[$about])*
        pub struct $name {
            $(pub $function: unsafe extern "C" fn($($argument),*) -> $crate::cuda::libraries::Answer,)*
        }

        impl $name {
            /// An error names the function that is missing.
            pub fn of(library: $crate::cuda::libraries::Library) -> anyhow::Result<$name> {
                Ok($name {
                    $($function: {
                        let name = std::ffi::CString::new(stringify!($function))?;
                        let found = library.function(&name)?;
                        // SAFETY: the function of this name, as its documentation declares it.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($argument),*) -> $crate::cuda::libraries::Answer>(found) }
                    },)*
                })
            }
        }
    };
}

pub(crate) use functions;
