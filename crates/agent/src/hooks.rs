//! The exported functions, each a stub that notes who called and jumps on.
//!
//! The return address tells the calling library ([`crate::library`]). It is
//! passed as one argument more than the function has.

use std::{
    cell::Cell,
    ffi::{CStr, OsStr, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::atomic::{AtomicPtr, Ordering},
};

use capture::{
    RawPlan,
    hook::{ComputeFn, Shield, compute_shielded},
};
use ggml::{Graph, RawGraph, foreign::TensorLayout, foreign::graph_without_uid};
use trace::clock::now_nanos;

use crate::{
    library::{Library, Original},
    lock::Lock,
    models, process, settings, streams,
};

/// `GGML_STATUS_FAILED`.
const STATUS_FAILED: c_int = -1;

/// Exports `$name`, which calls `$target` with the return address as the argument
/// behind the `$registers` that the C function takes.
macro_rules! export {
    ($name:ident => $target:path, $x86_64:literal, $aarch64:literal) => {
        /// See the ggml function of this name.
        ///
        /// # Safety
        /// As that function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "endbr64",
                concat!("mov ", $x86_64, ", [rsp]"),
                "jmp {target}",
                target = sym $target,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "bti c",
                concat!("mov ", $aarch64, ", x30"),
                "b {target}",
                target = sym $target,
            );
        }
    };
}

export!(ggml_graph_compute => compute, "rdx", "x2");
export!(ggml_backend_sched_graph_compute_async => compute_context, "rdx", "x2");
export!(ggml_backend_sched_free => free_context, "rsi", "x1");
export!(ggml_backend_reg_get_proc_address => get_proc_address, "rdx", "x2");
export!(gguf_init_from_file => open_model, "rcx", "x3");
export!(gguf_init_from_file_ptr => open_model_file, "rcx", "x3");

static COMPUTE: Original = Original::new(c"ggml_graph_compute");
static COMPUTE_CONTEXT: Original = Original::new(c"ggml_backend_sched_graph_compute_async");
static FREE_CONTEXT: Original = Original::new(c"ggml_backend_sched_free");
static GET_PROC_ADDRESS: Original = Original::new(c"ggml_backend_reg_get_proc_address");
static OPEN_MODEL: Original = Original::new(c"gguf_init_from_file");
static OPEN_MODEL_FILE: Original = Original::new(c"gguf_init_from_file_ptr");

thread_local! {
    /// The scheduler that computes on this thread.
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
    /// A graph inside a graph (a custom op may compute one) is not recorded.
    static IS_COMPUTING: Cell<bool> = const { Cell::new(false) };
}

/// `ggml_graph_compute(cgraph, cplan)`.
unsafe extern "C" fn compute(graph: *mut c_void, plan: *mut RawPlan, caller: usize) -> c_int {
    let real = COMPUTE.of(caller);
    if real.is_null() {
        process::switch_off("ggml_graph_compute was called, but no library has it");
        return STATUS_FAILED;
    }
    // SAFETY: the C function of this name.
    let real: ComputeFn = unsafe { std::mem::transmute(real) };
    if !process::is_on() || IS_COMPUTING.get() || graph.is_null() || plan.is_null() {
        // SAFETY: the call that the program made.
        return unsafe { real(graph, plan) };
    }
    let prepared = catch_unwind(|| prepare(caller, real));
    let Ok(Some((process, library, mut lent))) = prepared else {
        if prepared.is_err() {
            process::switch_off("an error in the recorder itself, before a graph");
        }
        // SAFETY: the call that the program made.
        return unsafe { real(graph, plan) };
    };
    let stream = lent.stream();
    let mut copy = None;
    // SAFETY: a live graph of this library.
    let view = catch_unwind(AssertUnwindSafe(|| unsafe {
        view_of(library, graph, stream, &mut copy)
    }));
    let view = match view {
        Ok(Ok(view)) => view,
        Ok(Err(reason)) => {
            process::switch_off(&reason);
            // SAFETY: the call that the program made.
            return unsafe { real(graph, plan) };
        }
        Err(_) => {
            process::switch_off("an error in the recorder itself, in reading a graph");
            lent.keep();
            // SAFETY: the call that the program made.
            return unsafe { real(graph, plan) };
        }
    };
    let context = CONTEXT.get();
    stream
        .recorder
        .set_context(streams::context_number(process, context));
    IS_COMPUTING.set(true);
    // SAFETY: the graph as its own library laid it out, or translated; the
    // mirror is not touched until the call returns.
    let (status, shield) = unsafe {
        // The view borrows nothing that the recorder changes.
        let view = Graph::from_ptr(view).expect("not null");
        let layout = library.plan_layout;
        compute_shielded(&mut stream.recorder, view, graph, plan, layout, real)
    };
    IS_COMPUTING.set(false);
    if shield == Shield::Broken {
        process::switch_off("an error in the recorder itself");
        lent.keep();
        return status;
    }
    if let Some(reason) = stream.recorder.refusal() {
        process::switch_off(&format!("{}: {reason}", library.path));
        return status;
    }
    stream.count(process);
    status
}

/// What recording this call needs; `None` when it is not to be recorded.
fn prepare(
    caller: usize,
    real: ComputeFn,
) -> Option<(&'static process::Process, &'static Library, streams::Lent)> {
    let process = process::current()?;
    if !process.control.allows(now_nanos()) {
        return None;
    }
    let library = library_of(process, caller, real)?;
    let lent = streams::lend(process, library, CONTEXT.get());
    if lent.is_none() && process::is_on() {
        process.status.count_lost(0, 0);
    }
    Some((process, library, lent?))
}

/// The graph in our layout: itself, or a copy.
unsafe fn view_of(
    library: &Library,
    graph: *mut c_void,
    stream: &mut streams::Stream,
    copy: &mut Option<RawGraph>,
) -> Result<*const c_void, String> {
    // SAFETY: a live graph of this library (caller).
    let layout = unsafe { library.tensor_layout(graph, &mut stream.mirror) }?;
    Ok(match layout {
        TensorLayout::Today if library.has_uid => graph.cast_const(),
        TensorLayout::Today => {
            // SAFETY: as above.
            std::ptr::from_ref(copy.insert(unsafe { graph_without_uid(graph) })).cast()
        }
        other => {
            stream.recorder.trust_layout();
            // SAFETY: as above; the layout was found out.
            std::ptr::from_ref(unsafe { stream.mirror.translate(graph, other) }).cast()
        }
    })
}

/// Libraries that have computed, by their `ggml_graph_compute`. Never freed.
static LIBRARIES: [AtomicPtr<Library>; 8] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 8];
static DESCRIBING: Lock<()> = Lock::new(());

fn library_of(
    process: &process::Process,
    caller: usize,
    real: ComputeFn,
) -> Option<&'static Library> {
    let known = || {
        LIBRARIES
            .iter()
            // SAFETY: never freed.
            .map_while(|library| unsafe { library.load(Ordering::Acquire).as_ref() })
            .find(|library| library.compute as usize == real as usize)
    };
    known().or_else(|| {
        DESCRIBING.with(|()| {
            if let Some(library) = known() {
                return Some(library);
            }
            match Library::describe(caller, real) {
                Ok(library) => {
                    let library: &'static Library = Box::leak(Box::new(library));
                    let free = LIBRARIES
                        .iter()
                        .find(|l| l.load(Ordering::Acquire).is_null());
                    let Some(free) = free else {
                        process::switch_off("more copies of ggml than can be recorded");
                        return None;
                    };
                    free.store(std::ptr::from_ref(library).cast_mut(), Ordering::Release);
                    process.note_library(library);
                    Some(library)
                }
                Err(reason) => {
                    process::switch_off(&reason);
                    None
                }
            }
        })
    })
}

/// `ggml_backend_sched_graph_compute_async(sched, graph)`.
unsafe extern "C" fn compute_context(
    context: *mut c_void,
    graph: *mut c_void,
    caller: usize,
) -> c_int {
    let real = COMPUTE_CONTEXT.of(caller);
    if real.is_null() {
        return STATUS_FAILED;
    }
    // SAFETY: the C function of this name, with the program's arguments.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int =
            std::mem::transmute(real);
        let before = CONTEXT.replace(context as usize);
        let status = real(context, graph);
        CONTEXT.set(before);
        status
    }
}

/// `ggml_backend_sched_free(sched)`.
unsafe extern "C" fn free_context(context: *mut c_void, caller: usize) {
    let real = FREE_CONTEXT.of(caller);
    if process::is_on() && !context.is_null() {
        streams::forget_context(context as usize);
    }
    if !real.is_null() {
        // SAFETY: the C function of this name, with the program's argument.
        unsafe {
            let real: unsafe extern "C" fn(*mut c_void) = std::mem::transmute(real);
            real(context);
        }
    }
}

/// `ggml_backend_reg_get_proc_address(reg, name)`. Without the one function that
/// lists them, llama.cpp uses no buffers that hold weights in another order.
unsafe extern "C" fn get_proc_address(
    registry: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> *mut c_void {
    if settings::get().is_some_and(|s| s.hides_extra_buffer_types) && !name.is_null() {
        // SAFETY: the program passes a C string.
        let wanted = unsafe { CStr::from_ptr(name) };
        if wanted == c"ggml_backend_dev_get_extra_bufts" {
            return std::ptr::null_mut();
        }
    }
    let real = GET_PROC_ADDRESS.of(caller);
    if real.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the C function of this name, with the program's arguments.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
            std::mem::transmute(real);
        real(registry, name)
    }
}

/// `gguf_init_from_file(path, params)`; the struct of a bool and a pointer is
/// passed in two registers.
unsafe extern "C" fn open_model(
    path: *const c_char,
    params_0: usize,
    params_1: usize,
    caller: usize,
) -> *mut c_void {
    let real = OPEN_MODEL.of(caller);
    if real.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the C function of this name, with the program's arguments.
    let gguf = unsafe {
        let real: unsafe extern "C" fn(*const c_char, usize, usize) -> *mut c_void =
            std::mem::transmute(real);
        real(path, params_0, params_1)
    };
    if process::is_on() && !gguf.is_null() && !path.is_null() {
        // SAFETY: the program passes a C string, with which the call succeeded.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        // SAFETY: the context that the library has just made.
        unsafe { note_model(Path::new(OsStr::from_bytes(bytes)), gguf, caller) };
    }
    gguf
}

/// `gguf_init_from_file_ptr(file, params)`.
unsafe extern "C" fn open_model_file(
    file: *mut libc::FILE,
    params_0: usize,
    params_1: usize,
    caller: usize,
) -> *mut c_void {
    let real = OPEN_MODEL_FILE.of(caller);
    if real.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the C function of this name, with the program's arguments.
    let gguf = unsafe {
        let real: unsafe extern "C" fn(*mut libc::FILE, usize, usize) -> *mut c_void =
            std::mem::transmute(real);
        real(file, params_0, params_1)
    };
    if process::is_on() && !gguf.is_null() && !file.is_null() {
        // SAFETY: an open stream, from which the library has just read.
        let descriptor = unsafe { libc::fileno(file) };
        let path = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
        // SAFETY: the context that the library has just made.
        unsafe { note_model(&path, gguf, caller) };
    }
    gguf
}

unsafe fn note_model(path: &Path, gguf: *mut c_void, caller: usize) {
    // SAFETY: as promised by the caller.
    let noted = catch_unwind(|| unsafe { models::note(path, gguf, caller) });
    if noted.is_err() {
        process::switch_off("an error in the recorder itself, in reading a model's names");
    }
}
