//! What the arithmetic needs to know of a model.
//!
//! From a GGUF file ([`Shape::from_model`]), whose sums are those of `gguf::summary`, or from a
//! Hugging Face `config.json` ([`Shape::from_config_json`]), whose parameters are counted by
//! the layers that its architecture has. Both say the same about the same model, but for
//! types: a config has none, a file has each tensor's.
//!
//! A parameter is active if a generated token uses it: of an embedding matrix one row, unless
//! it is also the output; of the experts those that are chosen.

mod config;
mod decoder;
mod families;
mod model;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::checked;
use crate::error::{Error, Result};
use crate::number::NumberType;

pub use families::KNOWN_ARCHITECTURES;

/// More layers than any model has; what is above would be memory for a typing error.
pub const MAX_LAYERS: u64 = 10_000;

/// A model, as far as arithmetic goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shape {
    pub architecture: String,
    pub name: Option<String>,
    pub hidden: u64,
    pub vocabulary: u64,
    pub context_length: Option<u64>,
    pub tied_embeddings: bool,
    pub parameters: u64,
    /// Parameters that one generated token uses.
    pub active_parameters: u64,
    pub parts: Vec<PartSum>,
    pub layers: Vec<Layer>,
}

/// One layer; a hybrid has layers of different kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Layer {
    pub attention: Option<Attention>,
    pub recurrent: Option<Recurrent>,
    /// Width of the dense feed-forward network; 0 where there is none.
    pub ffn: u64,
    /// Networks have gate, up and down, not only up and down.
    pub gated: bool,
    pub experts: Option<Experts>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Attention {
    pub heads: u64,
    pub kv_heads: u64,
    pub key_length: u64,
    pub value_length: u64,
    /// Tokens that are attended to, where not all are.
    pub window_tokens: Option<u64>,
    /// Multi-head latent attention: what is cached instead of keys and values.
    pub latent: Option<Latent>,
    /// False for a layer that uses the cache of an earlier one.
    pub own_cache: bool,
}

/// The compressed cache of multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latent {
    pub kv_rank: u64,
    pub rope_length: u64,
    pub query_rank: Option<u64>,
}

/// State that does not grow with the context, kept as f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Recurrent {
    pub convolution_values: u64,
    pub state_values: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Experts {
    pub count: u64,
    /// Chosen by the router for each token.
    pub used: u64,
    pub ffn: u64,
    /// Width of all shared experts together, which every token uses.
    pub shared_ffn: u64,
}

/// What parameters are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Embedding,
    Attention,
    Recurrent,
    /// Dense feed-forward networks and shared experts.
    Ffn,
    Experts,
    Router,
    Norm,
    Output,
    /// Vision, further-token prediction, and what has no known name.
    Other,
}

impl Part {
    pub const ALL: [Part; 9] = [
        Part::Embedding,
        Part::Attention,
        Part::Recurrent,
        Part::Ffn,
        Part::Experts,
        Part::Router,
        Part::Norm,
        Part::Output,
        Part::Other,
    ];
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartSum {
    pub part: Part,
    pub parameters: u64,
    pub active_parameters: u64,
    /// As the file has them; `None` from a config, which has no types.
    pub stored: Option<Stored>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stored {
    pub bytes: u64,
    pub bytes_read_per_token: u64,
    /// Parameters in matrices of each shape and type.
    #[serde(skip)]
    pub matrices: BTreeMap<Matrix, u64>,
}

/// A matrix that tokens are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Matrix {
    pub columns: u64,
    pub rows: u64,
    pub ty: &'static str,
}

/// Weights as the file has them, or all of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weights {
    AsStored,
    All(NumberType),
}

impl Shape {
    /// The part's sums; zeros where the model has none of it.
    pub fn part(&self, part: Part) -> PartSum {
        let found = self.parts.iter().find(|sum| sum.part == part);
        found.cloned().unwrap_or(PartSum {
            part,
            parameters: 0,
            active_parameters: 0,
            stored: None,
        })
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self, weights: Weights) -> Result<u64> {
        let bytes = self.parts.iter().map(|sum| sum.bytes(weights));
        let bytes: Vec<u64> = bytes.collect::<Result<_>>()?;
        checked::sum("the size of the weights", bytes)
    }

    /// Query heads of the layer that has most.
    pub fn max_heads(&self) -> u64 {
        let attention = self.layers.iter().filter_map(|layer| layer.attention);
        attention.map(|a| a.heads).max().unwrap_or(0)
    }

    /// Counts and sums of a finished list of layers and parts.
    fn finished(mut self) -> Result<Shape> {
        self.parts.retain(|sum| sum.parameters > 0);
        let what = "the number of parameters";
        self.parameters = checked::sum(what, self.parts.iter().map(|sum| sum.parameters))?;
        let active = self.parts.iter().map(|sum| sum.active_parameters);
        self.active_parameters = checked::sum(what, active)?;
        Ok(self)
    }
}

impl PartSum {
    /// Bytes of all of it.
    pub fn bytes(&self, weights: Weights) -> Result<u64> {
        match weights {
            Weights::All(ty) => ty.bytes(self.parameters),
            Weights::AsStored => Ok(self.stored()?.map_or(0, |stored| stored.bytes)),
        }
    }

    /// Bytes that one token reads.
    pub fn bytes_read_per_token(&self, weights: Weights) -> Result<u64> {
        match weights {
            Weights::All(ty) => ty.bytes(self.active_parameters),
            Weights::AsStored => {
                let stored = self.stored()?;
                Ok(stored.map_or(0, |stored| stored.bytes_read_per_token))
            }
        }
    }

    /// Which share of the parameters is in which matrices.
    pub fn matrix_shares(&self, weights: Weights) -> Result<Vec<(Matrix, f64)>> {
        /// Where only a number of parameters is known.
        const USUAL: (u64, u64) = (4096, 11008);
        let all = self.parameters.max(1) as f64;
        let stored = self.stored.as_ref().map(|stored| &stored.matrices);
        let known = stored.into_iter().flatten();
        match weights {
            Weights::AsStored => {
                self.stored()?;
                Ok(known
                    .map(|(matrix, n)| (*matrix, *n as f64 / all))
                    .collect())
            }
            Weights::All(NumberType { name: ty, .. }) => {
                let retyped = known.map(|(matrix, n)| (Matrix { ty, ..*matrix }, *n as f64 / all));
                let retyped: Vec<_> = retyped.collect();
                let (columns, rows) = USUAL;
                Ok(match retyped.is_empty() {
                    true => vec![(Matrix { columns, rows, ty }, 1.0)],
                    false => retyped,
                })
            }
        }
    }

    /// `None` where there is nothing to store.
    fn stored(&self) -> Result<Option<&Stored>> {
        if self.parameters == 0 {
            return Ok(None);
        }
        self.stored.as_ref().map(Some).ok_or(Error::Absurd {
            what: "the weight type",
            value: "that of the file".to_owned(),
            wanted: "a config.json has no types: name one, such as f16 or q4_K",
        })
    }
}

impl Attention {
    /// Numbers that one token adds to the cache: keys, then values.
    pub fn cached_values(&self) -> Result<(u64, u64)> {
        if !self.own_cache {
            return Ok((0, 0));
        }
        if let Some(latent) = self.latent {
            let values = [latent.kv_rank, latent.rope_length];
            return Ok((checked::sum("the latent of a token", values)?, 0));
        }
        Ok((
            checked::product("the keys of a token", &[self.kv_heads, self.key_length])?,
            checked::product("the values of a token", &[self.kv_heads, self.value_length])?,
        ))
    }

    /// Heads of queries, heads of keys, and the lengths of keys and values as they are
    /// multiplied: of latent attention the latent itself, once for all heads.
    pub fn as_computed(&self) -> [u64; 4] {
        match self.latent {
            Some(latent) => {
                let key_length = latent.kv_rank.saturating_add(latent.rope_length);
                [self.heads, 1, key_length, latent.kv_rank]
            }
            None => [
                self.heads,
                self.kv_heads,
                self.key_length,
                self.value_length,
            ],
        }
    }

    /// Multiplications and additions of one token over one token of the cache.
    pub fn flops_per_cached_token(&self) -> f64 {
        let per_head = match self.latent {
            // Keys and values are the latent itself, its projections moved to query and output.
            Some(latent) => 2.0 * latent.kv_rank as f64 + latent.rope_length as f64,
            None => self.key_length as f64 + self.value_length as f64,
        };
        2.0 * self.heads as f64 * per_head
    }
}
