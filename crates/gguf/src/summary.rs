//! Sums over a model: what it weighs, what one token reads, what its KV cache
//! needs, how much it computes for each byte.
//!
//! Pure functions of header and question. The model of decoding behind them:
//! - every weight is read once for an evaluation, whatever the batch;
//! - of an embedding matrix each token reads one row, unless the matrix is also
//!   the output (tied), which reads all of it;
//! - of the experts each token reads `expert_used_count`; a batch reads the
//!   expected number of different ones under uniform routing;
//! - encoders, vision and next-token-prediction layers are not read;
//! - each sequence of the batch reads its own KV cache, filled to the context.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::fit::{self, Misfit};
use crate::hyper::Hyperparameters;
use crate::model::{Model, Tensor};
use crate::names::{Component, Experts, Kind};
use crate::types::GgmlType;

/// Tokens that llama.cpp evaluates at once by default; its window caches hold
/// that many more than the window.
const LLAMA_CPP_UBATCH_TOKENS: u64 = 512;
const LLAMA_CPP_CACHE_PAD_TOKENS: u64 = 256;
/// Context for sums that need one, where neither question nor model gives one.
const DEFAULT_CONTEXT_TOKENS: u64 = 4096;

/// What the caller wants to know.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// Tokens in the KV cache; default is 4096 or the model's own limit.
    pub context_tokens: Option<u64>,
    pub kv_type: GgmlType,
    /// Sequences decoded at once.
    pub batch: u64,
}

impl Default for Question {
    fn default() -> Question {
        Question {
            context_tokens: None,
            kv_type: GgmlType::F16,
            batch: 8,
        }
    }
}

/// The answers.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub architecture: String,
    pub name: Option<String>,
    pub tokenizer: Option<String>,
    pub parameters: u64,
    /// Parameters that one generated token uses.
    pub active_parameters: u64,
    pub tensor_count: u64,
    pub tensor_bytes: u64,
    pub file_bytes: u64,
    pub bits_per_parameter: f64,
    pub layer_count: u64,
    pub context_length: Option<u64>,
    pub embedding_length: u64,
    pub vocabulary: Option<u64>,
    pub head_count: u64,
    pub head_count_kv: u64,
    pub key_length: u64,
    pub value_length: u64,
    pub sliding_window: Option<u64>,
    pub expert_count: u64,
    pub expert_used_count: u64,
    pub tied_embeddings: bool,
    /// Weight bytes that generating one token reads.
    pub bytes_read_per_token: u64,
    pub kv_cache: KvCache,
    pub decode: Vec<Decode>,
    pub misfits: Vec<Misfit>,
    pub components: Vec<ComponentSum>,
    pub types: Vec<TypeSum>,
    pub layers: Vec<LayerSum>,
}

/// The size of the KV cache of one sequence.
#[derive(Debug, Clone, Serialize)]
pub struct KvCache {
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// Bytes that one more token adds while no window is full.
    pub bytes_per_token: u64,
    pub context_tokens: u64,
    /// Bytes that are attended to at that context: windows hold no more than
    /// their width.
    pub bytes_at_context: u64,
    /// Bytes that llama.cpp allocates for it with its default batch: it pads
    /// caches to 256 tokens, and windows by a batch of 512.
    pub llama_cpp_bytes_at_context: u64,
    /// The same where windows have as many cells as the context.
    #[serde(skip)]
    pub whole_windows_bytes_at_context: u64,
    /// Layers with a cache of their own, and those of them with a window.
    pub layers: u64,
    pub window_layers: u64,
}

/// One evaluation that generates a token for each sequence of a batch.
#[derive(Debug, Clone, Serialize)]
pub struct Decode {
    pub batch: u64,
    pub flops: f64,
    pub weight_bytes: f64,
    pub kv_bytes: f64,
    pub flop_per_byte: f64,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct ComponentSum {
    pub component: &'static str,
    pub tensors: u64,
    pub parameters: u64,
    /// Parameters that one generated token uses; for estimates, not for `inspect`.
    #[serde(skip)]
    pub active_parameters: u64,
    pub size_bytes: u64,
    pub bytes_read_per_token: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct TypeSum {
    #[serde(rename = "type")]
    pub ty: &'static str,
    pub tensors: u64,
    pub parameters: u64,
    pub size_bytes: u64,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct LayerSum {
    pub layer: u32,
    pub tensors: u64,
    pub size_bytes: u64,
    pub attention_bytes: u64,
    /// Dense feed-forward and shared experts.
    pub ffn_bytes: u64,
    pub expert_bytes: u64,
    pub other_bytes: u64,
    pub bytes_read_per_token: u64,
    pub kv_bytes_per_token: u64,
    pub window_tokens: Option<u64>,
}

impl Summary {
    pub fn new(model: &Model, question: &Question) -> Summary {
        let hyper = model.hyper();
        let tied = tied_embeddings(model);
        let context_tokens = question.context_tokens.unwrap_or_else(|| {
            DEFAULT_CONTEXT_TOKENS.min(hyper.context_length.unwrap_or(DEFAULT_CONTEXT_TOKENS))
        });
        let mut layers = layer_sums(model, tied);
        let caches = layer_caches(model, question.kv_type, &layers);
        for (layer, cache) in layers.iter_mut().zip(&caches) {
            layer.kv_bytes_per_token = cache.bytes_per_token;
            layer.window_tokens = cache.window_tokens;
        }
        let tensors = model.tensors();
        let parameters = sum(tensors.iter().map(Tensor::elements));
        let tensor_bytes = sum(tensors.iter().map(|t| t.size_bytes));
        let mut batches = vec![1];
        if question.batch > 1 {
            batches.push(question.batch);
        }
        Summary {
            architecture: hyper.architecture.to_string(),
            name: hyper.name.as_deref().map(str::to_owned),
            tokenizer: hyper.tokenizer_model.as_deref().map(str::to_owned),
            parameters,
            active_parameters: sum(tensors
                .iter()
                .map(|t| Reading::of(t, hyper, tied).part_of_one_token(t.elements(), t.ne[0]))),
            tensor_count: tensors.len() as u64,
            tensor_bytes,
            file_bytes: model.len_bytes(),
            bits_per_parameter: tensor_bytes as f64 * 8.0 / (parameters as f64).max(1.0),
            layer_count: hyper.layer_count,
            context_length: hyper.context_length,
            embedding_length: hyper.embedding_length,
            vocabulary: vocabulary(model),
            head_count: hyper.head_count_max(),
            head_count_kv: hyper.head_count_kv_max(),
            key_length: hyper.key_length(0),
            value_length: hyper.value_length(0),
            sliding_window: hyper.sliding_window,
            expert_count: hyper.expert_count,
            expert_used_count: hyper.expert_used_count_max(),
            tied_embeddings: tied == Tied::Yes,
            bytes_read_per_token: sum(tensors.iter().map(|t| bytes_read_per_token(t, hyper, tied))),
            kv_cache: kv_cache(question.kv_type, context_tokens, &caches),
            decode: batches
                .into_iter()
                .map(|batch| decode(model, tied, &layers, &caches, context_tokens, batch))
                .collect(),
            misfits: fit::misfits(model, question.kv_type),
            components: component_sums(model, tied),
            types: type_sums(model),
            layers,
        }
    }
}

/// Tokens in the vocabulary, from metadata or from the embedding matrix.
pub(crate) fn vocabulary(model: &Model) -> Option<u64> {
    model
        .hyper()
        .vocabulary
        .or_else(|| model.tensor("token_embd.weight").map(|t| t.ne[1]))
}

/// Whether the token embedding is also the output matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tied {
    Yes,
    No,
}

fn tied_embeddings(model: &Model) -> Tied {
    let has = |name| model.tensor(name).is_some();
    let has_output = has("output.weight") || has("cls.weight");
    if has("token_embd.weight") && !has_output && model.hyper().is_causal {
        Tied::Yes
    } else {
        Tied::No
    }
}

/// How much of a tensor a generated token reads.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reading {
    All,
    Nothing,
    OneRow,
    /// `used` of `count` equal parts.
    Experts {
        used: u64,
        count: u64,
    },
}

impl Reading {
    fn of(tensor: &Tensor, hyper: &Hyperparameters, tied: Tied) -> Reading {
        let meaning = &tensor.meaning;
        let layer = meaning.layer.unwrap_or(0);
        let unused = meaning.in_encoder
            || matches!(meaning.component, Component::NextN | Component::Multimodal)
            || meaning.layer.is_some_and(|l| hyper.is_nextn_layer(l));
        if unused {
            return Reading::Nothing;
        }
        let count = match (meaning.experts, tensor.expert_slices()) {
            (Experts::Merged, Some(slices)) => slices.count,
            (Experts::One(_), _) => hyper.expert_count,
            _ => 0,
        };
        let used = hyper.expert_used_count(layer).min(count);
        match meaning.component {
            Component::Expert if used > 0 => Reading::Experts { used, count },
            Component::Embedding if meaning.role == "token" && tied == Tied::Yes => Reading::All,
            Component::Embedding => Reading::OneRow,
            _ => Reading::All,
        }
    }

    /// The part of `whole` (bytes or elements) that one token reads, where a
    /// row is `row` of them.
    fn part_of_one_token(self, whole: u64, row: u64) -> u64 {
        match self {
            Reading::All => whole,
            Reading::Nothing => 0,
            Reading::OneRow => row.min(whole),
            Reading::Experts { used, count } => {
                (u128::from(whole) * u128::from(used) / u128::from(count)) as u64
            }
        }
    }

    /// The expected bytes that a batch reads, each once.
    fn bytes_of_batch(self, tensor: &Tensor, batch: u64) -> f64 {
        let whole = tensor.size_bytes as f64;
        let batch = batch as f64;
        match self {
            Reading::All => whole,
            Reading::Nothing => 0.0,
            Reading::OneRow => whole.min(tensor.row_bytes() as f64 * batch),
            Reading::Experts { used, count } => {
                whole * experts_union_share(count as f64, used as f64, batch)
            }
        }
    }
}

/// The share of `count` experts that `tokens` tokens use together, when each uses `used` of
/// them, uniformly and independently.
pub fn experts_union_share(count: f64, used: f64, tokens: f64) -> f64 {
    if count <= 0.0 {
        return 0.0;
    }
    let missed_by_one = 1.0 - used.min(count) / count;
    1.0 - missed_by_one.powf(tokens)
}

fn bytes_read_per_token(tensor: &Tensor, hyper: &Hyperparameters, tied: Tied) -> u64 {
    Reading::of(tensor, hyper, tied).part_of_one_token(tensor.size_bytes, tensor.row_bytes())
}

fn component_sums(model: &Model, tied: Tied) -> Vec<ComponentSum> {
    let mut sums: BTreeMap<Component, ComponentSum> = BTreeMap::new();
    for tensor in model.tensors() {
        let component = tensor.meaning.component;
        let entry = sums.entry(component).or_default();
        entry.component = component.name();
        entry.tensors += 1;
        entry.parameters = entry.parameters.saturating_add(tensor.elements());
        entry.size_bytes = entry.size_bytes.saturating_add(tensor.size_bytes);
        let reading = Reading::of(tensor, model.hyper(), tied);
        entry.active_parameters = entry
            .active_parameters
            .saturating_add(reading.part_of_one_token(tensor.elements(), tensor.ne[0]));
        entry.bytes_read_per_token = entry
            .bytes_read_per_token
            .saturating_add(bytes_read_per_token(tensor, model.hyper(), tied));
    }
    sums.into_values().collect()
}

fn type_sums(model: &Model) -> Vec<TypeSum> {
    let mut sums: BTreeMap<GgmlType, TypeSum> = BTreeMap::new();
    for tensor in model.tensors() {
        let entry = sums.entry(tensor.ty).or_insert(TypeSum {
            ty: tensor.ty.name(),
            tensors: 0,
            parameters: 0,
            size_bytes: 0,
        });
        entry.tensors += 1;
        entry.parameters = entry.parameters.saturating_add(tensor.elements());
        entry.size_bytes = entry.size_bytes.saturating_add(tensor.size_bytes);
    }
    let mut sums: Vec<TypeSum> = sums.into_values().collect();
    sums.sort_by_key(|t| std::cmp::Reverse(t.size_bytes));
    sums
}

/// One sum for each layer that has a tensor, ascending.
fn layer_sums(model: &Model, tied: Tied) -> Vec<LayerSum> {
    let mut sums: BTreeMap<u32, LayerSum> = BTreeMap::new();
    for tensor in model.tensors() {
        let meaning = &tensor.meaning;
        let Some(layer) = meaning.layer else { continue };
        let entry = sums.entry(layer).or_default();
        let bytes = tensor.size_bytes;
        entry.layer = layer;
        entry.tensors += 1;
        entry.size_bytes = entry.size_bytes.saturating_add(bytes);
        let part = match meaning.component {
            Component::Attention => &mut entry.attention_bytes,
            Component::Ffn | Component::SharedExpert => &mut entry.ffn_bytes,
            Component::Expert => &mut entry.expert_bytes,
            _ => &mut entry.other_bytes,
        };
        *part = part.saturating_add(bytes);
        entry.bytes_read_per_token = entry
            .bytes_read_per_token
            .saturating_add(bytes_read_per_token(tensor, model.hyper(), tied));
    }
    sums.into_values().collect()
}

/// The KV cache of one layer.
struct LayerCache {
    bytes_per_token: u64,
    window_tokens: Option<u64>,
}

impl LayerCache {
    /// Tokens that the layer attends to when `context_tokens` came before.
    fn attended_tokens(&self, context_tokens: u64) -> u64 {
        context_tokens.min(self.window_tokens.unwrap_or(u64::MAX))
    }

    fn allocated_tokens(&self, context_tokens: u64) -> u64 {
        padded(match self.window_tokens {
            Some(window) => context_tokens.min(window.saturating_add(LLAMA_CPP_UBATCH_TOKENS)),
            None => context_tokens,
        })
    }
}

fn padded(tokens: u64) -> u64 {
    tokens
        .checked_next_multiple_of(LLAMA_CPP_CACHE_PAD_TOKENS)
        .unwrap_or(tokens)
}

/// The cache of each layer of `layers`, in the same order.
fn layer_caches(model: &Model, ty: GgmlType, layers: &[LayerSum]) -> Vec<LayerCache> {
    let hyper = model.hyper();
    let own_cache = layers_with_own_cache(model);
    layers
        .iter()
        .map(|sum| {
            let layer = sum.layer;
            let cached = own_cache.contains(&layer) && !hyper.is_nextn_layer(layer);
            let kv_heads = hyper.head_count_kv(layer);
            let k = kv_heads.saturating_mul(hyper.key_length(layer));
            let v = if hyper.is_mla() {
                0
            } else {
                kv_heads.saturating_mul(hyper.value_length(layer))
            };
            let bytes = |n: u64| cache_row_bytes(ty, n);
            LayerCache {
                bytes_per_token: if cached {
                    bytes(k).saturating_add(bytes(v))
                } else {
                    0
                },
                window_tokens: hyper.window(layer),
            }
        })
        .collect()
}

/// Bytes of a cache row; rows that are no whole blocks are rounded up, and
/// [`fit`] says that llama.cpp refuses them.
fn cache_row_bytes(ty: GgmlType, elements: u64) -> u64 {
    elements
        .div_ceil(ty.block_elements())
        .saturating_mul(ty.block_bytes())
}

/// Layers that write K and V. Recurrent layers of hybrid models may have a
/// merged `attn_qkv` without a cache; layers that share one have none.
fn layers_with_own_cache(model: &Model) -> std::collections::BTreeSet<u32> {
    let hyper = model.hyper();
    let mut separate = std::collections::BTreeSet::new();
    let mut merged = std::collections::BTreeSet::new();
    let mut recurrent = std::collections::BTreeSet::new();
    for tensor in model.tensors().iter().filter(|t| !t.meaning.in_encoder) {
        let meaning = &tensor.meaning;
        let Some(layer) = meaning.layer else { continue };
        match (meaning.component, &*meaning.role) {
            (Component::Attention, "k" | "v" | "kv" | "kv_a") => separate.insert(layer),
            (Component::Attention, "qkv") => merged.insert(layer),
            (Component::Ssm, _) => recurrent.insert(layer),
            _ => continue,
        };
    }
    merged.retain(|layer| !recurrent.contains(layer));
    separate.extend(merged);
    if hyper.shared_kv_layers > 0 {
        let first_shared = hyper.layer_count.saturating_sub(hyper.shared_kv_layers);
        separate.retain(|&layer| u64::from(layer) < first_shared);
    }
    separate
}

fn kv_cache(ty: GgmlType, context_tokens: u64, caches: &[LayerCache]) -> KvCache {
    let total = |tokens: &dyn Fn(&LayerCache) -> u64| {
        sum(caches
            .iter()
            .map(|c| c.bytes_per_token.saturating_mul(tokens(c))))
    };
    let used = || caches.iter().filter(|c| c.bytes_per_token > 0);
    KvCache {
        ty: ty.name(),
        bytes_per_token: total(&|_| 1),
        context_tokens,
        bytes_at_context: total(&|c| c.attended_tokens(context_tokens)),
        llama_cpp_bytes_at_context: total(&|c| c.allocated_tokens(context_tokens)),
        whole_windows_bytes_at_context: total(&|_| padded(context_tokens)),
        layers: used().count() as u64,
        window_layers: used().filter(|c| c.window_tokens.is_some()).count() as u64,
    }
}

fn decode(
    model: &Model,
    tied: Tied,
    layers: &[LayerSum],
    caches: &[LayerCache],
    context_tokens: u64,
    batch: u64,
) -> Decode {
    let hyper = model.hyper();
    let mut flops_per_token = 0.0;
    let mut weight_bytes = 0.0;
    for tensor in model.tensors() {
        let reading = Reading::of(tensor, hyper, tied);
        weight_bytes += reading.bytes_of_batch(tensor, batch);
        if is_multiplied(tensor, tied) {
            // A multiplication and an addition for each weight.
            let active = reading.part_of_one_token(tensor.elements(), tensor.ne[0]);
            flops_per_token += 2.0 * active as f64;
        }
    }
    let mut kv_bytes = 0.0;
    for (layer, cache) in layers.iter().zip(caches) {
        let tokens = cache.attended_tokens(context_tokens) as f64;
        kv_bytes += batch as f64 * cache.bytes_per_token as f64 * tokens;
        if cache.bytes_per_token > 0 {
            let v_length = match hyper.kv_lora_rank {
                Some(rank) if hyper.is_mla() => rank,
                _ => hyper.value_length(layer.layer),
            };
            let per_head = hyper.key_length(layer.layer) as f64 + v_length as f64;
            flops_per_token += 2.0 * hyper.head_count(layer.layer) as f64 * per_head * tokens;
        }
    }
    let flops = flops_per_token * batch as f64;
    Decode {
        batch,
        flops,
        weight_bytes,
        kv_bytes,
        flop_per_byte: flops / (weight_bytes + kv_bytes).max(1.0),
    }
}

/// Whether a tensor is an operand of a matrix multiplication in decoding.
fn is_multiplied(tensor: &Tensor, tied: Tied) -> bool {
    let meaning = &tensor.meaning;
    let is_matrix = tensor.ne[1] > 1 && !matches!(meaning.kind, Kind::Bias | Kind::Scale);
    is_matrix
        && match meaning.component {
            Component::Embedding => tied == Tied::Yes && meaning.role == "token",
            Component::Norm | Component::Rope => false,
            _ => true,
        }
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::experts_union_share;

    #[test]
    fn the_union_of_experts_is_what_uniform_choice_gives() {
        assert_eq!(experts_union_share(8.0, 2.0, 1.0), 0.25);
        assert_eq!(experts_union_share(8.0, 2.0, 2.0), 0.4375);
        assert_eq!(experts_union_share(8.0, 8.0, 1.0), 1.0);
        assert_eq!(experts_union_share(8.0, 9.0, 1.0), 1.0);
        assert_eq!(experts_union_share(0.0, 0.0, 1.0), 0.0);
        let shares: Vec<f64> = (0..1000)
            .map(|tokens| experts_union_share(256.0, 8.0, f64::from(tokens)))
            .collect();
        assert!(shares.is_sorted() && shares[999] > 0.999 && shares[999] <= 1.0);
    }
}
