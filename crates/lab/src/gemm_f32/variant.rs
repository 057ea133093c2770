//! Sizes of tiles that a step is compiled for, and how such a kernel is launched.

use std::{cell::Cell, fmt, rc::Rc};

use anyhow::Context as _;
use cuda::{Buffer, Card, Kernel, Launch, Module, Swizzle, TensorMap};

use super::Size;
use crate::{
    inputs::Inputs,
    step::{File, Step},
    toolkit::{Compile, Compiled, compile},
};

/// One way to compile a step.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Of C, for one block.
    tile: (usize, usize),
    /// Of k, for one stage.
    depth: usize,
    /// In shared memory that is asked for at launch; 0: the kernel has its own.
    stages: usize,
    /// Results of a thread.
    each: (usize, usize),
    way: Way,
}

/// What a kernel takes, and how its grid looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Pointers; a block a tile.
    Pointers,
    /// Maps for the copy engine; a block a tile.
    Maps,
    /// The same, and two blocks share tiles of B.
    Cluster,
    /// Maps; tiles of A are turned around in shared memory; a block a tile.
    Turned,
    /// The same, with as many blocks as fit.
    Resident,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((m, n), depth, (each_m, each_n)) = (self.tile, self.depth, self.each);
        write!(f, "{m}×{n}×{depth} by {each_m}×{each_n}")?;
        match self.stages {
            0 => Ok(()),
            stages => write!(f, ", {stages} stages"),
        }
    }
}

impl Variant {
    const fn simple(tile: (usize, usize), depth: usize, each: (usize, usize)) -> Variant {
        Variant {
            tile,
            depth,
            stages: 0,
            each,
            way: Way::Pointers,
        }
    }

    const fn staged(tile: (usize, usize), depth: usize, stages: usize, each_n: usize) -> Variant {
        Variant {
            tile,
            depth,
            stages,
            each: (8, each_n),
            way: Way::Maps,
        }
    }

    /// Those of a step.
    pub fn of(step: &Step) -> Vec<Variant> {
        let staged = |way| {
            STAGED
                .iter()
                .map(|&variant| Variant { way, ..variant })
                .collect()
        };
        match (step.name, step.function) {
            ("tuned", _) => TUNED.to_vec(),
            (_, "naive" | "coalesced" | "shared") => vec![Variant::simple((32, 32), 32, (1, 1))],
            (_, "tile_1d") => vec![Variant::simple((64, 64), 8, (8, 1))],
            (_, "async_copy") => staged(Way::Pointers),
            (_, "tma") => staged(Way::Maps),
            (_, "multicast") => staged(Way::Cluster),
            (_, "turned") => staged(Way::Turned),
            (_, "stream_k") => staged(Way::Resident),
            _ => vec![Variant::simple((128, 128), 8, (8, 8))],
        }
    }

    /// The copy engine wants rows that begin at 16 bytes.
    pub fn takes(&self, (_, n, k): Size) -> bool {
        self.way == Way::Pointers || (n.is_multiple_of(4) && k.is_multiple_of(4))
    }

    fn threads(&self) -> usize {
        (self.tile.0 / self.each.0) * (self.tile.1 / self.each.1)
    }

    fn shared_bytes(&self) -> u32 {
        let stages = self.stages * self.depth * (self.tile.0 + self.tile.1) * 4;
        let turned = match self.way {
            Way::Turned | Way::Resident => 2 * self.depth * self.tile.0 * 4,
            _ => 0,
        };
        (stages + turned) as u32
    }

    fn defines(&self) -> Vec<String> {
        let mut defines = vec![
            format!("TILE_M={}", self.tile.0),
            format!("TILE_N={}", self.tile.1),
            format!("DEPTH={}", self.depth),
            format!("EACH_N={}", self.each.1),
        ];
        match self.stages {
            0 => defines.push(format!("EACH_M={}", self.each.0)),
            stages => defines.push(format!("STAGES={stages}")),
        }
        defines
    }

    fn swizzle(&self) -> Swizzle {
        match self.depth {
            8 => Swizzle::Bytes32,
            16 => Swizzle::Bytes64,
            _ => Swizzle::Bytes128,
        }
    }
}

/// For step `tuned`.
const TUNED: &[Variant] = &[
    Variant::simple((64, 64), 16, (4, 4)),
    Variant::simple((64, 64), 8, (8, 8)),
    Variant::simple((128, 64), 8, (8, 8)),
    Variant::simple((64, 128), 16, (8, 8)),
    Variant::simple((128, 128), 8, (8, 8)),
    Variant::simple((128, 128), 16, (8, 8)),
    Variant::simple((128, 128), 8, (8, 16)),
    Variant::simple((128, 256), 8, (8, 16)),
    Variant::simple((256, 128), 8, (16, 8)),
];

/// For the steps after it.
const STAGED: &[Variant] = &[
    Variant::staged((128, 128), 16, 4, 16),
    Variant::staged((128, 256), 16, 4, 16),
    Variant::staged((256, 128), 16, 4, 16),
    Variant::staged((64, 128), 16, 3, 16),
    Variant::staged((64, 64), 16, 3, 16),
    Variant::staged((128, 64), 16, 3, 16),
    Variant::staged((128, 128), 16, 4, 8),
    Variant::staged((64, 128), 16, 3, 8),
];

/// The factors and the place of the result.
pub struct Matrices {
    pub size: Size,
    pub a: Buffer<f32>,
    /// Several, of which only the first is checked.
    pub b: Vec<Buffer<f32>>,
    pub c: Buffer<f32>,
}

pub fn a_seed(seed: u32) -> u32 {
    seed
}

pub fn b_seed(seed: u32, set: usize) -> u32 {
    seed.wrapping_add(1 + set as u32)
}

impl Matrices {
    pub fn new(inputs: &Inputs, size: Size, sets: usize, seed: u32) -> anyhow::Result<Matrices> {
        let (m, n, k) = size;
        let b = (0..sets).map(|set| inputs.random(k * n, b_seed(seed, set)));
        Ok(Matrices {
            size,
            a: inputs.random(m * k, a_seed(seed))?,
            b: b.collect::<Result<_, _>>()?,
            c: inputs.poisoned(m * n)?,
        })
    }
}

/// A variant, ready to be launched.
pub struct Loaded {
    pub variant: Variant,
    card: Card,
    kernel: Kernel,
    shares: Option<Shares>,
}

/// What blocks that share a tile need: partial sums, and who is ready.
struct Shares {
    blocks: u32,
    parts: Buffer<f32>,
    flags: Buffer<u32>,
    /// Another one for each launch, so that flags need no clearing.
    epoch: Cell<u32>,
}

/// All variants of the steps, in their order. Those of one file and size are compiled once,
/// all at the same time.
pub fn load(card: &Card, steps: &[&'static Step]) -> anyhow::Result<Vec<Vec<Loaded>>> {
    let capability = card.about().capability;
    let mut sources: Vec<(File, Vec<String>)> = Vec::new();
    let mut wanted = Vec::new();
    for &step in steps {
        for variant in Variant::of(step) {
            let defines = match step.file.path.ends_with("hopper.cu") || step.function == "vector" {
                true => variant.defines(),
                false => Vec::new(),
            };
            let known = sources
                .iter()
                .position(|(file, others)| file.path == step.file.path && *others == defines);
            wanted.push((step, variant, known.unwrap_or(sources.len())));
            if known.is_none() {
                sources.push((step.file, defines));
            }
        }
    }
    let compiled: Vec<anyhow::Result<Compiled>> = std::thread::scope(|scope| {
        let compile_one = |(file, defines): &(File, Vec<String>)| {
            compile(capability, file.path, file.text, defines)
        };
        let threads: Vec<_> = sources
            .iter()
            .map(|source| scope.spawn(move || compile_one(source)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                let panicked = |_| Err(anyhow::anyhow!("the compiler's thread panicked"));
                thread.join().unwrap_or_else(panicked)
            })
            .collect()
    });
    let mut modules = Vec::new();
    for compiled in compiled {
        modules.push(Rc::new(card.load(&compiled?)?));
    }
    let mut loaded: Vec<Vec<Loaded>> = steps.iter().map(|_| Vec::new()).collect();
    for (step, variant, module) in wanted {
        let place = steps.iter().position(|other| other.name == step.name);
        let one = Loaded::new(card, step, variant, &modules[module])
            .with_context(|| format!("{} ({variant})", step.name))?;
        loaded[place.unwrap_or_default()].push(one);
    }
    Ok(loaded)
}

impl Loaded {
    fn new(
        card: &Card,
        step: &Step,
        variant: Variant,
        module: &Rc<Module>,
    ) -> anyhow::Result<Loaded> {
        let kernel = module.kernel(step.function)?;
        let resources = kernel.resources()?;
        if resources.local_bytes > 0 {
            eprintln!("{} {variant}: {resources:?}", step.name);
        }
        if variant.shared_bytes() > 0 {
            kernel.allow_shared(variant.shared_bytes())?;
        }
        let shares = match variant.way {
            Way::Resident => {
                let at_once =
                    kernel.blocks_at_once(variant.threads() as u32, variant.shared_bytes())?;
                let blocks = at_once * card.about().multiprocessors;
                Some(Shares {
                    blocks,
                    parts: card.buffer(blocks as usize * variant.tile.0 * variant.tile.1)?,
                    flags: card.buffer_with(&vec![0; blocks as usize])?,
                    epoch: Cell::new(0),
                })
            }
            _ => None,
        };
        Ok(Loaded {
            variant,
            card: card.clone(),
            kernel,
            shares,
        })
    }

    /// How A and B are cut into tiles for the copy engine.
    fn maps(&self, matrices: &Matrices, set: usize) -> anyhow::Result<(TensorMap, TensorMap)> {
        let (m, n, k) = matrices.size;
        let Variant { tile, depth, .. } = self.variant;
        let b_rows = if self.variant.way == Way::Cluster {
            depth / 2
        } else {
            depth
        };
        let a = self.card.matrix(
            &matrices.a,
            (m as u64, k as u64),
            (tile.0 as u32, depth as u32),
            self.variant.swizzle(),
        )?;
        let b = self.card.matrix(
            &matrices.b[set],
            (k as u64, n as u64),
            (b_rows as u32, tile.1 as u32),
            Swizzle::None,
        )?;
        Ok((a, b))
    }

    /// `c = a × b`, with the B of this number.
    pub fn launch(&self, matrices: &Matrices, set: usize) -> anyhow::Result<()> {
        let (m, n, k) = matrices.size;
        let tiles_m = m.div_ceil(self.variant.tile.0) as u32;
        let tiles_n = n.div_ceil(self.variant.tile.1) as u32;
        let grid = match (self.variant.way, &self.shares) {
            (Way::Cluster, _) => (tiles_n, tiles_m.next_multiple_of(2), 1),
            (_, Some(shares)) => (shares.blocks, 1, 1),
            _ => (tiles_n, tiles_m, 1),
        };
        let threads = self.variant.threads() as u32;
        let how = Launch::new(grid, threads, self.variant.shared_bytes());
        let (m, n, k) = (m as i32, n as i32, k as i32);
        let (a, b, c) = (&matrices.a, &matrices.b[set], &matrices.c);
        if self.variant.way == Way::Pointers {
            // SAFETY: the kernel takes three matrices of these sizes.
            unsafe { self.kernel.launch(how, &[a, b, c, &m, &n, &k])? };
            return Ok(());
        }
        let (a, b) = self.maps(matrices, set)?;
        match &self.shares {
            // SAFETY: as above; A and B as maps.
            None => unsafe { self.kernel.launch(how, &[&a, &b, c, &m, &n, &k])? },
            Some(shares) => {
                let epoch = shares.epoch.get().wrapping_add(1);
                shares.epoch.set(epoch);
                let (parts, flags) = (&shares.parts, &shares.flags);
                // SAFETY: as above; there is a tile of parts and a flag for each block, and all
                // blocks run at once, because the grid has only as many as fit.
                unsafe {
                    self.kernel
                        .launch(how, &[&a, &b, c, &m, &n, &k, parts, flags, &epoch])?;
                }
            }
        }
        Ok(())
    }
}
