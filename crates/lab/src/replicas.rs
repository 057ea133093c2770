//! One card, one small model: is it better served by replicas or by a larger batch?
//!
//! A step of decoding is a chain of the matrix products of some layers, in bf16 through the
//! vendor's library, recorded once. Replicas are streams of one process, each with weights of
//! its own or all with the same, or processes, which the card serves in turns, or together where
//! NVIDIA's MPS runs. Beside them stands what the advisor (crate `estimate`) predicts.

mod mps;
mod prediction;
mod processes;

use std::rc::Rc;

use anyhow::ensure;
use cuda::{Buffer, Card, Graph, Launch};
use half::bf16;

pub use self::processes::serve;
use self::{prediction::Advisor, processes::Company};
use crate::{
    experiments::Request,
    inputs::{self, Distance, Inputs},
    measure::{self, Spread},
    outcome::{Outcome, Row},
    profiler,
    step::{File, Step},
    toolkit::{Compile, vendor::Vendor},
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
    if profiler::is_profiled() {
        random_weights(&card, &inputs, layers, request.seed)?;
        return Ok(outcome);
    }
    let counts: &[usize] = if request.is_quick {
        &[1, 2]
    } else {
        &[1, 2, 4, 8]
    };
    let batches = request.sizes_or(&[1, 2, 4, 8, 16, 32, 64, 128], &[1, 16]);
    let most = counts.iter().max().copied().unwrap_or(1);
    let weights = (0..most)
        .map(|_| random_weights(&card, &inputs, layers, request.seed))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut measured = Vec::new();
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
        let enough = if request.is_quick { 1e-3 } else { 40e-3 };
        let mut steps = Vec::new();
        for group in &groups {
            steps.push(measure::repeats(seconds_of(group, 2)? / 2.0, enough).max(2));
        }
        let times = measure::in_turns(cases.len(), request.rounds.min(10), |i| {
            Ok(seconds_of(&groups[i], steps[i])? / f64::from(steps[i]))
        })?;
        for (case, times) in cases.iter().zip(times) {
            measured.push(Measured {
                replicas: case.replicas,
                batch,
                name: case.name(),
                times,
            });
        }
    }
    drop(weights);
    for company in [Company::InTurns, Company::Mps] {
        let asked = (layers, &batches[..], counts);
        match processes::measure(company, asked, request) {
            Ok(more) => measured.extend(more),
            Err(reason) => outcome.notes.push(format!(
                "Replicas as {} were not measured: {reason:#}.",
                company.words()
            )),
        }
    }
    let alone = |row: &&Measured| row.replicas == 1 && row.name == ALONE;
    let alone: Vec<(u64, f64)> = measured
        .iter()
        .filter(alone)
        .map(|row| (row.batch as u64, Spread::of(&row.times).median))
        .collect();
    let advisor = Advisor::new(&card, layers, alone);
    add_rows(&mut outcome, &measured, advisor.as_ref().ok())?;
    notes(&mut outcome, layers, &batches, counts);
    outcome.notes.push(match advisor {
        Ok(advisor) => advisor.words(),
        Err(reason) => format!("No prediction: {reason:#}."),
    });
    Ok(outcome)
}

/// Some replicas at one batch: seconds of a step of all, in each round.
struct Measured {
    replicas: usize,
    batch: usize,
    name: String,
    times: Vec<f64>,
}

/// Batch by batch, what was measured and then what was predicted.
fn add_rows(
    outcome: &mut Outcome,
    measured: &[Measured],
    advisor: Option<&Advisor>,
) -> anyhow::Result<()> {
    let mut batches: Vec<usize> = measured.iter().map(|row| row.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    for batch in batches {
        let of_batch = || measured.iter().filter(|row| row.batch == batch);
        for row in of_batch() {
            let tokens = (batch * row.replicas) as f64;
            let value = Spread::of(&row.times).map(|seconds| tokens / seconds);
            let mut added = Row::reference(&row.name, format!("{batch}"), batch as f64, value);
            if let Some(advisor) = advisor {
                let predicted = advisor.predict(batch, row.replicas)?;
                let ratios: Vec<f64> = row.times.iter().map(|time| predicted / time).collect();
                added = added.against(prediction::NAME, Spread::of(&ratios));
            }
            outcome.rows.push(added);
        }
        let Some(advisor) = advisor else { continue };
        // Replicas take turns, says the advisor: any number makes as many tokens.
        for (name, seconds) in [
            (prediction::NAME, advisor.predict(batch, 1)?),
            (prediction::BY_ONE, advisor.by_one(batch, 1)?),
        ] {
            let value = Spread::of(&[batch as f64 / seconds]);
            let case = batch.to_string();
            let row = Row::reference(name, case, batch as f64, value);
            outcome.rows.push(row);
        }
    }
    Ok(())
}

const ALONE: &str = "1 replica";

/// One way to use the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    replicas: usize,
    is_shared: bool,
}

impl Case {
    fn name(self) -> String {
        match (self.replicas, self.is_shared) {
            (1, _) => ALONE.to_owned(),
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
        let launch = || -> anyhow::Result<()> {
            // SAFETY: the kernel takes a buffer, its length and a factor.
            unsafe { scale.launch(how, &[&weights, &((n * k) as u64), &factor(k)])? };
            Ok(())
        };
        match profiler::is_profiled() && i == 0 {
            true => profiler::show(card, &STEPS[0], &format!("{n} × {k}"), launch)?,
            false => launch()?,
        }
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
        Ok(group.iter().try_for_each(|replica| replica.step.wait())?)
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

fn notes(outcome: &mut Outcome, layers: usize, batches: &[usize], counts: &[usize]) {
    let bytes = 2.0 * weights_of(layers) as f64;
    let mut notes = vec![format!(
        "A step is {layers} layers of four products ({:.2} GB of bf16 weights), recorded as a graph; replicas are streams of one process where nothing else is said. No attention, no sampling.",
        bytes / 1e9
    )];
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
    outcome.notes.append(&mut notes);
}
