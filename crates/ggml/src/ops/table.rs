//! Every op of ggml 0.26.0 with what its CPU kernel reads and writes.
//!
//! A line is `NAME = Exact(reads, writes)`, or `AtMost(reads, writes, why)` where
//! the kernel may skip some of the bytes. A source that is not listed is *not
//! read*: it is there for its shape (the kernel of IM2COL) or because the
//! destination is a view of it (src1 of CPY, src2 of SET_ROWS). The table is
//! keyed by name because the numbers of `enum ggml_op` shift between versions.

use super::Extent::{By, FlatRows, Whole};
use super::Semantics::{AtMost, Exact, Nothing};
use super::Touch::{Dst, Src};
use super::extents as by;
use super::{Semantics, Touch};

const S0: &[Touch] = &[Src(0, Whole)];
const S1: &[Touch] = &[Src(1, Whole)];
const S01: &[Touch] = &[Src(0, Whole), Src(1, Whole)];
const S012: &[Touch] = &[Src(0, Whole), Src(1, Whole), Src(2, Whole)];
const S0123: &[Touch] = &[Src(0, Whole), Src(1, Whole), Src(2, Whole), Src(3, Whole)];
const S01234: &[Touch] = &[
    Src(0, Whole),
    Src(1, Whole),
    Src(2, Whole),
    Src(3, Whole),
    Src(4, Whole),
];
const S012345: &[Touch] = &[
    Src(0, Whole),
    Src(1, Whole),
    Src(2, Whole),
    Src(3, Whole),
    Src(4, Whole),
    Src(5, Whole),
];
const S0123456: &[Touch] = &[
    Src(0, Whole),
    Src(1, Whole),
    Src(2, Whole),
    Src(3, Whole),
    Src(4, Whole),
    Src(5, Whole),
    Src(6, Whole),
];
const ALL: &[Touch] = &[
    Src(0, Whole),
    Src(1, Whole),
    Src(2, Whole),
    Src(3, Whole),
    Src(4, Whole),
    Src(5, Whole),
    Src(6, Whole),
    Src(7, Whole),
    Src(8, Whole),
    Src(9, Whole),
];
const D: &[Touch] = &[Dst(Whole)];
const FLAT0: &[Touch] = &[Src(0, FlatRows)];
const FLAT_D: &[Touch] = &[Dst(FlatRows)];

const WINDOWS: &str = "strides and padding may leave elements outside every window";
const TRIANGLE: &str = "only a triangle of each matrix is touched";
const USER_CODE: &str = "the kernel is the program's own";

macro_rules! ops {
    ($($name:ident = $semantics:expr;)*) => {
        /// An op by ggml's name for it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types)]
        #[repr(u8)]
        pub enum Op {
            $($name,)*
            /// Newer than this table.
            Unknown,
        }

        /// All known ops: name, op, what it touches.
        pub const TABLE: &[(&str, Op, Semantics)] =
            &[$((stringify!($name), Op::$name, $semantics),)*];
    };
}

ops! {
    NONE = Nothing;

    // src1 of CPY is the destination's shape. With broadcasting, src1 of the
    // binary ops is read once.
    DUP = Exact(S0, D);
    ADD = Exact(S01, D);
    ADD_ID = Exact(&[Src(0, Whole), Src(1, By(by::bias_rows)), Src(2, Whole)], D);
    ADD1 = Exact(&[Src(0, Whole), Src(1, By(by::first_element))], D);
    ACC = Exact(&[Src(0, By(by::acc_base)), Src(1, Whole)], &[Dst(By(by::patched))]);
    SUB = Exact(S01, D);
    MUL = Exact(S01, D);
    DIV = Exact(S01, D);
    SQR = Exact(S0, D);
    SQRT = Exact(S0, D);
    LOG = Exact(S0, D);
    SIN = Exact(S0, D);
    COS = Exact(S0, D);
    SUM = Exact(S0, &[Dst(By(by::first_element))]);
    SUM_ROWS = Exact(S0, D);
    CUMSUM = Exact(S0, D);
    MEAN = Exact(S0, D);
    ARGMAX = Exact(&[Src(0, By(by::first_plane))], D);
    COUNT_EQUAL = Exact(S01, D);
    REPEAT = Exact(S0, D);
    REPEAT_BACK = Exact(S0, D);
    CONCAT = Exact(S01, D);
    SILU_BACK = Exact(&[Src(0, FlatRows), Src(1, FlatRows)], FLAT_D);
    NORM = Exact(S0, D);
    RMS_NORM = Exact(S0, D);
    RMS_NORM_BACK = Exact(S01, D);
    GROUP_NORM = Exact(S0, D);
    L2_NORM = Exact(S0, D);

    MUL_MAT = Exact(&[Src(0, By(by::unless_hadamard)), Src(1, Whole)], D);
    MUL_MAT_ID = Exact(&[Src(0, By(by::experts_chosen)), Src(1, Whole), Src(2, Whole)], D);
    OUT_PROD = Exact(S01, D);

    SCALE = Exact(S0, D);
    SET = Exact(&[Src(0, By(by::set_base)), Src(1, Whole)], &[Dst(By(by::patched))]);
    CPY = Exact(S0, D);
    CONT = Exact(S0, D);
    RESHAPE = Nothing;
    VIEW = Nothing;
    PERMUTE = Nothing;
    TRANSPOSE = Nothing;
    GET_ROWS = Exact(&[Src(0, By(by::rows_named)), Src(1, Whole)], D);
    GET_ROWS_BACK = Exact(&[Src(0, By(by::gradient_rows)), Src(1, Whole)], D);
    // src2 is the tensor that dst is a view of.
    SET_ROWS = Exact(S01, &[Dst(By(by::rows_set))]);
    DIAG = Exact(S0, D);
    DIAG_MASK_INF = AtMost(&[Src(0, By(by::masked_base))], &[Dst(By(by::masked))], TRIANGLE);
    DIAG_MASK_ZERO = AtMost(&[Src(0, By(by::masked_base))], &[Dst(By(by::masked))], TRIANGLE);
    SOFT_MAX = Exact(
        &[Src(0, Whole), Src(1, By(by::softmax_mask)), Src(2, By(by::softmax_sinks))],
        D
    );
    SOFT_MAX_BACK = Exact(S01, D);
    ROPE = Exact(
        &[Src(0, Whole), Src(1, By(by::rope_positions)), Src(2, By(by::rope_factors))],
        D
    );
    ROPE_BACK = Exact(
        &[Src(0, Whole), Src(1, By(by::rope_positions)), Src(2, By(by::rope_factors))],
        D
    );
    CLAMP = Exact(FLAT0, FLAT_D);
    CONV_TRANSPOSE_1D = Exact(S01, D);
    // src0 (src1 of the gradient) is the kernel, for its shape only.
    IM2COL = AtMost(S1, D, WINDOWS);
    IM2COL_BACK = AtMost(S0, D, WINDOWS);
    IM2COL_3D = AtMost(S1, D, WINDOWS);
    COL2IM_1D = AtMost(S0, D, WINDOWS);
    CONV_2D = AtMost(S01, D, WINDOWS);
    CONV_3D = AtMost(S01, D, WINDOWS);
    CONV_2D_DW = AtMost(S01, D, WINDOWS);
    CONV_TRANSPOSE_2D = Exact(S01, D);
    POOL_1D = AtMost(FLAT0, FLAT_D, WINDOWS);
    POOL_2D = AtMost(S0, D, WINDOWS);
    POOL_2D_BACK = AtMost(&[Src(0, Whole), Src(1, By(by::if_max_pool))], D, WINDOWS);
    UPSCALE = AtMost(S0, D, "scaling down may skip elements");
    PAD = Exact(S0, D);
    PAD_REFLECT_1D = Exact(S0, D);
    ROLL = Exact(S0, D);
    ARANGE = Exact(&[], D);
    TIMESTEP_EMBEDDING = Exact(S0, D);
    ARGSORT = Exact(&[Src(0, By(by::sorted_rows))], FLAT_D);
    TOP_K = Exact(&[Src(0, By(by::sorted_rows))], FLAT_D);
    LEAKY_RELU = Exact(FLAT0, FLAT_D);
    TRI = AtMost(S0, D, TRIANGLE);
    // src0 gives the shape; its data is not looked at.
    FILL = Exact(&[], D);

    FLASH_ATTN_EXT = AtMost(
        &[
            Src(0, Whole),
            Src(1, Whole),
            Src(2, Whole),
            Src(3, By(by::attention_mask)),
            Src(4, By(by::attention_sinks)),
        ],
        D,
        "rows of k and v that the mask hides (-inf) from every query are skipped"
    );
    FLASH_ATTN_BACK = AtMost(S0123, D, "masked columns are skipped");
    SSM_CONV = Exact(S01, D);
    SSM_SCAN = Exact(
        &[
            Src(0, By(by::states_named)),
            Src(1, Whole),
            Src(2, Whole),
            Src(3, Whole),
            Src(4, Whole),
            Src(5, Whole),
            Src(6, By(by::state_ids)),
        ],
        &[Dst(By(by::scan_result))]
    );
    WIN_PART = Exact(S0, D);
    WIN_UNPART = AtMost(S0, D, "the padding of the last windows is not copied back");
    GET_REL_POS = Exact(S0, D);
    ADD_REL_POS = Exact(S012, D);
    RWKV_WKV6 = Exact(S012345, D);
    GATED_LINEAR_ATTN = Exact(S01234, D);
    RWKV_WKV7 = Exact(S0123456, D);
    SOLVE_TRI = AtMost(S01, D, TRIANGLE);
    GATED_DELTA_NET = Exact(S012345, &[Dst(By(by::delta_net_result))]);
    LIGHTNING_INDEXER = Exact(
        &[Src(0, Whole), Src(1, Whole), Src(2, Whole), Src(3, By(by::indexer_mask))],
        D
    );
    DSV4_HC_COMB = Exact(
        &[
            Src(0, By(by::combine_part)),
            Src(1, By(by::combine_scale)),
            Src(2, By(by::combine_part)),
        ],
        D
    );
    DSV4_HC_PRE = Exact(S01, D);
    DSV4_HC_POST = Exact(S0123, D);

    UNARY = Exact(S0, D);

    MAP_CUSTOM1 = AtMost(S0, D, USER_CODE);
    MAP_CUSTOM2 = AtMost(S01, D, USER_CODE);
    MAP_CUSTOM3 = AtMost(S012, D, USER_CODE);

    CUSTOM = AtMost(ALL, D, USER_CODE);

    CROSS_ENTROPY_LOSS = Exact(
        &[Src(0, FlatRows), Src(1, FlatRows)],
        &[Dst(By(by::first_element))]
    );
    CROSS_ENTROPY_LOSS_BACK = Exact(
        &[Src(0, By(by::first_element)), Src(1, FlatRows), Src(2, FlatRows)],
        FLAT_D
    );
    // The optimiser steps write their sources; dst is a view of src0 and is not
    // touched through its own pointer, so the weights are written once, not twice.
    OPT_STEP_ADAMW = Exact(S01234, &[Src(0, Whole), Src(2, Whole), Src(3, Whole)]);
    OPT_STEP_SGD = Exact(S012, &[Src(0, Whole)]);

    // src1 is null when gate and value lie side by side in src0.
    GLU = Exact(S01, D);
}

/// The names of all known ops, in ggml's order.
pub fn known_ops() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|&(name, _, _)| name)
}

impl Op {
    /// `Unknown` for a name that is not in the table.
    pub fn from_name(name: &[u8]) -> Op {
        TABLE
            .iter()
            .find(|(known, _, _)| known.as_bytes() == name)
            .map_or(Op::Unknown, |&(_, op, _)| op)
    }

    /// ggml's spelling; `None` for `Unknown`.
    pub fn name(self) -> Option<&'static str> {
        TABLE.get(self as usize).map(|&(name, _, _)| name)
    }

    /// `None` for `Unknown`.
    pub fn semantics(self) -> Option<&'static Semantics> {
        TABLE.get(self as usize).map(|(_, _, semantics)| semantics)
    }

    /// Ops that ggml never executes (`ggml_op_is_empty`).
    pub fn is_empty(self) -> bool {
        matches!(self.semantics(), Some(Semantics::Nothing))
    }

    pub(super) fn from_index(index: u8) -> Op {
        TABLE
            .get(usize::from(index))
            .map_or(Op::Unknown, |&(_, op, _)| op)
    }
}
