//! The types that weights and caches are stored in, and those that machines compute in.
//!
//! Stored types are ggml's, with its block geometry, and the few that other engines use:
//! fp8, int8 and int4 without scales.

use gguf::GgmlType;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How numbers are stored: so many elements in a block of so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NumberType {
    pub name: &'static str,
    pub block_elements: u64,
    pub block_bytes: u64,
}

const fn plain(name: &'static str, block_elements: u64, block_bytes: u64) -> NumberType {
    NumberType {
        name,
        block_elements,
        block_bytes,
    }
}

impl NumberType {
    pub const F32: NumberType = plain("f32", 1, 4);
    pub const F16: NumberType = plain("f16", 1, 2);
    pub const BF16: NumberType = plain("bf16", 1, 2);
    /// E4M3 or E5M2; scales, one a tensor, are left out.
    pub const FP8: NumberType = plain("fp8", 1, 1);
    pub const INT8: NumberType = plain("int8", 1, 1);
    pub const INT4: NumberType = plain("int4", 2, 1);

    /// `fp8`, `int8`, `int4` or the name of a ggml type, in any case.
    pub fn from_name(name: &str) -> Result<NumberType> {
        let known = |ty: &&NumberType| ty.name.eq_ignore_ascii_case(name);
        [NumberType::FP8, NumberType::INT8, NumberType::INT4]
            .iter()
            .find(known)
            .copied()
            .or_else(|| GgmlType::from_name(name).map(NumberType::from))
            .or_else(|| match name.to_ascii_lowercase().as_str() {
                "fp32" | "float32" => Some(NumberType::F32),
                "fp16" | "float16" => Some(NumberType::F16),
                "bfloat16" => Some(NumberType::BF16),
                "fp8_e4m3" | "fp8_e5m2" | "f8" => Some(NumberType::FP8),
                _ => None,
            })
            .ok_or_else(|| Error::UnknownType(name.to_owned()))
    }

    /// Bytes of `elements`, in whole blocks.
    pub fn bytes(self, elements: u64) -> Result<u64> {
        elements
            .div_ceil(self.block_elements)
            .checked_mul(self.block_bytes)
            .ok_or(Error::TooLarge("the size of a row"))
    }

    pub fn bytes_per_element(self) -> f64 {
        self.block_bytes as f64 / self.block_elements as f64
    }

    /// What a machine multiplies these with: weights of fewer bits are widened to 16 first.
    pub fn compute_type(self) -> ComputeType {
        match self.name {
            "f32" => ComputeType::Fp32,
            "bf16" => ComputeType::Bf16,
            "fp8" => ComputeType::Fp8,
            "int8" => ComputeType::Int8,
            _ => ComputeType::Fp16,
        }
    }
}

impl From<GgmlType> for NumberType {
    fn from(ty: GgmlType) -> NumberType {
        plain(ty.name(), ty.block_elements(), ty.block_bytes())
    }
}

/// What a machine multiplies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeType {
    Fp32,
    Tf32,
    Fp16,
    Bf16,
    Fp8,
    Int8,
}

impl ComputeType {
    pub const ALL: [ComputeType; 6] = [
        ComputeType::Fp32,
        ComputeType::Tf32,
        ComputeType::Fp16,
        ComputeType::Bf16,
        ComputeType::Fp8,
        ComputeType::Int8,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ComputeType::Fp32 => "fp32",
            ComputeType::Tf32 => "tf32",
            ComputeType::Fp16 => "fp16",
            ComputeType::Bf16 => "bf16",
            ComputeType::Fp8 => "fp8",
            ComputeType::Int8 => "int8",
        }
    }

    /// Bytes of one number as the units see it.
    pub fn element_bytes(self) -> u64 {
        match self {
            ComputeType::Fp32 | ComputeType::Tf32 => 4,
            ComputeType::Fp16 | ComputeType::Bf16 => 2,
            ComputeType::Fp8 | ComputeType::Int8 => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_the_names_that_people_type() {
        let check = |name: &str, elements, expect| {
            assert_eq!(
                NumberType::from_name(name).unwrap().bytes(elements),
                expect,
                "{name}"
            );
        };
        check("F16", 1024, Ok(2048));
        check("float16", 1024, Ok(2048));
        check("q8_0", 1024, Ok(1088));
        check("q4_0", 1024, Ok(576));
        check("fp8", 1024, Ok(1024));
        check("int4", 1023, Ok(512));
        check("f64", u64::MAX, Err(Error::TooLarge("the size of a row")));
        assert!(NumberType::from_name("q99").is_err());
    }
}
