//! The rules of ops that touch less than a whole view.
//!
//! Each takes the node and the operand (a source, or the node itself as
//! destination) and mirrors the index arithmetic of one kernel in ggml's
//! `ops.cpp` or `ggml-cpu.c`, named at each function. A rule that meets a node
//! without the sources its op must have claims the whole operand.

use trace::region::{IndexOrder, Indexed, Region, Strided};

use crate::region::{box_region, flat_rows_region, prefix_region, sub_box_region, view_region};
use crate::tensor::Tensor;

const F32_BYTES: u64 = 4;
const I32_BYTES: u64 = 4;

type Touched<'g> = Option<Region<Tensor<'g>>>;

/// GET_ROWS, src0: row `ids[i0,i1,i2]` of plane (i1, i2).
pub fn rows_named<'g>(node: Tensor<'g>, table: Tensor<'g>) -> Touched<'g> {
    let Some(ids) = node.src(1) else {
        return whole(table);
    };
    let [n0, n1, n2, _] = ids.extents();
    let [_, row_stride, plane_stride, batch_stride] = table.nb();
    Some(Region::Indexed(Indexed {
        capture: ids,
        unit: box_region(table, [u64::MAX, 1, 1, 1]),
        stride: row_stride,
        bound: table.extent(1),
        count: [n0, n1, n2],
        outer_strides: [plane_stride, batch_stride],
        order: IndexOrder::EachInOrder,
    }))
}

/// SET_ROWS, dst: row `ids[i, i02 % ne11, i03 % ne12]` of plane (i02, i03), for
/// each row i of src0.
pub fn rows_set<'g>(node: Tensor<'g>, dst: Tensor<'g>) -> Touched<'g> {
    let (Some(rows), Some(ids)) = (node.src(0), node.src(1)) else {
        return whole(dst);
    };
    let [_, n1, n2, n3] = rows.extents();
    let [_, row_stride, plane_stride, batch_stride] = dst.nb();
    Some(Region::Indexed(Indexed {
        capture: ids,
        unit: box_region(dst, [u64::MAX, 1, 1, 1]),
        stride: row_stride,
        bound: dst.extent(1),
        count: [n1, n2, n3],
        outer_strides: [plane_stride, batch_stride],
        order: IndexOrder::EachInOrder,
    }))
}

/// ADD_ID, src1: row `ids[i1, i2]`, for each row of the destination.
pub fn bias_rows<'g>(node: Tensor<'g>, bias: Tensor<'g>) -> Touched<'g> {
    let Some(ids) = node.src(2) else {
        return whole(bias);
    };
    let [row_elements, n1, n2, n3] = node.extents();
    Some(Region::Indexed(Indexed {
        capture: ids,
        unit: box_region(bias, [row_elements, 1, 1, 1]),
        stride: bias.nb()[1],
        bound: bias.extent(1),
        count: [n1, n2, n3],
        outer_strides: [0, 0],
        order: IndexOrder::EachInOrder,
    }))
}

/// MUL_MAT_ID, src0: the matrix of each expert that some token chose. Experts
/// run in ascending order, each once for all its tokens.
pub fn experts_chosen<'g>(node: Tensor<'g>, experts: Tensor<'g>) -> Touched<'g> {
    let Some(ids) = node.src(2) else {
        return whole(experts);
    };
    let [ranks, tokens, _, _] = ids.extents();
    Some(Region::Indexed(Indexed {
        capture: ids,
        unit: box_region(experts, [u64::MAX, u64::MAX, 1, 1]),
        stride: experts.nb()[2],
        bound: experts.extent(2),
        count: [ranks, tokens, 1],
        outer_strides: [0, 0],
        order: IndexOrder::DistinctAscending,
    }))
}

/// MUL_MAT, src0: everything, except that a Hadamard matrix is computed
/// (`ggml_compute_forward_fwht`) instead of read.
pub fn unless_hadamard<'g>(node: Tensor<'g>, matrix: Tensor<'g>) -> Touched<'g> {
    const HINT_SRC0_IS_HADAMARD: i32 = 1;
    if node.op_params()[1] == HINT_SRC0_IS_HADAMARD {
        None
    } else {
        whole(matrix)
    }
}

/// SOFT_MAX, src1: as many mask rows and columns as there are scores; rows of
/// padding are not read.
pub fn softmax_mask<'g>(node: Tensor<'g>, mask: Tensor<'g>) -> Touched<'g> {
    fixed(box_region(mask, node.extents()))
}

/// SOFT_MAX, src2: one float a head.
pub fn softmax_sinks<'g>(node: Tensor<'g>, sinks: Tensor<'g>) -> Touched<'g> {
    floats(sinks, node.extent(2))
}

/// FLASH_ATTN_EXT, src3: a row for each query, a column for each key.
pub fn attention_mask<'g>(node: Tensor<'g>, mask: Tensor<'g>) -> Touched<'g> {
    let (Some(q), Some(k)) = (node.src(0), node.src(1)) else {
        return whole(mask);
    };
    fixed(box_region(
        mask,
        [k.extent(1), q.extent(1), q.extent(2), q.extent(3)],
    ))
}

/// FLASH_ATTN_EXT, src4: one float a head.
pub fn attention_sinks<'g>(node: Tensor<'g>, sinks: Tensor<'g>) -> Touched<'g> {
    let Some(q) = node.src(0) else {
        return whole(sinks);
    };
    floats(sinks, q.extent(2))
}

/// ROPE, src1: a position for each token, four with sections (M-RoPE).
pub fn rope_positions<'g>(node: Tensor<'g>, positions: Tensor<'g>) -> Touched<'g> {
    const MODE: usize = 2;
    const MODE_MROPE: i32 = 8;
    let a_token = if node.op_params()[MODE] & MODE_MROPE != 0 {
        4
    } else {
        1
    };
    fixed(prefix_region(
        positions,
        node.extent(2) * a_token * I32_BYTES,
    ))
}

/// ROPE, src2: the cache of angles is filled for the whole row, not only for
/// the `n_dims` that are rotated (`ggml_rope_cache_init` with `ne0`). With fewer
/// factors than that ggml reads on past the tensor; we claim to its end.
pub fn rope_factors<'g>(node: Tensor<'g>, factors: Tensor<'g>) -> Touched<'g> {
    floats(factors, node.extent(0).div_ceil(2))
}

/// ACC, src0: copied, unless in place, where only the part that is added to is.
pub fn acc_base<'g>(node: Tensor<'g>, base: Tensor<'g>) -> Touched<'g> {
    if copies_base(node) {
        whole(base)
    } else {
        patched_part(node, base)
    }
}

/// SET, src0: copied, unless in place.
pub fn set_base<'g>(node: Tensor<'g>, base: Tensor<'g>) -> Touched<'g> {
    if copies_base(node) { whole(base) } else { None }
}

/// ACC and SET, dst.
pub fn patched<'g>(node: Tensor<'g>, dst: Tensor<'g>) -> Touched<'g> {
    if copies_base(node) {
        whole(dst)
    } else {
        patched_part(node, dst)
    }
}

/// DIAG_MASK_*, src0: copied, unless in place, where nothing is read.
pub fn masked_base<'g>(node: Tensor<'g>, base: Tensor<'g>) -> Touched<'g> {
    if base.data() == node.data() {
        None
    } else {
        whole(base)
    }
}

/// DIAG_MASK_*, dst: in place only the part right of the diagonal, of which this
/// is the smallest box.
pub fn masked<'g>(node: Tensor<'g>, dst: Tensor<'g>) -> Touched<'g> {
    if node.src(0).is_none_or(|base| base.data() != dst.data()) {
        return whole(dst);
    }
    let n_past = u64::try_from(node.op_params()[0]).unwrap_or(0);
    fixed(sub_box_region(dst, n_past + 1, [u64::MAX; 4]))
}

/// ARGSORT and TOP_K, src0: rows of one element are sorted without a look.
pub fn sorted_rows<'g>(_node: Tensor<'g>, rows: Tensor<'g>) -> Touched<'g> {
    if rows.extent(0) < 2 {
        None
    } else {
        fixed(flat_rows_region(rows))
    }
}

/// ARGMAX, src0: the rows of the first plane.
pub fn first_plane<'g>(_node: Tensor<'g>, rows: Tensor<'g>) -> Touched<'g> {
    fixed(box_region(rows, [u64::MAX, u64::MAX, 1, 1]))
}

/// One number at the start.
pub fn first_element<'g>(_node: Tensor<'g>, scalar: Tensor<'g>) -> Touched<'g> {
    fixed(box_region(scalar, [1, 1, 1, 1]))
}

/// GET_ROWS_BACK, src0: a row for each id, as a flat list.
pub fn gradient_rows<'g>(node: Tensor<'g>, rows: Tensor<'g>) -> Touched<'g> {
    let Some(ids) = node.src(1) else {
        return whole(rows);
    };
    let row_bytes = rows.block().row_bytes(rows.extent(0));
    fixed(Strided::new(
        rows.offset_in_root(),
        row_bytes,
        [(ids.elements(), rows.nb()[1])],
    ))
}

/// POOL_2D_BACK, src1: the input of the forward pass, to find its maxima.
pub fn if_max_pool<'g>(node: Tensor<'g>, forward: Tensor<'g>) -> Touched<'g> {
    const POOL_MAX: i32 = 0;
    if node.op_params()[0] == POOL_MAX {
        whole(forward)
    } else {
        None
    }
}

/// SSM_SCAN, src0: the state of each sequence of the batch, by its id.
pub fn states_named<'g>(node: Tensor<'g>, states: Tensor<'g>) -> Touched<'g> {
    let (Some(x), Some(ids)) = (node.src(1), node.src(6)) else {
        return whole(states);
    };
    Some(Region::Indexed(Indexed {
        capture: ids,
        unit: box_region(states, [u64::MAX, u64::MAX, u64::MAX, 1]),
        stride: states.nb()[3],
        bound: states.extent(3),
        count: [x.extent(3), 1, 1],
        outer_strides: [0, 0],
        order: IndexOrder::EachInOrder,
    }))
}

/// SSM_SCAN, src6: an id for each sequence.
pub fn state_ids<'g>(node: Tensor<'g>, ids: Tensor<'g>) -> Touched<'g> {
    let Some(x) = node.src(1) else {
        return whole(ids);
    };
    fixed(prefix_region(ids, x.extent(3) * I32_BYTES))
}

/// SSM_SCAN, dst: the result, then a snapshot of all states for each of the last
/// K tokens; with fewer tokens the older snapshots stay as they were.
pub fn scan_result<'g>(node: Tensor<'g>, dst: Tensor<'g>) -> Touched<'g> {
    let (Some(states), Some(x)) = (node.src(0), node.src(1)) else {
        return whole(dst);
    };
    let (tokens, sequences) = (x.extent(2), x.extent(3));
    let snapshots = tokens.min(snapshot_slots(node));
    let snapshot_bytes = sequences * states.nb()[3];
    fixed(prefix_region(
        dst,
        x.elements() * F32_BYTES + snapshots * snapshot_bytes,
    ))
}

/// GATED_DELTA_NET, dst: as SSM_SCAN, except that a single snapshot is always
/// written.
pub fn delta_net_result<'g>(node: Tensor<'g>, dst: Tensor<'g>) -> Touched<'g> {
    let Some(v) = node.src(2) else {
        return whole(dst);
    };
    let [head_size, heads, tokens, sequences] = v.extents();
    let slots = snapshot_slots(node);
    let snapshots = if slots == 1 { 1 } else { tokens.min(slots) };
    let scores = v.elements();
    let snapshot = head_size * head_size * heads * sequences;
    fixed(prefix_region(
        dst,
        (scores + snapshots * snapshot) * F32_BYTES,
    ))
}

/// LIGHTNING_INDEXER, src3: a row for each token, a column for each key.
pub fn indexer_mask<'g>(node: Tensor<'g>, mask: Tensor<'g>) -> Touched<'g> {
    let (Some(q), Some(k)) = (node.src(0), node.src(1)) else {
        return whole(mask);
    };
    fixed(box_region(mask, [k.extent(2), q.extent(2), 1, q.extent(3)]))
}

/// DSV4_HC_COMB, src0 and src2: the mixing part of each row; what goes before
/// it (2 × 4 numbers) belongs to other ops.
pub fn combine_part<'g>(_node: Tensor<'g>, rows: Tensor<'g>) -> Touched<'g> {
    const STREAMS: u64 = 4;
    fixed(sub_box_region(
        rows,
        2 * STREAMS,
        [STREAMS * STREAMS, u64::MAX, 1, 1],
    ))
}

/// DSV4_HC_COMB, src1: the third scale.
pub fn combine_scale<'g>(_node: Tensor<'g>, scales: Tensor<'g>) -> Touched<'g> {
    fixed(sub_box_region(scales, 2, [1, 1, 1, 1]))
}

fn whole<'g>(operand: Tensor<'g>) -> Touched<'g> {
    fixed(view_region(operand))
}

fn fixed<'g>(bytes: Strided) -> Touched<'g> {
    Some(Region::Fixed(bytes))
}

fn floats<'g>(operand: Tensor<'g>, count: u64) -> Touched<'g> {
    fixed(prefix_region(operand, count * F32_BYTES))
}

/// ACC and SET keep "in place" in their fifth parameter.
fn copies_base(node: Tensor<'_>) -> bool {
    node.op_params()[4] == 0
}

/// The part of base or destination that ACC and SET lay src1 over: its shape,
/// with strides and offset from the parameters.
fn patched_part<'g>(node: Tensor<'g>, operand: Tensor<'g>) -> Touched<'g> {
    let Some(patch) = node.src(1) else {
        return whole(operand);
    };
    if patch.is_empty() {
        return None;
    }
    let [stride1, stride2, stride3, offset] =
        std::array::from_fn(|i| u64::from(node.op_params()[i].cast_unsigned()));
    let [n0, n1, n2, n3] = patch.extents();
    fixed(Strided::new(
        operand.offset_in_root() + offset,
        operand.block().row_bytes(n0),
        [(n1, stride1), (n2, stride2), (n3, stride3)],
    ))
}

/// SSM_SCAN and GATED_DELTA_NET: how many snapshots the destination has room
/// for. Versions before snapshots left the parameter 0 and wrote one.
fn snapshot_slots(node: Tensor<'_>) -> u64 {
    u64::try_from(node.op_params()[0]).unwrap_or(0).max(1)
}
