//! Variable-length integers and strings of definition records.
//!
//! Definitions are written rarely and read rarely; what matters is that they
//! stay small next to the evaluations of a short run.

/// Appends to a byte vector.
#[derive(Default)]
pub struct Encoder {
    pub bytes: Vec<u8>,
}

impl Encoder {
    /// LEB128.
    pub fn unsigned(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    pub fn text(&mut self, text: &[u8]) {
        self.unsigned(text.len() as u64);
        self.bytes.extend_from_slice(text);
    }
}

/// Why decoding stopped; the caller adds where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("a definition ends early")]
    Truncated,
    #[error("a number of a definition is too large")]
    Overflow,
    #[error("a definition has the unknown tag {0}")]
    UnknownTag(u64),
    #[error("a definition refers to number {0}, which was never defined")]
    UndefinedReference(u64),
}

pub struct Decoder<'a> {
    bytes: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Decoder { bytes }
    }

    pub fn is_done(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn unsigned(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.bytes.split_first().ok_or(WireError::Truncated)?;
            self.bytes = rest;
            if shift == 63 && byte > 1 {
                return Err(WireError::Overflow);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::Overflow)
    }

    pub fn narrow<T: TryFrom<u64>>(&mut self) -> Result<T, WireError> {
        T::try_from(self.unsigned()?).map_err(|_| WireError::Overflow)
    }

    pub fn text(&mut self) -> Result<&'a [u8], WireError> {
        let length: usize = self.narrow()?;
        if length > self.bytes.len() {
            return Err(WireError::Truncated);
        }
        let (text, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Ok(text)
    }

    /// A count of items of at least one byte each: bounds what is allocated for
    /// a corrupt count.
    pub fn count(&mut self) -> Result<usize, WireError> {
        let count: usize = self.narrow()?;
        if count > self.bytes.len() {
            Err(WireError::Truncated)
        } else {
            Ok(count)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn numbers_and_texts_round_trip(unsigned: u64, text: Vec<u8>) {
            let mut encoder = Encoder::default();
            encoder.unsigned(unsigned);
            encoder.text(&text);
            let mut decoder = Decoder::new(&encoder.bytes);
            assert_eq!(decoder.unsigned(), Ok(unsigned));
            assert_eq!(decoder.text(), Ok(&text[..]));
            assert!(decoder.is_done());
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let mut decoder = Decoder::new(&bytes);
            while decoder.unsigned().is_ok() {}
            let _ = Decoder::new(&bytes).text();
        }
    }
}
