//! cuBLAS: what the vendor's library reaches, measured beside our kernels.

pub mod lt;

use std::ffi::{c_int, c_void};

use anyhow::{Context as _, bail};
use cuda::{Buffer, Card, Stream, functions, library::Library};
use half::bf16;

functions! {
    /// cuBLAS, loaded.
    pub struct Functions {
        cublasCreate_v2(*mut *mut c_void);
        cublasDestroy_v2(*mut c_void);
        cublasSetWorkspace_v2(*mut c_void, u64, usize);
        cublasSetStream_v2(*mut c_void, *mut c_void);
        cublasSgemm_v2(*mut c_void, c_int, c_int, c_int, c_int, c_int, *const f32, u64, c_int, u64, c_int, *const f32, u64, c_int);
        cublasGemmEx(*mut c_void, c_int, c_int, c_int, c_int, c_int, *const c_void, u64, c_int, c_int, u64, c_int, c_int, *const c_void, u64, c_int, c_int, c_int, c_int);
    }
}

/// The vendor's matrix products, of row-major matrices.
pub struct Vendor {
    functions: Functions,
    handle: *mut c_void,
    /// What cuBLAS may use besides; freed after the handle.
    workspace: Buffer<u8>,
}

/// As much as cuBLAS asks for on Hopper.
const WORKSPACE_BYTES: usize = 64 << 20;
const NOT_TRANSPOSED: c_int = 0;
const TRANSPOSED: c_int = 1;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const DEFAULT_ALGORITHM: c_int = -1;

impl Vendor {
    pub fn open(card: &Card) -> anyhow::Result<Vendor> {
        let library = Library::open(&["libcublas.so.13", "libcublas.so.12", "libcublas.so"])
            .context("the vendor's library is needed to compare with, cuBLAS; `pip install nvidia-cublas` brings it (then set VIRTUAL_ENV or TENSORSCOPE_CUDA)")?;
        let functions = Functions::of(library)?;
        let workspace = card.buffer(WORKSPACE_BYTES)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the handle to the place given; the workspace lives as long as it.
        let result = unsafe {
            match (functions.cublasCreate_v2)(&mut handle) {
                0 => {
                    (functions.cublasSetWorkspace_v2)(handle, workspace.address(), WORKSPACE_BYTES)
                }
                error => error,
            }
        };
        if result != 0 {
            bail!("cuBLAS does not start (error {result})");
        }
        Ok(Vendor {
            functions,
            handle,
            workspace,
        })
    }

    /// All that follows goes to this stream, or to the default one.
    pub fn use_stream(&self, stream: Option<&Stream>) -> anyhow::Result<()> {
        let stream = Stream::handle_of(stream);
        // SAFETY: a live handle and stream. cuBLAS forgets its workspace when the stream
        // changes, so it is given again.
        let result = unsafe {
            match (self.functions.cublasSetStream_v2)(self.handle, stream) {
                0 => (self.functions.cublasSetWorkspace_v2)(
                    self.handle,
                    self.workspace.address(),
                    WORKSPACE_BYTES,
                ),
                error => error,
            }
        };
        answer(result)
    }

    /// `c = a × b` in single precision (no TF32): `a` is `m × k`, `b` is `k × n`.
    pub fn f32(
        &self,
        (m, n, k): (usize, usize, usize),
        a: &Buffer<f32>,
        b: &Buffer<f32>,
        c: &Buffer<f32>,
    ) -> anyhow::Result<()> {
        let (one, zero) = (1.0f32, 0.0f32);
        let (m, n, k) = (m as c_int, n as c_int, k as c_int);
        // cuBLAS counts by columns: the transposed product, with operands exchanged.
        // SAFETY: matrices of these sizes on the card (the callers check).
        let result = unsafe {
            (self.functions.cublasSgemm_v2)(
                self.handle,
                NOT_TRANSPOSED,
                NOT_TRANSPOSED,
                n,
                m,
                k,
                &one,
                b.address(),
                n,
                a.address(),
                k,
                &zero,
                c.address(),
                n,
            )
        };
        answer(result)
    }

    /// `c = a × bᵀ` in bf16 with sums in f32: `a` is `m × k`, `b` is `n × k`, as weights lie.
    pub fn bf16(
        &self,
        (m, n, k): (usize, usize, usize),
        a: &Buffer<bf16>,
        b: &Buffer<bf16>,
        c: &Buffer<bf16>,
    ) -> anyhow::Result<()> {
        let (one, zero) = (1.0f32, 0.0f32);
        let (m, n, k) = (m as c_int, n as c_int, k as c_int);
        let (one, zero) = ((&raw const one).cast(), (&raw const zero).cast());
        // SAFETY: as above.
        let result = unsafe {
            (self.functions.cublasGemmEx)(
                self.handle,
                TRANSPOSED,
                NOT_TRANSPOSED,
                n,
                m,
                k,
                one,
                b.address(),
                R_16BF,
                k,
                a.address(),
                R_16BF,
                k,
                zero,
                c.address(),
                R_16BF,
                n,
                COMPUTE_32F,
                DEFAULT_ALGORITHM,
            )
        };
        answer(result)
    }
}

fn answer(result: c_int) -> anyhow::Result<()> {
    match result {
        0 => Ok(()),
        error => bail!("cuBLAS: error {error}"),
    }
}

impl Drop for Vendor {
    fn drop(&mut self) {
        // SAFETY: a live handle.
        unsafe { (self.functions.cublasDestroy_v2)(self.handle) };
    }
}
