//! What memory llama.cpp takes, asked of llama.cpp itself, and of a model of which no weight is
//! read: its header is enough.

use std::{
    ffi::{CStr, c_char},
    path::Path,
};

use llama_cpp_sys_2 as sys;

use crate::{
    context::{Context, ContextProps},
    loading::Loading,
    model::{Model, ModelError},
};

/// Memory of one kind of buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferMemory {
    /// As llama.cpp calls it: `CPU`, `CUDA0`.
    pub name: String,
    pub model_bytes: u64,
    /// KV cache and recurrent state.
    pub context_bytes: u64,
    pub compute_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawMemory {
    buffer_type: *mut sys::ggml_backend_buffer_type,
    model: usize,
    context: usize,
    compute: usize,
}

unsafe extern "C" {
    fn tensorscope_memory_breakdown(
        context: *const sys::llama_context,
        out: *mut RawMemory,
        capacity: usize,
    ) -> usize;
    fn ggml_backend_buft_name(buffer_type: *mut sys::ggml_backend_buffer_type) -> *const c_char;
}

impl Context<'_> {
    /// What this context and its model take.
    pub fn memory(&self) -> Vec<BufferMemory> {
        /// A buffer type for each device and its host memory: there are no more.
        const CAPACITY: usize = 64;
        let empty = RawMemory {
            buffer_type: std::ptr::null_mut(),
            model: 0,
            context: 0,
            compute: 0,
        };
        let mut list = [empty; CAPACITY];
        // SAFETY: a live context, and an array of that length.
        let count =
            unsafe { tensorscope_memory_breakdown(self.raw(), list.as_mut_ptr(), CAPACITY) };
        let described = |raw: &RawMemory| BufferMemory {
            // SAFETY: a buffer type that lives as long as llama.cpp, and its name.
            name: unsafe { CStr::from_ptr(ggml_backend_buft_name(raw.buffer_type)) }
                .to_string_lossy()
                .into_owned(),
            model_bytes: raw.model as u64,
            context_bytes: raw.context as u64,
            compute_bytes: raw.compute as u64,
        };
        list[..count.min(CAPACITY)].iter().map(described).collect()
    }
}

impl Model {
    /// Loads what describes a model, and none of its weights: nothing can be computed with it,
    /// but contexts can be made and say what they would take.
    pub fn load_header(path: &Path) -> Result<Model, ModelError> {
        Model::load_with(path, Loading::AsFound, |params| {
            params.no_alloc = true;
            params.load_mode = sys::LLAMA_LOAD_MODE_NONE;
            params.use_extra_bufts = false;
        })
    }
}

/// What llama.cpp would take for a model and a context; no weight is read and no buffer made.
pub fn of(path: &Path, props: ContextProps) -> Result<Vec<BufferMemory>, ModelError> {
    let model = Model::load_header(path)?;
    let context = Context::new(&model, props)?;
    Ok(context.memory())
}
