//! From a shape to the tensors that llama.cpp's loader wants.
//!
//! Names and shapes follow `src/models/*.cpp` of the vendored
//! llama.cpp; types follow `convert_hf_to_gguf.py` (norms, biases, routers and
//! other small things stay f32) and `llama-quantize` (rows that do not divide
//! into blocks fall back to a type that fits).
//!
//! The spread of each tensor is chosen so that a signal keeps its size on the
//! way through: 1/sqrt(inputs) for a matrix, less by 1/sqrt(2 * layers) for
//! those that write to the residual stream. With tied embeddings the final norm
//! has random signs, because otherwise the likeliest next token would always
//! be the last one.

use gguf::GgmlType;
use gguf::write::TensorSpec;

use crate::shape::{Arch, Embeddings, Experts, Mla, Shape, Ssm};

/// A tensor, and what its random values look like.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub spec: TensorSpec,
    pub fill: Fill,
    /// The type asked for, where its rows did not fit it.
    pub instead_of: Option<GgmlType>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Fill {
    /// The same values over and over; f32 only.
    Cycle(Vec<f32>),
    /// This size with random signs; f32 only.
    Signs(f32),
    /// `mean` is zero unless the type is f32.
    Normal { mean: f32, std: f32 },
}

/// The types of the two kinds of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types {
    pub matrices: GgmlType,
    pub experts: GgmlType,
}

/// Spread of logits, so that a few tokens stand out and none drowns the rest.
const LOGIT_STD: f32 = 3.0;
/// Spread of router logits: decided, but not the same for every token.
const ROUTER_LOGIT_STD: f32 = 2.0;
const EMBEDDING_STD: f32 = 0.5;
/// Queries and keys are larger than unit, so that attention chooses.
const QUERY_KEY_GAIN: f32 = 1.5;
const BIAS_STD: f32 = 0.1;

/// All tensors, in the order of the file.
pub fn tensors(shape: &Shape, types: Types) -> Vec<Tensor> {
    let mut list = List {
        tensors: vec![],
        types,
        residual: 1.0 / (2.0 * shape.layers as f32).sqrt(),
    };
    let (embd, vocab) = (shape.embd, shape.vocab);
    let embedding_std = match shape.arch {
        // Gemma multiplies the embedding by sqrt(n_embd) and normalises what
        // every layer adds to 1.
        Arch::Gemma2 | Arch::Gemma3 => fan_in(embd),
        _ => EMBEDDING_STD,
    };
    list.matrix("token_embd.weight", &[embd, vocab], embedding_std);
    if shape.embeddings == Embeddings::TiedWithRopeFactors {
        let factors = llama3_rope_factors(shape);
        list.f32(
            "rope_freqs.weight",
            &[shape.head_dim / 2],
            Fill::Cycle(factors),
        );
    }
    for layer in 0..shape.layers {
        let mut block = Block {
            list: &mut list,
            prefix: format!("blk.{layer}."),
            shape,
        };
        block.all(layer);
    }
    let output_std = LOGIT_STD * fan_in(embd);
    if shape.embeddings == Embeddings::Separate {
        list.f32("output_norm.weight", &[embd], Fill::Cycle(vec![1.0]));
        list.matrix("output.weight", &[embd, vocab], output_std);
    } else {
        list.f32(
            "output_norm.weight",
            &[embd],
            Fill::Signs(output_std / embedding_std),
        );
    }
    list.tensors
}

struct List {
    tensors: Vec<Tensor>,
    types: Types,
    /// Factor for matrices that write to the residual stream.
    residual: f32,
}

impl List {
    fn matrix(&mut self, name: &str, dims: &[u64], std: f32) {
        self.fitted(name, dims, std, self.types.matrices);
    }

    fn experts(&mut self, name: &str, dims: &[u64; 3], std: f32) {
        self.fitted(name, dims, std, self.types.experts);
    }

    fn fitted(&mut self, name: &str, dims: &[u64], std: f32, wanted: GgmlType) {
        let ggml_type = fitting_type(wanted, dims[0]);
        self.tensors.push(Tensor {
            spec: TensorSpec {
                name: name.to_owned(),
                dims: dims.to_vec(),
                ggml_type,
            },
            fill: Fill::Normal { mean: 0.0, std },
            instead_of: (ggml_type != wanted).then_some(wanted),
        });
    }

    fn f32(&mut self, name: &str, dims: &[u64], fill: Fill) {
        self.tensors.push(Tensor {
            spec: TensorSpec {
                name: name.to_owned(),
                dims: dims.to_vec(),
                ggml_type: GgmlType::F32,
            },
            fill,
            instead_of: None,
        });
    }
}

/// The tensors of one layer.
struct Block<'a> {
    list: &'a mut List,
    prefix: String,
    shape: &'a Shape,
}

impl Block<'_> {
    fn all(&mut self, layer: u64) {
        self.norm("attn_norm", self.shape.embd);
        if let Some(ssm) = self.shape.ssm {
            return self.state_space(ssm);
        }
        match (self.shape.mla, self.shape.arch) {
            (Some(mla), _) => self.latent_attention(mla),
            (None, Arch::Phi3) => self.fused_attention(),
            (None, _) => self.attention(),
        }
        match self.shape.arch {
            // The one norm between attention and experts has this name here.
            Arch::GptOss => self.norm("post_attention_norm", self.shape.embd),
            Arch::Gemma2 | Arch::Gemma3 => {
                self.norm("post_attention_norm", self.shape.embd);
                self.norm("ffn_norm", self.shape.embd);
                self.norm("post_ffw_norm", self.shape.embd);
            }
            _ => self.norm("ffn_norm", self.shape.embd),
        }
        match self.shape.experts {
            Some(experts) if layer >= experts.leading_dense => self.experts(experts),
            _ if self.shape.arch == Arch::Phi3 => self.fused_feed_forward(),
            _ => self.feed_forward("", self.shape.ff),
        }
    }

    fn attention(&mut self) {
        let &Shape {
            arch,
            embd,
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        self.matrix("attn_q", &[embd, q], QUERY_KEY_GAIN * fan_in(embd));
        self.matrix("attn_k", &[embd, kv], QUERY_KEY_GAIN * fan_in(embd));
        self.matrix("attn_v", &[embd, kv], fan_in(embd));
        self.residual_matrix("attn_output", &[q, embd]);
        if matches!(arch, Arch::Qwen3 | Arch::Qwen3Moe | Arch::Gemma3) {
            for name in ["attn_q_norm", "attn_k_norm"] {
                let name = format!("{}{name}.weight", self.prefix);
                self.list
                    .f32(&name, &[head_dim], Fill::Cycle(vec![QUERY_KEY_GAIN]));
            }
        }
        if matches!(arch, Arch::Qwen2Moe | Arch::GptOss) {
            self.bias("attn_q", &[q]);
            self.bias("attn_k", &[kv]);
            self.bias("attn_v", &[kv]);
        }
        if arch == Arch::GptOss {
            self.bias("attn_output", &[embd]);
            self.normal("attn_sinks.weight", &[heads], 0.0, 1.0);
        }
    }

    fn fused_attention(&mut self) {
        let &Shape {
            embd,
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let rows = (heads + 2 * kv_heads) * head_dim;
        self.matrix("attn_qkv", &[embd, rows], QUERY_KEY_GAIN * fan_in(embd));
        self.residual_matrix("attn_output", &[heads * head_dim, embd]);
    }

    fn latent_attention(&mut self, mla: Mla) {
        let &Shape { embd, heads, .. } = self.shape;
        let Mla {
            kv_rank,
            rope_dim,
            nope_dim,
            value_dim,
        } = mla;
        self.matrix(
            "attn_q",
            &[embd, heads * (nope_dim + rope_dim)],
            fan_in(embd),
        );
        self.matrix("attn_kv_a_mqa", &[embd, kv_rank + rope_dim], fan_in(embd));
        self.norm("attn_kv_a_norm", kv_rank);
        // Stored transposed: it expands kv_rank numbers to nope_dim.
        self.matrix("attn_k_b", &[nope_dim, kv_rank, heads], fan_in(kv_rank));
        self.matrix("attn_v_b", &[kv_rank, value_dim, heads], fan_in(kv_rank));
        self.residual_matrix("attn_output", &[heads * value_dim, embd]);
    }

    fn feed_forward(&mut self, suffix: &str, ff: u64) {
        let embd = self.shape.embd;
        self.matrix(&format!("ffn_gate{suffix}"), &[embd, ff], fan_in(embd));
        self.matrix(&format!("ffn_up{suffix}"), &[embd, ff], fan_in(embd));
        self.residual_matrix(&format!("ffn_down{suffix}"), &[ff, embd]);
    }

    fn fused_feed_forward(&mut self) {
        let &Shape { embd, ff, .. } = self.shape;
        self.matrix("ffn_up", &[embd, 2 * ff], fan_in(embd));
        self.residual_matrix("ffn_down", &[ff, embd]);
    }

    fn experts(&mut self, experts: Experts) {
        let &Shape { arch, embd, .. } = self.shape;
        let Experts {
            count,
            ff,
            shared_ff,
            ..
        } = experts;
        self.normal(
            "ffn_gate_inp.weight",
            &[embd, count],
            0.0,
            ROUTER_LOGIT_STD * fan_in(embd),
        );
        let down_std = fan_in(ff) * self.list.residual;
        for (name, dims, std) in [
            ("ffn_gate_exps.weight", [embd, ff, count], fan_in(embd)),
            ("ffn_up_exps.weight", [embd, ff, count], fan_in(embd)),
            ("ffn_down_exps.weight", [ff, embd, count], down_std),
        ] {
            self.list
                .experts(&format!("{}{name}", self.prefix), &dims, std);
        }
        if arch == Arch::GptOss {
            self.bias("ffn_gate_inp", &[count]);
            self.bias("ffn_gate_exps", &[ff, count]);
            self.bias("ffn_up_exps", &[ff, count]);
            self.bias("ffn_down_exps", &[embd, count]);
        }
        if shared_ff > 0 {
            if arch == Arch::Qwen2Moe {
                self.normal("ffn_gate_inp_shexp.weight", &[embd], 0.0, fan_in(embd));
            }
            self.feed_forward("_shexp", shared_ff);
        }
    }

    fn state_space(&mut self, ssm: Ssm) {
        let embd = self.shape.embd;
        let Ssm {
            conv,
            inner,
            state,
            dt_rank,
        } = ssm;
        self.matrix("ssm_in", &[embd, 2 * inner], fan_in(embd));
        self.normal("ssm_conv1d.weight", &[conv, inner], 0.0, fan_in(conv));
        self.bias("ssm_conv1d", &[inner]);
        self.matrix("ssm_x", &[inner, dt_rank + 2 * state], fan_in(inner));
        self.matrix("ssm_dt", &[dt_rank, inner], fan_in(dt_rank));
        // Through a softplus: steps of about 0.1, so that tokens before the
        // last one are heard.
        self.normal("ssm_dt.bias", &[inner], -2.0, 1.0);
        let decay = (1..=state).map(|n| -(n as f32)).collect();
        self.list.f32(
            &format!("{}ssm_a", self.prefix),
            &[state, inner],
            Fill::Cycle(decay),
        );
        self.list.f32(
            &format!("{}ssm_d", self.prefix),
            &[inner],
            Fill::Cycle(vec![1.0]),
        );
        self.residual_matrix("ssm_out", &[inner, embd]);
    }

    fn matrix(&mut self, name: &str, dims: &[u64], std: f32) {
        self.list
            .matrix(&format!("{}{name}.weight", self.prefix), dims, std);
    }

    fn residual_matrix(&mut self, name: &str, dims: &[u64]) {
        let std = fan_in(dims[0]) * self.list.residual;
        self.matrix(name, dims, std);
    }

    fn norm(&mut self, name: &str, width: u64) {
        let name = format!("{}{name}.weight", self.prefix);
        self.list.f32(&name, &[width], Fill::Cycle(vec![1.0]));
    }

    fn bias(&mut self, name: &str, dims: &[u64]) {
        self.normal(&format!("{name}.bias"), dims, 0.0, BIAS_STD);
    }

    fn normal(&mut self, name: &str, dims: &[u64], mean: f32, std: f32) {
        self.list.f32(
            &format!("{}{name}", self.prefix),
            dims,
            Fill::Normal { mean, std },
        );
    }
}

fn fan_in(inputs: u64) -> f32 {
    1.0 / (inputs as f32).sqrt()
}

/// The type that `llama-quantize` takes when rows are no whole blocks.
fn fitting_type(wanted: GgmlType, row_elements: u64) -> GgmlType {
    use GgmlType::*;
    let fits = |t: GgmlType| t.row_bytes(row_elements).is_some();
    let smaller = match wanted {
        Q2_K | Q3_K => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        IQ4_XS => IQ4_NL,
        other => other,
    };
    [wanted, smaller]
        .into_iter()
        .find(|&t| fits(t))
        .unwrap_or(F16)
}

/// Llama 3's frequency factors as the converter computes them (factor 32, low
/// 1, high 4, trained on 8192 tokens).
fn llama3_rope_factors(shape: &Shape) -> Vec<f32> {
    let (factor, low, high, context) = (32.0f64, 1.0, 4.0, 8192.0);
    (0..shape.head_dim / 2)
        .map(|i| {
            let exponent = (2 * i) as f64 / shape.head_dim as f64;
            let wavelength = std::f64::consts::TAU * f64::from(shape.rope_base).powf(exponent);
            if wavelength < context / high {
                return 1.0;
            }
            if wavelength > context / low {
                return factor as f32;
            }
            let smooth = (context / wavelength - low) / (high - low);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        })
        .collect()
}
