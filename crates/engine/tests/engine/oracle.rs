//! The exact per-node hook: `ggml_compute_forward` calls
//! `ggml_cpu_extra_compute_forward` for every node that is not fused, on every
//! thread, at its start; fused pairs call `ggml_compute_forward_rms_norm_mul_fused`.
//! The linker sends both here (crates/engine/build.rs). What they see on thread 0
//! is the truth that templates and ticks are held against.

use std::{
    cell::RefCell,
    ffi::{c_int, c_void},
};

use ggml::{RawTensor, Tensor};

/// The start of `ggml_compute_params`.
#[repr(C)]
pub struct ComputeParams {
    ith: c_int,
    nth: c_int,
}

thread_local! {
    /// Names of the nodes that thread 0 executed, in order; thread 0 is the
    /// thread that called `llama_decode`.
    pub static EXECUTED: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" {
    fn __real_ggml_cpu_extra_compute_forward(
        params: *mut ComputeParams,
        node: *mut RawTensor,
    ) -> bool;
    fn __real_ggml_compute_forward_rms_norm_mul_fused(
        params: *mut c_void,
        norm: *mut RawTensor,
        mul: *mut RawTensor,
    );
}

unsafe fn note(params: *const ComputeParams, node: *const RawTensor) {
    // SAFETY: ggml passes live structs.
    unsafe {
        if (*params).ith == 0 {
            let name = Tensor::from_ptr(node)
                .map(|t| t.name().to_vec())
                .unwrap_or_default();
            EXECUTED.with_borrow_mut(|executed| executed.push(name));
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_ggml_cpu_extra_compute_forward(
    params: *mut ComputeParams,
    node: *mut RawTensor,
) -> bool {
    // SAFETY: the call that ggml made.
    unsafe {
        note(params, node);
        __real_ggml_cpu_extra_compute_forward(params, node)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_ggml_compute_forward_rms_norm_mul_fused(
    params: *mut c_void,
    norm: *mut RawTensor,
    mul: *mut RawTensor,
) {
    // SAFETY: the call that ggml made.
    unsafe {
        note(params.cast(), mul);
        __real_ggml_compute_forward_rms_norm_mul_fused(params, norm, mul);
    }
}
