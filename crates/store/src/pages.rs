//! Parquet's encodings, as far as the tables need them.
//!
//! Parquet's own writer hashes every value of every column to number it. The
//! ingest knows the numbers already (they are those of the graph's template), so
//! it hands over numbers, and this module only lays them out. Two choices make
//! the result small as well: numbers take whole bytes, so that the pattern of
//! an evaluation repeats byte for byte in the next one and zstd sees it, and
//! only runs that are long enough not to disturb that are run-length coded.

/// Shorter runs stay in the packed pattern, where zstd finds them anyway.
const SHORTEST_RUN: usize = 64;

/// Bits per number for a dictionary of `values`: whole bytes.
pub fn index_bits(values: usize) -> u8 {
    match values {
        0..=0x100 => 8,
        0x101..=0x1_0000 => 16,
        _ => 32,
    }
}

/// Numbers in the RLE/bit-packing hybrid, `bits` (8, 16 or 32) each.
pub fn hybrid(numbers: &[u32], bits: u8, out: &mut Vec<u8>) {
    let mut literal = 0;
    let mut at = 0;
    while at < numbers.len() {
        let value = numbers[at];
        let run = numbers[at..].iter().take_while(|&&n| n == value).count();
        // Packed numbers come in eights: the run gives what is missing.
        let missing = (8 - (at - literal) % 8) % 8;
        if run >= SHORTEST_RUN + missing {
            packed(&numbers[literal..at + missing], bits, out);
            varint(((run - missing) as u64) << 1, out);
            out.extend_from_slice(&value.to_le_bytes()[..usize::from(bits / 8)]);
            literal = at + run;
        }
        at += run;
    }
    packed(&numbers[literal..], bits, out);
}

fn packed(numbers: &[u32], bits: u8, out: &mut Vec<u8>) {
    if numbers.is_empty() {
        return;
    }
    let groups = numbers.len().div_ceil(8);
    varint((groups as u64) << 1 | 1, out);
    match bits {
        8 => out.extend(numbers.iter().map(|&n| n as u8)),
        16 => out.extend(numbers.iter().flat_map(|&n| (n as u16).to_le_bytes())),
        _ => out.extend(numbers.iter().flat_map(|&n| n.to_le_bytes())),
    }
    let padding = (groups * 8 - numbers.len()) * usize::from(bits / 8);
    out.resize(out.len() + padding, 0);
}

/// Definition levels (is there a value?) with their length before them, as a
/// version 1 data page has them.
pub fn levels(present: impl ExactSizeIterator<Item = bool>, out: &mut Vec<u8>) {
    let length_at = out.len();
    out.extend([0; 4]);
    let mut writer = LevelWriter::default();
    for is_present in present {
        writer.add(is_present, out);
    }
    writer.finish(out);
    let length = (out.len() - length_at - 4) as u32;
    out[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
}

/// Collects single bits; whole bytes that are all alike become runs.
#[derive(Default)]
struct LevelWriter {
    bits: u8,
    count: u32,
    /// Equal bytes (0x00 or 0xff) not yet written.
    run: u64,
    run_byte: u8,
    literal: Vec<u8>,
}

impl LevelWriter {
    #[inline]
    fn add(&mut self, is_present: bool, out: &mut Vec<u8>) {
        self.bits |= u8::from(is_present) << self.count;
        self.count += 1;
        if self.count == 8 {
            self.byte(out);
        }
    }

    fn byte(&mut self, out: &mut Vec<u8>) {
        let byte = std::mem::take(&mut self.bits);
        self.count = 0;
        if self.run > 0 && byte == self.run_byte {
            self.run += 1;
            return;
        }
        self.end_run(out);
        if byte == 0 || byte == 0xff {
            self.run = 1;
            self.run_byte = byte;
        } else {
            self.literal.push(byte);
        }
    }

    fn end_run(&mut self, out: &mut Vec<u8>) {
        if self.run >= SHORTEST_RUN as u64 / 8 {
            self.end_literal(out);
            varint((self.run * 8) << 1, out);
            out.push(self.run_byte & 1);
        } else {
            let byte = self.run_byte;
            self.literal.extend((0..self.run).map(|_| byte));
        }
        self.run = 0;
    }

    fn end_literal(&mut self, out: &mut Vec<u8>) {
        if !self.literal.is_empty() {
            varint((self.literal.len() as u64) << 1 | 1, out);
            out.append(&mut self.literal);
        }
    }

    fn finish(mut self, out: &mut Vec<u8>) {
        let rest = (self.count > 0).then_some(self.bits);
        self.end_run(out);
        self.literal.extend(rest);
        self.end_literal(out);
    }
}

/// `DELTA_BINARY_PACKED`: blocks of 128 differences in four miniblocks.
pub fn delta(values: &[i64], out: &mut Vec<u8>) {
    const BLOCK: usize = 128;
    const MINIBLOCK: usize = 32;
    varint(BLOCK as u64, out);
    varint((BLOCK / MINIBLOCK) as u64, out);
    varint(values.len() as u64, out);
    varint(zigzag(values.first().copied().unwrap_or(0)), out);
    let Some((&first, rest)) = values.split_first() else {
        return;
    };
    let mut before = first;
    let mut deltas = [0i64; BLOCK];
    for block in rest.chunks(BLOCK) {
        for (delta, &value) in deltas.iter_mut().zip(block) {
            *delta = value.wrapping_sub(before);
            before = value;
        }
        let deltas = &deltas[..block.len()];
        let least = deltas.iter().copied().min().expect("chunks are not empty");
        varint(zigzag(least), out);
        let widths_at = out.len();
        out.extend([0; BLOCK / MINIBLOCK]);
        for (number, miniblock) in deltas.chunks(MINIBLOCK).enumerate() {
            let above = |delta: &i64| delta.wrapping_sub(least) as u64;
            let most = miniblock.iter().map(above).fold(0, u64::max);
            let width = 64 - most.leading_zeros();
            out[widths_at + number] = width as u8;
            let mut bits = 0u128;
            let mut count = 0;
            // The last miniblock is padded to its full length.
            for value in miniblock
                .iter()
                .map(above)
                .chain(std::iter::repeat(0))
                .take(MINIBLOCK)
            {
                bits |= u128::from(value) << count;
                count += width;
                while count >= 8 {
                    out.push(bits as u8);
                    bits >>= 8;
                    count -= 8;
                }
            }
        }
    }
}

pub fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_packed_in_eights_and_long_runs_are_counted() {
        let mut out = Vec::new();
        hybrid(&[1, 2, 3], 8, &mut out);
        assert_eq!(out, [3, 1, 2, 3, 0, 0, 0, 0, 0]);
        out.clear();
        // Two literals, filled up from a run of 100: 94 of it are left.
        let numbers: Vec<u32> = [9, 8].into_iter().chain([7; 100]).collect();
        hybrid(&numbers, 16, &mut out);
        let literal = [9, 0, 8, 0, 7, 0, 7, 0, 7, 0, 7, 0, 7, 0, 7, 0];
        let expect: Vec<u8> = [3]
            .into_iter()
            .chain(literal)
            .chain([188, 1, 7, 0])
            .collect();
        assert_eq!(out, expect);
    }

    #[test]
    fn levels_start_with_their_length() {
        let mut out = Vec::new();
        levels([true, false, true].into_iter(), &mut out);
        assert_eq!(out, [2, 0, 0, 0, 3, 0b101]);
        out.clear();
        levels(vec![true; 128].into_iter(), &mut out);
        assert_eq!(out, [3, 0, 0, 0, 0x80, 2, 1]);
    }

    #[test]
    fn widths_are_whole_bytes() {
        let bits = [0, 1, 256, 257, 65536, 65537].map(index_bits);
        assert_eq!(bits, [8, 8, 8, 16, 16, 32]);
    }
}
