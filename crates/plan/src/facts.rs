//! The weights of a model file, in the order of their use.
//!
//! The order is presumed from names: no trace is needed. It decides only how evenly pins
//! are spread and in which order the ring is filled before the first token; whoever runs
//! the plan sees the real order then.

use gguf::names::Experts;
use gguf::{Component, Hyperparameters, Kind, Model, Tensor};
use support::hash::Fnv;

use crate::choose::{Use, Weight};

/// All tensors that hold data. Those that generating a token does not touch (encoders,
/// vision, layers for further tokens) are [`Use::Rows`]: they stay in the file.
pub fn weights_of(model: &Model) -> Vec<Weight> {
    let tied = is_tied(model);
    let mut tensors: Vec<(Place, usize, &Tensor)> = model
        .tensors()
        .iter()
        .enumerate()
        .filter(|(_, tensor)| tensor.size_bytes > 0)
        .map(|(index, tensor)| (place_of(tensor, tied), index, tensor))
        .collect();
    tensors.sort_by_key(|&(place, index, _)| (place, index));
    tensors
        .into_iter()
        .map(|(_, _, tensor)| Weight {
            name: tensor.name.to_string(),
            bytes: tensor.size_bytes,
            layer: tensor.meaning.layer,
            usage: usage_of(tensor, model.hyper(), tied),
            row_bytes: row_bytes_of(tensor),
        })
        .collect()
}

/// Whether two models have the same tensors at the same places, in 16 digits: FNV-1a over
/// name, type, dimensions, file, offset and size of each tensor in file order.
pub fn fingerprint(model: &Model) -> String {
    let mut hash = Fnv::default();
    for tensor in model.tensors() {
        hash.add(tensor.name.as_bytes());
        // No name contains it, so that two names cannot pass for one.
        hash.add(&[0]);
        hash.add(&tensor.ty.as_u32().to_le_bytes());
        hash.add(&tensor.n_dims.to_le_bytes());
        for dimension in tensor.ne {
            hash.add(&dimension.to_le_bytes());
        }
        hash.add(&tensor.file.to_le_bytes());
        hash.add(&tensor.file_offset.to_le_bytes());
        hash.add(&tensor.size_bytes.to_le_bytes());
    }
    format!("{:016x}", hash.value())
}

/// The token embedding is also the output projection: looked up by row, then read whole.
fn is_tied(model: &Model) -> bool {
    model.hyper().is_causal && model.tensor("output.weight").is_none()
}

fn is_token_embedding(tensor: &Tensor) -> bool {
    tensor.meaning.component == Component::Embedding && tensor.meaning.role == "token"
}

fn usage_of(tensor: &Tensor, hyper: &Hyperparameters, tied: bool) -> Use {
    let meaning = &tensor.meaning;
    let untouched = meaning.in_encoder
        || matches!(meaning.component, Component::NextN | Component::Multimodal)
        || meaning
            .layer
            .is_some_and(|layer| hyper.is_nextn_layer(layer));
    if untouched {
        return Use::Rows;
    }
    if meaning.component == Component::Embedding {
        return if tied && is_token_embedding(tensor) {
            Use::Whole
        } else {
            Use::Rows
        };
    }
    experts_of(tensor, hyper).unwrap_or(Use::Whole)
}

/// Of a matrix, which the ops that read large ones only multiply with.
fn row_bytes_of(tensor: &Tensor) -> Option<u64> {
    let is_matrix = tensor.meaning.kind == Kind::Weight && tensor.ne[2..].iter().all(|&n| n == 1);
    let rows = tensor.ne[1];
    (is_matrix && rows > 1 && tensor.size_bytes.is_multiple_of(rows))
        .then(|| tensor.size_bytes / rows)
}

/// The slices of a weight that are chosen by the router's numbers. Other stacks (groups
/// of experts, with numbers of their own) are read whole.
fn experts_of(tensor: &Tensor, hyper: &Hyperparameters) -> Option<Use> {
    // Biases of experts are small, and read by other ops.
    if tensor.meaning.experts != Experts::Merged || tensor.meaning.kind != Kind::Weight {
        return None;
    }
    let slices = tensor.expert_slices()?;
    let used = hyper.expert_used_count(tensor.meaning.layer?);
    let plausible = slices.count == hyper.expert_count && (1..=slices.count).contains(&used);
    plausible.then_some(Use::Experts {
        count: u32::try_from(slices.count).ok()?,
        used: u32::try_from(used).ok()?,
        slice_bytes: slices.slice_bytes,
    })
}

/// Where in a token a tensor is used first; the file decides between equals.
type Place = (Section, u32, u32);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Before,
    Layers,
    After,
}

fn place_of(tensor: &Tensor, tied: bool) -> Place {
    let meaning = &tensor.meaning;
    if let Some(layer) = meaning.layer {
        return (
            Section::Layers,
            layer,
            rank_in_layer(meaning.component, &meaning.role),
        );
    }
    let is_output = meaning.component == Component::Output;
    match (meaning.component, &*meaning.role) {
        _ if is_token_embedding(tensor) && tied => (Section::After, 0, 2),
        (Component::Embedding, "token") => (Section::Before, 0, 0),
        (Component::Embedding, _) => (Section::Before, 0, 1),
        (Component::Norm, "output" | "norm") => (Section::After, 0, 0),
        _ if is_output && tensor.name.starts_with("output_") => (Section::After, 0, 1),
        _ if is_output => (Section::After, 0, 2),
        _ => (Section::Before, 0, 2),
    }
}

/// The order inside a layer, as most architectures of llama.cpp build it.
fn rank_in_layer(component: Component, role: &str) -> u32 {
    match (component, role) {
        (Component::Norm, "attn" | "attn_norm_2") => 0,
        (Component::Attention, "qkv" | "q_a" | "q") => 10,
        (Component::Norm, "attn_q_a") => 11,
        (Component::Attention, "q_b") => 12,
        (Component::Attention, "kv_a" | "kv" | "k") => 13,
        (Component::Norm, "attn_kv_a") => 14,
        (Component::Attention, "kv_b" | "k_b") => 15,
        (Component::Attention, "v" | "v_b") => 16,
        (Component::Norm, "attn_q" | "attn_k") => 17,
        (Component::Rope, _) => 18,
        (Component::Attention, "sinks") => 19,
        (Component::Attention, "o" | "o_a") => 21,
        (Component::Attention, "o_b") => 22,
        // Gates, indexers, state spaces: somewhere between projections and output.
        (Component::Attention | Component::Ssm, _) => 20,
        (Component::Norm, "ssm") => 20,
        (Component::Norm, "attn_post" | "post_attention") => 23,
        // Unknown roles: file order, between attention and feed-forward.
        (Component::Norm, "ffn" | "ffn_norm_exps" | "pre_ffw") => 40,
        (Component::Router, _) => 41,
        (Component::Expert | Component::Ffn, "gate" | "gate_up") => 50,
        (Component::Expert | Component::Ffn, "up") => 51,
        (Component::Expert | Component::Ffn, "down") => 52,
        (Component::Expert | Component::Ffn, _) => 53,
        (Component::SharedExpert, "gate_inp") => 60,
        (Component::SharedExpert, "gate" | "gate_up") => 61,
        (Component::SharedExpert, "up") => 62,
        (Component::SharedExpert, _) => 63,
        (Component::Norm, "post_ffw" | "ffn_post" | "layer_output") => 70,
        (Component::NextN, _) => 80,
        _ => 30,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::models::{dense, model, moe};

    fn names(weights: &[Weight]) -> Vec<&str> {
        weights.iter().map(|weight| &*weight.name).collect()
    }

    #[test]
    fn weights_come_in_the_order_of_use() {
        let weights = weights_of(&dense());
        assert_eq!(
            names(&weights),
            [
                "token_embd.weight",
                "rope_freqs.weight",
                "blk.0.attn_norm.weight",
                "blk.0.attn_q.weight",
                "blk.0.attn_q.bias",
                "blk.0.attn_k.weight",
                "blk.0.attn_v.weight",
                "blk.0.attn_output.weight",
                "blk.0.novelty.weight",
                "blk.0.ffn_norm.weight",
                "blk.0.ffn_gate.weight",
                "blk.0.ffn_up.weight",
                "blk.0.ffn_down.weight",
                "blk.1.attn_norm.weight",
                "blk.1.ffn_down.weight",
                "output_norm.weight",
                "output.weight",
            ]
        );
        assert_eq!(weights[0].usage, Use::Rows);
        assert!(weights[1..].iter().all(|w| w.usage == Use::Whole));
        assert_eq!(weights[3].bytes, 32 * 32 * 4);
        assert_eq!(
            (weights[3].layer, weights[13].layer, weights[16].layer),
            (Some(0), Some(1), None)
        );
    }

    #[test]
    fn tied_embedding_is_read_whole_at_the_end() {
        let model = model(
            &[],
            &[
                ("token_embd.weight", &[32, 64]),
                ("output_norm.weight", &[32]),
                ("blk.0.attn_q.weight", &[32, 32]),
            ],
        );
        let weights = weights_of(&model);
        assert_eq!(
            names(&weights),
            [
                "blk.0.attn_q.weight",
                "output_norm.weight",
                "token_embd.weight"
            ]
        );
        assert_eq!(weights[2].usage, Use::Whole);
    }

    #[test]
    fn experts_are_slices_and_shared_experts_are_not() {
        let weights = weights_of(&moe());
        let slices = |bytes| Use::Experts {
            count: 8,
            used: 2,
            slice_bytes: bytes,
        };
        let got: Vec<(&str, Use)> = weights.iter().map(|w| (&*w.name, w.usage)).collect();
        assert_eq!(
            got,
            [
                ("token_embd.weight", Use::Rows),
                ("blk.0.attn_q.weight", Use::Whole),
                ("blk.0.ffn_gate_inp.weight", Use::Whole),
                ("blk.0.ffn_gate_exps.weight", slices(32 * 16 * 4)),
                ("blk.0.ffn_up_exps.weight", slices(32 * 16 * 4)),
                // Numbered otherwise than the router's experts.
                ("blk.0.ffn_up_chexps.weight", Use::Whole),
                ("blk.0.ffn_down_exps.weight", slices(32 * 16 * 4)),
                ("blk.0.ffn_down_exps.bias", Use::Whole),
                ("blk.0.ffn_up_shexp.weight", Use::Whole),
                // Layer 1 is for further tokens.
                ("blk.1.attn_q.weight", Use::Rows),
                ("blk.1.nextn.eh_proj.weight", Use::Rows),
                ("output.weight", Use::Whole),
            ]
        );
    }

    #[test]
    fn fingerprint_follows_names_shapes_and_places() {
        let one = model(&[], &[("a", &[32, 4]), ("b", &[32, 2])]);
        // Computed by another program from the tensors of that model.
        assert_eq!(fingerprint(&moe()), "042012d1fad8881f");
        for other in [
            model(&[], &[("c", &[32, 4]), ("b", &[32, 2])]),
            model(&[], &[("a", &[64, 2]), ("b", &[32, 2])]),
            model(&[], &[("a", &[32, 2]), ("b", &[32, 4])]),
            model(&[], &[("b", &[32, 2]), ("a", &[32, 4])]),
            model(&[], &[("a", &[32, 4])]),
        ] {
            assert_ne!(fingerprint(&one), fingerprint(&other));
        }
    }
}
