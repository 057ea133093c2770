//! The micro-kernel for processors with AVX2 and FMA (since 2013).

use std::arch::x86_64::{
    _MM_HINT_T0, _mm_prefetch, _mm256_add_ps, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_load_ps,
    _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

use super::packed::Micro;

const ROWS: usize = 6;
/// Two registers of eight numbers.
const COLUMNS: usize = 16;

/// Rows of B that are asked for ahead of time.
const AHEAD: usize = 8;

/// 6×16: twelve registers hold the tile, two a row of B, one or two a number of A: all 16.
pub const MICRO: Micro = Micro {
    rows: ROWS,
    columns: COLUMNS,
    depth: 384,
    block_rows: 28 * ROWS,
    run: avx2,
};

pub fn is_here() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// # Safety
///
/// As [`super::packed::Run`] says, with B aligned to its rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(
    depth: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    stride: usize,
    is_first: bool,
) {
    let mut tile = [[_mm256_setzero_ps(); 2]; ROWS];
    for i in 0..ROWS {
        _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(i * stride).cast());
    }
    for p in 0..depth {
        // SAFETY: inside of the packed panels; the hint may point past them.
        unsafe {
            let (a, b) = (a.add(p * ROWS), b.add(p * COLUMNS));
            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD * COLUMNS).cast());
            let (left, right) = (_mm256_load_ps(b), _mm256_load_ps(b.add(8)));
            for (i, tile) in tile.iter_mut().enumerate() {
                let a = _mm256_broadcast_ss(&*a.add(i));
                tile[0] = _mm256_fmadd_ps(a, left, tile[0]);
                tile[1] = _mm256_fmadd_ps(a, right, tile[1]);
            }
        }
    }
    for (i, tile) in tile.iter().enumerate() {
        for (half, &sum) in tile.iter().enumerate() {
            // SAFETY: a row of this tile of C.
            unsafe {
                let c = c.add(i * stride + 8 * half);
                let before = if is_first {
                    _mm256_setzero_ps()
                } else {
                    _mm256_loadu_ps(c)
                };
                _mm256_storeu_ps(c, _mm256_add_ps(before, sum));
            }
        }
    }
}
