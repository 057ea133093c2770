//! A shape from a GGUF file: its header's numbers, and the sums of `gguf::summary`.

use gguf::{GgmlType, Model, Question, Summary};

use super::{
    Attention, Experts, Latent, Layer, MAX_LAYERS, Part, PartSum, Recurrent, Shape, Stored,
};
use crate::checked;
use crate::error::{Error, Result};

impl Shape {
    /// The shape of a model file. Layers that predict further tokens are left out of
    /// `layers`; their weights are in `parts`, and never read.
    pub fn from_model(model: &Model) -> Result<Shape> {
        let hyper = model.hyper();
        // With f32 a layer's cache is four times its numbers: what has none has no cache.
        let question = Question {
            context_tokens: Some(1),
            kv_type: GgmlType::F32,
            batch: 1,
        };
        let summary = Summary::new(model, &question);
        if hyper.layer_count == 0 {
            return Err(Error::Lacks("number of layers"));
        }
        if hyper.layer_count > MAX_LAYERS {
            return Err(Error::Absurd {
                what: "the number of layers",
                value: hyper.layer_count.to_string(),
                wanted: "no model has more than 10000",
            });
        }
        let hidden = checked::count("the embedding length", hyper.embedding_length)?;
        let main_layers = hyper.layer_count.saturating_sub(hyper.nextn_layers);
        let states = States::of(model);
        let layers = (0..main_layers as u32)
            .map(|layer| {
                let sum = summary.layers.iter().find(|sum| sum.layer == layer);
                let own_cache = sum.is_some_and(|sum| sum.kv_bytes_per_token > 0);
                layer_of(model, layer, own_cache, &states)
            })
            .collect::<Result<Vec<Layer>>>()?;
        let mut parts: Vec<PartSum> = Vec::new();
        for sum in &summary.components {
            let part = part_of(sum.component);
            let added = PartSum {
                part,
                parameters: sum.parameters,
                active_parameters: sum.active_parameters,
                stored: Some(Stored {
                    bytes: sum.size_bytes,
                    bytes_read_per_token: sum.bytes_read_per_token,
                }),
            };
            match parts.iter_mut().find(|known| known.part == part) {
                Some(known) => *known = joined(*known, added)?,
                None => parts.push(added),
            }
        }
        Shape {
            architecture: summary.architecture,
            name: summary.name,
            hidden,
            vocabulary: summary.vocabulary.unwrap_or(0),
            context_length: summary.context_length,
            tied_embeddings: summary.tied_embeddings,
            parameters: 0,
            active_parameters: 0,
            parts,
            layers,
        }
        .finished()
    }
}

fn joined(a: PartSum, b: PartSum) -> Result<PartSum> {
    let what = "the size of a part";
    let stored = match (a.stored, b.stored) {
        (Some(a), Some(b)) => Some(Stored {
            bytes: checked::sum(what, [a.bytes, b.bytes])?,
            bytes_read_per_token: checked::sum(
                what,
                [a.bytes_read_per_token, b.bytes_read_per_token],
            )?,
        }),
        (a, b) => a.or(b),
    };
    Ok(PartSum {
        part: a.part,
        parameters: checked::sum(what, [a.parameters, b.parameters])?,
        active_parameters: checked::sum(what, [a.active_parameters, b.active_parameters])?,
        stored,
    })
}

fn part_of(component: &str) -> Part {
    match component {
        "embedding" => Part::Embedding,
        "attention" => Part::Attention,
        "norm" | "rope" => Part::Norm,
        "router" => Part::Router,
        "expert" => Part::Experts,
        "shared_expert" | "ffn" => Part::Ffn,
        "ssm" => Part::Recurrent,
        "output" => Part::Output,
        _ => Part::Other,
    }
}

fn layer_of(model: &Model, layer: u32, own_cache: bool, states: &States) -> Result<Layer> {
    let hyper = model.hyper();
    let recurrent = states.of_layer(model, layer)?;
    let has = |base: &str| {
        let name = format!("blk.{layer}.{base}.weight");
        model.tensor(&name).is_some()
    };
    let attends = own_cache || (recurrent.is_none() && (has("attn_q") || has("attn_qkv")));
    let latent = match hyper.kv_lora_rank {
        Some(kv_rank) if hyper.is_mla() => Some(Latent {
            kv_rank,
            rope_length: hyper.key_length(layer).saturating_sub(kv_rank),
            query_rank: metadata_number(model, "attention.q_lora_rank"),
        }),
        _ => None,
    };
    let attention = attends
        .then(|| {
            Ok(Attention {
                heads: checked::count("the number of heads", hyper.head_count(layer))?,
                kv_heads: checked::count_or_zero("the number of KV heads", hyper.head_count_kv(layer))?,
                key_length: checked::count("the key length", hyper.key_length(layer))?,
                value_length: checked::count("the value length", hyper.value_length(layer))?,
                window_tokens: hyper.window(layer),
                latent,
                own_cache,
            })
        })
        .transpose()?;
    let experts = (hyper.expert_count > 0 && has("ffn_gate_inp")).then(|| {
        let ffn = hyper
            .expert_feed_forward_length(layer)
            .or(hyper.feed_forward_length(layer))
            .unwrap_or(0);
        let shared = model.tensor(&format!("blk.{layer}.ffn_up_shexp.weight"));
        Experts {
            count: hyper.expert_count,
            used: hyper.expert_used_count(layer).min(hyper.expert_count),
            ffn,
            shared_ffn: shared.map_or(0, |tensor| tensor.ne[1]),
        }
    });
    let is_dense = has("ffn_up") || has("ffn_down") || has("ffn_gate");
    Ok(Layer {
        attention,
        recurrent,
        ffn: hyper
            .feed_forward_length(layer)
            .filter(|_| is_dense)
            .unwrap_or(0),
        experts,
    })
}

fn metadata_number(model: &Model, key: &str) -> Option<u64> {
    let architecture = &model.hyper().architecture;
    model.metadata().u64(&format!("{architecture}.{key}"))
}

/// What recurrent layers keep, as llama.cpp sizes it (`n_embd_r`, `n_embd_s`).
struct States {
    convolution_values: u64,
    state_values: u64,
}

impl States {
    fn of(model: &Model) -> States {
        let number = |key| metadata_number(model, key).unwrap_or(0);
        let hidden = model.hyper().embedding_length;
        let (inner, state) = (number("ssm.inner_size"), number("ssm.state_size"));
        let wkv_head = number("wkv.head_size");
        let short_convolution = number("shortconv.l_cache");
        if wkv_head > 0 {
            let shifts = metadata_number(model, "token_shift_count").unwrap_or(2);
            return States {
                convolution_values: hidden.saturating_mul(shifts),
                state_values: hidden.saturating_mul(wkv_head),
            };
        }
        if short_convolution > 0 {
            return States {
                convolution_values: hidden.saturating_mul(short_convolution - 1),
                state_values: 0,
            };
        }
        let groups = number("ssm.group_count");
        let channels = groups
            .saturating_mul(state)
            .saturating_mul(2)
            .saturating_add(inner);
        States {
            convolution_values: number("ssm.conv_kernel")
                .saturating_sub(1)
                .saturating_mul(channels),
            state_values: inner.saturating_mul(state),
        }
    }

    fn of_layer(&self, model: &Model, layer: u32) -> Result<Option<Recurrent>> {
        let marks = ["ssm_out", "ssm_in", "time_mix_key", "shortconv.conv"];
        let is_recurrent = marks
            .iter()
            .any(|mark| model.tensor(&format!("blk.{layer}.{mark}.weight")).is_some());
        if !is_recurrent {
            return Ok(None);
        }
        Ok(Some(Recurrent {
            convolution_values: checked::count_or_zero("the convolution's state", self.convolution_values)?,
            state_values: checked::count_or_zero("the recurrent state", self.state_values)?,
        }))
    }
}
