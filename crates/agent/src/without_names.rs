//! What a stripped llama.cpp's functions would answer, answered by us: they cannot be called.
//!
//! Nothing of it is believed before the first graph was looked at: every field that we would
//! read of its tensors must make sense, and the place of each field of a buffer is found out,
//! not assumed. Memory is read by the kernel meanwhile, so that a pointer that is none ends in
//! a refusal, not in a crash.

use std::{
    collections::HashSet,
    ffi::{CStr, CString, c_char, c_void},
    fs::File,
    mem::MaybeUninit,
    os::unix::fs::FileExt,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use ggml::{RawGraph, RawTensor, Tensor, check::Api};
use gguf::GgmlType;

use crate::{image::Image, inside::Inside, library};

/// `sizeof(struct ggml_object)` and of `ggml_tensor`. Where names are longer, what we read
/// lies at the same place.
const OVERHEAD_BYTES: usize = 32 + std::mem::size_of::<RawTensor>();
/// Nodes of the first graph that are looked at.
const LOOKED_AT: usize = 4096;
/// `GGML_MAX_NAME` in builds that have longer names.
const MAX_NAME_BYTES: usize = 128;
/// Functions in front of a buffer's fields: 9 since 2024-10, 11 in newer versions.
const BUFFER_FUNCTIONS: std::ops::RangeInclusive<usize> = 8..=14;
/// `get_base` is the second of them.
const GET_BASE: usize = 1;
/// `GGML_BACKEND_BUFFER_USAGE_COMPUTE`.
const MAX_USAGE: u32 = 2;
/// `ggml_cgraph_eval_order`.
const MAX_ORDER: u32 = 2;

/// Of the one stripped object of this process.
static OBJECT: OnceLock<&'static Inside> = OnceLock::new();
/// How many functions its buffers begin with; 0 until it is known.
static FUNCTIONS: AtomicUsize = AtomicUsize::new(0);

/// Our own functions in place of the object's.
pub fn api(inside: &'static Inside) -> Result<Api, String> {
    let first = OBJECT.get_or_init(|| inside);
    if !std::ptr::eq(*first, inside) {
        return Err("a second stripped llama.cpp in one program is not recorded".into());
    }
    Ok(Api {
        ggml_version: None,
        ggml_tensor_overhead: overhead,
        ggml_get_name: name,
        ggml_get_data: data,
        ggml_nbytes: nbytes,
        ggml_element_size: element_size,
        ggml_op_name: op_name,
        ggml_type_name: type_name,
        ggml_blck_size: block_elements,
        ggml_type_size: block_bytes,
        ggml_graph_n_nodes: library::n_nodes,
        ggml_graph_node: library::node,
        ggml_backend_buffer_get_usage: usage,
        ggml_backend_buffer_get_type: buffer_type,
        ggml_backend_buffer_get_base: base,
        ggml_backend_buffer_get_size: size,
        ggml_backend_buft_name: buffer_type_name,
        type_count: library::TYPES_SINCE_2024,
    })
}

/// Whether what lies at `graph` is a graph as we would read it.
pub fn check(inside: &Inside, graph: usize) -> Result<(), String> {
    let ops = inside.op_names().map_or(0, <[usize]>::len);
    let wrong = |what: &str| {
        format!("llama.cpp is linked into it without names, and its first graph has {what}")
    };
    let memory = Memory::open().ok_or_else(|| wrong("no memory that can be read"))?;
    let graph: RawGraph = memory.read(graph).ok_or_else(|| wrong("no place"))?;
    let count = usize::try_from(graph.n_nodes).unwrap_or(0).min(LOOKED_AT);
    if count == 0 || graph.order > MAX_ORDER {
        return Err(wrong("no nodes"));
    }
    let mut seen = HashSet::new();
    let mut tensors = Vec::new();
    let mut waiting = Vec::new();
    for i in 0..count {
        let node: usize = memory
            .read(graph.nodes as usize + i * size_of::<usize>())
            .ok_or_else(|| wrong("no list of nodes"))?;
        waiting.push(node);
    }
    while let Some(address) = waiting.pop() {
        if address == 0 || !seen.insert(address) {
            continue;
        }
        let tensor: RawTensor = memory
            .read(address)
            .ok_or_else(|| wrong("a tensor that is none"))?;
        let name: [u8; MAX_NAME_BYTES] = memory
            .read(address + std::mem::offset_of!(RawTensor, name))
            .ok_or_else(|| wrong("a tensor that is none"))?;
        is_plausible(&tensor, &name, ops).map_err(|what| wrong(&what))?;
        waiting.extend(tensor.src.map(|source| source as usize));
        waiting.push(tensor.view_src as usize);
        tensors.push(tensor);
    }
    let functions = buffer_functions(&memory, inside.image(), &tensors);
    match functions {
        Some(functions) => {
            FUNCTIONS.store(functions, Ordering::Relaxed);
            Ok(())
        }
        None => Err(wrong("buffers of an unknown form")),
    }
}

fn is_plausible(tensor: &RawTensor, name: &[u8], ops: usize) -> Result<(), String> {
    if tensor.op as usize >= ops {
        return Err(format!("an op of number {}", tensor.op));
    }
    if !name.contains(&0) {
        return Err("a name without an end".into());
    }
    if tensor.ne.iter().any(|&n| !(0..1 << 40).contains(&n)) {
        return Err(format!("a shape of {:?}", tensor.ne));
    }
    let Some(ty) = GgmlType::from_u32(tensor.ty) else {
        return Err(format!("a type of number {}", tensor.ty));
    };
    // A view may be turned; what owns its memory is not.
    let is_dense = tensor.nb[0] as u64 == ty.block_bytes();
    if tensor.view_src.is_null() && !is_dense {
        return Err(format!(
            "elements of {} that are {} bytes apart",
            ty.name(),
            tensor.nb[0]
        ));
    }
    Ok(())
}

/// The one number of functions with which every buffer makes sense.
fn buffer_functions(memory: &Memory, image: &Image, tensors: &[RawTensor]) -> Option<usize> {
    const WORDS: usize = *BUFFER_FUNCTIONS.end() + 4;
    let mut possible: Vec<usize> = BUFFER_FUNCTIONS.collect();
    let mut is_seen = false;
    for tensor in tensors {
        if tensor.buffer.is_null() || tensor.data.is_null() || !tensor.view_src.is_null() {
            continue;
        }
        let buffer: [usize; WORDS] = memory.read(tensor.buffer as usize)?;
        // Of a backend that is not in this object, a GPU's for instance.
        if !image.contains(buffer[GET_BASE]) {
            continue;
        }
        is_seen = true;
        // SAFETY: the function of this struct, which never moved, in the object's code.
        let base = unsafe {
            let get_base: unsafe extern "C" fn(*mut c_void) -> *mut c_void =
                std::mem::transmute(buffer[GET_BASE]);
            get_base(tensor.buffer) as usize
        };
        // SAFETY: a copy of a tensor, of which only its own fields are read.
        let bytes = unsafe { Tensor::from_ptr(tensor) }?.nbytes() as usize;
        let offset = (tensor.data as usize).checked_sub(base)?;
        possible.retain(|&functions| {
            let [ty, _, size, usage] = buffer[functions..functions + 4] else {
                return false;
            };
            let holds = offset.checked_add(bytes).is_some_and(|end| end <= size);
            let get_name: Option<usize> = memory.read(ty);
            let is_type = get_name.is_some_and(|function| image.contains(function));
            holds && is_type && usage as u32 <= MAX_USAGE && size < 1 << 46
        });
    }
    match possible[..] {
        [one] if is_seen => Some(one),
        _ => None,
    }
}

/// This process's memory, read so that a wrong address is an answer.
struct Memory(File);

impl Memory {
    fn open() -> Option<Memory> {
        File::open("/proc/self/mem").ok().map(Memory)
    }

    fn read<T>(&self, address: usize) -> Option<T>
    where
        T: Plain,
    {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: bytes of a value that is zero.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>())
        };
        self.0.read_exact_at(bytes, address as u64).ok()?;
        // SAFETY: a type for which every pattern of bits is a value.
        Some(unsafe { value.assume_init() })
    }
}

/// # Safety
/// Every pattern of bits is a value.
unsafe trait Plain {}
// SAFETY: integers and raw pointers only, here and below.
unsafe impl Plain for usize {}
// SAFETY: as above.
unsafe impl Plain for RawGraph {}
// SAFETY: as above.
unsafe impl Plain for RawTensor {}
// SAFETY: as above.
unsafe impl<const N: usize> Plain for [usize; N] {}
// SAFETY: as above.
unsafe impl<const N: usize> Plain for [u8; N] {}

unsafe extern "C" fn overhead() -> usize {
    OVERHEAD_BYTES
}

/// The functions of ggml with these arguments, for tensors that passed [`check`].
macro_rules! of_tensor {
    ($tensor:ident) => {
        // SAFETY: a live tensor of today's layout (caller).
        unsafe { Tensor::from_ptr($tensor.cast()) }
    };
}

unsafe extern "C" fn name(tensor: *const c_void) -> *const c_char {
    tensor
        .cast::<c_char>()
        .wrapping_add(std::mem::offset_of!(RawTensor, name))
}

pub unsafe extern "C" fn data(tensor: *const c_void) -> *mut c_void {
    of_tensor!(tensor).map_or(0, Tensor::data) as *mut c_void
}

unsafe extern "C" fn nbytes(tensor: *const c_void) -> usize {
    of_tensor!(tensor).map_or(0, Tensor::nbytes) as usize
}

unsafe extern "C" fn element_size(tensor: *const c_void) -> usize {
    of_tensor!(tensor).map_or(0, |tensor| tensor.block().bytes) as usize
}

unsafe extern "C" fn op_name(op: u32) -> *const c_char {
    let names = OBJECT.get().and_then(|object| object.op_names());
    let name = names.and_then(|names| names.get(op as usize));
    name.map_or(c"".as_ptr(), |&name| name as *const c_char)
}

unsafe extern "C" fn type_name(ty: u32) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let name = |number| GgmlType::from_u32(number).map_or("", GgmlType::name);
        let text = |number| CString::new(name(number)).unwrap_or_default();
        (0..library::TYPES_SINCE_2024).map(text).collect()
    });
    let name: Option<&CStr> = names.get(ty as usize).map(CString::as_c_str);
    name.unwrap_or(c"").as_ptr()
}

unsafe extern "C" fn block_elements(ty: u32) -> i64 {
    GgmlType::from_u32(ty).map_or(0, |ty| ty.block_elements() as i64)
}

unsafe extern "C" fn block_bytes(ty: u32) -> usize {
    GgmlType::from_u32(ty).map_or(0, |ty| ty.block_bytes() as usize)
}

/// A word of a buffer, behind its functions.
unsafe fn word_of(buffer: *mut c_void, word: usize) -> usize {
    let at = FUNCTIONS.load(Ordering::Relaxed) + word;
    // SAFETY: a live buffer (caller), whose form was found out.
    unsafe { buffer.cast::<usize>().add(at).read() }
}

unsafe extern "C" fn buffer_type(buffer: *mut c_void) -> *mut c_void {
    // SAFETY: as promised by the caller, here and below.
    unsafe { word_of(buffer, 0) as *mut c_void }
}

unsafe extern "C" fn size(buffer: *mut c_void) -> usize {
    // SAFETY: as above.
    unsafe { word_of(buffer, 2) }
}

unsafe extern "C" fn usage(buffer: *mut c_void) -> u32 {
    // SAFETY: as above; the other half of the word is padding.
    unsafe { word_of(buffer, 3) as u32 }
}

unsafe extern "C" fn base(buffer: *mut c_void) -> *mut c_void {
    // SAFETY: as above; the second function of the struct.
    unsafe {
        let get_base: unsafe extern "C" fn(*mut c_void) -> *mut c_void = buffer
            .cast::<unsafe extern "C" fn(*mut c_void) -> *mut c_void>()
            .add(GET_BASE)
            .read();
        get_base(buffer)
    }
}

unsafe extern "C" fn buffer_type_name(ty: *mut c_void) -> *const c_char {
    // SAFETY: as above; the first function of the struct.
    unsafe {
        let get_name: unsafe extern "C" fn(*mut c_void) -> *const c_char = ty
            .cast::<unsafe extern "C" fn(*mut c_void) -> *const c_char>()
            .read();
        get_name(ty)
    }
}
