//! Ops that touch rows, slices and parts: (op, shapes) → bytes.

mod fixture;

use std::collections::BTreeSet;

use fixture::{Graph, bytes_named, bytes_of, fixed, only, slots, touched};
use ggml::Direction::{Read, Write};
use ggml::Slot::{Dst, Src};
use ggml::ops::Semantics;
use ggml::ops::table::TABLE;
use ggml::{Known, Op, accesses, view_region};
use gguf::types::GgmlType::{F16, F32, I32, I64, Q8_0};
use trace::region::{IndexOrder, Region, Strided};

#[test]
fn get_rows_reads_the_rows_named_in_order() {
    let g = Graph::new();
    for (ty, row_bytes) in [(F32, 256), (Q8_0, 68)] {
        let (table, ids) = (g.leaf(ty, &[64, 1000]), g.leaf(I32, &[3]));
        let node = g.node(F32, &[64, 3], &[table, ids]);
        let accesses = touched(Op::GET_ROWS, node);
        assert_eq!(
            slots(&accesses),
            [(Src(0), Read), (Src(1), Read), (Dst, Write)]
        );
        let Region::Indexed(rows) = &only(&accesses, Src(0), Read).region else {
            panic!()
        };
        assert_eq!(rows.capture, ids);
        assert_eq!(rows.unit, Strided::range(0, row_bytes));
        assert_eq!(
            (rows.stride, rows.bound, rows.count),
            (row_bytes, 1000, [3, 1, 1])
        );
        assert_eq!(rows.order, IndexOrder::EachInOrder);
        assert_eq!(fixed(&accesses, Src(1), Read), &Strided::range(0, 12));
        assert_eq!(fixed(&accesses, Dst, Write), &Strided::range(0, 64 * 3 * 4));
    }
}

#[test]
fn batched_get_rows_steps_through_the_planes() {
    let g = Graph::new();
    // A view of 4 of 6 columns, so that rows are not contiguous.
    let root = g.leaf(F32, &[6, 5, 2, 3]);
    let table = g.view(root, [4, 5, 2, 3], [4, 24, 120, 240], 8);
    let ids_array: Vec<u64> = (0..4 * 2 * 3).map(|i| i * 7 % 5).collect();
    let ids = g.leaf(I32, &[4, 2, 3]);
    let accesses = touched(Op::GET_ROWS, g.node(F32, &[4, 4, 2, 3], &[table, ids]));
    // The loop of ggml_compute_forward_get_rows_f32.
    let mut expected = BTreeSet::new();
    for i in 0..24u64 {
        let (i12, i11, i10) = (i / 8, i % 8 / 4, i % 4);
        let i01 = ids_array[(i10 + 4 * i11 + 8 * i12) as usize];
        let at = 8 + i01 * 24 + i11 * 120 + i12 * 240;
        expected.extend(at..at + 16);
    }
    assert_eq!(
        bytes_named(&only(&accesses, Src(0), Read).region, &ids_array),
        expected
    );
}

#[test]
fn set_rows_writes_the_rows_named_and_reads_neither_dst_nor_src2() {
    let g = Graph::new();
    let (cache, rows, ids) = (
        g.leaf(F16, &[128, 512]),
        g.leaf(F32, &[128, 2]),
        g.leaf(I64, &[2]),
    );
    let node = g.in_place(cache, &[rows, ids, cache]);
    let accesses = touched(Op::SET_ROWS, node);
    assert_eq!(
        slots(&accesses),
        [(Src(0), Read), (Src(1), Read), (Dst, Write)]
    );
    let written = only(&accesses, Dst, Write);
    assert_eq!(written.tensor.root(), cache);
    let expected: BTreeSet<u64> = (7 * 256..8 * 256).chain(300 * 256..301 * 256).collect();
    assert_eq!(bytes_named(&written.region, &[300, 7]), expected);
}

#[test]
fn transposed_v_is_written_one_element_a_row() {
    let g = Graph::new();
    // cache_v transposed: [kv, n_embd] seen as rows of one element; the ids are
    // cell + channel * kv for each channel and token.
    let cache = g.leaf(F16, &[64, 16]);
    let dst = g.view(cache, [1, 64 * 16, 1, 1], [2, 2, 2048, 2048], 0);
    let v = g.leaf(F32, &[16, 2]);
    let src = g.view(v, [1, 32, 1, 1], [4, 4, 128, 128], 0);
    let ids = g.leaf(I64, &[32]);
    let accesses = touched(Op::SET_ROWS, g.in_place(dst, &[src, ids, dst]));
    let ids_array: Vec<u64> = (0..2)
        .flat_map(|token| (0..16).map(move |channel| channel * 64 + 40 + token))
        .collect();
    let expected: BTreeSet<u64> = (0..16)
        .flat_map(|channel| channel * 128 + 80..channel * 128 + 84)
        .collect();
    assert_eq!(
        bytes_named(&only(&accesses, Dst, Write).region, &ids_array),
        expected
    );
    assert_eq!(fixed(&accesses, Src(0), Read), &Strided::range(0, 128));
}

#[test]
fn set_rows_repeats_its_ids_over_planes() {
    let g = Graph::new();
    let (dst, rows, ids) = (
        g.leaf(F32, &[4, 8, 4]),
        g.leaf(F32, &[4, 2, 4]),
        g.leaf(I64, &[2, 2]),
    );
    let ids_array = [1, 3, 5, 7];
    let accesses = touched(Op::SET_ROWS, g.in_place(dst, &[rows, ids, dst]));
    let mut expected = BTreeSet::new();
    for i02 in 0..4u64 {
        for i in 0..2u64 {
            let at = ids_array[(i + 2 * (i02 % 2)) as usize] * 16 + i02 * 128;
            expected.extend(at..at + 16);
        }
    }
    assert_eq!(
        bytes_named(&only(&accesses, Dst, Write).region, &ids_array),
        expected
    );
}

#[test]
fn mul_mat_reads_the_kv_view_and_not_the_cache() {
    let g = Graph::new();
    // 4 KV heads of 32 f16 in rows with room for another tensor's heads.
    let cache = g.leaf(F16, &[256, 512]);
    let heads = g.view(cache, [32, 4, 100, 1], [2, 64, 512, 51_200], 128);
    let k = g.permuted(heads, [0, 2, 1, 3]);
    let q = g.leaf(F32, &[32, 7, 8]);
    let accesses = touched(Op::MUL_MAT, g.node(F32, &[100, 7, 8], &[k, q]));
    assert_eq!(
        fixed(&accesses, Src(0), Read),
        &Strided {
            offset: 128,
            run_bytes: 256,
            dims: vec![(100, 512)]
        }
    );
    assert_eq!(fixed(&accesses, Src(1), Read), &view_region(q));
    assert_eq!(only(&accesses, Src(0), Read).tensor.root(), cache);
    // The same bytes as a transposed V would be: one region per channel.
    let v = g.view(cache, [100, 32, 4, 1], [2, 1024, 32_768, 131_072], 0);
    let accesses = touched(Op::MUL_MAT, g.node(F32, &[32, 7, 8], &[v, q]));
    assert_eq!(
        fixed(&accesses, Src(0), Read),
        &Strided {
            offset: 0,
            run_bytes: 200,
            dims: vec![(128, 1024)]
        }
    );
}

#[test]
fn a_hadamard_matrix_is_not_read() {
    let g = Graph::new();
    let node = g.node(
        F32,
        &[64, 2],
        &[g.leaf(F32, &[64, 64]), g.leaf(F32, &[64, 2])],
    );
    assert_eq!(touched(Op::MUL_MAT, node).len(), 3);
    let hinted = touched(Op::MUL_MAT, g.with_params(node, &[0, 1]));
    assert_eq!(slots(&hinted), [(Src(1), Read), (Dst, Write)]);
}

#[test]
fn mul_mat_id_reads_each_chosen_expert_once() {
    let g = Graph::new();
    let experts = g.leaf(Q8_0, &[64, 16, 8]);
    let x = g.leaf(F32, &[64, 1, 3]);
    // The two best of eight: a view into the sorted ids.
    let sorted = g.leaf(I32, &[8, 3]);
    let ids = g.view(sorted, [2, 3, 1, 1], [4, 32, 96, 96], 0);
    let accesses = touched(Op::MUL_MAT_ID, g.node(F32, &[16, 2, 3], &[experts, x, ids]));
    let Region::Indexed(slices) = &only(&accesses, Src(0), Read).region else {
        panic!()
    };
    let expert_bytes = 16 * 68;
    assert_eq!(slices.capture, ids);
    assert_eq!(slices.unit, Strided::range(0, expert_bytes));
    assert_eq!((slices.stride, slices.bound), (expert_bytes, 8));
    assert_eq!((slices.count, slices.outer_strides), ([2, 3, 1], [0, 0]));
    assert_eq!(slices.order, IndexOrder::DistinctAscending);
    assert_eq!(
        fixed(&accesses, Src(2), Read),
        &Strided {
            offset: 0,
            run_bytes: 8,
            dims: vec![(3, 32)]
        }
    );
}

#[test]
fn add_id_reads_the_bias_row_of_each_chosen_expert() {
    let g = Graph::new();
    let (x, bias, ids) = (
        g.leaf(F32, &[32, 2, 3]),
        g.leaf(F32, &[32, 8]),
        g.leaf(I32, &[2, 3]),
    );
    let accesses = touched(Op::ADD_ID, g.node(F32, &[32, 2, 3], &[x, bias, ids]));
    let expected: BTreeSet<u64> = (0..128).chain(5 * 128..6 * 128).collect();
    let bias_read = &only(&accesses, Src(1), Read).region;
    assert_eq!(bytes_named(bias_read, &[0, 5, 5, 0, 0, 0]), expected);
    assert_eq!(fixed(&accesses, Src(0), Read), &view_region(x));
}

#[test]
fn cpy_reads_only_what_it_copies() {
    let g = Graph::new();
    let (from, cache) = (g.leaf(F32, &[64, 2]), g.leaf(F16, &[64, 100]));
    let to = g.view(cache, [64, 2, 1, 1], [2, 128, 256, 256], 10 * 128);
    let accesses = touched(Op::CPY, g.in_place(to, &[from, to]));
    assert_eq!(slots(&accesses), [(Src(0), Read), (Dst, Write)]);
    assert_eq!(fixed(&accesses, Dst, Write), &Strided::range(1280, 256));
}

#[test]
fn in_place_ops_read_and_write_the_same_bytes() {
    let g = Graph::new();
    let root = g.leaf(F32, &[8, 8]);
    let part = g.view(root, [4, 8, 1, 1], [4, 32, 256, 256], 16);
    let accesses = touched(Op::SCALE, g.in_place(part, &[part]));
    let half_rows = Strided {
        offset: 16,
        run_bytes: 16,
        dims: vec![(8, 32)],
    };
    assert_eq!(fixed(&accesses, Src(0), Read), &half_rows);
    assert_eq!(fixed(&accesses, Dst, Write), &half_rows);
    assert_eq!(only(&accesses, Dst, Write).tensor.root(), root);
}

#[test]
fn set_and_acc_touch_all_or_only_the_patch() {
    let g = Graph::new();
    let (base, patch) = (g.leaf(F32, &[8, 8]), g.leaf(F32, &[2, 3]));
    let params = |in_place| [32, 256, 256, 40, in_place];
    let part = Strided {
        offset: 40,
        run_bytes: 8,
        dims: vec![(3, 32)],
    };
    let copy = g.with_params(g.node(F32, &[8, 8], &[base, patch]), &params(0));
    let over = g.with_params(g.in_place(base, &[base, patch]), &params(1));
    for op in [Op::SET, Op::ACC] {
        let copied = touched(op, copy);
        assert_eq!(fixed(&copied, Src(0), Read), &view_region(base));
        assert_eq!(fixed(&copied, Dst, Write), &view_region(base));
        assert_eq!(fixed(&touched(op, over), Dst, Write), &part);
    }
    assert_eq!(
        slots(&touched(Op::SET, over)),
        [(Src(1), Read), (Dst, Write)]
    );
    assert_eq!(fixed(&touched(Op::ACC, over), Src(0), Read), &part);
}

#[test]
fn masks_are_read_without_their_padding() {
    let g = Graph::new();
    let (scores, mask) = (g.leaf(F32, &[256, 5, 8]), g.leaf(F16, &[256, 64]));
    let sinks = g.leaf(F32, &[8]);
    let accesses = touched(
        Op::SOFT_MAX,
        g.node(F32, &[256, 5, 8], &[scores, mask, sinks]),
    );
    assert_eq!(fixed(&accesses, Src(1), Read), &Strided::range(0, 5 * 512));
    assert_eq!(fixed(&accesses, Src(2), Read), &Strided::range(0, 32));

    let (q, k, v) = (
        g.leaf(F32, &[64, 5, 8]),
        g.leaf(F16, &[64, 256, 2]),
        g.leaf(F16, &[64, 256, 2]),
    );
    let node = g.node(F32, &[64, 8, 5], &[q, k, v, mask, sinks]);
    let accesses = touched(Op::FLASH_ATTN_EXT, node);
    assert_eq!(fixed(&accesses, Src(1), Read), &view_region(k));
    assert_eq!(fixed(&accesses, Src(2), Read), &view_region(v));
    assert_eq!(fixed(&accesses, Src(3), Read), &Strided::range(0, 5 * 512));
    assert_eq!(fixed(&accesses, Src(4), Read), &Strided::range(0, 32));
}

#[test]
fn rope_reads_factors_for_the_whole_row() {
    let g = Graph::new();
    let (x, pos) = (g.leaf(F32, &[128, 4, 3]), g.leaf(I32, &[3]));
    let rope = |factors: i64| {
        let node = g.node(F32, &[128, 4, 3], &[x, pos, g.leaf(F32, &[factors])]);
        // n_dims = 64 of 128
        fixed(
            &touched(Op::ROPE, g.with_params(node, &[0, 64, 2])),
            Src(2),
            Read,
        )
        .clone()
    };
    assert_eq!(rope(256), Strided::range(0, 64 * 4));
    assert_eq!(rope(64), Strided::range(0, 64 * 4));
    // ggml reads on past the end here; the access stops at the tensor's.
    assert_eq!(rope(32), Strided::range(0, 32 * 4));

    let positions = |mode, n| {
        let node = g.node(F32, &[128, 4, 3], &[x, g.leaf(I32, &[n])]);
        fixed(
            &touched(Op::ROPE, g.with_params(node, &[0, 64, mode])),
            Src(1),
            Read,
        )
        .clone()
    };
    assert_eq!(positions(0, 3), Strided::range(0, 12));
    assert_eq!(positions(8, 12), Strided::range(0, 48));
}

#[test]
fn ssm_scan_reads_the_states_of_its_sequences() {
    let g = Graph::new();
    let states = g.leaf(F32, &[16, 4, 2, 10]);
    let x = g.leaf(F32, &[4, 2, 3, 2]);
    let (dt, a) = (g.leaf(F32, &[2, 3, 2]), g.leaf(F32, &[1, 2]));
    let (b, c) = (g.leaf(F32, &[16, 1, 3, 2]), g.leaf(F32, &[16, 1, 3, 2]));
    let ids = g.leaf(I32, &[2]);
    let state_bytes = 16 * 4 * 2 * 4;
    let result = |slots: i32, room: i64| {
        let elements = 48 + room * 2 * 128;
        let node = g.node(F32, &[elements], &[states, x, dt, a, b, c, ids]);
        touched(Op::SSM_SCAN, g.with_params(node, &[slots]))
    };
    let one = result(1, 1);
    let expected: BTreeSet<u64> = (3..4)
        .chain(9..10)
        .flat_map(|id: u64| id * state_bytes..(id + 1) * state_bytes)
        .collect();
    assert_eq!(
        bytes_named(&only(&one, Src(0), Read).region, &[9, 3]),
        expected
    );
    assert_eq!(
        fixed(&one, Dst, Write),
        &Strided::range(0, 48 * 4 + 2 * state_bytes)
    );
    // Three tokens leave three snapshots, though there is room for five.
    assert_eq!(
        fixed(&result(5, 5), Dst, Write),
        &Strided::range(0, 48 * 4 + 3 * 2 * state_bytes)
    );
}

#[test]
fn sources_for_shape_only_are_not_read() {
    let g = Graph::new();
    let (a, b) = (g.leaf(F32, &[4, 4]), g.leaf(F32, &[4, 4]));
    let node = g.node(F32, &[4, 4], &[a, b]);
    let reads = |op| -> Vec<_> {
        touched(op, node)
            .iter()
            .filter(|a| a.direction == Read)
            .map(|a| a.slot)
            .collect()
    };
    assert_eq!(reads(Op::IM2COL), [Src(1)]);
    assert_eq!(reads(Op::IM2COL_3D), [Src(1)]);
    assert_eq!(reads(Op::IM2COL_BACK), [Src(0)]);
    assert_eq!(reads(Op::FILL), []);
    assert_eq!(reads(Op::CONT), [Src(0)]);
    assert!(Op::SET_ROWS.semantics().unwrap().ignores(2));
    assert!(!Op::MUL_MAT_ID.semantics().unwrap().ignores(2));
}

#[test]
fn optimiser_steps_write_their_sources() {
    let g = Graph::new();
    let [w, grad, m, v] = [(); 4].map(|()| g.leaf(F32, &[8, 2]));
    let params = g.leaf(F32, &[7]);
    let accesses = touched(Op::OPT_STEP_ADAMW, g.in_place(w, &[w, grad, m, v, params]));
    let written: Vec<_> = accesses
        .iter()
        .filter(|a| a.direction == Write)
        .map(|a| a.slot)
        .collect();
    assert_eq!(written, [Src(0), Src(2), Src(3)]);
    assert_eq!(bytes_of(fixed(&accesses, Src(0), Write)).len(), 64);
}

#[test]
fn a_node_without_elements_touches_nothing() {
    let g = Graph::new();
    let (table, ids) = (g.leaf(F32, &[64, 10]), g.leaf(I32, &[0]));
    let node = g.node(F32, &[64, 0], &[table, ids]);
    for &(_, op, _) in TABLE {
        assert_eq!(touched(op, node), [], "{op:?}");
    }
    let mut out = Vec::new();
    assert_eq!(accesses(Op::Unknown, node, &mut out), Known::No);
    assert_eq!(out, []);
}

#[test]
fn empty_ops_touch_nothing() {
    let g = Graph::new();
    let node = g.node(F32, &[4], &[g.leaf(F32, &[4])]);
    for op in [Op::NONE, Op::RESHAPE, Op::VIEW, Op::PERMUTE, Op::TRANSPOSE] {
        assert!(op.is_empty());
        assert_eq!(touched(op, node), []);
    }
}

#[test]
fn an_unknown_op_touches_all_its_views() {
    let g = Graph::new();
    let root = g.leaf(F32, &[8, 8]);
    let part = g.view(root, [2, 8, 1, 1], [4, 32, 256, 256], 8);
    let node = g.edit(g.node(F32, &[4], &[part]), |raw| raw.src[9] = raw.src[0]);
    let mut out = Vec::new();
    assert_eq!(
        accesses(Op::from_name(b"SORCERY"), node, &mut out),
        Known::No
    );
    assert_eq!(slots(&out), [(Src(0), Read), (Src(9), Read), (Dst, Write)]);
    assert_eq!(fixed(&out, Src(9), Read), &view_region(part));
}

#[test]
fn the_table_has_each_op_once_under_its_own_name() {
    assert_eq!(TABLE.len(), 101);
    let names: BTreeSet<_> = ggml::ops::known_ops().collect();
    assert_eq!(names.len(), TABLE.len());
    for &(name, op, ref semantics) in TABLE {
        assert_eq!(
            (Op::from_name(name.as_bytes()), op.name()),
            (op, Some(name))
        );
        let nothing = matches!(semantics, Semantics::Nothing);
        assert_eq!(
            nothing,
            semantics.writes().is_empty(),
            "{name}: every executed op writes"
        );
    }
    assert_eq!(Op::from_name(b"mul_mat"), Op::Unknown);
}
