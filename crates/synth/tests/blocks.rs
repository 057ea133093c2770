//! Every encoding, read back as `ggml-quants.c` does: sizes exact, mean zero,
//! spread as asked for, and the same stream however it is cut.

use gguf::GgmlType;
use half::{bf16, f16};
use proptest::prelude::*;
use synth::{Encoder, Rng, TYPES};

const ELEMENTS: u64 = 1 << 16;

#[test]
fn dequantised_values_have_zero_mean_and_the_rms_asked_for() {
    for &ggml_type in TYPES {
        // From the residual matrices of a deep model to a router's.
        for rms in [0.002f32, 0.02, 0.5] {
            let values = dequantize(ggml_type, &encode(ggml_type, rms, "w"));
            assert_eq!(values.len() as u64, ELEMENTS, "{}", ggml_type.name());
            let count = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
            let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / count;
            let ratio = square.sqrt() / f64::from(rms);
            let name = ggml_type.name();
            assert!(
                (0.96..1.04).contains(&ratio),
                "{name}: rms is {ratio} of {rms}"
            );
            assert!(
                mean.abs() < 0.03 * f64::from(rms),
                "{name}: mean {mean} for rms {rms}"
            );
        }
    }
}

#[test]
fn blocks_and_tensors_differ() {
    for &ggml_type in TYPES {
        let data = encode(ggml_type, 0.02, "blk.0.ffn_up_exps.weight");
        let other = encode(ggml_type, 0.02, "blk.1.ffn_up_exps.weight");
        assert_ne!(data, other, "{}", ggml_type.name());
        // 256 elements of two bits or more: equal rows are no accident.
        let unit = ggml_type.row_bytes(256).unwrap() as usize;
        let mut rows: Vec<&[u8]> = data.chunks_exact(unit).collect();
        let count = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(
            rows.len(),
            count,
            "{}: two rows are equal",
            ggml_type.name()
        );
    }
}

#[test]
fn q8_0_never_holds_minus_128() {
    let data = encode(GgmlType::Q8_0, 0.02, "w");
    assert!(
        data.chunks_exact(34)
            .all(|block| !block[2..].contains(&0x80))
    );
}

#[test]
fn types_without_an_encoder_are_refused() {
    for ggml_type in GgmlType::all() {
        let encoder = Encoder::new(ggml_type, 0.02, Rng::for_tensor(1, "w"));
        assert_eq!(
            encoder.is_some(),
            TYPES.contains(&ggml_type),
            "{}",
            ggml_type.name()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Cutting a stream at multiples of four blocks changes nothing.
    #[test]
    fn pieces_add_up_to_the_whole(
        index in 0..TYPES.len(),
        seed: u64,
        cuts in prop::collection::vec(1usize..9, 1..12),
    ) {
        let ggml_type = TYPES[index];
        let unit = 4 * ggml_type.block_bytes() as usize;
        let total: usize = cuts.iter().sum::<usize>() * unit;
        let encoder = || Encoder::new(ggml_type, 0.02, Rng::for_tensor(seed, "w")).unwrap();
        let mut whole = vec![0; total];
        encoder().fill(&mut whole);
        let mut pieces = vec![];
        let mut stream = encoder();
        for cut in cuts {
            let mut piece = vec![0; cut * unit];
            stream.fill(&mut piece);
            pieces.extend(piece);
        }
        prop_assert_eq!(whole, pieces);
    }
}

fn encode(ggml_type: GgmlType, rms: f32, name: &str) -> Vec<u8> {
    let mut data = vec![0; ggml_type.row_bytes(ELEMENTS).unwrap() as usize];
    Encoder::new(ggml_type, rms, Rng::for_tensor(7, name))
        .unwrap()
        .fill(&mut data);
    data
}

fn dequantize(ggml_type: GgmlType, data: &[u8]) -> Vec<f32> {
    let block: fn(&[u8]) -> Vec<f32> = match ggml_type {
        GgmlType::F32 => |b| vec![f32::from_le_bytes(b.try_into().unwrap())],
        GgmlType::F16 => |b| vec![half_at(b, 0)],
        GgmlType::BF16 => |b| vec![bf16::from_le_bytes(b.try_into().unwrap()).to_f32()],
        GgmlType::Q8_0 => |b| {
            b[2..]
                .iter()
                .map(|&q| f32::from(q as i8) * half_at(b, 0))
                .collect()
        },
        GgmlType::Q4_0 => |b| {
            nibbles(&b[2..])
                .map(|q| (f32::from(q) - 8.0) * half_at(b, 0))
                .collect()
        },
        GgmlType::Q4_1 => |b| {
            nibbles(&b[4..])
                .map(|q| f32::from(q) * half_at(b, 0) + half_at(b, 2))
                .collect()
        },
        GgmlType::Q5_0 => |b| {
            fifth_bits(&b[2..6], &b[6..])
                .map(|q| (f32::from(q) - 16.0) * half_at(b, 0))
                .collect()
        },
        GgmlType::Q5_1 => |b| {
            let (d, m) = (half_at(b, 0), half_at(b, 2));
            fifth_bits(&b[4..8], &b[8..])
                .map(|q| f32::from(q) * d + m)
                .collect()
        },
        GgmlType::IQ4_NL => |b| {
            nibbles(&b[2..])
                .map(|q| KVALUES_IQ4NL[q as usize] * half_at(b, 0))
                .collect()
        },
        GgmlType::MXFP4 => |b| {
            let d = (f32::from(b[0]) - 128.0).exp2();
            nibbles(&b[1..])
                .map(|q| KVALUES_MXFP4[q as usize] * d)
                .collect()
        },
        GgmlType::Q2_K => q2_k,
        GgmlType::Q3_K => q3_k,
        GgmlType::Q4_K => q4_k,
        GgmlType::Q5_K => q5_k,
        GgmlType::Q6_K => q6_k,
        GgmlType::IQ4_XS => iq4_xs,
        other => panic!("no reference for {}", other.name()),
    };
    data.chunks_exact(ggml_type.block_bytes() as usize)
        .flat_map(block)
        .collect()
}

const KVALUES_IQ4NL: [f32; 16] = [
    -127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.,
];
const KVALUES_MXFP4: [f32; 16] = [
    0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.,
];

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The low halves of all bytes, then the high ones.
fn nibbles(qs: &[u8]) -> impl Iterator<Item = u8> {
    qs.iter().map(|q| q & 15).chain(qs.iter().map(|q| q >> 4))
}

fn fifth_bits(qh: &[u8], qs: &[u8]) -> impl Iterator<Item = u8> {
    let high = u32::from_le_bytes(qh.try_into().unwrap());
    nibbles(qs)
        .enumerate()
        .map(move |(j, q)| q | (((high >> j) & 1) as u8) << 4)
}

fn scale_min_k4(j: usize, q: &[u8]) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        (
            (q[j + 4] & 15) | (q[j - 4] >> 6) << 4,
            (q[j + 4] >> 4) | (q[j] >> 6) << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

fn q4_k(b: &[u8]) -> Vec<f32> {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let mut out = vec![];
    for (pair, qs) in b[16..].chunks_exact(32).enumerate() {
        for half in 0..2 {
            let (scale, min) = scale_min_k4(2 * pair + half, &b[4..16]);
            let low = |q: &u8| (q >> (4 * half)) & 15;
            out.extend(
                qs.iter()
                    .map(|q| d * scale * f32::from(low(q)) - dmin * min),
            );
        }
    }
    out
}

fn q5_k(b: &[u8]) -> Vec<f32> {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let (qh, ql) = (&b[16..48], &b[48..]);
    let mut out = vec![];
    for (pair, qs) in ql.chunks_exact(32).enumerate() {
        for half in 0..2 {
            let sub = 2 * pair + half;
            let (scale, min) = scale_min_k4(sub, &b[4..16]);
            out.extend(qs.iter().zip(qh).map(|(q, h)| {
                let q = ((q >> (4 * half)) & 15) + if h >> sub & 1 == 1 { 16 } else { 0 };
                d * scale * f32::from(q) - dmin * min
            }));
        }
    }
    out
}

fn q6_k(b: &[u8]) -> Vec<f32> {
    let d = half_at(b, 208);
    let mut out = vec![0.0; 256];
    for n in 0..2 {
        let (ql, qh) = (&b[64 * n..], &b[128 + 32 * n..]);
        let scale = |i: usize| d * f32::from(b[192 + 8 * n + i] as i8);
        for l in 0..32 {
            let is = l / 16;
            let quants = [
                (ql[l] & 15) | (qh[l] & 3) << 4,
                (ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4,
                (ql[l] >> 4) | (qh[l] >> 4 & 3) << 4,
                (ql[l + 32] >> 4) | (qh[l] >> 6) << 4,
            ];
            for (k, q) in quants.into_iter().enumerate() {
                out[128 * n + 32 * k + l] = scale(is + 2 * k) * (f32::from(q) - 32.0);
            }
        }
    }
    out
}

fn q2_k(b: &[u8]) -> Vec<f32> {
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    let mut out = vec![];
    for sub in 0..16 {
        let (n, j, side) = (sub / 8, sub / 2 % 4, sub % 2);
        let (scale, min) = (f32::from(b[sub] & 15), f32::from(b[sub] >> 4));
        let qs = &b[16 + 32 * n + 16 * side..][..16];
        out.extend(
            qs.iter()
                .map(|q| d * scale * f32::from(q >> (2 * j) & 3) - dmin * min),
        );
    }
    out
}

fn q3_k(b: &[u8]) -> Vec<f32> {
    let (hmask, qs, packed, d) = (&b[..32], &b[32..96], &b[96..108], half_at(b, 108));
    let word = |i: usize| u32::from_le_bytes(packed[4 * i..4 * i + 4].try_into().unwrap());
    let (low, high, tmp) = (0x0f0f0f0f, 0x03030303, word(2));
    let aux = [
        (word(0) & low) | (tmp & high) << 4,
        (word(1) & low) | (tmp >> 2 & high) << 4,
        (word(0) >> 4 & low) | (tmp >> 4 & high) << 4,
        (word(1) >> 4 & low) | (tmp >> 6 & high) << 4,
    ];
    let scales: Vec<u8> = aux.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut out = vec![];
    for (sub, sub_scale) in scales.into_iter().enumerate() {
        let (n, j, side) = (sub / 8, sub / 2 % 4, sub % 2);
        let scale = d * (f32::from(sub_scale) - 32.0);
        for l in 16 * side..16 * side + 16 {
            let q = f32::from(qs[32 * n + l] >> (2 * j) & 3);
            let set = hmask[l] >> (4 * n + j) & 1 == 1;
            out.push(scale * (q - if set { 0.0 } else { 4.0 }));
        }
    }
    out
}

fn iq4_xs(b: &[u8]) -> Vec<f32> {
    let (d, high) = (half_at(b, 0), u16::from_le_bytes([b[2], b[3]]));
    let mut out = vec![];
    for sub in 0..8 {
        let low = b[4 + sub / 2] >> (4 * (sub % 2)) & 15;
        let scale = f32::from(low) + f32::from((high >> (2 * sub) & 3) << 4) - 32.0;
        let qs = &b[8 + 16 * sub..][..16];
        out.extend(nibbles(qs).map(|q| d * scale * KVALUES_IQ4NL[q as usize]));
    }
    out
}
