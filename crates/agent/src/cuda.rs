//! What CUDA's backend launches, node by node, and when the card began and ended it.
//!
//! Nothing of CUDA is linked. Functions of its runtime that the backend calls come here first,
//! as ggml's do; the driver's are found in the library that the program has loaded
//! ([`driver`]).
//!
//! 1. The backend records most graphs once as a graph of the card's own, and launches that
//!    from then on. While it records, the card's graph is looked at each time a node is asked
//!    about ([`crate::devices::asked`]): the kernels that came since belong to the node
//!    before. Their names and sizes are read at the end. This costs nothing later.
//! 2. Around each launch two events are recorded in the stream; their times are read when a
//!    later evaluation begins ([`clock`]). Nobody waits for them.
//! 3. The times of single kernels come from CUPTI, which is attached for a few evaluations now
//!    and then, so long as that stays within a budget ([`bursts`]): attached for good, it would
//!    cost a tenth of every token and more.
//! 4. Which experts were chosen only the card knows. In some of the evaluations that are
//!    launched node by node they are copied to the host on the way ([`experts`]).

mod bursts;
mod clock;
mod cupti;
mod driver;
mod experts;
mod pending;

use std::{
    cell::{Cell, RefCell},
    ffi::{c_int, c_void},
    mem::ManuallyDrop,
    sync::{Once, OnceLock},
};

use capture::recorder::device::Launch;
use ggml::{Graph, RawTensor};
use trace::device::KernelKind;

pub use self::{bursts::GpuTimes, experts::is_short_of_memory, pending::Pending};
use self::{clock::Span, driver::Driver};
use crate::{
    devices::{Known, asked},
    hooks::export,
    library::Original,
    process, streams,
};

export!(cudaStreamBeginCapture => begin_capture, "rdx", "x2");
export!(cudaStreamEndCapture => end_capture, "rdx", "x2");
export!(cudaGraphLaunch => launch_graph, "rdx", "x2");
export!(cudaLaunchKernelExC => launch_kernel, "rcx", "x3");
export!(__cudaPopCallConfiguration => pop_configuration, "r8", "x4");

static BEGIN_CAPTURE: Original = Original::new(c"cudaStreamBeginCapture");
static END_CAPTURE: Original = Original::new(c"cudaStreamEndCapture");
static LAUNCH_GRAPH: Original = Original::new(c"cudaGraphLaunch");
static LAUNCH_KERNEL: Original = Original::new(c"cudaLaunchKernelExC");
static POP_CONFIGURATION: Original = Original::new(c"__cudaPopCallConfiguration");

/// `cudaErrorUnknown`.
const ERROR_UNKNOWN: c_int = 999;

/// A call of the backend that is under way on this thread.
struct Call {
    is_on: Cell<bool>,
    /// The stream that is being recorded.
    captured_stream: Cell<*mut c_void>,
    /// How many nodes the card's graph had when each question came.
    counts: RefCell<ManuallyDrop<Vec<u32>>>,
    captured: RefCell<ManuallyDrop<Option<Captured>>>,
    graphs_launched: Cell<u32>,
    span: Cell<Option<Span>>,
    /// The last question so far, for kernels that are launched one by one.
    question: Cell<Option<u32>>,
}

thread_local! {
    /// Never dropped: programs call CUDA when they end, after what threads drop.
    static CALL: Call = const {
        Call {
            is_on: Cell::new(false),
            captured_stream: Cell::new(std::ptr::null_mut()),
            counts: RefCell::new(ManuallyDrop::new(Vec::new())),
            captured: RefCell::new(ManuallyDrop::new(None)),
            graphs_launched: Cell::new(0),
            span: Cell::new(None),
            question: Cell::new(None),
        }
    };
}

/// A graph of the card's own, as it was recorded.
struct Captured {
    /// By question: how many nodes there were before it.
    counts: Vec<u32>,
    kernels: Vec<driver::Node>,
}

/// What was seen of a call.
pub struct Seen {
    /// Nothing was launched by itself: a graph of the card's own was launched again.
    pub is_replayed: bool,
    /// [`Pending`] will tell what was measured.
    pub is_measured: bool,
    captured: Option<Captured>,
    span: Option<Span>,
    /// In a burst: which call of it.
    burst: Option<u64>,
    /// The node of each question, for kernels that CUPTI sees being launched.
    nodes: Vec<Option<u32>>,
    /// Ids of experts that are being read back.
    experts: Vec<experts::ReadBack>,
}

/// The process that [`at_exit`] is registered in.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// What the card has to tell is asked for when the program ends, before the driver and CUPTI
/// end: what is registered last is called first. So this is called behind what initialises them.
fn call_at_exit() {
    PROCESS.get_or_init(std::process::id);
    // SAFETY: the function lives as long as the process; the library is never unloaded.
    unsafe { libc::atexit(at_exit) };
}

extern "C" fn at_exit() {
    // A forked child has its parent's bursts, and no card.
    if PROCESS.get() == Some(&std::process::id()) {
        let _ = std::panic::catch_unwind(|| {
            bursts::stop();
            streams::log_what_devices_ended();
        });
    }
}

/// A graph is about to be launched on a card.
pub fn begin(known: &Known, backend: *mut c_void) {
    // The backend has the driver by now.
    static IS_REGISTERED: Once = Once::new();
    IS_REGISTERED.call_once(call_at_exit);
    // Kernels without anybody whom they belong to would cost all the same.
    let burst = match Driver::found() {
        Ok(_) => bursts::begins(known, backend),
        Err(reason) => {
            static IS_SAID: Once = Once::new();
            IS_SAID.call_once(|| {
                let process = process::current();
                process
                    .into_iter()
                    .for_each(|p| p.note("no_driver", reason));
            });
            None
        }
    };
    CALL.with(|call| {
        call.counts.borrow_mut().clear();
        **call.captured.borrow_mut() = None;
        call.captured_stream.set(std::ptr::null_mut());
        call.graphs_launched.set(0);
        call.span.set(None);
        call.question.set(None);
        call.is_on.set(Driver::get().is_some());
    });
    experts::begin();
    bursts::call_is(burst);
}

/// It was.
pub fn end() -> Option<Seen> {
    let experts = experts::end();
    CALL.with(|call| {
        let is_on = call.is_on.replace(false);
        let mut span = call.span.take();
        if let Some(span) = &mut span {
            clock::end(span);
        }
        let burst = bursts::ends(span.as_ref().and_then(Span::end));
        if !is_on {
            return None;
        }
        let captured = call.captured.borrow_mut().take();
        let is_replayed = call.graphs_launched.get() > 0 && captured.is_none();
        Some(Seen {
            is_replayed,
            is_measured: span.is_some() || burst.is_some(),
            captured,
            span,
            burst,
            nodes: Vec::new(),
            experts,
        })
    })
}

impl Seen {
    /// The kernels of the graph, if they were recorded in this call.
    pub fn launches(&self, graph: Graph<'_>) -> Option<Vec<Launch>> {
        let captured = self.captured.as_ref()?;
        let nodes = asked::positions(graph);
        let launches = captured.kernels.iter().enumerate().map(|(at, kernel)| {
            // The last question before it was launched.
            let question = captured
                .counts
                .partition_point(|&count| count as usize <= at)
                .checked_sub(1);
            let node = question.and_then(|question| nodes.get(question).copied()?);
            kernel.launched_for(node)
        });
        Some(launches.collect())
    }

    /// Notes which node each question was about, for what is measured in a burst.
    pub fn note_nodes(&mut self, graph: Graph<'_>) {
        if self.burst.is_some() && !self.is_replayed {
            self.nodes = asked::positions(graph);
        }
    }
}

impl driver::Node {
    fn launched_for(&self, node: Option<u32>) -> Launch {
        Launch {
            node,
            kind: self.kind,
            name: self.name.clone(),
            grid: self.grid,
            block: self.block,
        }
    }
}

/// The backend walks over the graph from its beginning.
pub fn walk_begins() {
    CALL.with(|call| {
        if call.is_on.get() {
            call.counts.borrow_mut().clear();
        }
    });
}

/// The backend asked question number `at` of its walk.
pub fn asked(at: usize, tensor: *const RawTensor) {
    CALL.with(|call| {
        call.question.set(Some(at as u32));
        let stream = call.captured_stream.get();
        if !stream.is_null()
            && let Some(driver) = Driver::get()
            && let Some(count) = driver.captured_nodes(stream)
        {
            let mut counts = call.counts.borrow_mut();
            // Questions before the recording began launched nothing into it.
            counts.resize(at, 0);
            counts.push(count);
        }
        if stream.is_null()
            && let Some(span) = call.span.get()
        {
            experts::asked(tensor, &span);
        }
    });
}

/// The question that a kernel is launched for, on this thread.
fn question() -> Option<u32> {
    CALL.with(|call| call.question.get().filter(|_| call.is_on.get()))
}

/// `cudaStreamBeginCapture(stream, mode)`.
unsafe extern "C" fn begin_capture(stream: *mut c_void, mode: c_int, caller: usize) -> c_int {
    let real = BEGIN_CAPTURE.of(caller);
    if real.is_null() {
        return ERROR_UNKNOWN;
    }
    // SAFETY: the C function of this name, with the program's arguments.
    let result = unsafe {
        let real: unsafe extern "C" fn(*mut c_void, c_int) -> c_int = std::mem::transmute(real);
        real(stream, mode)
    };
    CALL.with(|call| {
        if call.is_on.get() && result == 0 {
            call.captured_stream.set(stream);
        }
    });
    result
}

/// `cudaStreamEndCapture(stream, &graph)`.
unsafe extern "C" fn end_capture(
    stream: *mut c_void,
    graph: *mut *mut c_void,
    caller: usize,
) -> c_int {
    let real = END_CAPTURE.of(caller);
    if real.is_null() {
        return ERROR_UNKNOWN;
    }
    // SAFETY: as above.
    let result = unsafe {
        type Real = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
        let real: Real = std::mem::transmute(real);
        real(stream, graph)
    };
    CALL.with(|call| {
        let is_ours = std::ptr::eq(call.captured_stream.replace(std::ptr::null_mut()), stream);
        if !call.is_on.get() || !is_ours || result != 0 || graph.is_null() {
            return;
        }
        // SAFETY: the graph that the driver has just made.
        let kernels = Driver::get().and_then(|driver| unsafe { driver.nodes(graph.read()) });
        let counts = std::mem::take(&mut **call.counts.borrow_mut());
        **call.captured.borrow_mut() = kernels.map(|kernels| Captured { counts, kernels });
    });
    result
}

/// `cudaGraphLaunch(exec, stream)`.
unsafe extern "C" fn launch_graph(exec: *mut c_void, stream: *mut c_void, caller: usize) -> c_int {
    let real = LAUNCH_GRAPH.of(caller);
    if real.is_null() {
        return ERROR_UNKNOWN;
    }
    CALL.with(|call| {
        if call.is_on.get() {
            call.graphs_launched.set(call.graphs_launched.get() + 1);
            call.span_begins(stream);
        }
    });
    // SAFETY: as above.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int =
            std::mem::transmute(real);
        real(exec, stream)
    }
}

/// `cudaLaunchConfig_t`, as far as it is read.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: usize,
    stream: *mut c_void,
}

/// `cudaLaunchKernelExC(config, function, arguments)`.
unsafe extern "C" fn launch_kernel(
    config: *const LaunchConfig,
    function: *const c_void,
    arguments: *mut *mut c_void,
    caller: usize,
) -> c_int {
    let real = LAUNCH_KERNEL.of(caller);
    if real.is_null() {
        return ERROR_UNKNOWN;
    }
    CALL.with(|call| {
        if call.is_on.get() && !config.is_null() {
            // SAFETY: the program's own struct.
            call.span_begins(unsafe { (&raw const (*config).stream).read() });
        }
    });
    type Real = unsafe extern "C" fn(*const LaunchConfig, *const c_void, *mut *mut c_void) -> c_int;
    // SAFETY: as above.
    unsafe { std::mem::transmute::<*mut c_void, Real>(real)(config, function, arguments) }
}

/// `__cudaPopCallConfiguration(grid, block, shared, stream)`: what a launch by `<<<…>>>` calls
/// right before `cudaLaunchKernel`, which has no register left to tell who called.
unsafe extern "C" fn pop_configuration(
    grid: *mut c_void,
    block: *mut c_void,
    shared: *mut c_void,
    stream: *mut *mut c_void,
    caller: usize,
) -> c_int {
    let real = POP_CONFIGURATION.of(caller);
    if real.is_null() {
        return ERROR_UNKNOWN;
    }
    type Real =
        unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut *mut c_void) -> c_int;
    // SAFETY: as above.
    let result =
        unsafe { std::mem::transmute::<*mut c_void, Real>(real)(grid, block, shared, stream) };
    CALL.with(|call| {
        if call.is_on.get() && result == 0 && !stream.is_null() {
            // SAFETY: the call has just filled it.
            call.span_begins(unsafe { stream.read() });
        }
    });
    result
}

impl Call {
    /// Something is about to be launched on a stream; not while that is recorded.
    fn span_begins(&self, stream: *mut c_void) {
        if self.captured_stream.get().is_null() && self.span.get().is_none() {
            self.span.set(clock::begin(stream));
        }
    }
}

impl From<u32> for driver::NodeType {
    fn from(number: u32) -> driver::NodeType {
        match number {
            0 => driver::NodeType::Is(KernelKind::Kernel),
            1 => driver::NodeType::Is(KernelKind::Copy),
            2 => driver::NodeType::Is(KernelKind::Set),
            _ => driver::NodeType::Other,
        }
    }
}
