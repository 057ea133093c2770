//! Random weights, made directly in each type's own encoding.
//!
//! A block of a quantised type is random bits plus a scale, so there is no
//! detour through floats: the scale alone decides the spread of the values.
//! Every encoding keeps two promises, because a model that breaks them says
//! the same word for ever:
//!
//! - the values' mean is zero. Where the integers themselves are lopsided
//!   (-8..7) the scale's sign is random; where the type has a minimum, it is
//!   exactly half the range;
//! - their root mean square is the one asked for, and each block has a scale
//!   of its own (0.75 to 1.25 of the middle), so that rows and experts differ.
//!
//! Layouts are those of `ggml-common.h` and are read back in the tests as
//! `ggml-quants.c` does.

use std::sync::OnceLock;

use gguf::GgmlType;
use half::{bf16, f16};

use crate::rng::Rng;

/// Types that can be written, in the order of help texts.
pub const TYPES: &[GgmlType] = &[
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
];

/// Sixteen magnitudes, each with both signs, are enough to make blocks differ
/// and few enough to stay in registers' reach.
const SCALES: usize = 32;
const NORMALS: usize = 4096;

/// An endless supply of encoded weights of one tensor.
pub struct Encoder {
    rng: Rng,
    kind: Kind,
}

enum Kind {
    F32(Box<[f32; NORMALS]>),
    /// f16 or bf16, as bits.
    Half(Box<[u16; NORMALS]>),
    Mxfp4 {
        exponent: u8,
        /// A block takes `exponent + 1` when 16 random bits are below this.
        larger_below: u64,
    },
    Blocks {
        ggml_type: GgmlType,
        scales: [[u8; 2]; SCALES],
        mins: [[u8; 2]; SCALES],
    },
}

impl Encoder {
    /// Values with zero mean and root mean square `rms`, or `None` for a type
    /// that cannot be written.
    pub fn new(ggml_type: GgmlType, rms: f32, rng: Rng) -> Option<Encoder> {
        use GgmlType::*;
        // The integers' own root mean square (with sub-block scales), whether
        // the scale's sign must be random, and the minimum in units of scale.
        let (unit_rms, sign, min) = match ggml_type {
            F32 => {
                return Some(Encoder {
                    rng,
                    kind: Kind::F32(normals(|unit| unit * rms)),
                });
            }
            F16 => {
                let kind = Kind::Half(normals(|unit| f16::from_f32(unit * rms).to_bits()));
                return Some(Encoder { rng, kind });
            }
            BF16 => {
                let kind = Kind::Half(normals(|unit| bf16::from_f32(unit * rms).to_bits()));
                return Some(Encoder { rng, kind });
            }
            MXFP4 => {
                return Some(Encoder {
                    rng,
                    kind: mxfp4(rms),
                });
            }
            // -127..127 with 0 twice
            Q8_0 => (73.47, Sign::Positive, 0.0),
            Q4_0 => (4.637, Sign::Random, 0.0),
            Q4_1 => (4.610, Sign::Positive, -7.5),
            Q5_0 => (9.247, Sign::Random, 0.0),
            Q5_1 => (9.233, Sign::Positive, -15.5),
            IQ4_NL => (67.44, Sign::Random, 0.0),
            // sub-block scales: 8..15, ±(16..31) or 32..63
            Q2_K => (1.118 * 11.73, Sign::Positive, 1.5),
            Q3_K => (2.345 * 23.95, Sign::Positive, 0.0),
            Q4_K => (4.610 * 48.39, Sign::Positive, 7.5),
            Q5_K => (9.233 * 48.39, Sign::Positive, 15.5),
            Q6_K => (18.48 * 48.39, Sign::Positive, 0.0),
            IQ4_XS => (67.44 * 23.95, Sign::Positive, 0.0),
            _ => return None,
        };
        let (scales, mins) = scale_tables(rms / unit_rms, sign, min);
        Some(Encoder {
            rng,
            kind: Kind::Blocks {
                ggml_type,
                scales,
                mins,
            },
        })
    }

    /// Fills whole blocks. The stream does not depend on how it is cut, as
    /// long as every cut but the last is at a multiple of four elements.
    pub fn fill(&mut self, out: &mut [u8]) {
        let rng = &mut self.rng;
        let (ggml_type, scales, mins) = match &self.kind {
            Kind::F32(table) => return fill_table(out, rng, |i| table[i].to_le_bytes()),
            Kind::Half(table) => return fill_table(out, rng, |i| table[i].to_le_bytes()),
            &Kind::Mxfp4 {
                exponent,
                larger_below,
            } => {
                return each::<17>(out, |block| {
                    let larger = (rng.next_u64() & 0xffff) < larger_below;
                    block[0] = exponent + u8::from(larger);
                    rng.fill(&mut block[1..]);
                });
            }
            Kind::Blocks {
                ggml_type,
                scales,
                mins,
            } => (*ggml_type, scales, mins),
        };
        let pick = |bits: u64| (bits % SCALES as u64) as usize;
        match ggml_type {
            GgmlType::Q8_0 => each::<34>(out, |block| {
                block[..2].copy_from_slice(&scales[pick(rng.next_u64())]);
                rng.fill(&mut block[2..]);
                // -128 has no counterpart, and ggml's kernels never meet it.
                block[2..]
                    .iter_mut()
                    .for_each(|q| *q = if *q == 0x80 { 0 } else { *q });
            }),
            GgmlType::Q4_0 | GgmlType::IQ4_NL => each::<18>(out, |block| {
                block[..2].copy_from_slice(&scales[pick(rng.next_u64())]);
                rng.fill(&mut block[2..]);
            }),
            GgmlType::Q5_0 => each::<22>(out, |block| {
                let bits = rng.next_u64();
                block[..2].copy_from_slice(&scales[pick(bits)]);
                block[2..6].copy_from_slice(&((bits >> 32) as u32).to_le_bytes());
                rng.fill(&mut block[6..]);
            }),
            GgmlType::Q4_1 => each::<20>(out, |block| {
                let scale = pick(rng.next_u64());
                block[..2].copy_from_slice(&scales[scale]);
                block[2..4].copy_from_slice(&mins[scale]);
                rng.fill(&mut block[4..]);
            }),
            GgmlType::Q5_1 => each::<24>(out, |block| {
                let bits = rng.next_u64();
                block[..2].copy_from_slice(&scales[pick(bits)]);
                block[2..4].copy_from_slice(&mins[pick(bits)]);
                block[4..8].copy_from_slice(&((bits >> 32) as u32).to_le_bytes());
                rng.fill(&mut block[8..]);
            }),
            GgmlType::Q2_K => each::<84>(out, |block| {
                let bits = rng.next_u64();
                for (j, scale) in block[..16].iter_mut().enumerate() {
                    let sub = 8 | ((bits >> (5 + 3 * j)) & 7) as u8;
                    *scale = sub | sub << 4;
                }
                rng.fill(&mut block[16..80]);
                block[80..82].copy_from_slice(&scales[pick(bits)]);
                block[82..].copy_from_slice(&mins[pick(bits)]);
            }),
            GgmlType::Q3_K => each::<110>(out, |block| {
                let bits = rng.next_u64();
                rng.fill(&mut block[..96]);
                let packed = pack_q3_k_scales(signed_scales(rng).map(|s| (s + 32) as u8));
                block[96..108].copy_from_slice(&packed);
                block[108..].copy_from_slice(&scales[pick(bits)]);
            }),
            GgmlType::Q4_K => each::<144>(out, |block| {
                let bits = rng.next_u64();
                block[..2].copy_from_slice(&scales[pick(bits)]);
                block[2..4].copy_from_slice(&mins[pick(bits)]);
                block[4..16].copy_from_slice(&pack_k4_scales(bits >> 5));
                rng.fill(&mut block[16..]);
            }),
            GgmlType::Q5_K => each::<176>(out, |block| {
                let bits = rng.next_u64();
                block[..2].copy_from_slice(&scales[pick(bits)]);
                block[2..4].copy_from_slice(&mins[pick(bits)]);
                block[4..16].copy_from_slice(&pack_k4_scales(bits >> 5));
                rng.fill(&mut block[16..]);
            }),
            GgmlType::Q6_K => each::<210>(out, |block| {
                let bits = rng.next_u64();
                rng.fill(&mut block[..208]);
                for scale in &mut block[192..208] {
                    let size = 32 | (*scale & 31);
                    *scale = if *scale & 32 == 0 {
                        size
                    } else {
                        size.wrapping_neg()
                    };
                }
                block[208..].copy_from_slice(&scales[pick(bits)]);
            }),
            GgmlType::IQ4_XS => each::<136>(out, |block| {
                let bits = rng.next_u64();
                block[..2].copy_from_slice(&scales[pick(bits)]);
                let subs = signed_scales(rng).map(|s| (s + 32) as u8);
                let high = (0..8).fold(0u16, |h, j| h | u16::from(subs[j] >> 4) << (2 * j));
                block[2..4].copy_from_slice(&high.to_le_bytes());
                for j in 0..4 {
                    block[4 + j] = (subs[2 * j] & 15) | (subs[2 * j + 1] & 15) << 4;
                }
                rng.fill(&mut block[8..]);
            }),
            other => unreachable!("{} has no encoder", other.name()),
        }
    }
}

enum Sign {
    Positive,
    Random,
}

fn each<const BYTES: usize>(out: &mut [u8], mut encode: impl FnMut(&mut [u8; BYTES])) {
    let (blocks, rest) = out.as_chunks_mut::<BYTES>();
    assert!(rest.is_empty(), "a piece of a tensor must be whole blocks");
    blocks.iter_mut().for_each(&mut encode);
}

/// Draws four table entries from each random number.
#[inline(always)]
fn fill_table<const BYTES: usize>(
    out: &mut [u8],
    rng: &mut Rng,
    entry: impl Fn(usize) -> [u8; BYTES],
) {
    let (values, rest) = out.as_chunks_mut::<BYTES>();
    assert!(
        rest.is_empty(),
        "a piece of a tensor must be whole elements"
    );
    for four in values.chunks_mut(4) {
        let mut bits = rng.next_u64();
        for value in four {
            *value = entry(bits as usize % NORMALS);
            bits >>= 16;
        }
    }
}

fn scale_tables(middle: f32, sign: Sign, min: f32) -> ([[u8; 2]; SCALES], [[u8; 2]; SCALES]) {
    let factor = |i: usize| 0.75 + 0.5 * ((i % 16) as f32 + 0.5) / 16.0;
    let factors_rms = ((0..16).map(|i| factor(i) * factor(i)).sum::<f32>() / 16.0).sqrt();
    let mut scales = [[0; 2]; SCALES];
    let mut mins = [[0; 2]; SCALES];
    for i in 0..SCALES {
        let magnitude = middle * factor(i) / factors_rms;
        let scale = match sign {
            Sign::Random if i >= 16 => f16::from_f32(-magnitude),
            _ => f16::from_f32(magnitude),
        };
        scales[i] = scale.to_le_bytes();
        // From the rounded scale, so that the middle of the range is zero.
        mins[i] = f16::from_f32(scale.to_f32() * min).to_le_bytes();
    }
    (scales, mins)
}

/// Powers of two are too coarse to meet `rms`, so blocks mix two of them.
fn mxfp4(rms: f32) -> Kind {
    // kvalues_mxfp4 are 0 1 2 3 4 6 8 12 and their negatives: 34.25 = mean square
    let wanted = f64::from(rms) / 34.25f64.sqrt();
    let power = wanted.log2().floor().clamp(-120.0, 120.0);
    let (small, square) = ((2.0 * power).exp2(), wanted * wanted);
    let share = ((square - small) / (3.0 * small)).clamp(0.0, 1.0);
    // ggml_e8m0_to_fp32_half(e) = 2^(e - 128)
    Kind::Mxfp4 {
        exponent: (power + 128.0) as u8,
        larger_below: (share * 65536.0) as u64,
    }
}

/// Sixteen numbers in ±(16..31).
fn signed_scales(rng: &mut Rng) -> [i8; 16] {
    let mut bytes = [0; 16];
    rng.fill(&mut bytes);
    bytes.map(|b| {
        let size = (16 | (b & 15)) as i8;
        if b & 16 == 0 { size } else { -size }
    })
}

/// The 12 bytes of scales and minimums of q4_K and q5_K, where each minimum
/// equals its scale (the block's `dmin` carries the rest).
fn pack_k4_scales(bits: u64) -> [u8; 12] {
    let sub: [u8; 8] = std::array::from_fn(|j| 32 | ((bits >> (5 * j)) & 31) as u8);
    let mut packed = [0; 12];
    for j in 0..4 {
        let (low, high) = (sub[j], sub[j + 4]);
        packed[j] = low | (high >> 4) << 6;
        packed[j + 4] = packed[j];
        packed[j + 8] = (high & 15) | (high & 15) << 4;
    }
    packed
}

fn pack_q3_k_scales(sub: [u8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (j, &scale) in sub.iter().enumerate() {
        packed[j % 8] |= (scale & 15) << (4 * (j / 8));
        packed[8 + j % 4] |= (scale >> 4) << (2 * (j / 4));
    }
    packed
}

/// Equally likely values of the normal distribution, each made into a `T`.
fn normals<T: std::fmt::Debug>(make: impl Fn(f32) -> T) -> Box<[T; NORMALS]> {
    static UNIT: OnceLock<Vec<f32>> = OnceLock::new();
    let unit = UNIT.get_or_init(|| {
        let middle = |i: usize| (i as f64 + 0.5) / NORMALS as f64;
        let values: Vec<f64> = (0..NORMALS).map(|i| normal_quantile(middle(i))).collect();
        // The tails beyond the table are missing; make up for them.
        let rms = (values.iter().map(|v| v * v).sum::<f64>() / NORMALS as f64).sqrt();
        values.iter().map(|v| (v / rms) as f32).collect()
    });
    let made: Vec<T> = unit.iter().map(|&value| make(value)).collect();
    made.into_boxed_slice()
        .try_into()
        .expect("the table has NORMALS entries")
}

/// Where the standard normal distribution reaches `p`, by bisection: it runs
/// once in a program, and needs no table of constants to trust.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if normal_cdf(middle) < p {
            low = middle
        } else {
            high = middle
        }
    }
    (low + high) / 2.0
}

/// Abramowitz and Stegun 26.2.17, error below 1e-7.
fn normal_cdf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.2316419 * x.abs());
    let poly = t
        * (0.319381530
            + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
    let upper = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * poly;
    if x >= 0.0 { 1.0 - upper } else { upper }
}
