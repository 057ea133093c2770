//! Training over many GPUs: memory of each, pipeline bubble, bytes sent, FLOPs of a step.
//!
//! - States (weights, gradients, optimizer): "ZeRO" (Rajbhandari et al., arXiv 1910.02054);
//!   its third stage is what FSDP does.
//! - Activations: "Reducing Activation Recomputation in Large Transformer Models"
//!   (Korthikanti et al., arXiv 2205.05198), whose coefficients for GPT follow here from the
//!   tensors that are kept, so that gated networks and grouped queries have theirs.
//! - Bubble and traffic: "Efficient Large-Scale Language Model Training on GPU Clusters Using
//!   Megatron-LM" (Narayanan et al., arXiv 2104.04473).
//!
//! Layers count as equal. Buffers of communication and fragmentation are not counted: leave
//! them room in the budget. Time and the choice of a layout are in [`crate::search`].

use serde::Serialize;

use crate::checked;
use crate::error::{Error, Result};
use crate::shape::{Part, Shape};

/// A model, as far as training goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trained {
    pub layers: u64,
    pub hidden: u64,
    pub heads: u64,
    /// Heads times their length: numbers of all queries of a token, keys, values.
    pub query_width: u64,
    pub key_width: u64,
    pub value_width: u64,
    /// Width of the feed-forward networks that a token goes through.
    pub ffn_width: u64,
    pub gated: bool,
    pub dropout: bool,
    pub vocabulary: u64,
    pub layer_parameters: f64,
    /// Of these, those that multiply a token.
    pub active_layer_parameters: f64,
    pub embedding_parameters: f64,
    /// 0 where the embedding is also the output.
    pub output_parameters: f64,
}

impl Trained {
    /// A GPT as in the papers: four times as wide inside, dropout, embedding tied.
    pub fn gpt(
        layers: u64,
        hidden: u64,
        heads: u64,
        vocabulary: u64,
        positions: u64,
    ) -> Result<Trained> {
        let h = hidden as f64;
        Trained {
            layers,
            hidden,
            heads,
            query_width: hidden,
            key_width: hidden,
            value_width: hidden,
            ffn_width: checked::product("the feed-forward width", &[4, hidden])?,
            gated: false,
            dropout: true,
            vocabulary,
            layer_parameters: 12.0 * h * h + 13.0 * h,
            active_layer_parameters: 12.0 * h * h,
            embedding_parameters: (vocabulary as f64 + positions as f64) * h,
            output_parameters: 0.0,
        }
        .checked()
    }

    /// Any shape with attention; no dropout, as is usual today.
    pub fn from_shape(shape: &Shape) -> Result<Trained> {
        let layers = shape.layers.len() as u64;
        let attention = shape.layers.iter().find_map(|layer| layer.attention);
        let attention = attention.ok_or(Error::Lacks("attention"))?;
        let width = |a, b| checked::product("the width of attention", &[a, b]);
        let ffn = |layer: &crate::shape::Layer| {
            let experts = layer.experts.map_or(0, |experts| {
                experts
                    .used
                    .saturating_mul(experts.ffn)
                    .saturating_add(experts.shared_ffn)
            });
            layer.ffn.saturating_add(experts)
        };
        let in_layers = [
            Part::Attention,
            Part::Recurrent,
            Part::Ffn,
            Part::Experts,
            Part::Router,
        ];
        let active: f64 = in_layers
            .iter()
            .map(|&p| shape.part(p).active_parameters as f64)
            .sum();
        let embedding = shape.part(Part::Embedding).parameters as f64;
        let output = shape.part(Part::Output).parameters as f64;
        let count = layers.max(1) as f64;
        Trained {
            layers,
            hidden: shape.hidden,
            heads: attention.heads,
            query_width: width(attention.heads, attention.key_length)?,
            key_width: width(attention.kv_heads, attention.key_length)?,
            value_width: width(attention.kv_heads, attention.value_length)?,
            ffn_width: shape.layers.iter().map(ffn).max().unwrap_or(0),
            gated: shape.layers.iter().any(|layer| layer.gated),
            dropout: false,
            vocabulary: shape.vocabulary,
            layer_parameters: (shape.parameters as f64 - embedding - output) / count,
            active_layer_parameters: active / count,
            embedding_parameters: embedding,
            output_parameters: output,
        }
        .checked()
    }

    fn checked(self) -> Result<Trained> {
        checked::count("the number of layers", self.layers)?;
        checked::count("the hidden width", self.hidden)?;
        checked::count("the number of heads", self.heads)?;
        checked::count("the vocabulary", self.vocabulary)?;
        checked::positive("the parameters of a layer", self.layer_parameters)?;
        Ok(self)
    }

    pub fn parameters(&self) -> f64 {
        self.layer_parameters * self.layers as f64
            + self.embedding_parameters
            + self.output_parameters
    }
}

/// Bytes of each number that is kept for a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Numbers {
    pub parameter_bytes: f64,
    pub gradient_bytes: f64,
    /// Copies of higher precision, momentum, variance.
    pub optimizer_bytes: f64,
    pub activation_bytes: f64,
}

impl Numbers {
    /// 16-bit weights and gradients; copy, momentum and variance of 32: 16 bytes in all.
    pub const MIXED_ADAM: Numbers = numbers(2.0, 2.0, 12.0, 2.0);
    /// As above, with gradients of 32 bits, as Megatron-LM keeps them.
    pub const MIXED_ADAM_FP32_GRADIENTS: Numbers = numbers(2.0, 4.0, 12.0, 2.0);
    /// 32 bits throughout.
    pub const FP32_ADAM: Numbers = numbers(4.0, 4.0, 8.0, 4.0);
    /// Momentum and variance of 8 bits beside the copy of 32.
    pub const MIXED_ADAM_8BIT: Numbers = numbers(2.0, 2.0, 6.0, 2.0);
    /// Copy and momentum.
    pub const MIXED_SGD_MOMENTUM: Numbers = numbers(2.0, 2.0, 8.0, 2.0);
}

const fn numbers(parameter: f64, gradient: f64, optimizer: f64, activation: f64) -> Numbers {
    Numbers {
        parameter_bytes: parameter,
        gradient_bytes: gradient,
        optimizer_bytes: optimizer,
        activation_bytes: activation,
    }
}

/// What data-parallel GPUs share out instead of each having it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Zero {
    None,
    Optimizer,
    Gradients,
    /// Parameters too: ZeRO-3, FSDP.
    Parameters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    None,
    /// Scores and softmax of attention, which is also what block-wise attention does.
    Selective,
    /// Whole layers, of which only the input is kept.
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    GPipe,
    OneForwardOneBackward,
    /// Each GPU has so many pieces of the network.
    Interleaved(u64),
}

/// How GPUs share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Layout {
    pub tensor: u64,
    pub pipeline: u64,
    pub data: u64,
    pub zero: Zero,
    pub recompute: Recompute,
    pub sequence_parallel: bool,
    pub schedule: Schedule,
    /// Sequences of one micro-batch.
    pub micro_batch: u64,
}

impl Layout {
    pub fn gpus(&self) -> Result<u64> {
        checked::product(
            "the number of GPUs",
            &[self.tensor, self.pipeline, self.data],
        )
    }
}

/// What is trained on, whatever the layout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Job {
    pub sequence_tokens: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    pub numbers: Numbers,
}

/// States of one GPU that has `parameters` before anything is shared out over `data` GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct States {
    pub parameter_bytes: f64,
    pub gradient_bytes: f64,
    pub optimizer_bytes: f64,
}

impl States {
    pub fn new(parameters: f64, data: u64, zero: Zero, numbers: Numbers) -> Result<States> {
        checked::positive("the number of parameters", parameters)?;
        let data = checked::count("the number of data-parallel GPUs", data)? as f64;
        let shared = |from| if zero >= from { data } else { 1.0 };
        Ok(States {
            parameter_bytes: parameters * numbers.parameter_bytes / shared(Zero::Parameters),
            gradient_bytes: parameters * numbers.gradient_bytes / shared(Zero::Gradients),
            optimizer_bytes: parameters * numbers.optimizer_bytes / shared(Zero::Optimizer),
        })
    }

    pub fn bytes(&self) -> f64 {
        self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes
    }
}

/// Activations of one layer and micro-batch on one GPU.
pub fn layer_activation_bytes(model: &Trained, job: &Job, layout: &Layout) -> Result<f64> {
    check(model, job, layout)?;
    Ok(layer_activations(model, job, layout, layout.recompute))
}

/// The tensors that the backward pass of a layer needs, for one token, in numbers of
/// `activation_bytes`, and masks of one byte.
fn layer_activations(model: &Trained, job: &Job, layout: &Layout, recompute: Recompute) -> f64 {
    let tokens = job.sequence_tokens as f64 * layout.micro_batch as f64;
    let width = job.numbers.activation_bytes;
    let hidden = model.hidden as f64;
    let tensor = layout.tensor as f64;
    if recompute == Recompute::Full {
        return width * hidden * tokens;
    }
    let masks = if model.dropout { 1.0 } else { 0.0 };
    // Inputs of two norms, of attention and of the network; masks behind both.
    let whole = (4.0 * width + 2.0 * masks) * hidden;
    // Queries, keys, values, and what the projection behind them takes.
    let attention = 2.0 * model.query_width as f64 + (model.key_width + model.value_width) as f64;
    let network = if model.gated { 3.0 } else { 2.0 } * model.ffn_width as f64;
    let split = width * (attention + network);
    // Softmax; with dropout its mask and its output too.
    let per_score = if model.dropout {
        2.0 * width + 1.0
    } else {
        width
    };
    let scores = match recompute {
        Recompute::None => per_score * model.heads as f64 * job.sequence_tokens as f64,
        _ => 0.0,
    };
    let whole_share = if layout.sequence_parallel {
        tensor
    } else {
        1.0
    };
    tokens * (whole / whole_share + (split + scores) / tensor)
}

/// Idle time of a pipeline, over the time of its work.
pub fn bubble(schedule: Schedule, pipeline: u64, micro_batches: u64) -> Result<f64> {
    let stages = checked::count("the number of pipeline stages", pipeline)? as f64;
    let micro = checked::count("the number of micro-batches", micro_batches)? as f64;
    let pieces = match schedule {
        Schedule::Interleaved(pieces) => checked::count("the pieces of a stage", pieces)? as f64,
        _ => 1.0,
    };
    Ok((stages - 1.0) / (pieces * micro))
}

/// Memory of the GPU that needs most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Memory {
    pub states: States,
    pub activation_bytes: f64,
    pub bytes: f64,
}

/// Bytes that one GPU sends in a step, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Traffic {
    /// Gradients, and parameters that were shared out.
    pub data_bytes: f64,
    pub tensor_bytes: f64,
    pub pipeline_bytes: f64,
}

/// FLOPs of a step, over all GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepFlops {
    /// What the model needs.
    pub model: f64,
    /// With what is computed again.
    pub hardware: f64,
}

/// All of the above for one layout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Outcome {
    pub layout: Layout,
    pub gpus: u64,
    pub micro_batches: u64,
    pub memory: Memory,
    pub bubble: f64,
    pub traffic: Traffic,
    pub flops: StepFlops,
}

/// Memory, bubble, traffic and FLOPs of a layout.
pub fn evaluate(model: &Trained, job: &Job, layout: &Layout) -> Result<Outcome> {
    let (gpus, micro_batches) = check(model, job, layout)?;
    let outcome = Outcome {
        layout: *layout,
        gpus,
        micro_batches,
        memory: memory(model, job, layout, micro_batches)?,
        bubble: bubble(layout.schedule, layout.pipeline, micro_batches)?,
        traffic: traffic(model, job, layout, micro_batches),
        flops: step_flops(model, job, layout.recompute)?,
    };
    checked::positive("the memory of a GPU", outcome.memory.bytes)?;
    Ok(outcome)
}

/// GPUs and micro-batches of a layout that is possible.
fn check(model: &Trained, job: &Job, layout: &Layout) -> Result<(u64, u64)> {
    let absurd = |what, value: u64, wanted| {
        let value = value.to_string();
        Err(Error::Absurd {
            what,
            value,
            wanted,
        })
    };
    checked::count("the length of a sequence", job.sequence_tokens)?;
    checked::count("the batch of a step", job.global_batch)?;
    checked::count("the number of tensor-parallel GPUs", layout.tensor)?;
    checked::count("the number of pipeline stages", layout.pipeline)?;
    checked::count("the number of data-parallel GPUs", layout.data)?;
    checked::count("the micro-batch", layout.micro_batch)?;
    for bytes in [
        job.numbers.parameter_bytes,
        job.numbers.gradient_bytes,
        job.numbers.activation_bytes,
    ] {
        checked::positive("the bytes of a number", bytes)?;
    }
    checked::not_negative("the bytes of the optimizer", job.numbers.optimizer_bytes)?;
    if layout.tensor > model.heads {
        let what = "the number of tensor-parallel GPUs";
        return absurd(
            what,
            layout.tensor,
            "it must not be larger than that of heads",
        );
    }
    if layout.pipeline > model.layers {
        let what = "the number of pipeline stages";
        return absurd(
            what,
            layout.pipeline,
            "it must not be larger than that of layers",
        );
    }
    let at_once = checked::product("a step", &[layout.data, layout.micro_batch])?;
    if !job.global_batch.is_multiple_of(at_once) {
        let what = "the batch of a step";
        return absurd(
            what,
            job.global_batch,
            "it must be a multiple of data-parallel GPUs times micro-batch",
        );
    }
    Ok((layout.gpus()?, job.global_batch / at_once))
}

/// Parameters of the stage that has most, on each of its tensor-parallel GPUs.
fn stage_parameters(model: &Trained, layout: &Layout) -> f64 {
    let layers = model.layers.div_ceil(layout.pipeline) as f64 * model.layer_parameters;
    let (embedding, output) = (model.embedding_parameters, model.output_parameters);
    let ends = if layout.pipeline == 1 {
        embedding + output
    } else {
        embedding.max(output)
    };
    (layers + ends) / layout.tensor as f64
}

fn memory(model: &Trained, job: &Job, layout: &Layout, micro_batches: u64) -> Result<Memory> {
    let states = States::new(
        stage_parameters(model, layout),
        layout.data,
        layout.zero,
        job.numbers,
    )?;
    let layer = layer_activations(model, job, layout, layout.recompute);
    let tokens = job.sequence_tokens as f64 * layout.micro_batch as f64;
    let (hidden, vocabulary) = (model.hidden as f64, model.vocabulary as f64);
    let tensor = layout.tensor as f64;
    let (stages, micro) = (layout.pipeline as f64, micro_batches as f64);
    let stage_layers = model.layers.div_ceil(layout.pipeline) as f64;
    // Micro-batches of which the first stage holds activations.
    let in_flight = match layout.schedule {
        Schedule::GPipe => micro,
        Schedule::OneForwardOneBackward => stages,
        Schedule::Interleaved(pieces) => stages + (stages - 1.0) / pieces as f64,
    };
    let in_flight = in_flight.min(micro);
    // The layer that is being computed again has all of its activations for a moment.
    let again = layer_activations(model, job, layout, Recompute::None) - layer;
    let whole_share = if layout.sequence_parallel {
        tensor
    } else {
        1.0
    };
    let embedding_mask = if model.dropout {
        tokens * hidden / whole_share
    } else {
        0.0
    };
    let first = in_flight * (stage_layers * layer + embedding_mask);
    // The last norm, the input of the output and its logits, which are f32.
    let output = tokens
        * (2.0 * job.numbers.activation_bytes * hidden / whole_share + 4.0 * vocabulary / tensor);
    let last = if layout.pipeline == 1 {
        first
    } else {
        stage_layers * layer
    };
    let activation_bytes = first.max(last + output) + again.max(0.0);
    Ok(Memory {
        states,
        activation_bytes,
        bytes: states.bytes() + activation_bytes,
    })
}

/// Rings: to reduce or gather `x` bytes over `n` GPUs each sends `x (n - 1) / n`, to do both
/// twice that.
fn traffic(model: &Trained, job: &Job, layout: &Layout, micro_batches: u64) -> Traffic {
    let parameters = stage_parameters(model, layout);
    let ring = |gpus: u64| (gpus as f64 - 1.0) / gpus as f64;
    let micro = micro_batches as f64;
    let gradients = parameters * job.numbers.gradient_bytes;
    let weights = parameters * job.numbers.parameter_bytes;
    // Gradients that no GPU has all of are reduced for each micro-batch, and weights that none
    // has all of are gathered for its forward and for its backward pass.
    let data = match layout.zero {
        Zero::None => 2.0 * gradients,
        Zero::Optimizer => gradients + weights,
        Zero::Gradients => micro * gradients + weights,
        Zero::Parameters => micro * (gradients + 2.0 * weights),
    };
    let hidden_bytes = job.sequence_tokens as f64
        * layout.micro_batch as f64
        * model.hidden as f64
        * job.numbers.activation_bytes;
    let layers = model.layers.div_ceil(layout.pipeline) as f64;
    // Two sums forward, two backward, and the forward ones again.
    let sums = if layout.recompute == Recompute::Full {
        6.0
    } else {
        4.0
    };
    let pieces = match layout.schedule {
        Schedule::Interleaved(pieces) => pieces as f64,
        _ => 1.0,
    };
    let borders = if layout.pipeline > 1 {
        2.0 * pieces
    } else {
        0.0
    };
    let sent_share = if layout.sequence_parallel {
        layout.tensor as f64
    } else {
        1.0
    };
    Traffic {
        data_bytes: data * ring(layout.data),
        tensor_bytes: micro * layers * sums * 2.0 * hidden_bytes * ring(layout.tensor),
        pipeline_bytes: micro * borders * hidden_bytes / sent_share,
    }
}

/// FLOPs of a step: backward is twice forward; every token counts as seeing all of its
/// sequence, as in the papers.
pub fn step_flops(model: &Trained, job: &Job, recompute: Recompute) -> Result<StepFlops> {
    let tokens = job.sequence_tokens as f64 * job.global_batch as f64;
    let layers = model.layers as f64;
    let matrices = 2.0 * tokens * model.active_layer_parameters * layers;
    let scores = 4.0 * tokens * job.sequence_tokens as f64 * model.query_width as f64 * layers;
    let output = 2.0 * tokens * model.hidden as f64 * model.vocabulary as f64;
    let forward = matrices + scores + output;
    let again = match recompute {
        Recompute::None => 0.0,
        Recompute::Selective => scores,
        Recompute::Full => matrices + scores,
    };
    let flops = StepFlops {
        model: 3.0 * forward,
        hardware: 3.0 * forward + again,
    };
    checked::positive("the FLOPs of a step", flops.model)?;
    Ok(flops)
}
