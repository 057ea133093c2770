//! Dimensions that do not match block sizes: no multiple of what quantisation
//! blocks, vector units or matrix tiles want, each with its number.

use serde::Serialize;

use crate::heads::{Boundary, HeadLayout};
use crate::model::Model;
use crate::names::Component;
use crate::summary;
use crate::types::GgmlType;

/// A dimension, what it should be a multiple of, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Misfit {
    pub what: String,
    pub number: u64,
    /// The multiple that was missed.
    pub multiple_of: u64,
    pub remainder: u64,
    /// What follows from it.
    pub consequence: &'static str,
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} is {}, no multiple of {} ({} over): {}",
            self.what, self.number, self.multiple_of, self.remainder, self.consequence
        )
    }
}

/// Demands on a row length, weakest first: what misses the weak one misses the
/// strong one for a worse reason, so only the first miss is told.
const ROW_DEMANDS: &[(u64, &str)] = &[
    (32, "no quantised type fits its rows, they stay f16 or f32"),
    (
        256,
        "K and IQ quants need rows of 256, quantisers fall back to 32-element types",
    ),
];
const HEAD_DEMANDS: &[(u64, &str)] = &[
    (
        32,
        "a head's row of the KV cache cannot be quantised in its own blocks",
    ),
    (64, "GPU attention kernels are built for multiples of 64"),
];
const VOCABULARY_DEMANDS: &[(u64, &str)] =
    &[(64, "the last tile of the output matrix is partly empty")];

/// All misfits of a model whose KV cache has type `kv_type`.
pub fn misfits(model: &Model, kv_type: GgmlType) -> Vec<Misfit> {
    let hyper = model.hyper();
    let head_count = hyper.head_count_max();
    let value_row = head_count.saturating_mul(hyper.value_length(0));
    let key_length = hyper.key_length(0);
    let mut found = Vec::new();
    let mut check = |what: &str, number: u64, demands: &'static [(u64, &'static str)]| {
        let missed = demands
            .iter()
            .find(|(multiple, _)| !number.is_multiple_of(*multiple));
        if let Some(&(multiple_of, consequence)) = missed {
            found.push(Misfit {
                what: what.to_owned(),
                number,
                multiple_of,
                remainder: number % multiple_of,
                consequence,
            });
        }
    };
    check("embedding length", hyper.embedding_length, ROW_DEMANDS);
    check(
        "feed-forward length",
        hyper.feed_forward_length_max().unwrap_or(0),
        ROW_DEMANDS,
    );
    check(
        "expert feed-forward length",
        hyper.expert_feed_forward_length_max().unwrap_or(0),
        ROW_DEMANDS,
    );
    if value_row != hyper.embedding_length && !hyper.is_mla() {
        check(
            "attention output row (heads x value length)",
            value_row,
            ROW_DEMANDS,
        );
    }
    check("key head length", key_length, HEAD_DEMANDS);
    if hyper.value_length(0) != key_length {
        check("value head length", hyper.value_length(0), HEAD_DEMANDS);
    }
    check(
        "vocabulary",
        summary::vocabulary(model).unwrap_or(0),
        VOCABULARY_DEMANDS,
    );
    found.extend(cache_misfit(model, kv_type));
    found.extend(shared_blocks(model));
    found.extend(uneven_heads(model));
    found
}

/// A quantised cache whose rows are no whole blocks: llama.cpp refuses it.
fn cache_misfit(model: &Model, kv_type: GgmlType) -> Option<Misfit> {
    let block = kv_type.block_elements();
    let hyper = model.hyper();
    [hyper.key_length(0), hyper.value_length(0)]
        .into_iter()
        .find(|length| !length.is_multiple_of(block))
        .map(|length| Misfit {
            what: format!("head length for a {kv_type} cache"),
            number: length,
            multiple_of: block,
            remainder: length % block,
            consequence: "llama.cpp refuses this cache type for this model",
        })
}

/// Heads of `attn_output` that begin inside a quantisation block.
fn shared_blocks(model: &Model) -> Option<Misfit> {
    let hyper = model.hyper();
    model.tensors().iter().find_map(|tensor| {
        let outputs = tensor.meaning.component == Component::Attention && tensor.meaning.role == "o";
        let layout = HeadLayout::of(tensor, hyper).filter(|_| outputs)?;
        // All heads are equally long: if the first ends on a block, all do.
        let shared = layout
            .ranges(tensor)
            .next()
            .is_some_and(|range| range.boundary == Boundary::SharesBlocks);
        let head_elements = tensor.ne[0] / hyper.head_count(tensor.meaning.layer?).max(1);
        shared.then(|| Misfit {
            what: format!("head columns of {} ({})", tensor.name, tensor.ty),
            number: head_elements,
            multiple_of: tensor.ty.block_elements(),
            remainder: head_elements % tensor.ty.block_elements(),
            consequence: "neighbouring heads share quantisation blocks, so no head can be read alone",
        })
    })
}

/// Query heads that do not divide evenly over key-value heads.
fn uneven_heads(model: &Model) -> Option<Misfit> {
    let hyper = model.hyper();
    let (heads, kv_heads) = (hyper.head_count(0), hyper.head_count_kv(0));
    (kv_heads > 0 && !heads.is_multiple_of(kv_heads)).then(|| Misfit {
        what: "query heads".to_owned(),
        number: heads,
        multiple_of: kv_heads,
        remainder: heads % kv_heads,
        consequence: "they do not divide evenly over the key-value heads",
    })
}
