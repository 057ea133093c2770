//! Which nodes tick, which are fused, and what a fused step touches.

mod fixture;

use std::ffi::{c_char, c_void};

use fixture::{Graph, slots};
use ggml::Direction::{Read, Write};
use ggml::Slot::{Dst, Src};
use ggml::graph::{RawGraph, RawHashSet, UseCounts};
use ggml::tensor::{FLAG_OUTPUT, RawTensor};
use ggml::{Fusion, Op, OpNumbers, StepNodes, Tensor, executed_steps, step_accesses, view_region};
use gguf::types::GgmlType::{F16, F32};
use trace::region::Region;

/// The op numbers of an invented library.
const NONE: u32 = 0;
const MUL: u32 = 1;
const VIEW: u32 = 2;
const RMS_NORM: u32 = 3;
const NEWER: u32 = 4;

unsafe extern "C" fn op_name(number: u32) -> *const c_char {
    [c"NONE", c"MUL", c"VIEW", c"RMS_NORM", c"NEWER"][number as usize].as_ptr()
}

fn numbers() -> OpNumbers {
    // SAFETY: the tests use only the numbers that `op_name` knows.
    unsafe { OpNumbers::new(op_name) }
}

fn op<'g>(g: &'g Graph, node: Tensor<'g>, number: u32) -> Tensor<'g> {
    g.edit(node, |raw| raw.op = number)
}

/// RMS_NORM of [8, 3] and its MUL by a weight of [8].
fn norm_and_mul(g: &Graph) -> [Tensor<'_>; 2] {
    let (x, weight) = (g.leaf(F32, &[8, 3]), g.leaf(F32, &[8]));
    let norm = op(g, g.node(F32, &[8, 3], &[x]), RMS_NORM);
    [norm, op(g, g.node(F32, &[8, 3], &[norm, weight]), MUL)]
}

fn steps(nodes: &[Tensor<'_>], fusion: Fusion) -> Vec<StepNodes> {
    let (numbers, counts) = (numbers(), UseCounts::of_nodes(nodes));
    executed_steps(nodes, |n| numbers.op_of(n), |n| counts.get(n), fusion)
}

#[test]
fn norm_and_mul_are_one_step_unless_fusion_is_off() {
    let g = Graph::new();
    let [norm, mul] = norm_and_mul(&g);
    let after = op(&g, g.node(F32, &[8, 3], &[mul]), NEWER);
    let nodes = [norm, mul, after];
    let fused = StepNodes::RmsNormMul { norm: 0 };
    assert_eq!(steps(&nodes, Fusion::On), [fused, StepNodes::One(2)]);
    assert_eq!(fused.result(), 1);
    let apart = [StepNodes::One(0), StepNodes::One(1), StepNodes::One(2)];
    assert_eq!(steps(&nodes, Fusion::Off), apart);
}

#[test]
fn a_fused_step_leaves_the_intermediate_alone() {
    let g = Graph::new();
    let [norm, mul] = norm_and_mul(&g);
    let numbers = numbers();
    let mut out = Vec::new();
    let step = StepNodes::RmsNormMul { norm: 0 };
    let known = step_accesses(step, &[norm, mul], |n| numbers.op_of(n), &mut out);
    assert_eq!(known, ggml::Known::Yes);
    assert_eq!(slots(&out), [(Src(0), Read), (Src(1), Read), (Dst, Write)]);
    let touched: Vec<_> = out.iter().map(|a| a.tensor).collect();
    assert_eq!(touched, [norm.src(0).unwrap(), mul.src(1).unwrap(), mul]);
    assert_eq!(
        out[0].region,
        Region::Fixed(view_region(norm.src(0).unwrap()))
    );
    assert!(touched.iter().all(|t| t.root() != norm));

    // The weight may be the first factor.
    let weight = g.leaf(F32, &[8, 3]);
    let swapped = op(&g, g.node(F32, &[8, 3], &[weight, norm]), MUL);
    let mut out = Vec::new();
    let known = step_accesses(step, &[norm, swapped], |n| numbers.op_of(n), &mut out);
    assert_eq!(known, ggml::Known::Yes);
    assert_eq!(out[1].tensor, weight);
}

#[test]
fn fusion_asks_all_that_ggml_asks() {
    let one_by_one = [StepNodes::One(0), StepNodes::One(1)];
    let check = |what: &str, spoil: fn(&Graph, [Tensor<'_>; 2])| {
        let g = Graph::new();
        let nodes = norm_and_mul(&g);
        spoil(&g, nodes);
        assert_eq!(steps(&nodes, Fusion::On)[..2], one_by_one, "{what}");
    };
    check("an output", |g, [norm, _]| {
        g.edit(norm, |raw| raw.flags |= FLAG_OUTPUT);
    });
    check("a view", |g, [norm, _]| {
        let of = norm.src(0).unwrap().as_ptr().cast_mut();
        g.edit(norm, |raw| raw.view_src = of);
    });
    check("another shape", |g, [norm, _]| {
        g.edit(norm, |raw| raw.ne = [8, 1, 1, 1]);
    });
    check("an f16 weight", |g, [_, mul]| {
        let weight = g.leaf(F16, &[8]).as_ptr().cast_mut();
        g.edit(mul, |raw| raw.src[1] = weight);
    });
    check("a scalar weight", |g, [_, mul]| {
        let weight = g.leaf(F32, &[1]).as_ptr().cast_mut();
        g.edit(mul, |raw| raw.src[1] = weight);
    });
    check("the square of the norm", |g, [norm, mul]| {
        g.edit(mul, |raw| raw.src[1] = norm.as_ptr().cast_mut());
    });
    check("another norm's product", |g, [_, mul]| {
        let other = g.leaf(F32, &[8, 3]).as_ptr().cast_mut();
        g.edit(mul, |raw| raw.src[0] = other);
    });
}

#[test]
fn a_norm_with_another_use_or_a_neighbour_between_is_not_fused() {
    let g = Graph::new();
    let [norm, mul] = norm_and_mul(&g);
    let other_use = op(&g, g.node(F32, &[8, 3], &[norm]), NEWER);
    assert_eq!(steps(&[norm, mul, other_use], Fusion::On).len(), 3);
    let [norm, mul] = norm_and_mul(&g);
    let between = op(&g, g.node(F32, &[4], &[]), VIEW);
    assert_eq!(
        steps(&[norm, between, mul], Fusion::On),
        [StepNodes::One(0), StepNodes::One(2)]
    );
    assert_eq!(steps(&[norm], Fusion::On), [StepNodes::One(0)]);
}

#[test]
fn nodes_not_computed_do_not_tick_but_empty_ones_do() {
    let g = Graph::new();
    let skipped = g.edit(op(&g, g.node(F32, &[4], &[]), NEWER), |raw| raw.flags = 0);
    let no_rows = op(&g, g.node(F32, &[4, 0], &[]), NEWER);
    let none = op(&g, g.node(F32, &[4], &[]), NONE);
    assert_eq!(
        steps(&[skipped, none, no_rows], Fusion::On),
        [StepNodes::One(2)]
    );
}

#[test]
fn op_numbers_are_known_by_name() {
    let g = Graph::new();
    let numbers = numbers();
    let node = |number| op(&g, g.leaf(F32, &[1]), number);
    for _first_then_cached in 0..2 {
        assert_eq!(numbers.op_of(node(RMS_NORM)), Op::RMS_NORM);
        assert_eq!(numbers.op_of(node(NEWER)), Op::Unknown);
    }
    assert_eq!(numbers.op_of(node(100_000)), Op::Unknown);
}

#[test]
fn use_counts_are_found_in_the_graphs_hash_table() {
    let g = Graph::new();
    let [norm, mul] = norm_and_mul(&g);
    let absent = g.leaf(F32, &[1]);
    let mut nodes = [norm, mul].map(|t| t.as_ptr().cast_mut());
    let mut leafs = [norm.src(0).unwrap(), mul.src(1).unwrap()].map(|t| t.as_ptr().cast_mut());

    // As ggml_visit_parents_graph fills it, in a table small enough to collide.
    const SIZE: usize = 5;
    let (mut used, mut keys) = ([0u32], [std::ptr::null_mut::<RawTensor>(); SIZE]);
    let mut use_counts = [77i32; SIZE];
    let mut insert = |tensor: Tensor<'_>, count| {
        let mut slot = (tensor.as_ptr() as usize >> 4) % SIZE;
        while used[0] & (1 << slot) != 0 {
            slot = (slot + 1) % SIZE;
        }
        used[0] |= 1 << slot;
        (keys[slot], use_counts[slot]) = (tensor.as_ptr().cast_mut(), count);
    };
    insert(norm, 1);
    insert(mul, 0);
    insert(norm.src(0).unwrap(), 3);
    insert(mul.src(1).unwrap(), 2);

    let raw = RawGraph {
        size: 2,
        n_nodes: 2,
        n_leafs: 2,
        nodes: nodes.as_mut_ptr(),
        grads: std::ptr::null_mut(),
        grad_accs: std::ptr::null_mut(),
        leafs: leafs.as_mut_ptr(),
        use_counts: use_counts.as_mut_ptr(),
        visited_hash_set: RawHashSet {
            size: SIZE,
            used: used.as_mut_ptr(),
            keys: keys.as_mut_ptr(),
        },
        order: 0,
        uid: 42,
    };
    // SAFETY: all arrays outlive the graph and have the lengths it says.
    let graph = unsafe { ggml::Graph::from_ptr((&raw const raw).cast::<c_void>()) }.unwrap();
    assert_eq!(graph.uid(), 42);
    assert_eq!(graph.nodes().collect::<Vec<_>>(), [norm, mul]);
    assert_eq!(graph.leafs().len(), 2);
    let counts = [norm, mul, norm.src(0).unwrap(), mul.src(1).unwrap(), absent]
        .map(|tensor| graph.use_count(tensor));
    assert_eq!(counts, [1, 0, 3, 2, 0]);

    let (nodes, numbers) = (graph.nodes().collect::<Vec<_>>(), numbers());
    let steps = executed_steps(
        &nodes,
        |n| numbers.op_of(n),
        |n| graph.use_count(n),
        Fusion::On,
    );
    assert_eq!(steps, [StepNodes::RmsNormMul { norm: 0 }]);
}
