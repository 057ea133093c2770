//! One card, one small model: is it better served by replicas or by a larger batch?
//!
//! A step of decoding is a chain of the matrix products of some layers, in bf16 through the
//! vendor's library, recorded once. Replicas are streams of one process, each with weights of
//! its own or all with the same.

use std::rc::Rc;

use anyhow::ensure;
use half::bf16;

use crate::{
    cuda::{Buffer, Card, Graph, Launch, vendor::Vendor},
    experiments::Request,
    inputs::{self, Distance, Inputs},
    measure::{self, Spread},
    outcome::{Outcome, Row},
    step::{File, Step},
};

const FILE: File = File {
    path: "crates/lab/kernels/replicas.cu",
    text: include_str!("../kernels/replicas.cu"),
};

pub const STEPS: &[Step] = &[Step {
    name: "scale-weights",
    about: "Not measured: makes weights that keep the size of what passes through them.",
    file: FILE,
    function: "scale_weights",
    defines: &[],
    claims: &[],
}];

/// (n, k) of the products of one layer, as in a model of a billion weights: queries, keys and
/// values; output; both of the first feed-forward ones; the second.
const LAYER: [(usize, usize); 4] = [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)];
const LAYERS: usize = 8;
/// The widest that is between two products.
const WIDEST: usize = 16384;
const PREDICTION: &str = "prediction";

type Weights = Rc<Vec<Buffer<bf16>>>;

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let card = Card::open()?;
    let mut outcome = Outcome::new(
        "replicas",
        "A small model on one card: replicas or a larger batch?",
        "batch",
        "tokens/s",
        Some(card.about()),
        request.seed,
    );
    let inputs = Inputs::new(&card)?;
    let layers = if request.is_quick { 2 } else { LAYERS };
    let counts: &[usize] = if request.is_quick {
        &[1, 2]
    } else {
        &[1, 2, 4, 8]
    };
    let batches = request.sizes_or(&[1, 2, 4, 8, 16, 32, 64, 128], &[1, 16]);
    let ceilings = Ceilings::measure(&card, &inputs, request)?;
    let most = counts.iter().max().copied().unwrap_or(1);
    let weights = (0..most)
        .map(|_| random_weights(&card, &inputs, layers, request.seed))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for &batch in &batches {
        let cases = cases(counts);
        let mut groups = Vec::new();
        for case in &cases {
            let replicas = (0..case.replicas).map(|i| {
                let weights = &weights[if case.is_shared { 0 } else { i }];
                Replica::new(&card, &inputs, weights.clone(), batch, request.seed)
            });
            groups.push(replicas.collect::<anyhow::Result<Vec<_>>>()?);
        }
        check(&groups, &weights[0], batch, request.seed)?;
        let enough = if request.is_quick { 1e-3 } else { 15e-3 };
        let mut steps = Vec::new();
        for group in &groups {
            steps.push(measure::repeats(seconds_of(group, 2)? / 2.0, enough).max(2));
        }
        let times = measure::in_turns(cases.len(), request.rounds.min(10), |i| {
            Ok(seconds_of(&groups[i], steps[i])? / f64::from(steps[i]))
        })?;
        for (case, times) in cases.iter().zip(&times) {
            let tokens = (batch * case.replicas) as f64;
            let predicted = ceilings.step_seconds(layers, batch, case.replicas);
            let ratios: Vec<f64> = times.iter().map(|time| predicted / time).collect();
            let value = Spread::of(times).map(|seconds| tokens / seconds);
            let row = Row::reference(&case.name(), format!("{batch}"), batch as f64, value);
            outcome
                .rows
                .push(row.against(PREDICTION, Spread::of(&ratios)));
        }
    }
    notes(&mut outcome, &ceilings, layers, &batches, counts);
    Ok(outcome)
}

/// One way to use the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    replicas: usize,
    is_shared: bool,
}

impl Case {
    fn name(self) -> String {
        match (self.replicas, self.is_shared) {
            (1, _) => "1 replica".to_owned(),
            (count, false) => format!("{count} replicas"),
            (count, true) => format!("{count} replicas, shared weights"),
        }
    }
}

fn cases(counts: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &replicas in counts {
        cases.push(Case {
            replicas,
            is_shared: false,
        });
        if replicas > 1 {
            cases.push(Case {
                replicas,
                is_shared: true,
            });
        }
    }
    cases
}

/// What the card can do, measured in the same run.
struct Ceilings {
    bytes_per_second: f64,
    flops_per_second: f64,
}

impl Ceilings {
    fn measure(card: &Card, inputs: &Inputs, request: &Request) -> anyhow::Result<Ceilings> {
        let elements = if request.is_quick { 64 << 20 } else { 1 << 30 };
        let from = inputs.random::<bf16>(elements, request.seed)?;
        let to = card.buffer::<bf16>(elements)?;
        let side = if request.is_quick { 2048 } else { 8192 };
        let a = inputs.random::<bf16>(side * side, request.seed)?;
        let b = inputs.random::<bf16>(side * side, request.seed ^ 1)?;
        let c = card.buffer::<bf16>(side * side)?;
        let vendor = Vendor::open(card)?;
        let times = measure::in_turns(2, 5, |i| match i {
            0 => card.time_ms(|| to.copy_from(&from)),
            _ => card.time_ms(|| vendor.bf16((side, side, side), &a, &b, &c)),
        })?;
        let seconds = |i: usize| Spread::of(&times[i]).median / 1e3;
        Ok(Ceilings {
            bytes_per_second: 2.0 * from.bytes() as f64 / seconds(0),
            flops_per_second: 2.0 * (side as f64).powi(3) / seconds(1),
        })
    }

    /// Of one step of all replicas: each reads all weights and computes its own batch.
    fn step_seconds(&self, layers: usize, batch: usize, replicas: usize) -> f64 {
        let weights = (weights_of(layers) * replicas) as f64;
        let bytes = 2.0 * weights / self.bytes_per_second;
        let flops = 2.0 * weights * batch as f64 / self.flops_per_second;
        bytes.max(flops)
    }
}

fn weights_of(layers: usize) -> usize {
    layers * LAYER.iter().map(|(n, k)| n * k).sum::<usize>()
}

fn random_weights(
    card: &Card,
    inputs: &Inputs,
    layers: usize,
    seed: u32,
) -> anyhow::Result<Weights> {
    let scale = Rc::new(card.kernels(FILE.path, FILE.text, &[])?).kernel("scale_weights")?;
    let mut all = Vec::new();
    for (i, (n, k)) in (0..layers).flat_map(|_| LAYER).enumerate() {
        let weights = inputs.random::<bf16>(n * k, seed.wrapping_add(i as u32))?;
        let how = Launch::new((1024, 1, 1), 256, 0);
        // SAFETY: the kernel takes a buffer, its length and a factor.
        unsafe { scale.launch(how, &[&weights, &((n * k) as u64), &factor(k)])? };
        all.push(weights);
    }
    Ok(Rc::new(all))
}

/// A sum of k products of numbers that are even between -1 and 1 is this much too large.
fn factor(k: usize) -> f32 {
    (3.0 / k as f32).sqrt()
}

/// One model with its own stream.
struct Replica {
    step: Graph,
    first: Buffer<bf16>,
    result: Buffer<bf16>,
    /// What the recorded step uses besides.
    _kept: (Buffer<bf16>, [Buffer<bf16>; 2], Vendor, Weights),
}

impl Replica {
    fn new(
        card: &Card,
        inputs: &Inputs,
        weights: Weights,
        batch: usize,
        seed: u32,
    ) -> anyhow::Result<Replica> {
        let stream = card.new_stream()?;
        let vendor = Vendor::open(card)?;
        vendor.use_stream(Some(&stream))?;
        let x = inputs.random::<bf16>(batch * LAYER[0].1, seed ^ 2)?;
        let first = inputs.poisoned::<bf16>(batch * LAYER[0].0)?;
        let result = inputs.poisoned::<bf16>(batch * LAYER[3].0)?;
        let between = [
            inputs.poisoned::<bf16>(batch * WIDEST)?,
            inputs.poisoned::<bf16>(batch * WIDEST)?,
        ];
        let last = weights.len() - 1;
        let chain = || -> anyhow::Result<()> {
            for (i, matrix) in weights.iter().enumerate() {
                let (n, k) = LAYER[i % LAYER.len()];
                // A product reads what the one before wrote, or the beginning of it: what
                // happens between products is not what is measured here.
                let from = match i {
                    0 => &x,
                    1 => &first,
                    _ => &between[(i + 1) % 2],
                };
                let to = match i {
                    0 => &first,
                    _ if i == last => &result,
                    _ => &between[i % 2],
                };
                vendor.bf16((batch, n, k), from, matrix, to)?;
            }
            Ok(())
        };
        chain()?;
        stream.wait()?;
        let step = card.record_on(stream, |_| chain())?;
        Ok(Replica {
            step,
            first,
            result,
            _kept: (x, between, vendor, weights),
        })
    }
}

/// Seconds until all replicas have made so many steps, side by side.
fn seconds_of(group: &[Replica], steps: u32) -> anyhow::Result<f64> {
    let (seconds, done) = measure::seconds(|| -> anyhow::Result<()> {
        for _ in 0..steps {
            group.iter().try_for_each(|replica| replica.step.start())?;
        }
        group.iter().try_for_each(|replica| replica.step.wait())
    });
    done?;
    Ok(seconds)
}

/// Replicas that run side by side must find what one alone finds, and that its first product
/// is right shows that they compute what they should.
fn check(
    groups: &[Vec<Replica>],
    weights: &Weights,
    batch: usize,
    seed: u32,
) -> anyhow::Result<()> {
    let alone = &groups[0][0];
    seconds_of(&groups[0], 1)?;
    let expected = alone.result.read()?;
    ensure!(
        expected.iter().all(|value| value.is_finite()),
        "the chain of products does not give numbers"
    );
    let (n, k) = LAYER[0];
    let (first, matrix) = (alone.first.read()?, weights[0].read()?);
    let mut distance = Distance::default();
    for (token, row) in inputs::places(batch, n, 60, seed) {
        let products = (0..k).map(|i| {
            let x = inputs::value_bf16(seed ^ 2, (token * k + i) as u32);
            f64::from(x.to_f32()) * f64::from(matrix[row * k + i].to_f32())
        });
        distance.add(f64::from(first[token * n + row].to_f32()), products.sum());
    }
    let error = distance.relative();
    ensure!(error < 5e-3, "the first product is wrong: {error:.1e}");
    for group in groups {
        seconds_of(group, 3)?;
        for replica in group {
            let mut distance = Distance::default();
            for (found, expected) in replica.result.read()?.iter().zip(&expected) {
                distance.add(f64::from(found.to_f32()), f64::from(expected.to_f32()));
            }
            // The vendor's library may sum up in another order.
            let error = distance.relative();
            ensure!(
                error < 2e-2,
                "one of {} replicas computes something else: {error:.1e}",
                group.len()
            );
        }
    }
    Ok(())
}

fn notes(
    outcome: &mut Outcome,
    ceilings: &Ceilings,
    layers: usize,
    batches: &[usize],
    counts: &[usize],
) {
    let bytes = 2.0 * weights_of(layers) as f64;
    let mut notes = vec![
        format!(
            "A step is {layers} layers of four products ({:.2} GB of bf16 weights), recorded as a graph; replicas are streams of one process. No attention, no sampling.",
            bytes / 1e9
        ),
        format!(
            "Prediction: a step of R replicas with batch B takes max(R × weight bytes / bandwidth, R × 2 × weights × B / peak), with {:.2} TB/s (a copy, read and written) and {:.0} TFLOP/s (cuBLAS bf16, a large square product), both measured here; tokens/s = R × B / step.",
            ceilings.bytes_per_second / 1e12,
            ceilings.flops_per_second / 1e12
        ),
    ];
    let tokens = |case: Case, batch: usize| {
        let name = case.name();
        let row = outcome
            .rows
            .iter()
            .find(|row| row.step == name && row.x == batch as f64)?;
        Some(row.value.median)
    };
    for case in cases(counts) {
        let latencies: Vec<String> = batches
            .iter()
            .filter_map(|&batch| {
                let seconds = (batch * case.replicas) as f64 / tokens(case, batch)?;
                Some(format!("{batch}: {:.3}", seconds * 1e3))
            })
            .collect();
        notes.push(format!(
            "{}: ms between tokens by batch: {}.",
            case.name(),
            latencies.join(", ")
        ));
    }
    // The same number of sequences at once, as a batch or as replicas.
    let one = Case {
        replicas: 1,
        is_shared: false,
    };
    for &replicas in counts.iter().filter(|&&count| count > 1) {
        for &batch in batches {
            let case = Case {
                replicas,
                is_shared: false,
            };
            let whole = batch * replicas;
            if let (Some(batched), Some(split)) = (tokens(one, whole), tokens(case, batch)) {
                notes.push(format!(
                    "{whole} sequences: one replica with batch {whole} makes {:.2} times the tokens of {replicas} replicas with batch {batch}.",
                    batched / split
                ));
            }
        }
    }
    let is_there = std::env::var_os("PATH").is_some_and(|paths| {
        std::env::split_paths(&paths).any(|path| path.join("nvidia-cuda-mps-control").exists())
    });
    notes.push(match is_there {
        true => "MPS (replicas as processes) is installed here, but was not measured.".to_owned(),
        false => "MPS (replicas as processes) was not measured: there is no nvidia-cuda-mps-control here.".to_owned(),
    });
    outcome.notes.append(&mut notes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_hold_up_small_batches_and_arithmetic_large_ones() {
        let ceilings = Ceilings {
            bytes_per_second: 4e12,
            flops_per_second: 800e12,
        };
        let step = |batch, replicas| ceilings.step_seconds(8, batch, replicas);
        assert_eq!(step(1, 1), step(64, 1));
        assert_eq!(step(1, 4), 4.0 * step(1, 1));
        assert!(step(512, 1) > 2.0 * step(1, 1));
    }
}
