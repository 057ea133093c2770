//! A decoder as a list of layers, and the parameters of each: what all families have in common.

use super::{Attention, Experts, Latent, Layer, Part, PartSum, Recurrent, Shape};
use crate::error::{Error, Result};

/// How a family differs from the others.
#[derive(Debug, Clone, Default)]
pub(super) struct Decoder {
    pub architecture: String,
    pub name: Option<String>,
    pub hidden: u64,
    pub vocabulary: u64,
    pub context_length: Option<u64>,
    pub tied: bool,
    pub layers: Vec<LayerPlan>,
    /// Numbers of one norm for each of its elements: 1 of RMS norm, 2 of layer norm.
    pub norm_parameters: u64,
    pub final_norm: bool,
    /// Rows of a learned position embedding.
    pub positions: u64,
    /// Width of embeddings where it is not the hidden width (OPT-350m).
    pub embedding_width: Option<u64>,
    pub output_bias: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LayerPlan {
    pub attention: Option<Attention>,
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// One norm for queries and one for keys, shared by their heads.
    pub head_norms: bool,
    /// One learned number a head (gpt-oss).
    pub sinks: bool,
    pub norms: u64,
    pub ffn: u64,
    /// Gate, up and down instead of up and down.
    pub gated: bool,
    pub ffn_bias: bool,
    pub experts: Option<ExpertsPlan>,
    pub mamba: Option<Mamba>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ExpertsPlan {
    pub count: u64,
    pub used: u64,
    pub ffn: u64,
    pub shared_ffn: u64,
    /// A number for each hidden one that scales the shared experts.
    pub shared_gate: bool,
    pub bias: bool,
    pub router_bias: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Mamba {
    pub inner: u64,
    pub state: u64,
    pub kernel: u64,
    pub time_rank: u64,
    pub convolution_bias: bool,
    pub projection_bias: bool,
}

/// Parameters by part; in 128 bits, where products of three bounded numbers fit.
#[derive(Default)]
struct Tally {
    parameters: [u128; Part::ALL.len()],
    active: [u128; Part::ALL.len()],
}

impl Tally {
    fn add(&mut self, part: Part, parameters: u128) {
        self.add_used(part, parameters, parameters);
    }

    fn add_used(&mut self, part: Part, parameters: u128, active: u128) {
        let at = part as usize;
        self.parameters[at] = self.parameters[at].saturating_add(parameters);
        self.active[at] = self.active[at].saturating_add(active);
    }
}

fn wide(n: u64) -> u128 {
    u128::from(n)
}

impl Decoder {
    pub fn shape(self) -> Result<Shape> {
        let mut tally = Tally::default();
        let hidden = wide(self.hidden);
        let norm = hidden * wide(self.norm_parameters);
        let width = wide(self.embedding_width.unwrap_or(self.hidden));
        let matrix = wide(self.vocabulary) * width;
        // Tied, the embedding is the output too, and all of it is read.
        let row = if self.tied { matrix } else { width };
        tally.add_used(Part::Embedding, matrix, row);
        let positions = wide(self.positions) * hidden;
        tally.add_used(Part::Embedding, positions, hidden.min(positions));
        if self
            .embedding_width
            .is_some_and(|width| width != self.hidden)
        {
            tally.add(Part::Other, 2 * width * hidden);
        }
        if !self.tied {
            tally.add(Part::Output, matrix);
        }
        if self.output_bias {
            tally.add(Part::Output, wide(self.vocabulary));
        }
        if self.final_norm {
            tally.add(Part::Norm, norm);
        }
        for plan in &self.layers {
            plan.count(hidden, norm, &mut tally);
        }
        let parts = Part::ALL
            .iter()
            .zip(tally.parameters.iter().zip(&tally.active))
            .map(|(&part, (&parameters, &active))| {
                let narrow = |n: u128| {
                    u64::try_from(n).map_err(|_| Error::TooLarge("the number of parameters"))
                };
                Ok(PartSum {
                    part,
                    parameters: narrow(parameters)?,
                    active_parameters: narrow(active)?,
                    stored: None,
                })
            })
            .collect::<Result<Vec<PartSum>>>()?;
        Shape {
            architecture: self.architecture,
            name: self.name,
            hidden: self.hidden,
            vocabulary: self.vocabulary,
            context_length: self.context_length,
            tied_embeddings: self.tied,
            parameters: 0,
            active_parameters: 0,
            parts,
            layers: self.layers.iter().map(LayerPlan::layer).collect(),
        }
        .finished()
    }
}

impl LayerPlan {
    fn layer(&self) -> Layer {
        Layer {
            attention: self.attention,
            recurrent: self.mamba.map(|mamba| Recurrent {
                convolution_values: mamba.inner.saturating_mul(mamba.kernel.saturating_sub(1)),
                state_values: mamba.inner.saturating_mul(mamba.state),
            }),
            ffn: self.ffn,
            gated: self.gated,
            experts: self.experts.map(|plan| Experts {
                count: plan.count,
                used: plan.used,
                ffn: plan.ffn,
                shared_ffn: plan.shared_ffn,
            }),
        }
    }

    fn count(&self, hidden: u128, norm: u128, tally: &mut Tally) {
        tally.add(Part::Norm, wide(self.norms) * norm);
        if let Some(attention) = &self.attention {
            self.count_attention(attention, hidden, tally);
        }
        let matrices = if self.gated { 3 } else { 2 };
        // Biases of all matrices but the last are as long as the network is wide.
        let network = |ffn: u128, bias: bool| {
            let biases = if bias {
                (matrices - 1) * ffn + hidden
            } else {
                0
            };
            matrices * hidden * ffn + biases
        };
        if self.ffn > 0 {
            tally.add(Part::Ffn, network(wide(self.ffn), self.ffn_bias));
        }
        if let Some(plan) = &self.experts {
            let one = network(wide(plan.ffn), plan.bias);
            tally.add_used(Part::Experts, wide(plan.count) * one, wide(plan.used) * one);
            let biases = if plan.router_bias {
                wide(plan.count)
            } else {
                0
            };
            tally.add(Part::Router, hidden * wide(plan.count) + biases);
            if plan.shared_ffn > 0 {
                let gate = if plan.shared_gate { hidden } else { 0 };
                tally.add(Part::Ffn, network(wide(plan.shared_ffn), plan.bias) + gate);
            }
        }
        if let Some(mamba) = &self.mamba {
            tally.add(Part::Recurrent, mamba.parameters(hidden));
        }
    }

    fn count_attention(&self, attention: &Attention, hidden: u128, tally: &mut Tally) {
        let heads = wide(attention.heads);
        let kv_heads = wide(attention.kv_heads);
        let (key, value) = (wide(attention.key_length), wide(attention.value_length));
        if let Some(latent) = attention.latent {
            self.count_latent(attention, latent, hidden, tally);
            return;
        }
        let inputs = heads * key + kv_heads * key + kv_heads * value;
        let output = heads * value;
        let mut parameters = hidden * inputs + output * hidden;
        if self.qkv_bias {
            parameters += inputs;
        }
        if self.output_bias {
            parameters += hidden;
        }
        if self.sinks {
            parameters += heads;
        }
        tally.add(Part::Attention, parameters);
        if self.head_norms {
            tally.add(Part::Norm, 2 * key);
        }
    }

    /// DeepSeek's projections: queries through a rank of their own (or not), keys and values
    /// through one that they share, and a rotated part that all heads share.
    fn count_latent(&self, attention: &Attention, latent: Latent, hidden: u128, tally: &mut Tally) {
        let heads = wide(attention.heads);
        let (key, value) = (wide(attention.key_length), wide(attention.value_length));
        let (kv_rank, rope) = (wide(latent.kv_rank), wide(latent.rope_length));
        let plain_key = key.saturating_sub(rope);
        let mut parameters = hidden * (kv_rank + rope)
            + kv_rank * heads * (plain_key + value)
            + heads * value * hidden;
        match latent.query_rank.map(wide) {
            Some(rank) => {
                parameters += hidden * rank + rank * heads * key;
                tally.add(Part::Norm, rank);
            }
            None => parameters += hidden * heads * key,
        }
        if self.qkv_bias {
            parameters += latent.query_rank.map_or(0, wide) + kv_rank + rope;
        }
        if self.output_bias {
            parameters += hidden;
        }
        tally.add(Part::Norm, kv_rank);
        tally.add(Part::Attention, parameters);
    }
}

impl Mamba {
    fn parameters(&self, hidden: u128) -> u128 {
        let (inner, state) = (wide(self.inner), wide(self.state));
        let rank = wide(self.time_rank);
        let input = hidden * 2 * inner;
        let convolution = inner * wide(self.kernel);
        let selection = inner * (rank + 2 * state) + rank * inner + inner;
        let decay_and_skip = inner * state + inner;
        let output = inner * hidden;
        let mut all = input + convolution + selection + decay_and_skip + output;
        if self.convolution_bias {
            all += inner;
        }
        if self.projection_bias {
            all += 2 * inner + hidden;
        }
        all
    }
}
