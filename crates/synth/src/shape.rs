//! What distinguishes one model from another: architecture, widths, features.

/// Everything that decides metadata and tensors of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub arch: Arch,
    pub layers: u64,
    pub embd: u64,
    pub ff: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub vocab: u64,
    pub context: u32,
    pub rope_base: f32,
    pub norm_eps: f32,
    pub embeddings: Embeddings,
    pub experts: Option<Experts>,
    /// Tokens a sliding-window layer looks back.
    pub window: Option<u32>,
    pub mla: Option<Mla>,
    pub ssm: Option<Ssm>,
}

/// llama.cpp architectures whose loader and graph this crate knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    Llama,
    Qwen3,
    Qwen3Moe,
    Qwen2Moe,
    GptOss,
    Gemma2,
    Gemma3,
    Phi3,
    Deepseek2,
    Mamba,
}

impl Arch {
    /// The value of `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen3 => "qwen3",
            Arch::Qwen3Moe => "qwen3moe",
            Arch::Qwen2Moe => "qwen2moe",
            Arch::GptOss => "gpt-oss",
            Arch::Gemma2 => "gemma2",
            Arch::Gemma3 => "gemma3",
            Arch::Phi3 => "phi3",
            Arch::Deepseek2 => "deepseek2",
            Arch::Mamba => "mamba",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embeddings {
    /// An output matrix of its own.
    Separate,
    /// The token embedding serves as output matrix too.
    Tied,
    /// Tied, with the frequency factors that Llama 3.1 and later carry.
    TiedWithRopeFactors,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    pub count: u64,
    pub used: u64,
    pub ff: u64,
    /// Width of the expert that every token passes, 0 for none.
    pub shared_ff: u64,
    /// First layers that have an ordinary feed-forward network.
    pub leading_dense: u64,
}

/// Multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mla {
    pub kv_rank: u64,
    pub rope_dim: u64,
    /// Per head, without position.
    pub nope_dim: u64,
    pub value_dim: u64,
}

/// State-space layers (Mamba).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ssm {
    pub conv: u64,
    pub inner: u64,
    pub state: u64,
    pub dt_rank: u64,
}
