//! Attention of a whole prompt: scores written to memory and read again, against scores that
//! never leave the multiprocessor.

use std::rc::Rc;

use anyhow::ensure;
use cuda::{Buffer, Card, Graph, Kernel, Launch, Stream, Swizzle, TensorMap};
use half::bf16;

use crate::{
    attention::{
        GROUP, HEAD, KV_HEADS, MOST_ERROR, QUERY_HEADS, Row, attend, on_all_cores, scale_for_exp2,
    },
    experiments::Request,
    inputs::{self, Distance, Inputs},
    measure::{self, Spread},
    outcome::{self, Outcome},
    profiler,
    step::{File, Step},
    toolkit::{Compile, vendor::Vendor},
};

const NAME: &str = "attention-prefill";
const FILE: File = File {
    path: "crates/lab/kernels/attention_prefill.cu",
    text: include_str!("../kernels/attention_prefill.cu"),
};

const STANDARD: Step = Step {
    name: "standard",
    about: "Three kernels: scores to memory (f32), softmax to memory (bf16), weights × values; each on tensor cores where it multiplies, and nothing above the diagonal.",
    file: FILE,
    function: "standard_scores",
    defines: &[],
    claims: &["HMMA.16816.F32.BF16", "LDGSTS", "LDSM"],
};
const BLOCKWISE: Step = Step {
    name: "block-wise",
    about: "One kernel: softmax goes along with the keys, scores and results stay in registers; only queries, keys, values and results pass through memory.",
    file: FILE,
    function: "blockwise",
    defines: &[],
    claims: &["HMMA.16816.F32.BF16", "LDGSTS", "LDSM"],
};
const HOPPER: Step = Step {
    name: "hopper",
    about: "The same with Hopper's instructions: the copy engine brings tiles, wgmma reads them from shared memory, and the softmax is computed while the tensor cores work.",
    file: FILE,
    function: "blockwise_hopper",
    defines: &[],
    claims: &["HGMMA.64x128x16.F32.BF16", "UTMALDG.2D", "SYNCS"],
};
pub const STEPS: &[Step] = &[STANDARD, BLOCKWISE, HOPPER];

/// Queries that a block of every kernel takes.
const TILE: usize = 128;
const TILES_BYTES: u32 = 64 << 10;
/// Queries, two tiles of keys and of values, their barriers, and up to 1 KiB before the first.
const HOPPER_BYTES: u32 = 5 * (32 << 10) + 128 + 1024;
/// Side of the matrices that cuBLAS multiplies beside: what the tensor cores can give.
const VENDOR_SIZE: usize = 8192;

/// Operations below the diagonal, as is usual: half of 2 × 2 × n² × 128 × heads.
fn operations(prompt: usize) -> f64 {
    2.0 * (prompt as f64).powi(2) * (HEAD * QUERY_HEADS) as f64
}

/// Bytes that must pass between the card and its memory if only what is in cache for a moment
/// is read again: queries, keys, values and results once, and for the standard form scores
/// (4 bytes, written and read) and weights (2 bytes, written and read) below the diagonal.
fn bytes(step: &Step, prompt: usize) -> f64 {
    let rows = (2 * QUERY_HEADS + 2 * KV_HEADS) * prompt;
    let once = (2 * rows * HEAD) as f64;
    let scores = (QUERY_HEADS * prompt * (prompt + 1) / 2) as f64;
    match step.name == STANDARD.name {
        true => once + scores * (4.0 + 4.0 + 2.0 + 2.0),
        false => once,
    }
}

/// Kernels of a step, in the order of their launches.
fn functions(step: &Step) -> &'static [&'static str] {
    match step.name {
        "standard" => &["standard_scores", "standard_softmax", "standard_values"],
        "block-wise" => &["blockwise"],
        _ => &["blockwise_hopper"],
    }
}

struct Setup {
    card: Card,
    seed: u32,
    queries: Buffer<bf16>,
    keys: Buffer<bf16>,
    values: Buffer<bf16>,
    out: Buffer<bf16>,
    scores: Buffer<f32>,
    weights: Buffer<bf16>,
    steps: Vec<(&'static Step, Vec<Kernel>)>,
}

impl Setup {
    fn new(
        request: &Request,
        card: Card,
        inputs: &Inputs,
        longest: usize,
    ) -> anyhow::Result<Setup> {
        let module = Rc::new(card.kernels(FILE.path, FILE.text, &[])?);
        let mut steps = Vec::new();
        for step in STEPS.iter().filter(|step| request.wants(step.name)) {
            if step.name == HOPPER.name && !card.is_hopper() {
                continue;
            }
            let mut kernels = Vec::new();
            for function in functions(step) {
                let kernel = module.kernel(function)?;
                match *function {
                    "standard_softmax" => {}
                    "blockwise_hopper" => kernel.allow_shared(HOPPER_BYTES)?,
                    _ => kernel.allow_shared(TILES_BYTES)?,
                }
                kernels.push(kernel);
            }
            steps.push((step, kernels));
        }
        let seed = request.seed;
        let scores = match request.wants(STANDARD.name) {
            true => QUERY_HEADS * longest * width(longest),
            false => 0,
        };
        Ok(Setup {
            seed,
            queries: inputs.random(QUERY_HEADS * longest * HEAD, seed)?,
            keys: inputs.random(KV_HEADS * longest * HEAD, seed ^ 1)?,
            values: inputs.random(KV_HEADS * longest * HEAD, seed ^ 2)?,
            out: card.buffer(QUERY_HEADS * longest * HEAD)?,
            scores: card.buffer(scores)?,
            weights: card.buffer(scores)?,
            steps,
            card,
        })
    }

    fn maps(&self, prompt: usize) -> anyhow::Result<[TensorMap; 3]> {
        let map = |buffer, heads: usize| {
            let shape = ((heads * prompt) as u64, HEAD as u64);
            self.card
                .matrix(buffer, shape, (TILE as u32, 64), Swizzle::Bytes128)
        };
        Ok([
            map(&self.queries, QUERY_HEADS)?,
            map(&self.keys, KV_HEADS)?,
            map(&self.values, KV_HEADS)?,
        ])
    }

    fn run(&self, which: usize, prompt: usize, stream: Option<&Stream>) -> anyhow::Result<()> {
        let (step, kernels) = &self.steps[which];
        let tiles = prompt.div_ceil(TILE) as u32;
        let heads = QUERY_HEADS as u32;
        let (rows, width) = (prompt as u32, width(prompt) as u32);
        let scale = scale_for_exp2();
        let how = |grid, threads, shared_bytes| Launch {
            stream,
            ..Launch::new(grid, threads, shared_bytes)
        };
        let (queries, keys, values, out) = (&self.queries, &self.keys, &self.values, &self.out);
        let (scores, weights) = (&self.scores, &self.weights);
        // SAFETY: parameters as the kernels have them, buffers of at least this prompt's sizes.
        unsafe {
            match step.name {
                "standard" => {
                    kernels[0].launch(
                        how((tiles, tiles, heads), 256, TILES_BYTES),
                        &[queries, keys, scores, &rows, &width, &scale],
                    )?;
                    kernels[1].launch(
                        how((rows, heads, 1), 256, 0),
                        &[scores, weights, &rows, &width],
                    )?;
                    kernels[2].launch(
                        how((tiles, heads, 1), 256, TILES_BYTES),
                        &[weights, values, out, &rows, &width],
                    )?;
                }
                "block-wise" => kernels[0].launch(
                    how((heads, tiles, 1), 256, TILES_BYTES),
                    &[queries, keys, values, out, &rows, &scale],
                )?,
                _ => {
                    let [queries, keys, values] = self.maps(prompt)?;
                    kernels[0].launch(
                        how((heads, tiles, 1), 384, HOPPER_BYTES),
                        &[&queries, &keys, &values, out, &rows, &scale],
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Errors of all steps, relative to float64, in rows of some heads.
    fn check(&self, prompt: usize) -> anyhow::Result<Vec<f64>> {
        let seed = self.seed;
        let places = inputs::places(QUERY_HEADS, prompt, 28, seed);
        let row = |seed: u32, row: usize, out: &mut Row| {
            for (number, index) in out.iter_mut().zip(row * HEAD..) {
                *number = f64::from(inputs::value_bf16(seed, index as u32));
            }
        };
        let expected = on_all_cores(&places, |&(head, position)| {
            let mut query = [0.0; HEAD];
            row(seed, head * prompt + position, &mut query);
            let first = head / GROUP * prompt;
            attend(
                &query,
                position + 1,
                |at, out| row(seed ^ 1, first + at, out),
                |at, out| row(seed ^ 2, first + at, out),
            )
        });
        let mut errors = Vec::new();
        for (which, (step, _)) in self.steps.iter().enumerate() {
            self.out.fill_bytes(0xff)?;
            self.run(which, prompt, None)?;
            self.card.wait()?;
            let found = self.out.read_part(0, QUERY_HEADS * prompt * HEAD)?;
            let lost = found.iter().filter(|x| !x.is_finite()).count();
            ensure!(
                lost == 0,
                "{}, prompt {prompt}: {lost} results are NaN or were not written",
                step.name
            );
            let mut distance = Distance::default();
            for (row, (head, position)) in expected.iter().zip(&places) {
                let first = (head * prompt + position) * HEAD;
                for (found, expected) in found[first..].iter().zip(row) {
                    distance.add(f64::from(*found), *expected);
                }
            }
            let error = distance.relative();
            ensure!(
                error < MOST_ERROR,
                "{}, prompt {prompt}: {error:.2e} from float64, more than {MOST_ERROR:.0e}",
                step.name
            );
            errors.push(error);
        }
        Ok(errors)
    }
}

/// Places in a row of scores.
fn width(prompt: usize) -> usize {
    prompt.next_multiple_of(TILE)
}

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let card = Card::open()?;
    let prompts = request.sizes_or(&[512, 1024, 2048, 4096, 8192, 16384], &[512, 1000]);
    let mut outcome = Outcome::new(
        NAME,
        "Attention of a prompt: what does it bring to keep scores out of memory?",
        "prompt",
        "TFLOP/s",
        Some(card.about()),
        request.seed,
    );
    let odd: &[usize] = match request.is_check {
        true => &[5, 77, 300],
        false => &[5, 77, 1000, 4097],
    };
    let prompts = if request.is_check {
        Vec::new()
    } else {
        prompts
    };
    let longest = prompts.iter().chain(odd).copied().max().unwrap_or(1);
    let inputs = Inputs::new(&card)?;
    let setup = Setup::new(request, card, &inputs, longest)?;
    if profiler::is_profiled() {
        for (which, (step, _)) in setup.steps.iter().enumerate() {
            profiler::show(&setup.card, step, &format!("prompt {}", prompts[0]), || {
                setup.run(which, prompts[0], None)
            })?;
        }
        return Ok(outcome);
    }
    let mut worst_odd = 0.0f64;
    for &prompt in odd {
        worst_odd = setup.check(prompt)?.into_iter().fold(worst_odd, f64::max);
    }
    if request.is_check {
        outcome.checked(odd);
        return Ok(outcome);
    }
    let vendor = Beside::open(&setup.card, &inputs, request);
    if let Err(reason) = &vendor {
        outcome.notes.push(format!("No cuBLAS beside: {reason:#}."));
    }
    for prompt in &prompts {
        let errors = setup.check(*prompt)?;
        let vendor = vendor.as_ref().ok();
        measure_prompt(request, &setup, vendor, *prompt, &errors, &mut outcome)?;
    }
    outcome.notes.push(format!(
        "Also right for prompts of 5, 77, 1000 and 4097: at most {worst_odd:.1e} from float64."
    ));
    outcome.notes.push(
        "Operations: 2 × n² × 128 × 32 (below the diagonal). cuBLAS: a bf16 product of square matrices in the same rounds, for what the tensor cores can give."
            .to_owned(),
    );
    note_traffic(&setup, &prompts, &mut outcome);
    outcome.notes.push(
        "The formula counts what passes once. More is counted where L2 does not hold it until it is needed again: the softmax of the standard form reads its rows twice, and every 128 queries read keys and values."
            .to_owned(),
    );
    Ok(outcome)
}

/// A product of the vendor's.
struct Beside {
    vendor: Vendor,
    matrices: [Buffer<bf16>; 3],
    size: usize,
}

impl Beside {
    fn open(card: &Card, inputs: &Inputs, request: &Request) -> anyhow::Result<Beside> {
        let size = if request.is_quick { 1024 } else { VENDOR_SIZE };
        let matrix = |seed| inputs.random(size * size, seed);
        Ok(Beside {
            vendor: Vendor::open(card)?,
            matrices: [matrix(1)?, matrix(2)?, matrix(3)?],
            size,
        })
    }

    fn run(&self) -> anyhow::Result<()> {
        let [a, b, c] = &self.matrices;
        self.vendor.bf16((self.size, self.size, self.size), a, b, c)
    }
}

fn measure_prompt(
    request: &Request,
    setup: &Setup,
    vendor: Option<&Beside>,
    prompt: usize,
    errors: &[f64],
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let steps = setup.steps.len();
    let contenders = steps + usize::from(vendor.is_some());
    // Of each: how often in one measurement, and the launches of one where they are ours.
    let mut work: Vec<(u32, Option<Graph>)> = Vec::new();
    for i in 0..steps {
        let once = setup
            .card
            .record(|stream| setup.run(i, prompt, Some(stream)))?;
        once.time_ms()?;
        let repeats = measure::repeats(once.time_ms()?, 2.0);
        let all = setup
            .card
            .record(|stream| (0..repeats).try_for_each(|_| setup.run(i, prompt, Some(stream))))?;
        work.push((repeats, Some(all)));
    }
    work.extend(vendor.map(|_| (1, None)));
    let times = measure::in_turns(contenders, request.rounds, |i| {
        let (repeats, graph) = &work[i];
        let all = match (graph, vendor) {
            (Some(graph), _) => graph.time_ms()?,
            (None, Some(vendor)) => setup.card.time_ms(|| vendor.run())?,
            (None, None) => 0.0,
        };
        Ok(all / f64::from(*repeats))
    })?;
    let rate = |operations: f64, times: &[f64]| Spread::of(times).map(|ms| operations / ms / 1e9);
    let standard = setup
        .steps
        .iter()
        .position(|(step, _)| step.name == STANDARD.name);
    let mut words = Vec::new();
    for (which, (step, _)) in setup.steps.iter().enumerate() {
        let rate = rate(operations(prompt), &times[which]);
        let mut row = outcome::Row::of(step, prompt.to_string(), prompt as f64, rate)
            .with_error(errors[which]);
        if let Some(standard) = standard {
            let ratio = measure::speed_against(&times[which], &times[standard]);
            row = row.against(STANDARD.name, ratio);
        }
        outcome.rows.push(row);
        words.push(format!(
            "{} {:.3} ms ({:.2} GB)",
            step.name,
            Spread::of(&times[which]).median,
            bytes(step, prompt) / 1e9
        ));
    }
    if let Some(vendor) = vendor {
        let operations = 2.0 * (vendor.size as f64).powi(3);
        outcome.rows.push(outcome::Row::reference(
            "cuBLAS product",
            prompt.to_string(),
            prompt as f64,
            rate(operations, &times[steps]),
        ));
    }
    outcome.notes.push(format!(
        "Prompt {prompt}: time, and bytes that must be moved: {}.",
        words.join(", ")
    ));
    Ok(())
}

/// What the counters of the memory say, at the longest prompt and at a quarter of it.
fn note_traffic(setup: &Setup, prompts: &[usize], outcome: &mut Outcome) {
    let longest = prompts.iter().copied().max().unwrap_or(0);
    for prompt in [longest / 4, longest] {
        if !prompts.contains(&prompt) {
            continue;
        }
        let size = prompt.to_string();
        let words = [NAME, "--sizes", &size, "--rounds", "1"];
        let found = match profiler::seen(&words, &[profiler::READ, profiler::WRITTEN]) {
            Ok(found) => found,
            Err(reason) => {
                let note = format!("Bytes at the memory were not measured: {reason:#}.");
                outcome.notes.push(note);
                return;
            }
        };
        let mut words = Vec::new();
        for (step, _) in &setup.steps {
            let Some(seen) = found.iter().find(|seen| seen.shown.step == step.name) else {
                continue;
            };
            let (read, written) = (seen.sum(profiler::READ), seen.sum(profiler::WRITTEN));
            words.push(format!(
                "{} {:.2} GB read and {:.2} GB written (formula: {:.2} GB)",
                step.name,
                read / 1e9,
                written / 1e9,
                bytes(step, prompt) / 1e9
            ));
        }
        outcome.notes.push(format!(
            "Prompt {prompt}, counted at the memory by ncu: {}.",
            words.join(", ")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_in_memory_grow_with_the_square() {
        assert!(bytes(&STANDARD, 16384) > 50e9);
        assert!(bytes(&HOPPER, 16384) < 0.4e9);
        assert_eq!(operations(1), 8192.0);
    }
}
