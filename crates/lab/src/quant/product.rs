//! Products on tensor cores: which variants of the kernel there are, and how one is started.

use std::rc::Rc;

use anyhow::ensure;
use cuda::{Buffer, Card, Kernel, Launch, Stream, Swizzle, TensorMap};
use half::bf16;

use super::{
    steps::PRODUCT_FILE,
    weights::{Format, Layout},
};
use crate::toolkit::{Compile, Compiled, compile};

/// One way to compile and start kernels/quant_product.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    pub format: Format,
    /// Tokens of a tile.
    pub tokens: u32,
    /// Units of 128 rows in a block's tile.
    pub units: u32,
    /// With `wgmma`, or else `mma`.
    pub is_wide: bool,
    /// Blocks that fit on a multiprocessor; the next kernel's first blocks are among them.
    pub fit: u32,
    /// Tiles of 192 rows, with `wgmma`: inputs are read for more rows at once.
    pub is_tall: bool,
    /// Blocks, 1 or 2, that share inputs; 2 only with one unit.
    pub cluster: u32,
}

/// Shared memory of a multiprocessor, without what the card keeps for each block.
const SHARED_BYTES: u32 = 228 * 1024;
const KEPT_BYTES: u32 = 1024;
const MOST_STAGES: u32 = 16;

impl Variant {
    pub fn mma(format: Format, tokens: u32) -> Variant {
        Variant {
            format,
            tokens,
            units: 1,
            is_wide: false,
            fit: if tokens >= 64 { 1 } else { 2 },
            is_tall: false,
            cluster: 1,
        }
    }

    pub fn wgmma(format: Format, tokens: u32) -> Variant {
        Variant {
            is_wide: true,
            fit: if tokens >= 128 { 1 } else { 2 },
            ..Variant::mma(format, tokens)
        }
    }

    /// The same, with inputs that two blocks share.
    pub fn shared(self) -> Variant {
        Variant { cluster: 2, ..self }
    }

    /// As in notes and errors.
    pub fn name(self) -> String {
        format!(
            "{} {} tokens={} units={} fit={} cluster={}{}",
            self.format.name(),
            if self.is_wide { "wgmma" } else { "mma" },
            self.tokens,
            self.units,
            self.fit,
            self.cluster,
            if self.is_tall { " tall" } else { "" }
        )
    }

    fn stage_bytes(self) -> u32 {
        let scales = match self.format {
            Format::Int4 if self.is_tall => 256,
            Format::Int4 => 1024,
            Format::Q4k => 2048,
        };
        let weights = match self.is_tall {
            // A unit and a half.
            true => 12288 + (scales * 3 / 2).max(1024),
            false => self.units * (8192 + scales),
        };
        self.tokens * 256 + weights
    }

    /// What lanes of a warp exchange scales in.
    fn scratch_bytes(self) -> u32 {
        match self.format {
            Format::Int4 => 0,
            Format::Q4k if self.is_tall => 6144,
            Format::Q4k => 4096 * self.units,
        }
    }

    /// As many as fit.
    fn stages(self) -> u32 {
        let barriers = 16 * MOST_STAGES;
        let aligned = 1024;
        let of_block =
            SHARED_BYTES / self.fit - KEPT_BYTES - self.scratch_bytes() - barriers - aligned;
        (of_block / self.stage_bytes()).min(MOST_STAGES)
    }

    fn shared_bytes(self) -> u32 {
        self.stages() * self.stage_bytes() + self.scratch_bytes() + 1024
    }

    /// Rows of a tile.
    fn rows(self) -> u32 {
        if self.is_tall { 192 } else { 128 * self.units }
    }

    /// Whether warps that copy give registers to those that compute: whole groups of four do.
    fn moves_registers(self) -> bool {
        self.tokens >= 128 && self.units == 1
    }

    fn threads(self) -> u32 {
        let computing = match (self.is_tall, self.is_wide) {
            (true, _) => 384,
            (false, true) => 256 * self.units,
            (false, false) => 256,
        };
        computing
            + match self.moves_registers() {
                true => 128,
                false => 64,
            }
    }

    pub fn compile(self, capability: (i32, i32)) -> anyhow::Result<Compiled> {
        let defines = self.defines();
        compile(capability, PRODUCT_FILE.path, PRODUCT_FILE.text, &defines)
    }

    pub fn defines(self) -> Vec<String> {
        vec![
            format!("FORMAT={}", self.format as u32 + 4),
            format!("TOKENS={}", self.tokens),
            format!("STAGES={}", self.stages()),
            format!("UNITS={}", self.units),
            format!("WGMMA={}", u32::from(self.is_wide)),
            format!("BLOCKS={}", self.fit),
            format!("CLUSTER={}", self.cluster),
            format!("TALL={}", u32::from(self.is_tall)),
        ]
    }
}

/// Compiles all at the same time, as one compiler needs a second for each.
pub fn compile_all<T: Copy + Send + Sync>(
    variants: &[T],
    one: impl Fn(T) -> anyhow::Result<Compiled> + Sync,
) -> anyhow::Result<Vec<Compiled>> {
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = variants
            .iter()
            .map(|&variant| scope.spawn(move || one(variant)))
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(compiled) => compiled,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    })
}

/// Room that blocks of one product exchange sums in.
pub struct Room {
    partial: Buffer<f32>,
    flags: Buffer<u32>,
}

impl Room {
    pub fn new(card: &Card, variants: &[Variant]) -> anyhow::Result<Room> {
        let blocks = card.about().multiprocessors;
        let floats =
            |variant: &Variant| blocks as usize * (variant.tokens * variant.rows()) as usize;
        let most = variants.iter().map(floats).max().unwrap_or(1);
        Ok(Room {
            partial: card.buffer(most)?,
            flags: card.buffer_with(&vec![0; blocks as usize])?,
        })
    }
}

/// A variant, loaded.
pub struct Product {
    pub variant: Variant,
    kernel: Kernel,
    multiprocessors: u32,
}

/// `y = x × wᵀ` of this size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub batch: usize,
    pub n: usize,
    pub k: usize,
}

impl Product {
    pub fn load(card: &Card, variant: Variant, compiled: &Compiled) -> anyhow::Result<Product> {
        let kernel = Rc::new(card.load(compiled)?).kernel("quant_product")?;
        kernel.allow_shared(variant.shared_bytes())?;
        Ok(Product {
            variant,
            kernel,
            multiprocessors: card.about().multiprocessors,
        })
    }

    /// How the copy engine finds inputs for this kernel.
    pub fn inputs(&self, card: &Card, x: &Buffer<bf16>, size: Size) -> anyhow::Result<TensorMap> {
        let tile = (self.variant.tokens / self.variant.cluster, 64);
        let shape = (size.batch as u64, size.k as u64);
        Ok(card.matrix(x, shape, tile, Swizzle::Bytes128)?)
    }

    /// Starts it; `is_early`: before the kernel before it has ended.
    pub fn start(
        &self,
        size: Size,
        weights: &Layout,
        x: &TensorMap,
        y: &Buffer<bf16>,
        room: &Room,
        (is_early, stream): (bool, Option<&Stream>),
    ) -> anyhow::Result<()> {
        let variant = self.variant;
        ensure!(
            size.n.is_multiple_of(2),
            "n is {}, results go in pairs",
            size.n
        );
        let k_units = (size.k / 128) as u32;
        // Two that share inputs count as one. Rows are packed up to a multiple of 768, which is
        // an even number of tiles.
        let row_tiles = (size.n as u32).div_ceil(variant.rows() * variant.cluster);
        let token_tiles = (size.batch as u32).div_ceil(variant.tokens);
        let units = k_units * row_tiles * token_tiles;
        let blocks = units.min(self.multiprocessors / variant.cluster) * variant.cluster;
        let how = Launch {
            cluster: variant.cluster,
            may_begin_early: is_early,
            stream,
            ..Launch::new((blocks, 1, 1), variant.threads(), variant.shared_bytes())
        };
        let arguments: [&dyn cuda::Argument; 11] = [
            &weights.words,
            &weights.scales,
            x,
            y,
            &room.partial,
            &room.flags,
            &(size.n as u32),
            &(size.batch as u32),
            &k_units,
            &row_tiles,
            &token_tiles,
        ];
        // SAFETY: the kernel's parameters; weights are packed with rows up to a multiple of
        // 768, the room is made for this variant, and the kernel waits for the one before.
        unsafe { self.kernel.launch(how, &arguments)? };
        Ok(())
    }
}
