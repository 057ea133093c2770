//! OpenBLAS, if this machine has it: the system's, or the one that NumPy brings along.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem::transmute,
    path::{Path, PathBuf},
};

use anyhow::bail;
use cuda::library::Library;

use super::plain::Shape;

/// The library, with its functions by the width of its integers.
pub struct OpenBlas {
    product: Product,
    set_threads: SetThreads,
    /// Which of its kernels it chose ("Cooperlake"), and where it lies.
    pub about: String,
}

type SetThreads = unsafe extern "C" fn(c_int);
type CoreName = unsafe extern "C" fn() -> *const c_char;

/// `cblas_sgemm` with integers of type `I`: order, transpositions, sizes, alpha, A, B, beta, C.
type Sgemm<I> = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    I,
    I,
    I,
    f32,
    *const f32,
    I,
    *const f32,
    I,
    f32,
    *mut f32,
    I,
);

enum Product {
    Ints(Sgemm<c_int>),
    Longs(Sgemm<i64>),
}

/// From cblas.h.
const ROW_MAJOR: c_int = 101;
const AS_IT_IS: c_int = 111;

/// What distributions put before and after the names, and whether integers have 64 bits.
const SPELLINGS: [(&str, &str, bool); 4] = [
    ("", "", false),
    ("scipy_", "64_", true),
    ("scipy_", "", false),
    ("", "64_", true),
];

impl OpenBlas {
    /// An error says what to install.
    pub fn open() -> anyhow::Result<OpenBlas> {
        for path in candidates() {
            let Some(name) = path.to_str() else { continue };
            let Ok(library) = Library::open(&[name]) else {
                continue;
            };
            for (before, after, is_long) in SPELLINGS {
                let find = |name: &str| {
                    let name = CString::new(format!("{before}{name}{after}")).ok()?;
                    library.function(&name).ok()
                };
                let (Some(product), Some(set_threads), Some(core)) = (
                    find("cblas_sgemm"),
                    find("openblas_set_num_threads"),
                    find("openblas_get_corename"),
                ) else {
                    continue;
                };
                // SAFETY: the functions of these names, as OpenBLAS's cblas.h declares them.
                return Ok(unsafe {
                    let core = transmute::<*mut c_void, CoreName>(core);
                    OpenBlas {
                        product: match is_long {
                            true => Product::Longs(transmute::<*mut c_void, Sgemm<i64>>(product)),
                            false => Product::Ints(transmute::<*mut c_void, Sgemm<c_int>>(product)),
                        },
                        set_threads: transmute::<*mut c_void, SetThreads>(set_threads),
                        about: format!(
                            "{}, kernels for {}",
                            path.display(),
                            CStr::from_ptr(core()).to_string_lossy()
                        ),
                    }
                });
            }
        }
        bail!(
            "there is no OpenBLAS here to compare with: install libopenblas0, or NumPy in the \
             environment of VIRTUAL_ENV, or name the file in TENSORSCOPE_OPENBLAS"
        )
    }

    pub fn multiply(&self, threads: usize, shape: Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
        let Shape { m, n, k } = shape;
        assert!(a.len() == m * k && b.len() == k * n && c.len() == m * n);
        let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        let order = (ROW_MAJOR, AS_IT_IS, AS_IT_IS);
        // SAFETY: three matrices, row by row, of these sizes.
        unsafe {
            (self.set_threads)(threads as c_int);
            match self.product {
                Product::Longs(run) => {
                    let (m, n, k) = (m as i64, n as i64, k as i64);
                    run(
                        order.0, order.1, order.2, m, n, k, 1.0, a, k, b, n, 0.0, c, n,
                    );
                }
                Product::Ints(run) => {
                    let (m, n, k) = (m as c_int, n as c_int, k as c_int);
                    run(
                        order.0, order.1, order.2, m, n, k, 1.0, a, k, b, n, 0.0, c, n,
                    );
                }
            }
        }
    }
}

/// Files that may be the library, the user's own first.
fn candidates() -> Vec<PathBuf> {
    let given = std::env::var_os("TENSORSCOPE_OPENBLAS").map(PathBuf::from);
    // Without a slash the linker would look elsewhere.
    let given = given.map(|path| path.canonicalize().unwrap_or(path));
    let mut paths: Vec<PathBuf> = given.into_iter().collect();
    paths.extend(["libopenblas.so.0", "libopenblas.so"].map(PathBuf::from));
    let environment = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    for environment in environment.into_iter().chain(["target/venv".into()]) {
        for python in children(&environment.join("lib")) {
            let libraries = children(&python.join("site-packages/numpy.libs"));
            paths.extend(libraries.into_iter().filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.contains("openblas"))
            }));
        }
    }
    paths
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
