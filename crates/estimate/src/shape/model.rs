//! A shape from a GGUF file: its header's numbers, and the sums of `gguf::summary`.

use std::collections::BTreeMap;

use gguf::{Component, GgmlType, Model, Question, Summary};

use super::{
    Attention, Experts, Latent, Layer, MAX_LAYERS, Matrix, Part, PartSum, Recurrent, Shape, Stored,
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
        let contents = contents(model);
        let layers = (0..main_layers as u32)
            .map(|layer| {
                let sum = summary.layers.iter().find(|sum| sum.layer == layer);
                let own_cache = sum.is_some_and(|sum| sum.kv_bytes_per_token > 0);
                let content = contents.get(&layer).copied().unwrap_or_default();
                layer_of(model, layer, own_cache, content, &states)
            })
            .collect::<Result<Vec<Layer>>>()?;
        let mut matrices = matrices(model);
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
                    matrices: matrices.remove(&part).unwrap_or_default(),
                }),
            };
            match parts.iter_mut().find(|known| known.part == part) {
                Some(known) => join(known, added)?,
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

fn join(known: &mut PartSum, other: PartSum) -> Result<()> {
    let add = |a: &mut u64, b: u64| -> Result<()> {
        *a = checked::sum("the size of a part", [*a, b])?;
        Ok(())
    };
    add(&mut known.parameters, other.parameters)?;
    add(&mut known.active_parameters, other.active_parameters)?;
    if let (Some(known), Some(other)) = (&mut known.stored, other.stored) {
        add(&mut known.bytes, other.bytes)?;
        add(&mut known.bytes_read_per_token, other.bytes_read_per_token)?;
        // Of all components of a part, with the first of them.
        known.matrices.extend(other.matrices);
    }
    Ok(())
}

/// Parameters of each part, by matrix.
fn matrices(model: &Model) -> BTreeMap<Part, BTreeMap<Matrix, u64>> {
    let mut found: BTreeMap<Part, BTreeMap<Matrix, u64>> = BTreeMap::new();
    // Vectors are added and multiplied, no products.
    for tensor in model.tensors().iter().filter(|tensor| tensor.n_dims > 1) {
        let matrix = Matrix {
            columns: tensor.ne[0],
            rows: tensor.ne[1],
            ty: tensor.ty.name(),
        };
        let part = part_of(tensor.meaning.component.name());
        let of_part = found.entry(part).or_default();
        let parameters = of_part.entry(matrix).or_default();
        *parameters = parameters.saturating_add(tensor.ne.iter().product());
    }
    found
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

/// What the tensors of a layer are for.
#[derive(Debug, Clone, Copy, Default)]
struct Content {
    queries: bool,
    recurrent: bool,
    ffn: bool,
    experts: bool,
    gate: bool,
    /// Rows of the matrix that goes up, which may have the gate in it (Phi-3).
    up_rows: u64,
    shared_ffn: u64,
}

fn contents(model: &Model) -> BTreeMap<u32, Content> {
    let mut contents: BTreeMap<u32, Content> = BTreeMap::new();
    for tensor in model.tensors().iter().filter(|t| !t.meaning.in_encoder) {
        let Some(layer) = tensor.meaning.layer else {
            continue;
        };
        let content = contents.entry(layer).or_default();
        let role = &*tensor.meaning.role;
        match tensor.meaning.component {
            Component::Attention => {
                content.queries |= matches!(role, "q" | "q_a" | "qkv");
                continue;
            }
            Component::Ssm => content.recurrent = true,
            Component::Ffn => content.ffn = true,
            Component::Expert => content.experts = true,
            Component::SharedExpert if role == "up" => content.shared_ffn = tensor.ne[1],
            _ => continue,
        }
        content.gate |= matches!(role, "gate" | "gate_up");
        if tensor.meaning.component == Component::Ffn && role == "up" {
            content.up_rows = content.up_rows.max(tensor.ne[1]);
        }
    }
    contents
}

fn layer_of(
    model: &Model,
    layer: u32,
    own_cache: bool,
    content: Content,
    states: &States,
) -> Result<Layer> {
    let hyper = model.hyper();
    let recurrent = content.recurrent.then(|| states.recurrent()).transpose()?;
    // A recurrent layer of a hybrid may have merged projections and no cache.
    let attends = own_cache || (content.queries && !content.recurrent);
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
            let kv_heads = hyper.head_count_kv(layer);
            Ok(Attention {
                heads: checked::count("the number of heads", hyper.head_count(layer))?,
                kv_heads: checked::count_or_zero("the number of KV heads", kv_heads)?,
                key_length: checked::count("the key length", hyper.key_length(layer))?,
                value_length: checked::count("the value length", hyper.value_length(layer))?,
                window_tokens: hyper.window(layer),
                latent,
                own_cache,
            })
        })
        .transpose()?;
    let ffn = hyper.feed_forward_length(layer);
    let experts = (content.experts && hyper.expert_count > 0).then(|| Experts {
        count: hyper.expert_count,
        used: hyper.expert_used_count(layer).min(hyper.expert_count),
        ffn: hyper.expert_feed_forward_length(layer).or(ffn).unwrap_or(0),
        shared_ffn: content.shared_ffn,
    });
    let ffn = ffn.filter(|_| content.ffn).unwrap_or(0);
    let is_fused = ffn > 0 && Some(content.up_rows) == ffn.checked_mul(2);
    Ok(Layer {
        attention,
        recurrent,
        ffn,
        gated: content.gate || is_fused,
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

    fn recurrent(&self) -> Result<Recurrent> {
        let convolution = self.convolution_values;
        Ok(Recurrent {
            convolution_values: checked::count_or_zero("the convolution's state", convolution)?,
            state_values: checked::count_or_zero("the recurrent state", self.state_values)?,
        })
    }
}
