//! Products on tensor cores: which variants of the kernel there are, and how one is started.

use std::rc::Rc;

use anyhow::ensure;
use half::bf16;

use super::{
    steps::PRODUCT_FILE,
    weights::{Format, Layout},
};
use crate::cuda::{Buffer, Card, Compiled, Kernel, Launch, Swizzle, TensorMap, compile};

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
        }
    }

    pub fn wgmma(format: Format, tokens: u32) -> Variant {
        Variant {
            is_wide: true,
            fit: if tokens >= 128 { 1 } else { 2 },
            ..Variant::mma(format, tokens)
        }
    }

    /// As in notes and errors.
    pub fn name(self) -> String {
        format!(
            "{} {} tokens={} units={} fit={}",
            self.format.name(),
            if self.is_wide { "wgmma" } else { "mma" },
            self.tokens,
            self.units,
            self.fit
        )
    }

    fn stage_bytes(self) -> u32 {
        let scales = match self.format {
            Format::Int4 => 1024,
            Format::Q4k => 2048,
        };
        self.tokens * 256 + self.units * (8192 + scales)
    }

    /// What lanes of a warp exchange scales in.
    fn scratch_bytes(self) -> u32 {
        match self.format {
            Format::Int4 => 0,
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

    fn threads(self) -> u32 {
        let computing = if self.is_wide { 256 * self.units } else { 256 };
        computing + if self.tokens >= 128 { 128 } else { 64 }
    }

    pub fn defines(self) -> Vec<String> {
        vec![
            format!("FORMAT={}", self.format as u32 + 4),
            format!("TOKENS={}", self.tokens),
            format!("STAGES={}", self.stages()),
            format!("UNITS={}", self.units),
            format!("WGMMA={}", u32::from(self.is_wide)),
            format!("BLOCKS={}", self.fit),
        ]
    }
}

/// Compiles all at the same time, as one compiler needs half a second for each.
pub fn compile_all(capability: (i32, i32), variants: &[Variant]) -> anyhow::Result<Vec<Compiled>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = variants
            .iter()
            .map(|variant| {
                scope.spawn(move || {
                    let defines = variant.defines();
                    compile(capability, PRODUCT_FILE.path, PRODUCT_FILE.text, &defines)
                })
            })
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
            |variant: &Variant| blocks as usize * (variant.tokens * 128 * variant.units) as usize;
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
        let tile = (self.variant.tokens, 64);
        let shape = (size.batch as u64, size.k as u64);
        card.matrix(x, shape, tile, Swizzle::Bytes128)
    }

    /// Starts it; `is_early`: before the kernel before it has ended.
    pub fn start(
        &self,
        size: Size,
        weights: &Layout,
        x: &TensorMap,
        y: &Buffer<bf16>,
        room: &Room,
        is_early: bool,
    ) -> anyhow::Result<()> {
        let variant = self.variant;
        ensure!(
            size.n.is_multiple_of(2),
            "n is {}, results go in pairs",
            size.n
        );
        let k_units = (size.k / 128) as u32;
        let row_tiles = (size.n as u32).div_ceil(128 * variant.units);
        let token_tiles = (size.batch as u32).div_ceil(variant.tokens);
        let units = k_units * row_tiles * token_tiles;
        let blocks = units.min(self.multiprocessors);
        let how = Launch {
            may_begin_early: is_early,
            ..Launch::new((blocks, 1, 1), variant.threads(), variant.shared_bytes())
        };
        let arguments: [&dyn crate::cuda::Argument; 11] = [
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
        // 256, the room is made for this variant, and the kernel waits for the one before.
        unsafe { self.kernel.launch(how, &arguments) }
    }
}
