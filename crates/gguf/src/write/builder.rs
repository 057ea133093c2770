//! The metadata of a file to be written, in GGUF's encoding from the start.

use super::WriteError;
use crate::metadata::ValueType;

/// What readers assume when `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT_BYTES: u64 = 32;

/// A value that GGUF metadata can hold, alone or as the element of an array.
pub trait Scalar {
    const TYPE: ValueType;
    fn encode(&self, out: &mut Vec<u8>);
}

macro_rules! scalar {
    ($($rust:ty = $number:ident),*) => {$(
        impl Scalar for $rust {
            const TYPE: ValueType = ValueType::$number;
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
scalar!(
    u8 = U8,
    i8 = I8,
    u16 = U16,
    i16 = I16,
    u32 = U32,
    i32 = I32,
    f32 = F32,
    u64 = U64,
    i64 = I64,
    f64 = F64
);

impl Scalar for bool {
    const TYPE: ValueType = ValueType::Bool;
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Scalar for &str {
    const TYPE: ValueType = ValueType::String;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self, out);
    }
}

impl Scalar for String {
    const TYPE: ValueType = ValueType::String;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self, out);
    }
}

/// Metadata in the order it was set, already in GGUF's encoding: a vocabulary
/// of 200,000 tokens is a few megabytes here and not 200,000 allocations.
#[derive(Debug, Clone, Default)]
pub struct MetadataBuilder {
    keys: Vec<String>,
    bytes: Vec<u8>,
    alignment_bytes: Option<u32>,
}

impl MetadataBuilder {
    pub fn new() -> MetadataBuilder {
        MetadataBuilder::default()
    }

    /// Adds a pair. A key must be set only once; [`Layout::new`](super::Layout::new) checks it.
    pub fn set<T: Scalar>(&mut self, key: &str, value: T) {
        self.key(key, T::TYPE);
        value.encode(&mut self.bytes);
    }

    pub fn set_array<T: Scalar>(&mut self, key: &str, items: impl IntoIterator<Item = T>) {
        self.key(key, ValueType::Array);
        self.bytes
            .extend_from_slice(&(T::TYPE as u32).to_le_bytes());
        let count_at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 8]);
        let mut count = 0u64;
        for item in items {
            item.encode(&mut self.bytes);
            count += 1;
        }
        self.bytes[count_at..count_at + 8].copy_from_slice(&count.to_le_bytes());
    }

    /// Sets `general.alignment`, which the layout of the data obeys.
    pub fn set_alignment(&mut self, bytes: u32) {
        self.set("general.alignment", bytes);
        self.alignment_bytes = Some(bytes);
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn key(&mut self, key: &str, value_type: ValueType) {
        self.keys.push(key.to_owned());
        encode_string(key, &mut self.bytes);
        self.bytes
            .extend_from_slice(&(value_type as u32).to_le_bytes());
    }

    pub(super) fn encoded(&self) -> &[u8] {
        &self.bytes
    }

    /// Checks the keys as a whole, and says how the data is to be aligned.
    pub(super) fn alignment(&self) -> Result<u64, WriteError> {
        let mut keys: Vec<&str> = self.keys.iter().map(String::as_str).collect();
        keys.sort_unstable();
        if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            let why = format!("metadata key {} is set twice", twice[0]);
            return Err(WriteError::Invalid(why));
        }
        match self.alignment_bytes {
            None if keys.binary_search(&"general.alignment").is_ok() => Err(WriteError::Invalid(
                "general.alignment must be set with set_alignment".into(),
            )),
            None => Ok(DEFAULT_ALIGNMENT_BYTES),
            Some(bytes) if bytes.is_power_of_two() => Ok(u64::from(bytes)),
            Some(bytes) => Err(WriteError::Invalid(format!(
                "an alignment of {bytes} bytes is not a power of two"
            ))),
        }
    }
}

/// A length of eight bytes, then the text.
pub(super) fn encode_string(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
