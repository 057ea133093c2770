//! Matrix products without packing: three loops, then the same in another order, then in
//! blocks. All matrices lie row by row.

/// C (m×n) = A (m×k) × B (k×n).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Shape {
    pub fn square(size: usize) -> Shape {
        Shape {
            m: size,
            n: size,
            k: size,
        }
    }

    /// Operations of one product: a multiplication and an addition for each term.
    pub fn operations(self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

/// One sum at a time, as the formula is written. B is walked down its columns: each number is
/// in another cache line.
pub fn naive(shape: Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
    let Shape { m, n, k } = shape;
    for i in 0..m {
        for j in 0..n {
            let mut sum = 0.0;
            for p in 0..k {
                sum += a[i * k + p] * b[p * n + j];
            }
            c[i * n + j] = sum;
        }
    }
}

/// The inner loop walks a row of B and a row of C.
pub fn loop_order(shape: Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
    let Shape { n, k, .. } = shape;
    for (a, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
        c.fill(0.0);
        for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
            add_row(a, b, c);
        }
    }
}

/// A block of B of this many rows and columns (32 KiB) is used for all rows of A before the
/// next one. Wide and low: where rows are a power of two apart, they share the sets of the
/// first level, and few fit (experiment `cache`). Packing cures that.
const BLOCK_ROWS: usize = 16;
const BLOCK_COLUMNS: usize = 512;

/// The same inner loop over a part of B that stays in the cache, and over four of its rows at
/// once: a number of C is loaded and stored for four terms instead of one.
pub fn blocked(shape: Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
    let Shape { n, k, .. } = shape;
    c.fill(0.0);
    for left in (0..n).step_by(BLOCK_COLUMNS) {
        let columns = left..n.min(left + BLOCK_COLUMNS);
        for top in (0..k).step_by(BLOCK_ROWS) {
            let end = k.min(top + BLOCK_ROWS);
            let row = |p: usize| &b[p * n..][columns.clone()];
            for (a, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
                let c = &mut c[columns.clone()];
                let (fours, rest) = a[top..end].as_chunks::<4>();
                for (i, &a) in fours.iter().enumerate() {
                    let p = top + 4 * i;
                    add_four_rows(a, [row(p), row(p + 1), row(p + 2), row(p + 3)], c);
                }
                for (i, &a) in rest.iter().enumerate() {
                    add_row(a, row(top + 4 * fours.len() + i), c);
                }
            }
        }
    }
}

/// `c += a × b`; the compiler makes vector instructions of it.
#[inline]
fn add_row(a: f32, b: &[f32], c: &mut [f32]) {
    for (b, c) in b.iter().zip(c) {
        *c += a * b;
    }
}

/// The same for four rows.
#[inline]
fn add_four_rows(a: [f32; 4], b: [&[f32]; 4], c: &mut [f32]) {
    // As long as C, so that no index needs a check.
    let [b0, b1, b2, b3] = b.map(|b| &b[..c.len()]);
    for (j, c) in c.iter_mut().enumerate() {
        *c += a[0] * b0[j] + a[1] * b1[j] + a[2] * b2[j] + a[3] * b3[j];
    }
}
