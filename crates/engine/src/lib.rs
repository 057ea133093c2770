//! The built-in engine: unmodified llama.cpp, linked statically.
//!
//! - [`model`], [`context`]: llama.cpp's two objects, owned;
//! - [`hooks`]: where llama.cpp's graph computations pass through us;
//! - [`generate`]: prompt in, tokens out;
//! - [`draft`]: tokens that are guessed, and checked together;
//! - [`loading`]: how a model's file is mapped, and read or not read while it is loaded;
//! - [`memory`]: what llama.cpp would take, without a weight read;
//! - [`kernels`]: how fast llama.cpp's own kernels are here;
//! - [`absent`]: GPUs that are not here, for llama.cpp to lay a model out on;
//! - [`feeding`]: a model larger than memory, its weights fed (crate `feed`);
//! - [`recording`]: a recorder for this engine and its run directory's log;
//! - [`audit`]: the record held against the MMU;
//! - [`one_by_one`]: batches with the numbers that their tokens have alone;
//! - [`overhead`]: what recording costs, measured token by token;
//! - [`processor`]: which instructions are to be had here;
//! - [`variant`]: llama.cpp's kernels, of which those for this processor are chosen;
//! - [`truncation`]: the model's file, cut short while it is mapped.
//!
//! Only this crate knows llama.cpp's C API.

pub mod absent;
pub mod audit;
pub mod context;
pub mod draft;
pub mod feeding;
pub mod generate;
pub mod hooks;
pub mod kernels;
pub mod loading;
pub mod memory;
pub mod model;
pub mod one_by_one;
pub mod overhead;
pub mod processor;
pub mod recording;
pub mod truncation;
pub mod variant;

use std::{
    ffi::{CStr, c_char, c_void},
    path::PathBuf,
    sync::{Mutex, Once},
};

use llama_cpp_sys_2 as sys;

/// What can go wrong, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(
        "this processor does not run {instructions} instructions, which the built-in llama.cpp was \
         compiled with; `tensorscope record -- PROGRAM` records a llama.cpp that was built for it"
    )]
    Processor { instructions: &'static str },
    #[error(
        "{}={asked}: there are no such kernels; those there are: {all}",
        variant::VARIABLE
    )]
    UnknownVariant { asked: String, all: String },
    #[error(
        "{}={asked}: this processor does not run {instructions} instructions; \
         kernels that it runs: {usable}",
        variant::VARIABLE
    )]
    UnusableVariant {
        asked: String,
        instructions: &'static str,
        usable: String,
    },
    #[error("{}: llama.cpp refuses the model: {reason}", path.display())]
    Model { path: PathBuf, reason: String },
    #[error("llama.cpp cannot make a context: {reason}")]
    Context { reason: String },
    #[error("the prompt is empty; give one with -p TEXT or -f FILE")]
    EmptyPrompt,
    #[error(
        "the prompt has {prompt} tokens and {wanted} more are wanted, but the context holds {context}; \
         use --ctx-size {}, a shorter prompt or fewer tokens", prompt + wanted
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
    #[error("the draft model cannot draft for this model: {reason}")]
    Draft { reason: String },
    #[error("the memory of this model's architecture cannot take back tokens; use --draft off")]
    CannotTakeBack,
    #[error("{0}")]
    Log(String),
    #[error(transparent)]
    Feed(#[from] feed::FeedError),
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
    /// The variant that computes, where one can.
    pub kernels: Option<&'static str>,
}

pub fn versions() -> Versions {
    let text = |pointer: *const c_char| {
        // SAFETY: llama.cpp answers with static strings.
        let text = unsafe { CStr::from_ptr(pointer) };
        text.to_string_lossy().into_owned()
    };
    // SAFETY: both take nothing.
    unsafe {
        Versions {
            llama: text(sys::llama_version()),
            ggml: text(sys::ggml_version()),
            crate_version: "0.1.160",
            kernels: variant::chosen().ok().map(|variant| variant.name),
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
        Some(first) => reason(first).to_owned(),
    }
}

/// A line of llama.cpp's log without the names of the functions that pass it on.
fn reason(line: &str) -> &str {
    let is_name = |part: &str| {
        let mut bytes = part.bytes();
        !part.is_empty() && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let mut rest = line;
    loop {
        rest = match rest.split_once(": ") {
            Some((part, tail)) if is_name(part) || part.starts_with("error loading model") => tail,
            _ => return rest,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn the_cause_is_kept_and_the_functions_are_not() {
        let check = |line: &str, expected: &str| assert_eq!(reason(line), expected);
        check(
            "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'x'",
            "unknown model architecture: 'x'",
        );
        check(
            "llama_init: V cache quantization requires flash_attn",
            "V cache quantization requires flash_attn",
        );
        check(
            "key not found in model: llama.context_length",
            "key not found in model: llama.context_length",
        );
        check("", "");
    }
}
