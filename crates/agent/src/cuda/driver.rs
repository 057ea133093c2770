//! Functions of CUDA's driver, of the library that the program has loaded.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    path::Path,
    sync::OnceLock,
};

use ::cuda::library::Library;

use trace::device::KernelKind;

use crate::process;

/// `CUDA_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// More nodes than any graph of llama.cpp has.
const MAX_NODES: usize = 1 << 20;

type Handle = *mut c_void;

::cuda::functions! {
    /// The driver.
    pub struct Driver {
    cuCtxGetCurrent(*mut Handle);
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuCtxSynchronize();
    cuEventCreate(*mut Handle, u32);
    cuEventRecord(Handle, Handle);
    cuEventQuery(Handle);
    cuEventSynchronize(Handle);
    cuEventElapsedTime(*mut f32, Handle, Handle);
    cuStreamGetCaptureInfo_v2(Handle, *mut c_int, *mut u64, *mut Handle, *mut Handle, *mut usize);
    cuGraphGetNodes(Handle, *mut Handle, *mut usize);
    cuGraphNodeGetType(Handle, *mut u32);
    cuGraphKernelNodeGetParams_v2(Handle, *mut KernelParams);
}
}

::cuda::functions! {
    /// What kernels are called; drivers have it since CUDA 12.3.
    pub struct Names {
        cuKernelGetName(*mut *const c_char, Handle);
        cuFuncGetName(*mut *const c_char, Handle);
    }
}

impl Names {
    fn get() -> Option<&'static Names> {
        static NAMES: OnceLock<Option<Names>> = OnceLock::new();
        let names = NAMES.get_or_init(|| {
            let found = Names::of(library()?);
            if let Err(reason) = &found
                && let Some(process) = process::current()
            {
                process.note("no_kernel_names", &reason.to_string());
            }
            found.ok()
        });
        names.as_ref()
    }

    /// Empty where it cannot be told.
    fn of_kernel(&self, params: &KernelParams) -> Vec<u8> {
        let mut name = std::ptr::null();
        // SAFETY: handles that the driver has just given; it answers with a string that lives
        // as long as the kernel.
        unsafe {
            let mut is_named = !params.kernel.is_null()
                && (self.cuKernelGetName)(&mut name, params.kernel) == SUCCESS;
            if !is_named && !params.function.is_null() {
                is_named = (self.cuFuncGetName)(&mut name, params.function) == SUCCESS;
            }
            match is_named && !name.is_null() {
                true => CStr::from_ptr(name).to_bytes().to_vec(),
                false => Vec::new(),
            }
        }
    }
}

::cuda::functions! {
    /// What reading back needs besides.
    pub struct Copies {
        cuMemHostAlloc(*mut Handle, usize, u32);
        cuMemcpyDtoHAsync_v2(Handle, u64, usize, Handle);
    }
}

impl Copies {
    pub fn get() -> Option<&'static Copies> {
        static COPIES: OnceLock<Option<Copies>> = OnceLock::new();
        COPIES.get_or_init(|| Copies::of(library()?).ok()).as_ref()
    }

    /// Memory that a card can copy into while the program goes on; never freed.
    pub fn memory(&self, bytes: usize) -> Option<*mut u8> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: fills the pointer; 1 makes it good for all contexts.
        let result = unsafe { (self.cuMemHostAlloc)(&mut memory, bytes, 1) };
        (result == SUCCESS && !memory.is_null()).then_some(memory.cast())
    }

    /// Copies when everything before in the stream was computed.
    ///
    /// # Safety
    /// `to` has so many bytes and is left alone until then; `from` is the card's.
    pub unsafe fn copy(&self, to: *mut u8, from: u64, bytes: usize, stream: *mut c_void) -> bool {
        // SAFETY: as promised by the caller.
        unsafe { (self.cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, stream) == SUCCESS }
    }
}

/// The driver's library, if the program has loaded it.
fn library() -> Option<Library> {
    Library::loaded(Path::new("libcuda.so.1"))
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
pub struct KernelParams {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    arguments: Handle,
    extra: Handle,
    kernel: Handle,
    context: Handle,
}

/// What a node of the card's graph does.
pub enum NodeType {
    Is(KernelKind),
    /// An event, an empty node, …: it takes no time.
    Other,
}

/// A node of a graph of the card's own.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: KernelKind,
    pub name: Vec<u8>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

/// A stream's event, and the context that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub context: usize,
    handle: usize,
}

#[cfg(test)]
impl Event {
    /// Of no driver.
    pub fn of_test(context: usize, handle: usize) -> Event {
        Event { context, handle }
    }
}

/// Whether the card has come to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    Yes,
    NotYet,
    /// It cannot be asked any more.
    Unknown,
}

impl Driver {
    /// The driver, once a program has loaded it.
    pub fn get() -> Option<&'static Driver> {
        Driver::found().ok()
    }

    /// Where a function is missing, nothing of the card is measured; `Err` says which.
    pub fn found() -> Result<&'static Driver, &'static str> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        let find = || {
            let library = library().ok_or("the program has not loaded libcuda.so.1")?;
            Driver::of(library).map_err(|error| error.to_string())
        };
        DRIVER.get_or_init(find).as_ref().map_err(String::as_str)
    }

    fn context(&self) -> Option<usize> {
        let mut context = std::ptr::null_mut();
        // SAFETY: fills the handle.
        let result = unsafe { (self.cuCtxGetCurrent)(&mut context) };
        (result == SUCCESS && !context.is_null()).then_some(context as usize)
    }

    /// A new event in the context of this thread.
    pub fn event(&self) -> Option<Event> {
        let context = self.context()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: fills the handle; 0 asks for times.
        let result = unsafe { (self.cuEventCreate)(&mut handle, 0) };
        (result == SUCCESS).then_some(Event {
            context,
            handle: handle as usize,
        })
    }

    pub fn current_context(&self) -> Option<usize> {
        self.context()
    }

    /// Calls the driver in a context, which need not be that of this thread.
    fn inside(&self, context: usize, call: impl FnOnce() -> c_int) -> bool {
        let is_here = self.context() == Some(context);
        // SAFETY: a context that the driver has told.
        if !is_here && unsafe { (self.cuCtxPushCurrent_v2)(context as Handle) } != SUCCESS {
            return false;
        }
        let result = call();
        if !is_here {
            let mut popped = std::ptr::null_mut();
            // SAFETY: the one that was pushed.
            unsafe { (self.cuCtxPopCurrent_v2)(&mut popped) };
        }
        result == SUCCESS
    }

    /// Notes in a stream that everything before was computed.
    pub fn record(&self, event: Event, stream: *mut c_void) -> bool {
        // SAFETY: handles of the driver's own, of one context; the program's stream is live.
        let record = || unsafe { (self.cuEventRecord)(event.handle as Handle, stream) };
        self.inside(event.context, record)
    }

    /// Waits until the card has computed everything that a context was given.
    pub fn wait_for_all(&self, context: usize) -> bool {
        // SAFETY: waits for the context that is current.
        self.inside(context, || unsafe { (self.cuCtxSynchronize)() })
    }

    pub fn reached(&self, event: Event) -> Reached {
        // SAFETY: an event of ours, never destroyed.
        match unsafe { (self.cuEventQuery)(event.handle as Handle) } {
            SUCCESS => Reached::Yes,
            NOT_READY => Reached::NotYet,
            _ => Reached::Unknown,
        }
    }

    pub fn wait(&self, event: Event) -> bool {
        // SAFETY: as above.
        unsafe { (self.cuEventSynchronize)(event.handle as Handle) == SUCCESS }
    }

    /// Nanoseconds from one event to another, both reached; negative if the other was first.
    pub fn nanos_between(&self, from: Event, to: Event) -> Option<i64> {
        let mut milliseconds = 0f32;
        // SAFETY: as above.
        let result = unsafe {
            (self.cuEventElapsedTime)(
                &mut milliseconds,
                from.handle as Handle,
                to.handle as Handle,
            )
        };
        let nanos = f64::from(milliseconds) * 1e6;
        (result == SUCCESS && nanos.is_finite()).then_some(nanos as i64)
    }

    /// Nodes that were recorded from a stream so far.
    pub fn captured_nodes(&self, stream: *mut c_void) -> Option<u32> {
        let (mut status, mut id, mut graph) = (0, 0, std::ptr::null_mut());
        let none = std::ptr::null_mut();
        let mut count = 0;
        // SAFETY: a live stream; fills what is ours, and the graph is the driver's.
        unsafe {
            let info = self.cuStreamGetCaptureInfo_v2;
            let nothing = std::ptr::null_mut();
            if info(stream, &mut status, &mut id, &mut graph, none, nothing) != SUCCESS
                || graph.is_null()
                || (self.cuGraphGetNodes)(graph, std::ptr::null_mut(), &mut count) != SUCCESS
            {
                return None;
            }
        }
        u32::try_from(count).ok()
    }

    /// The nodes of a graph, in the order in which they were recorded.
    ///
    /// # Safety
    /// A live graph.
    pub unsafe fn nodes(&self, graph: *mut c_void) -> Option<Vec<Node>> {
        let mut count = 0;
        // SAFETY: as promised by the caller; fills the count.
        let result = unsafe { (self.cuGraphGetNodes)(graph, std::ptr::null_mut(), &mut count) };
        if result != SUCCESS || count > MAX_NODES {
            return None;
        }
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: as above; there is room for so many.
        let result = unsafe { (self.cuGraphGetNodes)(graph, nodes.as_mut_ptr(), &mut count) };
        if result != SUCCESS {
            return None;
        }
        nodes.truncate(count);
        // SAFETY: nodes of the live graph.
        Some(
            nodes
                .into_iter()
                .map(|node| unsafe { self.node(node) })
                .collect(),
        )
    }

    unsafe fn node(&self, node: Handle) -> Node {
        let mut ty = u32::MAX;
        // SAFETY: a node of a live graph (caller); fills the number.
        unsafe { (self.cuGraphNodeGetType)(node, &mut ty) };
        let mut found = Node {
            kind: KernelKind::Set,
            name: Vec::new(),
            grid: [0; 3],
            block: [0; 3],
        };
        match NodeType::from(ty) {
            NodeType::Is(KernelKind::Kernel) => found.kind = KernelKind::Kernel,
            NodeType::Is(kind) => {
                found.kind = kind;
                found.name = kind.name().into();
                return found;
            }
            NodeType::Other => return found,
        }
        // SAFETY: plain numbers and pointers.
        let mut params: KernelParams = unsafe { std::mem::zeroed() };
        // SAFETY: a kernel's node; fills the struct.
        if unsafe { (self.cuGraphKernelNodeGetParams_v2)(node, &mut params) } != SUCCESS {
            return found;
        }
        (found.grid, found.block) = (params.grid, params.block);
        found.name = Names::get().map_or_else(Vec::new, |names| names.of_kernel(&params));
        found
    }
}
