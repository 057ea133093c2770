//! From a shape to the metadata that llama.cpp's loader wants.
//!
//! Which keys an architecture must have, and which it reads only at some
//! depths, follows `load_arch_hparams` in `src/models/*.cpp` of the vendored
//! llama.cpp.

use gguf::GgmlType;
use gguf::write::MetadataBuilder;

use crate::arch::Types;
use crate::shape::{Arch, Shape};
use crate::tokenizer;

pub fn metadata(name: &str, shape: &Shape, types: Types) -> MetadataBuilder {
    let arch = shape.arch.name();
    let mut keys = MetadataBuilder::new();
    keys.set("general.architecture", arch);
    keys.set("general.type", "model");
    keys.set("general.name", name);
    keys.set("general.file_type", file_type(types));
    keys.set("general.quantization_version", 2u32);
    let mut number = |key: &str, value: u64| keys.set(&format!("{arch}.{key}"), value as u32);
    number("vocab_size", shape.vocab);
    number("context_length", u64::from(shape.context));
    number("embedding_length", shape.embd);
    number("block_count", shape.layers);
    number("feed_forward_length", shape.ff);
    number("attention.head_count", shape.heads);
    if shape.heads > 0 {
        // Latent attention keeps one compressed head for all.
        number(
            "attention.head_count_kv",
            shape.mla.map_or(shape.kv_heads, |_| 1),
        );
        let compressed = shape
            .mla
            .map(|mla| (mla.kv_rank + mla.rope_dim, mla.kv_rank));
        let (key_dim, value_dim) = compressed.unwrap_or((shape.head_dim, shape.head_dim));
        number("attention.key_length", key_dim);
        number("attention.value_length", value_dim);
        number(
            "rope.dimension_count",
            shape.mla.map_or(shape.head_dim, |mla| mla.rope_dim),
        );
    }
    if let Some(window) = shape.window {
        number("attention.sliding_window", u64::from(window));
    }
    if let Some(mla) = shape.mla {
        number("attention.kv_lora_rank", mla.kv_rank);
        number("attention.key_length_mla", mla.nope_dim + mla.rope_dim);
        number("attention.value_length_mla", mla.value_dim);
        // llama.cpp knows the published depths to have none and asks for the
        // key at any other depth.
        if !matches!(shape.layers, 26 | 27) {
            number("attention.q_lora_rank", 0);
        }
    }
    if let Some(experts) = shape.experts {
        number("expert_count", experts.count);
        number("expert_used_count", experts.used);
        if shape.arch != Arch::Llama {
            number("expert_feed_forward_length", experts.ff);
        }
        match shape.arch {
            Arch::Deepseek2 => {
                number("expert_shared_count", experts.shared_ff / experts.ff);
                number("leading_dense_block_count", experts.leading_dense);
                number("expert_gating_func", 1);
            }
            Arch::Qwen2Moe => number("expert_shared_feed_forward_length", experts.shared_ff),
            _ => {}
        }
    }
    if let Some(ssm) = shape.ssm {
        number("ssm.conv_kernel", ssm.conv);
        number("ssm.inner_size", ssm.inner);
        number("ssm.state_size", ssm.state);
        number("ssm.time_step_rank", ssm.dt_rank);
    }
    keys.set(
        &format!("{arch}.attention.layer_norm_rms_epsilon"),
        shape.norm_eps,
    );
    if shape.heads > 0 {
        keys.set(&format!("{arch}.rope.freq_base"), shape.rope_base);
    }
    special_keys(shape, &mut keys);
    tokenizer::write(&mut keys, shape.vocab);
    keys
}

/// Keys of one architecture only.
fn special_keys(shape: &Shape, keys: &mut MetadataBuilder) {
    let arch = shape.arch.name();
    let mut set = |key: &str, value: f32| keys.set(&format!("{arch}.{key}"), value);
    match shape.arch {
        Arch::Gemma2 => {
            set("attn_logit_softcapping", 50.0);
            set("final_logit_softcapping", 30.0);
        }
        Arch::GptOss => yarn(arch, 32.0, keys),
        Arch::Deepseek2 => {
            set("expert_weights_scale", 1.0);
            set("rope.scaling.yarn_log_multiplier", 0.0707);
            yarn(arch, 40.0, keys);
        }
        _ => {}
    }
}

fn yarn(arch: &str, factor: f32, keys: &mut MetadataBuilder) {
    keys.set(&format!("{arch}.rope.scaling.type"), "yarn");
    keys.set(&format!("{arch}.rope.scaling.factor"), factor);
    keys.set(
        &format!("{arch}.rope.scaling.original_context_length"),
        4096u32,
    );
}

/// `enum llama_ftype`: what programs print as the model's type.
fn file_type(types: Types) -> u32 {
    use GgmlType::*;
    match types.experts {
        F32 => 0,
        F16 => 1,
        Q4_0 => 2,
        Q4_1 => 3,
        Q8_0 => 7,
        Q5_0 => 8,
        Q5_1 => 9,
        Q2_K => 10,
        Q3_K => 11,
        Q4_K => 14,
        Q5_K => 16,
        Q6_K => 18,
        IQ4_NL => 25,
        IQ4_XS => 30,
        BF16 => 32,
        MXFP4 => 38,
        _ => 1024,
    }
}
