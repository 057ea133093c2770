//! The batch advisor: throughput and latency against batch, what fits, and what to choose.
//!
//! Times come from the roofline or from a table of measurements; memory is weights, the cache
//! of each sequence at its longest, and what the engine needs besides. Replicas are programs
//! that share one device: they take turns on it, so they gain only what one leaves idle
//! between its steps, and each has its own weights unless these are shared.

use serde::Serialize;

use crate::checked;
use crate::error::{Error, Result};
use crate::kv;
use crate::machines::Machine;
use crate::roofline::{self, Bound, Efficiency, Pass, Seconds, Types};
use crate::shape::Shape;

/// No advice goes further.
pub const MAX_BATCH: u64 = 65_536;
pub const MAX_REPLICAS: u64 = 64;

/// How far above the straight line from first to last point a knee must be.
const KNEE_HEIGHT: f64 = 0.05;

/// What is asked; [`Question::new`] has what is usual.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    pub shape: &'a Shape,
    pub types: Types,
    pub machine: &'a Machine,
    pub efficiency: Efficiency,
    /// Tokens in the cache of a sequence while it decodes, on average: decides the time.
    pub context_tokens: u64,
    /// Tokens that memory is kept for: decides what fits.
    pub max_context_tokens: u64,
    pub max_batch: u64,
    pub budget_bytes: u64,
    /// Memory besides weights and cache.
    pub other_bytes: u64,
    /// The longest time between two tokens of a sequence.
    pub max_latency_seconds: Option<f64>,
    /// Seconds of a step by batch, ascending, instead of the roofline's.
    /// Batches and seconds of a step, ascending: they come before the model.
    pub measured: Option<Vec<(u64, f64)>>,
    pub replicas: Replication,
}

/// How many programs may share the device, and how.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Replication {
    pub max_replicas: u64,
    /// Seconds of a step in which a program leaves the device idle.
    pub idle_seconds: f64,
    pub shared_weights: bool,
}

impl Replication {
    /// Of one step of each of `replicas` programs: whoever is done waits until the others had
    /// their turns.
    pub fn seconds(&self, busy_seconds: f64, replicas: u64) -> f64 {
        (busy_seconds + self.idle_seconds).max(busy_seconds * replicas as f64)
    }
}

impl<'a> Question<'a> {
    /// All of the machine's memory, batches up to 256, no target, one program.
    pub fn new(shape: &'a Shape, types: Types, machine: &'a Machine, context_tokens: u64) -> Self {
        Question {
            shape,
            types,
            machine,
            efficiency: Efficiency::default(),
            context_tokens,
            max_context_tokens: context_tokens,
            max_batch: 256,
            budget_bytes: machine.memory_bytes(),
            other_bytes: 0,
            max_latency_seconds: None,
            measured: None,
            replicas: Replication {
                max_replicas: 1,
                idle_seconds: 0.0,
                shared_weights: false,
            },
        }
    }
}

/// One batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    pub batch: u64,
    /// One step, which is the time between two tokens of a sequence.
    pub seconds: Seconds,
    pub tokens_per_second: f64,
    pub kv_bytes: u64,
    /// Weights, cache and the rest.
    pub memory_bytes: u64,
    pub fits: bool,
    pub meets_latency: bool,
    /// Not known of measured times.
    pub bound: Option<Bound>,
    /// Measured, or between two that were.
    pub is_measured: bool,
}

/// Programs that share the device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Replicas {
    pub replicas: u64,
    /// Of each.
    pub batch: u64,
    /// Between two tokens of a sequence, waiting for the others included.
    pub seconds: f64,
    pub tokens_per_second: f64,
    pub memory_bytes: u64,
    /// Over the best of one program.
    pub gain: f64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    pub points: Vec<Point>,
    /// Where more sequences stop paying: the point of the curve of throughput that is
    /// furthest above the line from its first to its last. None where there is no bend.
    pub knee_batch: Option<u64>,
    /// Most tokens per second of what fits and meets the target.
    pub best: Option<Point>,
    /// Largest batch that fits, even beyond those asked for.
    pub max_batch_that_fits: u64,
    pub weight_bytes: u64,
    pub kv_bytes_per_sequence: u64,
    pub replicas: Vec<Replicas>,
}

/// Advice for a question.
pub fn advise(question: &Question) -> Result<Advice> {
    check(question)?;
    let weight_bytes = question.shape.weight_bytes(question.types.weights)?;
    let kv = kv::at_context(
        question.shape,
        question.types.kv,
        question.max_context_tokens,
    )?;
    let memory = Memory {
        fixed: checked::sum("the memory", [weight_bytes, question.other_bytes])?,
        per_sequence: kv.bytes,
    };
    let points = points(question, memory)?;
    let curve: Vec<(f64, f64)> = points
        .iter()
        .map(|point| (point.batch as f64, point.tokens_per_second))
        .collect();
    let best = points
        .iter()
        .filter(|point| point.fits && point.meets_latency)
        .max_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second))
        .copied();
    Ok(Advice {
        knee_batch: knee(&curve).map(|at| points[at].batch),
        best,
        max_batch_that_fits: memory.max_batch(question.budget_bytes),
        weight_bytes,
        kv_bytes_per_sequence: kv.bytes,
        replicas: replicas(question, weight_bytes, kv.bytes, &points, best)?,
        points,
    })
}

fn check(question: &Question) -> Result<()> {
    checked::count("the largest batch", question.max_batch)?;
    checked::count("the memory budget", question.budget_bytes)?;
    checked::count_or_zero("other memory", question.other_bytes)?;
    if question.max_batch > MAX_BATCH {
        return Err(Error::Absurd {
            what: "the largest batch",
            value: question.max_batch.to_string(),
            wanted: "it must be at most 65536",
        });
    }
    let replication = &question.replicas;
    if !(1..=MAX_REPLICAS).contains(&replication.max_replicas) {
        return Err(Error::Absurd {
            what: "the number of replicas",
            value: replication.max_replicas.to_string(),
            wanted: "it must be from 1 to 64",
        });
    }
    checked::not_negative("the idle time of a step", replication.idle_seconds)?;
    if let Some(target) = question.max_latency_seconds {
        checked::positive("the latency target", target)?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Memory {
    fixed: u64,
    per_sequence: u64,
}

impl Memory {
    fn max_batch(self, budget_bytes: u64) -> u64 {
        let room = budget_bytes.checked_sub(self.fixed);
        room.map_or(0, |room| room / self.per_sequence.max(1))
    }
}

fn points(question: &Question, memory: Memory) -> Result<Vec<Point>> {
    let table = question.measured.as_deref().unwrap_or_default();
    check_measured(table)?;
    let modelled = |batch| {
        let pass = Pass::decode(batch, question.context_tokens);
        let (types, machine) = (question.types, question.machine);
        roofline::time(question.shape, pass, types, machine, question.efficiency)
    };
    // Beyond what was measured the model goes on from there.
    let beyond = match table.last() {
        Some(&(batch, seconds)) => seconds / modelled(batch)?.seconds.likely,
        None => 1.0,
    };
    (1..=question.max_batch)
        .map(|batch| {
            let (seconds, bound, is_measured) = match measured(table, batch) {
                Some(seconds) => (seconds, None, true),
                None => {
                    let time = modelled(batch)?;
                    (time.seconds.times(beyond), Some(time.bound), false)
                }
            };
            let kv_bytes = checked::product("the cache", &[memory.per_sequence, batch])?;
            let memory_bytes = checked::sum("the memory", [memory.fixed, kv_bytes])?;
            let target = question.max_latency_seconds.unwrap_or(f64::INFINITY);
            Ok(Point {
                batch,
                seconds,
                tokens_per_second: batch as f64 / seconds.likely,
                kv_bytes,
                memory_bytes,
                fits: memory_bytes <= question.budget_bytes,
                meets_latency: seconds.likely <= target,
                bound,
                is_measured,
            })
        })
        .collect()
}

/// Whether a table is as it should be; an empty one says nothing.
fn check_measured(table: &[(u64, f64)]) -> Result<()> {
    for &(batch, seconds) in table {
        checked::count("a measured batch", batch)?;
        checked::positive("a measured time", seconds)?;
    }
    match table.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(Error::Absurd {
            what: "the table of measured times",
            value: format!("{} before {}", pair[0].0, pair[1].0),
            wanted: "batches must ascend, each once",
        }),
    }
}

/// A measured time, or one on the line between its neighbours. Below the smallest batch it is
/// that of the smallest: fewer sequences do not take longer. `None` above the largest.
fn measured(table: &[(u64, f64)], batch: u64) -> Option<Seconds> {
    let after = table.partition_point(|(measured, _)| *measured < batch);
    let &(high, high_seconds) = table.get(after)?;
    let likely = match after.checked_sub(1).and_then(|at| table.get(at)) {
        Some(&(low, low_seconds)) => {
            let share = (batch - low) as f64 / (high - low) as f64;
            low_seconds + share * (high_seconds - low_seconds)
        }
        None => high_seconds,
    };
    Some(Seconds {
        best: likely,
        likely,
        worst: likely,
    })
}

/// The place of the point furthest above the line from the first to the last, with both axes
/// scaled to one.
fn knee(curve: &[(f64, f64)]) -> Option<usize> {
    let (&(first_x, first_y), &(last_x, last_y)) = (curve.first()?, curve.last()?);
    let (width, height) = (last_x - first_x, last_y - first_y);
    if width <= 0.0 || height <= 0.0 {
        return None;
    }
    let above = |&(x, y): &(f64, f64)| (y - first_y) / height - (x - first_x) / width;
    let highest = curve
        .iter()
        .map(above)
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(&b.1));
    highest
        .filter(|(_, above)| *above > KNEE_HEIGHT)
        .map(|(at, _)| at)
}

fn replicas(
    question: &Question,
    weight_bytes: u64,
    kv_bytes: u64,
    points: &[Point],
    best: Option<Point>,
) -> Result<Vec<Replicas>> {
    let replication = question.replicas;
    let target = question.max_latency_seconds.unwrap_or(f64::INFINITY);
    let mut found: Vec<Replicas> = Vec::new();
    for replicas in 1..=replication.max_replicas {
        let weights = if replication.shared_weights {
            1
        } else {
            replicas
        };
        let fixed = checked::sum(
            "the memory of all replicas",
            [
                checked::product("the weights of all replicas", &[weight_bytes, weights])?,
                checked::product(
                    "other memory of all replicas",
                    &[question.other_bytes, replicas],
                )?,
            ],
        )?;
        let candidates = points.iter().filter_map(|point| {
            let seconds = replication.seconds(point.seconds.likely, replicas);
            let sequences = point.batch.checked_mul(replicas)?;
            let memory_bytes = kv_bytes.checked_mul(sequences)?.checked_add(fixed)?;
            let tokens_per_second = sequences as f64 / seconds;
            (memory_bytes <= question.budget_bytes && seconds <= target).then_some(Replicas {
                replicas,
                batch: point.batch,
                seconds,
                tokens_per_second,
                memory_bytes,
                gain: 1.0,
            })
        });
        let best = candidates.max_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second));
        found.extend(best);
    }
    let alone = found.first().filter(|first| first.replicas == 1);
    let alone = alone
        .map(|one| one.tokens_per_second)
        .or(best.map(|b| b.tokens_per_second));
    if let Some(alone) = alone {
        for replicas in &mut found {
            replicas.gain = replicas.tokens_per_second / alone;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_times_are_interpolated_and_never_extrapolated() {
        let table = [(2, 10.0), (4, 14.0)];
        let at = |batch| measured(&table, batch).map(|seconds| seconds.likely);
        let expect = [Some(10.0), Some(10.0), Some(12.0), Some(14.0), None];
        assert_eq!([1, 2, 3, 4, 5].map(at), expect);
        assert_eq!(check_measured(&table), Ok(()));
        assert_eq!(measured(&[], 1), None);
        assert!(check_measured(&[(2, 1.0), (2, 1.0)]).is_err());
        assert!(check_measured(&[(2, f64::NAN)]).is_err());
    }

    #[test]
    fn the_knee_is_where_the_curve_bends() {
        let curve: Vec<(f64, f64)> = (1..=100)
            .map(|x| f64::from(x).min(20.0))
            .enumerate()
            .map(|(at, y)| (at as f64 + 1.0, y))
            .collect();
        assert_eq!(knee(&curve), Some(19));
        let line: Vec<(f64, f64)> = (1..=9).map(|x| (f64::from(x), f64::from(x))).collect();
        assert_eq!(knee(&line), None);
        assert_eq!(knee(&[]), None);
    }
}
