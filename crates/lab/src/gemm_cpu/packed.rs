//! The structure of GotoBLAS and BLIS, around a micro-kernel that may be anyone's.
//!
//! A product is cut so that each level of the cache holds something that is used often:
//! - `depth` (KC) numbers of every sum at a time: a panel of B, `depth` × some 32 columns,
//!   stays near while panels of A pass by, in the first level if it is short enough;
//! - `block_rows` (MC) rows of A at a time: that block stays in the second level while the
//!   panels of B pass by;
//! - `WIDTH` (NC) columns of B at a time: those stay in the last level, for all threads.
//!
//! Both are copied ("packed") first into the order in which the micro-kernel reads them: one
//! stream each, no page is left before all of it was used, and what is missing at the edges
//! is zero, so that the micro-kernel knows one size only.
//!
//! Threads share both copies. Each takes the next piece of work that nobody has taken; that
//! evens out cores which are busy otherwise.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{meeting::Meeting, plain::Shape, room::Room};

/// Columns of B that are packed at a time.
const WIDTH: usize = 4096;

/// Columns of one piece of work, if there is one thread only.
const PIECE: usize = 1024;

/// Pieces for each thread, so that a slow one can leave some to others.
const PIECES_EACH: usize = 8;

/// Rows of B that a thread packs at a time.
const ROWS_AT_ONCE: usize = 16;

/// No micro-kernel has a larger tile.
const MAX_TILE: usize = 512;

/// Adds `depth` outer products to a tile of C that is held in registers.
#[derive(Clone, Copy, Debug)]
pub struct Micro {
    /// Of the tile (MR and NR).
    pub rows: usize,
    pub columns: usize,
    /// KC and MC, see above.
    pub depth: usize,
    pub block_rows: usize,
    pub run: Run,
}

/// `run(depth, a, b, c, stride, is_first)`: A has `depth` columns of the tile's rows, B
/// `depth` rows of the tile's columns, both packed; rows of C are `stride` apart. The first
/// time C is written, later it is added to.
///
/// # Safety
///
/// The processor has the kernel's instructions; A and B are as long as said, C is a tile that
/// nobody else uses meanwhile.
pub type Run = unsafe fn(usize, *const f32, *const f32, *mut f32, usize, bool);

/// A product with room for its packed copies, which stays from one to the next: fresh
/// memory would cost a page fault for each page.
pub struct Product {
    /// As it came, and with the blocks that were chosen.
    own: Micro,
    micro: Micro,
    threads: usize,
    a: Room,
    b: Room,
}

impl Product {
    pub fn new(micro: Micro, threads: usize) -> Product {
        assert!(micro.rows * micro.columns <= MAX_TILE && micro.columns.is_multiple_of(8));
        Product {
            own: micro,
            micro,
            threads: threads.max(1),
            a: Room::default(),
            b: Room::default(),
        }
    }

    /// KC and MC that are worth a try: the micro-kernel's own, which were found on one processor,
    /// and others for smaller first and larger second levels.
    pub fn blockings(&self) -> Vec<(usize, usize)> {
        let Micro {
            depth, block_rows, ..
        } = self.own;
        vec![
            (depth, block_rows),
            (depth, block_rows / 2),
            (depth / 2, block_rows),
            (depth / 2, block_rows * 2),
            (depth * 4 / 3, block_rows),
        ]
    }

    pub fn block_by(&mut self, (depth, block_rows): (usize, usize)) {
        self.micro = Micro {
            depth,
            block_rows,
            ..self.own
        };
    }

    /// C = A × B. What is in C does not matter.
    pub fn multiply(&mut self, shape: Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
        let Shape { m, n, k } = shape;
        assert!(a.len() == m * k && b.len() == k * n && c.len() == m * n);
        if k == 0 {
            c.fill(0.0);
        }
        if m == 0 || n == 0 || k == 0 {
            return;
        }
        let Micro { rows, columns, .. } = self.micro;
        let depth = even_part(k, self.micro.depth, 1);
        let width = n.min(WIDTH);
        let passes = passes(n, k, depth);
        let counters = || passes.iter().map(|_| AtomicUsize::new(0)).collect();
        let work = Work {
            shape,
            micro: self.micro,
            threads: self.threads,
            a: a.as_ptr(),
            b: b.as_ptr(),
            c: c.as_mut_ptr(),
            packed_a: self.a.at_least(m.next_multiple_of(rows) * depth),
            packed_b: self.b.at_least(width.next_multiple_of(columns) * depth),
            to_pack: counters(),
            to_multiply: counters(),
            meeting: Meeting::new(self.threads),
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(|| work.run(&passes));
            }
            work.run(&passes);
        });
    }
}

/// One slab of the sums over one range of columns.
#[derive(Clone, Copy, Debug)]
struct Pass {
    number: usize,
    /// Where it begins among the columns of B, and how many it has.
    column: usize,
    columns: usize,
    /// The same among the numbers of a sum.
    start: usize,
    depth: usize,
}

fn passes(n: usize, k: usize, depth: usize) -> Vec<Pass> {
    let mut passes = Vec::new();
    for column in (0..n).step_by(WIDTH) {
        for start in (0..k).step_by(depth) {
            passes.push(Pass {
                number: passes.len(),
                column,
                columns: WIDTH.min(n - column),
                start,
                depth: depth.min(k - start),
            });
        }
    }
    passes
}

/// `whole` in equal parts of at most `most`, rounded up to a multiple of `unit`.
fn even_part(whole: usize, most: usize, unit: usize) -> usize {
    let parts = whole.div_ceil(most).max(1);
    whole.div_ceil(parts).next_multiple_of(unit)
}

/// What the threads of one product share.
struct Work {
    shape: Shape,
    micro: Micro,
    threads: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    packed_a: *mut f32,
    packed_b: *mut f32,
    /// Pieces that were taken, by the number of the pass.
    to_pack: Vec<AtomicUsize>,
    to_multiply: Vec<AtomicUsize>,
    meeting: Meeting,
}

// SAFETY: every panel of the copies and every tile of C belongs to one piece of work, which
// one thread takes; all threads meet between writing the copies and reading them.
unsafe impl Sync for Work {}

impl Work {
    fn run(&self, passes: &[Pass]) {
        for pass in passes {
            self.pack(pass);
            self.meeting.wait();
            self.multiply(pass);
            self.meeting.wait();
        }
    }

    /// Copies panels of A and rows of B until none is left.
    fn pack(&self, pass: &Pass) {
        let Shape { m, n, k } = self.shape;
        let Micro { rows, columns, .. } = self.micro;
        let panels = m.div_ceil(rows);
        let pieces = panels + pass.depth.div_ceil(ROWS_AT_ONCE);
        loop {
            let piece = self.to_pack[pass.number].fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return;
            }
            // SAFETY: what is read lies inside of the matrix, what is written in the room for
            // its copy, and the number of the piece was given to this thread only.
            unsafe {
                match piece.checked_sub(panels) {
                    None => {
                        let row = piece * rows;
                        let from = self.a.add(row * k + pass.start);
                        let to = self.packed_a.add(row * pass.depth);
                        pack_rows(from, k, rows.min(m - row), pass.depth, rows, to);
                    }
                    Some(piece) => {
                        let first = piece * ROWS_AT_ONCE;
                        let last = pass.depth.min(first + ROWS_AT_ONCE);
                        for row in first..last {
                            let from = self.b.add((pass.start + row) * n + pass.column);
                            let to = self.packed_b.add(row * columns);
                            pack_row(from, pass.columns, columns, to, columns * pass.depth);
                        }
                    }
                }
            }
        }
    }

    /// Takes blocks of C until none is left.
    fn multiply(&self, pass: &Pass) {
        let m = self.shape.m;
        let Micro { rows, columns, .. } = self.micro;
        let block_rows = even_part(m, self.micro.block_rows, rows);
        let blocks = m.div_ceil(block_rows);
        let mut piece = PIECE;
        if self.threads > 1 {
            let wanted = (self.threads * PIECES_EACH).div_ceil(blocks);
            piece = pass.columns.div_ceil(wanted).min(PIECE);
        }
        piece = piece.next_multiple_of(columns);
        let across = pass.columns.div_ceil(piece);
        loop {
            let number = self.to_multiply[pass.number].fetch_add(1, Ordering::Relaxed);
            if number >= blocks * across {
                return;
            }
            let (row, column) = (number / across * block_rows, number % across * piece);
            let rows_end = m.min(row + block_rows);
            let columns_end = pass.columns.min(column + piece);
            for column in (column..columns_end).step_by(columns) {
                for row in (row..rows_end).step_by(rows) {
                    // SAFETY: the tile lies in this thread's block; both panels are packed.
                    unsafe { self.tile(pass, row, column) };
                }
            }
        }
    }

    /// # Safety
    ///
    /// The panels of this row and this column are packed, and no other thread has the tile.
    unsafe fn tile(&self, pass: &Pass, row: usize, column: usize) {
        let Shape { m, n, .. } = self.shape;
        let Micro { rows, columns, .. } = self.micro;
        let is_first = pass.start == 0;
        // SAFETY: panels are `depth` long for each row or column; of a tile at the edge,
        // only what lies in C is touched.
        unsafe {
            let a = self.packed_a.add(row * pass.depth);
            let b = self.packed_b.add(column * pass.depth);
            let c = self.c.add(row * n + pass.column + column);
            let rows_there = rows.min(m - row);
            let columns_there = columns.min(pass.columns - column);
            if rows_there == rows && columns_there == columns {
                (self.micro.run)(pass.depth, a, b, c, n, is_first);
                return;
            }
            let mut whole = [0.0; MAX_TILE];
            (self.micro.run)(pass.depth, a, b, whole.as_mut_ptr(), columns, true);
            for i in 0..rows_there {
                for j in 0..columns_there {
                    let c = c.add(i * n + j);
                    let before = if is_first { 0.0 } else { *c };
                    *c = before + whole[i * columns + j];
                }
            }
        }
    }
}

/// Rows of A, `depth` numbers of each, column by column; zeros for rows that are not there.
///
/// # Safety
///
/// `there` rows of `depth` numbers, `stride` apart; room for `rows * depth` numbers.
unsafe fn pack_rows(
    from: *const f32,
    stride: usize,
    there: usize,
    depth: usize,
    rows: usize,
    to: *mut f32,
) {
    // Four by four: a register is a part of a row before and a part of a column after.
    let (whole_rows, whole_depth) = (there / 4 * 4, depth / 4 * 4);
    for row in (0..whole_rows).step_by(4) {
        for p in (0..whole_depth).step_by(4) {
            // SAFETY: inside of both, as the caller promises.
            unsafe {
                let from = from.add(row * stride + p);
                let square: [[f32; 4]; 4] =
                    std::array::from_fn(|i| from.add(i * stride).cast::<[f32; 4]>().read());
                for j in 0..4 {
                    let column = square.map(|row| row[j]);
                    let to = to.add((p + j) * rows + row);
                    to.cast::<[f32; 4]>().write(column);
                }
            }
        }
    }
    for row in 0..rows {
        let begin = if row < whole_rows { whole_depth } else { 0 };
        for p in begin..depth {
            // SAFETY: inside of both, as the caller promises.
            unsafe {
                let value = if row < there {
                    *from.add(row * stride + p)
                } else {
                    0.0
                };
                *to.add(p * rows + row) = value;
            }
        }
    }
}

/// One row of B, cut into panels that are `panel` apart; zeros for columns that are not there.
///
/// # Safety
///
/// A row of `there` numbers; room for `columns` numbers in each panel.
unsafe fn pack_row(from: *const f32, there: usize, columns: usize, to: *mut f32, panel: usize) {
    let whole = there / columns;
    for i in 0..whole {
        // SAFETY: inside of both, as the caller promises.
        unsafe {
            let (from, to) = (from.add(i * columns), to.add(i * panel));
            // In constant lengths: no micro-kernel's panel is narrower than eight.
            for j in (0..columns).step_by(8) {
                let part = from.add(j).cast::<[f32; 8]>().read();
                to.add(j).cast::<[f32; 8]>().write(part);
            }
        }
    }
    for j in whole * columns..there.next_multiple_of(columns) {
        // SAFETY: as above.
        unsafe {
            let value = if j < there { *from.add(j) } else { 0.0 };
            *to.add(whole * panel + j % columns) = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_cover_everything() {
        assert_eq!(even_part(1024, 384, 1), 342);
        assert_eq!(even_part(7, 168, 14), 14);
        assert_eq!(even_part(1000, 168, 14), 168);
        let passes = passes(2 * WIDTH + 5, 700, 350);
        assert_eq!(passes.len(), 6);
        assert_eq!((passes[5].columns, passes[5].start), (5, 350));
    }

    #[test]
    fn panels_are_padded_with_zeros() {
        let from: Vec<f32> = (0..6).map(|i| i as f32).collect();
        let mut to = [9.0; 6];
        // SAFETY: two rows of two numbers, three apart, and room for three.
        unsafe { pack_rows(from.as_ptr(), 3, 2, 2, 3, to.as_mut_ptr()) };
        assert_eq!(to, [0.0, 3.0, 0.0, 1.0, 4.0, 0.0]);
        let from: Vec<f32> = (0..11).map(|i| i as f32).collect();
        let mut to = [9.0; 24];
        // SAFETY: eleven numbers in panels of eight, twelve apart.
        unsafe { pack_row(from.as_ptr(), 11, 8, to.as_mut_ptr(), 12) };
        let expected = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0, 9.0, 9.0, 9.0];
        assert_eq!(to[..12], expected);
        assert_eq!(to[12..21], [8.0, 9.0, 10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0]);
    }

    #[test]
    fn rows_become_columns() {
        // Five rows of six numbers in a panel of seven.
        let from: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let mut to = [9.0; 42];
        // SAFETY: as said.
        unsafe { pack_rows(from.as_ptr(), 6, 5, 6, 7, to.as_mut_ptr()) };
        for (at, &value) in to.iter().enumerate() {
            let (p, row) = (at / 7, at % 7);
            let expected = if row < 5 { (row * 6 + p) as f32 } else { 0.0 };
            assert_eq!(value, expected);
        }
    }
}
