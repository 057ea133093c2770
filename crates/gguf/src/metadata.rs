//! The key-value metadata of a GGUF file.
//!
//! Real files carry vocabularies of 150 000 strings and more, and chat templates
//! of many kilobytes. Only what answers questions is kept in memory: scalars,
//! short strings and short arrays. Everything else is kept as the place in the
//! file where it lies ([`Array`], [`Value::LongString`]).

/// GGUF's own numbering of value types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    pub fn from_u32(number: u32) -> Option<ValueType> {
        use ValueType::*;
        Some(match number {
            0 => U8,
            1 => I8,
            2 => U16,
            3 => I16,
            4 => U32,
            5 => I32,
            6 => F32,
            7 => Bool,
            8 => String,
            9 => Array,
            10 => U64,
            11 => I64,
            12 => F64,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        use ValueType::*;
        match self {
            U8 => "u8",
            I8 => "i8",
            U16 => "u16",
            I16 => "i16",
            U32 => "u32",
            I32 => "i32",
            F32 => "f32",
            Bool => "bool",
            String => "string",
            Array => "array",
            U64 => "u64",
            I64 => "i64",
            F64 => "f64",
        }
    }

    /// Bytes of one value, or `None` where the value says its own length.
    pub fn fixed_bytes(self) -> Option<u64> {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            String | Array => None,
        }
    }
}

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    U64(u64),
    I64(i64),
    F64(f64),
    /// A string short enough to keep. GGUF wants UTF-8; what is not is replaced.
    String(Box<str>),
    /// A string left in the file.
    LongString {
        file_offset: u64,
        size_bytes: u64,
    },
    Array(Array),
}

/// An array: where it lies, and its elements when there are few.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub element: ValueType,
    pub count: u64,
    /// First byte of the first element.
    pub file_offset: u64,
    pub size_bytes: u64,
    /// All the elements, or nothing when they were left in the file.
    pub elements: Option<Box<[Value]>>,
}

impl Value {
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
            Value::String(_) | Value::LongString { .. } => "string",
            Value::Array(_) => "array",
        }
    }

    /// Any integer that is not negative; a bool counts as 0 or 1.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            Value::Bool(v) => Some(v.into()),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// A key with its value and its place in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub key: Box<str>,
    pub value: Value,
    /// First byte of the entry, which begins with the length of its key.
    pub entry_offset: u64,
    /// First byte of the value.
    pub value_offset: u64,
}

/// All entries of one file, in file order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<Entry>,
    by_key: Vec<u32>,
}

impl Metadata {
    /// Indexes the entries, or says which entry repeats an earlier key.
    pub(crate) fn new(entries: Vec<Entry>) -> Result<Metadata, usize> {
        let mut by_key: Vec<u32> = (0..entries.len() as u32).collect();
        by_key.sort_by_key(|&i| (&entries[i as usize].key, i));
        let repeated = by_key
            .windows(2)
            .filter(|w| entries[w[0] as usize].key == entries[w[1] as usize].key)
            .map(|w| w[1] as usize)
            .min();
        match repeated {
            Some(index) => Err(index),
            None => Ok(Metadata { entries, by_key }),
        }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.by_key
            .binary_search_by(|&i| (*self.entries[i as usize].key).cmp(key))
            .ok()
            .map(|found| &self.entries[self.by_key[found] as usize])
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entry(key).map(|entry| &entry.value)
    }

    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}
