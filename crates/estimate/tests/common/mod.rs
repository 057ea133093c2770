//! Configs of published models, with the keys that matter, and a small model file.
#![allow(dead_code)]

use std::path::Path;

use estimate::Shape;
use gguf::{GgmlType, Model};

pub fn shape(name: &str) -> Shape {
    Shape::from_config_json(&config(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub fn config(name: &str) -> String {
    let found = CONFIGS.iter().find(|(known, _)| *known == name);
    found
        .unwrap_or_else(|| panic!("no config {name}"))
        .1
        .to_owned()
}

/// A Llama of two layers, as a header.
pub fn llama_file() -> Model {
    let mut file = testing::gguf_bytes::Builder::default()
        .str("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 256)
        .u32("llama.embedding_length", 64)
        .u32("llama.feed_forward_length", 128)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .u32("llama.vocab_size", 96)
        .tensor("token_embd.weight", GgmlType::F16, &[64, 96])
        .tensor("output_norm.weight", GgmlType::F32, &[64])
        .tensor("output.weight", GgmlType::Q8_0, &[64, 96]);
    for layer in 0..2 {
        let name = |base: &str| format!("blk.{layer}.{base}.weight");
        file = file
            .tensor(&name("attn_norm"), GgmlType::F32, &[64])
            .tensor(&name("attn_q"), GgmlType::Q4_0, &[64, 64])
            .tensor(&name("attn_k"), GgmlType::Q4_0, &[64, 32])
            .tensor(&name("attn_v"), GgmlType::Q4_0, &[64, 32])
            .tensor(&name("attn_output"), GgmlType::Q4_0, &[64, 64])
            .tensor(&name("ffn_norm"), GgmlType::F32, &[64])
            .tensor(&name("ffn_gate"), GgmlType::Q4_0, &[64, 128])
            .tensor(&name("ffn_up"), GgmlType::Q4_0, &[64, 128])
            .tensor(&name("ffn_down"), GgmlType::Q4_0, &[128, 64]);
    }
    Model::from_bytes(Path::new("small.gguf"), &file.build()).unwrap()
}

const CONFIGS: &[(&str, &str)] = &[
    (
        "llama-2-7b",
        r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
        "max_position_embeddings": 4096, "tie_word_embeddings": false}"#,
    ),
    (
        "llama-3-8b",
        r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 8192, "tie_word_embeddings": false}"#,
    ),
    (
        "llama-3.2-1b",
        r#"{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": true}"#,
    ),
    (
        "llama-3.1-405b",
        r#"{"model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256}"#,
    ),
    (
        "mistral-7b",
        r#"{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 32000}"#,
    ),
    (
        "mixtral-8x7b",
        r#"{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": null, "vocab_size": 32000}"#,
    ),
    (
        "qwen2.5-7b",
        r#"{"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "sliding_window": 131072,
        "max_window_layers": 28, "use_sliding_window": false, "tie_word_embeddings": false, "vocab_size": 152064}"#,
    ),
    (
        "qwen2.5-72b",
        r#"{"model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064}"#,
    ),
    (
        "qwen1.5-moe-a2.7b",
        r#"{"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1,
        "tie_word_embeddings": false, "vocab_size": 151936}"#,
    ),
    (
        "qwen3-8b",
        r#"{"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "attention_bias": false,
        "tie_word_embeddings": false, "vocab_size": 151936}"#,
    ),
    (
        "qwen3-30b-a3b",
        r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": [],
        "decoder_sparse_step": 1, "tie_word_embeddings": false, "vocab_size": 151936}"#,
    ),
    (
        "gemma-2-9b",
        r#"{"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 4096,
        "vocab_size": 256000}"#,
    ),
    (
        "gemma-3-1b",
        r#"{"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
        "sliding_window_pattern": 6, "vocab_size": 262144}"#,
    ),
    (
        "phi-3-mini",
        r#"{"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 2047,
        "tie_word_embeddings": false, "vocab_size": 32064}"#,
    ),
    (
        "gpt2",
        r#"{"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "n_ctx": 1024, "vocab_size": 50257}"#,
    ),
    (
        "gpt2-medium",
        r#"{"model_type": "gpt2", "n_embd": 1024, "n_head": 16, "n_layer": 24, "n_positions": 1024,
        "vocab_size": 50257}"#,
    ),
    (
        "opt-13b",
        r#"{"model_type": "opt", "hidden_size": 5120, "ffn_dim": 20480, "num_hidden_layers": 40,
        "num_attention_heads": 40, "max_position_embeddings": 2048, "word_embed_proj_dim": 5120,
        "do_layer_norm_before": true, "vocab_size": 50272}"#,
    ),
    (
        "opt-350m",
        r#"{"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
        "do_layer_norm_before": false, "vocab_size": 50272}"#,
    ),
    (
        "gpt-neox-20b",
        r#"{"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
        "num_attention_heads": 64, "tie_word_embeddings": false, "vocab_size": 50432}"#,
    ),
    (
        "falcon-7b",
        r#"{"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
        "multi_query": true, "parallel_attn": true, "new_decoder_architecture": false, "bias": false,
        "vocab_size": 65024}"#,
    ),
    (
        "deepseek-v2",
        r#"{"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 60,
        "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 160,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1536,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "group_limited_greedy",
        "vocab_size": 102400}"#,
    ),
    (
        "deepseek-v3",
        r#"{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3, "moe_layer_freq": 1, "topk_method": "noaux_tc", "vocab_size": 129280}"#,
    ),
    (
        "gpt-oss-20b",
        r#"{"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "attention_bias": true,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
        "tie_word_embeddings": false, "vocab_size": 201088}"#,
    ),
    (
        "gpt-oss-120b",
        r#"{"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "attention_bias": true,
        "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
        "tie_word_embeddings": false, "vocab_size": 201088}"#,
    ),
    (
        "mamba-130m",
        r#"{"model_type": "mamba", "hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 24,
        "state_size": 16, "conv_kernel": 4, "expand": 2, "time_step_rank": 48, "use_bias": false,
        "use_conv_bias": true, "vocab_size": 50280}"#,
    ),
    (
        "mamba-2.8b",
        r#"{"model_type": "mamba", "d_model": 2560, "n_layer": 64, "vocab_size": 50280}"#,
    ),
];
