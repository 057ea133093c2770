//! GPUs that are not here, for llama.cpp to lay a model out on: it asks a device how much
//! memory it has, how tensors are padded and which operations it computes, and never learns
//! that nothing could be computed. What they answer is what CUDA's devices answer
//! (`ggml-cuda.cu` of the linked version; `docs/decisions/0013-absent-gpus.md`).
//!
//! The structs are those of ggml's `ggml-backend-impl.h`, which is not installed; their version
//! is checked against that of the linked library.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr::{null, null_mut},
    sync::{Mutex, PoisonError},
};

use llama_cpp_sys_2 as sys;

use crate::start;

/// `GGML_BACKEND_API_VERSION` of the structs below.
const API_VERSION: c_int = 3;
/// Of every tensor in memory.
const ALIGNMENT: usize = 128;
/// `MATRIX_ROW_PADDING`: the last row of quantised matrices is filled up to so many elements.
const ROW_ELEMENTS: i64 = 512;
/// From so many tokens on weights of the processor are copied over and multiplied there.
const MIN_OFFLOADED_BATCH: i64 = 32;

type Buft = *mut BufferType;
type Dev = *mut Device;
type Tensor = sys::ggml_tensor;
/// A function that nobody calls, or that ggml does without.
type Absent = Option<unsafe extern "C" fn()>;

#[repr(C)]
struct BufferTypeInterface {
    get_name: unsafe extern "C" fn(Buft) -> *const c_char,
    alloc_buffer: unsafe extern "C" fn(Buft, usize) -> *mut c_void,
    alloc_buffer_n: Absent,
    get_alignment: unsafe extern "C" fn(Buft) -> usize,
    get_max_size: Absent,
    get_alloc_size: unsafe extern "C" fn(Buft, *const Tensor) -> usize,
    get_alloc_size_n: Absent,
    is_host: Absent,
}

#[repr(C)]
struct BufferType {
    interface: BufferTypeInterface,
    device: Dev,
    context: *mut c_void,
}

#[repr(C)]
struct DeviceInterface {
    get_name: unsafe extern "C" fn(Dev) -> *const c_char,
    get_description: unsafe extern "C" fn(Dev) -> *const c_char,
    get_memory: unsafe extern "C" fn(Dev, *mut usize, *mut usize),
    get_type: unsafe extern "C" fn(Dev) -> sys::ggml_backend_dev_type,
    get_props: unsafe extern "C" fn(Dev, *mut sys::ggml_backend_dev_props),
    init_backend: unsafe extern "C" fn(Dev, *const c_char) -> *mut Backend,
    get_buffer_type: unsafe extern "C" fn(Dev) -> Buft,
    get_host_buffer_type: Absent,
    buffer_from_host_ptr: Absent,
    supports_op: unsafe extern "C" fn(Dev, *const Tensor) -> bool,
    supports_buft: unsafe extern "C" fn(Dev, Buft) -> bool,
    offload_op: unsafe extern "C" fn(Dev, *const Tensor) -> bool,
    event_new: Absent,
    event_free: Absent,
    event_synchronize: Absent,
}

/// `ggml_backend_device`, and behind it what is ours.
#[repr(C)]
struct Device {
    interface: DeviceInterface,
    registry: *mut Registry,
    context: *mut c_void,
    name: CString,
    memory_bytes: u64,
    buffer_type: Buft,
}

#[repr(C)]
struct RegistryInterface {
    get_name: unsafe extern "C" fn(*mut Registry) -> *const c_char,
    get_device_count: unsafe extern "C" fn(*mut Registry) -> usize,
    get_device: unsafe extern "C" fn(*mut Registry, usize) -> Dev,
    get_proc_address: Absent,
}

#[repr(C)]
struct Registry {
    api_version: c_int,
    interface: RegistryInterface,
    context: *mut c_void,
}

#[repr(C)]
struct BackendInterface {
    get_name: unsafe extern "C" fn(*mut Backend) -> *const c_char,
    free: unsafe extern "C" fn(*mut Backend),
    /// Copies, waiting, graph plans.
    absent: [Absent; 10],
    graph_compute: unsafe extern "C" fn(*mut Backend, *mut c_void) -> c_int,
    /// Events, and a say in the order of nodes.
    also_absent: [Absent; 3],
}

#[repr(C)]
struct Backend {
    guid: *mut sys::ggml_guid,
    interface: BackendInterface,
    device: Dev,
    context: *mut c_void,
}

/// A GPU with so much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsentGpu {
    pub memory_bytes: u64,
}

/// Handles of devices, ended by a null as llama.cpp wants them.
pub(crate) struct Handles(Vec<sys::ggml_backend_dev_t>);

impl Handles {
    pub(crate) fn as_mut_ptr(&mut self) -> *mut sys::ggml_backend_dev_t {
        self.0.as_mut_ptr()
    }
}

/// Devices live as long as llama.cpp may ask them: for ever. Equal ones are made once.
struct Made(Vec<(usize, u64, Dev)>);
// SAFETY: devices are not changed once they are made.
unsafe impl Send for Made {}
static MADE: Mutex<Made> = Mutex::new(Made(Vec::new()));

/// The devices, numbered; `None` where the linked ggml has other structs than these.
pub(crate) fn handles(gpus: &[AbsentGpu]) -> Option<Handles> {
    if !is_known_version() {
        return None;
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut handles: Vec<sys::ggml_backend_dev_t> = Vec::new();
    for (number, gpu) in gpus.iter().enumerate() {
        let key = (number, gpu.memory_bytes);
        let known = made.0.iter().find(|(n, bytes, _)| (*n, *bytes) == key);
        let device = match known {
            Some((_, _, device)) => *device,
            None => {
                let device = new_device(number, gpu.memory_bytes);
                made.0.push((number, gpu.memory_bytes, device));
                device
            }
        };
        handles.push(device.cast());
    }
    handles.push(null_mut());
    Some(Handles(handles))
}

/// Asks the processor's device, by ggml's functions and by these structs.
fn is_known_version() -> bool {
    start();
    let cpu_type = sys::GGML_BACKEND_DEVICE_TYPE_CPU;
    // SAFETY: ggml always has a processor; its device begins as ours does if the version is
    // the same, and the version stands first in the registry of every version.
    unsafe {
        let cpu = sys::ggml_backend_dev_by_type(cpu_type);
        if cpu.is_null() {
            return false;
        }
        let registry: *const Registry = sys::ggml_backend_dev_backend_reg(cpu).cast();
        if registry.is_null() || (*registry).api_version != API_VERSION {
            return false;
        }
        let device: Dev = cpu.cast();
        ((*device).interface.get_type)(device) == cpu_type
            && std::ptr::eq((*device).registry, registry)
    }
}

fn new_device(number: usize, memory_bytes: u64) -> Dev {
    let registry = Box::leak(Box::new(Registry {
        api_version: API_VERSION,
        interface: RegistryInterface {
            get_name: registry_name,
            get_device_count: registry_count,
            get_device: registry_device,
            get_proc_address: None,
        },
        context: null_mut(),
    }));
    let device = Box::leak(Box::new(Device {
        interface: DeviceInterface {
            get_name: device_name,
            get_description: device_name,
            get_memory: device_memory,
            get_type: device_type,
            get_props: device_props,
            init_backend: device_backend,
            get_buffer_type: device_buffer_type,
            get_host_buffer_type: None,
            buffer_from_host_ptr: None,
            supports_op: device_supports_op,
            supports_buft: device_supports_buft,
            offload_op: device_offload_op,
            event_new: None,
            event_free: None,
            event_synchronize: None,
        },
        registry,
        context: null_mut(),
        name: CString::new(format!("GPU{number}")).unwrap_or_default(),
        memory_bytes,
        buffer_type: null_mut(),
    }));
    device.buffer_type = Box::leak(Box::new(BufferType {
        interface: BufferTypeInterface {
            get_name: buffer_type_name,
            alloc_buffer: buffer_type_alloc,
            alloc_buffer_n: None,
            get_alignment: buffer_type_alignment,
            get_max_size: None,
            get_alloc_size: buffer_type_alloc_size,
            get_alloc_size_n: None,
            is_host: None,
        },
        device,
        context: null_mut(),
    }));
    device
}

unsafe extern "C" fn registry_name(_: *mut Registry) -> *const c_char {
    const NAME: &CStr = c"GPU";
    NAME.as_ptr()
}

unsafe extern "C" fn registry_count(_: *mut Registry) -> usize {
    0
}

unsafe extern "C" fn registry_device(_: *mut Registry, _: usize) -> Dev {
    null_mut()
}

unsafe extern "C" fn device_name(device: Dev) -> *const c_char {
    // SAFETY: one of ours, which live for ever.
    unsafe { (*device).name.as_ptr() }
}

unsafe extern "C" fn device_memory(device: Dev, free: *mut usize, total: *mut usize) {
    // SAFETY: one of ours, and two numbers to write to.
    unsafe {
        *free = (*device).memory_bytes as usize;
        *total = *free;
    }
}

unsafe extern "C" fn device_type(_: Dev) -> sys::ggml_backend_dev_type {
    sys::GGML_BACKEND_DEVICE_TYPE_GPU
}

unsafe extern "C" fn device_props(device: Dev, props: *mut sys::ggml_backend_dev_props) {
    // SAFETY: one of ours, and a struct to fill.
    unsafe {
        let bytes = (*device).memory_bytes as usize;
        *props = sys::ggml_backend_dev_props {
            name: device_name(device),
            description: device_name(device),
            memory_free: bytes,
            memory_total: bytes,
            type_: sys::GGML_BACKEND_DEVICE_TYPE_GPU,
            device_id: null(),
            caps: sys::ggml_backend_dev_caps {
                async_: true,
                host_buffer: true,
                buffer_from_host_ptr: false,
                events: true,
                mmap_support: true,
            },
        };
    }
}

unsafe extern "C" fn device_backend(device: Dev, _: *const c_char) -> *mut Backend {
    static mut GUID: sys::ggml_guid = *b"tensorscope-gpu\0";
    Box::into_raw(Box::new(Backend {
        guid: &raw mut GUID,
        interface: BackendInterface {
            get_name: backend_name,
            free: backend_free,
            absent: [None; 10],
            graph_compute: backend_compute,
            also_absent: [None; 3],
        },
        device,
        context: null_mut(),
    }))
}

unsafe extern "C" fn backend_name(backend: *mut Backend) -> *const c_char {
    // SAFETY: one of ours.
    unsafe { device_name((*backend).device) }
}

unsafe extern "C" fn backend_free(backend: *mut Backend) {
    // SAFETY: made by `device_backend`, freed once.
    drop(unsafe { Box::from_raw(backend) });
}

unsafe extern "C" fn backend_compute(_: *mut Backend, _: *mut c_void) -> c_int {
    sys::GGML_STATUS_FAILED
}

unsafe extern "C" fn device_buffer_type(device: Dev) -> Buft {
    // SAFETY: one of ours.
    unsafe { (*device).buffer_type }
}

unsafe extern "C" fn device_supports_buft(device: Dev, buffer_type: Buft) -> bool {
    // SAFETY: one of ours.
    unsafe { std::ptr::eq((*device).buffer_type, buffer_type) }
}

/// All but attention over heads of unusual lengths.
unsafe extern "C" fn device_supports_op(_: Dev, op: *const Tensor) -> bool {
    // SAFETY: a live tensor; flash attention has queries, keys and values.
    unsafe {
        if (*op).op != sys::GGML_OP_FLASH_ATTN_EXT {
            return true;
        }
        let [queries, keys, values] = [0, 1, 2].map(|at| &*(*op).src[at]);
        let shared = queries.ne[2] / keys.ne[2].max(1);
        match (keys.ne[0], values.ne[0]) {
            (40 | 64 | 72 | 80 | 96 | 112 | 128 | 256, length) => length == keys.ne[0],
            (192, 128) => shared % 8 == 0,
            (320, 256) => shared % 32 == 0,
            (512, 512) | (576, 512) => shared >= 2,
            _ => false,
        }
    }
}

unsafe extern "C" fn device_offload_op(_: Dev, op: *const Tensor) -> bool {
    // SAFETY: a live tensor.
    let batch = unsafe {
        match (*op).op {
            sys::GGML_OP_GET_ROWS => 0,
            sys::GGML_OP_MUL_MAT => (*op).ne[1],
            sys::GGML_OP_MUL_MAT_ID | sys::GGML_OP_ROPE | sys::GGML_OP_ROPE_BACK => (*op).ne[2],
            _ => sys::ggml_nrows(op),
        }
    };
    batch >= MIN_OFFLOADED_BATCH
}

unsafe extern "C" fn buffer_type_name(buffer_type: Buft) -> *const c_char {
    // SAFETY: one of ours.
    unsafe { device_name((*buffer_type).device) }
}

unsafe extern "C" fn buffer_type_alloc(_: Buft, _: usize) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn buffer_type_alignment(_: Buft) -> usize {
    ALIGNMENT
}

unsafe extern "C" fn buffer_type_alloc_size(_: Buft, tensor: *const Tensor) -> usize {
    // SAFETY: a live tensor; flash attention has keys and values.
    unsafe {
        let mut bytes = sys::ggml_nbytes(tensor);
        let tensor = &*tensor;
        if tensor.op == sys::GGML_OP_FLASH_ATTN_EXT {
            let (keys, values) = (&*tensor.src[1], &*tensor.src[2]);
            let same = !values.view_src.is_null()
                && (std::ptr::eq(values.view_src, keys)
                    || (values.view_src == keys.view_src && values.view_offs == keys.view_offs));
            // Kernels for many tokens read f16: copies of a cache of another type.
            for (cache, is_copied) in [(keys, true), (values, !same)] {
                if is_copied && cache.type_ != sys::GGML_TYPE_F16 {
                    bytes = bytes.next_multiple_of(ALIGNMENT);
                    bytes += 2 * sys::ggml_nelements(cache) as usize;
                }
            }
        }
        let rest = tensor.ne[0] % ROW_ELEMENTS;
        if sys::ggml_is_quantized(tensor.type_) && rest != 0 {
            bytes += sys::ggml_row_size(tensor.type_, ROW_ELEMENTS - rest);
        }
        bytes
    }
}
