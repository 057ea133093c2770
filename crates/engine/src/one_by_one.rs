//! A batch whose numbers are those of its tokens computed one at a time, bit for bit.
//!
//! llama.cpp has other kernels for several tokens than for one, which add up in another order:
//! `llamafile_sgemm`, the tiled products, and an attention that is split among threads for one
//! token only. A draft that is checked by them may be judged otherwise than without drafting. Inside of
//! [`with`] products take the way that a single token takes (each element is a product of two rows, whoever else is
//! in the batch), and attention is computed for one token after the other. The weights are still
//! read once for all of them.
//!
//! On x86-64 the linker sends the calls of these functions here (build/variants.rs). Elsewhere
//! [`IS_POSSIBLE`] says no.

#[cfg(target_arch = "x86_64")]
use std::{
    ffi::{c_int, c_void},
    sync::atomic::{AtomicBool, Ordering},
};

#[cfg(target_arch = "x86_64")]
use llama_cpp_sys_2 as sys;

#[cfg(target_arch = "x86_64")]
use crate::variant;

/// Whether [`with`] does anything.
pub const IS_POSSIBLE: bool = cfg!(target_arch = "x86_64");

/// Runs `f`; what this process computes meanwhile is computed as if each token came alone.
#[cfg(target_arch = "x86_64")]
pub fn with<R>(f: impl FnOnce() -> R) -> R {
    /// Switches it off again even if `f` panics.
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            IS_ON.store(false, Ordering::Relaxed);
        }
    }
    let _reset = Reset;
    // Threads see it when ggml starts them for the next graph.
    IS_ON.store(true, Ordering::Relaxed);
    f()
}

#[cfg(not(target_arch = "x86_64"))]
pub fn with<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(target_arch = "x86_64")]
static IS_ON: AtomicBool = AtomicBool::new(false);

#[cfg(target_arch = "x86_64")]
fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// `ggml_compute_params`.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
pub(crate) struct ComputeParams {
    ith: c_int,
    nth: c_int,
    work_bytes: usize,
    work: *mut c_void,
    threadpool: *mut c_void,
}

/// Functions of a variant of the kernels that are called through us.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Batched {
    pub sgemm: Sgemm,
    pub tiled: Tiled,
    pub tiled_experts: TiledExperts,
    pub attention: unsafe extern "C" fn(*const ComputeParams, *mut sys::ggml_tensor),
    /// `ggml_barrier`: all threads of a computation wait for each other.
    pub barrier: unsafe extern "C" fn(*mut c_void),
}

/// `llamafile_sgemm`: sizes, and three matrices with the distance of their rows.
#[cfg(target_arch = "x86_64")]
pub(crate) type Sgemm = unsafe extern "C" fn(
    *const ComputeParams,
    i64,
    i64,
    i64,
    *const c_void,
    i64,
    *const c_void,
    i64,
    *mut c_void,
    i64,
    c_int,
    c_int,
    c_int,
) -> bool;

#[cfg(target_arch = "x86_64")]
pub(crate) type Tiled = unsafe extern "C" fn(*const ComputeParams, *mut sys::ggml_tensor) -> bool;

#[cfg(target_arch = "x86_64")]
pub(crate) type TiledExperts = unsafe extern "C" fn(
    *const ComputeParams,
    *mut sys::ggml_tensor,
    i64,
    i64,
    *const i32,
    *mut std::ffi::c_char,
) -> bool;

/// # Safety
/// As `llamafile_sgemm`, which may answer that it does not do this product.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_llamafile_sgemm(
    params: *const ComputeParams,
    m: i64,
    n: i64,
    k: i64,
    a: *const c_void,
    a_stride: i64,
    b: *const c_void,
    b_stride: i64,
    c: *mut c_void,
    c_stride: i64,
    a_type: c_int,
    b_type: c_int,
    c_type: c_int,
) -> bool {
    if is_on() {
        return false;
    }
    let real = variant::batched().sgemm;
    // SAFETY: the call that ggml made.
    unsafe {
        real(
            params, m, n, k, a, a_stride, b, b_stride, c, c_stride, a_type, b_type, c_type,
        )
    }
}

/// # Safety
/// As `ggml_compute_forward_mul_mat_tiled`, which may answer that it does not do this product.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_ggml_compute_forward_mul_mat_tiled(
    params: *const ComputeParams,
    node: *mut sys::ggml_tensor,
) -> bool {
    // SAFETY: the call that ggml made.
    !is_on() && unsafe { (variant::batched().tiled)(params, node) }
}

/// # Safety
/// As `ggml_compute_forward_mul_mat_id_tiled`, which may answer that it does not do this one.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_ggml_compute_forward_mul_mat_id_tiled(
    params: *const ComputeParams,
    node: *mut sys::ggml_tensor,
    expert: i64,
    rows: i64,
    expert_rows: *const i32,
    scratch: *mut std::ffi::c_char,
) -> bool {
    let real = variant::batched().tiled_experts;
    // SAFETY: the call that ggml made.
    !is_on() && unsafe { real(params, node, expert, rows, expert_rows, scratch) }
}

/// Attention of all tokens of a batch, one after the other.
///
/// # Safety
/// As `ggml_compute_forward_flash_attn_ext`: called by every thread of a computation.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_ggml_compute_forward_flash_attn_ext(
    params: *const ComputeParams,
    node: *mut sys::ggml_tensor,
) {
    let Batched {
        attention, barrier, ..
    } = variant::batched();
    // SAFETY: a live node with its sources, and what lies in them: the queries are
    // [head size, token, head, stream], the mask [cell, token, …], the result
    // [head size, head, token, stream]. ggml's work buffer has room for either way.
    unsafe {
        let queries = (*node).src[0];
        let tokens = (*queries).ne[1];
        if !is_on() || tokens < 2 || (*queries).ne[3] != 1 {
            return attention(params, node);
        }
        let mask = (*node).src[3];
        for token in 0..tokens as usize {
            let mut query = *queries;
            query.ne[1] = 1;
            query.data = query.data.byte_add(token * query.nb[1]);
            let mut result = *node;
            result.ne[2] = 1;
            result.data = result.data.byte_add(token * result.nb[2]);
            result.src[0] = &raw mut query;
            let mut row = std::mem::MaybeUninit::uninit();
            if !mask.is_null() {
                let row = row.write(*mask);
                row.ne[1] = 1;
                row.data = row.data.byte_add(token * row.nb[1]);
                result.src[3] = row;
            }
            attention(params, &raw mut result);
            // The next one uses the same work buffer.
            barrier((*params).threadpool);
        }
    }
}
