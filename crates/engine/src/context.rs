//! A context: the KV cache and the computation of batches.

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicU64, Ordering},
};

use capture::BatchToken;
use gguf::GgmlType;
use llama_cpp_sys_2 as sys;

use crate::{EngineError, model::Model, take_errors};

static CONTEXTS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashAttention {
    /// llama.cpp decides.
    Auto,
    On,
    Off,
}

/// `GGML_MAX_N_THREADS`; many more, and the system refuses to make them.
pub const MAX_THREADS: i64 = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextProps {
    pub threads: usize,
    pub context: usize,
    pub batch: usize,
    pub micro_batch: usize,
    pub sequences: usize,
    pub key_type: GgmlType,
    pub value_type: GgmlType,
    pub flash_attention: FlashAttention,
    pub windows: Windows,
}

/// Cells of the KV cache for layers that look back over a window only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Windows {
    /// As many as the window needs, as llama.cpp's own programs have them.
    #[default]
    Narrow,
    /// As many as the context: tokens that are taken back leave all others where they are,
    /// which drafts ask for, so that no bit changes.
    Whole,
}

impl Default for ContextProps {
    fn default() -> Self {
        ContextProps {
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            context: 512,
            batch: 2048,
            micro_batch: 512,
            sequences: 1,
            key_type: GgmlType::F16,
            value_type: GgmlType::F16,
            flash_attention: FlashAttention::Auto,
            windows: Windows::Narrow,
        }
    }
}

/// `ggml_backend_sched_eval_callback`, to measure a plain eval callback beside us.
pub type EvalCallback = (
    unsafe extern "C" fn(*mut sys::ggml_tensor, bool, *mut std::ffi::c_void) -> bool,
    *mut std::ffi::c_void,
);

pub struct Context<'m> {
    raw: *mut sys::llama_context,
    props: ContextProps,
    vocabulary_size: usize,
    number: u64,
    model: PhantomData<&'m Model>,
}

impl<'m> Context<'m> {
    pub fn new(model: &'m Model, props: ContextProps) -> Result<Context<'m>, EngineError> {
        Context::with_callback(model, props, None)
    }

    pub fn with_callback(
        model: &'m Model,
        props: ContextProps,
        callback: Option<EvalCallback>,
    ) -> Result<Context<'m>, EngineError> {
        take_errors();
        // SAFETY: takes nothing.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = props.context as u32;
        params.n_batch = props.batch as u32;
        params.n_ubatch = props.micro_batch as u32;
        params.n_seq_max = props.sequences as u32;
        params.n_threads = props.threads as i32;
        params.n_threads_batch = props.threads as i32;
        params.type_k = props.key_type.as_u32() as sys::ggml_type;
        params.type_v = props.value_type.as_u32() as sys::ggml_type;
        params.flash_attn_type = match props.flash_attention {
            FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        };
        // One cache for all sequences: micro-batches keep the order of the batch,
        // so that each token's sequence is known.
        params.kv_unified = true;
        params.no_perf = true;
        params.swa_full = props.windows == Windows::Whole;
        if let Some((function, data)) = callback {
            params.cb_eval = Some(function);
            params.cb_eval_user_data = data;
        }
        // SAFETY: a loaded model, and parameters made by llama.cpp.
        let raw = unsafe { sys::llama_init_from_model(model.raw, params) };
        if raw.is_null() {
            return Err(EngineError::Context {
                reason: take_errors(),
            });
        }
        let vocabulary_size = model.vocabulary_size();
        let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
        Ok(Context {
            raw,
            props,
            vocabulary_size,
            number,
            model: PhantomData,
        })
    }

    /// Counts the contexts of this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn props(&self) -> &ContextProps {
        &self.props
    }

    /// Tokens that the context holds; llama.cpp may round what was asked for.
    pub fn size(&self) -> usize {
        // SAFETY: a live context.
        unsafe { sys::llama_n_ctx(self.raw) as usize }
    }

    /// Computes a batch. Logits are kept for the tokens that `wants_logits` names.
    pub fn decode(
        &mut self,
        tokens: &[BatchToken],
        wants_logits: impl Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        let mut ids: Vec<i32> = tokens.iter().map(|t| t.token).collect();
        let mut positions: Vec<i32> = tokens.iter().map(|t| t.position).collect();
        let mut counts = vec![1i32; tokens.len()];
        let mut sequences: Vec<i32> = tokens.iter().map(|t| t.sequence as i32).collect();
        let mut pointers: Vec<*mut i32> = sequences.iter_mut().map(|s| s as *mut i32).collect();
        let mut logits: Vec<i8> = (0..tokens.len())
            .map(|i| i8::from(wants_logits(i)))
            .collect();
        let batch = sys::llama_batch {
            n_tokens: tokens.len() as i32,
            token: ids.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: positions.as_mut_ptr(),
            n_seq_id: counts.as_mut_ptr(),
            seq_id: pointers.as_mut_ptr(),
            logits: logits.as_mut_ptr(),
        };
        // SAFETY: all arrays have n_tokens elements and outlive the call.
        match unsafe { sys::llama_decode(self.raw, batch) } {
            0 => Ok(()),
            code => Err(EngineError::Decode {
                tokens: tokens.len(),
                code,
                reason: take_errors(),
            }),
        }
    }

    /// Logits of the token at `index` of the last batch.
    pub fn logits(&self, index: usize) -> &[f32] {
        // SAFETY: a live context; the pointer is checked, and lives until the
        // next decode, which needs `&mut self`.
        unsafe {
            let logits = sys::llama_get_logits_ith(self.raw, index as i32);
            assert!(!logits.is_null(), "logits were not asked for at {index}");
            std::slice::from_raw_parts(logits, self.vocabulary_size)
        }
    }

    /// Forgets what a sequence has from `position` on. `false` where the model's memory cannot
    /// take back single tokens (recurrent ones).
    pub fn forget(&mut self, sequence: u32, position: usize) -> bool {
        // SAFETY: a live context's memory.
        unsafe {
            let memory = sys::llama_get_memory(self.raw);
            sys::llama_memory_seq_rm(memory, sequence as i32, position as i32, -1)
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        // SAFETY: a live context's memory.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.raw), true) };
    }

    pub(crate) fn raw(&self) -> *mut sys::llama_context {
        self.raw
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, used by nobody else.
        unsafe { sys::llama_free(self.raw) };
    }
}
