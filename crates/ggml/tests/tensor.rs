//! Views, sizes and names, against what ggml's own arithmetic gives.

mod fixture;

use std::collections::BTreeSet;

use fixture::{Graph, bytes_of};
use ggml::tensor::RawTensor;
use ggml::{Tensor, view_region};
use gguf::types::GgmlType::{self, F16, F32, Q4_K, Q8_0};
use trace::region::Strided;

/// Bytes of all elements, one at a time.
fn element_bytes(t: Tensor<'_>) -> BTreeSet<u64> {
    let ty = GgmlType::from_u32(t.ty()).unwrap();
    let [n0, n1, n2, n3] = t.extents();
    let [b0, b1, b2, b3] = t.nb();
    let mut bytes = BTreeSet::new();
    for i3 in 0..n3 {
        for i2 in 0..n2 {
            for i1 in 0..n1 {
                for block in 0..n0 / ty.block_elements() {
                    let at = t.offset_in_root() + block * b0 + i1 * b1 + i2 * b2 + i3 * b3;
                    bytes.extend(at..at + ty.block_bytes());
                }
            }
        }
    }
    bytes
}

#[test]
fn view_region_is_the_set_of_element_bytes() {
    let g = Graph::new();
    let f16 = g.leaf(F16, &[6, 5, 4, 3]);
    let q8 = g.leaf(Q8_0, &[64, 5, 4, 3]);
    let views = [
        f16,
        q8,
        g.permuted(f16, [0, 2, 1, 3]),
        g.permuted(f16, [1, 0, 2, 3]),
        g.permuted(f16, [3, 2, 1, 0]),
        g.permuted(q8, [0, 2, 1, 3]),
        // one head of each row, some rows only
        g.view(f16, [2, 3, 1, 1], [2, 12, 60, 240], 4),
        g.view(q8, [32, 3, 2, 1], [34, 68, 340, 1360], 34 + 68),
        // every second element; a row repeated; overlapping windows
        g.view(f16, [3, 5, 1, 1], [4, 12, 60, 240], 0),
        g.view(f16, [6, 4, 1, 1], [2, 0, 60, 240], 12),
        g.view(f16, [4, 8, 1, 1], [2, 4, 60, 240], 0),
    ];
    for view in views {
        assert_eq!(
            bytes_of(&view_region(view)),
            element_bytes(view),
            "{view:?}"
        );
    }
}

#[test]
fn kv_head_views_become_one_strided_region() {
    let g = Graph::new();
    // 8 KV heads of 64 f16, 1024 cells; attention sees 256 cells, heads outside.
    let cache = g.leaf(F16, &[512, 1024]);
    let heads = g.view(cache, [64, 8, 256, 1], [2, 128, 1024, 262_144], 0);
    let k = g.permuted(heads, [0, 2, 1, 3]);
    assert_eq!(k.ne(), [64, 256, 8, 1]);
    assert_eq!(view_region(k), Strided::range(0, 256 * 1024));
    // A single head: 128 bytes of each cell.
    let head = g.view(k, [64, 256, 1, 1], [2, 1024, 128, 262_144], 3 * 128);
    assert_eq!(
        view_region(head),
        Strided {
            offset: 384,
            run_bytes: 128,
            dims: vec![(256, 1024)]
        }
    );
}

#[test]
fn sizes_agree_with_ggml_nbytes() {
    let g = Graph::new();
    let check = |t: Tensor<'_>, nbytes: u64, contiguous: bool| {
        assert_eq!(
            (t.nbytes(), t.is_contiguous()),
            (nbytes, contiguous),
            "{t:?}"
        );
    };
    check(g.leaf(F32, &[3, 5]), 60, true);
    check(g.leaf(Q8_0, &[64, 3]), 3 * 2 * 34, true);
    check(g.leaf(Q4_K, &[512, 2]), 4 * 144, true);
    check(g.leaf(F32, &[0, 5]), 0, true);
    let f = g.leaf(F32, &[4, 6]);
    check(g.permuted(f, [1, 0, 2, 3]), 96, false);
    check(
        g.view(f, [2, 6, 1, 1], [4, 16, 96, 96], 0),
        8 + 5 * 16,
        false,
    );
    check(g.view(f, [4, 1, 1, 1], [4, 999, 96, 96], 0), 16, true);
}

#[test]
fn views_of_views_resolve_to_their_root() {
    let g = Graph::new();
    let root = g.leaf(F32, &[16, 8]);
    let rows = g.view(root, [16, 4, 1, 1], [4, 64, 256, 256], 128);
    let part = g.view(rows, [4, 4, 1, 1], [4, 64, 256, 256], 16);
    // What old versions did: a chain instead of a flat reference.
    let chained = g.edit(g.view(rows, [4, 4, 1, 1], [4, 64, 256, 256], 16), |raw| {
        raw.view_src = rows.as_ptr().cast_mut();
        raw.view_offs = 16;
    });
    for view in [part, chained] {
        assert_eq!(view.root(), root);
        assert_eq!(view.offset_in_root(), 144);
        assert!(view.view_is_consistent());
    }
    let moved = g.edit(part, |raw| raw.data = (raw.data as usize + 4) as *mut _);
    assert!(!moved.view_is_consistent());
    // Before allocation only the declared offsets are there.
    let planned = g.edit(chained, |raw| raw.data = std::ptr::null_mut());
    assert_eq!(planned.offset_in_root(), 144);
}

#[test]
fn names_end_at_nul_or_at_the_end_of_the_field() {
    let g = Graph::new();
    let mut raw = RawTensor {
        name: [b'x'; 64],
        ..RawTensor::ZERO
    };
    assert_eq!(g.add(raw.clone()).name(), [b'x'; 64]);
    raw.name[..13].copy_from_slice(b"cache_k_l0\0ab");
    assert_eq!(g.add(raw).name(), b"cache_k_l0");
}

#[test]
fn a_type_newer_than_the_table_is_sized_by_its_strides() {
    let g = Graph::new();
    let raw = RawTensor {
        ty: 999,
        ne: [64, 3, 1, 1],
        nb: [20, 40, 120, 120],
        ..RawTensor::ZERO
    };
    let tensor = g.add(raw);
    assert_eq!(tensor.nbytes(), 120);
    assert_eq!(view_region(tensor), Strided::range(0, 120));
}
