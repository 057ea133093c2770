//! The micro-kernel in plain Rust, for every processor.

use super::packed::Micro;

const ROWS: usize = 4;
const COLUMNS: usize = 8;

/// 4×8: eight of the 16 registers that every x86-64 processor has hold the tile.
pub const MICRO: Micro = Micro {
    rows: ROWS,
    columns: COLUMNS,
    depth: 384,
    block_rows: 40 * ROWS,
    run: portable,
};

/// # Safety
///
/// As [`super::packed::Run`] says.
unsafe fn portable(
    depth: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    stride: usize,
    is_first: bool,
) {
    // SAFETY: panels are so long, as the caller promises.
    let (a, b) = unsafe {
        (
            std::slice::from_raw_parts(a, depth * ROWS),
            std::slice::from_raw_parts(b, depth * COLUMNS),
        )
    };
    let mut tile = [[0.0f32; COLUMNS]; ROWS];
    for (a, b) in a
        .as_chunks::<ROWS>()
        .0
        .iter()
        .zip(b.as_chunks::<COLUMNS>().0)
    {
        for (tile, a) in tile.iter_mut().zip(a) {
            for (sum, b) in tile.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    for (i, tile) in tile.iter().enumerate() {
        // SAFETY: a row of this tile of C.
        let c = unsafe { std::slice::from_raw_parts_mut(c.add(i * stride), COLUMNS) };
        for (c, sum) in c.iter_mut().zip(tile) {
            *c = if is_first { *sum } else { *c + sum };
        }
    }
}
