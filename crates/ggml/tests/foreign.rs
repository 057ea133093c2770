//! A graph of the layout of 2024 reads as the same graph does today.

mod fixture;

use std::ffi::{c_char, c_void};

use fixture::Graph;
use ggml::{
    ComputeFlag, EmptyOps, Fusion, OpNumbers, RawTensor, StepNodes, Tensor, TickRules,
    executed_steps_under,
    foreign::{Mirror, TensorLayout, first_node, graph_without_uid},
};
use gguf::types::GgmlType::F32;

const NONE: u32 = 0;
const MUL: u32 = 1;
const VIEW: u32 = 2;

unsafe extern "C" fn op_name(number: u32) -> *const c_char {
    [c"NONE", c"MUL", c"VIEW"][number as usize].as_ptr()
}

/// `ggml_tensor` from 2024-06-24 to 2024-11-17.
#[repr(C)]
struct OldTensor {
    ty: u32,
    backend: u32,
    buffer: *mut c_void,
    ne: [i64; 4],
    nb: [usize; 4],
    op: u32,
    op_params: [i32; 16],
    flags: i32,
    grad: *mut OldTensor,
    src: [*mut OldTensor; 10],
    view_src: *mut OldTensor,
    view_offs: usize,
    data: *mut c_void,
    name: [u8; 64],
    extra: *mut c_void,
}

/// The graph as it began then; only its first fields are read.
#[repr(C)]
struct OldGraph {
    size: i32,
    n_nodes: i32,
    n_leafs: i32,
    nodes: *mut *mut OldTensor,
}

fn old(tensor: Tensor<'_>, known: &[(Tensor<'_>, *mut OldTensor)]) -> OldTensor {
    let find = |t: Option<Tensor<'_>>| {
        let found = t.and_then(|t| known.iter().find(|(k, _)| *k == t));
        found.map_or(std::ptr::null_mut(), |&(_, old)| old)
    };
    let mut name = [0; 64];
    name[..tensor.name().len()].copy_from_slice(tensor.name());
    OldTensor {
        ty: tensor.ty(),
        backend: 0xdead,
        buffer: std::ptr::null_mut(),
        ne: tensor.ne(),
        nb: tensor.nb().map(|n| n as usize),
        op: tensor.op(),
        op_params: tensor.op_params(),
        flags: tensor.flags(),
        grad: 0xdead_0000 as *mut OldTensor,
        src: std::array::from_fn(|i| find(tensor.src(i))),
        view_src: find(tensor.view_src()),
        view_offs: tensor.view_offs() as usize,
        data: tensor.data() as *mut c_void,
        name,
        extra: std::ptr::null_mut(),
    }
}

#[test]
fn layouts_are_as_the_old_header_says() {
    assert_eq!(size_of::<OldTensor>(), TensorLayout::WithGrad.bytes());
    let name = std::mem::offset_of!(OldTensor, name);
    assert_eq!(name, TensorLayout::WithGrad.name_offset());
    assert_eq!(size_of::<RawTensor>(), TensorLayout::Today.bytes());
    assert_ne!(
        TensorLayout::Today.name_offset(),
        TensorLayout::WithGrad.name_offset()
    );
}

#[test]
fn a_graph_of_2024_is_translated_with_sources_and_views() {
    let g = Graph::new();
    let (a, b) = (g.leaf(F32, &[8, 3]), g.leaf(F32, &[8]));
    let product = g.edit(g.node(F32, &[8, 3], &[a, b]), |raw| {
        raw.op = MUL;
        raw.data = 0x1000 as *mut c_void;
        raw.name[..4].copy_from_slice(b"prod");
    });
    let view = g.edit(g.node(F32, &[8], &[product]), |raw| {
        raw.op = VIEW;
        raw.view_src = product.as_ptr().cast_mut();
        raw.view_offs = 32;
        raw.data = 0x1020 as *mut c_void;
    });
    let today = [a, b, product, view];
    let mut olds: Vec<Box<OldTensor>> = Vec::new();
    let mut known: Vec<(Tensor<'_>, *mut OldTensor)> = Vec::new();
    for tensor in today {
        olds.push(Box::new(old(tensor, &known)));
        known.push((tensor, &raw mut **olds.last_mut().unwrap()));
    }
    let mut nodes = [known[2].1, known[3].1];
    let graph = OldGraph {
        size: 2,
        n_nodes: 2,
        n_leafs: 0,
        nodes: nodes.as_mut_ptr(),
    };
    let graph_pointer = (&raw const graph).cast::<c_void>();
    let mut mirror = Mirror::default();
    // Twice, because memory is used again.
    for _ in 0..2 {
        // SAFETY: a live graph of that layout, as far as it is read.
        let raw = unsafe { mirror.translate(graph_pointer, TensorLayout::WithGrad) }.clone();
        // SAFETY: the mirror keeps its copies until the next translation.
        let translated = unsafe { ggml::Graph::from_ptr((&raw const raw).cast()) }.unwrap();
        let nodes: Vec<Tensor<'_>> = translated.nodes().collect();
        assert_eq!(nodes.len(), 2);
        for (node, original) in nodes.iter().zip([product, view]) {
            let node = *node;
            assert_eq!((node.ne(), node.nb()), (original.ne(), original.nb()));
            assert_eq!((node.op(), node.flags()), (original.op(), original.flags()));
            assert_eq!(
                (node.data(), node.name()),
                (original.data(), original.name())
            );
            assert_eq!(node.srcs().count(), original.srcs().count());
        }
        assert_eq!(nodes[1].view_src(), Some(nodes[0]));
        assert_eq!(nodes[1].root(), nodes[0]);
        assert_eq!(nodes[1].offset_in_root(), 32);
        assert!(nodes[1].view_is_consistent());
        assert_eq!(translated.uid(), 0);
        // SAFETY: as above.
        unsafe {
            assert_eq!(
                first_node(graph_pointer),
                Some(known[2].1.cast_const().cast())
            );
            assert_eq!(graph_without_uid(graph_pointer).n_nodes, 2);
        }
    }
}

#[test]
fn older_backends_tick_for_views_and_know_no_compute_flag() {
    let g = Graph::new();
    let a = g.leaf(F32, &[8]);
    let node = |op: u32, flags: i32| {
        g.edit(g.node(F32, &[8], &[a]), |raw| {
            raw.op = op;
            raw.flags = flags;
        })
    };
    let nodes = [node(MUL, 0), node(VIEW, 16), node(NONE, 0), node(MUL, 16)];
    // SAFETY: only numbers that `op_name` knows are used.
    let numbers = unsafe { OpNumbers::new(op_name) };
    let check = |empty_ops, compute_flag, expected: &[usize]| {
        let rules = TickRules {
            fusion: Fusion::Off,
            empty_ops,
            compute_flag,
        };
        let steps = executed_steps_under(rules, &nodes, |n| numbers.op_of(n), |_| 1);
        let expected: Vec<_> = expected.iter().map(|&i| StepNodes::One(i)).collect();
        assert_eq!(steps, expected);
    };
    check(EmptyOps::PassedOver, ComputeFlag::Decides, &[3]);
    check(EmptyOps::PassedOver, ComputeFlag::DoesNotExist, &[0, 3]);
    check(EmptyOps::Tick, ComputeFlag::DoesNotExist, &[0, 1, 2, 3]);
}
