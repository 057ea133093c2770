//! The steps of the ladder, in order.

use crate::step::{File, Step};

const SIMPLE: File = File {
    path: "crates/lab/kernels/gemm_f32.cu",
    text: include_str!("../../kernels/gemm_f32.cu"),
};
const HOPPER: File = File {
    path: "crates/lab/kernels/gemm_f32_hopper.cu",
    text: include_str!("../../kernels/gemm_f32_hopper.cu"),
};

pub const STEPS: &[Step] = &[
    Step {
        name: "naive",
        about: "One thread a result, neighbours in one column: every load of A and every store touches 32 lines of memory.",
        file: SIMPLE,
        function: "naive",
        defines: &[],
        claims: &["LDG.E", "FFMA"],
    },
    Step {
        name: "coalesced",
        about: "Neighbours take neighbouring columns: a warp reads whole lines, up to 8 times less traffic.",
        file: SIMPLE,
        function: "coalesced",
        defines: &[],
        claims: &["LDG.E", "FFMA"],
    },
    Step {
        name: "shared",
        about: "Tiles of 32 × 32 in shared memory: global memory is read 32 times less, but each FFMA still needs a load.",
        file: SIMPLE,
        function: "shared",
        defines: &[],
        claims: &["STS", "LDS"],
    },
    Step {
        name: "tile-1d",
        about: "Eight results a thread: a number of B, once in a register, is used eight times.",
        file: SIMPLE,
        function: "tile_1d",
        defines: &[],
        claims: &["LDS", "FFMA"],
    },
    Step {
        name: "tile-2d",
        about: "8 × 8 results a thread: 16 numbers from shared memory for 64 FFMA, so arithmetic begins to be the limit.",
        file: SIMPLE,
        function: "tile_2d",
        defines: &[],
        claims: &["LDS", "FFMA"],
    },
    Step {
        name: "vector",
        about: "16 bytes a load, A turned around in shared memory, the next tile fetched meanwhile: a quarter of the load instructions.",
        file: SIMPLE,
        function: "vector",
        defines: &[],
        claims: &["LDG.E.128", "LDS.128", "STG.E.128"],
    },
    Step {
        name: "tuned",
        about: "The same source; for each size the best of several tile sizes, by measurement.",
        file: SIMPLE,
        function: "vector",
        defines: &[
            "TILE_M=128",
            "TILE_N=256",
            "DEPTH=8",
            "EACH_M=8",
            "EACH_N=16",
        ],
        claims: &["LDG.E.128", "LDS.128", "STG.E.128"],
    },
    Step {
        name: "async",
        about: "Warps with tiles of 64 × 64, 8 × 16 results a thread, operands read one step ahead, copies past the registers in several stages.",
        file: HOPPER,
        function: "async_copy",
        defines: &[],
        claims: &["LDGSTS.E.BYPASS.128", "LDS.128", "STG.E.128"],
    },
    Step {
        name: "tma",
        about: "One thread asks the copy engine for whole tiles: the address arithmetic of all others leaves the issue slots to FFMA.",
        file: HOPPER,
        function: "tma",
        defines: &[],
        claims: &["UTMALDG.2D", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "LDS.128"],
    },
    Step {
        name: "multicast",
        about: "Clusters of two blocks, each fetching half of a tile for both: a quarter less read from L2.",
        file: HOPPER,
        function: "multicast",
        defines: &[],
        claims: &["UTMALDG.2D.MULTICAST", "UCGABAR_ARV"],
    },
    Step {
        name: "turned",
        about: "Instead of clusters: A is turned around in shared memory, so that operands come from both banks of registers and fewer FFMA wait for one.",
        file: HOPPER,
        function: "turned",
        defines: &[],
        claims: &["UTMALDG.2D", "LDS.128", "STS.128", "STG.E.128"],
    },
    Step {
        name: "stream-k",
        about: "As many blocks as fit, in an order that suits L2, and equal work for each, so that no multiprocessor idles in the last round.",
        file: HOPPER,
        function: "stream_k",
        defines: &[],
        claims: &["UTMALDG.2D", "LDS.128", "STG.E.STRONG.GPU"],
    },
];

/// Whether it needs instructions that only Hopper has.
pub fn needs_hopper(step: &Step) -> bool {
    matches!(step.function, "tma" | "multicast" | "turned" | "stream_k")
}

/// The steps that are also measured with the shapes of language models.
pub fn is_top(step: &Step) -> bool {
    step.file.path == HOPPER.path || step.name == "tuned"
}

/// The largest result for which the step is not too slow.
pub fn most_results(step: &Step) -> usize {
    match step.name {
        "naive" => 4096 * 4096,
        "coalesced" | "shared" | "tile-1d" => 8192 * 8192,
        _ => usize::MAX,
    }
}
