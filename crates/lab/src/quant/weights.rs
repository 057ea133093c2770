//! Weights of four bits: made on the card, packed for tensor cores, read back for float64.

use std::rc::Rc;

use anyhow::ensure;
use cuda::{Argument, Buffer, Card, Kernel, Launch, Module};
use half::{bf16, f16};

use super::steps::{INT4_FILE, Q4K_FILE};
use crate::{step::File, toolkit::Compile};

/// How weights are written in four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 128 along k have one bf16 scale; symmetric, no zero point: `scale × (q − 8)`.
    Int4,
    /// 256 along k have two f16, each 32 of them a scale and a minimum of six bits.
    Q4k,
}

impl Format {
    pub const ALL: [Format; 2] = [Format::Int4, Format::Q4k];

    pub fn name(self) -> &'static str {
        match self {
            Format::Int4 => "int4",
            Format::Q4k => "q4k",
        }
    }

    /// Of one weight, scales included.
    pub fn bits(self) -> f64 {
        match self {
            Format::Int4 => 4.0 + 16.0 / 128.0,
            Format::Q4k => 4.5,
        }
    }

    /// Weights along k that share scales, and 16-bit numbers that these take.
    fn block(self) -> (usize, usize) {
        match self {
            Format::Int4 => (128, 1),
            Format::Q4k => (256, 8),
        }
    }
}

/// Kernels that make weights.
pub struct Maker {
    card: Card,
    quantise: [Kernel; 2],
    dequantise: [Kernel; 2],
    pack_weights: Kernel,
    pack_scales: Kernel,
    pack_strips: Kernel,
}

/// One layout of one matrix.
pub struct Layout {
    pub words: Buffer<u32>,
    /// 16 bits each, whatever they mean.
    pub scales: Buffer<bf16>,
}

impl Layout {
    fn copy(&self, card: &Card) -> anyhow::Result<Layout> {
        let copy = Layout {
            words: card.buffer(self.words.elements())?,
            scales: card.buffer(self.scales.elements())?,
        };
        copy.words.copy_from(&self.words)?;
        copy.scales.copy_from(&self.scales)?;
        Ok(copy)
    }

    pub fn bytes(&self) -> usize {
        self.words.bytes() + self.scales.bytes()
    }

    pub fn copies(self, card: &Card, count: usize) -> anyhow::Result<Vec<Layout>> {
        let mut copies = Vec::with_capacity(count);
        for _ in 1..count {
            copies.push(self.copy(card)?);
        }
        copies.push(self);
        Ok(copies)
    }
}

/// A matrix of `n × k`, row by row and as tensor cores take it.
pub struct Weights {
    pub plain: Layout,
    pub packed: Layout,
}

const GRID: u32 = 2048;
const BLOCK: u32 = 256;

impl Maker {
    pub fn new(card: &Card) -> anyhow::Result<Maker> {
        let module = |file: File| -> anyhow::Result<Rc<Module>> {
            Ok(Rc::new(card.kernels(file.path, file.text, &[])?))
        };
        let (int4, q4k) = (module(INT4_FILE)?, module(Q4K_FILE)?);
        Ok(Maker {
            card: card.clone(),
            quantise: [int4.kernel("quantise_int4")?, q4k.kernel("quantise_q4k")?],
            dequantise: [
                int4.kernel("dequantise_int4")?,
                q4k.kernel("dequantise_q4k")?,
            ],
            pack_weights: int4.kernel("pack_weights")?,
            pack_scales: int4.kernel("pack_scales")?,
            pack_strips: int4.kernel("pack_strips")?,
        })
    }

    /// Random weights, rounded to four bits.
    pub fn make(&self, format: Format, n: usize, k: usize, seed: u32) -> anyhow::Result<Weights> {
        let (block, size) = format.block();
        ensure!(
            k.is_multiple_of(block),
            "k = {k} is not a multiple of {block}"
        );
        let tiled = n.div_ceil(768) * 768;
        let layout = |rows: usize| -> anyhow::Result<Layout> {
            Ok(Layout {
                words: self.card.buffer(rows * k / 8)?,
                scales: self.card.buffer(rows * (k / block) * size)?,
            })
        };
        let (plain, packed) = (layout(n)?, layout(tiled)?);
        let (rows, columns) = (n as u32, k as u32);
        let blocks = (k / block) as u32;
        let warps = Launch::new(((n * k / block).div_ceil(8) as u32, 1, 1), BLOCK, 0);
        let all = Launch::new((GRID, 1, 1), BLOCK, 0);
        // SAFETY: kernels of quant.cu and quant_q4k.cu, with their parameters; buffers have
        // the sizes of this matrix, `packed` with rows up to a multiple of 768.
        unsafe {
            self.quantise[format as usize].launch(
                warps,
                &[&plain.words, &plain.scales, &rows, &columns, &seed],
            )?;
            self.pack_weights
                .launch(all, &[&plain.words, &packed.words, &rows, &columns])?;
            self.pack_scales.launch(
                all,
                &[
                    &plain.scales,
                    &packed.scales,
                    &rows,
                    &blocks,
                    &(size as u32),
                ],
            )?;
        }
        Ok(Weights { plain, packed })
    }

    /// INT4 weights for blocks that have whole rows (kernels/quant_strips.cu).
    pub fn strips(
        &self,
        plain: &Layout,
        n: usize,
        k: usize,
        blocks: u32,
    ) -> anyhow::Result<Buffer<u32>> {
        let packed = self.card.buffer(n.div_ceil(16) * (k / 128) * 264)?;
        let arguments: [&dyn Argument; 6] = [
            &plain.words,
            &plain.scales,
            &packed,
            &(n as u32),
            &(k as u32),
            &blocks,
        ];
        // SAFETY: as above.
        unsafe {
            self.pack_strips
                .launch(Launch::new((GRID, 1, 1), BLOCK, 0), &arguments)?
        };
        Ok(packed)
    }

    /// The same weights in bf16, for the vendor's library.
    pub fn bf16(
        &self,
        format: Format,
        weights: &Weights,
        n: usize,
        k: usize,
    ) -> anyhow::Result<Buffer<bf16>> {
        let out = self.card.buffer(n * k)?;
        let arguments: [&dyn Argument; 5] = [
            &weights.plain.words,
            &weights.plain.scales,
            &out,
            &(n as u32),
            &(k as u32),
        ];
        // SAFETY: as above.
        unsafe {
            self.dequantise[format as usize]
                .launch(Launch::new((GRID, 1, 1), BLOCK, 0), &arguments)?
        };
        Ok(out)
    }
}

/// What the card has made, read back: the truth that results are compared with.
pub struct Host {
    format: Format,
    k: usize,
    words: Vec<u32>,
    scales: Vec<bf16>,
}

impl Host {
    pub fn read(format: Format, k: usize, weights: &Weights) -> anyhow::Result<Host> {
        Ok(Host {
            format,
            k,
            words: weights.plain.words.read()?,
            scales: weights.plain.scales.read()?,
        })
    }

    fn four_bits(&self, row: usize, column: usize) -> u32 {
        let i = row * self.k + column;
        self.words[i / 8] >> (4 * (i % 8)) & 15
    }

    /// A row as numbers.
    pub fn row(&self, row: usize) -> Vec<f64> {
        let (block, size) = self.format.block();
        let numbers = (0..self.k).map(|column| {
            let q = f64::from(self.four_bits(row, column));
            let at = (row * (self.k / block) + column / block) * size;
            let scales = &self.scales[at..at + size];
            match self.format {
                Format::Int4 => f64::from(scales[0].to_f32()) * (q - 8.0),
                Format::Q4k => {
                    let (scale, minimum) = q4k_scales(scales, column % 256 / 32);
                    scale * q - minimum
                }
            }
        });
        numbers.collect()
    }

    /// An error if the packed layout has another weight than the plain one at any of `places`.
    pub fn check_packing(&self, packed: &Layout, places: &[(usize, usize)]) -> anyhow::Result<()> {
        let (words, scales) = (packed.words.read()?, packed.scales.read()?);
        let (block, size) = self.format.block();
        for &(row, column) in places {
            let unit = (row / 128) * (self.k / 128) + column / 128;
            let (strip, in_strip) = (row % 128 / 16, row % 16);
            let (half, step, in_step) = (column % 128 / 64, column % 64 / 16, column % 16);
            let lane = in_strip % 8 * 4 + in_step % 8 / 2;
            let register = in_strip / 8 + in_step / 8 * 2;
            let word = words[unit * 2048 + ((strip * 2 + half) * 32 + lane) * 4 + step];
            let found = word >> (4 * register + 16 * (in_step % 2)) & 15;
            let expected = self.four_bits(row, column);
            ensure!(
                found == expected,
                "{} weight ({row}, {column}) is {expected}, packed it is {found}",
                self.format.name()
            );
            let of_row = (row * (self.k / block) + column / block) * size;
            let of_tile =
                ((row / 128 * (self.k / block) + column / block) * 128 + row % 128) * size;
            let same = (0..size)
                .all(|i| self.scales[of_row + i].to_bits() == scales[of_tile + i].to_bits());
            ensure!(
                same,
                "{} scales of weight ({row}, {column}) are packed wrongly",
                self.format.name()
            );
        }
        Ok(())
    }
}

impl Host {
    /// An error if weights that were packed for so many blocks are others at any of `places`.
    pub fn check_strips(
        &self,
        packed: &Buffer<u32>,
        n: usize,
        blocks: usize,
        places: &[(usize, usize)],
    ) -> anyhow::Result<()> {
        let words = packed.read()?;
        let (strips, units) = (n.div_ceil(16), self.k / 128);
        for &(row, column) in places {
            let (strip, unit) = (row / 16, column / 128);
            let block = ((strip + 1) * blocks - 1) / strips;
            let (first, end) = (strips * block / blocks, strips * (block + 1) / blocks);
            let piece = (first * units + unit * (end - first) + strip - first) * 264;
            let (load, member) = (column % 128 / 32, column % 32 / 8);
            let (step, lane) = (load * 2 + column % 8 / 4, row % 8 * 4 + member);
            let register = row % 16 / 8 + column % 4 / 2 * 2;
            let word = words[piece + step / 4 * 128 + lane * 4 + step % 4];
            let found = word >> (4 * register + 16 * (column % 2)) & 15;
            let scale = words[piece + 256 + row % 8] >> (16 * (row % 16 / 8)) & 0xffff;
            let expected = self.scales[row * units + unit].to_bits();
            ensure!(
                found == self.four_bits(row, column) && scale == u32::from(expected),
                "weight ({row}, {column}) is packed wrongly for {blocks} blocks"
            );
        }
        Ok(())
    }
}

/// Scale and minimum of one block of 32, as kernels/quant_q4k.cu describes the 16 bytes.
fn q4k_scales(about: &[bf16], block: usize) -> (f64, f64) {
    let half = |i: usize| u32::from(about[i].to_bits());
    let word = |i: usize| half(2 * i) | half(2 * i + 1) << 16;
    let number = |i: usize| f64::from(f16::from_bits(about[i].to_bits()).to_f32());
    let six = |four: u32| f64::from(four >> (6 * (block % 4)) & 63);
    let (scales, minima) = match block < 4 {
        true => (word(1), word(3)),
        false => (
            word(2),
            word(1) >> 24 | word(2) >> 24 << 8 | word(3) >> 24 << 16,
        ),
    };
    (number(0) * six(scales), number(1) * six(minima))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bits_are_found_where_the_kernel_puts_them() {
        // d = 1, least = 2; scales 1…8, minima 11…18.
        let four = |first: u32| (0..4).map(|i| (first + i) << (6 * i)).sum::<u32>();
        let minima = four(15);
        let words = [
            0x4000_3c00,
            four(1) | (minima & 255) << 24,
            four(5) | (minima >> 8 & 255) << 24,
            four(11) | (minima >> 16) << 24,
        ];
        let halves: Vec<bf16> = words
            .iter()
            .flat_map(|word| [*word as u16, (word >> 16) as u16])
            .map(bf16::from_bits)
            .collect();
        for block in 0..8 {
            let (scale, minimum) = q4k_scales(&halves, block);
            assert_eq!(scale, 1.0 + block as f64);
            assert_eq!(minimum, 2.0 * (11.0 + block as f64));
        }
    }
}
