//! Another way to compute the same, which a setting of llama.cpp chooses: products with weights
//! that are repacked.

use std::ffi::CStr;

use gguf::GgmlType;
use llama_cpp_sys_2 as sys;

use super::{Buffer, Graph, Kernels, Matrix, Tensor, Timings};
use crate::variant;

/// With many tokens computing decides, and a few matrices are enough.
const REPACKED: usize = 8;

impl Kernels {
    /// As [`Kernels::product`], with weights in the order that llama.cpp's repacking gives them;
    /// `None` where it has none for the type on this processor. For many tokens.
    pub fn repacked_product(&self, matrix: Matrix, tokens: &[usize]) -> Option<Timings> {
        let bytes = matrix.bytes(matrix.rows)?;
        let shape = [matrix.columns as i64, matrix.rows as i64, 1];
        let all = Graph::new(REPACKED, 0)?;
        let (weights, _buffer) = all.repacked(self, matrix.ty, shape, bytes)?;
        self.time_products(&weights, matrix, tokens)
    }
}

impl Graph {
    /// Weights in llama.cpp's buffer for repacked ones, filled from those that are mapped.
    fn repacked(
        &self,
        kernels: &Kernels,
        ty: GgmlType,
        [a, b, c]: [i64; 3],
        bytes: u64,
    ) -> Option<(Vec<Tensor>, Buffer)> {
        let content = kernels
            .weights
            .bytes()
            .get(..usize::try_from(bytes).ok()?)?;
        let kind = repacking(kernels.backend)?;
        // SAFETY: a buffer of a live type, as large as the tensors that are placed in it say; they
        // are filled to their end and no further.
        unsafe {
            let tensors: Vec<Tensor> = (0..REPACKED)
                .map(|_| sys::ggml_new_tensor_3d(self.context, ty.as_u32() as _, a, b, c))
                .collect();
            let alignment = sys::ggml_backend_buft_get_alignment(kind).max(1);
            let each = sys::ggml_backend_buft_get_alloc_size(kind, tensors[0]);
            let each = each.next_multiple_of(alignment);
            let buffer = sys::ggml_backend_buft_alloc_buffer(kind, each * REPACKED);
            if buffer.is_null() {
                return None;
            }
            let buffer = Buffer(buffer);
            let base: *mut u8 = sys::ggml_backend_buffer_get_base(buffer.0).cast();
            for (number, &tensor) in tensors.iter().enumerate() {
                let address = base.add(number * each).cast();
                let status = sys::ggml_backend_tensor_alloc(buffer.0, tensor, address);
                // A type that has no such order is left without what computes it.
                if status != sys::GGML_STATUS_SUCCESS || (*tensor).extra.is_null() {
                    return None;
                }
                sys::ggml_backend_tensor_set(tensor, content.as_ptr().cast(), 0, content.len());
            }
            Some((tensors, buffer))
        }
    }
}

/// The processor's kind of buffer for repacked weights.
fn repacking(backend: *mut sys::ggml_backend) -> Option<sys::ggml_backend_buffer_type_t> {
    let function = variant::function(c"ggml_backend_dev_get_extra_bufts");
    if function.is_null() {
        return None;
    }
    // SAFETY: the function that is registered under this name has this type; its list ends with
    // null, and its entries have names.
    unsafe {
        let list: unsafe extern "C" fn(
            sys::ggml_backend_dev_t,
        ) -> *mut sys::ggml_backend_buffer_type_t = std::mem::transmute(function);
        let mut kinds = list(sys::ggml_backend_get_device(backend));
        while !kinds.is_null() && !(*kinds).is_null() {
            let name = CStr::from_ptr(sys::ggml_backend_buft_name(*kinds));
            if name == c"CPU_REPACK" {
                return Some(*kinds);
            }
            kinds = kinds.add(1);
        }
    }
    None
}
