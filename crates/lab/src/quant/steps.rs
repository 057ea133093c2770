//! The ladder: its rungs for each format, and where their sources are.

use super::weights::Format;
use crate::step::{File, Step};

pub const INT4_FILE: File = File {
    path: "crates/lab/kernels/quant.cu",
    text: include_str!("../../kernels/quant.cu"),
};
pub const Q4K_FILE: File = File {
    path: "crates/lab/kernels/quant_q4k.cu",
    text: include_str!("../../kernels/quant_q4k.cu"),
};
pub const PRODUCT_FILE: File = File {
    path: "crates/lab/kernels/quant_product.cu",
    text: include_str!("../../kernels/quant_product.cu"),
};

pub const STRIPS_FILE: File = File {
    path: "crates/lab/kernels/quant_strips.cu",
    text: include_str!("../../kernels/quant_strips.cu"),
};

/// What a ladder of one format has, from the bottom up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    Naive,
    Gemv,
    /// Tensor cores.
    Mma,
    /// The same, started early.
    Early,
    /// Whole rows in a block; INT4 only.
    Strips,
    Wgmma,
    /// Inputs that two blocks share.
    Multicast,
    Best,
}

pub const RUNGS: [Rung; 8] = [
    Rung::Naive,
    Rung::Gemv,
    Rung::Mma,
    Rung::Early,
    Rung::Strips,
    Rung::Wgmma,
    Rung::Multicast,
    Rung::Best,
];

const fn step(
    name: &'static str,
    about: &'static str,
    file: File,
    function: &'static str,
    defines: &'static [&'static str],
    claims: &'static [&'static str],
) -> Step {
    Step {
        name,
        about,
        file,
        function,
        defines,
        claims,
    }
}

const MMA_ABOUT: &str = "Tensor cores with weights as the operand A, packed so that 16 bytes are what a lane needs; bulk copies fill a ring; every multiprocessor gets the same number of units: memory should be the limit up to batch 16.";
const EARLY_ABOUT: &str = "The same, but the next kernel starts while this one ends and fills its ring with weights: what remains of a launch should vanish.";
const WGMMA_ABOUT: &str = "wgmma with A from registers: no inputs pass through registers, weights are unpacked while tensor cores work: better from batch 32 on.";
const MULTICAST_ABOUT: &str = "Two blocks with neighbouring rows share inputs: each has the copy engine write half of them to both. From 32 tokens on all multiprocessors together read several times as many inputs from L2 as weights; that should be halved.";
const BEST_ABOUT: &str = "The fastest of these and their other sizes of tiles, chosen for each batch and shape by trying all before the rounds, as cuBLAS's algorithm is.";

/// In the order of `RUNGS`, first INT4.
pub const STEPS: &[Step] = &[
    step(
        "int4-naive",
        "One warp a row, four bytes a load, every weight converted alone, tokens one after the other.",
        INT4_FILE,
        "int4_naive",
        &[],
        &["LDG.E"],
    ),
    step(
        "int4-gemv",
        "16 bytes a load, two weights converted by one logical instruction, inputs shared by two rows and all tokens: arithmetic should no longer hold it up at batch 1.",
        INT4_FILE,
        "int4_gemv",
        &["TOKENS=1"],
        &["LDG.E.128", "LOP3"],
    ),
    step(
        "int4-mma",
        MMA_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=4", "TOKENS=8"],
        &["HMMA.16816", "UBLKCP", "UTMALDG", "LDSM"],
    ),
    step(
        "int4-early",
        EARLY_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=4", "TOKENS=8"],
        &["HMMA.16816", "ACQBULK"],
    ),
    step(
        "int4-strips",
        "Up to 16 tokens: a block has whole rows, so none waits for sums of others, its warps divide k and have a ring each, and inputs go from memory to registers: a product should take little more than its weights after the one before has ended.",
        STRIPS_FILE,
        "quant_strips",
        &["TILES=1", "STRIPS=6"],
        &["HMMA.16816", "UBLKCP", "ACQBULK", "LDS.128", "LDG.E.128"],
    ),
    step(
        "int4-wgmma",
        WGMMA_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=4", "TOKENS=64", "WGMMA=1", "STAGES=4"],
        &["HGMMA.64x64x16", "UBLKCP", "UTMALDG"],
    ),
    step(
        "int4-multicast",
        MULTICAST_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=4", "TOKENS=64", "WGMMA=1", "STAGES=4", "CLUSTER=2"],
        &["HGMMA.64x64x16", "UTMALDG.2D.MULTICAST"],
    ),
    step(
        "int4-best",
        BEST_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=4", "TOKENS=8"],
        &[],
    ),
    step(
        "q4k-naive",
        "As int4-naive; scales of six bits are decoded for each word again.",
        Q4K_FILE,
        "q4k_naive",
        &[],
        &["LDG.E"],
    ),
    step(
        "q4k-gemv",
        "16 bytes a load are one block of 32: its scale and minimum are decoded once.",
        Q4K_FILE,
        "q4k_gemv",
        &["TOKENS=1"],
        &["LDG.E.128", "LOP3"],
    ),
    step(
        "q4k-mma",
        MMA_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=5", "TOKENS=8"],
        &["HMMA.16816", "UBLKCP", "UTMALDG", "LDSM"],
    ),
    step(
        "q4k-early",
        EARLY_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=5", "TOKENS=8"],
        &["HMMA.16816", "ACQBULK"],
    ),
    step(
        "q4k-wgmma",
        WGMMA_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=5", "TOKENS=64", "WGMMA=1", "STAGES=4"],
        &["HGMMA.64x64x16", "UBLKCP", "UTMALDG"],
    ),
    step(
        "q4k-multicast",
        MULTICAST_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=5", "TOKENS=64", "WGMMA=1", "STAGES=4", "CLUSTER=2"],
        &["HGMMA.64x64x16", "UTMALDG.2D.MULTICAST"],
    ),
    step(
        "q4k-best",
        BEST_ABOUT,
        PRODUCT_FILE,
        "quant_product",
        &["FORMAT=5", "TOKENS=8"],
        &[],
    ),
];

/// The step of this rung, where the format has it.
pub fn step_of(format: Format, rung: Rung) -> Option<&'static Step> {
    let name = match rung {
        Rung::Naive => "naive",
        Rung::Gemv => "gemv",
        Rung::Mma => "mma",
        Rung::Early => "early",
        Rung::Strips => "strips",
        Rung::Wgmma => "wgmma",
        Rung::Multicast => "multicast",
        Rung::Best => "best",
    };
    let name = format!("{}-{name}", format.name());
    STEPS.iter().find(|step| step.name == name)
}
