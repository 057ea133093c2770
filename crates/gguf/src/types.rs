//! The element types a GGUF tensor can have, with their block geometry.
//!
//! Numbers, spellings and sizes mirror ggml (`enum ggml_type`, `type_traits`,
//! `ggml-common.h` of ggml 0.26.0), because a size that is wrong by one byte
//! shifts every later answer. Types that ggml has removed from the format are
//! deliberately not here: [`removed_type_advice`] says what became of them.

/// An element type, with the same number ggml writes to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(non_camel_case_types)]
#[repr(u32)]
pub enum GgmlType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

use GgmlType::*;

/// Every type: name in ggml's spelling, elements a block, bytes a block.
const TRAITS: &[(GgmlType, &str, u64, u64)] = &[
    (F32, "f32", 1, 4),
    (F16, "f16", 1, 2),
    (Q4_0, "q4_0", 32, 18),
    (Q4_1, "q4_1", 32, 20),
    (Q5_0, "q5_0", 32, 22),
    (Q5_1, "q5_1", 32, 24),
    (Q8_0, "q8_0", 32, 34),
    (Q8_1, "q8_1", 32, 36),
    (Q2_K, "q2_K", 256, 84),
    (Q3_K, "q3_K", 256, 110),
    (Q4_K, "q4_K", 256, 144),
    (Q5_K, "q5_K", 256, 176),
    (Q6_K, "q6_K", 256, 210),
    (Q8_K, "q8_K", 256, 292),
    (IQ2_XXS, "iq2_xxs", 256, 66),
    (IQ2_XS, "iq2_xs", 256, 74),
    (IQ3_XXS, "iq3_xxs", 256, 98),
    (IQ1_S, "iq1_s", 256, 50),
    (IQ4_NL, "iq4_nl", 32, 18),
    (IQ3_S, "iq3_s", 256, 110),
    (IQ2_S, "iq2_s", 256, 82),
    (IQ4_XS, "iq4_xs", 256, 136),
    (I8, "i8", 1, 1),
    (I16, "i16", 1, 2),
    (I32, "i32", 1, 4),
    (I64, "i64", 1, 8),
    (F64, "f64", 1, 8),
    (IQ1_M, "iq1_m", 256, 56),
    (BF16, "bf16", 1, 2),
    (TQ1_0, "tq1_0", 256, 54),
    (TQ2_0, "tq2_0", 256, 66),
    (MXFP4, "mxfp4", 32, 17),
    (NVFP4, "nvfp4", 64, 36),
    (Q1_0, "q1_0", 128, 18),
    (Q2_0, "q2_0", 64, 18),
];

const TYPE_COUNT: usize = 43;
const NO_PLACE: u8 = u8::MAX;

/// Place in [`TRAITS`] of each type number, because headers ask for every tensor.
const PLACE_OF_NUMBER: [u8; TYPE_COUNT] = {
    let mut places = [NO_PLACE; TYPE_COUNT];
    let mut place = 0;
    while place < TRAITS.len() {
        places[TRAITS[place].0 as usize] = place as u8;
        place += 1;
    }
    places
};

impl GgmlType {
    /// All types, in ggml's numeric order.
    pub fn all() -> impl Iterator<Item = GgmlType> {
        TRAITS.iter().map(|t| t.0)
    }

    pub fn from_u32(number: u32) -> Option<GgmlType> {
        let place = *PLACE_OF_NUMBER.get(number as usize)?;
        TRAITS.get(usize::from(place)).map(|t| t.0)
    }

    /// The type of this name, in any case (`q4_K`, `Q4_K`, `q4_k`).
    pub fn from_name(name: &str) -> Option<GgmlType> {
        GgmlType::all().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    pub fn as_u32(self) -> u32 {
        self as u32
    }

    /// ggml's own spelling.
    pub fn name(self) -> &'static str {
        self.traits().1
    }

    /// Elements in one block; 1 for types that are not quantised.
    pub fn block_elements(self) -> u64 {
        self.traits().2
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> u64 {
        self.traits().3
    }

    /// Bytes of a row of `elements`, or `None` when the row does not consist
    /// of whole blocks or its size does not fit in 64 bits.
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        let (_, _, block_elements, block_bytes) = *self.traits();
        if !elements.is_multiple_of(block_elements) {
            return None;
        }
        (elements / block_elements).checked_mul(block_bytes)
    }

    pub fn is_quantized(self) -> bool {
        self.block_elements() > 1
    }

    /// Whether llama.cpp accepts this type for its KV cache.
    pub fn is_kv_cache_type(self) -> bool {
        matches!(
            self,
            F32 | F16 | BF16 | Q8_0 | Q4_0 | Q4_1 | IQ4_NL | Q5_0 | Q5_1
        )
    }

    fn traits(self) -> &'static (GgmlType, &'static str, u64, u64) {
        &TRAITS[usize::from(PLACE_OF_NUMBER[self as usize])]
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What to say about a type number that ggml once wrote and no longer reads.
pub fn removed_type_advice(number: u32) -> Option<&'static str> {
    match number {
        4 | 5 => Some("q4_2 and q4_3 were removed from ggml in 2023; convert the model again"),
        31..=33 => Some("q4_0_4_4, q4_0_4_8 and q4_0_8_8 were removed from GGUF; use q4_0"),
        36..=38 => Some("iq4_nl_4_4, iq4_nl_4_8 and iq4_nl_8_8 were removed from GGUF; use iq4_nl"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back_to_their_type() {
        for ty in GgmlType::all() {
            assert_eq!(GgmlType::from_u32(ty.as_u32()), Some(ty));
            assert_eq!(GgmlType::from_name(&ty.name().to_uppercase()), Some(ty));
        }
        assert_eq!(GgmlType::all().count(), 35);
        for removed in [4, 5, 31, 32, 33, 36, 37, 38] {
            assert_eq!(GgmlType::from_u32(removed), None);
            assert!(removed_type_advice(removed).is_some());
        }
        assert_eq!(GgmlType::from_u32(43), None);
    }

    #[test]
    fn rows_have_the_bytes_that_ggml_row_size_gives() {
        let check = |ty: GgmlType, elements, expect| {
            assert_eq!(ty.row_bytes(elements), expect, "{ty} {elements}");
        };
        check(F32, 3, Some(12));
        check(Q4_0, 4096, Some(2304));
        check(Q4_0, 33, None);
        check(Q4_K, 4096, Some(2304));
        check(Q6_K, 4096, Some(3360));
        check(Q6_K, 128, None);
        check(Q8_0, 4096, Some(4352));
        check(MXFP4, 2880, Some(1530));
        check(NVFP4, 128, Some(72));
        check(TQ1_0, 256, Some(54));
        check(IQ4_NL, 64, Some(36));
        check(F64, u64::MAX, None);
        check(Q8_0, 0, Some(0));
    }
}
