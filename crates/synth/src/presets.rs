//! The shapes of published models, from their `config.json`.
//!
//! Each preset has a `tiny` sibling for tests: every width is shrunk, every
//! feature stays (grouped queries, tied embeddings, sinks, odd row lengths of
//! the model's width, ...), and 8-bit weights fit in 5 MB.

use crate::shape::{Arch, Embeddings, Experts, Mla, Shape, Ssm};

#[derive(Debug, Clone, Copy)]
pub struct Preset {
    pub name: &'static str,
    /// What it stands for among the presets.
    pub about: &'static str,
    pub full: Shape,
    pub tiny: Shape,
}

/// The preset of this name.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS
        .iter()
        .find(|preset| preset.name.eq_ignore_ascii_case(name))
}

const TINY_VOCAB: u64 = 512;

const LLAMA_2_7B: Shape = Shape {
    arch: Arch::Llama,
    layers: 32,
    embd: 4096,
    ff: 11008,
    heads: 32,
    kv_heads: 32,
    head_dim: 128,
    vocab: 32000,
    context: 4096,
    rope_base: 10_000.0,
    norm_eps: 1e-5,
    embeddings: Embeddings::Separate,
    experts: None,
    window: None,
    mla: None,
    ssm: None,
};

const LLAMA_3_8B: Shape = Shape {
    ff: 14336,
    kv_heads: 8,
    vocab: 128_256,
    context: 8192,
    rope_base: 500_000.0,
    ..LLAMA_2_7B
};

const LLAMA_3_2_1B: Shape = Shape {
    layers: 16,
    embd: 2048,
    ff: 8192,
    head_dim: 64,
    context: 131_072,
    embeddings: Embeddings::TiedWithRopeFactors,
    ..LLAMA_3_8B
};

const MIXTRAL_8X7B: Shape = Shape {
    vocab: 32000,
    context: 32768,
    rope_base: 1e6,
    experts: Some(Experts {
        count: 8,
        used: 2,
        ff: 14336,
        shared_ff: 0,
        leading_dense: 0,
    }),
    ..LLAMA_3_8B
};

const QWEN3_0_6B: Shape = Shape {
    arch: Arch::Qwen3,
    layers: 28,
    embd: 1024,
    ff: 3072,
    heads: 16,
    kv_heads: 8,
    vocab: 151_936,
    context: 40960,
    rope_base: 1e6,
    norm_eps: 1e-6,
    embeddings: Embeddings::Tied,
    ..LLAMA_2_7B
};

const QWEN3_30B_A3B: Shape = Shape {
    arch: Arch::Qwen3Moe,
    layers: 48,
    embd: 2048,
    ff: 6144,
    heads: 32,
    kv_heads: 4,
    embeddings: Embeddings::Separate,
    experts: Some(Experts {
        count: 128,
        used: 8,
        ff: 768,
        shared_ff: 0,
        leading_dense: 0,
    }),
    ..QWEN3_0_6B
};

const QWEN15_MOE_A27B: Shape = Shape {
    arch: Arch::Qwen2Moe,
    layers: 24,
    embd: 2048,
    ff: 5632,
    heads: 16,
    kv_heads: 16,
    context: 8192,
    embeddings: Embeddings::Separate,
    experts: Some(Experts {
        count: 60,
        used: 4,
        ff: 1408,
        shared_ff: 5632,
        leading_dense: 0,
    }),
    ..QWEN3_0_6B
};

const GPT_OSS_20B: Shape = Shape {
    arch: Arch::GptOss,
    layers: 24,
    embd: 2880,
    ff: 2880,
    heads: 64,
    kv_heads: 8,
    head_dim: 64,
    vocab: 201_088,
    context: 131_072,
    rope_base: 150_000.0,
    experts: Some(Experts {
        count: 32,
        used: 4,
        ff: 2880,
        shared_ff: 0,
        leading_dense: 0,
    }),
    window: Some(128),
    ..LLAMA_2_7B
};

const GEMMA_2_2B: Shape = Shape {
    arch: Arch::Gemma2,
    layers: 26,
    embd: 2304,
    ff: 9216,
    heads: 8,
    kv_heads: 4,
    head_dim: 256,
    vocab: 256_000,
    context: 8192,
    norm_eps: 1e-6,
    embeddings: Embeddings::Tied,
    window: Some(4096),
    ..LLAMA_2_7B
};

const GEMMA_3_1B: Shape = Shape {
    arch: Arch::Gemma3,
    embd: 1152,
    ff: 6912,
    heads: 4,
    kv_heads: 1,
    vocab: 262_144,
    context: 32768,
    rope_base: 1e6,
    window: Some(512),
    ..GEMMA_2_2B
};

const PHI_3_MINI: Shape = Shape {
    arch: Arch::Phi3,
    embd: 3072,
    ff: 8192,
    head_dim: 96,
    vocab: 32064,
    ..LLAMA_2_7B
};

const DEEPSEEK_V2_LITE: Shape = Shape {
    arch: Arch::Deepseek2,
    layers: 27,
    embd: 2048,
    ff: 10944,
    heads: 16,
    kv_heads: 16,
    head_dim: 192,
    vocab: 102_400,
    context: 163_840,
    norm_eps: 1e-6,
    experts: Some(Experts {
        count: 64,
        used: 6,
        ff: 1408,
        shared_ff: 2816,
        leading_dense: 1,
    }),
    mla: Some(Mla {
        kv_rank: 512,
        rope_dim: 64,
        nope_dim: 128,
        value_dim: 128,
    }),
    ..LLAMA_2_7B
};

const MAMBA_130M: Shape = Shape {
    arch: Arch::Mamba,
    layers: 24,
    embd: 768,
    ff: 0,
    heads: 0,
    kv_heads: 0,
    head_dim: 0,
    vocab: 50280,
    context: 1 << 20,
    embeddings: Embeddings::Tied,
    ssm: Some(Ssm {
        conv: 4,
        inner: 1536,
        state: 16,
        dt_rank: 48,
    }),
    ..LLAMA_2_7B
};

/// Every preset, dense models first.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "llama-2-7b",
        about: "dense, one key head per query head",
        full: LLAMA_2_7B,
        tiny: Shape {
            layers: 4,
            embd: 256,
            ff: 768,
            heads: 4,
            kv_heads: 4,
            head_dim: 64,
            vocab: TINY_VOCAB,
            ..LLAMA_2_7B
        },
    },
    Preset {
        name: "llama-3-8b",
        about: "dense, grouped query, large vocabulary",
        full: LLAMA_3_8B,
        tiny: Shape {
            layers: 4,
            embd: 256,
            ff: 768,
            heads: 8,
            kv_heads: 2,
            head_dim: 32,
            vocab: TINY_VOCAB,
            ..LLAMA_3_8B
        },
    },
    Preset {
        name: "llama-3.2-1b",
        about: "dense, grouped query, tied embeddings, rope factors",
        full: LLAMA_3_2_1B,
        tiny: Shape {
            layers: 4,
            embd: 256,
            ff: 768,
            heads: 8,
            kv_heads: 2,
            head_dim: 32,
            vocab: TINY_VOCAB,
            ..LLAMA_3_2_1B
        },
    },
    Preset {
        name: "qwen3-0.6b",
        about: "dense, query and key norms, attention wider than the model, tied",
        full: QWEN3_0_6B,
        tiny: Shape {
            layers: 4,
            embd: 256,
            ff: 768,
            heads: 8,
            kv_heads: 4,
            head_dim: 64,
            vocab: TINY_VOCAB,
            ..QWEN3_0_6B
        },
    },
    Preset {
        name: "gemma-2-2b",
        about: "dense, sliding window every other layer, soft-capped logits, tied",
        full: GEMMA_2_2B,
        tiny: Shape {
            layers: 4,
            embd: 256,
            ff: 768,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            vocab: TINY_VOCAB,
            window: Some(64),
            ..GEMMA_2_2B
        },
    },
    Preset {
        name: "gemma-3-1b",
        about: "dense, five of six layers local, rows that do not divide by 256, tied",
        full: GEMMA_3_1B,
        tiny: Shape {
            layers: 6,
            embd: 288,
            ff: 512,
            heads: 4,
            kv_heads: 1,
            head_dim: 64,
            vocab: TINY_VOCAB,
            window: Some(64),
            ..GEMMA_3_1B
        },
    },
    Preset {
        name: "phi-3-mini",
        about: "dense, fused QKV and fused gate and up",
        full: PHI_3_MINI,
        tiny: Shape {
            layers: 4,
            embd: 256,
            ff: 768,
            heads: 8,
            kv_heads: 8,
            head_dim: 32,
            vocab: TINY_VOCAB,
            ..PHI_3_MINI
        },
    },
    Preset {
        name: "mixtral-8x7b",
        about: "8 large experts, 2 used",
        full: MIXTRAL_8X7B,
        tiny: Shape {
            layers: 2,
            embd: 256,
            ff: 256,
            heads: 8,
            kv_heads: 2,
            head_dim: 32,
            vocab: TINY_VOCAB,
            experts: Some(Experts {
                count: 8,
                used: 2,
                ff: 256,
                shared_ff: 0,
                leading_dense: 0,
            }),
            ..MIXTRAL_8X7B
        },
    },
    Preset {
        name: "qwen3-30b-a3b",
        about: "128 small experts, 8 used, grouped query, query and key norms",
        full: QWEN3_30B_A3B,
        tiny: Shape {
            layers: 3,
            embd: 256,
            ff: 512,
            heads: 16,
            kv_heads: 2,
            head_dim: 32,
            vocab: TINY_VOCAB,
            experts: Some(Experts {
                count: 16,
                used: 4,
                ff: 64,
                shared_ff: 0,
                leading_dense: 0,
            }),
            ..QWEN3_30B_A3B
        },
    },
    Preset {
        name: "qwen1.5-moe-a2.7b",
        about: "60 experts, 4 used, a gated shared expert, QKV biases",
        full: QWEN15_MOE_A27B,
        tiny: Shape {
            layers: 3,
            embd: 256,
            ff: 256,
            heads: 4,
            kv_heads: 4,
            head_dim: 64,
            vocab: TINY_VOCAB,
            experts: Some(Experts {
                count: 12,
                used: 4,
                ff: 96,
                shared_ff: 256,
                leading_dense: 0,
            }),
            ..QWEN15_MOE_A27B
        },
    },
    Preset {
        name: "gpt-oss-20b",
        about: "32 experts in MXFP4, 4 used, attention sinks, biases, sliding window",
        full: GPT_OSS_20B,
        tiny: Shape {
            layers: 2,
            embd: 288,
            ff: 288,
            heads: 16,
            kv_heads: 2,
            head_dim: 32,
            vocab: TINY_VOCAB,
            experts: Some(Experts {
                count: 8,
                used: 4,
                ff: 288,
                shared_ff: 0,
                leading_dense: 0,
            }),
            window: Some(64),
            ..GPT_OSS_20B
        },
    },
    Preset {
        name: "deepseek-v2-lite",
        about: "latent attention, 64 experts, 6 used, shared experts, first layer dense",
        full: DEEPSEEK_V2_LITE,
        tiny: Shape {
            layers: 3,
            embd: 256,
            ff: 672,
            heads: 4,
            kv_heads: 4,
            head_dim: 48,
            vocab: TINY_VOCAB,
            experts: Some(Experts {
                count: 16,
                used: 6,
                ff: 96,
                shared_ff: 192,
                leading_dense: 1,
            }),
            mla: Some(Mla {
                kv_rank: 128,
                rope_dim: 16,
                nope_dim: 32,
                value_dim: 32,
            }),
            ..DEEPSEEK_V2_LITE
        },
    },
    Preset {
        name: "mamba-130m",
        about: "state space instead of attention, tied",
        full: MAMBA_130M,
        tiny: Shape {
            layers: 4,
            embd: 256,
            vocab: TINY_VOCAB,
            ssm: Some(Ssm {
                conv: 4,
                inner: 512,
                state: 16,
                dt_rank: 48,
            }),
            ..MAMBA_130M
        },
    },
];
