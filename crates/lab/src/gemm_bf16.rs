//! Matrix products in bf16 on tensor cores: from instructions of a warp to clusters of blocks
//! that share tiles, beside cuBLAS.
//!
//! C = A × Bᵀ with sums in f32; B lies as weights do, row by row along k.

mod kernels;
pub mod linear;
mod problem;
mod reference;

use anyhow::ensure;
use cuda::Card;

use self::{
    kernels::{Kernels, Loaded},
    problem::Problem,
    reference::Reference,
};
use crate::{
    experiments::Request,
    inputs::Inputs,
    measure::{self, Spread},
    outcome::{Outcome, Row},
    profiler,
    step::{File, Step},
};

const WARPS: File = File {
    path: "crates/lab/kernels/gemm_bf16.cu",
    text: include_str!("../kernels/gemm_bf16.cu"),
};
const HOPPER: File = File {
    path: "crates/lab/kernels/gemm_bf16_hopper.cu",
    text: include_str!("../kernels/gemm_bf16_hopper.cu"),
};

/// The ladder.
pub const STEPS: &[Step] = &[
    Step {
        name: "wmma",
        about: "Tensor cores as CUDA's WMMA offers them: tiles in shared memory, load, wait, multiply; the cores stand still while tiles come.",
        file: WARPS,
        function: "gemm_wmma",
        defines: &[],
        claims: &["HMMA.16816.F32.BF16"],
    },
    Step {
        name: "mma",
        about: "Larger tiles, four of them in flight by cp.async, read without bank conflicts by ldmatrix: loads hide behind products, up to the rate of warp-wide instructions, which is little more than half of Hopper's own.",
        file: WARPS,
        function: "gemm_mma",
        defines: &[],
        claims: &[
            "LDGSTS.E.BYPASS.128",
            "LDSM.16.M88.4",
            "HMMA.16816.F32.BF16",
        ],
    },
    Step {
        name: "wgmma",
        about: "Hopper's instructions: four warps multiply 64 × 256 out of shared memory, one thread has the copy engine fetch tiles; no more instructions to load operands, so the full rate is in reach.",
        file: HOPPER,
        function: "gemm_wgmma",
        defines: &[],
        claims: &["HGMMA.64x256x16.F32.BF16", "UTMALDG.2D"],
    },
    Step {
        name: "persistent",
        about: "One block a multiprocessor takes tile after tile; one thread only fetches, two groups of warps only multiply: nobody waits for all at every step, and the next tile's loads hide the last one's stores.",
        file: HOPPER,
        function: "gemm_persistent",
        defines: &[],
        claims: &["HGMMA.64x256x16.F32.BF16", "UTMALDG.2D", "USETMAXREG"],
    },
    Step {
        name: "tma-store",
        about: "Results leave through shared memory and the copy engine, in whole lines: fewer and wider stores, and warps go on sooner.",
        file: HOPPER,
        function: "gemm_persistent",
        defines: &["TMA_STORE=1"],
        claims: &["HGMMA.64x256x16.F32.BF16", "STSM.16.M88.4", "UTMASTG.2D"],
    },
    Step {
        name: "cluster",
        about: "Two blocks share each tile of B, which the copy engine writes to both: a third less traffic from the second-level cache, and less power for it.",
        file: HOPPER,
        function: "gemm_persistent",
        defines: &["TMA_STORE=1", "CLUSTER=2"],
        claims: &[
            "HGMMA.64x256x16.F32.BF16",
            "UTMALDG.2D.MULTICAST",
            "UTMASTG.2D",
        ],
    },
    Step {
        name: "order",
        about: "Tiles that are worked on at the same time lie in a square: rows of A and B are read from memory fewer times, which counts when matrices are larger than the cache.",
        file: HOPPER,
        function: "gemm_persistent",
        defines: &["TMA_STORE=1", "CLUSTER=2", "GROUP=8"],
        claims: &[
            "HGMMA.64x256x16.F32.BF16",
            "UTMALDG.2D.MULTICAST",
            "UTMASTG.2D",
        ],
    },
    Step {
        name: "later",
        about: "Results wait in registers, rounded, and leave while the next tile is multiplied: tensor cores do not stand still between two tiles.",
        file: HOPPER,
        function: "gemm_persistent",
        defines: &["TMA_STORE=1", "CLUSTER=2", "GROUP=8", "LATER=1"],
        claims: &[
            "HGMMA.64x256x16.F32.BF16",
            "UTMALDG.2D.MULTICAST",
            "UTMASTG.2D",
        ],
    },
    Step {
        name: "overlap",
        about: "A launch begins while the last blocks of the one before still work, and waits for its results itself: the start of a kernel, a few microseconds, hides behind the end of another; it shows at small sizes.",
        file: HOPPER,
        function: "gemm_persistent",
        defines: &[
            "TMA_STORE=1",
            "CLUSTER=2",
            "GROUP=8",
            "LATER=1",
            "OVERLAP=1",
        ],
        claims: &[
            "HGMMA.64x256x16.F32.BF16",
            "UTMALDG.2D.MULTICAST",
            "ACQBULK",
        ],
    },
];

/// Name of the reference in tables.
const VENDOR: &str = "cuBLAS";

/// How long a contender runs before it is timed, and then.
const WARM_UP_MS: f64 = 120.0;
const TIMED_MS: f64 = 20.0;

/// Shapes that are no multiples of tiles; checked, not timed. The last two are only for kernels
/// without the copy engine.
const ODD_SHAPES: &[(usize, usize, usize)] = &[
    (1, 8, 8),
    (3, 264, 72),
    (127, 312, 136),
    (130, 248, 200),
    (257, 520, 1000),
    (77, 131, 40),
    (129, 257, 72),
];

/// For tools that watch every access, and take a thousand times as long.
const CHECKED_SHAPES: &[(usize, usize, usize)] = &[(3, 264, 72), (130, 248, 200), (77, 131, 40)];

/// What both experiments with products in bf16 work with.
struct Setup {
    card: Card,
    inputs: Inputs,
    loaded: Vec<Loaded>,
    reference: Reference,
}

impl Setup {
    /// With those of `steps` that are wanted; all of them are right at odd shapes.
    fn new(request: &Request, steps: &'static [Step]) -> anyhow::Result<Setup> {
        let card = Card::open()?;
        ensure!(
            card.is_hopper(),
            "these kernels are for Hopper (H100, H200), and this is {}",
            card.about().name
        );
        let inputs = Inputs::new(&card)?;
        let kernels = Kernels::new(&card);
        let wanted = steps.iter().filter(|step| request.wants(step.name));
        let loaded: Vec<Loaded> = wanted
            .map(|step| kernels.load(step))
            .collect::<anyhow::Result<_>>()?;
        if !profiler::is_profiled() {
            check_odd_shapes(&card, &inputs, &loaded, request)?;
        }
        let reference = Reference::open(&card)?;
        Ok(Setup {
            card,
            inputs,
            loaded,
            reference,
        })
    }
}

/// The answer to: how fast, at which size?
pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let Setup {
        card,
        inputs,
        loaded,
        reference,
    } = Setup::new(request, STEPS)?;
    let mut outcome = Outcome::new(
        "gemm-bf16",
        "How near does a kernel of one's own come to cuBLAS in bf16, and which step brings how much?",
        "size",
        "TFLOP/s",
        Some(card.about()),
        request.seed,
    );
    if request.is_check {
        outcome.checked(odd_shapes(request));
        return Ok(outcome);
    }
    let sizes = request.sizes_or(&[2048, 4096, 8192, 16384], &[512, 2048]);
    if profiler::is_profiled() {
        let size = sizes[0];
        let problem = Problem::new(&inputs, (size, size, size), 1, request.seed)?;
        for loaded in &loaded {
            let call = loaded.call(&problem, 1)?;
            profiler::show(&card, loaded.step, &size.to_string(), || call(0))?;
        }
        return Ok(outcome);
    }
    for size in sizes {
        let problem = Problem::new(&inputs, (size, size, size), 1, request.seed)?;
        let choice = reference.choose(&problem, (WARM_UP_MS / 3.0, TIMED_MS))?;
        let mut calls = Vec::new();
        for loaded in loaded.iter().filter(|loaded| loaded.takes(problem.shape)) {
            calls.push((Some(loaded.step), loaded.call(&problem, 1)?));
        }
        calls.push((None, choice.call()));

        let expected = problem.expected();
        let mut errors = Vec::new();
        let mut repeats = Vec::new();
        for (step, call) in &calls {
            let name = step.map_or(VENDOR, |step| step.name);
            errors.push(problem.check(&card, &inputs, &expected, name, call)?);
            let once = problem.time(&card, call, 1)?;
            repeats.push((
                measure::repeats(once, WARM_UP_MS),
                measure::repeats(once, TIMED_MS),
            ));
        }
        let times = measure::in_turns(calls.len(), request.rounds, |i| {
            problem.time_warm(&card, &calls[i].1, repeats[i].0, repeats[i].1)
        })?;
        let vendor = &times[times.len() - 1];
        for (((step, _), times), error) in calls.iter().zip(&times).zip(errors) {
            let rate = Spread::of(times).map(|ms| problem.tera() / ms * 1e3);
            let (case, x) = (size.to_string(), size as f64);
            let row = match step {
                Some(step) => Row::of(step, case, x, rate)
                    .against(VENDOR, measure::speed_against(times, vendor)),
                None => Row::reference(VENDOR, case, x, rate),
            };
            outcome.rows.push(row.with_error(error));
        }
        outcome
            .notes
            .push(format!("{size}: cuBLAS is {}.", choice.words()));
    }
    for loaded in &loaded {
        if let Some(mean) = outcome.mean_ratio(loaded.step.name) {
            outcome.notes.push(format!(
                "{}: {:.1} % of cuBLAS over all sizes (geometric mean).",
                loaded.step.name,
                100.0 * mean
            ));
        }
    }
    Ok(outcome)
}

fn odd_shapes(request: &Request) -> &'static [(usize, usize, usize)] {
    match request.is_check {
        true => CHECKED_SHAPES,
        false => ODD_SHAPES,
    }
}

/// Every element of results whose sizes are no multiples of anything.
fn check_odd_shapes(
    card: &Card,
    inputs: &Inputs,
    loaded: &[Loaded],
    request: &Request,
) -> anyhow::Result<()> {
    for &shape in odd_shapes(request) {
        let problem = Problem::new(inputs, shape, 1, request.seed)?;
        let expected = problem.expected();
        for loaded in loaded.iter().filter(|loaded| loaded.takes(shape)) {
            for parts in parts_of(loaded) {
                let call = loaded.call(&problem, *parts)?;
                problem.check(card, inputs, &expected, loaded.step.name, &call)?;
            }
        }
    }
    Ok(())
}

/// How many blocks may share a tile.
fn parts_of(loaded: &Loaded) -> &'static [u32] {
    match loaded.step.function {
        "gemm_tokens" => &[1, 2, 3, 4, 6, 8],
        _ => &[1],
    }
}
