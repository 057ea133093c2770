//! Few rows and many weights, as a language model multiplies its tokens: the weights have to be
//! read, whatever else happens.

use cuda::Card;

use super::{HOPPER, Setup, VENDOR, kernels::Loaded, odd_shapes, parts_of, problem::Problem};
use crate::{
    experiments::Request,
    measure::{self, Spread},
    outcome::{Outcome, Row},
    profiler,
    step::Step,
};

const fn tokens(defines: &'static [&'static str], claims: &'static [&'static str]) -> Step {
    Step {
        name: "tokens",
        about: "Operands change places: tokens are the narrow side of the instruction, and blocks of a cluster divide k; nothing is multiplied in vain and all multiprocessors read weights at once.",
        file: HOPPER,
        function: "gemm_tokens",
        defines,
        claims,
    }
}

const fn overlap(defines: &'static [&'static str], claims: &'static [&'static str]) -> Step {
    Step {
        name: "tokens-overlap",
        about: "A launch begins while the one before still ends, and reads its first weights before it waits for it: memory does not stand still between two products.",
        file: HOPPER,
        function: "gemm_tokens",
        defines,
        claims,
    }
}

const fn balanced(defines: &'static [&'static str], claims: &'static [&'static str]) -> Step {
    Step {
        name: "balanced",
        about: "The best of the ladder with narrower tiles: 11008 columns are 126 times 88, nearly as many as there are multiprocessors, so that all are busy to the end; two blocks side by side share the tokens, or one below the other the weights.",
        file: HOPPER,
        function: "gemm_persistent",
        defines,
        claims,
    }
}

/// The best of the ladder, as it is and in widths that suit, and one kernel for few tokens in six
/// widths and two heights. Tiles in flight are as many as two blocks have room for (the widest
/// runs alone).
pub const STEPS: &[Step] = &[
    super::STEPS[super::STEPS.len() - 1],
    balanced(
        &[
            "TMA_STORE=1",
            "TILE_M=64",
            "TILE_N=88",
            "STAGES=10",
            "OVERLAP=1",
        ],
        &["HGMMA.64x88x16.F32.BF16", "UTMALDG.2D"],
    ),
    balanced(
        &[
            "TMA_STORE=1",
            "CLUSTER=2",
            "SHARE_A=1",
            "TILE_N=88",
            "STAGES=7",
            "OVERLAP=1",
        ],
        &["HGMMA.64x88x16.F32.BF16", "UTMALDG.2D.MULTICAST"],
    ),
    balanced(
        &[
            "TMA_STORE=1",
            "CLUSTER=2",
            "TILE_N=176",
            "STAGES=5",
            "LATER=1",
            "OVERLAP=1",
        ],
        &["HGMMA.64x176x16.F32.BF16", "UTMALDG.2D.MULTICAST"],
    ),
    tokens(
        &["TOKENS=8", "WEIGHTS=128", "STAGES=6"],
        &["HGMMA.64x8x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=16", "WEIGHTS=128", "STAGES=6"],
        &["HGMMA.64x16x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=32", "WEIGHTS=128", "STAGES=5"],
        &["HGMMA.64x32x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=64", "WEIGHTS=128", "STAGES=4"],
        &["HGMMA.64x64x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=128", "WEIGHTS=128", "STAGES=3"],
        &["HGMMA.64x128x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=256", "WEIGHTS=128", "STAGES=4"],
        &["HGMMA.64x256x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=8", "WEIGHTS=64", "STAGES=12"],
        &["HGMMA.64x8x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=16", "WEIGHTS=64", "STAGES=11"],
        &["HGMMA.64x16x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=32", "WEIGHTS=64", "STAGES=9"],
        &["HGMMA.64x32x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=64", "WEIGHTS=64", "STAGES=6"],
        &["HGMMA.64x64x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=128", "WEIGHTS=64", "STAGES=4"],
        &["HGMMA.64x128x16.F32.BF16", "UTMALDG.2D"],
    ),
    tokens(
        &["TOKENS=256", "WEIGHTS=64", "STAGES=5"],
        &["HGMMA.64x256x16.F32.BF16", "UTMALDG.2D"],
    ),
    overlap(
        &["TOKENS=8", "WEIGHTS=128", "STAGES=6", "OVERLAP=1"],
        &["HGMMA.64x8x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=16", "WEIGHTS=128", "STAGES=6", "OVERLAP=1"],
        &["HGMMA.64x16x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=32", "WEIGHTS=128", "STAGES=5", "OVERLAP=1"],
        &["HGMMA.64x32x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=64", "WEIGHTS=128", "STAGES=4", "OVERLAP=1"],
        &["HGMMA.64x64x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=128", "WEIGHTS=128", "STAGES=3", "OVERLAP=1"],
        &["HGMMA.64x128x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=256", "WEIGHTS=128", "STAGES=4", "OVERLAP=1"],
        &["HGMMA.64x256x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=8", "WEIGHTS=64", "STAGES=12", "OVERLAP=1"],
        &["HGMMA.64x8x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=16", "WEIGHTS=64", "STAGES=11", "OVERLAP=1"],
        &["HGMMA.64x16x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=32", "WEIGHTS=64", "STAGES=9", "OVERLAP=1"],
        &["HGMMA.64x32x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=64", "WEIGHTS=64", "STAGES=6", "OVERLAP=1"],
        &["HGMMA.64x64x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=128", "WEIGHTS=64", "STAGES=4", "OVERLAP=1"],
        &["HGMMA.64x128x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
    overlap(
        &["TOKENS=256", "WEIGHTS=64", "STAGES=5", "OVERLAP=1"],
        &["HGMMA.64x256x16.F32.BF16", "UTMALDG.2D", "ACQBULK"],
    ),
];

/// n and k of the two large products in a layer of a model of 7 billion parameters.
const WEIGHTS: [(usize, usize); 2] = [(11008, 4096), (4096, 11008)];
const QUICK_WEIGHTS: [(usize, usize); 1] = [(2752, 1024)];
/// How long a contender is timed; as long before it is not.
const TIMED_MS: f64 = 4.0;
/// Sets of weights that take turns, so that none is still in the cache.
const COPIES: usize = 3;

/// The answer to: how fast for so many tokens?
pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let setup = Setup::new(request, STEPS)?;
    let mut outcome = Outcome::new(
        "linear-bf16",
        "How fast are weights multiplied by few tokens, and when do they stop being all that counts?",
        "tokens",
        "TFLOP/s",
        Some(setup.card.about()),
        request.seed,
    );
    if request.is_check {
        outcome.checked(odd_shapes(request));
        return Ok(outcome);
    }
    if profiler::is_profiled() {
        show(&setup, request)?;
        return Ok(outcome);
    }
    let counts = request.sizes_or(&[1, 8, 16, 32, 64, 128, 256, 512], &[1, 64, 300]);
    let weights: &[(usize, usize)] = match request.is_quick {
        true => &QUICK_WEIGHTS,
        false => &WEIGHTS,
    };
    for &(n, k) in weights {
        for &m in &counts {
            one(&setup, (m, n, k), request, &mut outcome)?;
        }
    }
    Ok(outcome)
}

/// Every variant to the profiler, with as many tokens as it takes at once.
fn show(setup: &Setup, request: &Request) -> anyhow::Result<()> {
    let (n, k) = WEIGHTS[0];
    for loaded in &setup.loaded {
        let tokens = loaded.tokens();
        let problem = Problem::new(&setup.inputs, (tokens, n, k), COPIES, request.seed)?;
        // Not by trying: times under a profiler say little.
        let parts = parts_of(loaded).get(1).copied().unwrap_or(1);
        let call = loaded.call(&problem, parts)?;
        let case = format!("{tokens} tokens, n {n}, k {k} divided by {parts}");
        profiler::show(&setup.card, loaded.step, &case, || call(0))?;
    }
    Ok(())
}

/// One number of tokens.
fn one(
    setup: &Setup,
    (m, n, k): (usize, usize, usize),
    request: &Request,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let Setup {
        card,
        inputs,
        loaded,
        reference,
    } = setup;
    let problem = Problem::new(inputs, (m, n, k), COPIES, request.seed)?;
    let choice = reference.choose(&problem, (TIMED_MS, TIMED_MS))?;
    let expected = problem.expected();
    let mut contenders = Vec::new();
    let mut names: Vec<&str> = loaded.iter().map(|loaded| loaded.step.name).collect();
    names.dedup();
    for name in names {
        // The narrowest that take all tokens at once, or the widest.
        let ours = || loaded.iter().filter(|loaded| loaded.step.name == name);
        let enough = ours().map(Loaded::tokens).filter(|&tokens| tokens >= m);
        let width = enough.min().or_else(|| ours().map(Loaded::tokens).max());
        let variants = ours().filter(|loaded| Some(loaded.tokens()) == width);
        let ways = variants.flat_map(|loaded| parts_of(loaded).iter().map(move |&n| (loaded, n)));
        let ways: Vec<(&Loaded, u32)> = ways.collect();
        if let Some((variant, parts)) = fewest_milliseconds(card, &ways, &problem)? {
            let words = match ways.len() {
                1 => String::new(),
                _ => format!(
                    " ({}, k divided by {parts})",
                    variant.step.defines.join(" ")
                ),
            };
            contenders.push((Some(variant.step), variant.call(&problem, parts)?, words));
        }
    }
    contenders.push((None, choice.call(), format!(" ({})", choice.words())));

    let mut errors = Vec::new();
    let mut repeats = Vec::new();
    for (step, call, _) in &contenders {
        let name = step.map_or(VENDOR, |step| step.name);
        errors.push(problem.check(card, inputs, &expected, name, call)?);
        repeats.push(measure::repeats(problem.time(card, call, 3)?, TIMED_MS));
    }
    let times = measure::in_turns(contenders.len(), request.rounds, |i| {
        problem.time_warm(card, &contenders[i].1, repeats[i], repeats[i])
    })?;
    let vendor = &times[times.len() - 1];
    let case = format!("{m} (n {n}, k {k})");
    let mut rates = Vec::new();
    for (((step, _, words), times), error) in contenders.iter().zip(&times).zip(errors) {
        let spread = Spread::of(times);
        let rate = spread.map(|ms| problem.tera() / ms * 1e3);
        let row = match step {
            Some(step) => Row::of(step, case.clone(), m as f64, rate)
                .against(VENDOR, measure::speed_against(times, vendor)),
            None => Row::reference(VENDOR, case.clone(), m as f64, rate),
        };
        outcome.rows.push(row.with_error(error));
        let name = step.map_or(VENDOR, |step| step.name);
        let gigabytes = problem.bytes() / spread.median * 1e-6;
        rates.push(format!(
            "{name} {gigabytes:.0} GB/s, {:.1} µs{words}",
            spread.median * 1e3
        ));
    }
    outcome.notes.push(format!("{case}: {}.", rates.join("; ")));
    Ok(())
}

/// Which variant, and k in how many parts, by trying: as the vendor's algorithms are chosen too.
fn fewest_milliseconds<'a>(
    card: &Card,
    ways: &[(&'a Loaded, u32)],
    problem: &Problem,
) -> anyhow::Result<Option<(&'a Loaded, u32)>> {
    let calls = ways
        .iter()
        .map(|(loaded, parts)| loaded.call(problem, *parts));
    let calls = calls.collect::<anyhow::Result<Vec<_>>>()?;
    let times = measure::in_turns(calls.len(), 5, |i| {
        let repeats = measure::repeats(problem.time(card, &calls[i], 3)?, 1.0);
        problem.time(card, &calls[i], repeats)
    })?;
    let medians = times.iter().map(|times| Spread::of(times).median);
    let fastest = medians.zip(ways).min_by(|a, b| a.0.total_cmp(&b.0));
    Ok(fastest.map(|(_, &way)| way))
}
