//! The time of a layout on a cluster, and the cheapest layout that fits.
//!
//! Time is computing at an efficiency, the bubble, and what is sent and not hidden. The search
//! looks at every combination of tensor, pipeline and data parallelism, ZeRO, recomputation,
//! interleaving and micro-batch whose product is a number of GPUs that is offered; ZeRO that
//! shares out gradients or parameters goes without a pipeline, whose micro-batches would
//! reduce them again and again.

use serde::Serialize;

use crate::checked;
use crate::error::{Error, Result};
use crate::machines::Machine;
use crate::number::ComputeType;
use crate::training::{self, Job, Layout, Outcome, Recompute, Schedule, Trained, Zero};

/// GPUs of one kind.
#[derive(Debug, Clone)]
pub struct Cluster<'a> {
    pub gpu: &'a Machine,
    /// Numbers of GPUs that may be used.
    pub gpus: Vec<u64>,
    pub gpus_per_node: u64,
    /// Between nodes, of one GPU, one way.
    pub network_bytes_per_second: f64,
    pub compute: ComputeType,
    /// Share of peak FLOP/s that matrix products reach.
    pub compute_efficiency: f64,
    /// Share of the links' bandwidth that is reached.
    pub link_efficiency: f64,
    /// Share of the data-parallel traffic that is hidden behind computing.
    pub hidden_share: f64,
    /// Memory of a GPU that may be used.
    pub budget_bytes: u64,
}

impl<'a> Cluster<'a> {
    /// Nodes of eight, half of peak FLOP/s, 70 % of the links, half of the gradients hidden, a
    /// tenth of the memory left for buffers.
    pub fn new(gpu: &'a Machine, gpus: u64, network_bytes_per_second: f64) -> Cluster<'a> {
        Cluster {
            gpu,
            gpus: vec![gpus],
            gpus_per_node: 8,
            network_bytes_per_second,
            compute: ComputeType::Bf16,
            compute_efficiency: 0.5,
            link_efficiency: 0.7,
            hidden_share: 0.5,
            budget_bytes: gpu.memory_bytes() / 10 * 9,
        }
    }

    fn rates(&self) -> Result<Rates> {
        checked::count("the GPUs of a node", self.gpus_per_node)?;
        checked::positive("the network's bandwidth", self.network_bytes_per_second)?;
        checked::share("the compute efficiency", self.compute_efficiency)?;
        checked::share("the link efficiency", self.link_efficiency)?;
        checked::count("the memory budget", self.budget_bytes)?;
        if !(0.0..=1.0).contains(&self.hidden_share) {
            return Err(Error::Absurd {
                what: "the hidden share of traffic",
                value: self.hidden_share.to_string(),
                wanted: "it must be from 0 to 1",
            });
        }
        let link = self.gpu.link_bytes_per_second.as_ref();
        let link = link.ok_or_else(|| self.gpu.lacks("link bandwidth"))?.value;
        Ok(Rates {
            flops: self.gpu.peak(self.compute)?.1 * self.compute_efficiency,
            // Vendors count both ways.
            link: link / 2.0 * self.link_efficiency,
            network: self.network_bytes_per_second * self.link_efficiency,
            gpus_per_node: self.gpus_per_node,
            sent_share: 1.0 - self.hidden_share,
        })
    }
}

struct Rates {
    flops: f64,
    link: f64,
    network: f64,
    gpus_per_node: u64,
    sent_share: f64,
}

/// A layout with its time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timed {
    pub outcome: Outcome,
    pub fits: bool,
    pub compute_seconds: f64,
    pub bubble_seconds: f64,
    pub tensor_seconds: f64,
    pub pipeline_seconds: f64,
    pub data_seconds: f64,
    pub step_seconds: f64,
    pub tokens_per_second: f64,
    /// GPU-seconds for a million tokens: what is minimised.
    pub gpu_seconds_per_million_tokens: f64,
    /// The model's own FLOPs over what the GPUs could compute in that time.
    pub model_flops_utilization: f64,
}

/// The time of one layout.
pub fn time(model: &Trained, job: &Job, layout: &Layout, cluster: &Cluster) -> Result<Timed> {
    let outcome = training::evaluate(model, job, layout)?;
    let rates = cluster.rates()?;
    timed(&outcome, job, &rates, cluster)
}

fn timed(outcome: &Outcome, job: &Job, rates: &Rates, cluster: &Cluster) -> Result<Timed> {
    let layout = &outcome.layout;
    let gpus = outcome.gpus as f64;
    let bandwidth = |group: u64| {
        if group <= rates.gpus_per_node {
            rates.link
        } else {
            rates.network
        }
    };
    let compute_seconds = outcome.flops.hardware / (gpus * rates.flops);
    let traffic = &outcome.traffic;
    let tensor_seconds = traffic.tensor_bytes / bandwidth(layout.tensor);
    // Neighbours in the data-parallel group are as far apart as a tensor-parallel group is
    // wide; stages are furthest apart.
    let data_group = layout.tensor.saturating_mul(layout.data);
    let data_seconds = traffic.data_bytes / bandwidth(data_group) * rates.sent_share;
    let pipeline_seconds = traffic.pipeline_bytes / bandwidth(outcome.gpus);
    let bubble_seconds = outcome.bubble * (compute_seconds + tensor_seconds);
    let step_seconds =
        compute_seconds + bubble_seconds + tensor_seconds + pipeline_seconds + data_seconds;
    checked::positive("the time of a step", step_seconds)?;
    let tokens = job.sequence_tokens as f64 * job.global_batch as f64;
    let peak = rates.flops / cluster.compute_efficiency;
    Ok(Timed {
        outcome: *outcome,
        fits: outcome.memory.bytes <= cluster.budget_bytes as f64,
        compute_seconds,
        bubble_seconds,
        tensor_seconds,
        pipeline_seconds,
        data_seconds,
        step_seconds,
        tokens_per_second: tokens / step_seconds,
        gpu_seconds_per_million_tokens: step_seconds * gpus / tokens * 1e6,
        model_flops_utilization: outcome.flops.model / (step_seconds * gpus * peak),
    })
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// Cheapest first, at most as many as were asked for; empty where nothing fits.
    pub best: Vec<Timed>,
    pub examined: u64,
    pub fitting: u64,
    /// Of what does not fit, what needs least: tells how much is missing.
    pub smallest: Option<Timed>,
}

/// More layouts than this are not a search but a typing error.
const MAX_LAYOUTS: u64 = 20_000_000;
const PIECES: [u64; 4] = [1, 2, 3, 4];

/// The cheapest layouts that fit, `wanted` of them.
pub fn search(model: &Trained, job: &Job, cluster: &Cluster, wanted: usize) -> Result<Found> {
    let rates = cluster.rates()?;
    let mut found = Found {
        best: Vec::new(),
        examined: 0,
        fitting: 0,
        smallest: None,
    };
    let batches = divisors(checked::count("the batch of a step", job.global_batch)?)?;
    for &gpus in &cluster.gpus {
        checked::count("the number of GPUs", gpus)?;
        let counts = divisors(gpus)?;
        for &tensor in counts.iter().filter(|&&t| model.heads.is_multiple_of(t)) {
            let rest = gpus / tensor;
            let stages = counts
                .iter()
                .filter(|&&p| rest.is_multiple_of(p) && p <= model.layers);
            for &pipeline in stages {
                let data = rest / pipeline;
                if !job.global_batch.is_multiple_of(data) {
                    continue;
                }
                let of_one = job.global_batch / data;
                for &micro_batch in batches.iter().filter(|&&b| of_one.is_multiple_of(b)) {
                    let base = Layout {
                        tensor,
                        pipeline,
                        data,
                        zero: Zero::None,
                        recompute: Recompute::None,
                        sequence_parallel: tensor > 1,
                        schedule: Schedule::OneForwardOneBackward,
                        micro_batch,
                    };
                    for layout in variants(model, base, of_one / micro_batch) {
                        examine(model, job, &layout, cluster, &rates, wanted, &mut found)?;
                    }
                }
            }
        }
    }
    Ok(found)
}

/// A layout with every ZeRO, recomputation and interleaving that goes with it.
fn variants(model: &Trained, base: Layout, micro_batches: u64) -> Vec<Layout> {
    let zeros: &[Zero] = match (base.data, base.pipeline) {
        (1, _) => &[Zero::None],
        (_, 1) => &[
            Zero::None,
            Zero::Optimizer,
            Zero::Gradients,
            Zero::Parameters,
        ],
        _ => &[Zero::None, Zero::Optimizer],
    };
    let mut layouts = Vec::new();
    for &zero in zeros {
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            for pieces in PIECES {
                let divides = (model.layers).is_multiple_of(base.pipeline.saturating_mul(pieces))
                    && micro_batches.is_multiple_of(base.pipeline);
                if pieces > 1 && (base.pipeline == 1 || !divides) {
                    continue;
                }
                let schedule = match pieces {
                    1 => Schedule::OneForwardOneBackward,
                    _ => Schedule::Interleaved(pieces),
                };
                layouts.push(Layout {
                    zero,
                    recompute,
                    schedule,
                    ..base
                });
            }
        }
    }
    layouts
}

fn examine(
    model: &Trained,
    job: &Job,
    layout: &Layout,
    cluster: &Cluster,
    rates: &Rates,
    wanted: usize,
    found: &mut Found,
) -> Result<()> {
    found.examined += 1;
    if found.examined > MAX_LAYOUTS {
        return Err(Error::Absurd {
            what: "the number of layouts",
            value: format!("more than {MAX_LAYOUTS}"),
            wanted: "offer fewer numbers of GPUs, or a batch with fewer divisors",
        });
    }
    let outcome = training::evaluate(model, job, layout)?;
    let timed = timed(&outcome, job, rates, cluster)?;
    if !timed.fits {
        let bytes = |timed: &Timed| timed.outcome.memory.bytes;
        if found
            .smallest
            .is_none_or(|smallest| bytes(&timed) < bytes(&smallest))
        {
            found.smallest = Some(timed);
        }
        return Ok(());
    }
    found.fitting += 1;
    let cost = |timed: &Timed| timed.gpu_seconds_per_million_tokens;
    let place = found
        .best
        .partition_point(|known| cost(known) <= cost(&timed));
    if place < wanted {
        found.best.insert(place, timed);
        found.best.truncate(wanted);
    }
    Ok(())
}

/// All divisors, ascending.
fn divisors(number: u64) -> Result<Vec<u64>> {
    // Trial division to the root: a limit keeps it short.
    if number > 1 << 32 {
        return Err(Error::Absurd {
            what: "the number of GPUs or the batch of a step",
            value: number.to_string(),
            wanted: "it must be at most 2^32",
        });
    }
    let small: Vec<u64> = (1..=number.isqrt())
        .filter(|&d| number.is_multiple_of(d))
        .collect();
    let large = small
        .iter()
        .rev()
        .map(|d| number / d)
        .filter(|d| d * d > number);
    Ok(small.iter().copied().chain(large).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_all_and_ascend() {
        assert_eq!(divisors(1), Ok(vec![1]));
        assert_eq!(divisors(36), Ok(vec![1, 2, 3, 4, 6, 9, 12, 18, 36]));
        assert_eq!(divisors(13), Ok(vec![1, 13]));
        assert!(divisors(u64::MAX).is_err());
    }
}
