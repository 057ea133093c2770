//! The batch that a thread decodes, for whose sequences and tokens only llama.cpp's own
//! functions can be asked.

use std::{
    cell::{Cell, RefCell},
    ffi::{CStr, c_int, c_void},
};

use capture::{ANY_POSITION, BatchToken, Recorder};

use crate::{
    hooks::{STATUS_FAILED, export, replace_decoding},
    library::Original,
    noted_batches,
};

// `llama_context::decode(const llama_batch &)`, since 2025-03.
export!(_ZN13llama_context6decodeERK11llama_batch => decode, "rdx", "x2");

// `llama_context::decode(const llama_batch_ext &)` of newer versions; what is in it only C++ knows.
export!(_ZN13llama_context6decodeERK15llama_batch_ext => decode_ext, "rdx", "x2");

static DECODE_EXT: Original = Original::new(c"_ZN13llama_context6decodeERK15llama_batch_ext");
static DECODE: Original = Original::new(c"_ZN13llama_context6decodeERK11llama_batch");
static LLAMA_DECODE: Original = Original::new(c"llama_decode");

thread_local! {
    /// The same for a batch that only C++ can read.
    static NOTED: RefCell<Vec<BatchToken>> = const { RefCell::new(Vec::new()) };
    /// The batch that this thread decodes, until an evaluation has taken it over.
    static BATCH: Cell<*const RawBatch> = const { Cell::new(std::ptr::null()) };
}

/// As [`crate::hooks::entries`].
pub fn entries() -> [(&'static CStr, usize); 3] {
    let method: unsafe extern "C" fn() = _ZN13llama_context6decodeERK11llama_batch;
    let method_ext: unsafe extern "C" fn() = _ZN13llama_context6decodeERK15llama_batch_ext;
    [
        (DECODE.name(), method as usize),
        (DECODE_EXT.name(), method_ext as usize),
        (
            LLAMA_DECODE.name(),
            enter_llama_decode as *const () as usize,
        ),
    ]
}

/// Tells the recorder the tokens of the evaluation that follows, where they are known.
pub fn announce(recorder: &mut Recorder) {
    let noted = NOTED.take();
    let batch = BATCH.replace(std::ptr::null());
    if !noted.is_empty() {
        recorder.set_tokens(noted.into_iter());
    } else if !batch.is_null() {
        // SAFETY: the program's batch, which it lent to the `decode` that this
        // computation is part of.
        recorder.set_tokens(unsafe { tokens_of(&*batch) });
    }
}

/// `llama_batch`, whose first fields never moved.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawBatch {
    n_tokens: i32,
    token: *const i32,
    embeddings: *const f32,
    position: *const i32,
    n_sequences: *const i32,
    sequences: *const *const i32,
}

/// `llama_context::decode(batch)`: only here the sequences of tokens are known.
unsafe extern "C" fn decode(context: *mut c_void, batch: *const RawBatch, caller: usize) -> c_int {
    let real = DECODE.of(caller);
    if real.is_null() {
        return STATUS_FAILED;
    }
    // SAFETY: the C++ method of this name, with the program's arguments.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *const RawBatch) -> c_int =
            std::mem::transmute(real);
        let before = BATCH.replace(batch);
        let status = real(context, batch);
        BATCH.set(before);
        status
    }
}

/// The same for a batch that only C++ can read ([`noted_batches`]). Tells the context where nothing else does: in a
/// stripped program, whose schedulers are not known.
unsafe extern "C" fn decode_ext(
    context: *mut c_void,
    batch: *const c_void,
    caller: usize,
) -> c_int {
    let real = DECODE_EXT.of(caller);
    if real.is_null() {
        return STATUS_FAILED;
    }
    // SAFETY: the C++ method of this name, with the program's arguments.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int =
            std::mem::transmute(real);
        let before = replace_decoding(context as usize);
        NOTED.set(noted_batches::tokens(batch));
        let status = real(context, batch);
        NOTED.set(Vec::new());
        replace_decoding(before);
        status
    }
}

/// `llama_decode(context, batch)` of an object with ggml inside, where the method is often
/// part of it. Not exported: elsewhere the method is hooked.
#[unsafe(naked)]
unsafe extern "C" fn enter_llama_decode() {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "mov rsi, [rsp]",
        "jmp {target}",
        target = sym llama_decode,
    );
    // There nothing is patched.
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("brk 1");
}

/// `llama_batch` as it lies on the stack, with up to ten fields since 2024. What lies behind
/// a shorter one is copied with it, and not looked at.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
#[derive(Clone, Copy)]
struct BatchOnStack {
    batch: RawBatch,
    rest: [u64; 10],
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn llama_decode(
    context: *mut c_void,
    caller: usize,
    batch: BatchOnStack,
) -> c_int {
    let real = LLAMA_DECODE.of(caller);
    if real.is_null() {
        return STATUS_FAILED;
    }
    // SAFETY: the C function of this name, with the program's arguments.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, BatchOnStack) -> c_int =
            std::mem::transmute(real);
        let before = BATCH.replace(&raw const batch.batch);
        let status = real(context, batch);
        BATCH.set(before);
        status
    }
}

/// Each token with its first sequence.
unsafe fn tokens_of(batch: &RawBatch) -> impl Iterator<Item = BatchToken> {
    let count = match batch.token.is_null() {
        true => 0,
        false => usize::try_from(batch.n_tokens).unwrap_or(0),
    };
    (0..count).map(|i| {
        // SAFETY: arrays of so many elements, or null.
        unsafe {
            let sequence = match batch.n_sequences.is_null() || batch.sequences.is_null() {
                true => std::ptr::null(),
                false if *batch.n_sequences.add(i) < 1 => std::ptr::null(),
                false => *batch.sequences.add(i),
            };
            BatchToken {
                token: *batch.token.add(i),
                position: match batch.position.is_null() {
                    true => ANY_POSITION,
                    false => *batch.position.add(i),
                },
                // Without a list of sequences llama.cpp takes the first.
                sequence: match sequence.is_null() {
                    true => 0,
                    false => u32::try_from(*sequence).unwrap_or(0),
                },
            }
        }
    })
}
