//! What is copied between the host's memory and that of devices, and with it where the host has
//! the inputs of a graph.
//!
//! llama.cpp fills the inputs of a graph (positions, cells of the KV cache) in the host's
//! memory; the scheduler copies each into the memory of the device that needs it. These calls
//! are seen here: they are logged with the tensor that they carry, and the numbers of an
//! input are kept, for when its graph is recorded. (The host's own copy may be overwritten by
//! then: its memory is free for the next part of the graph.)
//!
//! A device has nothing to do from the end of one graph to the launch of the next, and the inputs
//! of that are copied in between. So the copies of a scheduler only have their inputs kept at
//! once, and are logged when the part that they are for was launched.
//!
//! Not seen: copies from one device to another that their backend makes by itself, and the
//! weights while the model is loaded, before anything was computed.

use std::{
    cell::{Cell, RefCell},
    ffi::c_void,
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, catch_unwind},
};

use capture::{Recorder, recorder::device::CopyCall};
use ggml::{RawTensor, Tensor};
use gguf::types::GgmlType;
use trace::{clock::now_nanos, device::Way};

use crate::{
    hooks::{self, export},
    library::{self, Library, Original},
    process, streams,
};

use super::Known;

export!(ggml_backend_tensor_copy => copy, "rdx", "x2");
export!(ggml_backend_tensor_copy_async => copy_async, "r8", "x4");
export!(ggml_backend_tensor_set => set, "r8", "x4");
export!(ggml_backend_tensor_get => get, "r8", "x4");
export!(ggml_backend_tensor_set_async => set_async, "r9", "x5");
export!(ggml_backend_tensor_get_async => get_async, "r9", "x5");

static COPY: Original = Original::new(c"ggml_backend_tensor_copy");
static COPY_ASYNC: Original = Original::new(c"ggml_backend_tensor_copy_async");
static SET: Original = Original::new(c"ggml_backend_tensor_set");
static GET: Original = Original::new(c"ggml_backend_tensor_get");
static SET_ASYNC: Original = Original::new(c"ggml_backend_tensor_set_async");
static GET_ASYNC: Original = Original::new(c"ggml_backend_tensor_get_async");

/// Inputs that are kept: those of a graph are fewer.
const REMEMBERED: usize = 64;
/// Larger ones are not: numbers of rows for every token of a large batch are smaller.
const MAX_BYTES: usize = 16 << 20;

thread_local! {
    /// A copy is made of copies: the outermost counts.
    static IS_COPYING: Cell<bool> = const { Cell::new(false) };
    /// Inputs on devices, and the bytes that were copied there. Never dropped: programs copy
    /// when they end, after what threads drop.
    static INPUTS: RefCell<ManuallyDrop<Vec<Input>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

thread_local! {
    /// Copies of the scheduler that computes on this thread, which are logged after the next
    /// launch. Never dropped, as above.
    static DEFERRED: RefCell<ManuallyDrop<Vec<Deferred>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

struct Deferred {
    /// Of the scheduler, or of the graph that it computes: alive until it has computed that.
    tensor: *const RawTensor,
    library: &'static Library,
    device: &'static Known,
    copy: CopyCall,
}

/// An input on a device, and its bytes.
type Input = (*const RawTensor, Vec<u8>);

type Tensors = unsafe extern "C" fn(*const c_void, *mut c_void);
type Async = unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void, *mut c_void);
type Bytes = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, usize);
type BytesAsync = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, usize, usize);

/// `ggml_backend_tensor_copy(src, dst)`.
unsafe extern "C" fn copy(src: *const c_void, dst: *mut c_void, caller: usize) {
    let real = COPY.of(caller);
    if real.is_null() {
        return;
    }
    let copied = Copied::of_tensors(src, dst, Waits::Yes);
    // SAFETY: the C function of this name, with the program's arguments.
    observed(caller, &copied, || unsafe {
        std::mem::transmute::<*mut c_void, Tensors>(real)(src, dst);
    });
}

/// `ggml_backend_tensor_copy_async(backend_src, backend_dst, src, dst)`.
unsafe extern "C" fn copy_async(
    from: *mut c_void,
    to: *mut c_void,
    src: *const c_void,
    dst: *mut c_void,
    caller: usize,
) {
    let real = COPY_ASYNC.of(caller);
    if real.is_null() {
        return;
    }
    let copied = Copied::of_tensors(src, dst, Waits::No);
    // SAFETY: as above.
    observed(caller, &copied, || unsafe {
        std::mem::transmute::<*mut c_void, Async>(real)(from, to, src, dst);
    });
}

macro_rules! bytes_hook {
    ($name:ident, $original:ident, $direction:expr) => {
        /// See the function of this name in ggml, `ggml_backend_tensor_…(tensor, data, offset, size)`.
        unsafe extern "C" fn $name(
            tensor: *mut c_void,
            data: *mut c_void,
            offset: usize,
            size: usize,
            caller: usize,
        ) {
            let real = $original.of(caller);
            if real.is_null() {
                return;
            }
            let copied = Copied::of_bytes(tensor, data, (offset, size), $direction, Waits::Yes);
            // SAFETY: the C function of this name, with the program's arguments.
            observed(caller, &copied, || unsafe {
                std::mem::transmute::<*mut c_void, Bytes>(real)(tensor, data, offset, size);
            });
        }
    };
}

macro_rules! async_bytes_hook {
    ($name:ident, $original:ident, $direction:expr) => {
        /// See the function of this name in ggml, with a backend before the other arguments.
        unsafe extern "C" fn $name(
            backend: *mut c_void,
            tensor: *mut c_void,
            data: *mut c_void,
            offset: usize,
            size: usize,
            caller: usize,
        ) {
            let real = $original.of(caller);
            if real.is_null() {
                return;
            }
            let copied = Copied::of_bytes(tensor, data, (offset, size), $direction, Waits::No);
            // SAFETY: the C function of this name, with the program's arguments.
            observed(caller, &copied, || unsafe {
                let real = std::mem::transmute::<*mut c_void, BytesAsync>(real);
                real(backend, tensor, data, offset, size);
            });
        }
    };
}

bytes_hook!(set, SET, Side::ToTensor);
bytes_hook!(get, GET, Side::FromTensor);
async_bytes_hook!(set_async, SET_ASYNC, Side::ToTensor);
async_bytes_hook!(get_async, GET_ASYNC, Side::FromTensor);

#[derive(Clone, Copy, PartialEq)]
enum Waits {
    Yes,
    No,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    ToTensor,
    FromTensor,
}

/// What a call copies.
struct Copied {
    src: *const RawTensor,
    dst: *const RawTensor,
    /// The host's side of a call that names one.
    data: *const u8,
    /// In the tensor; the whole tensor if there is no size.
    offset: usize,
    size: Option<usize>,
    waits: Waits,
}

impl Copied {
    /// Whether it is made as a scheduler makes its own. A program that sets a tensor of its own
    /// in a scheduler's callback may free that at once.
    fn is_of_scheduler(&self) -> bool {
        !self.src.is_null() && !self.dst.is_null() || self.waits == Waits::No
    }

    fn of_tensors(src: *const c_void, dst: *mut c_void, waits: Waits) -> Copied {
        Copied {
            src: src.cast(),
            dst: dst.cast_const().cast(),
            data: std::ptr::null(),
            offset: 0,
            size: None,
            waits,
        }
    }

    fn of_bytes(
        tensor: *mut c_void,
        data: *mut c_void,
        (offset, size): (usize, usize),
        side: Side,
        waits: Waits,
    ) -> Copied {
        let tensor: *const RawTensor = tensor.cast_const().cast();
        let (src, dst) = match side {
            Side::ToTensor => (std::ptr::null(), tensor),
            Side::FromTensor => (tensor, std::ptr::null()),
        };
        Copied {
            src,
            dst,
            data: data.cast_const().cast(),
            offset,
            size: Some(size),
            waits,
        }
    }
}

/// Makes the call, and logs what it did.
fn observed(caller: usize, copied: &Copied, call: impl FnOnce()) {
    // Before anything was computed there is no stream to log to, and devices are not known.
    if !process::is_on() || IS_COPYING.get() || hooks::last_context() == 0 {
        return call();
    }
    IS_COPYING.set(true);
    let begin_nanos = now_nanos();
    call();
    let end_nanos = now_nanos();
    // SAFETY: the tensors of the call, which the program keeps alive.
    let logged = catch_unwind(AssertUnwindSafe(|| unsafe {
        log(caller, copied, (begin_nanos, end_nanos));
    }));
    if logged.is_err() {
        process::switch_off("an error in the recorder itself, after a copy");
    }
    IS_COPYING.set(false);
}

/// # Safety
/// Live tensors of the library around `caller`.
unsafe fn log(caller: usize, copied: &Copied, nanos: (u64, u64)) -> Option<()> {
    // SAFETY: as promised by the caller.
    let (src, dst) = unsafe { (Tensor::from_ptr(copied.src), Tensor::from_ptr(copied.dst)) };
    let library = library::known(hooks::processors_compute(caller)?)?;
    if !library.is_laid_out_as_today() {
        return None;
    }
    let of = |tensor: Option<Tensor<'_>>| {
        let buffer = tensor?.root().buffer();
        // SAFETY: the buffer of a live tensor of this library.
        unsafe { super::of_buffer(library, buffer, caller) }
    };
    let (from, to): (Option<&'static Known>, Option<&'static Known>) = (of(src), of(dst));
    let (way, device) = match (from, to) {
        (None, None) => return None,
        (None, Some(to)) => (Way::HostToDevice, to),
        (Some(from), None) => (Way::DeviceToHost, from),
        (Some(_), Some(to)) => (Way::DeviceToDevice, to),
    };
    if let (Way::HostToDevice, Some(to)) = (way, dst)
        && is_of_numbers(to)
    {
        let host = src.map_or(copied.data, |src| src.data() as *const u8);
        let bytes = copied.size.map_or(to.nbytes() as usize, |size| size);
        // SAFETY: what the call has just copied from.
        unsafe { keep(to, host, copied.offset, bytes) };
    }
    // What is carried is better known by the name that it has on the host.
    let tensor = src.or(dst)?;
    let copy = CopyCall {
        way,
        is_async: copied.waits == Waits::No,
        offset: copied.offset as u64,
        bytes: copied
            .size
            .map_or_else(|| tensor.nbytes(), |size| size as u64),
        begin_nanos: nanos.0,
        end_nanos: nanos.1,
    };
    if copy.bytes == 0 {
        return None;
    }
    if way == Way::HostToDevice && copied.is_of_scheduler() && hooks::is_in_scheduler() {
        let tensor = tensor.as_ptr();
        DEFERRED.with_borrow_mut(|deferred| {
            deferred.push(Deferred {
                tensor,
                library,
                device,
                copy,
            });
        });
        return Some(());
    }
    let process = process::current()?;
    let context = hooks::last_context();
    let mut lent = streams::lend(process, library, context)?;
    let recorder = &mut lent.stream().recorder;
    recorder.set_context(streams::context_number(process, context));
    // SAFETY: those before this one, of the scheduler that computes; a live tensor of this
    // library.
    unsafe {
        log_deferred(library, recorder);
        recorder.copy(tensor, &device.device, &copy);
    }
    Some(())
}

/// Logs the copies that were made for the evaluation that comes next in this log.
///
/// # Safety
/// The scheduler in which they were made is still computing, on this thread.
pub unsafe fn log_deferred(library: &Library, recorder: &mut Recorder) {
    let mut deferred = DEFERRED.with_borrow_mut(|all| std::mem::take(&mut **all));
    for of in deferred.drain(..) {
        // SAFETY: as promised by the caller.
        let tensor = unsafe { Tensor::from_ptr(of.tensor) };
        if let Some(tensor) = tensor.filter(|_| std::ptr::eq(of.library, library)) {
            // SAFETY: a live tensor of this library.
            unsafe { recorder.copy(tensor, &of.device.device, &of.copy) };
        }
    }
    // For its memory.
    DEFERRED.with_borrow_mut(|all| **all = deferred);
}

/// A scheduler has computed, or another one begins inside of it: copies that no evaluation
/// followed are logged by themselves.
///
/// # Safety
/// As above.
pub unsafe fn log_rest() {
    if DEFERRED.with_borrow(|all| all.is_empty()) {
        return;
    }
    let logged = catch_unwind(AssertUnwindSafe(|| {
        let first = DEFERRED.with_borrow(|all| all.first().map(|of| of.library));
        let (process, library) = (process::is_on().then(process::current)??, first?);
        let context = hooks::last_context();
        let mut lent = streams::lend(process, library, context)?;
        let recorder = &mut lent.stream().recorder;
        recorder.set_context(streams::context_number(process, context));
        // SAFETY: as promised by the caller.
        unsafe { log_deferred(library, recorder) };
        Some(())
    }));
    if logged.is_err() {
        process::switch_off("an error in the recorder itself, after a scheduler's copies");
    }
    DEFERRED.with_borrow_mut(|all| all.clear());
}

/// Whether readers want the values: rows, cells and positions are integers.
fn is_of_numbers(tensor: Tensor<'_>) -> bool {
    let types = [GgmlType::I32, GgmlType::I64];
    types.iter().any(|ty| tensor.ty() == ty.as_u32())
}

/// # Safety
/// So many bytes are readable at `host`.
unsafe fn keep(copy: Tensor<'_>, host: *const u8, offset: usize, bytes: usize) {
    let all = copy.nbytes() as usize;
    if host.is_null() || all > MAX_BYTES || offset.checked_add(bytes).is_none_or(|end| end > all) {
        return;
    }
    INPUTS.with_borrow_mut(|inputs| {
        let known = inputs
            .iter()
            .position(|(known, _)| std::ptr::eq(*known, copy.as_ptr()));
        let mut kept = match known {
            Some(at) => inputs.remove(at).1,
            None if inputs.len() >= REMEMBERED => inputs.remove(0).1,
            None => Vec::new(),
        };
        kept.resize(all, 0);
        // SAFETY: as promised by the caller, and there is room.
        unsafe {
            kept.as_mut_ptr()
                .add(offset)
                .copy_from_nonoverlapping(host, bytes)
        };
        inputs.push((copy.as_ptr(), kept));
    });
}

/// Where the host has the values of a tensor on a device: of an input that was copied there by
/// this thread.
pub fn host_of(tensor: Tensor<'_>) -> Option<*const u8> {
    let root = tensor.root();
    // SAFETY: a live tensor; only its buffer is looked at.
    let is_on_device = library::any().is_some_and(|library| unsafe {
        let name = library.buffer_name(root.buffer());
        name.and_then(super::by_buffer_name).is_some()
    });
    if !is_on_device {
        return Some(tensor.data() as *const u8);
    }
    INPUTS.with_borrow(|inputs| {
        let mut newest = inputs.iter().rev();
        let (_, bytes) = newest.find(|(copy, _)| std::ptr::eq(*copy, root.as_ptr()))?;
        let offset = usize::try_from(tensor.offset_in_root()).ok()?;
        let end = offset.checked_add(usize::try_from(tensor.nbytes()).ok()?)?;
        (end <= bytes.len()).then(|| bytes[offset..].as_ptr())
    })
}
