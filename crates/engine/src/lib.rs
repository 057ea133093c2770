//! The built-in engine: unmodified llama.cpp, linked statically.
//!
//! - [`model`], [`context`]: llama.cpp's two objects, owned;
//! - [`hooks`]: where llama.cpp's graph computations pass through us;
//! - [`generate`]: prompt in, tokens out;
//! - [`recording`]: a recorder for this engine and its run directory's log;
//! - [`audit`]: the record held against the MMU;
//! - [`overhead`]: what recording costs, measured token by token.
//!
//! Only this crate knows llama.cpp's C API.

pub mod audit;
pub mod context;
pub mod generate;
pub mod hooks;
pub mod model;
pub mod overhead;
pub mod recording;

use std::{
    ffi::{CStr, c_char, c_void},
    path::PathBuf,
    sync::{Mutex, Once},
};

use llama_cpp_sys_2 as sys;

/// What can go wrong, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("{}: llama.cpp refuses the model: {reason}", path.display())]
    Model { path: PathBuf, reason: String },
    #[error("llama.cpp cannot make a context: {reason}")]
    Context { reason: String },
    #[error("the prompt is empty; give one with -p TEXT or -f FILE")]
    EmptyPrompt,
    #[error(
        "the prompt has {prompt} tokens and {wanted} more are wanted, but the context holds {context}; \
         use --ctx {} or a shorter prompt", prompt + wanted
    )]
    PromptTooLong {
        prompt: usize,
        wanted: usize,
        context: usize,
    },
    #[error("llama.cpp failed to evaluate a batch of {tokens} tokens (code {code}): {reason}")]
    Decode {
        tokens: usize,
        code: i32,
        reason: String,
    },
    #[error("llama.cpp cannot tokenize the prompt")]
    Tokenize,
    #[error("{0}")]
    Log(String),
}

/// Lines that llama.cpp logged as errors since they were last taken.
static ERRORS: Mutex<String> = Mutex::new(String::new());

/// Starts llama.cpp and takes over its log; further calls do nothing.
pub fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the callback lives for ever and may be called from any thread.
        unsafe {
            sys::llama_log_set(Some(on_log), std::ptr::null_mut());
            sys::llama_backend_init();
        }
    });
}

/// Versions of what is linked in.
pub struct Versions {
    pub llama: String,
    pub ggml: String,
    pub crate_version: &'static str,
}

pub fn versions() -> Versions {
    // SAFETY: both take nothing and answer with static strings.
    let text = |pointer: *const c_char| {
        unsafe { CStr::from_ptr(pointer) }
            .to_string_lossy()
            .into_owned()
    };
    // SAFETY: as above.
    unsafe {
        Versions {
            llama: text(sys::llama_version()),
            ggml: text(sys::ggml_version()),
            crate_version: "0.1.160",
        }
    }
}

unsafe extern "C" fn on_log(level: sys::ggml_log_level, line: *const c_char, _: *mut c_void) {
    if level != sys::GGML_LOG_LEVEL_ERROR {
        return;
    }
    // SAFETY: llama.cpp passes a valid string.
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy();
    if let Ok(mut errors) = ERRORS.lock() {
        // A loop of errors must not eat the memory.
        if errors.len() < 16_384 {
            errors.push_str(&line);
        }
    }
}

/// What llama.cpp said was wrong, in one line.
fn take_errors() -> String {
    let text = ERRORS
        .lock()
        .map(|mut e| std::mem::take(&mut *e))
        .unwrap_or_default();
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    match lines.first() {
        None => "it gives no reason".into(),
        // The first line is the cause, what follows are its consequences.
        Some(first) => first
            .rsplit_once(": ")
            .map_or(*first, |(_, reason)| reason)
            .to_owned(),
    }
}
