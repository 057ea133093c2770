//! cuBLASLt: the same library with a choice of algorithms, of which the fastest is looked for.

use std::ffi::{c_int, c_void};

use anyhow::bail;
use cuda::{Buffer, Card, Stream, functions, library::Library};
use half::bf16;

use super::{NOT_TRANSPOSED, R_16BF, TRANSPOSED, WORKSPACE_BYTES, answer};

functions! {
    /// cuBLASLt, loaded.
    pub struct Functions {
        cublasLtCreate(*mut *mut c_void);
        cublasLtDestroy(*mut c_void);
        cublasLtMatmulDescCreate(*mut *mut c_void, c_int, c_int);
        cublasLtMatmulDescDestroy(*mut c_void);
        cublasLtMatmulDescSetAttribute(*mut c_void, c_int, *const c_void, usize);
        cublasLtMatrixLayoutCreate(*mut *mut c_void, c_int, u64, u64, i64);
        cublasLtMatrixLayoutDestroy(*mut c_void);
        cublasLtMatmulPreferenceCreate(*mut *mut c_void);
        cublasLtMatmulPreferenceDestroy(*mut c_void);
        cublasLtMatmulPreferenceSetAttribute(*mut c_void, c_int, *const c_void, usize);
        cublasLtMatmulAlgoGetHeuristic(*mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, c_int, *mut Algorithm, *mut c_int);
        cublasLtMatmul(*mut c_void, *mut c_void, *const c_void, u64, *mut c_void, u64, *mut c_void, *const c_void, u64, *mut c_void, u64, *mut c_void, *const Algorithm, u64, usize, *mut c_void);
    }
}

/// `cublasLtMatmulHeuristicResult_t`, which begins with the algorithm itself.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Algorithm {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const COMPUTE_32F: c_int = 68;
const R_32F: c_int = 0;
const DESC_TRANSA: c_int = 3;
const DESC_TRANSB: c_int = 4;
const PREF_MAX_WORKSPACE_BYTES: c_int = 1;
/// How many algorithms are asked for.
const ALGORITHMS: usize = 8;

/// The library, open.
pub struct Lt {
    functions: Functions,
    handle: *mut c_void,
    workspace: Buffer<u8>,
}

impl Lt {
    pub fn open(card: &Card) -> anyhow::Result<Lt> {
        let library = Library::open(&["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"])?;
        let functions = Functions::of(library)?;
        let workspace = card.buffer(WORKSPACE_BYTES)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the handle to the place given.
        answer(unsafe { (functions.cublasLtCreate)(&mut handle) })?;
        Ok(Lt {
            functions,
            handle,
            workspace,
        })
    }

    /// `c = a × bᵀ` in bf16 with sums in f32, and what the library would do it with.
    pub fn bf16(&self, (m, n, k): (usize, usize, usize)) -> anyhow::Result<Product<'_>> {
        let f = &self.functions;
        let mut product = Product {
            lt: self,
            operation: std::ptr::null_mut(),
            layouts: [std::ptr::null_mut(); 3],
            algorithms: Vec::new(),
        };
        // By columns, as cuBLAS counts: b is k × n and transposed, a is k × m, c is n × m.
        let sizes = [(k, n), (k, m), (n, m)];
        let mut found = 0;
        let mut algorithms = [Algorithm::default(); ALGORITHMS];
        // SAFETY: places to write to, and attributes of the sizes that are given.
        unsafe {
            answer((f.cublasLtMatmulDescCreate)(
                &mut product.operation,
                COMPUTE_32F,
                R_32F,
            ))?;
            for (which, value) in [(DESC_TRANSA, TRANSPOSED), (DESC_TRANSB, NOT_TRANSPOSED)] {
                let value = (&raw const value).cast();
                answer((f.cublasLtMatmulDescSetAttribute)(
                    product.operation,
                    which,
                    value,
                    size_of::<c_int>(),
                ))?;
            }
            for (layout, (rows, columns)) in product.layouts.iter_mut().zip(sizes) {
                let (rows, columns) = (rows as u64, columns as u64);
                answer((f.cublasLtMatrixLayoutCreate)(
                    layout,
                    R_16BF,
                    rows,
                    columns,
                    rows as i64,
                ))?;
            }
            let mut preference = std::ptr::null_mut();
            answer((f.cublasLtMatmulPreferenceCreate)(&mut preference))?;
            let room = WORKSPACE_BYTES;
            let set = (f.cublasLtMatmulPreferenceSetAttribute)(
                preference,
                PREF_MAX_WORKSPACE_BYTES,
                (&raw const room).cast(),
                size_of::<usize>(),
            );
            let [b, a, c] = product.layouts;
            let asked = (f.cublasLtMatmulAlgoGetHeuristic)(
                self.handle,
                product.operation,
                b,
                a,
                c,
                c,
                preference,
                ALGORITHMS as c_int,
                algorithms.as_mut_ptr(),
                &mut found,
            );
            (f.cublasLtMatmulPreferenceDestroy)(preference);
            answer(set)?;
            answer(asked)?;
        }
        let found = &algorithms[..found.clamp(0, ALGORITHMS as c_int) as usize];
        product
            .algorithms
            .extend(found.iter().filter(|algorithm| algorithm.state == 0));
        if product.algorithms.is_empty() {
            bail!("cuBLASLt knows no way to multiply {m} × {n} × {k}");
        }
        Ok(product)
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        // SAFETY: a live handle; products borrow it, so none is left.
        unsafe { (self.functions.cublasLtDestroy)(self.handle) };
    }
}

/// A product of one size.
pub struct Product<'a> {
    lt: &'a Lt,
    operation: *mut c_void,
    layouts: [*mut c_void; 3],
    /// The one first that the library would take.
    pub algorithms: Vec<Algorithm>,
}

impl Product<'_> {
    /// By algorithm number `which`; the matrices have the size that was asked for.
    pub fn run(
        &self,
        which: usize,
        a: &Buffer<bf16>,
        b: &Buffer<bf16>,
        c: &Buffer<bf16>,
        stream: Option<&Stream>,
    ) -> anyhow::Result<()> {
        let (one, zero) = (1.0f32, 0.0f32);
        let [b_layout, a_layout, c_layout] = self.layouts;
        // SAFETY: live descriptions of matrices that are on the card.
        answer(unsafe {
            (self.lt.functions.cublasLtMatmul)(
                self.lt.handle,
                self.operation,
                (&raw const one).cast(),
                b.address(),
                b_layout,
                a.address(),
                a_layout,
                (&raw const zero).cast(),
                c.address(),
                c_layout,
                c.address(),
                c_layout,
                &raw const self.algorithms[which],
                self.lt.workspace.address(),
                WORKSPACE_BYTES,
                Stream::handle_of(stream),
            )
        })
    }
}

impl Drop for Product<'_> {
    fn drop(&mut self) {
        let f = &self.lt.functions;
        // SAFETY: made by the library or null, which it takes.
        unsafe {
            for layout in self.layouts {
                if !layout.is_null() {
                    (f.cublasLtMatrixLayoutDestroy)(layout);
                }
            }
            if !self.operation.is_null() {
                (f.cublasLtMatmulDescDestroy)(self.operation);
            }
        }
    }
}
