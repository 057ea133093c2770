//! Batches of newer versions of llama.cpp (`llama_batch_ext`), which only C++ can read: what the
//! program puts into one is noted while it does.

use std::ffi::{CStr, c_int, c_void};

use capture::{ANY_POSITION, BatchToken};

use crate::{
    hooks::{STATUS_FAILED, export},
    library::Original,
    lock::Lock,
    process,
};

export!(llama_batch_ext_add => add, "rdx", "x2");
export!(llama_batch_ext_add_token => add_token, "rcx", "x3");
export!(llama_batch_ext_set_pos => set_position, "rcx", "x3");
export!(llama_batch_ext_clear => clear, "rsi", "x1");
export!(llama_batch_ext_free => free, "rsi", "x1");

static ADD: Original = Original::new(c"llama_batch_ext_add");
static ADD_TOKEN: Original = Original::new(c"llama_batch_ext_add_token");
static SET_POSITION: Original = Original::new(c"llama_batch_ext_set_pos");
static CLEAR: Original = Original::new(c"llama_batch_ext_clear");
static FREE: Original = Original::new(c"llama_batch_ext_free");

/// Of a token that the program gave no number: it has an embedding instead.
const NO_TOKEN: i32 = -1;
/// A program has a few; one that never frees them is forgotten from the front.
const MAX_BATCHES: usize = 256;

/// What is in each batch, by its address.
static NOTED: Lock<Vec<(usize, Vec<BatchToken>)>> = Lock::new(Vec::new());

/// As [`crate::hooks::entries`].
pub fn entries() -> [(&'static CStr, usize); 5] {
    type Hook = unsafe extern "C" fn();
    let entry = |original: &'static Original, hook: Hook| (original.name(), hook as usize);
    [
        entry(&ADD, llama_batch_ext_add),
        entry(&ADD_TOKEN, llama_batch_ext_add_token),
        entry(&SET_POSITION, llama_batch_ext_set_pos),
        entry(&CLEAR, llama_batch_ext_clear),
        entry(&FREE, llama_batch_ext_free),
    ]
}

/// For `fork`.
pub fn take_lock() {
    NOTED.take();
}

pub fn release_lock() {
    NOTED.release();
}

/// The tokens of a batch; none when it was not filled by these functions.
pub fn tokens(batch: *const c_void) -> Vec<BatchToken> {
    with(batch as usize, |tokens| tokens.clone()).unwrap_or_default()
}

fn with<R>(batch: usize, f: impl FnOnce(&mut Vec<BatchToken>) -> R) -> Option<R> {
    NOTED.with(|noted| {
        let known = noted.iter_mut().find(|(address, _)| *address == batch);
        known.map(|(_, tokens)| f(tokens))
    })
}

/// `index` is what the library answered: negative when it took nothing.
fn note(batch: usize, index: c_int, sequence: i32, token: i32) {
    let Ok(index) = usize::try_from(index) else {
        return;
    };
    if !process::is_on() {
        return;
    }
    let token = BatchToken {
        token,
        position: ANY_POSITION,
        sequence: u32::try_from(sequence).unwrap_or(0),
    };
    NOTED.with(|noted| {
        let at = noted.iter().position(|(address, _)| *address == batch);
        let at = at.unwrap_or_else(|| {
            if noted.len() == MAX_BATCHES {
                noted.remove(0);
            }
            noted.push((batch, Vec::new()));
            noted.len() - 1
        });
        let tokens = &mut noted[at].1;
        // Indices come one after the other; others have been forgotten, or are embeddings.
        tokens.truncate(index);
        if tokens.len() == index {
            tokens.push(token);
        }
    });
}

/// `llama_batch_ext_add(batch, sequence)`.
unsafe extern "C" fn add(batch: *mut c_void, sequence: i32, caller: usize) -> c_int {
    let real = ADD.of(caller);
    if real.is_null() {
        return STATUS_FAILED;
    }
    // SAFETY: the C function of this name, with the program's arguments.
    let index = unsafe {
        let real: unsafe extern "C" fn(*mut c_void, i32) -> c_int = std::mem::transmute(real);
        real(batch, sequence)
    };
    note(batch as usize, index, sequence, NO_TOKEN);
    index
}

/// `llama_batch_ext_add_token(batch, sequence, token)`.
unsafe extern "C" fn add_token(
    batch: *mut c_void,
    sequence: i32,
    token: i32,
    caller: usize,
) -> c_int {
    let real = ADD_TOKEN.of(caller);
    if real.is_null() {
        return STATUS_FAILED;
    }
    // SAFETY: the C function of this name, with the program's arguments.
    let index = unsafe {
        let real: unsafe extern "C" fn(*mut c_void, i32, i32) -> c_int = std::mem::transmute(real);
        real(batch, sequence, token)
    };
    note(batch as usize, index, sequence, token);
    index
}

/// `llama_batch_ext_set_pos(batch, index, positions)`.
unsafe extern "C" fn set_position(
    batch: *mut c_void,
    index: i32,
    positions: *const i32,
    caller: usize,
) -> bool {
    let real = SET_POSITION.of(caller);
    if real.is_null() {
        return false;
    }
    // SAFETY: the C function of this name, with the program's arguments.
    let is_set = unsafe {
        let real: unsafe extern "C" fn(*mut c_void, i32, *const i32) -> bool =
            std::mem::transmute(real);
        real(batch, index, positions)
    };
    if is_set && process::is_on() && !positions.is_null() {
        // SAFETY: at least one, which the library has just read.
        let position = unsafe { *positions };
        with(batch as usize, |tokens| {
            let token = usize::try_from(index).ok().and_then(|i| tokens.get_mut(i));
            if let Some(token) = token {
                token.position = position;
            }
        });
    }
    is_set
}

/// `llama_batch_ext_clear(batch)`.
unsafe extern "C" fn clear(batch: *mut c_void, caller: usize) {
    with(batch as usize, Vec::clear);
    // SAFETY: as the program called it.
    unsafe { pass_on(&CLEAR, batch, caller) };
}

/// `llama_batch_ext_free(batch)`.
unsafe extern "C" fn free(batch: *mut c_void, caller: usize) {
    NOTED.with(|noted| noted.retain(|(address, _)| *address != batch as usize));
    // SAFETY: as the program called it.
    unsafe { pass_on(&FREE, batch, caller) };
}

unsafe fn pass_on(original: &Original, batch: *mut c_void, caller: usize) {
    let real = original.of(caller);
    if !real.is_null() {
        // SAFETY: a C function of this type, with the program's argument.
        unsafe {
            let real: unsafe extern "C" fn(*mut c_void) = std::mem::transmute(real);
            real(batch);
        }
    }
}
