//! What each architecture of Hugging Face's `transformers` has in a layer, and by which keys
//! its `config.json` says so. Defaults are those of its configuration classes.

use super::config::Config;
use super::decoder::{Decoder, ExpertsPlan, LayerPlan, Mamba};
use super::{Attention, Latent, MAX_LAYERS, Shape};
use crate::error::{Error, Result};

/// The `model_type`s that [`Shape::from_config_json`] knows.
pub const KNOWN_ARCHITECTURES: &[&str] = &[
    "deepseek_v2",
    "deepseek_v3",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "llama",
    "mamba",
    "mistral",
    "mixtral",
    "opt",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
];

impl Shape {
    /// The shape that the text of a `config.json` describes.
    pub fn from_config_json(text: &str) -> Result<Shape> {
        let config = Config::parse(text)?;
        let decoder = match config.architecture.as_str() {
            "llama" => gated(&config, &llama(&config))?,
            "mistral" => gated(
                &config,
                &Gated {
                    windows: Windows::All,
                    ..Gated::default()
                },
            )?,
            "mixtral" => mixtral(&config)?,
            "qwen2" => gated(&config, &qwen2())?,
            "qwen3" => gated(&config, &qwen3(&config))?,
            "qwen2_moe" => qwen_moe(&config, &qwen2())?,
            "qwen3_moe" => qwen_moe(&config, &qwen3(&config))?,
            "gemma" => gated(
                &config,
                &Gated {
                    tied: true,
                    ..Gated::default()
                },
            )?,
            "gemma2" => gated(&config, &gemma(false, Windows::FullLast(2)))?,
            "gemma3_text" | "gemma3" => gated(&config, &gemma(true, Windows::FullLast(6)))?,
            "phi3" => gated(
                &config,
                &Gated {
                    windows: Windows::All,
                    ..Gated::default()
                },
            )?,
            "gpt2" => gpt2(&config)?,
            "opt" => opt(&config)?,
            "gpt_neox" => gpt_neox(&config)?,
            "falcon" | "RefinedWeb" | "RefinedWebModel" => falcon(&config)?,
            "deepseek_v2" => deepseek(&config, false)?,
            "deepseek_v3" => deepseek(&config, true)?,
            "gpt_oss" => gpt_oss(&config)?,
            "mamba" => mamba(&config)?,
            other => return Err(Error::UnknownArchitecture(other.to_owned())),
        };
        decoder.shape()
    }
}

/// The family of Llama: RMS norms, a gated feed-forward network, grouped queries.
#[derive(Debug, Clone, Copy, Default)]
struct Gated {
    tied: bool,
    qkv_bias: bool,
    output_bias: bool,
    ffn_bias: bool,
    head_norms: bool,
    /// Norms behind attention and network as well as before them.
    four_norms: bool,
    windows: Windows,
}

/// Which layers have the window that the config gives.
#[derive(Debug, Clone, Copy, Default)]
enum Windows {
    #[default]
    None,
    All,
    /// Of so many layers, all but the last.
    FullLast(u64),
    /// From layer `max_window_layers` on, and only if `use_sliding_window` says so.
    Qwen,
}

fn llama(config: &Config) -> Gated {
    let bias = config.flag("attention_bias", false);
    Gated {
        qkv_bias: bias,
        output_bias: bias,
        ffn_bias: config.flag("mlp_bias", false),
        ..Gated::default()
    }
}

fn qwen2() -> Gated {
    Gated {
        qkv_bias: true,
        windows: Windows::Qwen,
        ..Gated::default()
    }
}

fn qwen3(config: &Config) -> Gated {
    let bias = config.flag("attention_bias", false);
    Gated {
        qkv_bias: bias,
        output_bias: bias,
        head_norms: true,
        windows: Windows::Qwen,
        ..Gated::default()
    }
}

fn gemma(head_norms: bool, windows: Windows) -> Gated {
    Gated {
        tied: true,
        head_norms,
        four_norms: true,
        windows,
        ..Gated::default()
    }
}

fn layer_count(config: &Config, keys: &[&'static str]) -> Result<u64> {
    let layers = config.count(keys)?;
    if layers > MAX_LAYERS {
        return Err(Error::BadKey {
            key: keys.first().copied().unwrap_or("?").to_owned(),
            value: layers.to_string(),
            wanted: "no model has more than 10000 layers",
        });
    }
    Ok(layers)
}

/// Attention of `heads` over `hidden`, with what the config says of KV heads and head length.
fn grouped(config: &Config, hidden: u64) -> Result<Attention> {
    let heads = config.count(&["num_attention_heads"])?;
    let kv_heads = match config.maybe("num_key_value_heads")? {
        Some(0) | None => heads,
        Some(kv_heads) => kv_heads,
    };
    if kv_heads > heads {
        return Err(Error::BadKey {
            key: "num_key_value_heads".to_owned(),
            value: kv_heads.to_string(),
            wanted: "it must not be larger than num_attention_heads",
        });
    }
    let length = match config.maybe("head_dim")? {
        Some(0) | None => head_length(hidden, heads)?,
        Some(length) => length,
    };
    Ok(attention(heads, kv_heads, length))
}

fn head_length(hidden: u64, heads: u64) -> Result<u64> {
    match hidden / heads {
        0 => Err(Error::BadKey {
            key: "num_attention_heads".to_owned(),
            value: heads.to_string(),
            wanted: "there are more heads than hidden numbers",
        }),
        length => Ok(length),
    }
}

fn attention(heads: u64, kv_heads: u64, length: u64) -> Attention {
    Attention {
        heads,
        kv_heads,
        key_length: length,
        value_length: length,
        window_tokens: None,
        latent: None,
        own_cache: true,
    }
}

/// The window of each layer.
fn windows(config: &Config, layers: u64, rule: Windows) -> Result<Vec<Option<u64>>> {
    let window = config.maybe("sliding_window")?.filter(|&window| window > 0);
    if let Some(types) = config.texts("layer_types") {
        let at = |layer: u64| types.get(layer as usize).copied().unwrap_or("");
        return Ok((0..layers)
            .map(|layer| window.filter(|_| at(layer) == "sliding_attention"))
            .collect());
    }
    let period = config.maybe("sliding_window_pattern")?;
    let first = config.maybe("max_window_layers")?.unwrap_or(layers);
    let is_windowed = |layer: u64| match rule {
        Windows::None => false,
        Windows::All => true,
        Windows::FullLast(usual) => {
            let period = period.unwrap_or(usual).max(1);
            !(layer + 1).is_multiple_of(period)
        }
        Windows::Qwen => config.flag("use_sliding_window", false) && layer >= first,
    };
    Ok((0..layers)
        .map(|layer| window.filter(|_| is_windowed(layer)))
        .collect())
}

fn gated(config: &Config, family: &Gated) -> Result<Decoder> {
    let hidden = config.count(&["hidden_size"])?;
    let layers = layer_count(config, &["num_hidden_layers"])?;
    let ffn = config.count(&["intermediate_size"])?;
    let attention = grouped(config, hidden)?;
    let layers = windows(config, layers, family.windows)?
        .into_iter()
        .map(|window_tokens| LayerPlan {
            attention: Some(Attention {
                window_tokens,
                ..attention
            }),
            qkv_bias: family.qkv_bias,
            output_bias: family.output_bias,
            head_norms: family.head_norms,
            norms: if family.four_norms { 4 } else { 2 },
            ffn,
            gated: true,
            ffn_bias: family.ffn_bias,
            ..LayerPlan::default()
        })
        .collect();
    Ok(Decoder {
        tied: config.flag("tie_word_embeddings", family.tied),
        layers,
        ..common(config, hidden, 1)?
    })
}

/// What every family says by the same keys.
fn common(config: &Config, hidden: u64, norm_parameters: u64) -> Result<Decoder> {
    Ok(Decoder {
        architecture: config.architecture.clone(),
        name: config.name(),
        hidden,
        vocabulary: config.count(&["vocab_size"])?,
        context_length: config.maybe("max_position_embeddings")?,
        norm_parameters,
        final_norm: true,
        ..Decoder::default()
    })
}

fn used_of(config: &Config, count: u64) -> Result<u64> {
    let used = config.count(&["num_experts_per_tok"])?;
    if used > count {
        return Err(Error::BadKey {
            key: "num_experts_per_tok".to_owned(),
            value: used.to_string(),
            wanted: "it must not be larger than the number of experts",
        });
    }
    Ok(used)
}

fn mixtral(config: &Config) -> Result<Decoder> {
    let mut decoder = gated(
        config,
        &Gated {
            windows: Windows::All,
            ..Gated::default()
        },
    )?;
    let count = config.count(&["num_local_experts"])?;
    let used = used_of(config, count)?;
    for plan in &mut decoder.layers {
        plan.experts = Some(ExpertsPlan {
            count,
            used,
            ffn: plan.ffn,
            ..ExpertsPlan::default()
        });
        plan.ffn = 0;
    }
    Ok(decoder)
}

fn qwen_moe(config: &Config, family: &Gated) -> Result<Decoder> {
    let mut decoder = gated(config, family)?;
    let count = config.count(&["num_experts"])?;
    let experts = ExpertsPlan {
        count,
        used: used_of(config, count)?,
        ffn: config.count(&["moe_intermediate_size"])?,
        shared_ffn: config
            .maybe("shared_expert_intermediate_size")?
            .unwrap_or(0),
        shared_gate: true,
        ..ExpertsPlan::default()
    };
    let step = config.maybe("decoder_sparse_step")?.unwrap_or(1).max(1);
    let dense = config.numbers("mlp_only_layers");
    for (layer, plan) in (0u64..).zip(&mut decoder.layers) {
        if !dense.contains(&layer) && (layer + 1).is_multiple_of(step) {
            plan.experts = Some(experts);
            plan.ffn = 0;
        }
    }
    Ok(decoder)
}

/// Layers of the older kind: layer norms and biases everywhere, up and down.
fn plain_layers(
    layers: u64,
    attention: Attention,
    ffn: u64,
    bias: bool,
    norms: u64,
) -> Vec<LayerPlan> {
    let plan = LayerPlan {
        attention: Some(attention),
        qkv_bias: bias,
        output_bias: bias,
        norms,
        ffn,
        ffn_bias: bias,
        ..LayerPlan::default()
    };
    vec![plan; layers as usize]
}

fn gpt2(config: &Config) -> Result<Decoder> {
    let hidden = config.count(&["n_embd", "hidden_size"])?;
    let heads = config.count(&["n_head", "num_attention_heads"])?;
    let layers = layer_count(config, &["n_layer", "num_hidden_layers"])?;
    let positions = config.count(&["n_positions", "n_ctx"])?;
    let ffn = config.maybe("n_inner")?.unwrap_or(hidden * 4);
    let attention = attention(heads, heads, head_length(hidden, heads)?);
    Ok(Decoder {
        tied: config.flag("tie_word_embeddings", true),
        positions,
        context_length: Some(positions),
        layers: plain_layers(layers, attention, ffn, true, 2),
        ..common(config, hidden, 2)?
    })
}

fn opt(config: &Config) -> Result<Decoder> {
    let hidden = config.count(&["hidden_size"])?;
    let heads = config.count(&["num_attention_heads"])?;
    let layers = layer_count(config, &["num_hidden_layers"])?;
    let ffn = config.count(&["ffn_dim"])?;
    let bias = config.flag("enable_bias", true);
    let attention = attention(heads, heads, head_length(hidden, heads)?);
    let norm_before = config.flag("do_layer_norm_before", true);
    Ok(Decoder {
        tied: config.flag("tie_word_embeddings", true),
        // Two more than positions: the padding that OPT's embedding is offset by.
        positions: config
            .count(&["max_position_embeddings"])?
            .saturating_add(2),
        embedding_width: config.maybe("word_embed_proj_dim")?,
        final_norm: norm_before && !config.flag("_remove_final_layer_norm", false),
        layers: plain_layers(layers, attention, ffn, bias, 2),
        ..common(config, hidden, 2)?
    })
}

fn gpt_neox(config: &Config) -> Result<Decoder> {
    let hidden = config.count(&["hidden_size"])?;
    let heads = config.count(&["num_attention_heads"])?;
    let layers = layer_count(config, &["num_hidden_layers"])?;
    let ffn = config.count(&["intermediate_size"])?;
    let attention = attention(heads, heads, head_length(hidden, heads)?);
    let mut plans = plain_layers(layers, attention, ffn, true, 2);
    let bias = config.flag("attention_bias", true);
    for plan in &mut plans {
        (plan.qkv_bias, plan.output_bias) = (bias, bias);
    }
    Ok(Decoder {
        tied: config.flag("tie_word_embeddings", false),
        layers: plans,
        ..common(config, hidden, 2)?
    })
}

fn falcon(config: &Config) -> Result<Decoder> {
    let hidden = config.count(&["hidden_size"])?;
    let heads = config.count(&["num_attention_heads", "n_head"])?;
    let layers = layer_count(config, &["num_hidden_layers", "n_layer"])?;
    let is_new = config.flag("new_decoder_architecture", config.has("n_head_kv"));
    let kv_heads = if is_new {
        config.count(&["num_kv_heads", "n_head_kv"])?
    } else if config.flag("multi_query", true) {
        1
    } else {
        heads
    };
    let attention = attention(heads, kv_heads, head_length(hidden, heads)?);
    let ffn = config.maybe("ffn_hidden_size")?.unwrap_or(hidden * 4);
    let is_parallel = config.flag("parallel_attn", true);
    // In parallel, attention and network share a norm, except in the new architecture.
    let norms = if is_parallel && !is_new { 1 } else { 2 };
    let norms = config.maybe("num_ln_in_parallel_attn")?.unwrap_or(norms);
    let bias = config.flag("bias", false);
    Ok(Decoder {
        tied: config.flag("tie_word_embeddings", true),
        layers: plain_layers(layers, attention, ffn, bias, norms),
        ..common(config, hidden, 2)?
    })
}

fn deepseek(config: &Config, is_v3: bool) -> Result<Decoder> {
    let hidden = config.count(&["hidden_size"])?;
    let layers = layer_count(config, &["num_hidden_layers"])?;
    let heads = config.count(&["num_attention_heads"])?;
    let plain_length = config.count(&["qk_nope_head_dim"])?;
    let rope_length = config.count(&["qk_rope_head_dim"])?;
    let attention = Attention {
        heads,
        kv_heads: heads,
        key_length: plain_length.saturating_add(rope_length),
        value_length: config.count(&["v_head_dim"])?,
        window_tokens: None,
        latent: Some(Latent {
            kv_rank: config.count(&["kv_lora_rank"])?,
            rope_length,
            query_rank: config.maybe("q_lora_rank")?.filter(|&rank| rank > 0),
        }),
        own_cache: true,
    };
    let ffn = config.count(&["intermediate_size"])?;
    let experts = match config.maybe("n_routed_experts")? {
        Some(count) if count > 0 => {
            let expert_ffn = config.count(&["moe_intermediate_size"])?;
            let shared = config.maybe("n_shared_experts")?.unwrap_or(0);
            let has_correction = config
                .text("topk_method")
                .map_or(is_v3, |m| m == "noaux_tc");
            Some(ExpertsPlan {
                count,
                used: used_of(config, count)?,
                ffn: expert_ffn,
                shared_ffn: shared.saturating_mul(expert_ffn),
                router_bias: has_correction,
                ..ExpertsPlan::default()
            })
        }
        _ => None,
    };
    let first = config.maybe("first_k_dense_replace")?.unwrap_or(0);
    let every = config.maybe("moe_layer_freq")?.unwrap_or(1).max(1);
    let bias = config.flag("attention_bias", false);
    let layers = (0..layers)
        .map(|layer| {
            let experts = experts.filter(|_| layer >= first && layer.is_multiple_of(every));
            LayerPlan {
                attention: Some(attention),
                qkv_bias: bias,
                output_bias: bias,
                norms: 2,
                ffn: if experts.is_some() { 0 } else { ffn },
                gated: true,
                experts,
                ..LayerPlan::default()
            }
        })
        .collect();
    Ok(Decoder {
        tied: config.flag("tie_word_embeddings", false),
        layers,
        ..common(config, hidden, 1)?
    })
}

fn gpt_oss(config: &Config) -> Result<Decoder> {
    let family = Gated {
        qkv_bias: config.flag("attention_bias", true),
        output_bias: config.flag("attention_bias", true),
        windows: Windows::FullLast(2),
        ..Gated::default()
    };
    let mut decoder = gated(config, &family)?;
    let count = config.count(&["num_local_experts", "num_experts"])?;
    let used = used_of(config, count)?;
    for plan in &mut decoder.layers {
        plan.sinks = true;
        plan.experts = Some(ExpertsPlan {
            count,
            used,
            ffn: plan.ffn,
            bias: true,
            router_bias: true,
            ..ExpertsPlan::default()
        });
        plan.ffn = 0;
    }
    Ok(decoder)
}

fn mamba(config: &Config) -> Result<Decoder> {
    let hidden = config.count(&["hidden_size", "d_model"])?;
    let layers = layer_count(config, &["num_hidden_layers", "n_layer"])?;
    let inner = match config.maybe("intermediate_size")? {
        Some(inner) if inner > 0 => inner,
        _ => hidden * config.maybe("expand")?.unwrap_or(2).clamp(1, 1 << 10),
    };
    let time_rank = match config.text("time_step_rank") {
        Some("auto") => hidden.div_ceil(16),
        _ => config
            .maybe("time_step_rank")?
            .unwrap_or(hidden.div_ceil(16)),
    };
    let plan = LayerPlan {
        norms: 1,
        mamba: Some(Mamba {
            inner,
            state: config.maybe("state_size")?.unwrap_or(16),
            kernel: config.maybe("conv_kernel")?.unwrap_or(4),
            time_rank,
            convolution_bias: config.flag("use_conv_bias", true),
            projection_bias: config.flag("use_bias", false),
        }),
        ..LayerPlan::default()
    };
    Ok(Decoder {
        tied: config.flag("tie_word_embeddings", true),
        layers: vec![plan; layers as usize],
        ..common(config, hidden, 1)?
    })
}
