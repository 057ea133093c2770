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
};

use capture::{
    RawCplan, Recorder,
    hook::{self, ComputeFn, Computed, How, Observer, Ticks},
    recorder::cycles,
};
use ggml::{Graph, RawGraph, foreign::TensorLayout, foreign::graph_without_uid};
use trace::clock::now_nanos;

use crate::{
    batches, devices, feeding,
    library::{self, Library, Original},
    measure::{self, Turn},
    models, noted_batches,
    passes::Pass,
    process, settings, streams, watch,
};

/// `GGML_STATUS_FAILED`.
pub const STATUS_FAILED: c_int = -1;

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

pub(crate) use export;

export!(ggml_graph_compute => compute, "rdx", "x2");
export!(ggml_backend_sched_graph_compute_async => compute_context, "rdx", "x2");
export!(ggml_backend_sched_graph_compute => compute_context_and_wait, "rdx", "x2");
export!(ggml_backend_sched_free => free_context, "rsi", "x1");
export!(ggml_backend_reg_get_proc_address => get_proc_address, "rdx", "x2");
export!(gguf_init_from_file => open_model, "rcx", "x3");
export!(gguf_init_from_file_ptr => open_model_file, "rcx", "x3");

static COMPUTE: Original = Original::new(c"ggml_graph_compute");
static COMPUTE_CONTEXT: Original = Original::new(c"ggml_backend_sched_graph_compute_async");
static COMPUTE_CONTEXT_AND_WAIT: Original = Original::new(c"ggml_backend_sched_graph_compute");
static FREE_CONTEXT: Original = Original::new(c"ggml_backend_sched_free");
static GET_PROC_ADDRESS: Original = Original::new(c"ggml_backend_reg_get_proc_address");
static OPEN_MODEL: Original = Original::new(c"gguf_init_from_file");
static OPEN_MODEL_FILE: Original = Original::new(c"gguf_init_from_file_ptr");

/// What is hooked in an object with ggml inside: the function, and where calls go.
pub fn entries() -> impl Iterator<Item = (&'static CStr, usize)> {
    type Hook = unsafe extern "C" fn();
    let entry = |name, hook: Hook| (name, hook as usize);
    let of_graphs = [
        entry(COMPUTE.name(), ggml_graph_compute),
        entry(
            COMPUTE_CONTEXT.name(),
            ggml_backend_sched_graph_compute_async,
        ),
        entry(
            COMPUTE_CONTEXT_AND_WAIT.name(),
            ggml_backend_sched_graph_compute,
        ),
        entry(FREE_CONTEXT.name(), ggml_backend_sched_free),
        entry(GET_PROC_ADDRESS.name(), ggml_backend_reg_get_proc_address),
    ];
    let of_batches = batches::entries().into_iter();
    of_graphs
        .into_iter()
        .chain(of_batches)
        .chain(noted_batches::entries())
}

thread_local! {
    /// The scheduler that computes on this thread.
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
    /// What stands for the scheduler where that is not known: what decodes on this thread.
    static DECODING: Cell<usize> = const { Cell::new(0) };
    /// The one that computed last.
    static LAST_CONTEXT: Cell<usize> = const { Cell::new(0) };
    /// A graph inside a graph (a custom op may compute one) is not recorded.
    static IS_COMPUTING: Cell<bool> = const { Cell::new(false) };
}

/// What decodes on this thread from now on; what did before.
pub fn replace_decoding(context: usize) -> usize {
    DECODING.replace(context)
}

/// The scheduler that computes on this thread, or what stands for it. A scheduler goes first:
/// copies before and after a computation have to go where that went.
fn computing_context() -> usize {
    match CONTEXT.get() {
        0 => DECODING.get(),
        context => context,
    }
}

/// Whether a scheduler computes on this thread.
pub fn is_in_scheduler() -> bool {
    CONTEXT.get() != 0
}

/// A context is gone, and its address may come back as another one.
fn forget_last(context: usize) {
    if LAST_CONTEXT.get() == context {
        LAST_CONTEXT.set(0);
    }
}

/// What computes on this thread, or did last.
pub fn last_context() -> usize {
    match CONTEXT.get() {
        0 => LAST_CONTEXT.get(),
        context => context,
    }
}

/// Whether this thread is inside of a computation.
pub fn is_computing() -> bool {
    IS_COMPUTING.get()
}

/// `ggml_graph_compute(cgraph, cplan)`.
unsafe extern "C" fn compute(graph: *mut c_void, cplan: *mut RawCplan, caller: usize) -> c_int {
    let real = COMPUTE.of(caller);
    if real.is_null() {
        process::switch_off("ggml_graph_compute was called, but no library has it");
        return STATUS_FAILED;
    }
    // SAFETY: the C function of this name.
    let real: ComputeFn = unsafe { std::mem::transmute(real) };
    let is_observed = feeding::is_on() || process::is_on();
    if !is_observed || IS_COMPUTING.get() || graph.is_null() || cplan.is_null() {
        // SAFETY: the call that the program made.
        return unsafe { real(graph, cplan) };
    }
    let call = Computation {
        graph,
        cplan,
        caller,
        real,
    };
    // SAFETY: as above.
    unsafe {
        if feeding::is_on() {
            feeding::compute(&call)
        } else if settings::get().is_some_and(|settings| settings.measures) {
            compute_measured(&call)
        } else {
            compute_observed(&call, None).0
        }
    }
}

/// A call of `ggml_graph_compute`, which `real` is.
pub struct Computation {
    pub graph: *mut c_void,
    pub cplan: *mut RawCplan,
    /// Where it returns to.
    pub caller: usize,
    pub real: ComputeFn,
}

impl Computation {
    /// Nobody of us takes part.
    ///
    /// # Safety
    /// The call that the program made.
    pub unsafe fn pass_on(&self) -> c_int {
        // SAFETY: as promised by the caller.
        unsafe { (self.real)(self.graph, self.cplan) }
    }

    /// `observers` take part; `view` is the graph in our layout.
    ///
    /// # Safety
    /// As above, and the view stays valid during the call.
    unsafe fn observed(
        &self,
        observers: &mut [&mut dyn Observer],
        view: *const c_void,
        library: &Library,
        ticks: Ticks,
    ) -> Computed {
        let how = How {
            layout: library.cplan_layout,
            ticks,
        };
        IS_COMPUTING.set(true);
        // SAFETY: as promised by the caller; not null.
        let computed = unsafe {
            let view = Graph::from_ptr(view).expect("a graph that is computed");
            hook::compute(observers, view, self.graph, self.cplan, how, self.real)
        };
        IS_COMPUTING.set(false);
        computed
    }
}

/// Recorded in every third call only, and timed in all.
#[cold]
unsafe fn compute_measured(call: &Computation) -> c_int {
    let (turn, round) = Turn::next();
    let begin = now_nanos();
    // SAFETY: the call that the program made.
    let (status, cycles_inside_us) = unsafe {
        match turn {
            Turn::PassedOn | Turn::PassedOnAgain => (call.pass_on(), 0),
            Turn::Recorded => compute_observed(call, None),
        }
    };
    let nanos = now_nanos() - begin;
    if let Some(process) = process::current() {
        // SAFETY: a live graph; the field never moved.
        let nodes = unsafe { (&raw const (*call.graph.cast::<RawGraph>()).n_nodes).read() };
        let note = measure::Note {
            turn,
            round,
            nodes: u64::try_from(nodes).unwrap_or(0),
            nanos,
            cycles_inside_us,
        };
        measure::note(process, &note);
    }
    status
}

/// Computes a graph, recorded if this process is, and its weights fed. The status, and the
/// cycles that were spent in here (when that is measured).
///
/// # Safety
/// The call that the program made.
pub unsafe fn compute_observed(call: &Computation, feeding: Option<Fed<'_>>) -> (c_int, u64) {
    let begin = cycles();
    let prepared = catch_unwind(|| prepare(call));
    if prepared.is_err() {
        process::switch_off("an error in the recorder itself, before a graph");
    }
    // SAFETY: the call that the program made.
    unsafe {
        match prepared {
            Ok(Some(recording)) => compute_recorded(call, recording, feeding, begin),
            _ => (compute_fed(call, feeding), 0),
        }
    }
}

/// Who feeds a graph, and the library that computes it, which lays its structs out as today.
pub struct Fed<'a> {
    pub feeding: &'a mut dyn Observer,
    pub library: &'static Library,
}

/// Not recorded.
unsafe fn compute_fed(call: &Computation, feeding: Option<Fed<'_>>) -> c_int {
    let mut copy = None;
    let Some(Fed { feeding, library }) = feeding else {
        // SAFETY: the call that the program made.
        return unsafe { call.pass_on() };
    };
    // SAFETY: a live graph of a library whose layout is known.
    let view = unsafe { view_as_today(library, call.graph, &mut copy) };
    // SAFETY: as above.
    unsafe { call.observed(&mut [feeding], view, library, Ticks::AfterEachNode) }.status
}

unsafe fn compute_recorded(
    call: &Computation,
    (process, library, mut lent): Recording,
    feeding: Option<Fed<'_>>,
    begin: u64,
) -> (c_int, u64) {
    let stream = lent.stream();
    let mut copy = None;
    // SAFETY: a live graph of this library; in a call of the scheduler that copied, if any.
    let view = catch_unwind(AssertUnwindSafe(|| unsafe {
        announce(process, &mut stream.recorder);
        devices::copies::log_deferred(library, &mut stream.recorder);
        view_of(library, call.graph, stream, &mut copy)
    }));
    let (view, ticks) = match view {
        Ok(Ok(found)) => found,
        Ok(Err(reason)) => {
            process::switch_off(&reason);
            // SAFETY: the call that the program made.
            return (unsafe { compute_fed(call, feeding) }, 0);
        }
        Err(_) => {
            process::switch_off("an error in the recorder itself, in reading a graph");
            lent.keep();
            // SAFETY: as above.
            return (unsafe { compute_fed(call, feeding) }, 0);
        }
    };
    let is_audited = settings::get().is_some_and(|settings| settings.audits);
    let place = (stream.number, stream.recorder.next_evaluation());
    let mut watch = is_audited.then(|| watch::Watched::new(process, place));
    let recorder: &mut dyn Observer = &mut stream.recorder;
    let feeding = feeding.map(|fed| fed.feeding);
    let before = cycles().wrapping_sub(begin);
    // SAFETY: the graph as its own library laid it out, or translated; the mirror is not
    // touched until the call returns, and the view borrows nothing that the recorder
    // changes.
    let computed = unsafe {
        match (feeding, &mut watch) {
            (None, None) => call.observed(&mut [recorder], view, library, ticks),
            (Some(feeding), None) => call.observed(&mut [recorder, feeding], view, library, ticks),
            (None, Some(watch)) => call.observed(&mut [recorder, watch], view, library, ticks),
            (Some(feeding), Some(watch)) => {
                call.observed(&mut [recorder, feeding, watch], view, library, ticks)
            }
        }
    };
    let begin = cycles();
    if let Some(reason) = watch.and_then(|watch| watch.error) {
        process::switch_off(&reason);
    }
    if computed.is_blind {
        process::switch_off(&format!(
            "{}: ggml {}: cannot follow how far it is in a graph",
            library.path, library.version
        ));
        return (computed.status, 0);
    }
    if stream.recorder.is_broken() {
        process::switch_off("an error in the recorder itself");
        lent.keep();
        return (computed.status, 0);
    }
    if let Some(reason) = stream.recorder.refusal() {
        process::switch_off(&format!("{}: {reason}", library.path));
        return (computed.status, 0);
    }
    stream.count(process);
    let inside = stream.recorder.take_self_cycles();
    let spent = before + inside + cycles().wrapping_sub(begin);
    (computed.status, spent)
}

type Recording = (&'static process::Process, &'static Library, streams::Lent);

/// What recording this call needs; `None` when it is not to be recorded.
fn prepare(call: &Computation) -> Option<Recording> {
    prepare_for(call.caller, call.real)
}

/// The function by which the processor computes the graphs of the library around `caller`.
pub fn processors_compute(caller: usize) -> Option<*mut c_void> {
    Some(COMPUTE.of(caller)).filter(|function| !function.is_null())
}

/// What recording a graph needs that the context of this thread computes.
pub fn prepare_for(caller: usize, real: ComputeFn) -> Option<Recording> {
    let process = process::is_on().then(process::current)??;
    if !process.control.allows(now_nanos()) {
        return None;
    }
    let library = library::of(caller, real, |library| process.note_library(library))
        .map_err(|reason| process::switch_off(&reason))
        .ok()?;
    let context = computing_context();
    LAST_CONTEXT.set(context);
    let lent = streams::lend(process, library, context);
    if lent.is_none() && process::is_on() {
        process.status.count_lost(0, 0);
    }
    Some((process, library, lent?))
}

/// Tells the recorder whose evaluation follows.
pub fn announce(process: &process::Process, recorder: &mut Recorder) {
    recorder.set_context(streams::context_number(process, computing_context()));
    batches::announce(recorder);
}

/// The graph in our layout: itself, or a copy; and when the library ticks.
unsafe fn view_of(
    library: &Library,
    graph: *mut c_void,
    stream: &mut streams::Stream,
    copy: &mut Option<RawGraph>,
) -> Result<(*const c_void, Ticks), String> {
    // SAFETY: a live graph of this library (caller).
    let layout = unsafe { library.tensor_layout(graph, &mut stream.mirror) }?;
    let view = match layout {
        // SAFETY: as above.
        TensorLayout::Today => unsafe { view_as_today(library, graph, copy) },
        other => {
            stream.recorder.trust_layout();
            // SAFETY: as above; the layout was found out.
            std::ptr::from_ref(unsafe { stream.mirror.translate(graph, other) }).cast()
        }
    };
    // The same commit changed both.
    let ticks = match layout {
        TensorLayout::Today | TensorLayout::WithGrad => Ticks::AfterEachNode,
        TensorLayout::WithPerf { .. } => Ticks::InRounds,
    };
    Ok((view, ticks))
}

/// The graph in our layout, of a library whose tensors are laid out as today; `copy` keeps
/// what that needs.
///
/// # Safety
/// A live graph of this library.
pub unsafe fn view_as_today(
    library: &Library,
    graph: *mut c_void,
    copy: &mut Option<RawGraph>,
) -> *const c_void {
    match library.has_uid {
        true => graph.cast_const(),
        // SAFETY: as promised by the caller; the nodes are the same.
        false => std::ptr::from_ref(copy.insert(unsafe { graph_without_uid(graph) })).cast(),
    }
}

/// `ggml_backend_sched_graph_compute_async(sched, graph)`.
unsafe extern "C" fn compute_context(
    context: *mut c_void,
    graph: *mut c_void,
    caller: usize,
) -> c_int {
    // SAFETY: the function that the program called, with its arguments.
    unsafe { in_context(COMPUTE_CONTEXT.of(caller), context, graph) }
}

/// `ggml_backend_sched_graph_compute(sched, graph)`, what llama.cpp called until
/// 2024-03. It answered nothing in the beginning; so do we then.
unsafe extern "C" fn compute_context_and_wait(
    context: *mut c_void,
    graph: *mut c_void,
    caller: usize,
) -> c_int {
    // SAFETY: as above.
    unsafe { in_context(COMPUTE_CONTEXT_AND_WAIT.of(caller), context, graph) }
}

unsafe fn in_context(real: *mut c_void, context: *mut c_void, graph: *mut c_void) -> c_int {
    if real.is_null() {
        return STATUS_FAILED;
    }
    // SAFETY: the C function of this name, with the program's arguments; what is logged was
    // copied by schedulers that are still computing.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int =
            std::mem::transmute(real);
        // Of one that this one is computed inside of.
        devices::copies::log_rest();
        let before = CONTEXT.replace(context as usize);
        let pass = feeding::is_on().then(|| Pass::begin(graph)).flatten();
        let status = real(context, graph);
        drop(pass);
        devices::copies::log_rest();
        CONTEXT.set(before);
        status
    }
}

/// `ggml_backend_sched_free(sched)`.
unsafe extern "C" fn free_context(context: *mut c_void, caller: usize) {
    let real = FREE_CONTEXT.of(caller);
    if process::is_on() && !context.is_null() {
        streams::forget_context(context as usize);
        forget_last(context as usize);
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
    let is_recorded_so = settings::get().is_some_and(|s| s.hides_extra_buffer_types);
    if (is_recorded_so || feeding::is_on()) && !name.is_null() {
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

#[cfg(test)]
mod tests;
