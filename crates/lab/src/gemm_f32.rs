//! Matrix products in single precision, from one thread a result to the vendor's speed.
//!
//! Steps with several variants (sizes of tiles) are tuned: for each size the variants are
//! measured first, and the best one takes part in the comparison.

mod steps;
mod variant;

use anyhow::{Context as _, ensure};
use cuda::Card;

pub use self::steps::STEPS;
use self::variant::{Loaded, Matrices};
use crate::{
    experiments::Request,
    inputs::{self, Distance, Inputs},
    measure::{self, Spread},
    outcome::{Outcome, Row},
    profiler,
    step::Step,
    toolkit::vendor::Vendor,
};

/// Results may differ from float64 by this.
const TOLERANCE: f64 = 1e-5;
const PLACES: usize = 256;

/// Rows of C, columns of C, and what is summed over.
pub type Size = (usize, usize, usize);

/// Not multiples of any tile; the first has rows that do not begin at 16 bytes.
const ODD: [Size; 4] = [
    (1000, 777, 513),
    (1000, 772, 516),
    (1, 260, 132),
    (300, 4100, 1028),
];

/// The same for tools that watch every access, and take a thousand times as long: more than a
/// tile, and more of k than all stages hold.
const SMALL_ODD: [Size; 3] = [(130, 260, 132), (70, 133, 50), (1, 68, 36)];

/// A step, its variants, and which of them is best for a size.
struct Contender {
    step: &'static Step,
    variants: Vec<Loaded>,
    chosen: usize,
}

impl Contender {
    fn best(&self) -> &Loaded {
        &self.variants[self.chosen]
    }
}

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let card = Card::open()?;
    let inputs = Inputs::new(&card)?;
    let vendor = Vendor::open(&card)?;
    let mut outcome = Outcome::new(
        "gemm-f32",
        "How is a matrix product in single precision brought to the vendor's speed?",
        "size",
        "TFLOP/s",
        Some(card.about()),
        request.seed,
    );
    let mut steps = Vec::new();
    for step in STEPS.iter().filter(|step| request.wants(step.name)) {
        match steps::needs_hopper(step) && !card.is_hopper() {
            true => outcome.notes.push(format!(
                "{}: needs a card of the Hopper generation.",
                step.name
            )),
            false => steps.push(step),
        }
    }
    let contenders = variant::load(&card, &steps)?
        .into_iter()
        .zip(&steps)
        .map(|(variants, &step)| Contender {
            step,
            variants,
            chosen: 0,
        })
        .collect();
    let mut lab = Lab {
        card,
        inputs,
        vendor,
        request,
        contenders,
        outcome,
    };
    let sizes = request.sizes_or(&[2048, 4096, 8192, 16384], &[512, 1024]);
    if profiler::is_profiled() {
        lab.show(sizes[0])?;
        return Ok(lab.outcome);
    }
    let odd: &[Size] = if request.is_check { &SMALL_ODD } else { &ODD };
    for &size in odd {
        lab.check_variants(size)?;
    }
    if request.is_check {
        lab.outcome.checked(odd);
        return Ok(lab.outcome);
    }
    for n in sizes {
        lab.compare((n, n, n), &n.to_string(), n)?;
    }
    if request.sizes.is_empty() {
        // Matrices of a language model with 4096 channels; m are the tokens at once.
        let (tokens, k): (&[usize], usize) = match request.is_quick {
            true => (&[1, 32], 1024),
            false => (&[1, 8, 32, 128, 512], 4096),
        };
        let wide = if request.is_quick { 2752 } else { 11008 };
        for n in [k, wide] {
            for &m in tokens {
                lab.compare((m, n, k), &format!("{m} × {n}, k {k}"), m)?;
            }
        }
    }
    Ok(lab.outcome)
}

struct Lab<'a> {
    card: Card,
    inputs: Inputs,
    vendor: Vendor,
    request: &'a Request,
    contenders: Vec<Contender>,
    outcome: Outcome,
}

impl Lab<'_> {
    /// Every variant of every step at one size that is not round.
    fn check_variants(&self, size: Size) -> anyhow::Result<()> {
        let matrices = Matrices::new(&self.inputs, size, 1, self.request.seed)?;
        let expected = Expected::new(size, self.request.seed);
        for contender in &self.contenders {
            for loaded in &contender.variants {
                if loaded.variant.takes(size) {
                    self.check(contender.step, loaded, &matrices, &expected)?;
                }
            }
        }
        Ok(())
    }

    /// The distance to float64, or an error where it is too large or something is missing.
    fn check(
        &self,
        step: &Step,
        loaded: &Loaded,
        matrices: &Matrices,
        expected: &Expected,
    ) -> anyhow::Result<f64> {
        let what = || {
            let (m, n, k) = matrices.size;
            format!("{} ({}) at {m} × {n} × {k}", step.name, loaded.variant)
        };
        matrices.c.fill_bytes(0xff)?;
        loaded.launch(matrices, 0).with_context(what)?;
        self.card.wait().with_context(what)?;
        self.inputs.is_written(&matrices.c).with_context(what)?;
        let error = expected.distance(matrices)?;
        ensure!(
            error < TOLERANCE,
            "{} is wrong: it differs from float64 by {error:.1e}",
            what()
        );
        Ok(error)
    }

    /// Milliseconds of one product, repeated until the card's clock is fine enough.
    fn time(
        &self,
        matrices: &Matrices,
        repeats: u32,
        launch: impl Fn(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<f64> {
        let milliseconds = self
            .card
            .time_ms(|| (0..repeats as usize).try_for_each(|i| launch(i % matrices.b.len())))?;
        Ok(milliseconds / f64::from(repeats))
    }

    /// Checks, tunes and measures all steps at one size, and adds their rows.
    fn compare(&mut self, size: Size, case: &str, x: usize) -> anyhow::Result<()> {
        let (m, n, k) = size;
        let is_square = m == n && n == k;
        // Few rows: bound by memory, so B must not stay in the cache.
        let sets = if is_square { 1 } else { 4 };
        let seed = self.request.seed.wrapping_add((m * 31 + n) as u32);
        let matrices = Matrices::new(&self.inputs, size, sets, seed)?;
        let expected = Expected::new(size, seed);
        let mut running = Vec::new();
        let mut errors = Vec::new();
        for i in 0..self.contenders.len() {
            let step = self.contenders[i].step;
            if !is_square && !steps::is_top(step) {
                continue;
            }
            if m * n > steps::most_results(step) {
                let note = format!("{}: left out at {case}, it is too slow.", step.name);
                self.outcome.notes.push(note);
                continue;
            }
            self.tune(i, &matrices, case)?;
            let contender = &self.contenders[i];
            errors.push(self.check(step, contender.best(), &matrices, &expected)?);
            running.push(i);
        }
        matrices.c.fill_bytes(0xff)?;
        self.vendor
            .f32(size, &matrices.a, &matrices.b[0], &matrices.c)?;
        self.inputs.is_written(&matrices.c)?;
        let vendor_error = expected.distance(&matrices)?;

        let launch = |i: usize, set: usize| match running.get(i) {
            Some(&contender) => self.contenders[contender].best().launch(&matrices, set),
            None => self
                .vendor
                .f32(size, &matrices.a, &matrices.b[set], &matrices.c),
        };
        let mut repeats = Vec::new();
        for i in 0..=running.len() {
            let once = self.time(&matrices, 1, |set| launch(i, set))?;
            repeats.push(measure::repeats(once, 1.0));
        }
        let times = measure::in_turns(running.len() + 1, self.request.rounds, |i| {
            self.time(&matrices, repeats[i], |set| launch(i, set))
        })?;
        let operations = 2.0 * m as f64 * n as f64 * k as f64;
        let rate = |times: &[f64]| Spread::of(times).map(|ms| operations / ms / 1e9);
        let vendor_times = &times[running.len()];
        for ((&i, times), error) in running.iter().zip(&times).zip(errors) {
            let row = Row::of(self.contenders[i].step, case, x as f64, rate(times))
                .against("cuBLAS", measure::speed_against(times, vendor_times))
                .with_error(error);
            self.outcome.rows.push(row);
        }
        self.outcome.rows.push(
            Row::reference("cuBLAS", case, x as f64, rate(vendor_times)).with_error(vendor_error),
        );
        Ok(())
    }

    /// Every step to the profiler, at one size.
    fn show(&mut self, n: usize) -> anyhow::Result<()> {
        let matrices = Matrices::new(&self.inputs, (n, n, n), 1, self.request.seed)?;
        for i in 0..self.contenders.len() {
            self.tune(i, &matrices, &n.to_string())?;
            let contender = &self.contenders[i];
            let best = contender.best();
            let case = format!("{n}, {}", best.variant);
            profiler::show(&self.card, contender.step, &case, || {
                best.launch(&matrices, 0)
            })?;
        }
        Ok(())
    }

    /// Chooses the variant that is fastest here, and notes how fast the others were.
    fn tune(&mut self, i: usize, matrices: &Matrices, case: &str) -> anyhow::Result<()> {
        let contender = &self.contenders[i];
        if contender.variants.len() == 1 {
            return Ok(());
        }
        let mut measured: Vec<(f64, usize)> = Vec::new();
        for (place, loaded) in contender.variants.iter().enumerate() {
            let launch = |set| loaded.launch(matrices, set);
            let once = self.time(matrices, 1, launch)?;
            let repeats = measure::repeats(once, 1.0);
            let mut best = f64::INFINITY;
            for _ in 0..2 {
                best = best.min(self.time(matrices, repeats, launch)?);
            }
            measured.push((best, place));
        }
        measured.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (m, n, k) = matrices.size;
        let rate = |ms: f64| 2.0 * m as f64 * n as f64 * k as f64 / ms / 1e9;
        let list: Vec<String> = measured
            .iter()
            .map(|&(ms, place)| format!("{} {:.1}", contender.variants[place].variant, rate(ms)))
            .collect();
        let note = format!("{} at {case}: {}.", contender.step.name, list.join(", "));
        self.outcome.notes.push(note);
        self.contenders[i].chosen = measured[0].1;
        Ok(())
    }
}

/// Some results in float64.
struct Expected(Vec<((usize, usize), f64)>);

impl Expected {
    fn new((m, n, k): Size, seed: u32) -> Expected {
        let places = inputs::places(m, n, PLACES, seed);
        let result = |(row, column): (usize, usize)| -> f64 {
            (0..k)
                .map(|i| {
                    let a = inputs::value(variant::a_seed(seed), (row * k + i) as u32);
                    let b = inputs::value(variant::b_seed(seed, 0), (i * n + column) as u32);
                    f64::from(a) * f64::from(b)
                })
                .sum()
        };
        Expected(
            places
                .into_iter()
                .map(|place| (place, result(place)))
                .collect(),
        )
    }

    fn distance(&self, matrices: &Matrices) -> anyhow::Result<f64> {
        let mut distance = Distance::default();
        for &((row, column), expected) in &self.0 {
            let found = matrices.c.read_part(row * matrices.size.1 + column, 1)?;
            distance.add(f64::from(found[0]), expected);
        }
        Ok(distance.relative())
    }
}
