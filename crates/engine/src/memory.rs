//! What memory llama.cpp takes, asked of llama.cpp itself, and of a model of which no weight is
//! read: its header is enough.

use std::{
    ffi::{CStr, c_char},
    path::Path,
};

use llama_cpp_sys_2 as sys;

use crate::{
    EngineError,
    absent::{self, AbsentGpu},
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

/// Devices that a model is laid out on, besides the processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    pub gpus: Vec<AbsentGpu>,
    /// Layers on the GPUs, the output being one more; `None` for all.
    pub layers: Option<u32>,
}

impl Model {
    /// Loads what describes a model, and none of its weights: nothing can be computed with it,
    /// but contexts can be made and say what they would take.
    pub fn load_header(path: &Path, offload: &Offload) -> Result<Model, ModelError> {
        let mut devices = match offload.gpus.is_empty() {
            true => None,
            false => {
                let handles = absent::handles(&offload.gpus);
                Some(handles.ok_or_else(|| EngineError::Context {
                    reason: "this version of ggml asks GPUs otherwise".to_owned(),
                })?)
            }
        };
        let all = i32::MAX;
        let layers = offload
            .layers
            .map_or(all, |n| i32::try_from(n).unwrap_or(all));
        let mut without_tokens = Vec::new();
        let mut stripped = None;
        Model::load_with(path, Loading::AsFound, |params, gguf| {
            without_tokens = no_vocabulary(gguf);
            stripped = without_vocabulary(gguf);
            params.kv_overrides = without_tokens.as_ptr();
            params.no_alloc = true;
            params.load_mode = sys::LLAMA_LOAD_MODE_NONE;
            params.use_extra_bufts = false;
            if let Some(devices) = &mut devices {
                params.devices = devices.as_mut_ptr();
                params.n_gpu_layers = layers;
            }
            stripped.as_ref().map(|file| file.path().to_owned())
        })
    }
}

/// Of each token, or long.
const LONG_KEYS: [&str; 6] = [
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.precompiled_charsmap",
    "tokenizer.chat_template",
];

/// A header without the vocabulary, which takes longer to read than all else. `None` where it
/// cannot be made; llama.cpp then reads the file itself.
fn without_vocabulary(gguf: &gguf::Model) -> Option<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().ok()?;
    let is_kept = |key: &str| !LONG_KEYS.contains(&key);
    let written = gguf.write_header_of(is_kept, file.as_file_mut());
    written.is_ok_and(|written| written).then_some(file)
}

/// Keys that make llama.cpp do without a vocabulary: its size is enough for buffers.
fn no_vocabulary(gguf: &gguf::Model) -> Vec<sys::llama_model_kv_override> {
    let tokens = gguf.metadata().get("tokenizer.ggml.tokens");
    let tokens = tokens.and_then(|value| Some(value.as_array()?.count));
    let Some(count) = tokens.or(gguf.hyper().vocabulary) else {
        return vec![end_of_overrides()];
    };
    let mut no_model = override_of("tokenizer.ggml.model");
    no_model.tag = sys::LLAMA_KV_OVERRIDE_TYPE_STR;
    no_model.__bindgen_anon_1.val_str = c_text("no_vocab");
    let mut size = override_of(&format!("{}.vocab_size", gguf.hyper().architecture));
    size.tag = sys::LLAMA_KV_OVERRIDE_TYPE_INT;
    size.__bindgen_anon_1.val_i64 = count as i64;
    vec![no_model, size, end_of_overrides()]
}

fn override_of(key: &str) -> sys::llama_model_kv_override {
    let mut one = end_of_overrides();
    one.key = c_text(key);
    one
}

/// An empty key.
fn end_of_overrides() -> sys::llama_model_kv_override {
    // SAFETY: numbers and characters, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// As much of a text as there is room for, ended by a zero.
fn c_text(text: &str) -> [c_char; 128] {
    let mut characters = [0; 128];
    let places = characters.iter_mut().take(127);
    for (place, byte) in places.zip(text.bytes()) {
        *place = byte as c_char;
    }
    characters
}

/// What llama.cpp would take for a model and a context; no weight is read and no buffer made.
pub fn of(path: &Path, props: ContextProps) -> Result<Vec<BufferMemory>, ModelError> {
    let model = Model::load_header(path, &Offload::default())?;
    let context = Context::new(&model, props)?;
    Ok(context.memory())
}
