//! FLOPs, bytes and units of work of a prompt and of a step of decoding, stage by stage.
//!
//! The model of one pass through the network, for `batch` sequences that each bring
//! `new_tokens` behind `context_tokens` that are in the cache:
//! - every weight is read once, whatever the batch; of the experts the expected number of
//!   different ones, if each token chooses uniformly; of an embedding one row a token;
//! - every cached key and value is read once for each sequence, and new ones are written;
//! - a multiplication and an addition for each active weight and token, and for each pair of a
//!   new token and a token that it sees; the output only for the tokens that ask for it;
//! - activations stay on the chip.

use gguf::summary::experts_union_share;
use serde::Serialize;

use crate::checked;
use crate::error::{Error, Result};
use crate::number::{ComputeType, NumberType};
use crate::shape::{Attention, Matrix, Part, Shape, Weights};

/// One pass through the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pass {
    pub batch: u64,
    /// Tokens of each sequence that this pass evaluates.
    pub new_tokens: u64,
    /// Tokens of each sequence that are in the cache before it.
    pub context_tokens: u64,
    /// Tokens of each sequence whose logits are wanted.
    pub output_tokens: u64,
}

impl Pass {
    /// A token for each sequence of a batch.
    pub fn decode(batch: u64, context_tokens: u64) -> Pass {
        Pass {
            batch,
            new_tokens: 1,
            context_tokens,
            output_tokens: 1,
        }
    }

    /// A prompt for each sequence of a batch, of which the last token has logits.
    pub fn prompt(batch: u64, tokens: u64) -> Pass {
        Pass {
            batch,
            new_tokens: tokens,
            context_tokens: 0,
            output_tokens: 1,
        }
    }

    /// Drafted tokens, all verified at once.
    pub fn verify(batch: u64, context_tokens: u64, tokens: u64) -> Pass {
        Pass {
            batch,
            new_tokens: tokens,
            context_tokens,
            output_tokens: tokens,
        }
    }

    fn checked(self) -> Result<Pass> {
        checked::count("the batch", self.batch)?;
        checked::count("the number of new tokens", self.new_tokens)?;
        checked::count_or_zero("the context", self.context_tokens)?;
        if self.output_tokens > self.new_tokens {
            return Err(Error::Absurd {
                what: "the number of tokens with logits",
                value: self.output_tokens.to_string(),
                wanted: "it must not be larger than that of new tokens",
            });
        }
        Ok(self)
    }
}

/// How weights and cache are stored, and what is multiplied in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Types {
    pub weights: Weights,
    pub kv: NumberType,
    pub compute: ComputeType,
}

impl Types {
    /// Weights of one type, multiplied as that type is.
    pub fn of(weights: NumberType, kv: NumberType) -> Types {
        Types {
            weights: Weights::All(weights),
            kv,
            compute: weights.compute_type(),
        }
    }

    /// Weights as the file has them, widened to 16 bits.
    pub fn stored(kv: NumberType) -> Types {
        Types {
            weights: Weights::AsStored,
            kv,
            compute: ComputeType::Fp16,
        }
    }
}

/// What a part of a pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Projections of queries, keys, values and output.
    Attention,
    /// Scores and sums over the cache, and its traffic.
    Cache,
    Recurrent,
    Ffn,
    Experts,
    Output,
    /// Embeddings, norms, routers.
    Other,
}

/// FLOPs and bytes of one stage, all layers together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Work {
    pub stage: Stage,
    pub flops: f64,
    pub weight_bytes: f64,
    pub cache_bytes: f64,
    /// What measured rates are multiplied with.
    #[serde(skip)]
    pub units: Units,
}

/// How much of each kind of work there is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Units {
    /// Weights that are multiplied with, by matrix, and the tokens that each is multiplied with.
    pub weights: Vec<(Matrix, f64, f64)>,
    /// Tokens of the pass; of attention, of a sequence.
    pub tokens: f64,
    /// By kind of attention, its layers and the pairs in them of a number of a query and of a
    /// cached key or value, for each token of a sequence.
    pub pairs: Vec<(Attention, f64, f64)>,
    pub batch: f64,
    /// Numbers that small operations write.
    pub elements: f64,
    /// Operations.
    pub nodes: f64,
    /// Logits that are given back.
    pub output_bytes: f64,
}

impl Work {
    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.cache_bytes
    }
}

/// FLOPs and bytes of a pass, stage by stage; stages without any are left out.
pub fn work(shape: &Shape, pass: Pass, types: Types) -> Result<Vec<Work>> {
    let pass = pass.checked()?;
    let tokens = checked::product("the tokens of a pass", &[pass.batch, pass.new_tokens])?;
    let outputs = checked::product("the tokens of a pass", &[pass.batch, pass.output_tokens])?;
    let tokens_f = tokens as f64;
    let mut works = Vec::new();
    let mut push = |stage, flops: f64, weight_bytes: f64, cache_bytes: f64, units: Units| {
        if flops > 0.0 || weight_bytes + cache_bytes > 0.0 {
            works.push(Work {
                stage,
                flops,
                weight_bytes,
                cache_bytes,
                units,
            });
        }
    };
    let read = |part| shape.part(part).bytes_read_per_token(types.weights);
    let active = |part| shape.part(part).active_parameters as f64;
    let flops_of = |part, tokens: f64| 2.0 * active(part) * tokens;
    let multiplied = |part, parameters: f64, tokens: f64| -> Result<Units> {
        let shares = shape.part(part).matrix_shares(types.weights)?;
        let weights = shares
            .into_iter()
            .map(|(matrix, share)| (matrix, parameters * share, tokens));
        Ok(Units {
            weights: weights.collect(),
            tokens,
            ..Units::default()
        })
    };
    // llama.cpp computes the network behind the last attention for those tokens only whose
    // logits are wanted.
    let layers = shape.layers.len().max(1) as f64;
    let shorter_last = |units: Units, outputs: f64| -> Units {
        let of = |share: f64, tokens: Option<f64>| {
            let all = units.weights.clone().into_iter();
            all.map(move |(matrix, n, of)| (matrix, n * share, tokens.unwrap_or(of)))
        };
        let before = of((layers - 1.0) / layers, None);
        let weights = before.chain(of(1.0 / layers, Some(outputs))).collect();
        Units { weights, ..units }
    };
    for (stage, part) in [
        (Stage::Attention, Part::Attention),
        (Stage::Recurrent, Part::Recurrent),
        (Stage::Ffn, Part::Ffn),
    ] {
        let mut units = multiplied(part, active(part), tokens_f)?;
        if part == Part::Ffn {
            units = shorter_last(units, outputs as f64);
        }
        push(
            stage,
            flops_of(part, tokens_f),
            read(part)? as f64,
            0.0,
            units,
        );
    }
    let union = experts_union(shape, tokens);
    let of_one = active(Part::Experts);
    push(
        Stage::Experts,
        flops_of(Part::Experts, tokens_f),
        read(Part::Experts)? as f64 * union,
        0.0,
        shorter_last(
            multiplied(Part::Experts, of_one * union, tokens_f / union)?,
            outputs as f64 / experts_union(shape, outputs.max(1)),
        ),
    );
    let (flops, cache_bytes, pairs) = cache_work(shape, pass, types.kv)?;
    let units = Units {
        pairs,
        tokens: pass.new_tokens as f64,
        batch: pass.batch as f64,
        ..Units::default()
    };
    push(Stage::Cache, flops, 0.0, cache_bytes, units);
    let output = output_part(shape);
    let output_bytes = if outputs > 0 {
        read(output)? as f64
    } else {
        0.0
    };
    push(
        Stage::Output,
        flops_of(output, outputs as f64),
        output_bytes,
        0.0,
        Units {
            output_bytes: outputs as f64 * shape.vocabulary as f64 * 4.0,
            ..multiplied(
                output,
                if outputs > 0 { active(output) } else { 0.0 },
                outputs as f64,
            )?
        },
    );
    let mut other_bytes = 0.0;
    for part in [Part::Router, Part::Norm, Part::Other] {
        other_bytes += read(part)? as f64;
    }
    if output != Part::Embedding {
        let whole = shape.part(Part::Embedding).bytes(types.weights)? as f64;
        other_bytes += whole.min(read(Part::Embedding)? as f64 * tokens_f);
    }
    let (nodes, elements) = small_operations(shape);
    let units = Units {
        nodes,
        elements,
        ..multiplied(Part::Router, active(Part::Router), tokens_f)?
    };
    push(
        Stage::Other,
        flops_of(Part::Router, tokens_f),
        other_bytes,
        0.0,
        units,
    );
    let total: f64 = works.iter().map(|work| work.flops + work.bytes()).sum();
    if !total.is_finite() {
        return Err(Error::TooLarge("the work of a pass"));
    }
    Ok(works)
}

/// Operations of a pass, as llama.cpp's graphs have them, and the numbers that those between
/// the products write for each token. A few more or less make little difference: what they
/// cost is small but for small models.
fn small_operations(shape: &Shape) -> (f64, f64) {
    // Norm, its weight, and the sum with what came in: two of each.
    const OF_LAYER: f64 = 6.0;
    // Three projections, two rotations, two writes to the cache, attention, output.
    const OF_ATTENTION: f64 = 9.0;
    // Up, gate, their product, down.
    const OF_FFN: f64 = 4.0;
    // Scores, their softmax, sorting, choosing, normalising; as a network; weighting.
    const OF_EXPERTS: f64 = 14.0;
    const OF_RECURRENT: f64 = 12.0;
    // Embedding, norm, its weight, output.
    const OF_MODEL: f64 = 4.0;
    let hidden = shape.hidden as f64;
    let (mut nodes, mut elements) = (OF_MODEL, 3.0 * hidden);
    // Some have norms behind attention and network, and of queries and keys, as well.
    let layers = shape.layers.len().max(1) as f64;
    let norms = shape.part(Part::Norm).parameters as f64 / hidden / layers;
    let more = (norms - 2.0).clamp(0.0, 8.0) * layers;
    nodes += 2.0 * more;
    elements += 2.0 * more * hidden;
    for layer in &shape.layers {
        nodes += OF_LAYER;
        elements += OF_LAYER * hidden;
        if let Some(attention) = layer.attention {
            nodes += OF_ATTENTION;
            let heads = (attention.heads + 2 * attention.kv_heads) as f64;
            elements += heads * attention.key_length as f64;
        }
        if layer.recurrent.is_some() {
            nodes += OF_RECURRENT;
            elements += OF_RECURRENT * hidden;
        }
        if layer.ffn > 0 {
            nodes += OF_FFN;
            elements += layer.ffn as f64;
        }
        if let Some(experts) = layer.experts {
            // The outputs of those that were chosen are added one by one.
            nodes += OF_EXPERTS + experts.used as f64;
            elements += experts.used as f64 * (experts.ffn as f64 + 2.0 * hidden);
            elements += 4.0 * experts.count as f64 + experts.shared_ffn as f64;
        }
    }
    (nodes, elements)
}

/// The matrix that logits are computed with.
fn output_part(shape: &Shape) -> Part {
    if shape.tied_embeddings {
        Part::Embedding
    } else {
        Part::Output
    }
}

/// How many times as many weights of experts `tokens` tokens use together as one does. Layers
/// that are never read are in neither.
fn experts_union(shape: &Shape, tokens: u64) -> f64 {
    // Layers weigh as much as their experts have parameters.
    let union = |tokens| -> f64 {
        let mixtures = shape.layers.iter().filter_map(|layer| layer.experts);
        mixtures
            .map(|e| {
                let weight = e.count as f64 * e.ffn.max(1) as f64;
                weight * experts_union_share(e.count as f64, e.used as f64, tokens as f64)
            })
            .sum()
    };
    let of_one = union(1);
    if of_one > 0.0 {
        union(tokens) / of_one
    } else {
        1.0
    }
}

/// Pairs of a new token and one that it sees, of one sequence: `context + 1`, `context + 2`, …
/// for its `new` tokens, none more than the window.
fn pairs(context: u64, new: u64, window: Option<u64>) -> f64 {
    let (context, new) = (context as f64, new as f64);
    let window = window.map_or(f64::INFINITY, |w| w as f64);
    // How many new tokens see fewer than the window.
    let growing = (window - context - 1.0).clamp(0.0, new);
    let growing = if growing.is_finite() { growing } else { new };
    let full = new - growing;
    let grown = growing * context + growing * (growing + 1.0) / 2.0;
    if full > 0.0 {
        grown + full * window
    } else {
        grown
    }
}

type Pairs = Vec<(Attention, f64, f64)>;

/// FLOPs, bytes, and pairs of numbers for each new token of a sequence.
fn cache_work(shape: &Shape, pass: Pass, kv: NumberType) -> Result<(f64, f64, Pairs)> {
    let mut flops = 0.0;
    let mut bytes = 0.0;
    let mut kinds: Pairs = Vec::new();
    let batch = pass.batch as f64;
    for layer in &shape.layers {
        if let Some(attention) = layer.attention {
            let pairs = pairs(
                pass.context_tokens,
                pass.new_tokens,
                attention.window_tokens,
            );
            let layer_flops = attention.flops_per_cached_token() * pairs;
            flops += layer_flops;
            let of_token = layer_flops * batch / 2.0 / pass.new_tokens as f64;
            match kinds.iter_mut().find(|(kind, ..)| *kind == attention) {
                Some((_, layers, sum)) => {
                    *layers += 1.0;
                    *sum += of_token;
                }
                None => kinds.push((attention, 1.0, of_token)),
            }
            let (keys, values) = attention.cached_values()?;
            let per_token = kv.bytes(keys)? as f64 + kv.bytes(values)? as f64;
            let window = attention.window_tokens.unwrap_or(u64::MAX);
            // What is there is read, what is new is written.
            let tokens = pass.context_tokens.min(window) as f64 + pass.new_tokens as f64;
            bytes += per_token * tokens;
        }
        if let Some(state) = layer.recurrent {
            // The state is read and written once a pass, as f32.
            let values = state.convolution_values as f64 + state.state_values as f64;
            bytes += 8.0 * values;
        }
    }
    Ok((flops * batch, bytes * batch, kinds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_one_by_one() {
        for (context, new, window) in [
            (0, 1, None),
            (7, 5, None),
            (0, 9, Some(4)),
            (3, 9, Some(5)),
            (100, 3, Some(5)),
            (0, 3, Some(1)),
        ] {
            let seen = |at: u64| (context + at + 1).min(window.unwrap_or(u64::MAX));
            let expect: u64 = (0..new).map(seen).sum();
            assert_eq!(
                pairs(context, new, window),
                expect as f64,
                "{context} {new} {window:?}"
            );
        }
    }
}
