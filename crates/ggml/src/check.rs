//! Is the library in this process laid out as our mirrors of its structs say?
//!
//! Asked once, before the first graph is read. The library's own accessors are
//! compared with what we read from the same structs: first what cannot go wrong
//! (the size of a tensor, addresses of fields), then what dereferences more.
//! A disagreement means: record nothing.

use std::ffi::{CStr, c_char, c_int, c_void};

use gguf::types::GgmlType;

use crate::foreign::{Mirror, TensorLayout};
use crate::graph::Graph;
use crate::ops::OpName;
use crate::tensor::{MAX_LONG_NAME_BYTES, MAX_NAME_BYTES, RawTensor, Tensor};

/// `sizeof(struct ggml_object)`, the other part of `ggml_tensor_overhead`.
const OBJECT_BYTES: usize = 32;
/// Tensors of another layout whose translations are compared.
const SAMPLES: usize = 128;
/// ggml has about a hundred ops; the name of a larger number is not asked for,
/// because ggml checks no bounds.
const MAX_OP_NUMBER: u32 = 255;

/// Functions of the library, as found by the linker or `dlsym`.
#[derive(Clone, Copy)]
pub struct Api {
    /// Not in libraries before 2025.
    pub ggml_version: Option<unsafe extern "C" fn() -> *const c_char>,
    pub ggml_tensor_overhead: unsafe extern "C" fn() -> usize,
    pub ggml_get_name: unsafe extern "C" fn(*const c_void) -> *const c_char,
    pub ggml_get_data: unsafe extern "C" fn(*const c_void) -> *mut c_void,
    pub ggml_nbytes: unsafe extern "C" fn(*const c_void) -> usize,
    pub ggml_element_size: unsafe extern "C" fn(*const c_void) -> usize,
    pub ggml_op_name: OpName,
    pub ggml_type_name: unsafe extern "C" fn(u32) -> *const c_char,
    pub ggml_blck_size: unsafe extern "C" fn(u32) -> i64,
    pub ggml_type_size: unsafe extern "C" fn(u32) -> usize,
    pub ggml_graph_n_nodes: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub ggml_graph_node: unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void,
    pub ggml_backend_buffer_get_usage: unsafe extern "C" fn(*mut c_void) -> u32,
    pub ggml_backend_buffer_get_type: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    pub ggml_backend_buffer_get_base: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    pub ggml_backend_buffer_get_size: unsafe extern "C" fn(*mut c_void) -> usize,
    pub ggml_backend_buft_name: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    /// The library's `GGML_TYPE_COUNT`: the sizes of higher types are not asked
    /// for, because ggml checks no bounds.
    pub type_count: u32,
}

/// The library is not what we know how to read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error(
        "ggml {version}: a tensor struct has {library} bytes, but tensorscope knows only the \
         layout of {ours}; use a llama.cpp that tensorscope supports (see `tensorscope doctor`)"
    )]
    TensorSize {
        version: String,
        library: usize,
        ours: usize,
    },
    #[error(
        "ggml {version}: field `{field}` of tensor `{tensor}`: the library says {library}, \
         we read {ours}; use a llama.cpp that tensorscope supports (see `tensorscope doctor`)"
    )]
    Field {
        version: String,
        field: &'static str,
        tensor: String,
        library: String,
        ours: String,
    },
    #[error(
        "ggml {version}: type {ty}: the library says {library}, our table says {ours}; \
         use a llama.cpp that tensorscope supports (see `tensorscope doctor`)"
    )]
    Type {
        version: String,
        ty: GgmlType,
        library: String,
        ours: String,
    },
    #[error(
        "ggml {version}: field `{field}` of the graph: the library says {library}, we read \
         {ours}; use a llama.cpp that tensorscope supports (see `tensorscope doctor`)"
    )]
    Graph {
        version: String,
        field: &'static str,
        library: String,
        ours: String,
    },
}

impl Api {
    /// The library's own version, or `unknown` before it had one.
    pub fn version(&self) -> String {
        // SAFETY: takes nothing, answers with a static C string.
        match self.ggml_version.map(|version| unsafe { version() }) {
            Some(pointer) => c_string(pointer).unwrap_or_else(|| "unknown".into()),
            None => "unknown".into(),
        }
    }
}

/// Whether a struct of this size can be laid out as [`RawTensor`]: `GGML_MAX_NAME` may be
/// larger, and what comes behind the name is not read.
fn is_todays(bytes: usize) -> bool {
    let longest = std::mem::size_of::<RawTensor>() - MAX_NAME_BYTES + MAX_LONG_NAME_BYTES;
    (std::mem::size_of::<RawTensor>()..=longest).contains(&bytes)
}

/// Compares the library's answers with our view of `samples`: a few leafs, nodes
/// and views of a real graph.
///
/// # Safety
/// `api` holds the functions its fields are named after, all of one library, and
/// `samples` point to tensors that this library made. (Their layout may be
/// another one: that is what is found out here, in an order that stops before
/// anything wrong is dereferenced.)
pub unsafe fn self_check(api: &Api, samples: &[*const RawTensor]) -> Result<(), LayoutError> {
    // SAFETY: takes nothing.
    let overhead_bytes = unsafe { (api.ggml_tensor_overhead)() };
    let (library, ours) = (
        overhead_bytes.saturating_sub(OBJECT_BYTES),
        std::mem::size_of::<RawTensor>(),
    );
    if !is_todays(library) {
        return Err(LayoutError::TensorSize {
            version: api.version(),
            library,
            ours,
        });
    }
    check_types(api)?;
    for &sample in samples {
        // SAFETY: alive, made by this library, and of at least our size.
        if let Some(tensor) = unsafe { Tensor::from_ptr(sample) } {
            let name = tensor.name().as_ptr();
            check_tensor(api, tensor, tensor.as_ptr().cast(), name)?;
        }
    }
    Ok(())
}

/// As [`self_check`] for a library of another layout: finds out which one, and
/// compares its answers about the first tensors with their translations.
///
/// # Safety
/// As [`self_check`]; `graph` was made by this library.
pub unsafe fn identify(
    api: &Api,
    graph: *const c_void,
    mirror: &mut Mirror,
) -> Result<TensorLayout, LayoutError> {
    // SAFETY: takes nothing.
    let overhead_bytes = unsafe { (api.ggml_tensor_overhead)() };
    let library = overhead_bytes.saturating_sub(OBJECT_BYTES);
    // SAFETY: number and list of the nodes are where they are in every layout.
    let first = unsafe { crate::foreign::first_node(graph) };
    let Some(first) = first else {
        return Ok(TensorLayout::Today);
    };
    // SAFETY: answers with the address of a field of a live tensor.
    let name = unsafe { (api.ggml_get_name)(first) } as usize;
    let with_perf =
        || first_integer(api).map(|first_integer| TensorLayout::WithPerf { first_integer });
    let layout = [TensorLayout::Today, TensorLayout::WithGrad]
        .into_iter()
        .chain(with_perf())
        .find(|l| {
            let has_size = l.bytes() == library || *l == TensorLayout::Today && is_todays(library);
            has_size && name.wrapping_sub(first as usize) == l.name_offset()
        });
    let Some(layout) = layout else {
        let ours = std::mem::size_of::<RawTensor>();
        return Err(if is_todays(library) {
            LayoutError::Field {
                version: api.version(),
                field: "name",
                tensor: "the first node".into(),
                library: format!("byte {}", name.wrapping_sub(first as usize)),
                ours: format!("byte {}", TensorLayout::Today.name_offset()),
            }
        } else {
            LayoutError::TensorSize {
                version: api.version(),
                library,
                ours,
            }
        });
    };
    if layout != TensorLayout::Today {
        let type_count = match layout {
            TensorLayout::WithPerf { first_integer } => first_integer,
            TensorLayout::Today | TensorLayout::WithGrad => api.type_count,
        };
        check_types(&Api { type_count, ..*api })?;
        // SAFETY: a live graph, whose layout the address of a name gave away.
        unsafe { mirror.translate(graph, layout) };
        for (original, tensor) in mirror.tensors().take(SAMPLES) {
            let name = original as usize + layout.name_offset();
            check_tensor(api, tensor, original, name as *const u8)?;
        }
    }
    Ok(layout)
}

/// Compares the library's answers with our view of a graph.
///
/// # Safety
/// `api` holds the functions its fields are named after, and `graph` was made by
/// their library, which has passed [`self_check`].
pub unsafe fn check_graph(api: &Api, graph: Graph<'_>) -> Result<(), LayoutError> {
    let pointer = graph.as_ptr().cast_mut().cast::<c_void>();
    let same = |field, library: String, ours: String| match library == ours {
        true => Ok(()),
        false => Err(LayoutError::Graph {
            version: api.version(),
            field,
            library,
            ours,
        }),
    };
    // SAFETY: a live graph of this library.
    let n_nodes = unsafe { (api.ggml_graph_n_nodes)(pointer) };
    same(
        "n_nodes",
        n_nodes.to_string(),
        graph.nodes().len().to_string(),
    )?;
    for (i, node) in graph.nodes().enumerate() {
        // SAFETY: a live graph of this library, and i is below its node count.
        let library = unsafe { (api.ggml_graph_node)(pointer, i as c_int) };
        same("nodes", address(library), address(node.as_ptr()))?;
    }
    Ok(())
}

/// The number of I8 in this library. I8, I16 and I32 were the last types until
/// 2024-02-27 and have today's numbers since, so no number behind I32 is asked
/// for: ggml checks no bounds.
fn first_integer(api: &Api) -> Option<u32> {
    (0..=GgmlType::I8.as_u32()).find(|&number| {
        // SAFETY: the library has at least the types up to I32.
        let name = unsafe { (api.ggml_type_name)(number) };
        c_string(name).is_some_and(|name| name == GgmlType::I8.name())
    })
}

fn check_types(api: &Api) -> Result<(), LayoutError> {
    // Kernels keep Q8_1 in their own work memory, no tensor has it; its blocks
    // were larger until 2024-05.
    let is_compared = |ty: &GgmlType| ty.as_u32() < api.type_count && *ty != GgmlType::Q8_1;
    for ty in GgmlType::all().filter(is_compared) {
        let number = ty.as_u32();
        // SAFETY: the number is below the library's count of types.
        let (elements, bytes, name) = unsafe {
            (
                (api.ggml_blck_size)(number),
                (api.ggml_type_size)(number),
                (api.ggml_type_name)(number),
            )
        };
        let say = |name: &str, elements: u64, bytes: u64| {
            format!("{name}, {bytes} bytes for {elements} elements")
        };
        let library = say(
            &c_string(name).unwrap_or_default(),
            u64::try_from(elements).unwrap_or(0),
            bytes as u64,
        );
        let ours = say(ty.name(), ty.block_elements(), ty.block_bytes());
        if library != ours {
            return Err(LayoutError::Type {
                version: api.version(),
                ty,
                library,
                ours,
            });
        }
    }
    Ok(())
}

/// `pointer` is the library's struct, of which `tensor` may be a translation.
fn check_tensor(
    api: &Api,
    tensor: Tensor<'_>,
    pointer: *const c_void,
    name_address: *const u8,
) -> Result<(), LayoutError> {
    let same = |field, library: String, ours: String| {
        if library == ours {
            return Ok(());
        }
        Err(LayoutError::Field {
            version: api.version(),
            field,
            tensor: String::from_utf8_lossy(tensor.name()).into_owned(),
            library,
            ours,
        })
    };

    // SAFETY: a live tensor of this library, in this call and the next three.
    let name = unsafe { (api.ggml_get_name)(pointer) };
    same("name", address(name), address(name_address))?;
    // SAFETY: as above.
    let data = unsafe { (api.ggml_get_data)(pointer) };
    same(
        "data",
        address(data),
        address(tensor.data() as *const c_void),
    )?;
    if GgmlType::from_u32(tensor.ty()).is_some() {
        // SAFETY: as above.
        let element_bytes = unsafe { (api.ggml_element_size)(pointer) };
        same(
            "type",
            element_bytes.to_string(),
            tensor.block().bytes.to_string(),
        )?;
        // SAFETY: as above.
        let nbytes = unsafe { (api.ggml_nbytes)(pointer) };
        same("ne, nb", nbytes.to_string(), tensor.nbytes().to_string())?;
    }
    check_op(api, tensor).or_else(|library| same("op", library, tensor.op().to_string()))?;
    if !tensor.view_is_consistent() {
        let root_data = tensor.root().data();
        same(
            "view_src, view_offs",
            address((tensor.data()) as *const c_void),
            format!(
                "{} + an offset of {}",
                address(root_data as *const c_void),
                tensor.view_offs()
            ),
        )?;
    }
    let buffer = tensor.buffer();
    // A view of 2024 may name the buffer that it was made for, not the one that
    // it lies in; only its root's is used.
    if !buffer.is_null() && tensor.data() != 0 && tensor.view_src().is_none() {
        // SAFETY: the buffer of a live tensor; all earlier fields agreed.
        let (base, size) = unsafe {
            (
                (api.ggml_backend_buffer_get_base)(buffer) as usize,
                (api.ggml_backend_buffer_get_size)(buffer),
            )
        };
        let end = tensor.data() as u64 + tensor.nbytes();
        if tensor.data() < base || end > (base as u64).saturating_add(size as u64) {
            same(
                "buffer",
                format!("{base:#x} and {size} bytes"),
                format!("data at {:#x} and {} bytes", tensor.data(), tensor.nbytes()),
            )?;
        }
    }
    Ok(())
}

/// `Err` with what the library has instead of a name. A name that our table
/// lacks is fine: it is an op newer than us.
fn check_op(api: &Api, tensor: Tensor<'_>) -> Result<(), String> {
    let number = tensor.op();
    if number > MAX_OP_NUMBER {
        return Err(format!("at most {MAX_OP_NUMBER} ops"));
    }
    // SAFETY: a plausible number from a tensor of this library.
    let name = c_string(unsafe { (api.ggml_op_name)(number) }).unwrap_or_default();
    let is_op_name = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    if is_op_name {
        Ok(())
    } else {
        Err(format!("{name:?}"))
    }
}

fn c_string(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the library answers with NUL-terminated static strings.
    Some(
        unsafe { CStr::from_ptr(pointer) }
            .to_string_lossy()
            .into_owned(),
    )
}

fn address<T>(pointer: *const T) -> String {
    format!("{:#x}", pointer as usize)
}
