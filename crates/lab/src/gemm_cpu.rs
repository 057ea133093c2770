//! Experiment `gemm-cpu`: a matrix product in float32 on the processor, from three loops to
//! the speed of OpenBLAS.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod meeting;
mod openblas;
mod packed;
mod plain;
mod portable;
mod room;

use std::time::Duration;

use anyhow::{Context as _, ensure};

use self::{
    openblas::OpenBlas,
    packed::{Micro, Product},
    plain::Shape,
};
use crate::{
    experiments::Request,
    inputs::{self, Distance},
    measure::{self, Spread, Times},
    outcome::{Outcome, Row},
    step::{File, Step},
};

const PLAIN: File = File {
    path: "crates/lab/src/gemm_cpu/plain.rs",
    text: include_str!("gemm_cpu/plain.rs"),
};

const PACKED: File = File {
    path: "crates/lab/src/gemm_cpu/packed.rs",
    text: include_str!("gemm_cpu/packed.rs"),
};

const fn step(name: &'static str, about: &'static str, file: File, function: &'static str) -> Step {
    Step {
        name,
        about,
        file,
        function,
        defines: &[],
        claims: &[],
    }
}

const NAIVE: Step = step(
    "naive",
    "One sum at a time; B is walked down its columns, a cache line for every number.",
    PLAIN,
    "naive",
);
const LOOP_ORDER: Step = step(
    "loop order",
    "The inner loop walks rows of B and C: whole cache lines, and vector instructions.",
    PLAIN,
    "loop_order",
);
const BLOCKED: Step = step(
    "blocked",
    "A part of B that fits the cache is used for all rows before the next part, and four of its rows at once: C is loaded and stored less often.",
    PLAIN,
    "blocked",
);
const PACKING: Step = step(
    "packed",
    "A and B are copied into the order of reading, and a tile of C stays in registers: one load for many operations.",
    PACKED,
    "multiply",
);
const AVX2: Step = step(
    "AVX2",
    "The tile is 6×16 in registers of eight numbers, with one instruction for multiplying and adding.",
    File {
        path: "crates/lab/src/gemm_cpu/avx2.rs",
        text: include_str!("gemm_cpu/avx2.rs"),
    },
    "avx2",
);
const AVX512: Step = step(
    "AVX-512",
    "The tile is 14×32 in registers of 16 numbers: 28 of 32 registers are sums.",
    File {
        path: "crates/lab/src/gemm_cpu/avx512.rs",
        text: include_str!("gemm_cpu/avx512.rs"),
    },
    "avx512",
);
const THREADS: Step = step(
    "threads",
    "Threads share both copies and take pieces of C in turn: as many times faster as there are cores.",
    PACKED,
    "run",
);

pub const STEPS: &[Step] = &[NAIVE, LOOP_ORDER, BLOCKED, PACKING, AVX2, AVX512, THREADS];

/// From float64, relative: more is wrong.
const MAX_ERROR: f64 = 1e-5;

/// Size up to which steps are measured that take long.
const LARGEST_SLOW: usize = 1024;

/// Rounds of those steps.
const SLOW_ROUNDS: usize = 2;

/// After OpenBLAS with several threads: they wait for more work awake, for up to 100 ms, and
/// would take cores from whoever comes next.
const PAUSE: Duration = Duration::from_millis(150);

/// Blocks are chosen on so many rows, by so many rounds.
const TUNED_ROWS: usize = 672;
const TUNING_ROUNDS: usize = 3;

/// Sizes of which every edge is another one.
const ODD: [(usize, usize, usize); 5] = [
    (1, 1, 1),
    (7, 13, 5),
    (33, 65, 129),
    (61, 257, 400),
    (200, 31, 770),
];

/// Results that are computed again in float64.
const PLACES: usize = 64;

/// C = A × B.
type Multiply<'o> = Box<dyn FnMut(Shape, &[f32], &[f32], &mut [f32]) + 'o>;

/// One way of multiplying.
struct Contender<'o> {
    /// None: a reference.
    step: Option<Step>,
    name: &'static str,
    run: Run<'o>,
    largest: usize,
}

enum Run<'o> {
    /// Ours, whose blocks are chosen for each size by trying.
    Packed(Product),
    Other(Multiply<'o>),
}

impl<'o> Contender<'o> {
    fn plain(step: Step, largest: usize, run: fn(Shape, &[f32], &[f32], &mut [f32])) -> Self {
        Contender {
            step: Some(step),
            name: step.name,
            run: Run::Other(Box::new(run)),
            largest,
        }
    }

    fn packed(step: Step, micro: Micro, threads: usize) -> Self {
        Contender {
            step: Some(step),
            name: step.name,
            run: Run::Packed(Product::new(micro, threads)),
            largest: usize::MAX,
        }
    }

    fn is_slow(&self) -> bool {
        self.largest < usize::MAX
    }
}

/// The micro-kernels with special instructions that this processor has, the best last.
#[cfg(target_arch = "x86_64")]
fn special() -> Vec<(Step, Micro)> {
    let mut found = Vec::new();
    if avx2::is_here() {
        found.push((AVX2, avx2::MICRO));
    }
    if avx512::is_here() {
        found.push((AVX512, avx512::MICRO));
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
fn special() -> Vec<(Step, Micro)> {
    Vec::new()
}

/// Everyone who multiplies with so many threads.
fn contenders(threads: usize, blas: Option<&OpenBlas>) -> Vec<Contender<'_>> {
    let special = special();
    let best = special.last().map_or(portable::MICRO, |(_, micro)| *micro);
    let mut all = Vec::new();
    if threads == 1 {
        all.push(Contender::plain(NAIVE, LARGEST_SLOW, plain::naive));
        all.push(Contender::plain(
            LOOP_ORDER,
            LARGEST_SLOW,
            plain::loop_order,
        ));
        all.push(Contender::plain(BLOCKED, LARGEST_SLOW, plain::blocked));
        let packed = Contender::packed(PACKING, portable::MICRO, 1);
        all.push(Contender {
            largest: LARGEST_SLOW,
            ..packed
        });
        for (step, micro) in special {
            all.push(Contender::packed(step, micro, 1));
        }
    } else {
        all.push(Contender::packed(THREADS, best, threads));
    }
    all.push(Contender {
        step: None,
        name: GEMM_CRATE,
        run: Run::Other(Box::new(move |shape, a, b, c| {
            gemm_crate(threads, shape, a, b, c)
        })),
        largest: usize::MAX,
    });
    if let Some(blas) = blas {
        all.push(Contender {
            step: None,
            name: OPENBLAS,
            run: Run::Other(Box::new(move |shape, a, b, c| {
                blas.multiply(threads, shape, a, b, c)
            })),
            largest: usize::MAX,
        });
    }
    all
}

const GEMM_CRATE: &str = "crate gemm";
const OPENBLAS: &str = "OpenBLAS";

fn gemm_crate(threads: usize, shape: Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
    let Shape { m, n, k } = shape;
    assert!(a.len() == m * k && b.len() == k * n && c.len() == m * n);
    let how = match threads {
        1 => gemm::Parallelism::None,
        n => gemm::Parallelism::Rayon(n),
    };
    let (rows, columns) = (|width: usize| width as isize, 1);
    let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
    // SAFETY: three matrices of these sizes; C is written only.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c,
            columns,
            rows(n),
            false,
            a,
            columns,
            rows(k),
            b,
            columns,
            rows(n),
            0.0f32,
            1.0f32,
            false,
            false,
            false,
            how,
        );
    }
}

/// Matrices of one case.
struct Case {
    shape: Shape,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    seed: u32,
}

impl Case {
    fn new(shape: Shape, seed: u32) -> Case {
        let random = |count: usize, seed: u32| {
            let numbers = (0..count).map(|i| inputs::value(seed, i as u32));
            numbers.collect::<Vec<f32>>()
        };
        Case {
            shape,
            a: random(shape.m * shape.k, seed),
            b: random(shape.k * shape.n, seed ^ 0x5bd1_e995),
            c: vec![f32::NAN; shape.m * shape.n],
            seed,
        }
    }

    fn run(&mut self, contender: &mut Contender) {
        let (a, b, c) = (&self.a, &self.b, &mut self.c);
        match &mut contender.run {
            Run::Packed(product) => product.multiply(self.shape, a, b, c),
            Run::Other(run) => run(self.shape, a, b, c),
        }
    }

    /// Finds the blocks that are fastest here, on the first rows; what they are.
    fn tune(&mut self, product: &mut Product) -> anyhow::Result<String> {
        let Shape { m, n, k } = self.shape;
        let m = m.min(TUNED_ROWS);
        let blockings = product.blockings();
        let (a, b, c) = (&self.a[..m * k], &self.b, &mut self.c[..m * n]);
        let times = measure::in_turns(blockings.len(), TUNING_ROUNDS, |i| {
            product.block_by(blockings[i]);
            let shape = Shape { m, n, k };
            Ok(measure::seconds(|| product.multiply(shape, a, b, c)).0)
        })?;
        let medians = times.iter().map(|times| Spread::of(times).median);
        let fastest = medians.zip(&blockings).min_by(|a, b| a.0.total_cmp(&b.0));
        let (depth, rows) = fastest.map_or(blockings[0], |(_, blocking)| *blocking);
        product.block_by((depth, rows));
        Ok(format!("{depth} numbers of a sum, {rows} rows"))
    }

    /// Runs it on a result full of NaN, and compares; the relative error.
    fn check(&mut self, contender: &mut Contender) -> anyhow::Result<f64> {
        let Shape { m, n, k } = self.shape;
        self.c.fill(f32::NAN);
        self.run(contender);
        let missing = self.c.iter().filter(|c| !c.is_finite()).count();
        ensure!(
            missing == 0,
            "{}: {missing} of {} results are NaN or were not written ({m}×{n}×{k})",
            contender.name,
            m * n
        );
        let places = match m * n <= 4096 {
            true => (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).collect(),
            false => inputs::places(m, n, PLACES, self.seed),
        };
        let mut distance = Distance::default();
        for (i, j) in places {
            let terms = (0..k).map(|p| f64::from(self.a[i * k + p]) * f64::from(self.b[p * n + j]));
            distance.add(f64::from(self.c[i * n + j]), terms.sum());
        }
        let error = distance.relative();
        ensure!(
            error < MAX_ERROR,
            "{}: the result is wrong by {error:.1e} ({m}×{n}×{k})",
            contender.name
        );
        Ok(error)
    }
}

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new(
        "gemm-cpu",
        "What makes a matrix product in float32 fast on a processor?",
        "size",
        "GFLOP/s",
        None,
        request.seed,
    );
    let blas = match OpenBlas::open() {
        Ok(blas) => {
            outcome.notes.push(format!("OpenBLAS: {}.", blas.about));
            Some(blas)
        }
        Err(missing) => {
            outcome.notes.push(format!("{missing:#}."));
            None
        }
    };
    for step in [AVX2, AVX512] {
        if !special().iter().any(|(here, _)| here.name == step.name) {
            let note = format!("{}: this processor does not have it.", step.name);
            outcome.notes.push(note);
        }
    }
    let cores = outcome.machine.cores;
    let threads: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2))
        .take_while(|&n| n <= cores)
        .collect();
    for &threads in &threads {
        let mut contenders = contenders(threads, blas.as_ref());
        contenders.retain(|contender| contender.step.is_none() || request.wants(contender.name));
        for (m, n, k) in ODD {
            let mut case = Case::new(Shape { m, n, k }, request.seed);
            for contender in &mut contenders {
                case.check(contender)?;
            }
        }
        let sizes = request.sizes_or(&[1024, 2048, 4096], &[192]);
        let slow = contenders.iter().filter(|contender| contender.is_slow());
        let slow: Vec<&str> = slow.map(|contender| contender.name).collect();
        if !slow.is_empty() && sizes.iter().any(|&size| size > LARGEST_SLOW) {
            let slow = slow.join(", ");
            let note = format!("Above {LARGEST_SLOW} these take too long: {slow}.");
            outcome.notes.push(note);
        }
        for size in sizes {
            ensure!(
                (1..=16_384).contains(&size),
                "sizes are from 1 to 16384, not {size}"
            );
            measure_case(&mut outcome, request, &mut contenders, size, threads)
                .with_context(|| format!("size {size}, {threads} threads"))?;
        }
    }
    Ok(outcome)
}

/// All who can take it, in turns; the slow ones fewer times.
fn measure_case(
    outcome: &mut Outcome,
    request: &Request,
    contenders: &mut [Contender],
    size: usize,
    threads: usize,
) -> anyhow::Result<()> {
    let mut case = Case::new(Shape::square(size), request.seed);
    let words = match threads {
        1 => format!("{size}, 1 thread"),
        n => format!("{size}, {n} threads"),
    };
    let mut errors = vec![None; contenders.len()];
    for (contender, error) in contenders.iter_mut().zip(&mut errors) {
        if size <= contender.largest {
            if let Run::Packed(product) = &mut contender.run {
                let blocks = case.tune(product)?;
                let note = format!("{words}: {} in blocks of {blocks}.", contender.name);
                outcome.notes.push(note);
            }
            *error = Some(case.check(contender)?);
        }
    }
    // The last of the references: OpenBLAS where there is one.
    let reference = contenders.len() - 1;
    for is_slow in [true, false] {
        let members: Vec<usize> = (0..contenders.len())
            .filter(|&i| errors[i].is_some())
            .filter(|&i| contenders[i].is_slow() == is_slow || i == reference)
            .collect();
        if members == [reference] {
            continue;
        }
        let rounds = if is_slow {
            request.rounds.min(SLOW_ROUNDS)
        } else {
            request.rounds
        };
        let times = measure::in_turns(members.len(), rounds, |at| {
            let contender = &mut contenders[members[at]];
            let (seconds, ()) = measure::seconds(|| case.run(contender));
            if threads > 1 && contender.name == OPENBLAS {
                std::thread::sleep(PAUSE);
            }
            Ok(seconds)
        })?;
        let references: &Times = &times[members.len() - 1];
        for (&i, times) in members.iter().zip(&times) {
            let contender = &contenders[i];
            if is_slow && i == reference {
                continue;
            }
            let value = Spread::of(times).map(|seconds| case.shape.operations() / seconds / 1e9);
            let mut row = match &contender.step {
                Some(step) => Row::of(step, words.clone(), size as f64, value),
                None => Row::reference(contender.name, words.clone(), size as f64, value),
            };
            if i != reference {
                let ratio = measure::speed_against(times, references);
                row = row.against(contenders[reference].name, ratio);
            }
            row.error = errors[i];
            outcome.rows.push(row);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_right_at_every_edge() {
        let blas = OpenBlas::open().ok();
        for threads in 1..=3 {
            for mut contender in contenders(threads, blas.as_ref()) {
                for (m, n, k) in ODD {
                    let mut case = Case::new(Shape { m, n, k }, 5);
                    case.check(&mut contender).unwrap();
                }
            }
        }
    }

    #[test]
    fn every_blocking_gives_the_same() {
        let mut case = Case::new(
            Shape {
                m: 61,
                n: 70,
                k: 1600,
            },
            9,
        );
        for mut contender in contenders(1, None) {
            let Run::Packed(product) = &mut contender.run else {
                continue;
            };
            assert!(product.blockings().len() > 2);
            for blocking in product.blockings() {
                let Run::Packed(product) = &mut contender.run else {
                    continue;
                };
                product.block_by(blocking);
                case.check(&mut contender).unwrap();
            }
        }
    }

    #[test]
    fn more_columns_than_are_packed_at_a_time() {
        let mut case = Case::new(
            Shape {
                m: 15,
                n: 4103,
                k: 20,
            },
            6,
        );
        for mut contender in contenders(2, None) {
            case.check(&mut contender).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_is_not_measured() {
        let mut case = Case::new(Shape::square(8), 7);
        let mut lazy = Contender::plain(NAIVE, 8, |shape, a, b, c| {
            plain::naive(shape, a, b, c);
            c[63] = f32::NAN;
        });
        let error = case.check(&mut lazy).unwrap_err().to_string();
        assert!(error.contains("1 of 64"), "{error}");
        lazy.run = Run::Other(Box::new(|shape, a, b, c| {
            plain::naive(shape, a, b, c);
            c[0] += 0.1;
        }));
        let error = case.check(&mut lazy).unwrap_err().to_string();
        assert!(error.contains("wrong by"), "{error}");
    }

    #[test]
    fn a_product_of_nothing_is_zero() {
        let mut c = [f32::NAN; 6];
        let shape = Shape { m: 2, n: 3, k: 0 };
        Product::new(portable::MICRO, 2).multiply(shape, &[], &[], &mut c);
        assert_eq!(c, [0.0; 6]);
    }
}
