//! The start-up check, against libraries made up in Rust: one that agrees with
//! our layout and some that do not.

mod fixture;

use std::ffi::{CString, c_char, c_int, c_void};

use fixture::Graph;
use ggml::check::{Api, LayoutError, check_graph, self_check};
use ggml::graph::{RawGraph, RawHashSet};
use ggml::tensor::{RawTensor, Tensor};
use gguf::types::GgmlType::{self, F32, Q4_K};

unsafe fn tensor<'g>(pointer: *const c_void) -> Tensor<'g> {
    // SAFETY: the check hands back the live samples it was given.
    unsafe { Tensor::from_ptr(pointer.cast()) }.expect("not null")
}

unsafe extern "C" fn version() -> *const c_char {
    c"9.9".as_ptr()
}
unsafe extern "C" fn overhead() -> usize {
    32 + 336
}
unsafe extern "C" fn shorter_overhead() -> usize {
    32 + 328
}
/// `GGML_MAX_NAME` is 80.
unsafe extern "C" fn overhead_of_longer_names() -> usize {
    32 + 352
}
unsafe extern "C" fn far_longer_overhead() -> usize {
    32 + 1024
}
unsafe extern "C" fn name(t: *const c_void) -> *const c_char {
    t.wrapping_byte_add(256).cast()
}
unsafe extern "C" fn name_elsewhere(t: *const c_void) -> *const c_char {
    t.wrapping_byte_add(264).cast()
}
unsafe extern "C" fn data(t: *const c_void) -> *mut c_void {
    // SAFETY: as `tensor`.
    unsafe { tensor(t) }.data() as *mut c_void
}
unsafe extern "C" fn nbytes(t: *const c_void) -> usize {
    // SAFETY: as `tensor`.
    unsafe { tensor(t) }.nbytes() as usize
}
unsafe extern "C" fn more_nbytes(t: *const c_void) -> usize {
    // SAFETY: as `tensor`.
    unsafe { nbytes(t) + 1 }
}
unsafe extern "C" fn element_size(t: *const c_void) -> usize {
    // SAFETY: as `tensor`.
    unsafe { tensor(t) }.block().bytes as usize
}
unsafe extern "C" fn op_name(_: u32) -> *const c_char {
    c"NONE".as_ptr()
}
unsafe extern "C" fn type_name(ty: u32) -> *const c_char {
    let name = GgmlType::from_u32(ty)
        .expect("asked for a type it lacks")
        .name();
    CString::new(name).expect("no NUL").into_raw()
}
unsafe extern "C" fn blck_size(ty: u32) -> i64 {
    GgmlType::from_u32(ty)
        .expect("asked for a type it lacks")
        .block_elements() as i64
}
unsafe extern "C" fn type_size(ty: u32) -> usize {
    GgmlType::from_u32(ty)
        .expect("asked for a type it lacks")
        .block_bytes() as usize
}
unsafe extern "C" fn other_type_size(ty: u32) -> usize {
    // SAFETY: takes a number only.
    unsafe { type_size(ty) + usize::from(ty == Q4_K.as_u32()) }
}
unsafe extern "C" fn n_nodes(graph: *mut c_void) -> c_int {
    // SAFETY: the graph of the test.
    unsafe { (*graph.cast::<RawGraph>()).n_nodes }
}
unsafe extern "C" fn node(graph: *mut c_void, i: c_int) -> *mut c_void {
    // SAFETY: the graph of the test, and i is below its count.
    unsafe {
        (*graph.cast::<RawGraph>())
            .nodes
            .add(i as usize)
            .read()
            .cast()
    }
}
unsafe extern "C" fn other_node(graph: *mut c_void, i: c_int) -> *mut c_void {
    // SAFETY: as `node`.
    unsafe { node(graph, i) }.wrapping_byte_add(16)
}
unsafe extern "C" fn usage(_: *mut c_void) -> u32 {
    1
}
unsafe extern "C" fn same(pointer: *mut c_void) -> *mut c_void {
    pointer
}
unsafe extern "C" fn buffer_size(_: *mut c_void) -> usize {
    1 << 20
}
unsafe extern "C" fn buft_name(_: *mut c_void) -> *const c_char {
    c"CPU".as_ptr()
}

const AGREEING: Api = Api {
    ggml_version: Some(version),
    ggml_tensor_overhead: overhead,
    ggml_get_name: name,
    ggml_get_data: data,
    ggml_nbytes: nbytes,
    ggml_element_size: element_size,
    ggml_op_name: op_name,
    ggml_type_name: type_name,
    ggml_blck_size: blck_size,
    ggml_type_size: type_size,
    ggml_graph_n_nodes: n_nodes,
    ggml_graph_node: node,
    ggml_backend_buffer_get_usage: usage,
    ggml_backend_buffer_get_type: same,
    ggml_backend_buffer_get_base: same,
    ggml_backend_buffer_get_size: buffer_size,
    ggml_backend_buft_name: buft_name,
    type_count: 43,
};

/// A leaf in a buffer and a view of it.
fn samples(g: &Graph) -> [Tensor<'_>; 2] {
    let leaf = g.edit(g.leaf(Q4_K, &[256, 4]), |raw| {
        raw.name[..5].copy_from_slice(b"token");
        // The made-up library's buffers start at their own address.
        raw.buffer = raw.data.wrapping_byte_sub(64);
    });
    [
        leaf,
        g.view(leaf, [256, 2, 1, 1], [144, 144, 288, 288], 144),
    ]
}

fn check(api: &Api, samples: &[Tensor<'_>]) -> Result<(), LayoutError> {
    let pointers: Vec<*const RawTensor> = samples.iter().map(|t| t.as_ptr()).collect();
    // SAFETY: the samples live; the library is the one above.
    unsafe { self_check(api, &pointers) }
}

#[test]
fn a_library_that_agrees_passes() {
    let g = Graph::new();
    assert_eq!(check(&AGREEING, &samples(&g)), Ok(()));
    assert_eq!(AGREEING.version(), "9.9");
    assert_eq!(
        Api {
            ggml_version: None,
            ..AGREEING
        }
        .version(),
        "unknown"
    );
}

#[test]
fn longer_names_are_no_disagreement() {
    let g = Graph::new();
    let longer = Api {
        ggml_tensor_overhead: overhead_of_longer_names,
        ..AGREEING
    };
    assert_eq!(check(&longer, &samples(&g)), Ok(()));
}

#[test]
fn each_disagreement_is_named() {
    let g = Graph::new();
    let ours = samples(&g);
    let says = |api: Api, expected: &str| {
        let message = check(&api, &ours).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
    };
    says(
        Api {
            ggml_tensor_overhead: shorter_overhead,
            ..AGREEING
        },
        "ggml 9.9: a tensor struct has 328 bytes",
    );
    says(
        Api {
            ggml_tensor_overhead: far_longer_overhead,
            ..AGREEING
        },
        "ggml 9.9: a tensor struct has 1024 bytes",
    );
    says(
        Api {
            ggml_get_name: name_elsewhere,
            ..AGREEING
        },
        "ggml 9.9: field `name` of tensor `token`: the library says 0x",
    );
    says(
        Api {
            ggml_nbytes: more_nbytes,
            ..AGREEING
        },
        "ggml 9.9: field `ne, nb` of tensor `token`: the library says 577, we read 576",
    );
    says(
        Api {
            ggml_type_size: other_type_size,
            ggml_version: None,
            ..AGREEING
        },
        "ggml unknown: type q4_K: the library says q4_K, 145 bytes for 256 elements, \
         our table says q4_K, 144 bytes for 256 elements",
    );
}

#[test]
fn damaged_tensors_are_caught_by_field() {
    let g = Graph::new();
    let field = |t: Tensor<'_>| match check(&AGREEING, &[t]) {
        Err(LayoutError::Field { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let [_, view] = samples(&g);
    assert_eq!(
        field(g.edit(view, |raw| raw.view_offs = 0)),
        "view_src, view_offs"
    );
    let [leaf, _] = samples(&g);
    assert_eq!(field(g.edit(leaf, |raw| raw.op = 5_000_000)), "op");
    let [leaf, _] = samples(&g);
    assert_eq!(
        field(g.edit(leaf, |raw| raw.buffer = 0x10 as *mut c_void)),
        "buffer"
    );
}

#[test]
fn types_beyond_the_librarys_are_not_asked_for() {
    let g = Graph::new();
    let old = Api {
        type_count: Q4_K.as_u32(),
        ggml_type_size: other_type_size,
        ..AGREEING
    };
    assert_eq!(check(&old, &[g.leaf(F32, &[4])]), Ok(()));
}

#[test]
fn graphs_are_compared_node_by_node() {
    let g = Graph::new();
    let mut nodes = samples(&g).map(|t| t.as_ptr().cast_mut());
    let raw = RawGraph {
        size: 0,
        n_nodes: 2,
        n_leafs: 0,
        nodes: nodes.as_mut_ptr(),
        grads: std::ptr::null_mut(),
        grad_accs: std::ptr::null_mut(),
        leafs: std::ptr::null_mut(),
        use_counts: std::ptr::null_mut(),
        visited_hash_set: RawHashSet {
            size: 0,
            used: std::ptr::null_mut(),
            keys: std::ptr::null_mut(),
        },
        order: 0,
        uid: 0,
    };
    // SAFETY: the arrays outlive the graph and have the lengths it says.
    let graph = unsafe { ggml::Graph::from_ptr((&raw const raw).cast()) }.expect("not null");
    assert_eq!(graph.leafs().len(), 0);
    // SAFETY: a graph of the made-up library.
    let (good, bad) = unsafe {
        (
            check_graph(&AGREEING, graph),
            check_graph(
                &Api {
                    ggml_graph_node: other_node,
                    ..AGREEING
                },
                graph,
            ),
        )
    };
    assert_eq!(good, Ok(()));
    assert!(matches!(
        bad,
        Err(LayoutError::Graph { field: "nodes", .. })
    ));
}
