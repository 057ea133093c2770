//! FLOPs and bytes of a prompt and of a step of decoding, and the time that a machine needs.
//!
//! The model of one pass through the network, for `batch` sequences that each bring
//! `new_tokens` behind `context_tokens` that are in the cache:
//! - every weight is read once, whatever the batch; of the experts the expected number of
//!   different ones, if each token chooses uniformly; of an embedding one row a token;
//! - every cached key and value is read once for each sequence, and new ones are written;
//! - a multiplication and an addition for each active weight and token, and for each pair of a
//!   new token and a token that it sees; the output only for the tokens that ask for it;
//! - activations stay on the chip.
//!
//! A part takes the longer of its computing and its memory traffic, parts follow each other.
//! Times are bounds divided by an efficiency; [`Efficiency`] gives the interval.

use gguf::summary::experts_union_share;
use serde::Serialize;

use crate::checked;
use crate::error::{Error, Result};
use crate::machines::Machine;
use crate::number::{ComputeType, NumberType};
use crate::shape::{Part, Shape, Weights};

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
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Work {
    pub stage: Stage,
    pub flops: f64,
    pub weight_bytes: f64,
    pub cache_bytes: f64,
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
    let mut push = |stage, flops: f64, weight_bytes: f64, cache_bytes: f64| {
        if flops > 0.0 || weight_bytes + cache_bytes > 0.0 {
            works.push(Work {
                stage,
                flops,
                weight_bytes,
                cache_bytes,
            });
        }
    };
    let read = |part| shape.part(part).bytes_read_per_token(types.weights);
    let flops_of = |part, tokens: f64| 2.0 * shape.part(part).active_parameters as f64 * tokens;
    for (stage, part) in [
        (Stage::Attention, Part::Attention),
        (Stage::Recurrent, Part::Recurrent),
        (Stage::Ffn, Part::Ffn),
    ] {
        push(stage, flops_of(part, tokens_f), read(part)? as f64, 0.0);
    }
    let experts_bytes = experts_bytes(shape, types, tokens)?;
    push(
        Stage::Experts,
        flops_of(Part::Experts, tokens_f),
        experts_bytes,
        0.0,
    );
    let (flops, cache_bytes) = cache_work(shape, pass, types.kv)?;
    push(Stage::Cache, flops, 0.0, cache_bytes);
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
    );
    let mut other_bytes = 0.0;
    for part in [Part::Router, Part::Norm, Part::Other] {
        other_bytes += read(part)? as f64;
    }
    if output != Part::Embedding {
        let whole = shape.part(Part::Embedding).bytes(types.weights)? as f64;
        other_bytes += whole.min(read(Part::Embedding)? as f64 * tokens_f);
    }
    push(
        Stage::Other,
        flops_of(Part::Router, tokens_f),
        other_bytes,
        0.0,
    );
    let total: f64 = works.iter().map(|work| work.flops + work.bytes()).sum();
    if !total.is_finite() {
        return Err(Error::TooLarge("the work of a pass"));
    }
    Ok(works)
}

/// The matrix that logits are computed with.
fn output_part(shape: &Shape) -> Part {
    if shape.tied_embeddings {
        Part::Embedding
    } else {
        Part::Output
    }
}

/// Bytes of the experts that `tokens` tokens use together: what one token reads, as many times
/// as their union is larger. Layers that are never read are in neither.
fn experts_bytes(shape: &Shape, types: Types, tokens: u64) -> Result<f64> {
    let read_by_one = shape
        .part(Part::Experts)
        .bytes_read_per_token(types.weights)? as f64;
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
    Ok(if of_one > 0.0 {
        read_by_one * union(tokens) / of_one
    } else {
        read_by_one
    })
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

fn cache_work(shape: &Shape, pass: Pass, kv: NumberType) -> Result<(f64, f64)> {
    let mut flops = 0.0;
    let mut bytes = 0.0;
    for layer in &shape.layers {
        if let Some(attention) = layer.attention {
            let pairs = pairs(
                pass.context_tokens,
                pass.new_tokens,
                attention.window_tokens,
            );
            flops += attention.flops_per_cached_token() * pairs;
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
    Ok((flops * pass.batch as f64, bytes * pass.batch as f64))
}

/// A low, a likely and a high share of what a machine can do at best.
pub type Interval = (f64, f64, f64);

/// Which part of peak bandwidth and peak FLOP/s is reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Efficiency {
    pub memory: Interval,
    pub compute: Interval,
}

impl Default for Efficiency {
    /// By judgement, not calibrated: streaming reads reach 60 to 92 % of a datasheet's
    /// bandwidth, large matrix products 40 to 80 % of its FLOP/s.
    fn default() -> Efficiency {
        Efficiency {
            memory: (0.6, 0.8, 0.92),
            compute: (0.4, 0.6, 0.8),
        }
    }
}

impl Efficiency {
    /// The bounds themselves.
    pub const IDEAL: Efficiency = Efficiency {
        memory: (1.0, 1.0, 1.0),
        compute: (1.0, 1.0, 1.0),
    };

    fn checked(self) -> Result<Efficiency> {
        for (what, (low, likely, high)) in [
            ("the memory efficiency", self.memory),
            ("the compute efficiency", self.compute),
        ] {
            for value in [low, likely, high] {
                checked::share(what, value)?;
            }
            if low > likely || likely > high {
                return Err(Error::Absurd {
                    what,
                    value: format!("{low}, {likely}, {high}"),
                    wanted: "low, likely and high must ascend",
                });
            }
        }
        Ok(self)
    }
}

/// What a stage waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Memory,
    Compute,
}

/// Seconds: at best, likely, at worst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Seconds {
    pub best: f64,
    pub likely: f64,
    pub worst: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageTime {
    pub work: Work,
    pub memory_seconds: f64,
    pub compute_seconds: f64,
    /// The longer of the two.
    pub seconds: Seconds,
    pub bound: Bound,
}

/// The time of a pass on a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PassTime {
    pub pass: Pass,
    pub stages: Vec<StageTime>,
    pub seconds: Seconds,
    pub flops: f64,
    pub bytes: f64,
    pub flop_per_byte: f64,
    /// FLOPs for each byte at which the machine is busy with both.
    pub ridge_flop_per_byte: f64,
    /// What most of the likely time waits for.
    pub bound: Bound,
    /// What the machine multiplies in: the type asked for, or the next that it has.
    pub compute: ComputeType,
    /// New tokens of all sequences for each likely second.
    pub tokens_per_second: f64,
}

/// The time of a pass.
pub fn time(
    shape: &Shape,
    pass: Pass,
    types: Types,
    machine: &Machine,
    efficiency: Efficiency,
) -> Result<PassTime> {
    let works = work(shape, pass, types)?;
    let efficiency = efficiency.checked()?;
    let (compute, peak) = machine.peak(types.compute)?;
    let bandwidth = machine.memory_bytes_per_second.value;
    let stages: Vec<StageTime> = works
        .into_iter()
        .map(|work| stage_time(work, bandwidth, peak, efficiency))
        .collect();
    let total = |of: &dyn Fn(&StageTime) -> f64| stages.iter().map(of).sum::<f64>();
    let (flops, bytes) = (total(&|s| s.work.flops), total(&|s| s.work.bytes()));
    let seconds = Seconds {
        best: total(&|s| s.seconds.best),
        likely: total(&|s| s.seconds.likely),
        worst: total(&|s| s.seconds.worst),
    };
    checked::positive("the time of a pass", seconds.likely)?;
    let waits = |bound| {
        total(&|s| {
            if s.bound == bound {
                s.seconds.likely
            } else {
                0.0
            }
        })
    };
    let bound = if waits(Bound::Compute) > waits(Bound::Memory) {
        Bound::Compute
    } else {
        Bound::Memory
    };
    Ok(PassTime {
        pass,
        seconds,
        flops,
        bytes,
        flop_per_byte: flops / bytes.max(1.0),
        ridge_flop_per_byte: peak / bandwidth,
        bound,
        compute,
        tokens_per_second: pass.batch as f64 * pass.new_tokens as f64 / seconds.likely,
        stages,
    })
}

fn stage_time(work: Work, bandwidth: f64, peak: f64, efficiency: Efficiency) -> StageTime {
    let memory = work.bytes() / bandwidth;
    let compute = work.flops / peak;
    let (low_memory, likely_memory, high_memory) = efficiency.memory;
    let (low_compute, likely_compute, high_compute) = efficiency.compute;
    let longer = |m: f64, c: f64| (memory / m).max(compute / c);
    let (memory_seconds, compute_seconds) = (memory / likely_memory, compute / likely_compute);
    StageTime {
        work,
        memory_seconds,
        compute_seconds,
        seconds: Seconds {
            best: longer(high_memory, high_compute),
            likely: longer(likely_memory, likely_compute),
            worst: longer(low_memory, low_compute),
        },
        bound: if compute_seconds > memory_seconds {
            Bound::Compute
        } else {
            Bound::Memory
        },
    }
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
