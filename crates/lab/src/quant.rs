//! Weights of four bits against bf16: up to which batch are fewer bytes faster?

mod choice;
mod matrix;
mod product;
mod report;
mod shown;
mod steps;
mod strips;
mod weights;

use std::rc::Rc;

use anyhow::{Context as _, ensure};
use cuda::{Buffer, Card, Graph, Kernel, Launch, Stream, TensorMap};
use half::bf16;

use self::{
    choice::Way,
    matrix::Matrix,
    product::{Product, Room, Size, Variant, compile_all},
    steps::{INT4_FILE, Q4K_FILE, RUNGS, Rung, step_of},
    strips::{Plan, Strips},
    weights::{Format, Maker},
};
use crate::{
    experiments::Request,
    inputs::{self, Distance, Inputs},
    measure::{self, Spread},
    outcome::{Outcome, Row, Work},
    profiler,
    step::{File, Step},
    toolkit::{
        Compile,
        vendor::{
            Vendor,
            lt::{self, Lt},
        },
    },
};

pub use self::steps::STEPS;

const REFERENCE: &str = "cuBLAS bf16";

/// The largest batch that a rung without tensor cores is measured at.
const NAIVE_TOKENS: usize = 4;
const GEMV_TOKENS: [usize; 4] = [1, 2, 4, 8];
/// Results may be so far from float64 on the same four-bit weights.
const TOLERANCE: f64 = 5e-3;

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let card = Card::open()?;
    ensure!(
        card.is_hopper(),
        "the card is no Hopper: these kernels need one"
    );
    let mut outcome = Outcome::new(
        "quant",
        "Up to which batch are weights of four bits faster than bf16, and by how much?",
        "n × k, batch",
        "µs",
        Some(card.about()),
        request.seed,
    );
    let batches = request.sizes_or(&[1, 2, 4, 8, 16, 32, 64, 128, 256], &[1, 8, 16, 64, 256]);
    let shapes: &[(usize, usize)] = match request.is_quick {
        true => &[(1024, 2048)],
        false => &SHAPES,
    };
    let bench = Bench::new(card, shapes, &batches)?;
    if profiler::is_profiled() {
        bench.show(request, SHAPES[0], &batches)?;
        return Ok(outcome);
    }
    let (odd, odd_batches): (&[(usize, usize)], &[usize]) = match request.is_check {
        true => (&[(130, 768)], &[3, 13, 33, 130]),
        false => (&ODD, &[1, 3, 8, 13, 31, 33, 100, 256, 300]),
    };
    bench.check_odd_sizes(request, odd, odd_batches)?;
    if request.is_check {
        outcome.checked(odd);
        return Ok(outcome);
    }
    for &(n, k) in shapes {
        let matrix = Matrix::new(&bench, n, k, &batches, request)?;
        for &batch in &batches {
            let size = Size { batch, n, k };
            bench
                .measure(request, &matrix, size, &mut outcome)
                .with_context(|| format!("{n} × {k}, batch {batch}"))?;
        }
    }
    report::notes(&mut outcome, shapes, &batches);
    Ok(outcome)
}

/// Of models of 7, 8 and 70 billion parameters: the feed-forward products.
const SHAPES: [(usize, usize); 4] = [(11008, 4096), (4096, 11008), (14336, 4096), (28672, 8192)];

/// No multiples of anything, and tiles that many blocks share.
const ODD: [(usize, usize); 3] = [(1000, 768), (130, 11008), (384, 256)];

/// What all measurements share.
struct Bench {
    card: Card,
    inputs: Inputs,
    vendor: Vendor,
    /// Not everywhere.
    lt: Option<Lt>,
    maker: Maker,
    naive: [Kernel; 2],
    /// By format, then as `GEMV_TOKENS`.
    gemv: Vec<Vec<Kernel>>,
    products: Vec<Product>,
    strips: Vec<Strips>,
    room: Room,
}

/// One that is measured.
enum Contender<'a> {
    /// By an algorithm of cuBLASLt, or as cuBLAS does it by itself.
    Vendor(Option<(&'a lt::Product<'a>, usize)>),
    Plain(Format, &'a Kernel, u32),
    Tensor(&'a Product, TensorMap, bool),
    Strips(&'a Strips, u32),
}

/// Its name in the table, and its step where it is one.
struct Entrant<'a> {
    step: Option<&'static Step>,
    name: String,
    contender: Contender<'a>,
}

impl Bench {
    fn new(card: Card, shapes: &[(usize, usize)], batches: &[usize]) -> anyhow::Result<Bench> {
        let capability = card.about().capability;
        let all = choice::all(shapes, batches, card.about().multiprocessors);
        let compiled = compile_all(&all.tensor, |variant| variant.compile(capability))?;
        let products = all
            .tensor
            .iter()
            .zip(&compiled)
            .map(|(variant, compiled)| Product::load(&card, *variant, compiled))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let compiled = compile_all(&all.strips, |variant| variant.compile(capability))?;
        let strips = all
            .strips
            .iter()
            .zip(&compiled)
            .map(|(variant, compiled)| Strips::load(&card, *variant, compiled))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let plain = |file: File, name: &str, tokens: usize| -> anyhow::Result<Kernel> {
            let defines = [format!("TOKENS={tokens}")];
            Ok(Rc::new(card.kernels(file.path, file.text, &defines)?).kernel(name)?)
        };
        let gemv = |file: File, name: &str| -> anyhow::Result<Vec<Kernel>> {
            GEMV_TOKENS
                .iter()
                .map(|&tokens| plain(file, name, tokens))
                .collect()
        };
        Ok(Bench {
            inputs: Inputs::new(&card)?,
            vendor: Vendor::open(&card)?,
            lt: Lt::open(&card).ok(),
            maker: Maker::new(&card)?,
            naive: [
                plain(INT4_FILE, "int4_naive", 1)?,
                plain(Q4K_FILE, "q4k_naive", 1)?,
            ],
            gemv: vec![gemv(INT4_FILE, "int4_gemv")?, gemv(Q4K_FILE, "q4k_gemv")?],
            room: Room::new(&card, &all.tensor)?,
            products,
            strips,
            card,
        })
    }

    fn product(&self, variant: Variant) -> anyhow::Result<&Product> {
        self.products
            .iter()
            .find(|product| product.variant == variant)
            .with_context(|| format!("{} was not compiled", variant.name()))
    }

    /// One kernel, for this size.
    fn contender(&self, way: Way, x: &Buffer<bf16>, size: Size) -> anyhow::Result<Contender<'_>> {
        match way {
            Way::Tensor(variant) => {
                let product = self.product(variant)?;
                let map = product.inputs(&self.card, x, size)?;
                Ok(Contender::Tensor(product, map, true))
            }
            Way::Strips(plan) => {
                let strips = self.strips.iter().find(|s| s.variant == plan.variant);
                let strips = strips.context("these strips were not compiled")?;
                Ok(Contender::Strips(strips, plan.blocks))
            }
        }
    }

    /// The steps at one size, without the last, which is chosen among `choice::ways`.
    fn entrants(
        &self,
        request: &Request,
        x: &Buffer<bf16>,
        size: Size,
    ) -> anyhow::Result<Vec<Entrant<'_>>> {
        let mut entrants = Vec::new();
        for format in Format::ALL {
            for rung in RUNGS {
                let Some(step) = step_of(format, rung).filter(|step| request.wants(step.name))
                else {
                    continue;
                };
                let batch = size.batch;
                let plan = Plan::of(size, 1, self.card.about().multiprocessors);
                let early = |variant: Variant| self.contender(Way::Tensor(variant), x, size);
                let contender = match (rung, plan) {
                    (Rung::Naive, _) if batch <= NAIVE_TOKENS => {
                        Contender::Plain(format, &self.naive[format as usize], 1)
                    }
                    (Rung::Gemv, _) => {
                        let Some(i) = GEMV_TOKENS.iter().position(|&tokens| tokens >= batch) else {
                            continue;
                        };
                        Contender::Plain(format, &self.gemv[format as usize][i], 2)
                    }
                    (Rung::Mma, _) if batch <= 64 => match early(choice::mma(format, batch))? {
                        Contender::Tensor(product, map, _) => {
                            Contender::Tensor(product, map, false)
                        }
                        other => other,
                    },
                    (Rung::Early, _) if batch <= 64 => early(choice::mma(format, batch))?,
                    (Rung::Strips, Some(plan)) => self.contender(Way::Strips(plan), x, size)?,
                    (Rung::Wgmma, _) if batch > 16 => early(choice::wgmma(format, batch))?,
                    (Rung::Multicast, _) if batch > 16 => early(choice::multicast(format, batch))?,
                    _ => continue,
                };
                entrants.push(Entrant {
                    step: Some(step),
                    name: step.name.to_owned(),
                    contender,
                });
            }
        }
        Ok(entrants)
    }

    /// The fastest of several, each tried in turns; its number.
    fn fastest(
        &self,
        contenders: &[Contender<'_>],
        matrix: &Matrix,
        size: Size,
        (x, y): (&Buffer<bf16>, &Buffer<bf16>),
    ) -> anyhow::Result<usize> {
        let graphs = contenders
            .iter()
            .map(|contender| self.recorded(contender, matrix, size, (x, y), 0.4))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let times = measure::in_turns(graphs.len(), 5, |i| graphs[i].time_ms())?;
        let medians = times.iter().map(|times| Spread::of(times).median);
        let fastest = medians.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        Ok(fastest.map_or(0, |(i, _)| i))
    }

    /// Products in a row, recorded as a graph, for about so many milliseconds.
    fn recorded(
        &self,
        contender: &Contender<'_>,
        matrix: &Matrix,
        size: Size,
        (x, y): (&Buffer<bf16>, &Buffer<bf16>),
        milliseconds: f64,
    ) -> anyhow::Result<Repeated> {
        let start = |turn: usize, stream: Option<&Stream>| {
            self.start(contender, matrix, size, (x, y), turn, stream)
        };
        let some = 4;
        let once = self
            .card
            .time_ms(|| (0..some).try_for_each(|turn| start(turn, None)))?
            / some as f64;
        let count = measure::repeats(once, milliseconds).clamp(4, 400) as usize;
        let graph = self
            .card
            .record(|stream| (0..count).try_for_each(|turn| start(turn, Some(stream))))?;
        Ok(Repeated { graph, count })
    }

    /// Starts one product; `turn` says which copy of the weights.
    fn start(
        &self,
        contender: &Contender<'_>,
        matrix: &Matrix,
        size: Size,
        (x, y): (&Buffer<bf16>, &Buffer<bf16>),
        turn: usize,
        stream: Option<&Stream>,
    ) -> anyhow::Result<()> {
        match contender {
            Contender::Vendor(way) => {
                let weights = &matrix.vendor[turn % matrix.vendor.len()];
                let shape = (size.batch, size.n, size.k);
                if let Some((product, which)) = way {
                    return product.run(*which, x, weights, y, stream);
                }
                self.vendor.use_stream(stream)?;
                self.vendor.bf16(shape, x, weights, y)
            }
            Contender::Strips(strips, blocks) => {
                let copies = &matrix.strips[blocks];
                let weights = &copies[turn % copies.len()];
                strips.start((size, *blocks), weights, x, y, stream)
            }
            Contender::Plain(format, kernel, rows) => {
                let copies = &matrix.plain[*format as usize];
                let weights = &copies[turn % copies.len()];
                let blocks = (size.n as u32).div_ceil(8 * rows);
                let arguments: [&dyn cuda::Argument; 7] = [
                    &weights.words,
                    &weights.scales,
                    x,
                    y,
                    &(size.n as u32),
                    &(size.k as u32),
                    &(size.batch as u32),
                ];
                let how = Launch {
                    stream,
                    ..Launch::new((blocks, 1, 1), 256, 0)
                };
                // SAFETY: the parameters of these kernels, and buffers of this size.
                unsafe { kernel.launch(how, &arguments)? };
                Ok(())
            }
            Contender::Tensor(product, map, is_early) => {
                let copies = &matrix.packed[product.variant.format as usize];
                let weights = &copies[turn % copies.len()];
                product.start(size, weights, map, y, &self.room, (*is_early, stream))
            }
        }
    }

    /// Relative to float64, of three products in a row with other copies of the weights.
    fn error(
        &self,
        entrant: &Entrant<'_>,
        matrix: &Matrix,
        size: Size,
        x: &Buffer<bf16>,
        expected: &[Expected; 2],
    ) -> anyhow::Result<f64> {
        let y = self.inputs.poisoned::<bf16>(size.batch * size.n)?;
        for turn in 0..3 {
            self.start(&entrant.contender, matrix, size, (x, &y), turn, None)?;
        }
        self.card.wait().with_context(|| entrant.name.clone())?;
        self.inputs
            .is_written(&y)
            .with_context(|| entrant.name.clone())?;
        let found = y.read()?;
        let format = match &entrant.contender {
            Contender::Vendor(_) | Contender::Strips(..) => Format::Int4,
            Contender::Plain(format, ..) => *format,
            Contender::Tensor(product, ..) => product.variant.format,
        };
        let mut distance = Distance::default();
        for &(token, row, value) in &expected[format as usize].0 {
            distance.add(f64::from(found[token * size.n + row].to_f32()), value);
        }
        let error = distance.relative();
        ensure!(
            error < TOLERANCE,
            "{} is wrong: {error:.1e} from float64 at {} × {}, batch {}",
            entrant.name,
            size.n,
            size.k,
            size.batch
        );
        Ok(error)
    }

    fn expected(&self, matrix: &Matrix, size: Size, seed: u32) -> [Expected; 2] {
        let places = inputs::places(size.batch, size.n, 120, seed);
        Format::ALL.map(|format| {
            let host = &matrix.hosts[format as usize];
            let of_place = |&(token, row): &(usize, usize)| {
                let weights = host.row(row);
                let products = weights.iter().enumerate().map(|(i, weight)| {
                    let place = (token * size.k + i) as u32;
                    weight * f64::from(inputs::value_bf16(seed ^ 1, place).to_f32())
                });
                (token, row, products.sum())
            };
            Expected(places.iter().map(of_place).collect())
        })
    }

    /// Every kernel at these sizes.
    fn check_odd_sizes(
        &self,
        request: &Request,
        shapes: &[(usize, usize)],
        batches: &[usize],
    ) -> anyhow::Result<()> {
        for &(n, k) in shapes {
            let matrix = Matrix::small(self, n, k, request)?;
            for &batch in batches {
                let size = Size { batch, n, k };
                let x = self.inputs.random::<bf16>(batch * k, request.seed ^ 1)?;
                let expected = self.expected(&matrix, size, request.seed);
                let entrant = |name: String, contender| Entrant {
                    step: None,
                    name,
                    contender,
                };
                let mut entrants = vec![entrant(REFERENCE.to_owned(), Contender::Vendor(None))];
                for kernels in &self.gemv {
                    let format = Format::ALL[entrants.len() - 1];
                    let i = GEMV_TOKENS.iter().position(|&tokens| tokens >= batch);
                    let kernel = i.map_or(&self.naive[format as usize], |i| &kernels[i]);
                    let rows = if i.is_some() { 2 } else { 1 };
                    let name = format!("{} plain", format.name());
                    entrants.push(entrant(name, Contender::Plain(format, kernel, rows)));
                }
                for product in &self.products {
                    let way = Way::Tensor(product.variant);
                    let contender = self.contender(way, &x, size)?;
                    entrants.push(entrant(product.variant.name(), contender));
                }
                for strips in &self.strips {
                    if strips.variant.tiles as usize * 8 >= batch {
                        let of = Plan::with(strips.variant, n, self.card.about().multiprocessors);
                        let contender = self.contender(Way::Strips(of), &x, size)?;
                        entrants.push(entrant(strips.variant.name(), contender));
                    }
                }
                for entrant in entrants {
                    self.error(&entrant, &matrix, size, &x, &expected)?;
                }
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        request: &Request,
        matrix: &Matrix,
        size: Size,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let x = self
            .inputs
            .random::<bf16>(size.batch * size.k, request.seed ^ 1)?;
        let y = self.inputs.poisoned::<bf16>(size.batch * size.n)?;
        let case = format!("{} × {}, batch {}", size.n, size.k, size.batch);
        let shape = (size.batch, size.n, size.k);
        let by_lt = self.lt.as_ref().and_then(|lt| lt.bf16(shape).ok());
        let mut vendors = vec![Contender::Vendor(None)];
        if let Some(product) = &by_lt {
            let which = 0..product.algorithms.len();
            vendors.extend(which.map(|i| Contender::Vendor(Some((product, i)))));
        }
        let fastest = self.fastest(&vendors, matrix, size, (&x, &y))?;
        let mut entrants = vec![Entrant {
            step: None,
            name: REFERENCE.to_owned(),
            contender: vendors.swap_remove(fastest),
        }];
        let mut chosen = vec![match fastest {
            0 => "cublasGemmEx".to_owned(),
            i => format!("cublasLtMatmul, algorithm {i}"),
        }];
        entrants.extend(self.entrants(request, &x, size)?);
        for format in Format::ALL {
            let step = step_of(format, Rung::Best).filter(|step| request.wants(step.name));
            let Some(step) = step else { continue };
            let ways = choice::ways(format, size, self.card.about().multiprocessors);
            let contenders = ways.iter().map(|&way| self.contender(way, &x, size));
            let mut contenders = contenders.collect::<anyhow::Result<Vec<_>>>()?;
            let fastest = self.fastest(&contenders, matrix, size, (&x, &y))?;
            chosen.push(ways[fastest].name());
            entrants.push(Entrant {
                step: Some(step),
                name: step.name.to_owned(),
                contender: contenders.swap_remove(fastest),
            });
        }
        outcome
            .notes
            .push(format!("Fastest at {case}: {}.", chosen.join("; ")));
        let expected = self.expected(matrix, size, request.seed);
        let mut errors = Vec::new();
        let mut graphs = Vec::new();
        for entrant in &entrants {
            errors.push(self.error(entrant, matrix, size, &x, &expected)?);
            graphs.push(self.recorded(&entrant.contender, matrix, size, (&x, &y), 1.5)?);
        }
        let times = measure::in_turns(graphs.len(), request.rounds, |i| {
            Ok(graphs[i].time_ms()? * 1e3)
        })?;
        for (i, entrant) in entrants.iter().enumerate() {
            let value = Spread::of(&times[i]);
            let mut row = match entrant.step {
                Some(step) => Row::of(step, &case, size.batch as f64, value),
                None => Row::reference(&entrant.name, &case, size.batch as f64, value),
            };
            if i > 0 {
                row = row.against(REFERENCE, measure::speed_against(&times[i], &times[0]));
            }
            row.work = Some(Work {
                flops: Some(2.0 * (size.n * size.k * size.batch) as f64),
                bytes: Some((size.n * size.k) as f64 * entrant.bits() / 8.0),
            });
            outcome.rows.push(row.with_error(errors[i]));
        }
        Ok(())
    }
}

/// Products in a row.
struct Repeated {
    graph: Graph,
    count: usize,
}

impl Repeated {
    /// Of one of them.
    fn time_ms(&self) -> anyhow::Result<f64> {
        Ok(self.graph.time_ms()? / self.count as f64)
    }
}

impl Entrant<'_> {
    /// Of a weight.
    fn bits(&self) -> f64 {
        match &self.contender {
            Contender::Vendor(_) => 16.0,
            Contender::Plain(format, ..) => format.bits(),
            Contender::Tensor(product, ..) => product.variant.format.bits(),
            Contender::Strips(..) => Format::Int4.bits(),
        }
    }
}

/// Some elements of a result: token, row, value.
struct Expected(Vec<(usize, usize, f64)>);

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs NVRTC, but no card.
    #[test]
    fn every_variant_compiles_for_hopper() {
        let all = choice::all(&SHAPES, &[1, 16, 32, 64, 128, 256], 132);
        let compiled = compile_all(&all.tensor, |variant| variant.compile((9, 0)));
        let compiled = compiled.and_then(|tensor| {
            let strips = compile_all(&all.strips, |variant| variant.compile((9, 0)))?;
            Ok([tensor, strips].concat())
        });
        match compiled {
            Ok(compiled) => assert!(compiled.iter().all(|one| !one.image.is_empty())),
            Err(error) if error.to_string().contains("nvidia-cuda-nvrtc") => {
                println!("skipped: {error}");
            }
            Err(error) => panic!("{error:#}"),
        }
    }
}
