//! Reading small strided arrays (token ids, KV cells, expert ids, router
//! weights) out of tensors, and coding them.

/// Element type of an array in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    I32,
    I64,
    /// Its bits are kept.
    F32,
}

/// An array inside a live graph.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub data: *const u8,
    pub element: Element,
    /// Elements along each dimension, innermost first.
    pub count: [usize; 3],
    pub strides_bytes: [usize; 3],
    /// Values of index arrays lie below it; `u64::MAX` for everything else.
    pub bound: u64,
    /// Bytes per element when stored at a tick: 2, 4 or 8.
    pub width_bytes: u8,
}

impl Source {
    /// Calls `f` for each element in order; with [`BAD_INDEX`] if there is no array.
    ///
    /// # Safety
    /// The array is readable and nobody writes to it meanwhile.
    #[inline]
    pub unsafe fn for_each(&self, mut f: impl FnMut(i64)) {
        if self.data.is_null() {
            // Nobody has it.
            return (0..self.elements()).for_each(|_| f(BAD_INDEX));
        }
        for i2 in 0..self.count[2] {
            for i1 in 0..self.count[1] {
                let row = i2 * self.strides_bytes[2] + i1 * self.strides_bytes[1];
                for i0 in 0..self.count[0] {
                    // SAFETY: inside the array by its counts and strides (caller).
                    let at = unsafe { self.data.add(row + i0 * self.strides_bytes[0]) };
                    // SAFETY: as above; unaligned reads make no demand on strides.
                    let value = unsafe {
                        match self.element {
                            Element::I32 => i64::from(at.cast::<i32>().read_unaligned()),
                            Element::I64 => at.cast::<i64>().read_unaligned(),
                            Element::F32 => i64::from(at.cast::<u32>().read_unaligned()),
                        }
                    };
                    f(value);
                }
            }
        }
    }

    pub fn elements(&self) -> usize {
        self.count.iter().product()
    }
}

/// Whether a value is a possible index below `bound`.
#[inline(always)]
pub fn in_bounds(value: i64, bound: u64) -> bool {
    (value as u64) < bound
}

/// Stored instead of an index that is out of bounds: all ones in every width,
/// which [`width_for`] keeps out of bounds.
pub const BAD_INDEX: i64 = -1;

/// Bytes that hold every value below `bound`, and [`BAD_INDEX`] besides.
pub fn width_for(bound: u64) -> u8 {
    match bound {
        0..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    }
}

/// Packs `width_bytes`-wide values into words and hands them to `put`.
pub struct Packer<F: FnMut(u64)> {
    put: F,
    word: u64,
    bits: u32,
    width_bits: u32,
    mask: u64,
}

impl<F: FnMut(u64)> Packer<F> {
    #[inline(always)]
    pub fn new(width_bytes: u8, put: F) -> Self {
        let width_bits = u32::from(width_bytes) * 8;
        Packer {
            put,
            word: 0,
            bits: 0,
            width_bits,
            mask: u64::MAX >> (64 - width_bits),
        }
    }

    #[inline(always)]
    pub fn push(&mut self, value: i64) {
        self.word |= (value as u64 & self.mask) << self.bits;
        self.bits += self.width_bits;
        if self.bits == 64 {
            (self.put)(self.word);
            self.word = 0;
            self.bits = 0;
        }
    }

    #[inline(always)]
    pub fn finish(mut self) {
        if self.bits > 0 {
            (self.put)(self.word);
        }
    }
}

/// Appends `values` to `out` in the shorter of two codings: runs of constant
/// step, or plain values of the least width. KV cells and the rows of a
/// transposed V cache are runs; token ids are not.
pub fn encode(values: &[i64], out: &mut Vec<u64>) {
    let header = (values.len() as u64) << 8;
    let widest = values.iter().map(|&v| v as u64).max().unwrap_or(0);
    // The widest value itself must fit; there is no bad value to keep apart.
    let width = width_for(widest);
    let plain_words = (values.len() * usize::from(width)).div_ceil(8);
    let start = out.len();
    out.push(header | 1);
    out.push(0);
    let mut runs = 0;
    let mut rest = values;
    // Give up on runs as soon as they are no shorter.
    while let (Some(&first), true) = (rest.first(), runs * 3 + 1 < plain_words) {
        let step = rest.get(1).map_or(0, |second| second.wrapping_sub(first));
        let length = 1 + rest
            .windows(2)
            .take_while(|w| w[1].wrapping_sub(w[0]) == step)
            .count();
        out.extend([first as u64, step as u64, length as u64]);
        rest = &rest[length..];
        runs += 1;
    }
    if rest.is_empty() && runs * 3 + 1 < plain_words {
        out[start + 1] = runs as u64;
        return;
    }
    out.truncate(start);
    out.push(header | u64::from(width));
    let mut packer = Packer::new(width, |word| out.push(word));
    values.iter().for_each(|&value| packer.push(value));
    packer.finish();
}
