//! Graphs that a device computes: CUDA, Vulkan, or whatever else ggml has a backend for.
//!
//! 1. `ggml_backend_graph_compute_async(backend, graph)` is called for each part of a graph,
//!    on every backend. The processor's part comes to `ggml_graph_compute` and is recorded
//!    there; what another backend computes is recorded here, when the call has returned.
//! 2. Meanwhile the backend asks `ggml_is_empty` about each node that it is about to launch
//!    ([`asked`]), which tells the nodes that were fused.
//! 3. On CUDA, kernels and times are found out besides ([`crate::cuda`]).
//! 4. What is copied between memories is seen by [`copies`].
//!
//! The device goes on computing after the call. Nothing here waits for it.

pub mod asked;
pub mod copies;

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicPtr, Ordering},
};

use capture::{
    hook::ComputeFn,
    recorder::device::{Device, DeviceCall, Launched},
};
use ggml::{Graph, RawGraph, Tensor, foreign::TensorLayout};
use trace::clock::now_nanos;

use crate::{
    cuda, hooks,
    library::{Library, Original, Scope},
    lock::Lock,
    process, streams,
};

hooks::export!(ggml_backend_graph_compute_async => compute, "rdx", "x2");

static COMPUTE: Original = Original::new(c"ggml_backend_graph_compute_async");
/// Not hooked, but asked each time.
static DEVICE_OF: Original = Original::new(c"ggml_backend_get_device");

/// `ggml_backend_graph_compute_async`.
type ComputeOn = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// `GGML_BACKEND_DEVICE_TYPE_CPU`.
const TYPE_CPU: u32 = 0;
/// Devices that are told apart.
const DEVICES: usize = 32;

thread_local! {
    /// Whether this thread is inside of a computation on a device.
    static IS_COMPUTING: Cell<bool> = const { Cell::new(false) };
}

/// What a backend is known by. Each context has backends of its own, which are freed with it, and
/// the next one's may lie at the same addresses in another order; devices live as long as their
/// library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Device(usize),
    /// Of libraries that have no devices yet.
    Backend(usize),
}

/// A device that is not the processor.
pub struct Known {
    /// `None` until it computes.
    key: Option<Key>,
    pub device: Device,
    pub is_cuda: bool,
    /// `ggml_backend_synchronize`.
    synchronize: Option<Synchronize>,
}

/// Never freed.
static KNOWN: [AtomicPtr<Known>; DEVICES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; DEVICES];
/// The processor.
static PROCESSORS: Lock<Vec<Key>> = Lock::new(Vec::new());

/// For `fork`.
pub fn take_lock() {
    PROCESSORS.take();
}

pub fn release_lock() {
    PROCESSORS.release();
}

/// `ggml_backend_graph_compute_async(backend, graph)`.
unsafe extern "C" fn compute(backend: *mut c_void, graph: *mut c_void, caller: usize) -> c_int {
    let real = COMPUTE.of(caller);
    if real.is_null() {
        return hooks::STATUS_FAILED;
    }
    // SAFETY: the C function of this name.
    let real: ComputeOn = unsafe { std::mem::transmute(real) };
    let is_observed = process::is_on() && !IS_COMPUTING.get() && !hooks::is_computing();
    if !is_observed || backend.is_null() || graph.is_null() {
        // SAFETY: the call that the program made.
        return unsafe { real(backend, graph) };
    }
    // SAFETY: a live backend of the library of the caller.
    let known = catch_unwind(AssertUnwindSafe(|| unsafe { known(backend, caller) }));
    let Ok(Some(known)) = known else {
        // SAFETY: as above.
        return unsafe { real(backend, graph) };
    };
    // SAFETY: as above.
    unsafe { compute_on((known, backend), graph, caller, real) }
}

unsafe fn compute_on(
    (known, backend): (&'static Known, *mut c_void),
    graph: *mut c_void,
    caller: usize,
    real: ComputeOn,
) -> c_int {
    IS_COMPUTING.set(true);
    let prepared = catch_unwind(AssertUnwindSafe(|| {
        let mut prepared = prepare(caller);
        if let Some((_, _, lent)) = &mut prepared
            && known.is_cuda
            && cuda::is_short_of_memory()
        {
            let stream = lent.stream();
            stream.pending.log_ended(&mut stream.recorder);
        }
        // SAFETY: a live graph whose list of nodes never moved in the struct.
        unsafe { asked::begin(graph.cast()) };
        if known.is_cuda && prepared.is_some() {
            cuda::begin(known, backend);
        }
        prepared
    }));
    let begin_nanos = now_nanos();
    // SAFETY: the call that the program made.
    let status = unsafe { real(backend, graph) };
    let end_nanos = now_nanos();
    let recorded = catch_unwind(AssertUnwindSafe(|| {
        let seen = known.is_cuda.then(cuda::end).flatten();
        let Ok(Some((process, library, mut lent))) = prepared else {
            return asked::end();
        };
        let finished = Finished {
            known,
            graph,
            status,
            begin_nanos,
            end_nanos,
        };
        // SAFETY: the graph is as it was in the call.
        let done = unsafe { record(process, library, lent.stream(), &finished, seen) };
        asked::end();
        match done {
            Ok(()) => lent.stream().count(process),
            Err(reason) => process::switch_off(&reason),
        }
    }));
    if recorded.is_err() {
        process::switch_off("an error in the recorder itself, after a graph on a device");
    }
    IS_COMPUTING.set(false);
    status
}

type Recording = (&'static process::Process, &'static Library, streams::Lent);

/// What recording needs; `None` when the call is not to be recorded.
fn prepare(caller: usize) -> Option<Recording> {
    // The library of the processor's part knows the structs that all parts share.
    let real = hooks::processors_compute(caller)?;
    // SAFETY: the C function `ggml_graph_compute`.
    let real: ComputeFn = unsafe { std::mem::transmute(real) };
    hooks::prepare_for(caller, real)
}

struct Finished {
    known: &'static Known,
    graph: *mut c_void,
    status: c_int,
    begin_nanos: u64,
    end_nanos: u64,
}

unsafe fn record(
    process: &'static process::Process,
    library: &'static Library,
    stream: &mut streams::Stream,
    finished: &Finished,
    seen: Option<cuda::Seen>,
) -> Result<(), String> {
    hooks::announce(process, &mut stream.recorder);
    // SAFETY: in a call of the scheduler that copied, if there is one.
    unsafe { copies::log_deferred(library, &mut stream.recorder) };
    let mut copy: Option<RawGraph> = None;
    // SAFETY: a live graph of this library (caller).
    let layout = unsafe { library.tensor_layout(finished.graph, &mut stream.mirror) }?;
    if layout != TensorLayout::Today {
        // Backends of that age are not recorded, and the processor's part is.
        if let Some(seen) = seen {
            stream.pending.add(seen, None, &mut stream.recorder);
        }
        return Ok(());
    }
    // SAFETY: as above.
    let view = unsafe { hooks::view_as_today(library, finished.graph, &mut copy) };
    // SAFETY: as above; it outlives this call.
    let graph = unsafe { Graph::from_ptr(view) }.ok_or("a graph that is null")?;
    let asked = || asked::nodes(graph);
    let launched = match &seen {
        Some(seen) if seen.is_replayed => Launched::Again,
        _ => Launched::Anew(&asked),
    };
    let host_of = |tensor: Tensor<'_>| copies::host_of(tensor);
    let call = DeviceCall {
        graph,
        device: &finished.known.device,
        how: launched,
        host_of: &host_of,
        begin_nanos: finished.begin_nanos,
        end_nanos: finished.end_nanos,
        is_aborted: finished.status != 0,
        is_measured_later: seen.as_ref().is_some_and(|seen| seen.is_measured),
    };
    let launches = seen.as_ref().and_then(|seen| seen.launches(graph));
    // SAFETY: a live graph, whose inputs are as they were.
    let logged = unsafe {
        stream
            .recorder
            .device_evaluation(&call, launches.as_deref())
    };
    if let Some(reason) = stream.recorder.refusal() {
        return Err(format!("{}: {reason}", library.path));
    }
    if let Some(mut seen) = seen {
        seen.note_nodes(graph);
        stream.pending.add(seen, logged, &mut stream.recorder);
    }
    Ok(())
}

/// The backend's device, if it is not the processor.
///
/// # Safety
/// A live backend of the library around `caller`.
unsafe fn known(backend: *mut c_void, caller: usize) -> Option<&'static Known> {
    let all = || {
        let known = KNOWN.iter().map(|known| known.load(Ordering::Acquire));
        // SAFETY: never freed.
        known.map_while(|known| unsafe { known.as_ref() })
    };
    let find = |key| all().find(|known| known.key == Some(key));
    // A library without devices is not searched for that function again.
    let address = Key::Backend(backend as usize);
    if let Some(known) = find(address) {
        return Some(known);
    }
    // Without the lock, after the first time.
    if let Some(device_of) = DEVICE_OF.known(caller) {
        // SAFETY: the C function of this name; a live backend (caller).
        let key = unsafe {
            let device_of: DeviceOf = std::mem::transmute(device_of);
            key_of(backend, Some(device_of))
        };
        if let Some(known) = find(key) {
            return Some(known);
        }
    }
    PROCESSORS.with(|processors| {
        if processors.contains(&address) {
            return None;
        }
        let device_of = DEVICE_OF.of(caller);
        // SAFETY: null, or the C function of this name.
        let device_of: Option<DeviceOf> = unsafe { std::mem::transmute(device_of) };
        // SAFETY: as promised by the caller.
        let key = unsafe { key_of(backend, device_of) };
        if let Some(known) = find(key) {
            return Some(known);
        }
        if processors.contains(&key) {
            return None;
        }
        // SAFETY: as promised by the caller.
        let Some(found) = (unsafe { describe(backend, key, &Scope::around(caller)) }) else {
            processors.push(key);
            return None;
        };
        if found.is_cuda
            && let Some(process) = process::current()
        {
            let texts = [&found.device.name, &found.device.description];
            let [name, what] = texts.map(|text| String::from_utf8_lossy(text));
            process.note("card", &format!("{name} ({what})"));
        }
        add(found)
    })
}

/// # Safety
/// A live backend, and `ggml_backend_get_device` of its library.
unsafe fn key_of(backend: *mut c_void, device_of: Option<DeviceOf>) -> Key {
    // SAFETY: as promised by the caller.
    let device = device_of.map(|device_of| unsafe { device_of(backend) });
    match device.filter(|device| !device.is_null()) {
        Some(device) => Key::Device(device as usize),
        None => Key::Backend(backend as usize),
    }
}

/// What a backend says of itself; `None` for the processor's, and where that cannot be told.
unsafe fn describe(backend: *mut c_void, key: Key, scope: &Scope) -> Option<Known> {
    let find = |name| Some(scope.find(name)).filter(|function| !function.is_null());
    let name = find(c"ggml_backend_name")?;
    // SAFETY: the C functions of these names, with a live backend.
    unsafe {
        let name = text(std::mem::transmute::<*mut c_void, Text>(name)(backend));
        let device = match find(c"ggml_backend_get_device") {
            None if name == b"CPU" => return None,
            None => Device {
                name,
                description: Vec::new(),
                memory_bytes: 0,
            },
            Some(device_of) => {
                let device = std::mem::transmute::<*mut c_void, DeviceOf>(device_of)(backend);
                describe_device(device, name, scope)?
            }
        };
        let synchronize = find(c"ggml_backend_synchronize");
        Some(Known {
            key: Some(key),
            is_cuda: device.name.starts_with(b"CUDA"),
            device,
            synchronize: synchronize.map(|f| std::mem::transmute::<*mut c_void, Synchronize>(f)),
        })
    }
}

type Text = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type DeviceOf = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type TypeOf = unsafe extern "C" fn(*mut c_void) -> u32;
type Memory = unsafe extern "C" fn(*mut c_void, *mut usize, *mut usize);
type Synchronize = unsafe extern "C" fn(*mut c_void);

/// # Safety
/// Null, or a string of the library's own.
unsafe fn text(pointer: *const c_char) -> Vec<u8> {
    match pointer.is_null() {
        true => Vec::new(),
        // SAFETY: as promised by the caller.
        false => unsafe { CStr::from_ptr(pointer) }.to_bytes().to_vec(),
    }
}

/// `None` for the processor.
///
/// # Safety
/// Null, or a live device of the library of this scope.
unsafe fn describe_device(device: *mut c_void, name: Vec<u8>, scope: &Scope) -> Option<Device> {
    if device.is_null() {
        return None;
    }
    let find = |name| Some(scope.find(name)).filter(|function| !function.is_null());
    let mut found = Device {
        name,
        description: Vec::new(),
        memory_bytes: 0,
    };
    // SAFETY: the C functions of these names, with a live device.
    unsafe {
        if let Some(of) = find(c"ggml_backend_dev_type")
            && std::mem::transmute::<*mut c_void, TypeOf>(of)(device) == TYPE_CPU
        {
            return None;
        }
        if let Some(of) = find(c"ggml_backend_dev_description") {
            found.description = text(std::mem::transmute::<*mut c_void, Text>(of)(device));
        }
        if let Some(of) = find(c"ggml_backend_dev_memory") {
            let (mut free, mut total) = (0, 0);
            std::mem::transmute::<*mut c_void, Memory>(of)(device, &mut free, &mut total);
            found.memory_bytes = total as u64;
        }
    }
    Some(found)
}

/// The device whose memory a buffer is; `None` for the host's.
///
/// # Safety
/// Null, or a live buffer of `library`, which is that around `caller`.
pub unsafe fn of_buffer(
    library: &Library,
    buffer: *mut c_void,
    caller: usize,
) -> Option<&'static Known> {
    // SAFETY: as promised by the caller.
    let name = unsafe { library.buffer_name(buffer) }?;
    if let Some(known) = by_buffer_name(name) {
        return Some(known);
    }
    // Most buffers are the host's, and are asked about for every copy.
    if name.starts_with(b"CPU") || name.ends_with(b"_Host") {
        return None;
    }
    let scope = Scope::around(caller);
    let find = |name| Some(scope.find(name)).filter(|function| !function.is_null());
    let (device_of, name_of) = (
        find(c"ggml_backend_buft_get_device")?,
        find(c"ggml_backend_dev_name")?,
    );
    // SAFETY: the C functions of these names, with the buffer's own type and device.
    let device = unsafe {
        let buffer_type = (library.knowledge.api.ggml_backend_buffer_get_type)(buffer);
        let device = std::mem::transmute::<*mut c_void, DeviceOf>(device_of)(buffer_type);
        if device.is_null() {
            return None;
        }
        let name = text(std::mem::transmute::<*mut c_void, Text>(name_of)(device));
        describe_device(device, name, &scope)?
    };
    // Not a backend yet: that comes when it computes.
    let found = Known {
        key: None,
        is_cuda: false,
        device,
        synchronize: None,
    };
    PROCESSORS.with(|_| add(found))
}

/// Keeps what is known of a backend or a device; the caller holds the lock.
fn add(found: Known) -> Option<&'static Known> {
    let free = KNOWN.iter().find(|k| k.load(Ordering::Acquire).is_null())?;
    let found: &'static Known = Box::leak(Box::new(found));
    free.store(std::ptr::from_ref(found).cast_mut(), Ordering::Release);
    Some(found)
}

/// The device whose memory has this name, of those that have computed.
pub fn by_buffer_name(name: &[u8]) -> Option<&'static Known> {
    let known = KNOWN.iter().map(|known| known.load(Ordering::Acquire));
    // SAFETY: never freed.
    let mut known = known.map_while(|known| unsafe { known.as_ref() });
    known.find(|known| {
        let rest = name.strip_prefix(&*known.device.name);
        // `CUDA1` is not `CUDA10`; `CUDA0_Split` is in the memory of several.
        rest.is_some_and(|rest| !rest.first().is_some_and(u8::is_ascii_digit))
    })
}

impl Known {
    /// Waits until the device has computed everything.
    ///
    /// # Safety
    /// A live backend of this device: in a call that was made for it.
    pub unsafe fn synchronize(&self, backend: *mut c_void) {
        if let Some(synchronize) = self.synchronize {
            // SAFETY: as promised by the caller.
            unsafe { synchronize(backend) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backend whose first word is its device.
    unsafe extern "C" fn device_of(backend: *mut c_void) -> *mut c_void {
        // SAFETY: the test passes pointers to words.
        unsafe { backend.cast::<*mut c_void>().read() }
    }

    #[test]
    fn backends_of_contexts_that_follow_each_other_are_told_apart_by_their_device() {
        let (card, processor) = (64 as *mut c_void, 128 as *mut c_void);
        let (one, other) = (Cell::new(card), Cell::new(card));
        // SAFETY: a backend as the function above wants it.
        let key =
            |place: &Cell<*mut c_void>| unsafe { key_of(place.as_ptr().cast(), Some(device_of)) };
        assert_eq!(key(&one), Key::Device(64));
        // The next context has the processor's backend there, and the card's elsewhere.
        one.set(processor);
        assert_eq!([&one, &other].map(key), [128, 64].map(Key::Device));
        // Of a backend without a device, and of a library without devices.
        let address = one.as_ptr().cast();
        one.set(std::ptr::null_mut());
        assert_eq!(key(&one), Key::Backend(address as usize));
        // SAFETY: nothing is called.
        let without = unsafe { key_of(address, None) };
        assert_eq!(without, Key::Backend(address as usize));
    }
}
