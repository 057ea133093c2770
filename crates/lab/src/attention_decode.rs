//! Attention of one new token per sequence, from a cache of keys and values: does it read the
//! cache as fast as the card can copy?

mod bars;

use std::rc::Rc;

use anyhow::{bail, ensure};
use cuda::{Buffer, Card, Graph, Kernel, Launch, Stream};
use half::{bf16, f16};

use crate::{
    attention::{
        GROUP, HEAD, KV_HEADS, MOST_ERROR, QUERY_HEADS, Row, attend, cache_row, on_all_cores,
        quantised_row, scale_for_exp2,
    },
    experiments::Request,
    inputs::{self, Distance},
    measure::{self, Spread},
    outcome::{self, Outcome},
    profiler,
    step::{File, Step},
    toolkit::Compile,
};

const FILE: File = File {
    path: "crates/lab/kernels/attention_decode.cu",
    text: include_str!("../kernels/attention_decode.cu"),
};

/// Kernels beside the steps.
const INPUTS: File = File {
    path: "crates/lab/kernels/attention_inputs.cu",
    text: include_str!("../kernels/attention_inputs.cu"),
};

const fn step(
    name: &'static str,
    function: &'static str,
    claims: &'static [&'static str],
    about: &'static str,
) -> Step {
    Step {
        name,
        about,
        file: FILE,
        function,
        defines: &[],
        claims,
    }
}

pub const STEPS: &[Step] = &[
    step(
        "naive",
        "decode_naive",
        &["LDG.E.U16"],
        "A block for each query head; scores go to memory, and the whole context waits for one block: few loads are under way.",
    ),
    step(
        "split",
        "decode_split",
        &["LDG.E.64"],
        "The context in parts, each with a softmax of its own, joined by a second kernel: one sequence now fills the card.",
    ),
    step(
        "packed",
        "decode_packed",
        &["LDG.E.64"],
        "The four query heads of a KV head share one read of keys and values: a quarter of the bytes asked for.",
    ),
    step(
        "wide",
        "decode_wide",
        &["LDG.E.NA.LTC256B.128"],
        "16 bytes a load, the next keys and values are under way while these are used, and 15 exchanges between lanes instead of 64: enough bytes are in flight, and what may still limit is the number of instructions.",
    ),
    step(
        "tensor",
        "decode_tensor",
        &["LDG.E.NA.LTC256B.128", "HMMA.16816.F32.BF16", "MOVM"],
        "Tensor cores multiply, fed from registers as they come from memory: 15 instructions of a warp for a key instead of 85, so nothing but loads is left to wait for.",
    ),
    step(
        "q8",
        "decode_q8",
        &["LDG.E.NA.LTC256B.128", "HMMA.16816.F32"],
        "A cache of 8-bit numbers with a scale for each 32 (in an array of their own): 0.53 of the bytes, made to f16 in registers.",
    ),
];

/// Sequences and positions of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    batch: usize,
    context: usize,
}

impl Case {
    /// Numbers in the keys, and as many in the values.
    fn elements(self) -> usize {
        self.batch * KV_HEADS * self.context * HEAD
    }

    /// Bytes of keys and values that a step reads once.
    fn bytes(self, step: &Step) -> f64 {
        let bytes = match step.function {
            "decode_q8" => 1.0 + 2.0 / 32.0,
            _ => 2.0,
        };
        2.0 * self.elements() as f64 * bytes
    }

    /// Caches that are used in turns, so that none is found in L2.
    fn sets(self) -> usize {
        (ROTATED_BYTES / (4 * self.elements())).max(1)
    }

    fn name(self) -> String {
        format!("batch {}, context {}", self.batch, self.context)
    }
}

/// Ten times L2.
const ROTATED_BYTES: usize = 512 << 20;
/// A cache of more bytes than this is not tried.
const MOST_BYTES: f64 = 100e9;
/// The naive kernel is not measured beyond: it would take most of the time.
const MOST_NAIVE_BYTES: f64 = 5e9;
const COPY_BYTES: usize = 2 << 30;
/// Of the kernels; keys: `WARPS` × 16 × `TILES`.
const MOST_PARTS: usize = 256;
const MOST_TEAMS: u32 = 8;
const PARTS_OF_TEAM: u32 = 8;
/// Parts of a context times sequences: what there is room for.
const MOST_PARTS_IN_ALL: usize = 4096;
const KEYS_OF_BLOCK: usize = 128;
/// What beginning and end of a block cost, in keys that it could have read.
const KEYS_LOST: usize = 128;

/// How long a part is and how many there are, so that blocks fill the card (`at_once` run at
/// the same time) without a last round of few.
fn parts_of(case: Case, heads: usize, at_once: usize) -> (usize, usize) {
    let (context, blocks_of_part) = (case.context, case.batch * heads);
    let most = context
        .div_ceil(KEYS_OF_BLOCK)
        .min(MOST_PARTS)
        .min(MOST_PARTS_IN_ALL / case.batch)
        .max(1);
    let candidates = (1..=most).map(|parts| {
        let keys = context
            .div_ceil(parts)
            .next_multiple_of(KEYS_OF_BLOCK)
            .max(KEYS_OF_BLOCK);
        (keys, context.div_ceil(keys))
    });
    candidates
        .min_by_key(|(keys, parts)| {
            let rounds = (blocks_of_part * parts).div_ceil(at_once);
            (rounds * (keys + KEYS_LOST), *parts)
        })
        .unwrap_or((context, 1))
}

/// Everything on the card.
struct Setup {
    card: Card,
    seed: u32,
    keys: Buffer<bf16>,
    values: Buffer<bf16>,
    keys8: Buffer<i8>,
    values8: Buffer<i8>,
    key_scales: Buffer<f16>,
    value_scales: Buffer<f16>,
    queries: Buffer<bf16>,
    out: Buffer<bf16>,
    /// Of the naive kernel: its scores; of others: parts.
    memory: Buffer<f32>,
    copies: [Buffer<u8>; 2],
    copy: Kernel,
    join: Kernel,
    steps: Vec<(&'static Step, Kernel, usize)>,
}

impl Setup {
    fn new(request: &Request, card: Card, cases: &[Case]) -> anyhow::Result<Setup> {
        let most = |f: &dyn Fn(&Case) -> usize| cases.iter().map(f).max().unwrap_or(0);
        let elements = most(&|case| case.sets() * case.elements());
        let batch = most(&|case| case.batch);
        let scores = most(&|case| match is_for_naive(*case) {
            true => case.batch * QUERY_HEADS * case.context,
            false => 0,
        });
        let parts = MOST_PARTS_IN_ALL.max(batch) * QUERY_HEADS * (HEAD + 2);
        let module = Rc::new(card.kernels(FILE.path, FILE.text, &[])?);
        let mut steps = Vec::new();
        for step in STEPS.iter().filter(|step| request.wants(step.name)) {
            let kernel = module.kernel(step.function)?;
            let blocks = kernel.blocks_at_once(HEAD as u32, 0)? * card.about().multiprocessors;
            steps.push((step, kernel, blocks.max(1) as usize));
        }
        let join = module.kernel("join_parts")?;
        let helpers = Rc::new(card.kernels(INPUTS.path, INPUTS.text, &[])?);
        let copy_bytes = if request.is_quick {
            64 << 20
        } else {
            COPY_BYTES
        };
        let setup = Setup {
            seed: request.seed,
            keys: card.buffer(elements)?,
            values: card.buffer(elements)?,
            keys8: card.buffer(elements)?,
            values8: card.buffer(elements)?,
            key_scales: card.buffer(elements / 32)?,
            value_scales: card.buffer(elements / 32)?,
            queries: card.buffer(batch * QUERY_HEADS * HEAD)?,
            out: card.buffer(batch * QUERY_HEADS * HEAD)?,
            memory: card.buffer(scores.max(parts))?,
            copies: [card.buffer(copy_bytes)?, card.buffer(copy_bytes)?],
            copy: helpers.kernel("copy_wide")?,
            join,
            steps,
            card,
        };
        let fill = helpers.kernel("fill_cache")?;
        let quantise = helpers.kernel("quantise")?;
        let how = Launch::new((16 * 1024, 1, 1), 256, 0);
        let count = elements as u64;
        for (buffer, seed) in [
            (&setup.keys, setup.seed),
            (&setup.values, setup.seed ^ 1),
            (&setup.queries, setup.seed ^ 2),
        ] {
            let count = buffer.elements() as u64;
            // SAFETY: the kernel takes a buffer, its length and a seed.
            unsafe { fill.launch(how, &[buffer, &count, &seed])? };
        }
        for (from, to, scales) in [
            (&setup.keys, &setup.keys8, &setup.key_scales),
            (&setup.values, &setup.values8, &setup.value_scales),
        ] {
            // SAFETY: as many numbers in both, and a scale for each 32.
            unsafe { quantise.launch(how, &[from, to, scales, &count])? };
        }
        setup.card.wait()?;
        Ok(setup)
    }

    /// Runs a step once, on one of the rotated caches.
    fn run(
        &self,
        which: usize,
        case: Case,
        set: usize,
        stream: Option<&Stream>,
    ) -> anyhow::Result<()> {
        let (step, kernel, at_once) = &self.steps[which];
        let begin = (set * case.elements()) as u64;
        let (batch, context) = (case.batch as u32, case.context as u32);
        let scale = scale_for_exp2();
        let keys = self.keys.address() + 2 * begin;
        let values = self.values.address() + 2 * begin;
        let (queries, out, memory) = (&self.queries, &self.out, &self.memory);
        let how = |grid, threads| Launch {
            stream,
            ..Launch::new(grid, threads, 0)
        };
        let threads = HEAD as u32;
        if step.function == "decode_naive" {
            let how = how((QUERY_HEADS as u32, batch, 1), threads);
            // SAFETY: buffers of this case's sizes, as `Setup::new` made them.
            unsafe {
                kernel.launch(
                    how,
                    &[queries, &keys, &values, out, memory, &context, &scale],
                )?;
            }
            return Ok(());
        }
        let heads = if step.function == "decode_split" {
            QUERY_HEADS
        } else {
            KV_HEADS
        };
        let (part_keys, parts) = parts_of(case, heads, *at_once);
        let (part_keys, parts) = (part_keys as u32, parts as u32);
        let grid = how((parts, heads as u32, batch), threads);
        // SAFETY: as above; there is room for the parts.
        unsafe {
            if step.function == "decode_q8" {
                let keys = self.keys8.address() + begin;
                let values = self.values8.address() + begin;
                let key_scales = self.key_scales.address() + begin / 16;
                let value_scales = self.value_scales.address() + begin / 16;
                kernel.launch(
                    grid,
                    &[
                        queries,
                        &keys,
                        &key_scales,
                        &values,
                        &value_scales,
                        memory,
                        out,
                        &context,
                        &part_keys,
                        &scale,
                    ],
                )?;
            } else {
                kernel.launch(
                    grid,
                    &[
                        queries, &keys, &values, memory, out, &context, &part_keys, &scale,
                    ],
                )?;
            }
            if parts > 1 {
                let teams = parts.div_ceil(PARTS_OF_TEAM).min(MOST_TEAMS);
                let how = how((QUERY_HEADS as u32, batch, 1), threads * teams);
                let how = Launch {
                    may_begin_early: true,
                    ..how
                };
                self.join.launch(how, &[memory, out, &parts])?;
            }
        }
        Ok(())
    }

    fn copy_once(&self, by_driver: bool) -> anyhow::Result<()> {
        let [from, to] = &self.copies;
        if by_driver {
            return Ok(to.copy_from(from)?);
        }
        let count = (from.bytes() / 16) as u64;
        let how = Launch::new((count.div_ceil(4 * 256) as u32, 1, 1), 256, 0);
        // SAFETY: so many 16 bytes are in both.
        unsafe { self.copy.launch(how, &[from, to, &count])? };
        Ok(())
    }

    /// Errors of all steps in this case, relative to float64, and of 8 bits against 16.
    fn check(&self, case: Case) -> anyhow::Result<(Vec<f64>, f64)> {
        let set = case.sets() - 1;
        let seed = self.seed;
        let places = inputs::places(case.batch, QUERY_HEADS, 4, seed);
        let expected = |row: fn(u32, u64, &mut Row)| {
            on_all_cores(&places, |&(sequence, head)| {
                let mut query = [0.0; HEAD];
                let first = (sequence * QUERY_HEADS + head) * HEAD;
                cache_row(seed ^ 2, first as u64, &mut query);
                let pair = sequence * KV_HEADS + head / GROUP;
                let begin = set * case.elements() + pair * case.context * HEAD;
                let index = |at: usize| (begin + at * HEAD) as u64;
                attend(
                    &query,
                    case.context,
                    |at, out| row(seed, index(at), out),
                    |at, out| row(seed ^ 1, index(at), out),
                )
            })
        };
        let exact = expected(cache_row);
        let quantised = expected(quantised_row);
        let mut loss = Distance::default();
        for (found, expected) in quantised.iter().flatten().zip(exact.iter().flatten()) {
            loss.add(*found, *expected);
        }
        let mut errors = Vec::new();
        for (which, (step, ..)) in self.steps.iter().enumerate() {
            if step.function == "decode_naive" && !is_for_naive(case) {
                errors.push(f64::NAN);
                continue;
            }
            let out = &self.out;
            out.fill_bytes(0xff)?;
            self.run(which, case, set, None)?;
            self.card.wait()?;
            let found = out.read_part(0, case.batch * QUERY_HEADS * HEAD)?;
            if let Some(at) = found.iter().position(|x| !x.is_finite()) {
                bail!(
                    "{}, {}: result {at} was not written",
                    step.name,
                    case.name()
                );
            }
            let expected = if step.function == "decode_q8" {
                &quantised
            } else {
                &exact
            };
            let mut distance = Distance::default();
            for (row, (sequence, head)) in expected.iter().zip(&places) {
                let first = (sequence * QUERY_HEADS + head) * HEAD;
                for (found, expected) in found[first..].iter().zip(row) {
                    distance.add(f64::from(*found), *expected);
                }
            }
            let error = distance.relative();
            ensure!(
                error < MOST_ERROR,
                "{}, {}: {error:.2e} from float64, more than {MOST_ERROR:.0e}",
                step.name,
                case.name()
            );
            errors.push(error);
        }
        Ok((errors, loss.relative()))
    }
}

fn is_for_naive(case: Case) -> bool {
    case.bytes(&STEPS[0]) <= MOST_NAIVE_BYTES
}

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let card = Card::open()?;
    let contexts = request.sizes_or(&[1024, 4096, 16384, 65536], &[1000, 4096]);
    let batches: &[usize] = match request.is_quick {
        true => &[1, 8],
        false => &[1, 8, 32, 64, 128, 256],
    };
    let mut outcome = Outcome::new(
        "attention-decode",
        "Does attention of one new token per sequence read its cache as fast as the card copies?",
        "batch, context",
        "GB/s",
        Some(card.about()),
        request.seed,
    );
    // What 16 and 8 bits need together, and room for scores and parts.
    let free = card.free_bytes()? as f64 - 8e9;
    let mut cases = Vec::new();
    for &batch in batches {
        for &context in &contexts {
            let case = Case { batch, context };
            let bytes = case.bytes(&STEPS[0]);
            if bytes <= MOST_BYTES && 1.54 * bytes <= free {
                cases.push(case);
            } else {
                outcome.notes.push(format!(
                    "{}: left out, {:.0} GB of keys and values do not fit.",
                    case.name(),
                    bytes / 1e9
                ));
            }
        }
    }
    let odd: &[(usize, usize)] = match request.is_check {
        true => &[(5, 1), (1, 63), (2, 700)],
        false => &[(5, 1), (1, 63), (3, 1000), (2, 4097)],
    };
    let cases = if request.is_check { Vec::new() } else { cases };
    let of_odd = |&(batch, context): &(usize, usize)| Case { batch, context };
    let everything: Vec<Case> = cases
        .iter()
        .copied()
        .chain(odd.iter().map(of_odd))
        .collect();
    let setup = Setup::new(request, card, &everything)?;
    if let Some(&case) = cases.last().filter(|_| profiler::is_profiled()) {
        for (which, (step, ..)) in setup.steps.iter().enumerate() {
            let run = || setup.run(which, case, 0, None);
            profiler::show(&setup.card, step, &case.name(), run)?;
        }
        return Ok(outcome);
    }
    let mut worst_odd = 0.0f64;
    for case in odd.iter().map(of_odd) {
        let (errors, _) = setup.check(case)?;
        worst_odd = errors.into_iter().fold(worst_odd, f64::max);
    }
    if request.is_check {
        outcome.checked(odd);
        return Ok(outcome);
    }
    let mut loss = 0.0f64;
    for case in cases {
        let (errors, of_case) = setup.check(case)?;
        loss = loss.max(of_case);
        measure_case(request, &setup, case, &errors, &mut outcome)?;
    }
    outcome.notes.push(format!(
        "Also right for batch and context (5, 1), (1, 63), (3, 1000), (2, 4097): at most {worst_odd:.1e} from float64."
    ));
    outcome.notes.push(format!(
        "q8 is compared with float64 of the 8-bit numbers; those are up to {loss:.1e} from the result of 16 bits. Its scales (f16, one for 32 numbers) lie in an array of their own and are counted."
    ));
    outcome.notes.push(format!(
        "GB/s: bytes of keys and values, each counted once, over the time of all kernels, which are started as one graph. Copy: bytes read and written by the faster of our copy kernel and the driver's, {} MB, in the same rounds. Caches smaller than {} MB are used in turns, none is found in L2.",
        setup.copies[0].bytes() >> 20,
        ROTATED_BYTES >> 20
    ));
    outcome.notes.push(format!(
        "naive: not measured above {:.0} GB.",
        MOST_NAIVE_BYTES / 1e9
    ));
    bars::note(&mut outcome);
    Ok(outcome)
}

fn measure_case(
    request: &Request,
    setup: &Setup,
    case: Case,
    errors: &[f64],
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let contenders: Vec<usize> = (0..setup.steps.len())
        .filter(|which| setup.steps[*which].0.function != "decode_naive" || is_for_naive(case))
        .collect();
    let steps = contenders.len();
    // Of each: how often in one measurement, and the launches of one where they are ours.
    let mut work: Vec<(u32, Graph)> = Vec::new();
    for which in &contenders {
        let record = |repeats: u32| {
            setup.card.record(|stream| {
                (0..repeats as usize)
                    .try_for_each(|i| setup.run(*which, case, i % case.sets(), Some(stream)))
            })
        };
        let once = record(1)?;
        once.time_ms()?;
        let repeats = measure::repeats(once.time_ms()?, 1.5);
        work.push((repeats, record(repeats)?));
    }
    let times = measure::in_turns(steps + 2, request.rounds, |i| {
        let once = match work.get(i) {
            Some((repeats, graph)) => graph.time_ms()? / f64::from(*repeats),
            None => setup.card.time_ms(|| setup.copy_once(i > steps))?,
        };
        // Milliseconds a gigabyte.
        let bytes = match contenders.get(i) {
            Some(which) => case.bytes(setup.steps[*which].0),
            None => 2.0 * setup.copies[0].bytes() as f64,
        };
        Ok(once / bytes * 1e9)
    })?;
    let rate = |times: &[f64]| Spread::of(times).map(|ms| 1e3 / ms);
    let (ours, drivers) = (&times[steps], &times[steps + 1]);
    let copy: Vec<f64> = ours.iter().zip(drivers).map(|(a, b)| a.min(*b)).collect();
    let x = (case.batch * case.context) as f64;
    for (which, times) in contenders.iter().zip(&times) {
        outcome.rows.push(
            outcome::Row::of(setup.steps[*which].0, case.name(), x, rate(times))
                .against("copy", measure::speed_against(times, &copy))
                .with_error(errors[*which]),
        );
    }
    for (name, times) in [("our copy", ours), ("driver's copy", drivers)] {
        outcome
            .rows
            .push(outcome::Row::reference(name, case.name(), x, rate(times)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_context_and_fill_the_card() {
        for context in [1, 63, 1000, 4097, 65536] {
            for batch in [1, 32, 256] {
                let (keys, parts) = parts_of(Case { batch, context }, KV_HEADS, 396);
                assert!(keys * parts >= context && keys * (parts - 1) < context);
                assert!(parts <= MOST_PARTS);
            }
        }
        let (batch, context) = (1, 65536);
        let (_, parts) = parts_of(Case { batch, context }, KV_HEADS, 396);
        assert!(parts * 8 > 350 && parts * 8 <= 396, "{parts}");
    }
}
