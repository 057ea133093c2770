//! The time that a machine needs for a prompt and for a step of decoding, of which `work`
//! counts FLOPs and bytes.
//!
//! A part takes the longer of its computing and its memory traffic, parts follow each other.
//! Times are bounds divided by an efficiency; [`Efficiency`] gives the interval. Where an
//! engine's kernels were measured on the machine ([`Rates`]), times are their sums instead.

use serde::{Deserialize, Serialize};

use crate::checked;
use crate::error::{Error, Result};
use crate::machines::Machine;
use crate::number::{ComputeType, NumberType};
use crate::rates::{self, Rates};
use crate::shape::Shape;
pub use crate::work::{Pass, Stage, Types, Units, Work, work};

/// A low, a likely and a high share of what a machine can do at best.
pub type Interval = (f64, f64, f64);

/// Which part of peak bandwidth and peak FLOP/s is reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Efficiency {
    pub memory: Interval,
    pub compute: Interval,
    /// Of each operation, however small: starting it, and waiting for the one before.
    pub node: Seconds,
}

impl Default for Efficiency {
    /// By judgement, not calibrated: streaming reads reach 60 to 92 % of a datasheet's
    /// bandwidth, large matrix products 40 to 80 % of its FLOP/s.
    fn default() -> Efficiency {
        Efficiency {
            memory: (0.6, 0.8, 0.92),
            compute: (0.4, 0.6, 0.8),
            node: Seconds::ZERO,
        }
    }
}

impl Efficiency {
    /// The bounds themselves.
    pub const IDEAL: Efficiency = Efficiency {
        memory: (1.0, 1.0, 1.0),
        compute: (1.0, 1.0, 1.0),
        node: Seconds::ZERO,
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
    /// Kernels that were measured, and reach neither: small operations, waiting for each other.
    Kernels,
}

/// Seconds: at best, likely, at worst.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
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
    /// The longer of the two; by measured rates where there are any.
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
        .map(|work| {
            let rated = machine.rates.as_ref();
            let rated = rated.and_then(|rates| rated_seconds(&work, types.kv, rates));
            stage_time(work, bandwidth, peak, efficiency, rated)
        })
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
    let mut bound = Bound::Memory;
    for other in [Bound::Compute, Bound::Kernels] {
        if waits(other) > waits(bound) {
            bound = other;
        }
    }
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

/// By measured rates; `None` where one is missing.
fn rated_seconds(work: &Work, kv: NumberType, rates: &Rates) -> Option<Seconds> {
    let units = &work.units;
    let curves = match work.stage {
        Stage::Experts => &rates.experts,
        _ => &rates.products,
    };
    let mut seconds = rates.node.times(units.nodes);
    let fixed = units.output_bytes * rates.seconds_per_output_byte
        + match work.stage {
            Stage::Other => rates.seconds_per_pass + units.tokens * rates.seconds_per_token,
            _ => 0.0,
        };
    seconds = seconds.plus(Seconds {
        best: fixed,
        likely: fixed,
        worst: fixed,
    });
    for &(matrix, parameters, tokens) in &units.weights {
        if parameters > 0.0 && tokens > 0.0 {
            let each = rates::product(curves, matrix)?.at(tokens)?;
            seconds = seconds.plus(each.times(parameters));
        }
    }
    // Sequences share one cache: each token is held against the cells of all, and a kernel
    // that does not leave out what is masked computes as if they were one.
    let tokens = match rates.computes_masked {
        true => units.tokens * units.batch,
        false => units.tokens,
    };
    for (kind, layers, pairs) in &units.pairs {
        let each = rates::attention(&rates.attention, kv.name, kind)?.at(tokens)?;
        let numbers = kind.flops_per_cached_token() / 2.0;
        let least = layers * numbers * rates.min_cached_tokens as f64;
        seconds = seconds.plus(each.times(pairs.max(least)));
    }
    if units.elements > 0.0 {
        let each = rates.elements.at(units.tokens.max(1.0))?;
        seconds = seconds.plus(each.times(units.elements));
    }
    Some(seconds)
}

/// The time of one sequence's prompt, which is computed in passes of at most `micro_batch`
/// tokens.
pub fn prompt_time(
    shape: &Shape,
    (tokens, micro_batch): (u64, u64),
    types: Types,
    machine: &Machine,
    efficiency: Efficiency,
) -> Result<PassTime> {
    let micro_batch = checked::count("the tokens of a pass", micro_batch)?;
    let tokens = checked::count("the prompt", tokens)?;
    // Passes in between grow evenly: the first, the last, and how many there are is enough.
    let pass = |context_tokens: u64, output_tokens| Pass {
        batch: 1,
        new_tokens: micro_batch.min(tokens - context_tokens),
        context_tokens,
        output_tokens,
    };
    let time = |pass| time(shape, pass, types, machine, efficiency);
    let last_begin = (tokens - 1) / micro_batch * micro_batch;
    let last = time(pass(last_begin, 1))?;
    if last_begin == 0 {
        return Ok(last);
    }
    let (first, before) = (time(pass(0, 0))?, time(pass(last_begin - micro_batch, 0))?);
    let full = (last_begin / micro_batch) as f64;
    let mean = |of: fn(&PassTime) -> f64| full * (of(&first) + of(&before)) / 2.0 + of(&last);
    let seconds = Seconds {
        best: mean(|time| time.seconds.best),
        likely: mean(|time| time.seconds.likely),
        worst: mean(|time| time.seconds.worst),
    };
    let (flops, bytes) = (mean(|time| time.flops), mean(|time| time.bytes));
    // The stages of all passes, in the proportions of a full one.
    let factor = seconds.likely / first.seconds.likely;
    let stages = first.stages.iter().cloned().map(|stage| StageTime {
        memory_seconds: stage.memory_seconds * factor,
        compute_seconds: stage.compute_seconds * factor,
        seconds: stage.seconds.times(factor),
        ..stage
    });
    Ok(PassTime {
        pass: Pass::prompt(1, tokens),
        stages: stages.collect(),
        seconds,
        flops,
        bytes,
        flop_per_byte: flops / bytes.max(1.0),
        tokens_per_second: tokens as f64 / seconds.likely,
        ..first
    })
}

/// A pass whose layers are computed one after the other on two machines, the first of which
/// has a share of the weights.
pub fn split(first: PassTime, second: &PassTime, first_share: f64) -> Result<PassTime> {
    checked::not_negative("the share of the first machine", first_share)?;
    let share = first_share.min(1.0);
    let (of_first, of_second) = (
        first.seconds.times(share),
        second.seconds.times(1.0 - share),
    );
    let seconds = of_first.plus(of_second);
    let slower = of_second.likely > of_first.likely;
    Ok(PassTime {
        bound: if slower { second.bound } else { first.bound },
        tokens_per_second: first.tokens_per_second * first.seconds.likely / seconds.likely,
        seconds,
        ..first
    })
}

fn stage_time(
    work: Work,
    bandwidth: f64,
    peak: f64,
    efficiency: Efficiency,
    rated: Option<Seconds>,
) -> StageTime {
    let memory = work.bytes() / bandwidth;
    let compute = work.flops / peak;
    let (low_memory, likely_memory, high_memory) = efficiency.memory;
    let (low_compute, likely_compute, high_compute) = efficiency.compute;
    let longer = |m: f64, c: f64| (memory / m).max(compute / c);
    let modelled = Seconds {
        best: longer(high_memory, high_compute),
        likely: longer(likely_memory, likely_compute),
        worst: longer(low_memory, low_compute),
    }
    .plus(efficiency.node.times(work.units.nodes));
    let memory_seconds = memory / likely_memory;
    let compute_seconds = compute / likely_compute;
    let seconds = rated.unwrap_or(modelled);
    let ideal = memory.max(compute);
    StageTime {
        work,
        memory_seconds,
        compute_seconds,
        seconds,
        bound: match rated {
            Some(rated) if rated.likely * REACHED_AT_LEAST > ideal => Bound::Kernels,
            _ if compute_seconds > memory_seconds => Bound::Compute,
            _ => Bound::Memory,
        },
    }
}

/// What is measured is bound by memory or computing if it reaches this share of what the hardware
/// does at best.
const REACHED_AT_LEAST: f64 = 0.4;
